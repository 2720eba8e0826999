//! `Idempotency-Key`: a change that a program repeats with the same key gets the answer of the first request, and is not made
//! again.
//!
//! A key belongs to one person, address and method. The gateway refuses it with another body (422), and a repetition while the
//! first request is under way (409). A change continues after its client has gone, so a repetition finds its answer. The gateway
//! keeps no retryable answer and no answer to an unreadable request; of an answer that is too long it keeps that the change was made.
//! Each gateway keeps its own answers, in bounded number, size and time; beyond that the service that records the change judges a
//! repetition anew.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, IF_MATCH};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use muster_contract::canonical::Digest;
use tokio::time::{Instant, timeout};

use super::PREFIX;
use super::act::{BODY_BYTES_MAX, BODY_TIMEOUT};
use crate::login::session::Session;
use crate::people::People;
use crate::problem::Problem;

/// Longest key in characters.
const KEY_CHARS_MAX: usize = 128;
/// Time for which an answer is kept.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(10 * 60);
/// Most answers that are kept, and requests that are under way.
const ANSWERS_MAX: usize = 4096;
/// Longest answer that is kept in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all answers that are kept: a gateway has little memory.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// The header with the key.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that was given before.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Digest of person, method and address, and key.
type Name = Digest;

/// An answer that can be given again.
#[derive(Debug, Clone)]
struct Answer {
    status: StatusCode,
    media: Option<HeaderValue>,
    body: Bytes,
}

