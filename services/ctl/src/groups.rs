//! `muster groups`: the fleet, or a deployment, by a label.

use muster_contract::groups::{GroupQuery, GroupsAnswer, LabelsAnswer};
use muster_contract::history::Point;
use muster_contract::near::near;
use muster_contract::{DeploymentId, LabelKey, LabelValue};

use crate::ask::{AskError, understood};
use crate::config::GroupsArgs;
use crate::error::CtlError;
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;
use crate::suggestions::with_near_deployments;

/// Labels, the groups of one, or one group.
///
/// # Errors
/// When nobody answers, or there is no such label, value or deployment.
pub(crate) async fn run(session: &mut Session<'_>, args: GroupsArgs) -> Result<(), CtlError> {
    match (args.label, args.value) {
        (None, _) => labels(session).await,
        (Some(label), None) => by_label(session, label, args.deployment, Point::default()).await,
        (Some(label), Some(value)) => one(session, label, value).await,
    }
}

async fn labels(session: &mut Session<'_>) -> Result<(), CtlError> {
    let answer = session.hub.group_pages("labels", "labels", GroupQuery::default()).await?;
    let frame = session.frame();
    session.show(&answer, |answer, _| render::groups::labels(answer, frame))
}

/// The fleet, or a deployment, by a label, as of a point.
///
/// # Errors
/// As [`run`].
pub(crate) async fn by_label(
    session: &mut Session<'_>,
    label: LabelKey,
    deployment: Option<DeploymentId>,
    point: Point,
) -> Result<(), CtlError> {
    let query =
        GroupQuery { label: Some(label.clone()), id: deployment.clone(), point, ..GroupQuery::default() };
    let frame = session.frame();
    match (session.hub.group_pages("groups", "groups", query).await, deployment) {
        (Ok(answer), deployment) => {
            let names = ShownNames::of(session, &deployment).await;
            session.show(&answer, |answer: &GroupsAnswer, _| {
                let mut shown = answer.clone();
                shown.deployment.iter_mut().for_each(|id| names.rename(id));
                render::groups::groups(&shown, frame)
            })
        }
        (Err(error), Some(id)) if !is_of_label(&error, &label) => {
            Err(with_near_deployments(session, error, &id).await)
        }
        (Err(error), _) => Err(with_near_labels(session, error, &label).await),
    }
}

async fn one(session: &mut Session<'_>, label: LabelKey, value: LabelValue) -> Result<(), CtlError> {
    let query = GroupQuery { label: Some(label.clone()), value: Some(value), ..GroupQuery::default() };
    match session.hub.groups("group", &query).await {
        Ok(answer) => session.show(&answer, render::place::group),
        Err(error) => Err(with_near_labels(session, error, &label).await),
    }
}

/// Whether it is the label that nobody knows.
fn is_of_label(error: &AskError, label: &LabelKey) -> bool {
    error.not_found().is_some_and(|message| message.contains(&format!("label '{label}'")))
}

/// An unknown label comes with names that are near; any other error as it is.
async fn with_near_labels(session: &Session<'_>, error: AskError, label: &LabelKey) -> CtlError {
    let Some(message) = error.not_found() else { return error.into() };
    let answer = session.hub.group_pages("labels", "labels", GroupQuery::default()).await;
    let known = answer.and_then(|answer| understood::<LabelsAnswer>(&answer));
    let known = known.map_or_else(|_| Vec::new(), |known| known.labels);
    let names = known.iter().map(|line| line.label.as_str());
    let near = near(label.as_str(), names).into_iter().filter(|name| *name != label.as_str());
    CtlError::Unknown { message, near: near.map(str::to_owned).collect() }
}
