//! The results of the entries of a file that was applied, a line each.

use serde::Serialize;

/// The result of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum EntryResult {
    /// It is new.
    Created,
    /// It was there, and is changed.
    Changed,
    /// It was there as the file has it, and was not requested.
    Unchanged,
    /// It is refused, and nothing of it is applied.
    Refused,
    /// The answer is missing or not understood, so it may have been applied or not.
    Unconfirmed,
    /// The planner could not answer, for this entry or for one before it.
    NotRequested,
}

/// An entry of a file and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AppliedEntry {
    /// `plan` or `node`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its result.
    pub result: EntryResult,
    /// Its version, if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The error, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl EntryResult {
    const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::Unconfirmed => "unconfirmed: apply the file again",
            Self::NotRequested => "not requested",
        }
    }
}

/// A line for each entry.
pub(crate) fn lines(entries: &[AppliedEntry]) -> String {
    let line = |AppliedEntry { kind, name, result, version, .. }: &AppliedEntry| {
        let version = version.map(|version| format!(" (version {version})")).unwrap_or_default();
        format!("{kind} {name}: {}{version}\n", result.word())
    };
    entries.iter().map(line).collect()
}
