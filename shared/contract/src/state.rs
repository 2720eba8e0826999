//! Margo's six states and its status block. How components make a deployment's state is a rule of the domain.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::decode::Violation;
use crate::ids::ComponentName;
use crate::limits::ERROR_MESSAGE_BYTES_MAX;

/// State of a component or a deployment (Margo, lower case). Written in lower case; read in any case, and with
/// the 2024 draft's `Success` and `Failure`, because old clients say it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Accepted, not begun.
    Pending,
    /// Being applied.
    Installing,
    /// Applied and ready.
    Installed,
    /// Being removed.
    Removing,
    /// Removed.
    Removed,
    /// Failed, with an error.
    Failed,
}

impl State {
    /// All six.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Installing, Self::Installed, Self::Removing, Self::Removed, Self::Failed];

    /// The state's word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Installing => "installing",
            Self::Installed => "installed",
            Self::Removing => "removing",
            Self::Removed => "removed",
            Self::Failed => "failed",
        }
    }

    /// True if the state is final until desired state changes.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Installed | Self::Removed | Self::Failed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a state: pending, installing, installed, removing, removed or failed")]
pub struct StateError(String);

impl FromStr for State {
    type Err = StateError;
    fn from_str(text: &str) -> Result<Self, StateError> {
        let known = Self::ALL.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(text));
        match known {
            Some(state) => Ok(state),
            None if text.eq_ignore_ascii_case("success") => Ok(Self::Installed),
            None if text.eq_ignore_ascii_case("failure") => Ok(Self::Failed),
            None => Err(StateError(text.chars().take(32).collect())),
        }
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parse(deserializer)
    }
}

/// An error in Margo's three fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct StatusError {
    /// A short word for programs.
    #[serde(default)]
    #[schemars(length(max = ERROR_MESSAGE_BYTES_MAX))]
    pub code: String,
    /// The component's name, or the deployment's where no component is to blame.
    #[serde(default)]
    #[schemars(length(max = ERROR_MESSAGE_BYTES_MAX))]
    pub source: String,
    /// A sentence for people.
    #[serde(default)]
    #[schemars(length(max = ERROR_MESSAGE_BYTES_MAX))]
    pub message: String,
}

impl StatusError {
    /// An error whose message respects the contract's limit; what is cut off is declared in the text.
    pub fn new(code: impl Into<String>, source: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            source: source.into(),
            message: cut(message.into(), ERROR_MESSAGE_BYTES_MAX),
        }
    }

    /// No field may be longer than the contract allows: views repeat them.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        [("code", &self.code), ("source", &self.source), ("message", &self.message)]
            .into_iter()
            .try_for_each(|(field, text)| check_length(field, text))
    }

    fn is_blank(&self) -> bool {
        self.code.is_empty() && self.source.is_empty() && self.message.is_empty()
    }
}

pub(crate) fn check_length(field: &str, text: &str) -> Result<(), Violation> {
    if text.len() <= ERROR_MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let rule = format!("has {} bytes; {ERROR_MESSAGE_BYTES_MAX} are allowed", text.len());
    Err(Violation::at(field, rule))
}

/// A text of at most so many bytes; what is cut off is declared in the text itself.
pub fn cut(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    let declared = format!(" … (cut: {} bytes in all)", text.len());
    let keep = text.floor_char_boundary(bytes_max.saturating_sub(declared.len()));
    format!("{}{declared}", &text[..keep])
}

/// Reads an optional error. Margo's own examples carry an error of empty strings beside good states: that is none.
pub(crate) fn error_or_blank<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<StatusError>, D::Error> {
    Ok(Option::<StatusError>::deserialize(deserializer)?.filter(|error| !error.is_blank()))
}

/// Margo's `status` of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentStatus {
    /// The deployment's state: the most severe of its components'.
    pub state: State,
    /// The error of the deployment as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "error_or_blank")]
    pub error: Option<StatusError>,
    /// The reason for this state if it is no error, such as what a pending deployment waits for.
    #[schemars(length(max = ERROR_MESSAGE_BYTES_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl DeploymentStatus {
    pub(crate) fn check(&self) -> Result<(), Violation> {
        if let Some(error) = &self.error {
            error.check().map_err(|broken| broken.within("status.error"))?;
        }
        let reason = self.reason.as_deref().unwrap_or_default();
        check_length("reason", reason).map_err(|broken| broken.within("status"))
    }
}

/// Margo's entry for one component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComponentStatus {
    /// The component.
    pub name: ComponentName,
    /// Its state.
    pub state: State,
    /// Its error.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "error_or_blank")]
    pub error: Option<StatusError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_every_draft_are_read_and_one_spelling_is_written() {
        for (text, state) in [
            ("installed", State::Installed),
            ("Failed", State::Failed),
            ("Success", State::Installed),
            ("FAILURE", State::Failed),
        ] {
            assert_eq!(serde_json::from_value::<State>(text.into()).unwrap(), state);
        }
        assert_eq!(serde_json::to_string(&State::Removing).unwrap(), "\"removing\"");
        assert!("done".parse::<State>().is_err());
    }

    #[test]
    fn an_error_of_empty_strings_is_no_error() {
        let status: DeploymentStatus =
            serde_json::from_str(r#"{"state":"installed","error":{"code":"","message":""}}"#).unwrap();
        assert_eq!(status.error, None);
    }

    #[test]
    fn a_message_over_the_limit_is_cut_and_says_so() {
        let error = StatusError::new("X", "web", "ä".repeat(ERROR_MESSAGE_BYTES_MAX));
        assert!(error.message.len() <= ERROR_MESSAGE_BYTES_MAX);
        assert!(error.message.ends_with("(cut: 8192 bytes in all)"), "{}", &error.message[4000..]);
    }

    #[test]
    fn a_text_over_the_limit_is_a_violation_of_its_field() {
        let error = StatusError {
            code: "X".repeat(ERROR_MESSAGE_BYTES_MAX + 1),
            source: String::new(),
            message: String::new(),
        };
        let status = DeploymentStatus { state: State::Failed, error: Some(error), reason: None };
        assert_eq!(
            status.check().unwrap_err().to_string(),
            "status.error.code: has 4097 bytes; 4096 are allowed"
        );
    }
}
