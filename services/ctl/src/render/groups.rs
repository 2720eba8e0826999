//! Groups of devices by label.

use muster_contract::groups::{GroupLine, GroupsAnswer, LabelsAnswer};
use muster_contract::standing_part::StandingPart;
use muster_contract::view::Split;

use super::colour::{self, BAD, UNSURE};
use super::deployment;
use super::doubt::{by_freshness, dark};
use super::format::{as_of, counts, percent, plural};
use super::frame::Frame;
use super::legend;
use super::table::{Cell, Table};

/// The labels that there are.
pub fn labels(answer: &LabelsAnswer, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let position = as_of(answer.as_of, frame.now);
    if answer.labels.is_empty() {
        return format!("No device has a label; labels.yaml in the Git repository gives them; {position}.\n");
    }
    let mut table = Table::new(&["LABEL", ">VALUES", ">DEVICES", ">WITHOUT"]);
    for line in &answer.labels {
        table.row([
            line.label.as_str().into(),
            Cell::count(line.values),
            Cell::count(line.devices.total()),
            Cell::count(line.without.total()),
        ]);
    }
    format!("{}\n{position}.\n", table.within(frame.width))
}

/// The fleet, or a deployment, by one label.
pub fn groups(answer: &GroupsAnswer, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let mut table = deployment::standings_by("GROUP");
    let named = |line: &GroupLine| format!("{}={}", answer.label, line.value);
    let mut parts: Vec<_> = answer.groups.iter().map(|line| (named(line), &line.part)).collect();
    if answer.without.part.targets + answer.without.part.leaving > 0 {
        parts.push((format!("(no {})", answer.label), &answer.without));
    }
    let total = ("total".to_owned(), &answer.total);
    for (name, part) in parts.iter().chain([&total]) {
        table.row(row(name, &part.part).into_iter().chain(deployment::reason(
            part.changed_at,
            &part.message,
            frame.now,
        )));
    }
    let what = answer.deployment.as_ref().map_or("all deployments", |id| id.as_str());
    let heard = parts.iter().map(|(name, part)| (name, by_freshness(&part.part.counts)));
    let dark = dark(heard, by_freshness(&answer.total.part.counts), "target");
    let legend = legend::parts(&parts.iter().map(|(_, part)| &part.part));
    format!(
        "{}\n{legend}{dark}{what} by {}; {}.\n",
        table.within(frame.width),
        answer.label,
        as_of(answer.as_of, frame.now)
    )
}

/// The cells of a part of the fleet.
pub(super) fn row(name: &str, part: &StandingPart) -> [Cell; 10] {
    let heard = by_freshness(&part.counts);
    [
        name.into(),
        Cell::styled(part.verdict.as_str(), colour::verdict(part.verdict)),
        Cell::count(part.targets),
        converged(part).into(),
        counts(&part.counts).into(),
        Cell::marked(heard.stale, UNSURE),
        Cell::marked(heard.never, UNSURE),
        Cell::marked(part.complete.not_known(), UNSURE),
        Cell::marked(part.overdue, BAD),
        Cell::count(part.leaving),
    ]
}

/// The bounds of the truth as a part of the targets, which are named: `2 of 3 (66%)`, `0-1 of 3 (0%-33%)`.
fn converged(part: &StandingPart) -> String {
    let (low, high) = (part.converged.lo, part.converged.hi);
    match part.targets {
        0 => "-".to_owned(),
        of if low == high => format!("{low} of {of} ({})", percent(low, of)),
        of => format!("{low}-{high} of {of} ({}-{})", percent(low, of), percent(high, of)),
    }
}

/// `4: 3 fresh, 1 stale`.
pub(super) fn devices(split: Split) -> String {
    let heard = [(split.fresh, "fresh"), (split.stale, "stale"), (split.never, "never heard")];
    let heard: Vec<_> =
        heard.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    match split.total() {
        0 => "none".to_owned(),
        total => format!("{}: {}", plural(total, "device"), heard.join(", ")),
    }
}
