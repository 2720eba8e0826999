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
use axum::routing::{MethodFilter, MethodRouter, on};
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{ConfirmedReport, HttpDevice};
use muster_contract::receipt::Receipt;
use muster_contract::{DeploymentId, DeviceKey};

use super::caller::{Guard, guard};
use super::capabilities::{CapabilitiesManifest, is_device_id};
use super::child_status::is_unreachable;
use super::manifest::{BUNDLE_TYPE, MANIFEST_TYPE, ManifestProjection};
use super::record::{SentReport, VersionRefusal};
use super::report::Delivered;
use super::served::hub_is_behind;
use super::status::{self, StatusManifest};
use super::{Caller, Devices, problems, record, request};
use crate::problem::Problem;

/// The media type of a deployment.
pub(super) const DEPLOYMENT_TYPE: &str = "application/yaml";
/// The address of a device's capabilities. A `deviceId` has slashes if it is that of a child.
const CAPABILITIES: &str = "/api/v1/capabilities/{*deviceId}";

/// All routes of devices: Margo's, and more.
pub(crate) fn router(guarded: Guard, more: Router<Devices>) -> Router {
    let devices = guarded.devices.clone();
    routes().merge(more).layer(from_fn_with_state(guarded, guard)).with_state(devices)
}

/// Makes the route of a method.
type Handler = fn(MethodFilter) -> MethodRouter<Devices>;

/// Margo's routes.
pub(super) const ROUTES: [(MethodFilter, &str, Handler); 6] = [
    (MethodFilter::PUT, CAPABILITIES, |method| on(method, put_capabilities)),
    (MethodFilter::DELETE, CAPABILITIES, |method| on(method, delete_capabilities)),
    (MethodFilter::GET, "/api/v1/deployments", |method| on(method, manifest)),
    (MethodFilter::POST, "/api/v1/deployments/{deploymentId}/status", |method| on(method, post_status)),
    (MethodFilter::GET, "/api/v1/deployments/{deploymentId}/{digest}", |method| on(method, deployment)),
    (MethodFilter::GET, "/api/v1/bundles/{digest}", |method| on(method, bundle)),
];

fn routes() -> Router<Devices> {
    let add = |router: Router<Devices>, (method, path, handler): (_, _, Handler)| {
        router.route(path, handler(method))
    };
    ROUTES
        .into_iter()
        .fold(Router::new(), add)
        .fallback(async || problems::no_such_address())
        .method_not_allowed_fallback(async || problems::no_such_method())
}

/// The caller's manifest; `None` if the fleet has no desired state for its devices yet.
async fn projected(devices: &Devices, caller: &Caller) -> Result<Option<Arc<ManifestProjection>>, Problem> {
    devices.projected(caller, &devices.desired_states(caller).await?).await
}

async fn manifest(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if !request::accepts(&headers, MANIFEST_TYPE) {
        return Err(problems::not_acceptable(MANIFEST_TYPE));
    }
    let states = devices.desired_states(&caller).await?;
    let made = devices.projected(&caller, &states).await?;
    let holds = made.as_ref().is_some_and(|made| request::holds(&headers, &made.digest));
    for key in caller.devices() {
        devices.beat(&caller, &key, states.generation(&key).filter(|_| holds)).await?;
    }
    let Some(made) = made else {
        // An empty manifest would have a version that the first document must exceed, and would remove running deployments.
        return Err(problems::unavailable("the fleet has no desired state for this device yet"));
    };
    let made = if holds { made } else { devices.serve(&caller, &states, made).await? };
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
    let found = found.as_ref().and_then(|made| made.deployment(&id, &digest));
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
    let found = found.as_ref().and_then(|made| made.bundle(&digest));
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
    let none = || problems::semantic_error("deviceId", "this client has no such device");
    let key = device_in(&caller, status.device_id.as_deref().unwrap_or(caller.device_id()), none)?;
    let desired = devices.store.desired(&key).await?.map(|(_, desired)| desired);
    let status = if caller.is_gateway() {
        devices.of_one_device(&caller, &key, status, desired.as_ref()).await?
    } else {
        check_adopted(&devices, &caller, &status, desired.as_ref()).await?;
        status
    };
    let sent = SentReport {
        deployment: Some(&status.deployment_id),
        content: status.content(),
        adopted: Some(status.adopted_manifest_version),
        unreachable: (key != *caller.device()).then(|| is_unreachable(&status)),
        snapshot: None,
    };
    let report = |numbered: &_| Ok(status.report(numbered));
    let delivered = devices.deliver(&key, sent, desired.as_ref(), report).await?;
    devices.beat_after_status(&caller, &key, &sent).await?;
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

async fn put_capabilities(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let device_id = device_id(path)?;
    let none = || {
        let rule = format!("this client is the device '{}'", caller.device_id());
        problems::semantic_error("deviceId", rule)
    };
    let key = device_in(&caller, &device_id, none)?;
    let body = request::body(request.into_body()).await?;
    let capabilities = CapabilitiesManifest::read(&body, &device_id)?;
    if key != *caller.device() && has_no_capabilities(&devices, caller.device()).await? {
        return Err(problems::gateway_not_found());
    }
    let sent = capabilities_report(&capabilities);
    let report = |numbered: &_| Ok(capabilities.report(numbered));
    let delivered = devices.deliver(&key, sent, None, report).await?;
    Ok(done(delivered))
}

async fn delete_capabilities(
    State(devices): State<Devices>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let key = device_in(&caller, &device_id(path)?, problems::device_not_found)?;
    if has_no_capabilities(&devices, &key).await? {
        return Err(problems::device_not_found());
    }
    let none = CapabilitiesManifest::default();
    devices.deliver(&key, capabilities_report(&none), None, |numbered| Ok(none.report(numbered))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn capabilities_report(capabilities: &CapabilitiesManifest) -> SentReport<'static> {
    SentReport {
        deployment: None,
        content: capabilities.content(),
        adopted: None,
        unreachable: None,
        snapshot: None,
    }
}

/// Whether a device has reported no capabilities, or has removed them.
async fn has_no_capabilities(devices: &Devices, key: &DeviceKey) -> Result<bool, Problem> {
    let content = CapabilitiesManifest::default().content();
    let read = |current: &mut HttpDevice, receipt: Option<&Receipt>| {
        let is_removed =
            |known: ConfirmedReport| known.content == content && !record::is_lost(current, &known, receipt);
        let is_removed = current.capabilities.is_none_or(is_removed);
        // A stale read must not decide that there are none.
        Ok((is_removed, is_removed))
    };
    devices.store.update(key, devices.now(), read).await
}

fn device_id(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let id = path.ok().map(|Path(id)| id).filter(|id| is_device_id(id));
    id.ok_or_else(|| problems::invalid_request("the address has no deviceId"))
}

/// The device with a `deviceId`, of those that the caller speaks for. An id below another device's is that of a foreign child.
fn device_in(caller: &Caller, id: &str, none: impl FnOnce() -> Problem) -> Result<DeviceKey, Problem> {
    let refuse = || if id.contains('/') { problems::not_its_child() } else { none() };
    caller.device_of(id).ok_or_else(refuse)
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
