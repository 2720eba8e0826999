//! A site or the fleet as a whole.

use std::fmt::Write as _;

use muster_contract::Timestamp;
use muster_contract::groups::GroupView;
use muster_contract::silence::SilentSites;
use muster_contract::view::{FleetView, SiteView, Split, Tally};

use super::colour::{self, BAD, BOLD, UNSURE, styled};
use super::deployment::retried;
use super::doubt::watermark;
use super::evidence;
use super::format::{age, as_of, clean, counts, plural};
use super::silence;

/// A site, and since when nobody there is heard.
pub fn site(view: &SiteView, silent: &SilentSites, now: Timestamp) -> String {
    let name = styled(BOLD, &format!("site {}", view.site));
    format!("{name}\n{}\n{}", silence::lines(silent, now), tally(&view.tally, now))
}

/// A group of devices.
pub fn group(view: &GroupView, now: Timestamp) -> String {
    let name = format!("group {}={}", view.label, view.value);
    format!("{}\n\n{}", styled(BOLD, &name), tally(&view.tally, now))
}

/// The fleet.
pub fn fleet(view: &FleetView, now: Timestamp) -> String {
    format!("{}\n\n{}", styled(BOLD, "fleet"), tally(&view.tally, now))
}

fn tally(tally: &Tally, now: Timestamp) -> String {
    let mut lines = vec![("devices", devices(tally.devices)), ("complete", watermark(tally.complete))];
    if !tally.deployments.is_empty() {
        lines.push(("deployments", verdicts(tally)));
    }
    lines.push(("targets", targets(tally)));
    if tally.overdue > 0 {
        lines.push((
            "overdue",
            styled(BAD, &format!("{} of {}", tally.overdue, plural(tally.targets, "target"))),
        ));
    }
    if tally.leaving > 0 {
        lines.push(("leaving", tally.leaving.to_string()));
    }
    lines.extend(retried(tally.retried, tally.targets).map(|words| ("retried", words)));
    if !tally.message.is_empty() {
        lines.push(("because", clean(&tally.message)));
    }
    lines.extend(tally.changed_at.map(|at| ("changed", age(now, at))));
    lines.extend(tally.last_heard_at.map(|at| ("last heard", age(now, at))));
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<13}{value}");
    }
    text += &evidence::table(&tally.evidence, tally.targets, None);
    let _ = writeln!(text, "\n{}.", as_of(tally.as_of, now));
    text
}

fn devices(devices: Split) -> String {
    let heard = [(devices.fresh, "fresh"), (devices.stale, "stale"), (devices.never, "never heard")];
    let heard: Vec<_> =
        heard.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    match devices.total() {
        0 => "none".to_owned(),
        total => {
            let unheard = devices.unheard("device").map(|words| format!("; {}", styled(UNSURE, &words)));
            format!("{total}: {}{}", heard.join(", "), unheard.unwrap_or_default())
        }
    }
}

fn verdicts(tally: &Tally) -> String {
    let total: u64 = tally.deployments.values().sum();
    let each = tally
        .deployments
        .iter()
        .map(|(verdict, count)| format!("{count} {}", styled(colour::verdict(*verdict), verdict.as_str())));
    format!("{total}: {}", each.collect::<Vec<_>>().join(", "))
}

fn targets(tally: &Tally) -> String {
    match tally.targets {
        0 => "none".to_owned(),
        targets => format!("{targets}: {}", counts(&tally.counts)),
    }
}
