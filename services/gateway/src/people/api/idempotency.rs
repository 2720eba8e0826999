//! `Idempotency-Key`: a change that a program repeats with the same key gets the answer of the first request, and is not made
//! again.
//!
//! A key is of one person, address and method. With another body it is refused (422); while the first request is under way,
//! the repeated one is asked to come back (409). A change goes on although its client has gone, so that its answer is there for the
//! repeated request. Answers that say "try again" are not kept. The memory is that of one gateway, of bounded size and time;
//! beyond it a repeated change is judged anew by the service that records it.

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
pub const KEPT_FOR: Duration = Duration::from_secs(10 * 60);
/// Most answers that are kept, and requests that are under way.
const ANSWERS_MAX: usize = 4096;
/// Longest answer that is kept in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The header with the key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Person, method and address, and the key.
type Name = (String, String, String);

/// An answer that can be given again.
#[derive(Debug, Clone)]
struct Answer {
    status: StatusCode,
    media: Option<HeaderValue>,
    body: Bytes,
}

#[derive(Debug)]
struct Entry {
    request: Digest,
    /// `None` while the request is under way.
    answer: Option<Answer>,
}

/// The answers of this gateway to requests with a key.
#[derive(Default)]
pub struct Answers(Mutex<Store>);

#[derive(Default)]
struct Store {
    entries: HashMap<Name, Entry>,
    /// Names of kept answers, the oldest first.
    kept: VecDeque<(Instant, Name)>,
}

/// Without the answers.
impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

/// Whether a change is made under a key, or the answer in its place.
enum Admission {
    First,
    Again(Answer),
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
                Some(Entry { answer: Some(answer), .. }) => return Admission::Again(answer.clone()),
                Some(_) => return Admission::UnderWay,
                None => {}
            }
            if store.entries.len() >= ANSWERS_MAX && !store.forget_oldest() {
                return Admission::Full;
            }
            store.entries.insert(name.clone(), Entry { request, answer: None });
            Admission::First
        })
    }

    /// Keeps an answer, or forgets the request if there is none to keep.
    fn finish(&self, name: Name, answer: Option<Answer>, now: Instant) {
        self.write(|store| match (answer, store.entries.get_mut(&name)) {
            (Some(answer), Some(entry)) => {
                entry.answer = Some(answer);
                store.kept.push_back((now, name));
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
        let oldest = self.kept.pop_front();
        oldest.is_some_and(|(_, name)| self.entries.remove(&name).is_some())
    }
}

/// The change under a key. Without an end of its own, the key is free again.
struct OpenChange {
    answers: Arc<Answers>,
    name: Option<Name>,
}

impl OpenChange {
    fn finish(mut self, answer: Option<Answer>) {
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
pub async fn once(State(people): State<People>, request: Request, next: Next) -> Response {
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
    let name = (person.unwrap_or_default(), address, key);
    let (request, digest) = match read(request).await {
        Ok(read) => read,
        Err(problem) => return problem.into_response(),
    };
    let answers = Arc::clone(&people.answers);
    match answers.admit(&name, digest, Instant::now()) {
        Admission::First => {}
        Admission::Again(answer) => return answer.replayed(),
        Admission::UnderWay => {
            let detail = "the first request with this Idempotency-Key is under way";
            return Problem::passing(StatusCode::CONFLICT, detail).into_response();
        }
        Admission::OtherRequest => {
            let detail =
                "Idempotency-Key: it belongs to a request with another body or precondition; take a new one";
            return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).into_response();
        }
        Admission::Full => {
            let detail = format!("this gateway has {ANSWERS_MAX} changes with an Idempotency-Key under way");
            return Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
        }
    }
    // A task of its own: it goes on although the client closes the connection.
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

/// The response, and the answer to keep of it.
async fn kept(response: Response) -> (Response, Option<Answer>) {
    let status = response.status();
    // A refusal is final, an answer that may pass is not.
    let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
    let (parts, body) = response.into_parts();
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        let problem =
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer of the change cannot be read");
        return (problem.into_response(), None);
    };
    let media = parts.headers.get(CONTENT_TYPE).cloned();
    let answer = Answer { status, media, body: body.clone() };
    let is_kept = !may_pass && body.len() <= ANSWER_BYTES_MAX;
    (Response::from_parts(parts, Body::from(body)), is_kept.then_some(answer))
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
        (String::new(), "POST /a".to_owned(), key.to_owned())
    }

    fn answer() -> Answer {
        Answer { status: StatusCode::OK, media: None, body: Bytes::from_static(b"[]") }
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
        let of = |person: &str, address: &str| (person.to_owned(), address.to_owned(), "k".to_owned());
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
