//! Reads the bodies of changes: a form, or a JSON object, within bounds of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request, StatusCode};
use futures_util::StreamExt as _;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::params::{Param, Values};
use crate::problem::Problem;

/// Longest body in bytes: a form of the longest request to a service, each byte of which may take three.
pub(super) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest body of a few short fields in bytes; also of a login, which needs no session.
const SHORT_BYTES_MAX: usize = 64 * 1024;
/// Time for the body of a request, with the wait for others that are read.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Long bodies that are read at once: a bound on the memory that they take.
const BODIES_MAX: usize = 64;

const _: () = assert!(BODY_BYTES_MAX > 3 * muster_contract::limits::MESSAGE_BYTES_MAX);

static BODIES: Semaphore = Semaphore::const_new(BODIES_MAX);

/// The fields of a body.
pub(crate) enum Fields {
    /// Those of a form that are not empty, as texts.
    Form(Vec<(String, String)>),
    /// Those of a JSON object.
    Object(Map<String, Value>),
}

/// Reads a body whole.
///
/// # Errors
/// It is too long or too slow.
pub(super) async fn read_bytes(body: Body, most: usize) -> Result<Bytes, Problem> {
    let read = async {
        // Short ones need no session, so they must not hold back the changes. Nothing closes the semaphore.
        let _permit = if most > SHORT_BYTES_MAX { BODIES.acquire().await.ok() } else { None };
        to_bytes(body, most).await
    };
    timeout(BODY_TIMEOUT, read).await.map_err(too_slow)?.map_err(|_| too_long(most))
}

/// Reads a body whole that is longer than those of other changes; the caller bounds how many are read at once. A body with a
/// `Content-Length` takes no more memory than its length. No part may take longer than [`BODY_TIMEOUT`], all no longer than `longest`.
///
/// # Errors
/// It is too long or too slow.
pub(super) async fn read_long(body: Body, most: usize, longest: Duration) -> Result<Vec<u8>, Problem> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > most {
        return Err(too_long(most));
    }
    let read = async {
        let mut content = Vec::with_capacity(announced);
        let mut parts = body.into_data_stream();
        while let Some(part) = timeout(BODY_TIMEOUT, parts.next()).await.map_err(too_slow)? {
            let part = part.map_err(|error| Problem::field("body", format!("ends early: {error}")))?;
            if part.len() > most - content.len() {
                return Err(too_long(most));
            }
            content.extend_from_slice(&part);
        }
        Ok(content)
    };
    timeout(longest, read).await.map_err(too_slow)?
}

fn too_slow(_: Elapsed) -> Problem {
    Problem::passing(StatusCode::REQUEST_TIMEOUT, "the body came too slowly")
}

fn too_long(most: usize) -> Problem {
    let detail = format!("the body is longer than {most} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

/// Reads the body of a request; an empty one has no fields.
///
/// # Errors
/// The body is too long, too slow, of another type, or no form or object.
pub(crate) async fn read_body(request: Request<Body>, most: usize) -> Result<Fields, Problem> {
    let (parts, body) = request.into_parts();
    if parts.uri.query().is_some_and(|query| !query.is_empty()) {
        return Err(Problem::field("query", "a change takes its fields in the body"));
    }
    let bytes = read_bytes(body, most).await?;
    if bytes.is_empty() {
        return Ok(Fields::Object(Map::new()));
    }
    match media_type(&parts.headers).as_deref() {
        Some("application/x-www-form-urlencoded") => {
            let form = std::str::from_utf8(&bytes).map_err(|_| Problem::field("body", "is no form"))?;
            // A form of a page sends its empty fields, too.
            let filled = form_urlencoded::parse(form.as_bytes()).filter(|(_, value)| !value.is_empty());
            Ok(Fields::Form(filled.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()))
        }
        Some("application/json") => {
            let object = serde_json::from_slice::<Map<String, Value>>(&bytes).map(Fields::Object);
            object.map_err(|error| Problem::field("body", format!("is no JSON object: {error}")))
        }
        _ => {
            let detail = "the body must be application/json or application/x-www-form-urlencoded";
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
        }
    }
}

/// The known fields of a body: texts, numbers, flags, and lists of them.
///
/// # Errors
/// As [`read_body`], or a field is unknown or of another kind.
pub(crate) async fn fields(request: Request<Body>, known: &[Param]) -> Result<Values, Problem> {
    let pairs = match read_body(request, SHORT_BYTES_MAX).await? {
        Fields::Form(pairs) => pairs,
        Fields::Object(object) => flat(object)?,
    };
    Values::of(pairs.into_iter(), known)
}

fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next()?.trim().to_ascii_lowercase())
}

