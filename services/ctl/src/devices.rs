//! `muster devices` and `muster device`.

use std::collections::BTreeSet;

use muster_contract::query::{DeviceAnswer, DeviceLine, DevicesAnswer, Output, Query};
use muster_contract::{DeploymentId, DeviceKey, SiteId};

use crate::ask::{AskError, understood};
use crate::config::{DeviceArgs, DevicesArgs};
use crate::error::CtlError;
use crate::history;
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;
use muster_contract::near::near;

/// The devices, or those of a site, or those that are heard in a certain way.
///
/// # Errors
/// When nobody answers, or there is no such site.
pub(crate) async fn list(session: &mut Session<'_>, mut args: DevicesArgs) -> Result<(), CtlError> {
    let only = args.query().site.only().cloned();
    let moment = history::pinned(session, &mut args.point, only.as_ref()).await?;
    let (query, frame) = (args.query(), session.frame());
    match session.hub.pages("devices", "devices", query.clone()).await {
        Ok(answer) => {
            // A message begins with its deployment.
            let id = |line: &DeviceLine| line.message.split_once(':')?.0.parse::<DeploymentId>().ok();
            let whole: DevicesAnswer = understood(&answer)?;
            let ids: Vec<DeploymentId> = whole.devices.iter().filter_map(id).collect();
            let names = ShownNames::of(session, &ids).await;
            session.show(&answer, |answer: &DevicesAnswer, _| {
                let mut shown = answer.clone();
                shown.devices.iter_mut().for_each(|line| names.rename_in(&mut line.message));
                render::device::list(&shown, &query, frame)
            })?;
            history::print_moment(session, moment.as_ref())
        }
        Err(error) => Err(with_near_names(session, error, &query).await),
    }
}

/// One device.
///
/// # Errors
/// When nobody answers, or there is no such device.
pub(crate) async fn one(session: &mut Session<'_>, args: DeviceArgs) -> Result<(), CtlError> {
    let DeviceArgs { device, mut point } = args;
    let key = device.resolved()?;
    let moment = history::pinned(session, &mut point, Some(&key.site)).await?;
    let query = Query {
        site: key.site.clone().into(),
        device: Some(key.device.clone()),
        output: Output::Detail,
        point: point.into(),
        ..Query::default()
    };
    let frame = session.frame();
    match session.hub.query("device", &query).await {
        Ok(answer) => {
            let whole: DeviceAnswer = understood(&answer)?;
            let names = ShownNames::of(session, whole.deployments.iter().map(|line| &line.deployment)).await;
            session.show(&answer, |answer: &DeviceAnswer, _| {
                let mut shown = answer.clone();
                shown.deployments.iter_mut().for_each(|line| names.rename(&mut line.deployment));
                render::device::one(&shown, frame)
            })?;
            history::print_moment(session, moment.as_ref())
        }
        Err(error) => Err(with_near_devices(session, error, &key).await),
    }
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
    let sites: BTreeSet<_> = known(session).await.iter().map(|line| line.key.site.to_string()).collect();
    unknown(message, site.as_str(), &sites)
}

/// Fails where the device is unknown. Where nobody can tell it is taken to be known.
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
    let keys = known(session).await.iter().map(|line| line.key.to_string()).collect();
    unknown(message, &key.to_string(), &keys)
}

fn unknown(message: String, wanted: &str, known: &BTreeSet<String>) -> CtlError {
    // A name that is known is not what is wrong.
    let near =
        if known.contains(wanted) { Vec::new() } else { near(wanted, known.iter().map(String::as_str)) };
    CtlError::Unknown { message, near: near.into_iter().map(str::to_owned).collect() }
}

/// Every device; none if the hub does not answer, because a hint is not worth a second error.
pub(crate) async fn known(session: &Session<'_>) -> Vec<DeviceLine> {
    let answer = session.hub.pages("devices", "devices", Query::default()).await;
    let answer = answer.and_then(|answer| understood::<DevicesAnswer>(&answer));
    answer.map_or_else(|_| Vec::new(), |answer| answer.devices)
}
