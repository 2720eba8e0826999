//! The evidence that a report is: how it reached the hub, and which part of the changes it shows. Both are absent from a report of
//! an agent, which sends every change itself. How long evidence is fresh is in [`presence`](crate::presence).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The source of a report: how far the report proves a state depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EvidenceSource {
    /// How it reached the hub.
    pub origin: Provenance,
    /// Which part of the changes it shows.
    pub fidelity: Fidelity,
}

impl EvidenceSource {
    /// That of an agent.
    pub const EVERY_CHANGE: Self = Self { origin: Provenance::Push, fidelity: Fidelity::Event };

    /// Whether the device sent it, and sends every change.
    pub fn is_every_change(self) -> bool {
        self == Self::EVERY_CHANGE
    }
}

/// Targets by the evidence of their last report: by its origin, then by its fidelity. Left out are targets whose device sent every
/// change itself, those without a report, and zeros.
pub type EvidenceCounts = BTreeMap<Provenance, BTreeMap<Fidelity, u64>>;

/// How a report reached the hub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// The device sent it.
    #[default]
    Push,
    /// A program at the hub polled the device.
    Pull,
    /// A program derived it from metrics.
    Metrics,
}

/// Which part of the changes the reports of a deployment show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fidelity {
    /// Every change is a report.
    #[default]
    Event,
    /// The state at one moment; earlier changes are not reported.
    Snapshot,
    /// The state at sampled moments; changes in between are not reported.
    Sampled,
}

/// Each counted origin with its targets by fidelity, in the order of [`Fidelity::ALL`]; none if every device sends every change.
pub fn by_origin(counts: &EvidenceCounts) -> impl Iterator<Item = (Provenance, [u64; 3])> {
    let rows = counts.iter().map(|(origin, row)| {
        (*origin, Fidelity::ALL.map(|fidelity| row.get(&fidelity).copied().unwrap_or_default()))
    });
    rows.filter(|(_, row)| row.iter().any(|count| *count > 0))
}

/// The targets that are left out of the counts.
pub fn left_out(counts: &EvidenceCounts, targets: u64) -> u64 {
    let counted: u64 = by_origin(counts).flat_map(|(_, row)| row).sum();
    targets.saturating_sub(counted)
}

impl Provenance {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Push, Self::Pull, Self::Metrics];

    /// Whether the device sent the report.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub const fn is_push(&self) -> bool {
        matches!(self, Self::Push)
    }

    /// Its word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Metrics => "metrics",
        }
    }
}

impl Fidelity {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Event, Self::Snapshot, Self::Sampled];

    /// Whether every change is a report.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub const fn is_event(&self) -> bool {
        matches!(self, Self::Event)
    }

    /// Its word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Snapshot => "snapshot",
            Self::Sampled => "sampled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_origins_and_the_targets_left_out_add_up() {
        let counts = EvidenceCounts::from([
            (Provenance::Push, BTreeMap::from([(Fidelity::Snapshot, 2)])),
            (Provenance::Pull, BTreeMap::from([(Fidelity::Sampled, 3), (Fidelity::Event, 1)])),
            (Provenance::Metrics, BTreeMap::new()),
        ]);
        let rows: Vec<_> = by_origin(&counts).collect();
        assert_eq!(rows, [(Provenance::Push, [0, 2, 0]), (Provenance::Pull, [1, 0, 3])]);
        assert_eq!(left_out(&counts, 10), 4);
        assert_eq!(
            (by_origin(&EvidenceCounts::new()).count(), left_out(&EvidenceCounts::new(), 10)),
            (0, 10)
        );
    }
}
