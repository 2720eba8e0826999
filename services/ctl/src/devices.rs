//! `muster devices` and `muster device`.

use muster_contract::DeploymentId;
use muster_contract::query::{DeviceAnswer, DeviceLine, DevicesAnswer, Output, Query};

use crate::ask::understood;
use crate::config::{DeviceArgs, DevicesArgs};
use crate::error::CtlError;
use crate::history;
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;
use crate::suggestions::{with_near_devices, with_near_names};

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
                shown.devices.iter_mut().for_each(|line| names.rename_first(&mut line.message));
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
