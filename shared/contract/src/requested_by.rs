//! Who asked for a change, as records of changes name the requester.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::REQUESTER_NAME_CHARS_MAX;

/// Prefix of the key of a person who logs in by an OpenID Connect provider.
const PROVIDER: &str = "oidc:";
/// Digits of such a key at the end of the person's name.
const SHOWN_DIGITS: usize = 8;

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
    /// The person for whom a gateway asked. The gateway has verified the person; the server has verified only the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<OnBehalfOf>,
}

/// A person for whom a gateway asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct OnBehalfOf {
    /// The person's public key, `oidc:` and a digest of issuer and subject, or `x509:` and a digest of the name in a certificate.
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

    /// The key of the person who asked, directly or through a gateway: one person counts once.
    pub fn person(&self) -> &str {
        self.on_behalf_of.as_ref().map_or(&self.key, |person| &person.key)
    }

    /// The role of the person who asked.
    pub fn person_role(&self) -> Option<&str> {
        self.on_behalf_of.as_ref().map_or(self.role.as_deref(), |person| Some(&person.role))
    }

    /// The name of the person who asked, or the key where there is none.
    pub fn label(&self) -> &str {
        match &self.on_behalf_of {
            Some(person) => person.label(),
            None => self.name.as_deref().unwrap_or(&self.key),
        }
    }
}

impl OnBehalfOf {
    /// A person. Key and name are bounded like a requester's.
    pub fn new(key: &str, name: &str, role: &str) -> Self {
        let key = bounded(key).unwrap_or_default();
        let name = match name_suffix(&key) {
            // People choose their own names at a provider, so the name ends with digits of the key.
            Some(suffix) => bounded(name.strip_suffix(&suffix).unwrap_or(name)).map(|name| {
                let left = REQUESTER_NAME_CHARS_MAX.saturating_sub(suffix.chars().count());
                name.chars().take(left).chain(suffix.chars()).collect()
            }),
            None => bounded(name),
        };
        Self { key, name, role: role.to_owned() }
    }

    /// The name, or the key if there is none, or if the name of a provider's person does not end with digits of the key.
    pub fn label(&self) -> &str {
        let is_shown = |name: &&str| name_suffix(&self.key).is_none_or(|suffix| name.ends_with(&suffix));
        self.name.as_deref().filter(is_shown).unwrap_or(&self.key)
    }

    /// Whether key and name are bounded and without control characters, as [`new`](Self::new) makes them.
    pub fn is_bounded(&self) -> bool {
        !self.key.is_empty()
            && *self == Self::new(&self.key, self.name.as_deref().unwrap_or_default(), &self.role)
    }
}

/// The end of the name of a provider's person: ` (oidc:1a2b3c4d)`. `None` for any other key.
fn name_suffix(key: &str) -> Option<String> {
    let digits = key.strip_prefix(PROVIDER)?;
    Some(format!(" ({PROVIDER}{digits:.SHOWN_DIGITS$})"))
}

/// Removes control characters and cuts the text to [`REQUESTER_NAME_CHARS_MAX`]; `None` if nothing is left.
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
    fn nobody_whom_a_provider_knows_passes_for_another_by_name() {
        let label = |name: &str| {
            let person = OnBehalfOf::new("oidc:1a2b3c4d5e6f", name, "operator");
            assert!(person.is_bounded(), "{person:?}");
            person.label().to_owned()
        };
        assert_eq!(label("anna"), "anna (oidc:1a2b3c4d)");
        assert_eq!(label("anna (oidc:ffffffff)"), "anna (oidc:ffffffff) (oidc:1a2b3c4d)");
        assert_eq!(label(""), "oidc:1a2b3c4d5e6f");
        let long = label(&"a".repeat(2 * REQUESTER_NAME_CHARS_MAX));
        assert!(long.chars().count() == REQUESTER_NAME_CHARS_MAX && long.ends_with("a (oidc:1a2b3c4d)"));
        let unmarked =
            OnBehalfOf { key: "oidc:1a2b".into(), name: Some("anna".into()), role: "operator".into() };
        assert_eq!((unmarked.label(), unmarked.is_bounded()), ("oidc:1a2b", false));
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
