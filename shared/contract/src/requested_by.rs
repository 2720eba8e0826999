//! Who asked for a change, as records of changes name the requester.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::REQUESTER_NAME_CHARS_MAX;

/// The requester of a change. The server proves it with the requester's JWT; no field of a request is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestedBy {
    /// The public key of the requester.
    pub key: String,
    /// The name in the requester's JWT, for people: two keys may have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role whose signing key signed that JWT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl RequestedBy {
    /// A record of a requester, with a name that is cut where it is too long for a record and has no control characters.
    pub fn new(key: &str, name: &str, role: Option<&str>) -> Self {
        let name: String =
            name.chars().filter(|sign| !sign.is_control()).take(REQUESTER_NAME_CHARS_MAX).collect();
        Self {
            key: key.to_owned(),
            name: Some(name).filter(|name| !name.is_empty()),
            role: role.map(str::to_owned),
        }
    }

    /// The name, or the key where there is none.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_bounded_name_without_control_characters_or_none() {
        let long = format!("a\u{1b}\n{}", "ü".repeat(2 * REQUESTER_NAME_CHARS_MAX));
        let cut = RequestedBy::new("UA", &long, Some("operator"));
        assert_eq!(cut.name.as_ref().map(|name| name.chars().count()), Some(REQUESTER_NAME_CHARS_MAX));
        assert!(cut.label().starts_with("aü"));
        let nameless = RequestedBy::new("UA", "", None);
        assert_eq!((nameless.label(), nameless.name.is_none()), ("UA", true));
    }
}
