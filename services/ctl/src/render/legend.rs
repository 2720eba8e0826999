//! Legends: dimmed lines under a table that explain its codes. A code that the table does not show is not explained.

use std::collections::BTreeSet;

use muster_contract::quarantine::RejectionCode;
use muster_contract::query::DeviceLine;
use muster_contract::standing_part::StandingPart;
use muster_contract::status::{Deployed, KStatus, Ready, StatusAnswer};
use muster_contract::timeline::TimelinePoint;
use muster_contract::view::{Bounds, DeploymentView};
use muster_contract::why::Evidence;

use super::colour::{DIM, styled};

/// The legend of bounds.
const CONVERGED: (&str, &str) = ("CONVERGED a-b", "at least a, at most b: the others are stale or not known");

/// A line `CODE: words; CODE: words`; empty if no code is shown.
pub(super) fn line<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let entries: Vec<_> = entries.into_iter().map(|(code, words)| format!("{code}: {words}")).collect();
    if entries.is_empty() { String::new() } else { styled(DIM, &entries.join("; ")) + "\n" }
}

/// The counts of a row that need a legend.
#[derive(Debug, Clone, Copy)]
struct StandingRow {
    converged: Bounds,
    not_known: u64,
    overdue: u64,
    leaving: u64,
}

/// The legend of a table of deployments.
pub(super) fn deployments<'a>(views: &(impl Iterator<Item = &'a DeploymentView> + Clone)) -> String {
    standings(&views.clone().map(|view| StandingRow {
        converged: view.converged,
        not_known: view.complete.not_known(),
        overdue: view.overdue,
        leaving: view.leaving,
    }))
}

/// The legend of a table of parts of the fleet.
pub(super) fn parts<'a>(parts: &(impl Iterator<Item = &'a StandingPart> + Clone)) -> String {
    standings(&parts.clone().map(|part| StandingRow {
        converged: part.converged,
        not_known: part.complete.not_known(),
        overdue: part.overdue,
        leaving: part.leaving,
    }))
}

fn standings(rows: &(impl Iterator<Item = StandingRow> + Clone)) -> String {
    let any = |is_shown: fn(&StandingRow) -> bool| rows.clone().any(|row| is_shown(&row));
    let entries = [
        (any(|row| row.converged.lo != row.converged.hi), CONVERGED.0, CONVERGED.1),
        (any(|row| row.not_known > 0), "NOT KNOWN", "targets with a missing or unreadable report"),
        (any(|row| row.overdue > 0), "OVERDUE", "targets past their deadline"),
        (any(|row| row.leaving > 0), "LEAVING", "devices that have it and are no longer targets"),
    ];
    line(shown(entries))
}

/// The legend of a timeline.
pub(super) fn timeline(points: &[TimelinePoint]) -> String {
    let any = |is_shown: fn(&TimelinePoint) -> bool| points.iter().any(is_shown);
    let entries = [
        (any(|point| point.converged.lo != point.converged.hi), CONVERGED.0, CONVERGED.1),
        (any(|point| point.missing_reports > 0), "MISSING", "reports of devices that are not at the hub yet"),
    ];
    line(shown(entries))
}

/// The legend of a table of facts.
pub(super) fn facts<'a>(mut facts: impl Iterator<Item = &'a Evidence>) -> String {
    let entries = [
        (true, "LEDGER", "the sequence of the fact in the stream LEDGER"),
        (
            facts.any(|fact| fact.seq.is_some()),
            "REPORT a/b",
            "report number b of epoch a; a device that loses its outbox begins another epoch",
        ),
    ];
    line(shown(entries))
}

/// The legend of a table of devices.
pub(super) fn devices(lines: &[DeviceLine]) -> String {
    let any = |is_shown: fn(&DeviceLine) -> bool| lines.iter().any(is_shown);
    let entries = [
        (any(|line| line.account.missing.count() > 0), "MISSING", "sent by the device, not at the hub yet"),
        (
            any(|line| line.account.quarantined > 0),
            "QUARANTINED",
            "rejected by the hub, see `muster quarantine list`",
        ),
    ];
    line(shown(entries))
}

