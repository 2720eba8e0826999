//! The routes of devices. Each reads for its [`Caller`] alone: a request for another client's content gets the same answer as one
//! for content that does not exist.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use muster_contract::DeploymentId;
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{ConfirmedReport, HttpDevice};
use muster_contract::receipt::Receipt;

use super::caller::{Guard, guard};
use super::capabilities::{CapabilitiesManifest, is_device_id};
use super::manifest::{BUNDLE_TYPE, MANIFEST_TYPE, ManifestProjection};
use super::record::{SentReport, VersionRefusal};
use super::report::Delivered;
use super::status::{self, StatusManifest};
use super::{Caller, Devices, problems, record, request};
use crate::problem::Problem;

/// The media type of a deployment.
const DEPLOYMENT_TYPE: &str = "application/yaml";

/// All routes of devices.
pub(crate) fn router(guarded: Guard) -> Router {
    let devices = guarded.devices.clone();
    routes().layer(from_fn_with_state(guarded, guard)).with_state(devices)
}

fn routes() -> Router<Devices> {
    Router::new()
        .route("/api/v1/capabilities/{*device}", put(put_capabilities).delete(delete_capabilities))
        .route("/api/v1/deployments", get(manifest))
        .route("/api/v1/deployments/{id}/status", post(post_status))
        .route("/api/v1/deployments/{id}/{digest}", get(deployment))
        .route("/api/v1/bundles/{digest}", get(bundle))
        .fallback(async || problems::no_such_address())
        .method_not_allowed_fallback(async || problems::no_such_method())
}

/// The desired state of the caller's device and its manifest; `None` if the fleet has none for it yet.
async fn projected(
    devices: &Devices,
    caller: &Caller,
) -> Result<Option<(DesiredState, Arc<ManifestProjection>)>, Problem> {
    let Some((sequence, desired)) = devices.store.desired(caller.device()).await? else { return Ok(None) };
    let made = devices.manifests.projection(caller.device(), sequence, &desired, caller.device_id());
    let made = made.map_err(|error| problems::internal(error.to_string()))?;
    Ok(Some((desired, made)))
}

async fn manifest(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if !request::accepts(&headers, MANIFEST_TYPE) {
        return Err(problems::not_acceptable(MANIFEST_TYPE));
    }
    let Some((desired, made)) = projected(&devices, &caller).await? else {
        devices.beat(caller.device(), None).await?;
        // An empty manifest would have a version that the first document must exceed, and would remove running deployments.
        return Err(problems::unavailable("the fleet has no desired state for this device yet"));
    };
    let holds = request::holds(&headers, &made.digest);
    devices.beat(caller.device(), holds.then(|| made.generation.get())).await?;
    if !holds {
        let now = devices.now();
        // Before the answer: the next status may name this version at any gateway.
        let learn = |current: &mut _, _: Option<&_>| {
            // A client takes a version below a served one for an attack.
            if record::is_hub_behind(current, desired.generation.get()) {
                return Err(hub_is_behind());
            }
            Ok(((), record::learn(current, &desired)))
        };
        devices.store.update(caller.device(), now, learn).await?;
    }
    Ok(request::content(&headers, MANIFEST_TYPE, request::CHANGING, &made.digest, &made.manifest))
}

async fn deployment(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Ok(Path((id, digest))) = path else { return Err(problems::deployment_not_found()) };
    let found = projected(&devices, &caller).await?;
    let found = found.as_ref().and_then(|(_, made)| made.deployment(&id, &digest));
    let found = found.ok_or_else(problems::deployment_not_found)?;
    Ok(request::compressed(&headers, DEPLOYMENT_TYPE, request::IMMUTABLE, &found.digest, &found.text))
}

async fn bundle(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Ok(Path(digest)) = path else { return Err(problems::invalid_bundle()) };
    let found = projected(&devices, &caller).await?;
    let found = found.as_ref().and_then(|(_, made)| made.bundle(&digest));
    let (digest, bytes) = found.ok_or_else(problems::invalid_bundle)?;
    Ok(request::content(&headers, BUNDLE_TYPE, request::IMMUTABLE, digest, bytes))
}

