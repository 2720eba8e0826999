//! `muster why`: the rule of a verdict, the devices that make it hold, and the facts behind each.

use muster_contract::DeploymentId;
use muster_contract::query::Query;
use muster_contract::rollout::HeldChange;
use muster_contract::why::WhyAnswer;
use serde_json::Value;

use crate::ask::{AskError, PAGES_MAX};
use crate::config::{DeviceArg, WhyArgs};
use crate::error::CtlError;
use crate::history;
use crate::names::ShownNames;
use crate::render;
use crate::rollout::held_changes;
use crate::session::Session;
use crate::suggestions::{known_deployments, with_near_deployments, with_near_devices, with_near_sites};

/// Why a deployment has its verdict, or its standing on one device.
///
/// # Errors
/// When nobody answers, or there is no such deployment, site or device.
pub(crate) async fn run(session: &mut Session<'_>, mut args: WhyArgs) -> Result<(), CtlError> {
    let Some(deployment) = args.deployment.clone() else { return Ok(()) };
    let site = question(&args).site.only().cloned();
    let moment = history::pinned(session, &mut args.point, site.as_ref()).await?;
    // Pages that were skipped because they are empty leave this one the first.
    let (frame, is_first) = (session.frame(), args.after.is_none());
    match asked(session, question(&args)).await {
        Ok(answer) => {
            let names = ShownNames::of(session, [&deployment]).await;
            session.show(&answer, |answer: &WhyAnswer, _| {
                let mut shown = answer.clone();
                names.rename(&mut shown.deployment);
                render::why::answer(&shown, is_first, frame)
            })?;
            if moment.is_none() {
                let held = held_words(session, &deployment).await;
                session.add(&held)?;
            }
            history::print_moment(session, moment.as_ref())
        }
        Err(error) if error.not_found().is_some() => match held_words(session, &deployment).await {
            held if held.is_empty() => Err(with_near_names(session, error, &deployment, &args).await),
            // It was never released to any device, so only the publisher knows of it.
            held => session.add(&held),
        },
        Err(error) => Err(with_near_names(session, error, &deployment, &args).await),
    }
}

/// The changes of the deployment that wait for a release, one a line. Empty if no publisher answers: the verdict follows from
/// LEDGER without it.
async fn held_words(session: &Session<'_>, deployment: &DeploymentId) -> String {
    let Ok(changes) = held_changes(&session.hub).await else { return String::new() };
    let names = ShownNames::of(session, [deployment]).await;
    let of_deployment = changes.held.into_iter().filter(|change| change.deployment == *deployment);
    let line = |mut change: HeldChange| {
        names.rename(&mut change.deployment);
        render::rollout::held(&change, session.clock.now())
    };
    of_deployment.map(line).collect()
}

/// The first standings: one answer looks at so many devices, and where none of those speaks for the verdict, at the next.
async fn asked(session: &Session<'_>, mut query: Query) -> Result<Value, AskError> {
    for _ in 0..PAGES_MAX {
        let answer = session.hub.query("why", &query).await?;
        let is_empty = answer["standings"].as_array().is_some_and(Vec::is_empty);
        match answer["next"].as_str() {
            Some(next) if is_empty && query.after.as_deref() != Some(next) => {
                query.after = Some(next.to_owned());
            }
            _ => return Ok(answer),
        }
    }
    Err(AskError::Endless { what: "why" })
}

fn question(args: &WhyArgs) -> Query {
    let device = args.device.as_ref().and_then(DeviceArg::key);
    Query {
        id: args.deployment.clone(),
        site: device.map(|key| key.site.clone()).or_else(|| args.site.clone()).into(),
        device: device.map(|key| key.device.clone()),
        limit: Some(args.limit.into()),
        after: args.after.clone(),
        point: args.point.into(),
        ..Query::default()
    }
}

/// The name that is not known comes with names that are near.
async fn with_near_names(
    session: &Session<'_>,
    error: AskError,
    deployment: &DeploymentId,
    args: &WhyArgs,
) -> CtlError {
    if error.not_found().is_none() {
        return error.into();
    }
    let is_known = known_deployments(session).await.iter().any(|id| id == deployment.as_str());
    match (is_known, args.device.as_ref().and_then(DeviceArg::key), &args.site) {
        (true, Some(key), _) => with_near_devices(session, error, key).await,
        (true, None, Some(site)) => with_near_sites(session, error, site).await,
        _ => with_near_deployments(session, error, deployment).await,
    }
}