/// The fields of an object, a list as one field for each of its values.
fn flat(object: Map<String, Value>) -> Result<Vec<(String, String)>, Problem> {
    let mut fields = Vec::new();
    for (name, value) in object {
        let values = match value {
            Value::Array(list) => list,
            value => vec![value],
        };
        for value in values {
            let text = match value {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                _ => return Err(Problem::field(&name, "must be a text, a number, true or false")),
            };
            fields.push((name.clone(), text));
        }
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream::{pending, unfold};
    use tokio::time::{Instant, sleep};

    use super::super::params::{Kind, param};
    use super::*;

    async fn read(media: &str, body: &str) -> Result<Vec<String>, u16> {
        let request =
            Request::builder().header(CONTENT_TYPE, media).body(Body::from(body.to_owned())).unwrap();
        let known = [
            param("wave", Kind::Text, ""),
            param("quarantineSeq", Kind::List, ""),
            param("file", Kind::Text, ""),
        ];
        let values = fields(request, &known).await.map_err(|problem| problem.status)?;
        Ok(["wave", "quarantineSeq"].iter().flat_map(|name| values.all(name)).map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn a_change_is_a_form_or_an_object_within_bounds() {
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(read(form, "wave=all&file=").await.unwrap(), ["all"]);
        assert_eq!(read("application/json", r#"{"quarantineSeq": [7, "8"]}"#).await.unwrap(), ["7", "8"]);
        assert_eq!(read("application/json", "[]").await, Err(400));
        assert_eq!(read("application/json", r#"{"wave": {}}"#).await, Err(400));
        assert_eq!(read("application/json", r#"{"wavve": "a"}"#).await, Err(400));
        assert_eq!(read("text/plain", "wave=all").await, Err(415));
        let large = format!("wave={}", "a".repeat(1024 * 1024));
        assert_eq!(read(form, &large).await, Err(413));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_body_is_bounded_as_a_whole_and_between_its_parts() {
        let parts = |pause: u64| {
            Body::from_stream(unfold(0, move |nth| async move {
                sleep(Duration::from_secs(pause)).await;
                (nth < 10).then(|| (Ok::<_, Infallible>(vec![b'a'; 10]), nth + 1))
            }))
        };
        let read = async |pause, most, longest| {
            let read = read_long(parts(pause), most, Duration::from_secs(longest)).await;
            read.map(|content| content.len()).map_err(|problem| problem.status)
        };
        assert_eq!(read(1, 100, 60).await, Ok(100));
        assert_eq!(read(1, 99, 60).await, Err(413), "without a Content-Length");
        assert_eq!(read(1, 100, 5).await, Err(408));
        assert_eq!(read(BODY_TIMEOUT.as_secs() + 1, 100, 600).await, Err(408));
        let announced = read_long(Body::from(vec![b'a'; 100]), 99, BODY_TIMEOUT).await;
        assert_eq!(announced.map_err(|problem| problem.status), Err(413));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_slowly_is_408_at_its_deadline() {
        let silent = Body::from_stream(pending::<Result<Bytes, Infallible>>());
        let dripping = Body::from_stream(unfold((), async |()| {
            sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, Infallible>("a"), ()))
        }));
        for (what, body) in [("silent", silent), ("dripping", dripping)] {
            let started = Instant::now();
            let refused = read_bytes(body, BODY_BYTES_MAX).await.unwrap_err();
            assert_eq!((what, refused.status), (what, 408));
            assert_eq!(started.elapsed().as_secs(), BODY_TIMEOUT.as_secs(), "{what}");
        }
    }
}
