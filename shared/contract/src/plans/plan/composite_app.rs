//! The composite app of a plan: names under which clients of EMCO ask for it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::Violation;
use crate::limits::LABEL_CHARS_MAX;

/// The names of a composite app at EMCO. Several plans may have the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompositeApp {
    /// The project.
    pub project: String,
    /// The composite app.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl CompositeApp {
    pub(super) fn check(&self) -> Result<(), Violation> {
        let Self { project, name, version } = self;
        for (field, text) in [("project", project), ("name", name), ("version", version)] {
            check_emco_name(text).map_err(|rule| Violation::at(format!("compositeApp.{field}"), rule))?;
        }
        Ok(())
    }
}

/// Checks a name of EMCO: the value of a Kubernetes label, and not empty.
///
/// # Errors
/// The rule that it breaks.
pub fn check_emco_name(text: &str) -> Result<(), String> {
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '.');
    let is_edge = |sign: Option<char>| sign.is_some_and(|sign| sign.is_ascii_alphanumeric());
    let is_valid = text.len() <= LABEL_CHARS_MAX
        && text.chars().all(is_sign)
        && is_edge(text.chars().next())
        && is_edge(text.chars().last());
    is_valid.then_some(()).ok_or_else(|| {
        format!("must have 1 to {LABEL_CHARS_MAX} letters, digits, '-', '_' and '.', the first and last a letter or digit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_emco_is_a_label_and_is_not_empty() {
        let of = |project: &str| CompositeApp {
            project: project.to_owned(),
            name: "line-telemetry".to_owned(),
            version: "v1.2_a".to_owned(),
        };
        assert!(of("plant7").check().is_ok());
        for project in ["", "-a", "a.", "a b", "a/b", &"a".repeat(64)] {
            assert_eq!(of(project).check().unwrap_err().path, "compositeApp.project", "{project}");
        }
    }
}