async fn post_status(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let id = path.ok().and_then(|Path(id)| id.parse::<DeploymentId>().ok());
    let id = id.ok_or_else(|| problems::semantic_error("deploymentId", "must be the id of a deployment"))?;
    let body = request::body(request.into_body()).await?;
    let status: StatusManifest = status::parse(&body)?;
    status.check(&id)?;
    if status.device_id.as_deref().is_some_and(|named| named != caller.device_id()) {
        return Err(problems::semantic_error("deviceId", "this client has no such device"));
    }
    let desired = devices.store.desired(caller.device()).await?.map(|(_, desired)| desired);
    check_adopted(&devices, &caller, &status, desired.as_ref()).await?;
    let adopted = Some(status.adopted_manifest_version);
    let sent = SentReport { deployment: Some(&id), content: status.content(), adopted };
    let report = |numbered: &_| Ok(status.report(numbered));
    let delivered = devices.deliver(caller.device(), sent, desired.as_ref(), report).await?;
    Ok(done(delivered))
}

/// Checks that the device can have the version that its status names.
async fn check_adopted(
    devices: &Devices,
    caller: &Caller,
    status: &StatusManifest,
    desired: Option<&DesiredState>,
) -> Result<(), Problem> {
    let newest = desired.map_or(0, |desired| desired.generation.get());
    let adopted = status.adopted_manifest_version;
    if adopted.get() <= newest {
        return Ok(());
    }
    let check = |current: &mut _, _: Option<&_>| {
        let checked = record::check_adopted(current, newest, adopted);
        // A stale read must not decide that no gateway served a version.
        Ok((checked, checked.is_err()))
    };
    let checked = devices.store.update(caller.device(), devices.now(), check).await?;
    checked.map_err(|refusal| match refusal {
        VersionRefusal::HubIsBehind => hub_is_behind(),
        VersionRefusal::Above(newest) => {
            let rule = format!("is above {newest}, the newest version");
            problems::semantic_error("adoptedManifestVersion", rule)
        }
    })
}

fn hub_is_behind() -> Problem {
    problems::unavailable("the desired state of this device is older than the manifest that it was served")
}

async fn put_capabilities(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let device_id = own_device(&caller, path, true)?;
    let body = request::body(request.into_body()).await?;
    let capabilities = CapabilitiesManifest::read(&body, &device_id)?;
    let sent = SentReport { deployment: None, content: capabilities.content(), adopted: None };
    let report = |numbered: &_| Ok(capabilities.report(numbered));
    let delivered = devices.deliver(caller.device(), sent, None, report).await?;
    Ok(done(delivered))
}

async fn delete_capabilities(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    own_device(&caller, path, false)?;
    let none = CapabilitiesManifest::default();
    let content = none.content();
    let read = |current: &mut HttpDevice, receipt: Option<&Receipt>| {
        let is_removed =
            |known: ConfirmedReport| known.content == content && !record::is_lost(current, &known, receipt);
        let is_removed = current.capabilities.is_none_or(is_removed);
        // A stale read must not decide that there is nothing to remove.
        Ok((is_removed, is_removed))
    };
    if devices.store.update(caller.device(), devices.now(), read).await? {
        return Err(problems::device_not_found());
    }
    let sent = SentReport { deployment: None, content, adopted: None };
    devices.deliver(caller.device(), sent, None, |numbered| Ok(none.report(numbered))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The caller's own device in a path; for a report, the problem names the wrong part.
fn own_device(
    caller: &Caller,
    path: Result<Path<String>, PathRejection>,
    is_report: bool,
) -> Result<String, Problem> {
    let Some(id) = path.ok().map(|Path(id)| id).filter(|id| is_device_id(id)) else {
        return Err(problems::invalid_request("the address has no deviceId"));
    };
    match id.split_once('/') {
        _ if id == caller.device_id() => Ok(id),
        Some(_) if is_report => Err(problems::gateway_not_found()),
        None if is_report => {
            let rule = format!("this client is the device '{}'", caller.device_id());
            Err(problems::semantic_error("deviceId", rule))
        }
        _ => Err(problems::device_not_found()),
    }
}

fn done(delivered: Delivered) -> Response {
    let status = match delivered {
        Delivered::First => StatusCode::CREATED,
        Delivered::Later => StatusCode::OK,
    };
    status.into_response()
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_routes_contradict_each_other() {
        // The router refuses a second route of the same shape by a panic.
        let _ = super::routes();
    }
}
