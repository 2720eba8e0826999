//! The evidence of a decision about a rollout. It judges nothing: `muster-domain` does.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The counts of a wave that a decision was based on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateEvidence {
    /// LEDGER up to this sequence gives these counts.
    pub ledger_seq: u64,
    /// If the view was read in several pages of several sequences, the last of these: then no one sequence gives the counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_through: Option<u64>,
    /// The commit that gives the waves and their targets. Older releases did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Time of the judgement, by the requester's clock: soak times and deadlines depend on it. As `revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_at: Option<Timestamp>,
    /// Targets of the wave.
    pub targets: u64,
    /// Those with the content in their desired state, as far as LEDGER has it.
    pub released: u64,
    /// Released ones that are heard and have installed it.
    pub confirmed: u64,
    /// Confirmed ones whose soak time is over.
    pub soaked: u64,
    /// Released ones that are heard and have failed, or count as failed because they are not heard.
    pub failed: u64,
    /// Released ones that are left out because they are not heard.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub debt: u64,
    /// Released ones that are not heard, including those that are left out or count as failed. As `revision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dark: Option<u64>,
    /// Silent targets that all waves together leave out. Only `finish` has it; absent if it is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debt_of_all: Option<u64>,
}
