//! What is not known or not fresh of targets, always with its base.

use muster_contract::view::{Complete, DeploymentView, Split};

use super::paint::{UNSURE, styled};
use super::words::{grouped, plural};

/// How much of a list is not known or not fresh, with its base.
pub fn footer<'a>(views: impl IntoIterator<Item = &'a DeploymentView>) -> String {
    let (mut deployments, mut doubt) = (0, Doubt::default());
    for view in views {
        deployments += 1;
        doubt.add(view);
    }
    let size = format!("{}, {}", plural(deployments, "deployment"), plural(doubt.targets, "target"));
    match (doubt.targets, doubt.words()) {
        (0, _) => size,
        (_, None) => format!("{size}, all known and fresh"),
        (_, Some(words)) => format!("{size}: {words}"),
    }
}

/// What is not known or not fresh of some targets.
#[derive(Default)]
pub struct Doubt {
    targets: u64,
    unknown: u64,
    stale: u64,
    never: u64,
}

impl Doubt {
    /// Adds the targets of a deployment.
    pub fn add(&mut self, view: &DeploymentView) {
        let heard = by_freshness(view);
        self.targets += view.targets;
        self.unknown += not_known(view);
        self.stale += heard.stale;
        self.never += heard.never;
    }

    /// `1 of 6 not known, 2 of 6 stale`; none where there is no doubt.
    pub fn words(&self) -> Option<String> {
        let parts = [(self.unknown, "not known"), (self.stale, "stale"), (self.never, "never heard")];
        let parts: Vec<_> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} of {} {what}", self.targets))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Of how many devices everything is known: `for 9,412 of 9,500 devices; 88 reports are not in yet`.
pub fn watermark(complete: Complete) -> String {
    let Complete { devices, of, missing_reports } = complete;
    let thing = if of == 1 { "device" } else { "devices" };
    let text = format!("for {} of {} {thing}", grouped(devices), grouped(of));
    let missing = match missing_reports {
        0 => String::new(),
        1 => "; 1 report is not in yet".to_owned(),
        count => format!("; {} reports are not in yet", grouped(count)),
    };
    if devices == of && missing.is_empty() { text } else { styled(UNSURE, &(text + &missing)) }
}

/// Targets by freshness.
pub fn by_freshness(view: &DeploymentView) -> Split {
    view.counts.values().fold(Split::default(), |sum, split| Split {
        fresh: sum.fresh + split.fresh,
        stale: sum.stale + split.stale,
        never: sum.never + split.never,
    })
}

/// Targets whose standing is not known.
pub const fn not_known(view: &DeploymentView) -> u64 {
    view.complete.of.saturating_sub(view.complete.devices)
}