/// The kept part of an answer.
#[derive(Debug, Clone)]
enum Kept {
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
pub(crate) struct Answers(Mutex<Store>);

#[derive(Default)]
struct Store {
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
enum Admission {
    First,
    Again(Answer),
    TooLong,
    UnderWay,
    OtherRequest,
    Full,
}

impl Answers {
    fn write<T>(&self, write: impl FnOnce(&mut Store) -> T) -> T {
        write(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn admit(&self, name: &Name, request: Digest, now: Instant) -> Admission {
        self.write(|store| {
            store.forget(now);
            match store.entries.get(name) {
                Some(entry) if entry.request != request => return Admission::OtherRequest,
                Some(Entry { answer: Some(Kept::Whole(answer)), .. }) => {
                    return Admission::Again(answer.clone());
                }
                Some(Entry { answer: Some(Kept::TooLong), .. }) => return Admission::TooLong,
                Some(_) => return Admission::UnderWay,
                None => {}
            }
            if store.entries.len() >= ANSWERS_MAX && !store.forget_oldest() {
                return Admission::Full;
            }
            store.entries.insert(*name, Entry { request, answer: None });
            Admission::First
        })
    }

    /// Keeps an answer, or forgets the request if there is none to keep.
    fn finish(&self, name: Name, answer: Option<Kept>, now: Instant) {
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

impl Store {
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
struct OpenChange {
    answers: Arc<Answers>,
    name: Option<Name>,
}

impl OpenChange {
    fn finish(mut self, answer: Option<Kept>) {
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

/// Makes a change of the API once for each key.
pub(crate) async fn once(State(people): State<People>, request: Request, next: Next) -> Response {
    let is_api = request.uri().path().strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('/'));
    if request.method().is_safe() || !is_api {
        return next.run(request).await;
    }
    let key = match key(&request) {
        Ok(Some(key)) => key,
        Ok(None) => return next.run(request).await,
        Err(problem) => return problem.into_response(),
    };
    let person = request.extensions().get::<Session>().map(|session| session.person.key.clone());
    let address = format!("{} {}", request.method(), request.uri());
    let name = name_of(&person.unwrap_or_default(), &address, &key);
    let (request, digest) = match read(request).await {
        Ok(read) => read,
        Err(problem) => return problem.into_response(),
    };
    let answers = Arc::clone(&people.answers);
    match answers.admit(&name, digest, Instant::now()) {
        Admission::First => {}
        Admission::Again(answer) => return answer.replayed(),
        Admission::TooLong => {
            let detail = "the change was made, and its answer was too long to keep: read its result";
            return Problem::new(StatusCode::CONFLICT, detail).into_response();
        }
        Admission::UnderWay => {
            let detail = "the first request with this Idempotency-Key is under way";
            return Problem::passing(StatusCode::CONFLICT, detail).into_response();
        }
        Admission::OtherRequest => {
            let detail =
                "Idempotency-Key: it belongs to a request with another body or precondition; send a new key";
            return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).into_response();
        }
        Admission::Full => {
            let detail = format!("this gateway has {ANSWERS_MAX} changes with an Idempotency-Key under way");
            return Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
        }
    }
    // A task of its own: it continues if the client closes the connection.
    let change = OpenChange { answers, name: Some(name) };
    let made = tokio::spawn(async move {
        let (response, answer) = kept(next.run(request).await).await;
        change.finish(answer);
        response
    });
    made.await.unwrap_or_else(|error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the change failed: {error}")).into_response()
    })
}

/// The name of a change; no part has a line break.
fn name_of(person: &str, address: &str, key: &str) -> Name {
    Digest::of_bytes(format!("{person}\n{address}\n{key}").as_bytes())
}

fn key(request: &Request) -> Result<Option<String>, Problem> {
    let mut keys = request.headers().get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let text = key.to_str().ok().filter(|text| (1..=KEY_CHARS_MAX).contains(&text.len()));
    match text.filter(|_| keys.next().is_none()) {
        Some(text) => Ok(Some(text.to_owned())),
        None => {
            let rule = format!("must be one text of 1 to {KEY_CHARS_MAX} visible ASCII characters");
            Err(Problem::field("Idempotency-Key", rule))
        }
    }
}

/// The request with its body in memory, and the digest of what it asks for.
async fn read(request: Request) -> Result<(Request, Digest), Problem> {
    let (parts, body) = request.into_parts();
    let too_slow = || Problem::passing(StatusCode::REQUEST_TIMEOUT, "the body came too slowly");
    let too_large = || {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {BODY_BYTES_MAX} bytes"))
    };
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await.map_err(|_| too_slow())?;
    let bytes = bytes.map_err(|_| too_large())?;
    let mut asked = Vec::new();
    for name in [CONTENT_TYPE, IF_MATCH] {
        parts
            .headers
            .get_all(&name)
            .iter()
            .for_each(|value| asked.extend([value.as_bytes(), b"\n"].concat()));
        asked.push(b'\n');
    }
    asked.extend_from_slice(&bytes);
    Ok((Request::from_parts(parts, Body::from(bytes)), Digest::of_bytes(&asked)))
}

/// The response, and what to keep of it.
async fn kept(response: Response) -> (Response, Option<Kept>) {
    let status = response.status();
    // A refusal is final, an answer that may pass is not; what cannot be understood costs nothing to judge again.
    let is_kept = !status.is_server_error() && !matches!(status.as_u16(), 400 | 408 | 413 | 415 | 429);
    let (parts, body) = response.into_parts();
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        let problem =
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer of the change cannot be read");
        return (problem.into_response(), None);
    };
    let media = parts.headers.get(CONTENT_TYPE).cloned();
    let answer = Answer { status, media, body: body.clone() };
    let kept = if body.len() <= ANSWER_BYTES_MAX {
        Some(Kept::Whole(answer))
    } else {
        status.is_success().then_some(Kept::TooLong)
    };
    (Response::from_parts(parts, Body::from(body)), kept.filter(|_| is_kept))
}

impl Answer {
    fn replayed(self) -> Response {
        let mut response = (self.status, self.body).into_response();
        let headers = response.headers_mut();
        headers.remove(CONTENT_TYPE);
        headers.extend(self.media.map(|media| (CONTENT_TYPE, media)));
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
        response
    }
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
        Kept::Whole(Answer { status: StatusCode::OK, media: None, body: vec![b' '; bytes].into() })
    }

    #[test]
    fn kept_answers_are_bounded_in_bytes_and_the_oldest_is_forgotten_first() {
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        let held = BYTES_MAX / ANSWER_BYTES_MAX;
        for number in 0..=held {
            let name = name(&number.to_string());
            assert!(matches!(answers.admit(&name, digest, now), Admission::First));
            answers.finish(name, Some(long(ANSWER_BYTES_MAX)), now);
        }
        assert_eq!(answers.write(|store| (store.bytes, store.entries.len())), (BYTES_MAX, held));
        assert!(matches!(answers.admit(&name("1"), digest, now), Admission::Again(_)));
        assert!(
            matches!(answers.admit(&name("0"), digest, now), Admission::First),
            "the oldest was forgotten"
        );
        answers.admit(&name("a"), digest, now + KEPT_FOR);
        assert_eq!(answers.write(|store| store.bytes), 0);
    }

    #[tokio::test]
    async fn what_cannot_be_understood_is_not_kept_and_a_long_success_leaves_its_mark() {
        let of = async |status: u16, bytes: usize| {
            let status = StatusCode::from_u16(status).unwrap();
            let (_, kept) = kept((status, vec![b' '; bytes]).into_response()).await;
            kept
        };
        for passing in [400, 408, 413, 415, 429, 502, 503] {
            assert!(of(passing, 2).await.is_none(), "{passing}");
        }
        for last in [200, 404, 409, 412] {
            assert!(matches!(of(last, 2).await, Some(Kept::Whole(_))), "{last}");
        }
        assert!(of(409, ANSWER_BYTES_MAX + 1).await.is_none());
        let made = of(200, ANSWER_BYTES_MAX + 1).await;
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        assert!(matches!(answers.admit(&name("k"), digest, now), Admission::First));
        answers.finish(name("k"), made, now);
        assert!(matches!(answers.admit(&name("k"), digest, now), Admission::TooLong), "it is not made again");
    }

    #[test]
    fn a_key_gives_one_change_one_answer_for_its_time() {
        let (answers, begin) = (Answers::default(), Instant::now());
        let (one, other) = (Digest::of_bytes(b"1"), Digest::of_bytes(b"2"));
        assert!(matches!(answers.admit(&name("k"), one, begin), Admission::First));
        assert!(matches!(answers.admit(&name("k"), one, begin), Admission::UnderWay));
        answers.finish(name("k"), Some(answer()), begin);
        assert!(matches!(answers.admit(&name("k"), one, begin), Admission::Again(_)));
        assert!(matches!(answers.admit(&name("k"), other, begin), Admission::OtherRequest));
        assert!(matches!(answers.admit(&name("l"), other, begin), Admission::First));
        answers.finish(name("l"), None, begin);
        assert!(matches!(answers.admit(&name("l"), other, begin), Admission::First), "it is tried again");
        assert!(
            matches!(answers.admit(&name("k"), other, begin + KEPT_FOR), Admission::First),
            "it was forgotten"
        );
    }

    #[test]
    fn a_change_that_does_not_end_leaves_its_key_free() {
        let (answers, now, digest) = (Arc::new(Answers::default()), Instant::now(), Digest::of_bytes(b"1"));
        let change = || OpenChange { answers: Arc::clone(&answers), name: Some(name("k")) };
        assert!(matches!(answers.admit(&name("k"), digest, now), Admission::First));
        drop(change());
        assert!(matches!(answers.admit(&name("k"), digest, now), Admission::First));
        change().finish(Some(answer()));
        assert!(matches!(answers.admit(&name("k"), digest, now), Admission::Again(_)));
    }

    #[test]
    fn a_key_is_of_one_person_and_one_address() {
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        let of = |person: &str, address: &str| name_of(person, address, "k");
        let first = of("anna", "POST /a");
        assert!(matches!(answers.admit(&first, digest, now), Admission::First));
        answers.finish(first, Some(answer()), now);
        for other in [of("bob", "POST /a"), of("anna", "POST /b"), of("", "POST /a")] {
            assert!(matches!(answers.admit(&other, digest, now), Admission::First), "{other:?}");
        }
    }

    #[test]
    fn keys_are_bounded_and_the_oldest_answer_makes_room() {
        let (answers, now, digest) = (Answers::default(), Instant::now(), Digest::of_bytes(b"1"));
        for number in 0..ANSWERS_MAX {
            assert!(matches!(answers.admit(&name(&number.to_string()), digest, now), Admission::First));
        }
        assert!(matches!(answers.admit(&name("more"), digest, now), Admission::Full), "all are under way");
        answers.finish(name("7"), Some(answer()), now);
        assert!(matches!(answers.admit(&name("more"), digest, now), Admission::First));
        assert!(matches!(answers.admit(&name("7"), digest, now), Admission::Full), "its answer made room");
    }
}
