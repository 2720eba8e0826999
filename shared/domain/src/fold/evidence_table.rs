//! Counts targets by the evidence of their last report, by origin and fidelity. Reports of devices that send every change
//! themselves are not counted: they are the rest.

use muster_contract::evidence::{EvidenceCounts, EvidenceSource, Fidelity, Provenance};

use super::delta::{Delta, combine};

const FIDELITIES: usize = Fidelity::ALL.len();

/// Targets by origin, then by fidelity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EvidenceTable([[u32; FIDELITIES]; Provenance::ALL.len()]);

impl EvidenceTable {
    /// Adds a target whose last report comes from this source, or retracts it.
    pub(super) fn shift(&mut self, delta: Delta, source: EvidenceSource) {
        let count = &mut self.0[source.origin as usize][source.fidelity as usize];
        delta.apply(count, (!source.is_every_change()).into());
    }

    /// Combines each count with that of another table.
    #[inline]
    pub(super) fn combine(&mut self, other: &Self, how: impl Fn(u32, u32) -> u32) {
        combine(self.0.as_flattened_mut(), other.0.as_flattened(), how);
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.0.as_flattened().iter().map(|count| u64::from(*count)).sum()
    }

    /// The counts of a document; `None` if a number is too large, or counts devices that send every change themselves.
    pub(super) fn read(counts: &EvidenceCounts) -> Option<Self> {
        let mut table = Self::default();
        for (origin, by_fidelity) in counts {
            for (fidelity, count) in by_fidelity {
                if (EvidenceSource { origin: *origin, fidelity: *fidelity }).is_every_change() {
                    return None;
                }
                table.0[*origin as usize][*fidelity as usize] = u32::try_from(*count).ok()?;
            }
        }
        Some(table)
    }

    /// As a document, without the zeros.
    pub(super) fn counts(&self) -> EvidenceCounts {
        let mut counts = EvidenceCounts::new();
        for origin in Provenance::ALL {
            for fidelity in Fidelity::ALL {
                let count = self.0[origin as usize][fidelity as usize];
                if count > 0 {
                    counts.entry(origin).or_default().insert(fidelity, count.into());
                }
            }
        }
        counts
    }
}
