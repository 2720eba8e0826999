//! A violated rule of a run.

/// A violated rule, as a text for people.
pub(super) type Violation = String;
