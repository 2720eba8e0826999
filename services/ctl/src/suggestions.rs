//! Adds names that are near to the error about an unknown deployment, device or site. Without an answer of the hub there are none.

use std::collections::BTreeSet;

use muster_contract::near::near;
use muster_contract::query::{DeploymentsAnswer, DeviceLine, DevicesAnswer, Query};
use muster_contract::{DeploymentId, DeviceKey, SiteId};

use crate::ask::{AskError, understood};
use crate::error::CtlError;
use crate::session::Session;

/// An unknown deployment comes with names that are near; any other error as it is.
pub(crate) async fn with_near_deployments(
    session: &Session<'_>,
    error: AskError,
    id: &DeploymentId,
) -> CtlError {
    let Some(message) = error.not_found() else { return error.into() };
    let known = known_deployments(session).await;
    let mut near = near(id.as_str(), known.iter().map(String::as_str));
    // A deployment that exists now but not at the queried time is not misspelt.
    near.retain(|name| *name != id.as_str());
    CtlError::Unknown { message, near: near.into_iter().map(str::to_owned).collect() }
}

/// Every deployment; none if the hub does not answer, because a hint is not worth a second error.
pub(crate) async fn known_deployments(session: &Session<'_>) -> Vec<String> {
    let answer = session.hub.pages("deployments", "deployments", Query::default()).await;
    let answer = answer.and_then(|answer| understood::<DeploymentsAnswer>(&answer));
    answer.map_or_else(
        |_| Vec::new(),
        |answer| answer.deployments.iter().map(|view| view.deployment.to_string()).collect(),
    )
}

/// An unknown site of a list comes with names that are near; any other error as it is.
pub(crate) async fn with_near_names(session: &Session<'_>, error: AskError, query: &Query) -> CtlError {
    let unknown = error.not_found().and_then(|message| {
        let mut sites = query.site.iter();
        sites.find(|site| message.contains(&format!("site '{site}'"))).or(query.site.only())
    });
    match unknown {
        Some(site) => with_near_sites(session, error, site).await,
        None => error.into(),
    }
}

/// An unknown site comes with names that are near; any other error as it is.
pub(crate) async fn with_near_sites(session: &Session<'_>, error: AskError, site: &SiteId) -> CtlError {
    let Some(message) = error.not_found() else { return error.into() };
    let sites: BTreeSet<_> =
        known_devices(session).await.iter().map(|line| line.key.site.to_string()).collect();
    unknown(message, site.as_str(), &sites)
}

/// Fails if the device is unknown. Without an answer the device counts as known.
///
/// # Errors
/// When it was never heard of.
pub(crate) async fn expect_known(session: &Session<'_>, key: &DeviceKey) -> Result<(), CtlError> {
    let query = Query { site: key.site.clone().into(), device: Some(key.device.clone()), ..Query::default() };
    match session.hub.query("device", &query).await {
        Err(error) if error.not_found().is_some() => {
            let CtlError::Unknown { near, .. } = with_near_devices(session, error, key).await else {
                return Ok(());
            };
            Err(CtlError::Unknown { message: format!("never heard of {key}"), near })
        }
        _ => Ok(()),
    }
}

/// An unknown device comes with names that are near; any other error as it is.
pub(crate) async fn with_near_devices(session: &Session<'_>, error: AskError, key: &DeviceKey) -> CtlError {
    let Some(message) = error.not_found() else { return error.into() };
    let keys = known_devices(session).await.iter().map(|line| line.key.to_string()).collect();
    unknown(message, &key.to_string(), &keys)
}

fn unknown(message: String, wanted: &str, known: &BTreeSet<String>) -> CtlError {
    // A name that is known is not what is wrong.
    let near =
        if known.contains(wanted) { Vec::new() } else { near(wanted, known.iter().map(String::as_str)) };
    CtlError::Unknown { message, near: near.into_iter().map(str::to_owned).collect() }
}

/// Every device; none if the hub does not answer, because a hint is not worth a second error.
pub(crate) async fn known_devices(session: &Session<'_>) -> Vec<DeviceLine> {
    let answer = session.hub.pages("devices", "devices", Query::default()).await;
    let answer = answer.and_then(|answer| understood::<DevicesAnswer>(&answer));
    answer.map_or_else(|_| Vec::new(), |answer| answer.devices)
}
