//! The result of the demo as one JSON object: the fleet, the faults, and the state in the end.

use std::time::Duration;

use muster_contract::DeploymentId;
use muster_contract::query::DeviceLine;
use muster_contract::rollout::RolloutPhase;
use muster_contract::view::{Counts, DeploymentView, Freshness, Split, Verdict};
use serde::Serialize;

/// The closing object of `muster-simulator demo --json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DemoResult {
    /// Whether every deployment converged, every device is fresh and no report is missing.
    pub converged: bool,
    /// Seed of the faults; `--seed` repeats them.
    pub seed: u64,
    /// The duration of the demo.
    pub seconds: u64,
    /// Devices by freshness.
    pub devices: Split,
    /// The deployments.
    pub deployments: Vec<DeploymentResult>,
    /// The accounting over all devices.
    pub accounting: Accounting,
    /// Faults of links, by kind.
    pub links: Faults,
    /// The commits, and those that the publisher had to refuse.
    pub commits: Commits,
    /// The rollouts in order, where releases went out in waves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rollouts: Vec<RolloutResult>,
    /// Time from a device's new connection after a cut until the hub's answer about it was complete and fresh.
    pub time_to_truth: TimeToTruth,
}

/// One deployment at the end.
#[derive(Debug, Serialize)]
pub struct DeploymentResult {
    id: DeploymentId,
    verdict: Verdict,
    targets: u64,
    counts: Counts,
}

impl DeploymentResult {
    /// True where nothing of it is left to do or to learn.
    pub(crate) fn is_converged(&self) -> bool {
        self.verdict == Verdict::Converged
    }
}

impl From<&DeploymentView> for DeploymentResult {
    fn from(view: &DeploymentView) -> Self {
        Self {
            id: view.deployment.clone(),
            verdict: view.verdict,
            targets: view.targets,
            counts: view.counts.clone(),
        }
    }
}

/// `head = received + coalesced + quarantined + missing`, summed over the devices.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// Reports ever numbered.
    pub head: u64,
    /// Held as facts.
    pub received: u64,
    /// Declared as folded.
    pub coalesced: u64,
    /// Held in quarantine.
    pub quarantined: u64,
    /// Not in.
    pub missing: u64,
}

impl Accounting {
    /// The sum over devices.
    pub fn of(devices: &[DeviceLine]) -> Self {
        devices.iter().fold(Self::default(), |sum, line| Self {
            head: sum.head.saturating_add(line.head),
            received: sum.received.saturating_add(line.account.received),
            coalesced: sum.coalesced.saturating_add(line.account.coalesced),
            quarantined: sum.quarantined.saturating_add(line.account.quarantined),
            missing: sum.missing.saturating_add(line.account.missing.count()),
        })
    }

    /// True where every report is in and the equation holds.
    pub const fn is_complete(&self) -> bool {
        self.missing == 0
            && self.head == self.received.saturating_add(self.coalesced).saturating_add(self.quarantined)
    }
}

/// Faults of links.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Faults {
    /// Links that were cut.
    pub cuts: u64,
    /// Links that were stalled.
    pub stalls: u64,
}

/// Commits of the demo.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Commits {
    /// All.
    pub made: u64,
    /// Those with a mistake in them, refused as a whole.
    pub bad: u64,
}

/// One rollout at its end, or at the end of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutResult {
    /// The release of the demo.
    pub release: u32,
    /// Its deployment and content.
    pub id: String,
    /// Its state by the recorded decisions.
    pub word: RolloutPhase,
    /// The reason, in one sentence.
    pub why: String,
    /// Its waves in order.
    pub waves: Vec<WaveResult>,
    /// Whether nothing of it is left to release or to take back.
    #[serde(skip)]
    pub has_ended: bool,
}

/// One wave of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveResult {
    /// Its name.
    pub name: String,
    /// Its devices.
    pub targets: u64,
    /// Whether it has begun, by the recorded decisions.
    pub has_begun: bool,
}

/// Percentiles over the cuts that left the hub in the dark. One after which the truth was not known in time is taken as
/// longer than every other: what was not measured makes no percentile smaller.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimeToTruth {
    /// Cuts after which the hub had missed nothing; they are in no percentile.
    pub known_at_once: usize,
    /// Cuts measured.
    pub samples: usize,
    /// Cuts after which the hub did not know the truth before the link broke again, or could not be compared with it.
    pub unresolved: usize,
    /// Half are at or below, in milliseconds; null where less than half were measured.
    pub p50_ms: Option<u64>,
    /// Ninety-nine in a hundred are at or below, in milliseconds; null where fewer were measured.
    pub p99_ms: Option<u64>,
}

impl TimeToTruth {
    /// Percentiles of samples, by the nearest rank.
    pub fn of(known_at_once: usize, unresolved: usize, mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let all = samples.len() + unresolved;
        let rank = |percent: usize| {
            let at = (all * percent).div_ceil(100).max(1) - 1;
            samples.get(at).map(|sample| u64::try_from(sample.as_millis()).unwrap_or(u64::MAX))
        };
        Self { known_at_once, samples: samples.len(), unresolved, p50_ms: rank(50), p99_ms: rank(99) }
    }
}

/// Devices by freshness, without those that were retired.
pub(crate) fn freshness(devices: &[DeviceLine]) -> Split {
    let mut split = Split::default();
    for line in devices.iter().filter(|line| !line.retired) {
        *split.get_mut(line.freshness) += 1;
    }
    split
}

/// True where the fleet is where it should be: nothing unknown, nothing unfinished.
pub(crate) fn is_converged(
    wanted_devices: usize,
    devices: &[DeviceLine],
    deployments: &[DeploymentView],
) -> bool {
    let fresh = devices.iter().filter(|line| line.freshness == Freshness::Fresh).count();
    fresh == wanted_devices
        && devices.len() == wanted_devices
        && !deployments.is_empty()
        && deployments.iter().all(|view| view.verdict == Verdict::Converged)
        && Accounting::of(devices).is_complete()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let samples = |n: u64| (1..=n).rev().map(Duration::from_millis).collect::<Vec<_>>();
        let hundred = TimeToTruth::of(3, 0, samples(100));
        assert_eq!((hundred.samples, hundred.p50_ms, hundred.p99_ms), (100, Some(50), Some(99)));
        let one = TimeToTruth::of(0, 0, samples(1));
        assert_eq!((one.p50_ms, one.p99_ms), (Some(1), Some(1)));
        assert_eq!(TimeToTruth::of(0, 0, Vec::new()).p50_ms, None);
    }

    #[test]
    fn what_was_not_resolved_is_above_what_was_measured() {
        let of = |unresolved| TimeToTruth::of(0, unresolved, (1..=99).map(Duration::from_millis).collect());
        let one = of(1);
        assert_eq!((one.samples, one.unresolved, one.p50_ms, one.p99_ms), (99, 1, Some(50), Some(99)));
        assert_eq!((of(2).p50_ms, of(2).p99_ms), (Some(51), None));
        assert_eq!((of(99).p50_ms, of(100).p50_ms), (Some(99), None));
    }

    #[test]
    fn a_fleet_without_deployments_is_not_converged() {
        assert!(!is_converged(0, &[], &[]));
    }
}
