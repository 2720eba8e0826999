//! `muster diff`, `muster changes`, `muster verify`, and points of the past. Waits while the hub rebuilds a point.

use muster_client::history::ask_until_ready;
use muster_contract::SiteId;
use muster_contract::changes::{ChangesAnswer, ChangesQuery};
use muster_contract::history::{DiffAnswer, DiffQuery, MomentAnswer, Point, VerifyAnswer};
use muster_contract::query::{PAGE_MAX, Query};
use serde::Serialize;
use serde_json::Value;

use crate::ask::{AskError, PAGES_MAX, understood};
use crate::config::{ChangesArgs, DiffArgs, PointArgs};
use crate::error::{CtlError, settled};
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;
use crate::suggestions::with_near_deployments;
use crate::terminal::Terminal;

/// The point in time of a command, once the service has rebuilt it; none for the present. It then fixes the point, so that every
/// page is of the same one. A federation, which has no past, names the hub of the site.
///
/// # Errors
/// When nobody answers, or there is no such point.
pub(crate) async fn pinned(
    session: &mut Session<'_>,
    point: &mut PointArgs,
    site: Option<&SiteId>,
) -> Result<Option<MomentAnswer>, CtlError> {
    if Point::from(*point).is_now() {
        return Ok(None);
    }
    let answer = moment(session, *point, site).await?;
    session.then = Some(point.moment().unwrap_or(answer.as_of.at));
    *point = point.pinned_to(&answer);
    Ok(Some(answer))
}

async fn moment(
    session: &mut Session<'_>,
    point: PointArgs,
    site: Option<&SiteId>,
) -> Result<MomentAnswer, CtlError> {
    let query = Query { site: site.cloned().into(), point: point.into(), ..Query::default() };
    let answer = patiently(session, "moment", &query).await?;
    Ok(understood(&answer)?)
}

/// Prints the point in time of an answer about the past below the answer.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print_moment(session: &mut Session<'_>, moment: Option<&MomentAnswer>) -> Result<(), CtlError> {
    moment.map_or(Ok(()), |moment| session.add(&render::history::moment(moment)))
}

/// How a deployment differs between two points.
///
/// # Errors
/// When nobody answers, or there is no such deployment or point.
pub(crate) async fn diff(session: &mut Session<'_>, args: DiffArgs) -> Result<(), CtlError> {
    let query = DiffQuery {
        id: args.deployment.clone(),
        site: args.site,
        from: args.from,
        to: args.to.unwrap_or_default(),
        limit: Some(args.limit.into()),
        after: args.after,
    };
    let (frame, is_first) = (session.frame(), query.after.is_none());
    match patiently(session, "diff", &query).await {
        Ok(answer) => {
            let names = ShownNames::of(session, [&args.deployment]).await;
            session.show(&answer, |answer: &DiffAnswer, _| {
                let mut shown = answer.clone();
                names.rename(&mut shown.deployment);
                render::history::diff(&shown, is_first, frame)
            })
        }
        Err(error) => Err(with_near_deployments(session, error, &args.deployment).await),
    }
}

/// Every change between two points, from all pages.
///
/// # Errors
/// When nobody answers, there is no such point, or the pages do not end.
pub(crate) async fn changes(session: &mut Session<'_>, args: ChangesArgs) -> Result<(), CtlError> {
    let mut query = ChangesQuery {
        from: args.since,
        to: args.until.unwrap_or_default(),
        site: args.site.into_iter().collect(),
        id: args.deployment,
        limit: Some(PAGE_MAX),
        skip: 0,
    };
    let mut whole: ChangesAnswer = understood(&patiently(session, "changes", &query).await?)?;
    // Later pages must be of the same points, also if new facts arrive meanwhile.
    let ChangesAnswer { from, to, .. } = whole;
    (query.from, query.to) = (Point::at_seq(from.ledger_seq), Point::at_seq(to.ledger_seq));
    for _ in 0..PAGES_MAX {
        let Some(next) = whole.next.take() else {
            let frame = session.frame();
            let names =
                ShownNames::of(session, whole.changes.iter().filter_map(|change| change.deployment.as_ref()))
                    .await;
            return session.show_own(&whole, |whole, _| {
                let mut shown = whole.clone();
                let named = shown.changes.iter_mut().filter_map(|change| change.deployment.as_mut());
                named.for_each(|id| names.rename(id));
                render::changes::list(&shown, frame)
            });
        };
        if next <= query.skip {
            break;
        }
        query.skip = next;
        let page: ChangesAnswer = understood(&patiently(session, "changes", &query).await?)?;
        whole.changes.extend(page.changes);
        whole.next = page.next;
    }
    Err(AskError::Endless { what: "changes" }.into())
}

/// Whether a rebuild says the same as what runs.
///
/// # Errors
/// When nothing can be said.
pub(crate) async fn verify(session: &mut Session<'_>) -> Result<bool, CtlError> {
    let answer = patiently(session, "verify", &Query::default()).await.map_err(CtlError::Unverified)?;
    let same = understood::<VerifyAnswer>(&answer)?.same;
    let frame = session.frame();
    settled(session.show(&answer, |answer, _| render::history::verify(answer, frame)))?;
    Ok(same)
}

/// Repeats a question about LEDGER's past until there is an answer, and prints the progress.
pub(crate) async fn patiently<T: Serialize>(
    session: &mut Session<'_>,
    what: &'static str,
    question: &T,
) -> Result<Value, AskError> {
    ask_until_ready(&session.hub, what, question, &mut progress(session.terminal)).await
}

/// Prints the progress of a rebuild for a person who looks at the output as it comes.
pub(crate) fn progress(terminal: &mut Terminal) -> impl FnMut(&str) + Send {
    move |message| {
        if terminal.is_interactive() {
            terminal.print_note(&format!("muster: {message}\n"));
        }
    }
}
