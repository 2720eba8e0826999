//! The record of the ingest that owns a partition. Only ingests read it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::version::{ApiVersion, kind};

/// `muster.owner.<partition>.<fence>`: the ingest that writes the facts of a partition's devices. Every such fact names the
/// sequence of the newest record of a fence, and LEDGER refuses facts that name an older one. Other readers skip the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ownership {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Ownership`
    pub kind: kind::Ownership,
    /// The unique name of the process.
    pub owner: String,
    /// When the process took the partition, by its own clock; for people.
    pub claimed_at: Timestamp,
    /// The number of fences of the partition: the next owner takes all of them.
    #[serde(rename = "lanes")]
    pub fences: u16,
}
