//! Checks of the texts and lists of a document of PLANS.

use crate::decode::Violation;
use crate::limits::PLANS_TEXT_BYTES_MAX;

/// Checks a text of a document: it is there, bounded, and has no control characters.
pub(super) fn check_text(path: &str, text: &str) -> Result<(), Violation> {
    if text.trim().is_empty() {
        return Err(Violation::at(path, "is empty"));
    }
    if text.len() > PLANS_TEXT_BYTES_MAX {
        let rule = format!("has {} bytes; {PLANS_TEXT_BYTES_MAX} are allowed", text.len());
        return Err(Violation::at(path, rule));
    }
    if text.contains(char::is_control) {
        return Err(Violation::at(path, "has control characters"));
    }
    Ok(())
}

/// Checks the length of a list.
pub(super) fn check_length(path: &str, length: usize, max: usize) -> Result<(), Violation> {
    if length <= max {
        return Ok(());
    }
    Err(Violation::at(path, format!("has {length} entries; {max} are allowed")))
}
