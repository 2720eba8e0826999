//! Renders the unknown and stale parts of counts, always with their base. If nothing is fresh, a sentence says so: a count of
//! stale targets alone reads as if the rest were fresh.

use muster_contract::view::{Complete, Counts, DeploymentView, Split};

use super::colour::{UNSURE, styled};
use super::format::{grouped, plural};

/// How much of a list is not known or not fresh, with its base. While the rollup lags, the footer calls nothing fresh.
pub fn footer<'a>(views: impl IntoIterator<Item = &'a DeploymentView>, lags: bool) -> String {
    let (mut deployments, mut doubt) = (0, UncertainTargets::default());
    for view in views {
        deployments += 1;
        doubt.add(view);
    }
    let size = format!("{}, {}", plural(deployments, "deployment"), plural(doubt.targets, "target"));
    match (doubt.targets, doubt.words()) {
        (0, _) => size,
        (_, None) if lags => format!("{size}, as muster-rollup last read LEDGER"),
        (_, None) => format!("{size}, all known and fresh"),
        (_, Some(words)) => format!("{size}: {words}"),
    }
}

/// Names in the line on those of which nothing is heard.
const DARK_NAMED_MAX: usize = 5;

/// That nothing is heard of all there is, or of these of its parts; an empty line where something of each is. What has no
/// targets is passed over.
pub fn dark<N: AsRef<str>>(parts: impl IntoIterator<Item = (N, Split)>, total: Split, thing: &str) -> String {
    let unheard = parts.into_iter().filter(|(_, heard)| heard.unheard(thing).is_some());
    let names: Vec<N> = unheard.map(|(name, _)| name).collect();
    let words = total.unheard(thing).or_else(|| (!names.is_empty()).then(|| unheard_of(&names, thing)));
    words.map_or_else(String::new, |words| styled(UNSURE, &words) + "\n")
}

/// `every target of web, db and 3 more is silent: no fresh evidence there`.
fn unheard_of<N: AsRef<str>>(names: &[N], thing: &str) -> String {
    let first: Vec<_> = names.iter().take(DARK_NAMED_MAX).map(AsRef::as_ref).collect();
    let more = match names.len().saturating_sub(DARK_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("every {thing} of {}{more} is silent: no fresh evidence there", first.join(", "))
}

/// The same of a list of deployments.
pub(crate) fn dark_deployments<'a>(views: impl Iterator<Item = &'a DeploymentView> + Clone) -> String {
    let parts = views.map(|view| (view.deployment.as_str(), by_freshness(&view.counts)));
    let total = parts.clone().fold(Split::default(), |total, (_, heard)| sum(total, heard));
    dark(parts, total, "target")
}

/// The numbers of unknown and stale targets.
#[derive(Default)]
pub(crate) struct UncertainTargets {
    targets: u64,
    unknown: u64,
    stale: u64,
    never: u64,
}

impl UncertainTargets {
    /// Adds the targets of a deployment.
    pub(crate) fn add(&mut self, view: &DeploymentView) {
        let heard = by_freshness(&view.counts);
        self.targets += view.targets;
        self.unknown += view.complete.not_known();
        self.stale += heard.stale;
        self.never += heard.never;
    }

    /// `1 of 6 not known, 2 of 6 stale`; none where there is no doubt.
    pub(crate) fn words(&self) -> Option<String> {
        let parts = [(self.unknown, "not known"), (self.stale, "stale"), (self.never, "never heard")];
        let parts: Vec<_> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} of {} {what}", self.targets))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// The number of devices whose reports are complete: `for 9,412 of 9,500 devices; 88 reports are missing`.
pub(crate) fn watermark(complete: Complete) -> String {
    let Complete { devices, of, missing_reports } = complete;
    let thing = if of == 1 { "device" } else { "devices" };
    let text = format!("for {} of {} {thing}", grouped(devices), grouped(of));
    let missing = match missing_reports {
        0 => String::new(),
        1 => "; 1 report is missing".to_owned(),
        count => format!("; {} reports are missing", grouped(count)),
    };
    if devices == of && missing.is_empty() { text } else { styled(UNSURE, &(text + &missing)) }
}

/// Targets by freshness.
pub fn by_freshness(counts: &Counts) -> Split {
    counts.values().fold(Split::default(), |total, split| sum(total, *split))
}

const fn sum(one: Split, other: Split) -> Split {
    Split {
        fresh: one.fresh.saturating_add(other.fresh),
        stale: one.stale.saturating_add(other.stale),
        never: one.never.saturating_add(other.never),
    }
}
