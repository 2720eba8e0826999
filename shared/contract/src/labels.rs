//! Labels: what groups devices beside their site. They come from the hub alone (Git), in the device's desired state, and
//! so LEDGER alone decides who is in which group.
//!
//! Labels that a device reports in its capabilities are shown beside these and never group it: a member of a group must not
//! control what is gated on the group.

use std::collections::BTreeMap;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::ids::{LabelKey, LabelValue};
use crate::limits::LABELS_MAX;

/// Labels of one device.
pub type Labels = BTreeMap<LabelKey, LabelValue>;

/// Whether a device may have these.
///
/// # Errors
/// The rule that they break.
pub fn check(labels: &Labels) -> Result<(), String> {
    match labels.len() {
        0..=LABELS_MAX => Ok(()),
        count => Err(format!("has {count} entries; {LABELS_MAX} are allowed")),
    }
}

/// Their schema: a key is a pattern, and no more of them than allowed.
pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": generator.subschema_for::<LabelKey>(),
        "additionalProperties": generator.subschema_for::<LabelValue>(),
        "maxProperties": LABELS_MAX
    })
}
