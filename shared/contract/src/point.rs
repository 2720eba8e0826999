//! The point that a query is about: the present, or a time or sequence of LEDGER, or an event time.

use jiff::Timestamp;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The point that a query is about; the present if no field is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = former_names)]
pub struct Point {
    /// As known at this time: up to the last fact that LEDGER stored at or before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// As known at this sequence of LEDGER; 0 is before the first fact. Not together with `at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_seq: Option<u64>,
    /// The state at this event time: what was known then, and later reports that the device had observed at or before it. As
    /// known by now, or at the point that `at` or `atSeq` name.
    #[serde(alias = "about", skip_serializing_if = "Option::is_none")]
    pub event_time: Option<Timestamp>,
}

/// Adds the former name `about` of `eventTime` to the known keys; it is read for one release.
fn former_names(schema: &mut Schema) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    let former = json!({
        "description": "Former name of `eventTime`, read for one release.",
        "type": ["string", "null"],
        "format": "date-time",
        "deprecated": true,
    });
    properties.insert("about".to_owned(), former);
}

impl Point {
    /// As known at a time.
    pub const fn at(at: Timestamp) -> Self {
        Self { at: Some(at), at_seq: None, event_time: None }
    }

    /// As known at a sequence of LEDGER.
    pub const fn at_seq(ledger_seq: u64) -> Self {
        Self { at: None, at_seq: Some(ledger_seq), event_time: None }
    }

    /// True for the present.
    pub fn is_now(&self) -> bool {
        *self == Self::default()
    }
}
