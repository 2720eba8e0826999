//! Filters that all lists of MRDS have, and the parts of its messages that may be absent or unknown.

use std::fmt::Display;
use std::str::FromStr;

use muster_contract::plans::{InventoryKind, InventoryQuery};
use muster_proto::proto::mrds::core::Metadata;
use tonic::Status;

use super::refusals::invalid;

/// Filters by identity and version.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// One of these ids.
    pub ids: Vec<String>,
    /// One of these names.
    pub names: Vec<String>,
    /// At least this version.
    pub at_least: Option<u64>,
    /// At most this version.
    pub at_most: Option<u64>,
    /// This version.
    pub exactly: Option<u64>,
}

impl Identity {
    /// The filters of a request in which a zero filters nothing.
    pub(super) fn of(ids: Vec<String>, names: Vec<String>, [gte, lte, eq]: [u64; 3]) -> Self {
        let set = |number: u64| (number > 0).then_some(number);
        Self { ids, names, at_least: set(gte), at_most: set(lte), exactly: set(eq) }
    }

    /// Whether a record passes.
    pub(super) fn passes(&self, id: &str, name: &str, version: u64) -> bool {
        let is_in = |list: &[String], text: &str| list.is_empty() || list.iter().any(|one| one == text);
        is_in(&self.ids, id)
            && is_in(&self.names, name)
            && self.at_least.is_none_or(|least| version >= least)
            && self.at_most.is_none_or(|most| version <= most)
            && self.exactly.is_none_or(|exactly| version == exactly)
    }

    /// Names to ask for, with the field that has them; empty if all records must be looked at.
    pub(super) fn wanted(&self) -> (&'static str, &[String]) {
        if self.ids.is_empty() { ("name_in", &self.names) } else { ("id_in", &self.ids) }
    }
}

/// A question for the entries of one kind with these names, or for all of them if there are none.
pub(super) fn inventory(kind: InventoryKind, name: Vec<String>, include_deleted: bool) -> InventoryQuery {
    InventoryQuery { name, include_deleted, ..InventoryQuery::of(kind) }
}

/// Whether a value passes a list of wanted and one of unwanted values.
pub(super) fn passes_state(wanted: &[i32], unwanted: &[i32], state: i32) -> bool {
    (wanted.is_empty() || wanted.contains(&state)) && !unwanted.contains(&state)
}

/// Whether a number is at most a bound; a bound of zero bounds nothing.
pub(super) fn is_at_most(number: u64, most: u32) -> bool {
    most == 0 || number <= u64::from(most)
}

/// The metadata of a request.
///
/// # Errors
/// It is missing.
pub(super) fn metadata(metadata: Option<Metadata>) -> Result<Metadata, Status> {
    metadata.ok_or_else(|| invalid("metadata", "is missing: name the record and its version"))
}

/// A part of a request.
///
/// # Errors
/// It is missing.
pub(super) fn part<T>(field: &'static str, part: Option<T>) -> Result<T, Status> {
    part.ok_or_else(|| invalid(field, "is missing: set it"))
}

/// Parses a field.
///
/// # Errors
/// The text breaks the rules of its type.
pub(super) fn parsed<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, Status> {
    text.parse().map_err(|error: T::Err| invalid(field, format!("'{text}': {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_different_fields_must_all_hold_and_a_zero_filters_nothing() {
        let of = |ids: &[&str], names: &[&str], versions| {
            let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
            Identity::of(texts(ids), texts(names), versions)
        };
        assert!(of(&[], &[], [0, 0, 0]).passes("a", "n", 0));
        assert!(of(&["a", "b"], &["n"], [2, 4, 3]).passes("a", "n", 3));
        for (filters, why) in [
            (of(&["b"], &[], [0, 0, 0]), "id"),
            (of(&[], &["m"], [0, 0, 0]), "name"),
            (of(&[], &[], [4, 0, 0]), "at least"),
            (of(&[], &[], [0, 2, 0]), "at most"),
            (of(&[], &[], [0, 0, 2]), "exactly"),
        ] {
            assert!(!filters.passes("a", "n", 3), "{why}");
        }
        assert_eq!(of(&[], &["n"], [0, 0, 0]).wanted(), ("name_in", &["n".to_owned()][..]));
        assert_eq!(of(&["a"], &["n"], [0, 0, 0]).wanted(), ("id_in", &["a".to_owned()][..]));
        assert!(passes_state(&[], &[], 1) && passes_state(&[1], &[2], 1));
        assert!(!passes_state(&[2], &[], 1) && !passes_state(&[], &[1], 1));
        assert!(is_at_most(3, 0) && is_at_most(3, 3) && !is_at_most(3, 2));
    }
}
