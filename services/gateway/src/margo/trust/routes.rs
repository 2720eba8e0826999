//! The routes of the trust bundle, for everybody over https.

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use muster_contract::canonical::Digest;
use serde_json::json;

use super::{BUNDLE, DISCOVERY, TrustBundle};
use crate::margo::{problems, request};
use crate::people::People;
use crate::problem::Problem;

/// A client asks each time whether a document has changed.
const CACHE: &str = "no-cache";
const JSON: &str = "application/json";

/// The routes, for everybody.
pub(crate) fn router() -> Router<People> {
    Router::new().route(DISCOVERY, get(discovery)).route(BUNDLE, get(bundle))
}

/// The bundle, and the host of the request; a problem if it is not served.
fn served<'a>(people: &'a People, headers: &HeaderMap) -> Result<(&'a TrustBundle, String), Problem> {
    let trust = people.trust().ok_or_else(|| problems::no_bundle("this gateway serves no devices"))?;
    match people.login_address(headers)? {
        ("https", host) => Ok((trust, host)),
        _ => Err(problems::no_bundle("a trust bundle is served over https alone")),
    }
}

async fn discovery(State(people): State<People>, headers: HeaderMap) -> Result<Response, Problem> {
    let (trust, host) = served(&people, &headers)?;
    let uri = format!("https://{host}{BUNDLE}");
    let document = Bytes::from(json!({ "trustDomain": trust.domain, "trustBundleUri": uri }).to_string());
    Ok(request::content(&headers, JSON, CACHE, &Digest::of_bytes(&document), &document))
}

async fn bundle(State(people): State<People>, headers: HeaderMap) -> Result<Response, Problem> {
    let (trust, _) = served(&people, &headers)?;
    Ok(request::content(&headers, JSON, CACHE, &Digest::of_bytes(&trust.bundle), &trust.bundle))
}
