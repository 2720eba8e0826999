//! `muster status`: deployments, sites and the fleet, from the views. [`filtered`] answers with a line for each target, with
//! filters and for other systems; [`instance`] finds the point as of which an older revision is shown.

pub(crate) mod filtered;
mod instance;

use muster_contract::history::Point;
use muster_contract::query::{DeploymentsAnswer, Query};
use muster_contract::silence::SilentSites;
use muster_contract::view::Verdict;
use muster_contract::{DeploymentId, SiteId};

use crate::ask::understood;
use crate::config::{Export, PointArgs, StatusArgs};
use crate::error::CtlError;
use crate::groups;
use crate::history;
use crate::render;
use crate::session::Session;
use crate::suggestions::{with_near_deployments, with_near_names, with_near_sites};
use serde::Deserialize as _;
use serde_json::Value;

/// One deployment, or all of them.
///
/// # Errors
/// When nobody answers, or there is no such deployment.
pub(crate) async fn run(
    session: &mut Session<'_>,
    mut args: StatusArgs,
    export: Option<Export>,
) -> Result<(), CtlError> {
    if let (Some(id), Some(named)) = (&args.deployment, &args.instance) {
        let last = instance::ended(session, id, named).await?;
        args.point = last.map(PointArgs::at_seq).unwrap_or_default();
    }
    let site = args.site.first().cloned();
    let moment = history::pinned(session, &mut args.point, site.as_ref()).await?;
    if let Some(label) = args.group_by.clone() {
        groups::by_label(session, label, args.deployment, args.point.into()).await?;
        return history::print_moment(session, moment.as_ref());
    }
    // Names alone, and documents of other systems, have no room for a word on when.
    let is_for_people = export.is_none() && args.list.is_none();
    shown(session, args, export).await?;
    history::print_moment(session, moment.filter(|_| is_for_people).as_ref())
}

async fn shown(session: &mut Session<'_>, args: StatusArgs, export: Option<Export>) -> Result<(), CtlError> {
    if export.is_some() || !args.is_of_views() {
        return filtered::run(session, &args, export).await;
    }
    match &args.deployment {
        Some(id) => one(session, id.clone(), args.point.into()).await,
        None => list(session, args.list_query()).await,
    }
}

async fn one(session: &mut Session<'_>, id: DeploymentId, point: Point) -> Result<(), CtlError> {
    let query = Query { id: Some(id.clone()), point, ..Query::default() };
    let frame = session.frame();
    match session.hub.query("deployment", &query).await {
        Ok(answer) => session.show(&answer, |answer, _| render::deployment::one(answer, frame)),
        Err(error) => Err(with_near_deployments(session, error, &id).await),
    }
}

async fn list(session: &mut Session<'_>, query: Query) -> Result<(), CtlError> {
    let frame = session.frame();
    match session.hub.pages("deployments", "deployments", query.clone()).await {
        Ok(mut answer) => {
            sort_worst_first(&mut answer);
            session.show(&answer, |answer, _| render::deployment::list(answer, &query, frame))
        }
        Err(error) => Err(with_near_names(session, error, &query).await),
    }
}

/// Puts the most urgent deployments first, those with the same verdict by id. An unknown verdict of a newer service comes before
/// them all.
fn sort_worst_first(answer: &mut Value) {
    let rank = |view: &Value| {
        let verdict = Verdict::deserialize(&view["verdict"]).ok();
        Verdict::WORST_FIRST.iter().position(|worse| Some(*worse) == verdict)
    };
    answer["deployments"].as_array_mut().into_iter().for_each(|views| views.sort_by_key(rank));
}

/// One site as a whole.
///
/// # Errors
/// When nobody answers, or there is no such site.
pub(crate) async fn site(
    session: &mut Session<'_>,
    site: SiteId,
    mut point: PointArgs,
) -> Result<(), CtlError> {
    let moment = history::pinned(session, &mut point, Some(&site)).await?;
    let query = Query { site: site.clone().into(), point: point.into(), ..Query::default() };
    match session.hub.query("site", &query).await {
        Ok(answer) => {
            let silent = silence(session, query).await;
            session.show(&answer, |view, now| render::place::site(view, &silent, now))?;
            history::print_moment(session, moment.as_ref())
        }
        Err(error) => Err(with_near_sites(session, error, &site).await),
    }
}

/// Whether a site is silent. The view is a function of LEDGER that others compute as well, so it does not say; where
/// nobody else does, nothing is added to it.
async fn silence(session: &Session<'_>, query: Query) -> SilentSites {
    let answer = session.hub.query("deployments", &Query { limit: Some(1), ..query }).await;
    let answer = answer.and_then(|answer| understood::<DeploymentsAnswer>(&answer));
    answer.map(|answer| answer.silent_sites).unwrap_or_default()
}

/// Everything as a whole.
///
/// # Errors
/// When nobody answers.
pub(crate) async fn fleet(session: &mut Session<'_>, mut point: PointArgs) -> Result<(), CtlError> {
    let moment = history::pinned(session, &mut point, None).await?;
    let query = Query { point: point.into(), ..Query::default() };
    let answer = session.hub.query("fleet", &query).await?;
    session.show(&answer, render::place::fleet)?;
    history::print_moment(session, moment.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deployments_are_sorted_by_verdict_the_worst_first() {
        let row = |id: &str, verdict: &str| json!({ "deployment": id, "verdict": verdict });
        let mut answer =
            json!({ "deployments": [row("a", "converged"), row("b", "progressing"), row("c", "failing")] });
        sort_worst_first(&mut answer);
        let ids =
            answer["deployments"].as_array().unwrap().iter().map(|row| row["deployment"].as_str().unwrap());
        assert_eq!(ids.collect::<Vec<_>>(), ["c", "b", "a"]);
    }
}
