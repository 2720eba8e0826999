//! Renders the contents of a file for support.

use super::format::{bytes_text, plural};
use crate::support::SupportResult;

/// The written file, and what it lacks.
pub fn written(result: &SupportResult) -> String {
    let SupportResult { file, bytes, parts, errors } = result;
    let parts = plural(parts.len() as u64, "part");
    let mut text = format!("{}: {parts}, {}, without secrets\n", file.display(), bytes_text(*bytes));
    for error in errors {
        text += &format!("not there: {}\n", error.lines().next().unwrap_or_default());
    }
    text + "look it through before you send it\n"
}
