//! Who writes the facts of a partition: a record for ingests, nothing to anybody else.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::version::{ApiVersion, kind};

/// `muster.owner.<partition>.<lane>`: which ingest writes the facts of a partition's devices. Every such fact names the
/// sequence of the newest record of a lane, and LEDGER refuses those that name an older one. Readers pass it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ownership {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Ownership`
    pub kind: kind::Ownership,
    /// The process, in words for a person and unlike any other's.
    pub owner: String,
    /// When it took the partition, by its own clock; for people.
    pub claimed_at: Timestamp,
    /// Lanes of the partition: whoever takes it next takes all of them.
    pub lanes: u16,
}
