//! The answers of this gateway to changes with an `Idempotency-Key`, in bounded number, size and time: the oldest is forgotten
//! first. It knows no HTTP but status, media type, entity tag and body of an answer.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode};
use muster_contract::canonical::Digest;
use tokio::time::Instant;

/// Time for which an answer is kept.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(10 * 60);
/// Most answers that are kept, and requests that are under way.
pub(super) const ANSWERS_MAX: usize = 4096;
/// Longest answer that is kept in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all answers that are kept: a gateway has little memory.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// Digest of person, method and address, and key.
pub(super) type Name = Digest;

/// An answer that can be given again.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    /// Its status.
    pub(super) status: StatusCode,
    /// Its media type.
    pub(super) media: Option<HeaderValue>,
    /// Its entity tag.
    pub(super) etag: Option<HeaderValue>,
    /// Its body.
    pub(super) body: Bytes,
}

/// The kept part of an answer.
#[derive(Debug, Clone)]
pub(super) enum Kept {
    /// All of it.
    Whole(Answer),
    /// Its answer was too long.
    TooLong,
}

impl Kept {
    const fn bytes(&self) -> usize {
        match self {
            Self::Whole(answer) => answer.body.len(),
            Self::TooLong => 0,
        }
    }
}

#[derive(Debug)]
struct Entry {
    request: Digest,
    /// `None` while the request is under way.
    answer: Option<Kept>,
}

/// The answers of this gateway to requests with a key.
#[derive(Default)]
pub(crate) struct Answers(Mutex<KeptAnswers>);

#[derive(Default)]
struct KeptAnswers {
    entries: HashMap<Name, Entry>,
    /// Names of kept answers, the oldest first.
    kept: VecDeque<(Instant, Name)>,
    /// Bytes of the kept answers.
    bytes: usize,
}

/// Without the answers.
impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

/// The decision about a request with a key.
pub(super) enum KeyAdmission {
    /// The change is to be made.
    First,
    /// It was made: this is its answer.
    Again(Answer),
    /// It was made, and its answer was too long to keep.
    TooLong,
    /// Its first request is under way.
    UnderWay,
    /// The key belongs to another request.
    OtherRequest,
    /// Too many changes are under way.
    Full,
}

impl Answers {
    fn write<T>(&self, write: impl FnOnce(&mut KeptAnswers) -> T) -> T {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Decides about a request with a key.
    pub(super) fn admit(&self, name: &Name, request: Digest, now: Instant) -> KeyAdmission {
        self.write(|store| {
            store.forget(now);
            match store.entries.get(name) {
                Some(entry) if entry.request != request => return KeyAdmission::OtherRequest,
                Some(Entry { answer: Some(Kept::Whole(answer)), .. }) => {
                    return KeyAdmission::Again(answer.clone());
                }
                Some(Entry { answer: Some(Kept::TooLong), .. }) => return KeyAdmission::TooLong,
                Some(_) => return KeyAdmission::UnderWay,
                None => {}
            }
            if store.entries.len() >= ANSWERS_MAX && !store.forget_oldest() {
                return KeyAdmission::Full;
            }
            store.entries.insert(*name, Entry { request, answer: None });
            KeyAdmission::First
        })
    }

    /// Keeps an answer, or forgets the request if there is none to keep.
    pub(super) fn finish(&self, name: Name, answer: Option<Kept>, now: Instant) {
        self.write(|store| match (answer, store.entries.get_mut(&name)) {
            (Some(answer), Some(entry)) => {
                store.bytes += answer.bytes();
                entry.answer = Some(answer);
                store.kept.push_back((now, name));
                while store.bytes > BYTES_MAX && store.forget_oldest() {}
            }
            _ => _ = store.entries.remove(&name),
        });
    }
}

impl KeptAnswers {
    fn forget(&mut self, now: Instant) {
        let is_over =
            |store: &Self| store.kept.front().is_some_and(|(at, _)| now.duration_since(*at) >= KEPT_FOR);
        while is_over(self) {
            self.forget_oldest();
        }
    }

    /// False if no answer is kept.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, name)) = self.kept.pop_front() else { return false };
        let forgotten = self.entries.remove(&name);
        self.bytes -= forgotten.and_then(|entry| entry.answer).map_or(0, |answer| answer.bytes());
        true
    }
}

/// A change that is under way. Dropped without `finish`, it frees its key.
pub(super) struct OpenChange {
    answers: Arc<Answers>,
    name: Option<Name>,
}

impl OpenChange {
    /// A change that was admitted.
    pub(super) const fn new(answers: Arc<Answers>, name: Name) -> Self {
        Self { answers, name: Some(name) }
    }

