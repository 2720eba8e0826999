//! Finds the line of a field in a YAML text.

use muster_contract::field_path::{place_of, steps};

/// The line of a field, as `plans[0].applications[1].ports`; of its nearest parent that is there, if it is missing.
pub(crate) fn line_of(text: &str, field: &str) -> Option<u64> {
    let source = || Some(serde_norway::Deserializer::from_str(text));
    place_of(source, &steps(field), |stop| stop.location().map(|at| at.line() as u64))
}