/// The legend of the accounts of an audit.
pub(super) fn accounts(is_coalesced: bool, is_quarantined: bool, is_missing: bool) -> String {
    let entries = [
        (true, "HEAD", "reports that the device numbered, each in one of the next columns"),
        (is_coalesced, "COALESCED", "folded by the device into a later report"),
        (is_quarantined, "QUARANTINED", "rejected by the hub"),
        (is_missing, "MISSING", "not at the hub yet"),
    ];
    line(shown(entries))
}

/// The legends of status codes after an empty line, one for each axis of the tables; empty if there is no table.
pub(super) fn axes(answer: &StatusAnswer) -> String {
    if answer.apps.len() < 2 && answer.targets.is_empty() {
        return String::new();
    }
    let components = || answer.targets.iter().flat_map(|target| &target.components);
    let deployed = answer.apps.iter().filter_map(|app| app.rollup.deployed_status);
    let deployed = deployed.chain(answer.targets.iter().filter_map(|target| target.deployed_status));
    let deployed: BTreeSet<_> = deployed.chain(components().filter_map(|it| it.deployed_status)).collect();
    let ready = answer.apps.iter().filter_map(|app| app.rollup.ready_status);
    let ready = ready.chain(answer.targets.iter().filter_map(|target| target.ready_status));
    let ready: BTreeSet<_> = ready.chain(components().filter_map(|it| it.ready_status)).collect();
    let kstatus = answer.targets.iter().map(|target| target.axes.kstatus);
    let kstatus: BTreeSet<_> = kstatus.chain(components().map(|it| it.axes.kstatus)).collect();
    let lines = [
        ("STATUS", line(kstatus.into_iter().filter_map(|it| Some((it.as_str(), kstatus_words(it)?))))),
        ("DEPLOYED", line(deployed.into_iter().filter_map(|it| Some((it.as_str(), deployed_words(it)?))))),
        ("READY", line(ready.into_iter().filter_map(|it| Some((it.as_str(), ready_words(it)?))))),
    ];
    let lines = lines.iter().filter(|(_, line)| !line.is_empty());
    let text: String = lines.map(|(axis, line)| format!("{axis:<10}{line}")).collect();
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// The meaning of a code of a rejected report.
pub(super) const fn rejection(code: RejectionCode) -> &'static str {
    match code {
        RejectionCode::Sender => "its subject names no device",
        RejectionCode::Unreadable => "not a valid report",
        RejectionCode::State => "its state contradicts its components",
        RejectionCode::Fork => "another report has its number",
        RejectionCode::OldEpoch => "its epoch is over",
        RejectionCode::TooLarge => "too large for a fact",
        RejectionCode::NotSent => "the hub did not send its deployment to the device",
        RejectionCode::Unsolicited => "too many deployments without a desired state",
        RejectionCode::TooManyDeployments => "too many deployments beside the desired state",
        RejectionCode::Other => "another rule, named in its reason",
    }
}

const fn deployed_words(status: Deployed) -> Option<&'static str> {
    match status {
        Deployed::Failed => Some("refused by the device"),
        Deployed::Pending => Some("not reported yet"),
        Deployed::Applied => Some("reported, healthy or not"),
        Deployed::Deleting => Some("to be removed, still there"),
        Deployed::Empty => Some("no target matches"),
        Deployed::Deleted => None,
    }
}

const fn ready_words(status: Ready) -> Option<&'static str> {
    match status {
        Ready::NotPresent => Some("not reported for the current target"),
        Ready::Unknown => Some("silent device, or missing reports"),
        Ready::Empty => Some("no target matches"),
        Ready::NotReady | Ready::Ready => None,
    }
}

const fn kstatus_words(status: KStatus) -> Option<&'static str> {
    match status {
        KStatus::Unknown => Some("silent device, or missing reports"),
        KStatus::Terminating => Some("to be removed, still there"),
        KStatus::NotFound => Some("no part of it there yet"),
        KStatus::Current => Some("as desired"),
        KStatus::Failed | KStatus::InProgress => None,
    }
}

fn shown<const N: usize>(
    entries: [(bool, &'static str, &'static str); N],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    entries.into_iter().filter(|(is_shown, ..)| *is_shown).map(|(_, code, words)| (code, words))
}