    /// Keeps the answer; without one the key is free again.
    pub(super) fn finish(mut self, answer: Option<Kept>) {
        if let Some(name) = self.name.take() {
            self.answers.finish(name, answer, Instant::now());
        }
    }
}

impl Drop for OpenChange {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.answers.finish(name, None, Instant::now());
        }
    }
}

/// The name of a change; no part has a line break.
pub(super) fn name_of(person: &str, address: &str, key: &str) -> Name {
    Digest::of_bytes(format!("{person}\n{address}\n{key}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> Name {
        name_of("", "POST /a", key)
    }

    fn answer() -> Kept {
        long(2)
    }

    fn long(bytes: usize) -> Kept {
        let (status, body) = (StatusCode::OK, vec![b' '; bytes].into());
        Kept::Whole(Answer { status, media: None, etag: None, body })
    }

    #[test]
    fn kept_answers_are_bounded_in_bytes_and_the_oldest_is_forgotten_first() {
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        let held = BYTES_MAX / ANSWER_BYTES_MAX;
        for number in 0..=held {
            let name = name(&number.to_string());
            assert!(matches!(answers.admit(&name, digest, now), KeyAdmission::First));
            answers.finish(name, Some(long(ANSWER_BYTES_MAX)), now);
        }
        assert_eq!(answers.write(|store| (store.bytes, store.entries.len())), (BYTES_MAX, held));
        assert!(matches!(answers.admit(&name("1"), digest, now), KeyAdmission::Again(_)));
        assert!(
            matches!(answers.admit(&name("0"), digest, now), KeyAdmission::First),
            "the oldest was forgotten"
        );
        answers.admit(&name("a"), digest, now + KEPT_FOR);
        assert_eq!(answers.write(|store| store.bytes), 0);
    }

    #[test]
    fn a_key_gives_one_change_one_answer_for_its_time() {
        let (answers, begin) = (Answers::default(), Instant::now());
        let (one, other) = (Digest::of_bytes(b"1"), Digest::of_bytes(b"2"));
        assert!(matches!(answers.admit(&name("k"), one, begin), KeyAdmission::First));
        assert!(matches!(answers.admit(&name("k"), one, begin), KeyAdmission::UnderWay));
        answers.finish(name("k"), Some(answer()), begin);
        assert!(matches!(answers.admit(&name("k"), one, begin), KeyAdmission::Again(_)));
        assert!(matches!(answers.admit(&name("k"), other, begin), KeyAdmission::OtherRequest));
        assert!(matches!(answers.admit(&name("l"), other, begin), KeyAdmission::First));
        answers.finish(name("l"), None, begin);
        assert!(matches!(answers.admit(&name("l"), other, begin), KeyAdmission::First), "it is tried again");
        assert!(
            matches!(answers.admit(&name("k"), other, begin + KEPT_FOR), KeyAdmission::First),
            "it was forgotten"
        );
    }

    #[test]
    fn a_change_that_does_not_end_leaves_its_key_free() {
        let (answers, now, digest) = (Arc::new(Answers::default()), Instant::now(), Digest::of_bytes(b"1"));
        let change = || OpenChange::new(Arc::clone(&answers), name("k"));
        assert!(matches!(answers.admit(&name("k"), digest, now), KeyAdmission::First));
        drop(change());
        assert!(matches!(answers.admit(&name("k"), digest, now), KeyAdmission::First));
        change().finish(Some(answer()));
        assert!(matches!(answers.admit(&name("k"), digest, now), KeyAdmission::Again(_)));
    }

    #[test]
    fn a_key_is_of_one_person_and_one_address() {
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        let of = |person: &str, address: &str| name_of(person, address, "k");
        let first = of("anna", "POST /a");
        assert!(matches!(answers.admit(&first, digest, now), KeyAdmission::First));
        answers.finish(first, Some(answer()), now);
        for other in [of("bob", "POST /a"), of("anna", "POST /b"), of("", "POST /a")] {
            assert!(matches!(answers.admit(&other, digest, now), KeyAdmission::First), "{other:?}");
        }
    }

    #[test]
    fn keys_are_bounded_and_the_oldest_answer_makes_room() {
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        for number in 0..ANSWERS_MAX {
            assert!(matches!(answers.admit(&name(&number.to_string()), digest, now), KeyAdmission::First));
        }
        assert!(matches!(answers.admit(&name("more"), digest, now), KeyAdmission::Full), "all are under way");
        answers.finish(name("7"), Some(answer()), now);
        assert!(matches!(answers.admit(&name("more"), digest, now), KeyAdmission::First));
        assert!(matches!(answers.admit(&name("7"), digest, now), KeyAdmission::Full), "its answer made room");
    }
}
