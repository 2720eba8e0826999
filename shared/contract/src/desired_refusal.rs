//! A device's refusal of its desired state: it stands from the document that the device refuses until it accepts one. The
//! device repeats it in its heartbeats, ingest records its begin and its end as incidents, and answers show it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::Violation;
use crate::ids::Generation;
use crate::limits::DESIRED_REFUSAL_MESSAGE_BYTES_MAX;

/// A refusal of a desired state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DesiredRefusal {
    /// The generation of the refused document; absent if the document does not say a readable one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Why, as a code to select by.
    pub code: DesiredRefusalCode,
    /// Why, in words.
    pub message: String,
    /// When the device refused it first, by its own clock; in an incident and an answer not later than the hub learned of it.
    pub since: Timestamp,
}

/// Why a device refused its desired state. A later release may add codes: a reader takes a code that it does not know for
/// `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DesiredRefusalCode {
    /// Its generation is below the one that the device accepted last, as after a hub was restored from a backup.
    Older,
    /// The device accepted its generation before, with another content.
    OtherContent,
    /// The device cannot read it: it is no document, breaks a rule, or has what this agent does not know.
    Invalid,
    /// Another reason, or a code that the reader does not know.
    #[serde(other)]
    Other,
}

impl DesiredRefusalCode {
    /// The code as documents have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Older => "older",
            Self::OtherContent => "otherContent",
            Self::Invalid => "invalid",
            Self::Other => "other",
        }
    }
}

impl DesiredRefusal {
    /// Whether both are the same refusal: of one generation, for one reason.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.generation, self.code) == (other.generation, other.code)
    }

    /// The refused document in words: `generation 7`, or `the document` if its generation is unknown.
    pub fn refused(&self) -> String {
        self.generation
            .map_or_else(|| "its desired state".to_owned(), |generation| format!("generation {generation}"))
    }

    /// Checks the rules that its shape does not have.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        let bytes = self.message.len();
        if bytes > DESIRED_REFUSAL_MESSAGE_BYTES_MAX {
            let rule = format!("has {bytes} bytes, over the limit of {DESIRED_REFUSAL_MESSAGE_BYTES_MAX}");
            return Err(Violation::at("refused.message", rule));
        }
        Ok(())
    }
}
