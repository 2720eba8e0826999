//! Reimplements the counts of evidence naively: every target with a report, but those of devices that send every change.

use muster_contract::evidence::{EvidenceCounts, Fidelity, Provenance};

use super::Pair;

pub(super) fn counts(targets: &[&Pair]) -> EvidenceCounts {
    let mut counts = EvidenceCounts::new();
    for fact in targets.iter().filter_map(|pair| pair.report.as_ref()) {
        if (fact.origin, fact.fidelity) != (Provenance::Push, Fidelity::Event) {
            *counts.entry(fact.origin).or_default().entry(fact.fidelity).or_default() += 1;
        }
    }
    counts
}
