//! Who asked for a change, as records of changes name the requester.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::REQUESTER_NAME_CHARS_MAX;

/// The requester of a change. The server proves it with the requester's JWT; no field of a request is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestedBy {
    /// The public key of the requester.
    pub key: String,
    /// The name in the requester's JWT, for people: two keys may have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role whose signing key signed that JWT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The person for whom a gateway asked, in the words of the gateway: it proved itself, and the person to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<OnBehalfOf>,
}

/// A person for whom a gateway asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct OnBehalfOf {
    /// The person's public key, or `oidc:` and a digest of issuer and subject.
    pub key: String,
    /// The name, for people: two keys may have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The role in which the person logged in.
    pub role: String,
}

impl RequestedBy {
    /// A record of a requester, with a name that is cut where it is too long for a record and has no control characters.
    pub fn new(key: &str, name: &str, role: Option<&str>) -> Self {
        Self { key: key.to_owned(), name: bounded(name), role: role.map(str::to_owned), on_behalf_of: None }
    }

    /// The key of the person who asked: through a gateway or not, one person counts once.
    pub fn person(&self) -> &str {
        self.on_behalf_of.as_ref().map_or(&self.key, |person| &person.key)
    }

    /// The name of the person who asked, or the key where there is none.
    pub fn label(&self) -> &str {
        match &self.on_behalf_of {
            Some(person) => person.name.as_deref().unwrap_or(&person.key),
            None => self.name.as_deref().unwrap_or(&self.key),
        }
    }
}

impl OnBehalfOf {
    /// A person, with a key and a name that are bounded as those of a requester are.
    pub fn new(key: &str, name: &str, role: &str) -> Self {
        Self { key: bounded(key).unwrap_or_default(), name: bounded(name), role: role.to_owned() }
    }

    /// Whether it is what [`new`](Self::new) makes: bounded, and without control characters.
    pub fn is_bounded(&self) -> bool {
        !self.key.is_empty()
            && *self == Self::new(&self.key, self.name.as_deref().unwrap_or_default(), &self.role)
    }
}

/// A text that is cut where it is too long for a record and has no control characters; none if nothing is left.
fn bounded(text: &str) -> Option<String> {
    let text: String =
        text.chars().filter(|sign| !sign.is_control()).take(REQUESTER_NAME_CHARS_MAX).collect();
    Some(text).filter(|text| !text.is_empty())
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

    #[test]
    fn the_person_behind_a_gateway_is_the_one_who_asked() {
        let gateway = RequestedBy::new("UG", "gateway", Some("gateway"));
        assert_eq!((gateway.person(), gateway.label()), ("UG", "gateway"));
        let person = OnBehalfOf::new("UANNA", "anna\u{7}", "operator");
        assert!(person.is_bounded());
        let asked = RequestedBy { on_behalf_of: Some(person.clone()), ..gateway };
        assert_eq!((asked.person(), asked.label()), ("UANNA", "anna"));
        let json = serde_json::to_value(&asked).unwrap();
        assert_eq!(
            json["onBehalfOf"],
            serde_json::json!({ "key": "UANNA", "name": "anna", "role": "operator" })
        );
        assert!(!OnBehalfOf { name: Some("a\nb".to_owned()), ..person }.is_bounded());
    }
}
