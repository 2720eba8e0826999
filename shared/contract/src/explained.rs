//! Counts of a part of the fleet, with the reason for them and their times. It computes nothing.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counts with their reason and their times. No digest covers `message`, `changedAt` and `lastHeardAt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Explained{P}")]
pub struct Explained<P> {
    /// The reason for the verdict; for devices and components, the state of the worst.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When one of the standings last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The newest moment at which LEDGER proves that one of the devices was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// The counts.
    #[serde(flatten)]
    pub part: P,
}
