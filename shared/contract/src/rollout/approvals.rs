//! The approvals that a wave needs: their number, the persons whose approvals count, and their time. `muster-domain` counts them.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration_text;
use crate::requested_by::RequestedBy;

/// Persons that one rollout names.
const PERSONS_MAX: usize = 32;
/// Characters of the public key of a user.
const KEY_CHARS: usize = 56;
/// Bytes of the name or key of a person.
const PERSON_BYTES_MAX: usize = 256;

/// The approvals that a wave with `approval: before` or `after` needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Approvals {
    /// Number of different requesters.
    #[serde(default = "one")]
    pub need: NonZeroU32,
    /// The persons whose approvals count; everybody who may approve if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Approvers>,
    /// Time after which an approval no longer counts for a wave that has not begun: 30m, 8h; at most 24 h.
    #[serde(default = "expires_after", with = "duration_text")]
    #[schemars(with = "String")]
    pub expires_after: Duration,
}

/// The persons whose approvals count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "neither a role (approver, operator) nor a list of names or keys of persons")]
pub enum Approvers {
    /// Persons in this role.
    Role(ApproverRole),
    /// These persons, each by the name in the credentials or by the key. An entry counts once, also if several persons have the name.
    Persons(#[schemars(length(min = 1, max = PERSONS_MAX))] Vec<String>),
}

/// A role that may approve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ApproverRole {
    /// Approves and rejects, and decides nothing else.
    Approver,
    /// Runs the fleet.
    Operator,
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Default of `expiresAfter`.
const fn expires_after() -> Duration {
    Duration::from_secs(24 * 60 * 60)
}

impl Default for Approvals {
    fn default() -> Self {
        Self { need: one(), of: None, expires_after: expires_after() }
    }
}

impl Approvals {
    /// Whether one approval of anybody is needed, for the default time.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether two requesters count as one person: by key, or as one entry of the approvers.
    pub(super) fn is_same(&self, one: &RequestedBy, other: &RequestedBy) -> bool {
        let counted = |by| self.of.as_ref().and_then(|of| of.counted(by));
        one.person() == other.person() || counted(one).is_some_and(|entry| counted(other) == Some(entry))
    }

    /// Checks the rules that a JSON schema cannot express; the field, and the rule that is broken.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let Some(Approvers::Persons(persons)) = &self.of else { return Ok(()) };
        if persons.is_empty() || persons.len() > PERSONS_MAX {
            let rule = format!("names {} persons; 1 to {PERSONS_MAX} are allowed", persons.len());
            return Err(("of", rule));
        }
        if persons.iter().any(|person| person.is_empty() || person.len() > PERSON_BYTES_MAX) {
            let rule =
                format!("has an entry without a character, or with more than {PERSON_BYTES_MAX} bytes");
            return Err(("of", rule));
        }
        let mut seen = BTreeSet::new();
        if let Some(person) = persons.iter().find(|person| !seen.insert(*person)) {
            return Err(("of", format!("names '{person}' twice")));
        }
        let keys = persons.iter().filter(|person| is_key(person)).count();
        if keys > 0 && keys < persons.len() {
            let rule =
                "names some persons by key and others by name: a person who has both would count twice";
            return Err(("of", rule.to_owned()));
        }
        let need = self.need.get();
        if usize::try_from(need).map_or(true, |need| need > persons.len()) {
            return Err(("need", format!("is {need}, and 'of' names {} persons", persons.len())));
        }
        Ok(())
    }
}

impl Approvers {
    /// The approver as whom a requester counts; `None` if the approval of this requester does not count.
    pub fn counted<'a>(&'a self, by: &'a RequestedBy) -> Option<&'a str> {
        match self {
            Self::Role(role) => (by.person_role() == Some(role.as_str())).then(|| by.person()),
            Self::Persons(persons) => {
                let is = |person: &&String| **person == by.person() || **person == by.label();
                persons.iter().find(is).map(String::as_str)
            }
        }
    }
}

/// Whether an entry is the public key of a user.
fn is_key(entry: &str) -> bool {
    let is_base32 = |byte: u8| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte);
    entry.len() == KEY_CHARS && entry.starts_with('U') && entry.bytes().all(is_base32)
}

impl ApproverRole {
    /// Its name in credentials.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approver => "approver",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Approvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "the role {}", role.as_str()),
            Self::Persons(persons) => f.write_str(&persons.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::requested_by::OnBehalfOf;

    fn approvers(of: Value) -> Approvers {
        serde_json::from_value(of).unwrap()
    }

    #[test]
    fn approvers_are_a_role_or_persons_by_name_or_key() {
        let anna = RequestedBy::new("UANNA", "anna", Some("operator"));
        let through = RequestedBy {
            on_behalf_of: Some(OnBehalfOf::new("UBEN", "ben", "approver")),
            ..RequestedBy::new("UG", "gateway", Some("gateway"))
        };
        let of = |value: Value, by: &RequestedBy| approvers(value).counted(by).map(str::to_owned);
        assert_eq!(of(json!("operator"), &anna), Some("UANNA".to_owned()));
        assert_eq!(of(json!("operator"), &through), None, "the person's role counts, not the gateway's");
        assert_eq!(of(json!("approver"), &through), Some("UBEN".to_owned()));
        assert_eq!(of(json!(["carla", "anna"]), &anna), Some("anna".to_owned()));
        assert_eq!(of(json!(["UBEN"]), &through), Some("UBEN".to_owned()));
        assert_eq!(of(json!(["carla"]), &anna), None);
        assert_eq!(of(json!(["gateway"]), &through), None);
        let stranger = RequestedBy::new("", "", None);
        assert_eq!(of(json!("operator"), &stranger), None);
    }

    #[test]
    fn approvals_need_no_more_persons_than_they_name() {
        let check = |approvals: Value| {
            let approvals: Approvals = serde_json::from_value(approvals).unwrap();
            approvals.check().map_err(|(field, rule)| format!("{field}: {rule}"))
        };
        assert_eq!(check(json!({ "need": 2, "of": ["anna", "ben"] })), Ok(()));
        assert_eq!(check(json!({ "need": 9, "of": "approver" })), Ok(()));
        for (approvals, words) in [
            (json!({ "need": 3, "of": ["anna", "ben"] }), "need: is 3, and 'of' names 2 persons"),
            (json!({ "of": [] }), "of: names 0 persons"),
            (json!({ "of": ["anna", "anna"] }), "of: names 'anna' twice"),
            (json!({ "of": ["anna", ""] }), "of: has an entry without a character"),
            (json!({ "of": ["anna", format!("U{}", "B".repeat(55))] }), "of: names some persons by key"),
        ] {
            assert!(check(approvals.clone()).is_err_and(|rule| rule.contains(words)), "{approvals}");
        }
        let refusal = serde_json::from_value::<Approvals>(json!({ "of": "viewer" })).unwrap_err();
        assert!(refusal.to_string().contains("neither a role (approver, operator) nor a list"), "{refusal}");
    }
}
