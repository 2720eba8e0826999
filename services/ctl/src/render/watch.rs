//! Renders `muster watch`: a screen of all deployments, or a line for one change.

use std::collections::BTreeSet;

use muster_contract::pulse::HubHearing;
use muster_contract::view::DeploymentView;
use muster_contract::{DeploymentId, Timestamp};

use super::colour::{self, BOLD, DIM, styled};
use super::deployment::{converged, rows};
use super::doubt::{UncertainTargets, by_freshness, dark_deployments, footer};
use super::format::{as_of, clean, counts};
use super::frame::Frame;
use super::hearing;
use super::legend;

/// The screen of all deployments.
pub fn screen<'a>(
    views: impl Iterator<Item = &'a DeploymentView> + Clone,
    frame: impl Into<Frame>,
) -> String {
    let frame = frame.into();
    let newest = views.clone().map(|view| view.as_of).max_by_key(|position| position.ledger_seq);
    let position = newest.map_or_else(String::new, |position| format!("; {}", as_of(position, frame.now)));
    let (rows, dark) = (rows(views.clone(), frame.now).within(frame.width), dark_deployments(views.clone()));
    let unheard: BTreeSet<_> = views.clone().flat_map(|view| view.hub.unheard.iter().cloned()).collect();
    let deaf = hearing::lines(&HubHearing::of(unheard.into_iter().collect()), frame.now);
    let legend = legend::deployments(&views);
    format!("{deaf}{rows}\n{legend}{dark}{}{position}.\n", footer(views, frame.lags))
}

/// Nothing to show yet.
pub fn nothing(id: Option<&DeploymentId>) -> String {
    match id {
        Some(id) => format!("{id} is neither targeted nor leaving; waiting.\n"),
        None => "No deployment is targeted or leaving; waiting.\n".to_owned(),
    }
}

/// A deployment that is gone, with the last view of it if there was one.
pub fn gone(id: &DeploymentId, last: Option<&DeploymentView>) -> String {
    format!("{}  {}\n", heading(id, last), styled(DIM, "gone"))
}

/// The name of a deployment: with the id after it, if that is a UUID.
fn heading(id: &DeploymentId, view: Option<&DeploymentView>) -> String {
    match view.map(|view| clean(&view.deployment_name)) {
        Some(name) if id.is_uuid() && !name.is_empty() => format!("{} ({id})", styled(BOLD, &name)),
        _ => styled(BOLD, id.as_str()),
    }
}

/// One change: `web  failing  2-5 of 6 converged: 1 failed, …, 1 of 6 not known; as of ledger 4711, 3s ago`.
pub fn line(id: &DeploymentId, view: Option<&DeploymentView>, now: Timestamp) -> String {
    let Some(view) = view else { return gone(id, None) };
    let name = heading(id, Some(view));
    let verdict = styled(colour::verdict(view.verdict), view.verdict.as_str());
    let mut doubt = UncertainTargets::default();
    doubt.add(view);
    let unheard = by_freshness(&view.counts).unheard("target");
    let deaf = hearing::words(&view.hub);
    let doubt = doubt
        .words()
        .into_iter()
        .chain(unheard)
        .chain(deaf)
        .fold(String::new(), |text, words| text + "; " + &words);
    let standings = counts(&view.counts);
    format!(
        "{name}  {verdict}  {} converged: {standings}{doubt}; {}\n",
        converged(view),
        as_of(view.as_of, now)
    )
}
