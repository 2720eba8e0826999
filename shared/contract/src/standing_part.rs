//! Counts over some standings, as groups, defined views and parts of a federation have them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evidence::{EvidenceCounts, Fidelity, Provenance};
use crate::view::{Bounds, Complete, Counts, Retried, Split, Standing, Verdict, keyed};

/// Counts over standings, with the verdict on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StandingPart {
    /// The verdict on them alone.
    pub verdict: Verdict,
    /// Those that shall be.
    pub targets: u64,
    /// Those that shall not be and still are.
    pub leaving: u64,
    /// Targets past their deadline.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub overdue: u64,
    /// Targets that are tried again after an error.
    #[serde(default, skip_serializing_if = "Retried::is_nothing")]
    pub retried: Retried,
    /// Targets by standing and freshness.
    #[schemars(schema_with = "keyed::<Standing, Split>")]
    pub counts: Counts,
    /// Targets by the evidence of their last report, where the device did not send every change itself.
    #[serde(default, skip_serializing_if = "EvidenceCounts::is_empty")]
    #[schemars(schema_with = "keyed::<Provenance, BTreeMap<Fidelity, u64>>")]
    pub evidence: EvidenceCounts,
    /// The bounds of the truth.
    pub converged: Bounds,
    /// The number of targets with a known standing.
    pub complete: Complete,
}
