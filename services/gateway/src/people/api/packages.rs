//! `PUT` and `DELETE` of `/api/v1/packages/NAME`: stores a package in the hub's object store, and removes it.
//!
//! The gateway writes with credentials of their own, those of a packager, so that a gateway without them cannot change what
//! devices run. It holds one package at a time in memory. A put is the same however often it is repeated, so it has no
//! `Idempotency-Key`.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::Response;
use axum::routing::put;
use muster_client::packages::bucket::{PackageBucket, PackageError};
use muster_contract::limits::PACKAGE_BYTES_MAX;
use muster_contract::packages::ObjectName;
use muster_service::error::chain;
use serde::Serialize;
use serde_json::Value;

use super::body::{fields, read_long};
use super::{PREFIX, PathParams, document, path_names};
use crate::login::session::Session;
use crate::people::People;
use crate::problem::Problem;

/// The address of a package below [`PREFIX`]; its name may have slashes.
const PATH: &str = "/packages/{*name}";
/// The address in the OpenAPI document.
pub(crate) const PACKAGE: &str = "/packages/{name}";
/// The media type of a package in the OpenAPI document; the gateway accepts any.
pub(crate) const PACKAGE_TYPE: &str = "application/octet-stream";
/// Time for the content of a package.
const CONTENT_TIMEOUT: Duration = Duration::from_secs(300);

/// The answer to a removal.
#[derive(Debug, Serialize)]
struct RemovedPackage {
    /// Its name.
    removed: String,
}

/// The routes of packages.
pub(crate) fn router() -> Router<People> {
    Router::new().route(&format!("{PREFIX}{PATH}"), put(store).delete(remove))
}

async fn store(
    State(people): State<People>,
    path: PathParams,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let name = name(path)?;
    let bucket = bucket(&people, request.headers())?;
    if request.uri().query().is_some_and(|query| !query.is_empty()) {
        return Err(Problem::field("query", "a package has no parameters: its name is in the address"));
    }
    let writer = request.extensions().get::<Session>().map(|session| session.person.clone());
    let _permit = people.packages.try_acquire().map_err(|_| {
        let detail = "this gateway receives another package, and one at a time";
        Problem::passing(StatusCode::TOO_MANY_REQUESTS, detail)
    })?;
    let most = usize::try_from(PACKAGE_BYTES_MAX).unwrap_or(usize::MAX);
    let content = read_long(request.into_body(), most, CONTENT_TIMEOUT).await?;
    let now = people.clock().now();
    let result = bucket.put(&name, &content, writer.as_ref(), now, |_| {}).await;
    let result = result.map_err(|error| problem(&error))?;
    tracing::info!(
        package.name = %name,
        package.digest = %result.digest,
        package.changed = result.changed,
        person.key = writer.as_ref().map(|person| &*person.key),
        "stored a package"
    );
    Ok(document(if result.changed { StatusCode::CREATED } else { StatusCode::OK }, &result))
}

async fn remove(
    State(people): State<People>,
    path: PathParams,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let name = name(path)?;
    let (headers, extensions) = (request.headers().clone(), request.extensions().clone());
    fields(request, &[]).await?;
    let bucket = bucket(&people, &headers)?;
    let writer = extensions.get::<Session>().map(|session| &session.person);
    let was_there = bucket.remove(&name, writer, people.clock().now()).await;
    if !was_there.map_err(|error| problem(&error))? {
        return Err(Problem::new(StatusCode::NOT_FOUND, format!("the hub has no package {name}")));
    }
    let key = writer.map(|person| &*person.key);
    tracing::info!(package.name = %name, person.key = key, "removed a package");
    Ok(document(StatusCode::OK, &RemovedPackage { removed: name.to_string() }))
}

fn name(path: PathParams) -> Result<ObjectName, Problem> {
    let names = path_names(path)?;
    let name = names.get("name").and_then(Value::as_str).unwrap_or_default();
    name.parse().map_err(|error: muster_contract::packages::ObjectNameError| {
        Problem::field("name", error.to_string())
    })
}

/// The bucket, if this gateway may write it and the request has no precondition.
fn bucket<'a>(people: &'a People, headers: &HeaderMap) -> Result<&'a PackageBucket, Problem> {
    if headers.contains_key(IF_MATCH) {
        let detail = "a package has no version: leave If-Match out";
        return Err(Problem::new(StatusCode::PRECONDITION_FAILED, detail));
    }
    people.bucket.as_ref().ok_or_else(|| {
        let detail = "this gateway has no --packages-creds, so it changes no packages";
        Problem::new(StatusCode::CONFLICT, detail)
    })
}

fn problem(error: &PackageError) -> Problem {
    let words = chain(error);
    match error {
        PackageError::Content { rule, .. } => Problem::field("body", rule.clone()),
        PackageError::Full { .. } | PackageError::Conflict(_) => Problem::new(StatusCode::CONFLICT, words),
        PackageError::Write { .. } | PackageError::Read(_) => {
            Problem::passing(StatusCode::SERVICE_UNAVAILABLE, words)
        }
    }
}
