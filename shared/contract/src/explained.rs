//! Counts of a part of the fleet together with why they are so and since when.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A part with its reason and its times. The digest of a document does not cover these three fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Explained{P}")]
pub struct Explained<P> {
    /// Why the verdict on it is so; of devices and components, how the worst of them are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When a standing of it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The newest moment at which LEDGER proves that a device of it was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Its counts.
    #[serde(flatten)]
    pub part: P,
}
