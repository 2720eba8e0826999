//! `muster status`: deployments, and places as a whole.

use muster_contract::history::Point;
use muster_contract::query::{DeploymentsAnswer, Query};
use muster_contract::{DeploymentId, SiteId};
use serde_json::Value;

use crate::ask::{AskError, understood};
use crate::config::{Depth, StatusArgs};
use crate::devices;
use crate::error::CtlError;
use crate::history;
use crate::near::near;
use crate::render;
use crate::session::Session;

/// One deployment, or all of them.
///
/// # Errors
/// When nobody answers, or there is no such deployment.
pub async fn run(session: &mut Session<'_>, args: StatusArgs) -> Result<(), CtlError> {
    let StatusArgs { deployment, site, output, point } = args;
    let point = Point::from(point);
    let moment = if point.is_now() { None } else { Some(history::moment(session, point).await?) };
    // From here on the point is a sequence, of which every page is.
    let point = match &moment {
        Some(moment) => Point { about: point.about, ..Point::at_seq(moment.as_of.ledger_seq) },
        None => point,
    };
    match deployment {
        Some(id) => one(session, id, site, output, point).await?,
        None => list(session, site, point).await?,
    }
    match moment {
        Some(moment) => session.add(&render::history::moment(&moment)),
        None => Ok(()),
    }
}

async fn one(
    session: &mut Session<'_>,
    id: DeploymentId,
    site: Option<SiteId>,
    output: Option<Depth>,
    point: Point,
) -> Result<(), CtlError> {
    // A site chooses lines, so naming one asks for them.
    let depth = output.unwrap_or(if site.is_some() { Depth::All } else { Depth::Summary });
    let query =
        Query { id: Some(id.clone()), site: site.clone(), output: depth.into(), point, ..Query::default() };
    let answer = match session.hub.pages("deployment", "devices", query).await {
        Ok(answer) => answer,
        Err(error) => return Err(with_near_deployments(session, error, &id).await),
    };
    if let Some(site) = site.filter(|_| has_no_lines(&answer)) {
        known_site(session, site).await?;
    }
    let frame = session.frame();
    session.show(&answer, |answer, _| render::deployment::one(answer, frame))
}

fn has_no_lines(answer: &Value) -> bool {
    answer["devices"].as_array().is_none_or(Vec::is_empty)
}

/// Fails where there is no such site: no line of it is then no answer.
async fn known_site(session: &Session<'_>, site: SiteId) -> Result<(), CtlError> {
    let query = Query { site: Some(site.clone()), ..Query::default() };
    match session.hub.query("site", &query).await {
        Ok(_) => Ok(()),
        Err(error) => Err(devices::with_near_sites(session, error, &site).await),
    }
}

async fn list(session: &mut Session<'_>, site: Option<SiteId>, point: Point) -> Result<(), CtlError> {
    let query = Query { site: site.clone(), point, ..Query::default() };
    let frame = session.frame();
    match (session.hub.pages("deployments", "deployments", query).await, site) {
        (Ok(answer), None) => session.show(&answer, |answer, _| render::deployment::list(answer, frame)),
        (Ok(answer), Some(site)) => {
            session.show(&answer, |answer, _| render::deployment::list_of(&site, answer, frame))
        }
        (Err(error), Some(site)) => Err(devices::with_near_sites(session, error, &site).await),
        (Err(error), None) => Err(error.into()),
    }
}

/// One site as a whole.
///
/// # Errors
/// When nobody answers, or there is no such site.
pub async fn site(session: &mut Session<'_>, site: SiteId) -> Result<(), CtlError> {
    let query = Query { site: Some(site.clone()), ..Query::default() };
    match session.hub.query("site", &query).await {
        Ok(answer) => session.show(&answer, render::place::site),
        Err(error) => Err(devices::with_near_sites(session, error, &site).await),
    }
}

/// Everything as a whole.
///
/// # Errors
/// When nobody answers.
pub async fn fleet(session: &mut Session<'_>) -> Result<(), CtlError> {
    let answer = session.hub.query("fleet", &Query::default()).await?;
    session.show(&answer, render::place::fleet)
}

/// An unknown deployment comes with names that are near; any other error as it is.
pub async fn with_near_deployments(session: &Session<'_>, error: AskError, id: &DeploymentId) -> CtlError {
    let Some(message) = error.not_found() else { return error.into() };
    let known = known_deployments(session).await;
    let near = near(id.as_str(), known.iter().map(String::as_str));
    CtlError::Unknown { message, near: near.into_iter().map(str::to_owned).collect() }
}

/// Every deployment; none where nobody tells, because a hint is not worth a second error.
pub async fn known_deployments(session: &Session<'_>) -> Vec<String> {
    let answer = session.hub.pages("deployments", "deployments", Query::default()).await;
    let answer = answer.and_then(|answer| understood::<DeploymentsAnswer>(&answer));
    answer.map_or_else(
        |_| Vec::new(),
        |answer| answer.deployments.iter().map(|view| view.deployment.to_string()).collect(),
    )
}
