//! `Idempotency-Key`: a change that a program repeats with the same key gets the answer of the first request, and is not made
//! again.
//!
//! A key belongs to one person, address and method. The gateway refuses it with another body (422), and a repetition while the
//! first request is under way (409). A change continues after its client has gone, so a repetition finds its answer. The gateway
//! keeps no retryable answer and no answer to an unreadable request; of an answer that is too long it keeps that the change was made.
//! Each gateway keeps its own answers, in bounded number, size and time; beyond that the service that records the change judges a
//! repetition anew: the planner by the [`RequestName`], which is its id of the request.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH, RETRY_AFTER};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use muster_contract::canonical::Digest;
use tokio::time::Instant;

use super::answers::{ANSWER_BYTES_MAX, ANSWERS_MAX, Answer, Kept, KeyAdmission, OpenChange, name_of};
use super::body::{BODY_BYTES_MAX, read_bytes};
use super::handler_helpers::PREFIX;
use crate::login::session::Session;
use crate::people::People;
use crate::problem::Problem;

/// Longest key in characters.
const KEY_CHARS_MAX: usize = 128;
/// The header with the key.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header of an answer that was given before.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The name of a request with a key: the same for the same person, address and key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestName(pub Digest);

/// Makes a change of the API once for each key.
pub(crate) async fn once(State(people): State<People>, request: Request, next: Next) -> Response {
    let rest = request.uri().path().strip_prefix(PREFIX).filter(|rest| rest.starts_with('/'));
    // The content of a package is too long to read here, and its put needs no key.
    let is_package =
        request.method() == Method::PUT && rest.is_some_and(|rest| rest.starts_with("/packages/"));
    if request.method().is_safe() || rest.is_none() || is_package {
        return next.run(request).await;
    }
    let key = match key(&request) {
        Ok(Some(key)) => key,
        Ok(None) => return next.run(request).await,
        Err(problem) => return problem.into_response(),
    };
    let person = request.extensions().get::<Session>().map(|session| session.person.key.clone());
    // Without scheme and host, which HTTP/2 has in it: gateways may have different ones.
    let target = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
    let address = format!("{} {target}", request.method());
    let name = name_of(&person.unwrap_or_default(), &address, &key);
    let (mut request, digest) = match read(request).await {
        Ok(read) => read,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(RequestName(name));
    let answers = Arc::clone(&people.answers);
    match answers.admit(&name, digest, Instant::now()) {
        KeyAdmission::First => {}
        KeyAdmission::Again(answer) => return answer.replayed(),
        KeyAdmission::TooLong => {
            let detail = "the change was made, and its answer was too long to keep: read its result";
            return Problem::new(StatusCode::CONFLICT, detail).into_response();
        }
        KeyAdmission::UnderWay => {
            let detail = "the first request with this Idempotency-Key is under way";
            return Problem::passing(StatusCode::CONFLICT, detail).into_response();
        }
        KeyAdmission::OtherRequest => {
            let detail =
                "Idempotency-Key: it belongs to a request with another body or precondition; send a new key";
            return Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).into_response();
        }
        KeyAdmission::Full => {
            let detail = format!("this gateway has {ANSWERS_MAX} changes with an Idempotency-Key under way");
            return Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
        }
    }
    // A task of its own: it continues if the client closes the connection.
    let change = OpenChange::new(answers, name);
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
    let bytes = read_bytes(body, BODY_BYTES_MAX).await?;
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
    let may_pass = status.is_server_error() || response.headers().contains_key(RETRY_AFTER);
    let is_kept = !may_pass && !matches!(status.as_u16(), 400 | 408 | 413 | 415 | 429);
    let (parts, body) = response.into_parts();
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        let problem =
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer of the change cannot be read");
        return (problem.into_response(), None);
    };
    let (media, etag) = (parts.headers.get(CONTENT_TYPE).cloned(), parts.headers.get(ETAG).cloned());
    let answer = Answer { status, media, etag, body: body.clone() };
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
        headers.extend(self.etag.map(|etag| (ETAG, etag)));
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::Answers;
    use super::*;

    #[tokio::test]
    async fn an_unreadable_request_is_not_kept_and_a_long_success_is_marked() {
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
        let name = name_of("", "POST /a", "k");
        assert!(matches!(answers.admit(&name, digest, now), KeyAdmission::First));
        answers.finish(name, made, now);
        assert!(matches!(answers.admit(&name, digest, now), KeyAdmission::TooLong), "it is not made again");
    }
}
