//! Reads and writes parts of HTTP for devices: bounded bodies, entity tags, accepted media types and encodings.

use std::io::Write as _;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use muster_contract::canonical::Digest;
use tokio::time::timeout;

use super::problems;
use crate::problem::Problem;

/// Longest body in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest wait for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// `Cache-Control` of a manifest, which changes and is one client's own.
pub(crate) const CHANGING: &str = "private";
/// `Cache-Control` of content whose address has its digest.
pub(crate) const IMMUTABLE: &str = "private, max-age=31536000, immutable";

/// The whole body.
///
/// # Errors
/// It is too large, or does not come in time.
pub(crate) async fn body(body: Body) -> Result<Bytes, Problem> {
    match timeout(BODY_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(problems::too_large(BODY_BYTES_MAX)),
        Err(_) => Err(problems::too_slow()),
    }
}

/// Content with its digest as entity tag: 304 without a body if the client has it.
pub(crate) fn content(
    request: &HeaderMap,
    media_type: &'static str,
    cache: &'static str,
    digest: &Digest,
    bytes: &Bytes,
) -> Response {
    let is_held = holds(request, digest);
    let mut response = Response::new(if is_held { Body::empty() } else { Body::from(bytes.clone()) });
    *response.status_mut() = if is_held { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let headers = response.headers_mut();
    let mut insert = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    insert(ETAG, &format!("\"{digest}\""));
    insert(CACHE_CONTROL, cache);
    if !is_held {
        insert(CONTENT_TYPE, media_type);
    }
    response
}

/// As [`content`], compressed for a client that accepts gzip. The entity tag is the digest of the uncompressed content.
pub(crate) fn compressed(
    request: &HeaderMap,
    media_type: &'static str,
    cache: &'static str,
    digest: &Digest,
    bytes: &Bytes,
) -> Response {
    let mut response = content(request, media_type, cache, digest, bytes);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if response.status() == StatusCode::OK
        && accepts_gzip(request)
        && let Some(packed) = gzip(bytes).filter(|packed| packed.len() < bytes.len())
    {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = Body::from(packed);
    }
    response
}

fn gzip(bytes: &Bytes) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let all = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<&str> = all.flat_map(|value| value.split(',')).map(str::trim).collect();
    let of = |wanted: &str| ranges.iter().find_map(|range| quality(range, wanted));
    of("gzip").or_else(|| of("*")).is_some_and(|quality| quality > 0.0)
}

/// Whether a request's `If-None-Match` names the content with this digest.
pub(crate) fn holds(request: &HeaderMap, digest: &Digest) -> bool {
    let own = format!("\"{digest}\"");
    let tags = request.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    tags.flat_map(|tags| tags.split(',')).map(str::trim).any(|tag| {
        let tag = tag.strip_prefix("W/").unwrap_or(tag);
        tag == "*" || tag == own
    })
}

/// Whether a client accepts a media type; a request without `Accept` accepts all.
pub(crate) fn accepts(request: &HeaderMap, media_type: &str) -> bool {
    let ranges: Vec<&str> = request
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|range| !range.is_empty())
        .collect();
    let kind = media_type.split('/').next().unwrap_or_default();
    // The most specific range decides.
    let of = |wanted: &str| ranges.iter().find_map(|range| quality(range, wanted));
    let quality = of(media_type).or_else(|| of(&format!("{kind}/*"))).or_else(|| of("*/*"));
    ranges.is_empty() || quality.is_some_and(|quality| quality > 0.0)
}

/// The quality of a range in a header, if it is the wanted one.
fn quality(range: &str, wanted: &str) -> Option<f64> {
    let mut parts = range.split(';').map(str::trim);
    parts.next().filter(|name| name.eq_ignore_ascii_case(wanted))?;
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    Some(quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream::pending;
    use tokio::time::Instant;

    use super::*;
    use crate::margo::manifest::MANIFEST_TYPE;

    fn headers(name: &HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_client_that_accepts_its_type_gets_a_manifest() {
        let accepted = |values: &[&str]| accepts(&headers(&ACCEPT, values), MANIFEST_TYPE);
        let weighted = format!("text/html, {MANIFEST_TYPE};q=0.1");
        for values in [
            &[][..],
            &[""],
            &["*/*"],
            &["application/*"],
            &[MANIFEST_TYPE],
            &[&weighted],
            &["a/b", "*/*;q=0.5"],
        ] {
            assert!(accepted(values), "{values:?}");
        }
        let refused = format!("{MANIFEST_TYPE};q=0, */*");
        for values in [&["application/json"][..], &["text/*"], &["*/*;q=0"], &[&refused], &["application"]] {
            assert!(!accepted(values), "{values:?}");
        }
    }

    #[test]
    fn an_entity_tag_is_the_quoted_digest() {
        let digest = Digest::of_bytes(b"a");
        let held = |values: &[&str]| holds(&headers(&IF_NONE_MATCH, values), &digest);
        let (own, other) = (format!("\"{digest}\""), format!("\"{}\"", Digest::of_bytes(b"b")));
        assert!(held(&[&own]) && held(&[&format!("{other}, W/{own}")]) && held(&[&other, "*"]));
        assert!(!held(&[]) && !held(&[&other]) && !held(&[&digest.to_string()]));
        let response =
            content(&headers(&IF_NONE_MATCH, &[&own]), "a/b", CHANGING, &digest, &Bytes::from("a"));
        assert_eq!(
            (response.status(), response.headers()[ETAG].to_str().unwrap()),
            (StatusCode::NOT_MODIFIED, &*own)
        );
        assert!(!response.headers().contains_key(CONTENT_TYPE));
    }

    #[test]
    fn content_is_compressed_only_for_clients_that_accept_gzip() {
        let bytes = Bytes::from("a".repeat(1000));
        let packed = |values: &[&str]| {
            let request = headers(&ACCEPT_ENCODING, values);
            let response = compressed(&request, "a/b", IMMUTABLE, &Digest::of_bytes(&bytes), &bytes);
            assert_eq!(response.headers()[VARY], "Accept-Encoding");
            response.headers().contains_key(CONTENT_ENCODING)
        };
        assert!(packed(&["gzip"]) && packed(&["br, gzip;q=0.5"]) && packed(&["*"]));
        assert!(!packed(&[]) && !packed(&["br"]) && !packed(&["gzip;q=0, *"]) && !packed(&["identity"]));
    }

    #[tokio::test]
    async fn a_body_is_bounded() {
        let sized =
            async |bytes: usize| body(Body::from(vec![b'a'; bytes])).await.map_err(|problem| problem.status);
        assert_eq!(sized(BODY_BYTES_MAX).await.unwrap().len(), BODY_BYTES_MAX);
        assert_eq!(sized(BODY_BYTES_MAX + 1).await, Err(413));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_408_at_its_deadline() {
        let started = Instant::now();
        let silent = pending::<Result<Bytes, Infallible>>();
        let refused = body(Body::from_stream(silent)).await.unwrap_err();
        assert_eq!((refused.status, started.elapsed().as_secs()), (408, BODY_TIMEOUT.as_secs()));
    }
}
