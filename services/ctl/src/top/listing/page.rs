//! The rows of a page: a deployment with its devices, or the text that `muster` prints for another page. Pure.

use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;
use muster_contract::query::DeploymentAnswer;
use muster_contract::status::{StatusAnswer, TargetStatus};

use super::{Listing, is_found, known, sites};
use crate::names::ShownNames;
use crate::render;
use crate::render::colour::{self, BAD, BOLD, UNSURE, styled};
use crate::render::deployment::{converged, standing_rows};
use crate::render::format::{as_of, clean, counts, freshness, plural};
use crate::render::frame::Frame;
use crate::top::fleet_screen::Part;
use crate::top::view::{Content, Target};

/// Errors of a deployment that are shown above its devices.
const ERRORS_MAX: usize = 3;

/// The page of an answer.
pub(super) fn page(
    content: &Part<Content>,
    names: &ShownNames,
    filter: &str,
    width: usize,
    now: Timestamp,
) -> Listing {
    let frame = Frame { width: Some(width), ..Frame::from(now) };
    known(content, now, |content| match content {
        Content::Deployment(answer) => deployment(&answer.0, &answer.1, filter, frame),
        Content::Why(answer) => {
            let hub = render::hearing::lines(&answer.hub, now);
            let mut shown = answer.clone();
            names.rename(&mut shown.deployment);
            Listing::text(&(hub + &render::why::answer(&shown, true, frame)), filter)
        }
        Content::Device(answer) => {
            let hub = render::hearing::lines(&answer.hub, now);
            let mut shown = answer.clone();
            shown.deployments.iter_mut().for_each(|line| names.rename(&mut line.deployment));
            Listing::text(&(hub + &render::device::one(&shown, frame)), filter)
        }
        Content::Site(answer) => sites::page(&answer.0, &answer.1, filter, width, now),
        Content::Rollout(rollouts) if rollouts.is_empty() => {
            Listing::text("No rollout governs the deployment any more.", filter)
        }
        Content::Rollout(rollouts) => {
            let mut shown = rollouts.clone();
            shown.iter_mut().for_each(|rollout| names.rename(&mut rollout.deployment));
            Listing::text(&render::rollout::show(&shown, frame), filter)
        }
    })
}

/// An incident with its evidence.
pub(super) fn incident(part: &Part<Vec<HubIncident>>, seq: u64, filter: &str, now: Timestamp) -> Listing {
    known(part, now, |found| {
        let Some(found) = found.iter().find(|incident| incident.ledger_seq == seq) else {
            return Listing::text("A newer incident of this type came; go back to see it.", filter);
        };
        let words = styled(BOLD, &render::incident::incident(&found.incident, now));
        // An incident is JSON already: writing it again cannot fail.
        let evidence = serde_json::to_string_pretty(found).unwrap_or_default();
        let evidence: Vec<_> = evidence.lines().map(clean_line).collect();
        Listing::text(&format!("{words}\n\n{}", evidence.join("\n")), filter)
    })
}

/// A line of JSON, set in as it is.
fn clean_line(line: &str) -> String {
    let words = line.trim_start();
    format!("{:width$}{}", "", clean(words), width = line.len() - words.len())
}

fn deployment(answer: &DeploymentAnswer, status: &StatusAnswer, filter: &str, frame: Frame) -> Listing {
    let text = |line: &TargetStatus| {
        format!("{} {} {}", line.key, line.standing.as_str(), freshness(line.freshness))
    };
    let found: Vec<_> = status.targets.iter().filter(|line| is_found(&text(line), filter)).collect();
    let targets = found.iter().map(|line| Target::Device(line.key.clone())).collect();
    let total = status.targets.len();
    let width = frame.width.unwrap_or(usize::MAX);
    let listing = Listing::table(standing_rows(found, frame), targets, total, width);
    let all = answer.view.targets + answer.view.leaving;
    let omitted = if status.next.is_some() { all.saturating_sub(total as u64) } else { 0 };
    let empty =
        if total == 0 { "No device should run it, and none still has it.".to_owned() } else { listing.empty };
    Listing { head: head(answer, frame.now), omitted, empty, ..listing }
}

/// The lines about the deployment as a whole.
fn head(answer: &DeploymentAnswer, now: Timestamp) -> Vec<String> {
    let view = &answer.view;
    let verdict = styled(colour::verdict(view.verdict), view.verdict.as_str());
    let mut lines = vec![format!("{verdict}: {}", clean(&view.message))];
    let mut parts = vec![format!("{} converged", converged(view)), counts(&view.counts)];
    if view.overdue > 0 {
        parts.push(styled(BAD, &format!("{} overdue", view.overdue)));
    }
    if view.leaving > 0 {
        parts.push(format!("{} leaving", view.leaving));
    }
    if view.complete.missing_reports > 0 {
        parts.push(styled(UNSURE, &format!("{} missing", plural(view.complete.missing_reports, "report"))));
    }
    lines.push(parts.join("; "));
    for error in view.errors.iter().take(ERRORS_MAX) {
        let (code, example) = (styled(BAD, &clean(&error.code)), &error.example);
        let message = clean(example.message.lines().next().unwrap_or_default());
        lines.push(format!("{code} on {}, such as {}: {message}", error.count, example.device));
    }
    let silent = render::silence::lines(&answer.silent_sites, now) + &render::hearing::lines(&view.hub, now);
    lines.extend(silent.lines().map(str::to_owned));
    lines.push(as_of(view.as_of, now));
    lines
}
