//! `PUT` and `DELETE` of `/api/v1/packages/NAME`: stores a package in the hub's object store, and removes it.
//!
//! The gateway writes with the credentials of a packager, so that a gateway without them cannot change what devices run. It
//! holds one package at a time in memory. Repeated puts of the same content change nothing, so a put has no `Idempotency-Key`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_RANGE, IF_MATCH, IF_NONE_MATCH};
use axum::http::{Extensions, HeaderMap, Request, StatusCode};
use axum::response::Response;
use axum::routing::put;
use muster_bus::PublishErrorKind;
use muster_client::packages::bucket::{PackageBucket, PackageContent, PackageError};
use muster_contract::limits::PACKAGE_BYTES_MAX;
use muster_contract::packages::{ObjectName, ObjectNameError, PackageWriter};
use muster_service::error::chain;
use serde::Serialize;
use serde_json::Value;
use tokio::task::{JoinError, spawn_blocking};

use super::body::{fields, read_long};
use super::handler_helpers::{PREFIX, PathParams, document, path_names};
use super::idempotency::IDEMPOTENCY_KEY;
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
    check_headers(request.headers())?;
    if request.headers().contains_key(IDEMPOTENCY_KEY) {
        return Err(Problem::field("Idempotency-Key", "has no use here: the same content changes nothing"));
    }
    if request.uri().query().is_some_and(|query| !query.is_empty()) {
        return Err(Problem::field("query", "a package has no parameters: its name is in the address"));
    }
    let bucket = bucket(&people)?;
    let writer = writer(request.extensions());
    let permit = Arc::clone(&people.package_puts).try_acquire_owned().map_err(|_| {
        let detail = "this gateway receives another package, and one at a time";
        Problem::passing(StatusCode::TOO_MANY_REQUESTS, detail)
    })?;
    let most = usize::try_from(PACKAGE_BYTES_MAX).unwrap_or(usize::MAX);
    let bytes = read_long(request.into_body(), most, CONTENT_TIMEOUT).await?;
    let now = people.clock().now();
    let storing = async move {
        let _permit = permit;
        let content =
            spawn_blocking(|| PackageContent::new(name, bytes)).await.map_err(|error| lost(&error))?;
        let content = content.map_err(|rule| Problem::field("body", rule))?;
        let result = bucket.put(&content, writer.as_ref(), now, |_| {}).await;
        let result = result.map_err(|error| problem(&error))?;
        let key = writer.as_ref().map(|writer| &*writer.key);
        if result.changed {
            let (name, digest) = (&result.name, &result.digest);
            tracing::info!(package.name = name, package.digest = %digest, person.key = key, "stored a package");
        }
        Ok::<_, Problem>(result)
    };
    let result = to_its_end(storing).await?;
    Ok(document(if result.changed { StatusCode::CREATED } else { StatusCode::OK }, &result))
}

async fn remove(
    State(people): State<People>,
    path: PathParams,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let name = name(path)?;
    check_headers(request.headers())?;
    let writer = writer(request.extensions());
    fields(request, &[]).await?;
    let (bucket, now) = (bucket(&people)?, people.clock().now());
    let removing = async move {
        let was_there = bucket.remove(&name, writer.as_ref(), now).await;
        if !was_there.map_err(|error| problem(&error))? {
            return Err(Problem::new(StatusCode::NOT_FOUND, format!("the hub has no package {name}")));
        }
        let key = writer.as_ref().map(|writer| &*writer.key);
        tracing::info!(package.name = %name, person.key = key, "removed a package");
        Ok(RemovedPackage { removed: name.to_string() })
    };
    Ok(document(StatusCode::OK, &to_its_end(removing).await?))
}

/// Makes a change also if its client closes the connection meanwhile: half of it would leave chunks without a use.
async fn to_its_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(change).await.map_err(|error| lost(&error))?
}

fn lost(error: &JoinError) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the change failed: {error}"))
}

fn writer(extensions: &Extensions) -> Option<PackageWriter> {
    let session = extensions.get::<Session>()?;
    Some(PackageWriter { key: session.person.key.clone(), role: session.person.role.clone() })
}

fn name(path: PathParams) -> Result<ObjectName, Problem> {
    let names = path_names(path)?;
    let name = names.get("name").and_then(Value::as_str).unwrap_or_default();
    let refuse = |rule: String| Problem::field("name", rule);
    // Clients and proxies resolve such parts, so their requests reach another address.
    if name.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(refuse("has a part . or .., which no address can have".to_owned()));
    }
    name.parse().map_err(|error: ObjectNameError| refuse(error.to_string()))
}

/// Refuses headers that would make the request another one.
fn check_headers(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(CONTENT_RANGE) {
        return Err(Problem::field("Content-Range", "has no use here: a package is put whole"));
    }
    if headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH) {
        let detail = "a package has no version: leave If-Match and If-None-Match out";
        return Err(Problem::new(StatusCode::PRECONDITION_FAILED, detail));
    }
    Ok(())
}

/// The bucket, if this gateway may write it.
fn bucket(people: &People) -> Result<PackageBucket, Problem> {
    let bucket = people.bucket.as_ref().ok_or_else(|| {
        let detail = "this gateway has no --packages-creds, so it changes no packages";
        Problem::new(StatusCode::CONFLICT, detail)
    })?;
    bucket.borrow().clone().ok_or_else(|| {
        let detail = "the gateway is not connected to NATS with --packages-creds; its log says why";
        Problem::passing(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}

fn problem(error: &PackageError) -> Problem {
    let words = chain(error);
    match error {
        PackageError::Full { name, rule } => {
            let detail = format!("{name} cannot be put: {rule}; remove packages that no device needs");
            Problem::new(StatusCode::CONFLICT, detail)
        }
        PackageError::Conflict(_) => Problem::passing(StatusCode::CONFLICT, words),
        PackageError::Write { source, .. } if source.kind == PublishErrorKind::Permanent => {
            Problem::new(StatusCode::BAD_GATEWAY, words)
        }
        PackageError::Write { .. } | PackageError::Read(_) => {
            Problem::passing(StatusCode::SERVICE_UNAVAILABLE, words)
        }
    }
}
