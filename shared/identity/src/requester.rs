//! Identifies the requester of a service from the header that nats-server writes.
//!
//! A request from another account has the header `Nats-Request-Info`. The server writes it and replaces any header of that
//! name from the user, because the import is shared ([`exchange`](crate::exchange)). It names the user's key and the key
//! that signed the user's token. The role follows from the signing key and never from the token's tags, because the holder
//! of one role's signing key could write any tag.
//!
//! The header proves nothing on a request within the services' own account; the caller decides by the reply subject
//! whether to read it.

use std::collections::BTreeMap;

use muster_contract::{OnBehalfOf, RequestedBy};
use serde::Deserialize;

use crate::jwt::TokenClaims;
use crate::roles::Role;

/// The header with which nats-server names the requester.
pub const REQUEST_INFO: &str = "Nats-Request-Info";
/// The beginning of the tags with which a service's token names the signing keys of roles.
const SIGNER_TAG: &str = "signer-";

/// The sender of a request, as far as the server vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Requester {
    /// A user of another account.
    User {
        /// The user's public key, which is proven.
        key: String,
        /// The name in the user's token.
        name: String,
        /// The role whose signing key signed the token; `None` if this service does not know the key.
        role: Option<Role>,
    },
    /// A person for whom a gateway asks, by a note that the gateway has signed ([`on_behalf`](crate::on_behalf)).
    Represented {
        /// The gateway's public key, which is proven.
        gateway: String,
        /// The name in the gateway's token.
        name: String,
        /// The person.
        person: OnBehalfOf,
    },
    /// A requester within the services' own account or on an open server, where the server vouches for nobody.
    #[default]
    Unverified,
}

/// The signing keys of roles, from which a service derives a requester's role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signers(BTreeMap<String, Role>);

/// The part of `Nats-Request-Info` that this module reads.
#[derive(Deserialize)]
struct RequestInfo {
    #[serde(default)]
    user: String,
    #[serde(default)]
    name_tag: String,
    #[serde(default)]
    issuer_key: String,
}

impl Signers {
    /// The keys that a service's own token names.
    pub fn of(token: &TokenClaims) -> Self {
        let named = token.nats.tags.iter().filter_map(|tag| {
            let (role, key) = tag.strip_prefix(SIGNER_TAG)?.split_once(':')?;
            Some((key.to_owned(), Role::of(role)?))
        });
        Self(named.collect())
    }

    /// The signing keys of roles.
    pub fn from_keys(keys: &BTreeMap<Role, String>) -> Self {
        Self(keys.iter().map(|(role, key)| (key.clone(), *role)).collect())
    }

    /// The role that has a signing key.
    pub fn role_of(&self, key: &str) -> Option<Role> {
        self.0.get(key).copied()
    }

    /// The tag that names the signing key of a role.
    pub(crate) fn tag(role: Role, key: &str) -> String {
        format!("{SIGNER_TAG}{}:{key}", role.as_str())
    }

    /// The requester, by the value of [`REQUEST_INFO`].
    pub fn requester(&self, info: &str) -> Requester {
        match serde_json::from_str::<RequestInfo>(info) {
            Ok(info) if !info.user.is_empty() => {
                Requester::User { role: self.role_of(&info.issuer_key), key: info.user, name: info.name_tag }
            }
            _ => Requester::Unverified,
        }
    }
}

/// Why a service refuses a requester's change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MayNotChange {
    /// A gateway asks in its own name.
    #[error("a gateway may request a change only on behalf of a person: this request has no signed note")]
    Gateway,
    /// The person has no right to the change.
    #[error("{person} has the role {role}, and a change needs the role operator")]
    Role {
        /// The person.
        person: String,
        /// The person's role.
        role: String,
    },
}

impl Requester {
    /// The requester with the person on whose behalf it asks; `None` if it is no gateway that the server proves.
    #[must_use]
    pub fn representing(&self, person: OnBehalfOf) -> Option<Self> {
        match self {
            Self::User { key, name, role: Some(Role::Gateway) } => {
                Some(Self::Represented { gateway: key.clone(), name: name.clone(), person })
            }
            _ => None,
        }
    }

    /// Whether the requester is an operator.
    pub fn is_operator(&self) -> bool {
        match self {
            Self::User { role, .. } => *role == Some(Role::Operator),
            Self::Represented { person, .. } => person.role == Role::Operator.as_str(),
            Self::Unverified => false,
        }
    }

    /// The requester for the record of a change, if the server vouches for it.
    pub fn record(&self) -> Option<RequestedBy> {
        match self {
            Self::User { key, name, role } => Some(RequestedBy::new(key, name, role.map(Role::as_str))),
            Self::Represented { gateway, name, person } => {
                let by = RequestedBy::new(gateway, name, Some(Role::Gateway.as_str()));
                Some(RequestedBy { on_behalf_of: Some(person.clone()), ..by })
            }
            Self::Unverified => None,
        }
    }

    /// As [`record`](Self::record) for a change on a subject, which a gateway may request only on behalf of a person whose role
    /// [may](Role::may_change). The server itself refuses the change to other requesters: they have no right to the subject.
    ///
    /// # Errors
    /// The requester may not make the change.
    pub fn author(&self, subject: &str) -> Result<Option<RequestedBy>, MayNotChange> {
        let is_allowed = |role: &str| Role::of(role).is_some_and(|role| role.may_change(subject));
        match self {
            Self::User { role: Some(Role::Gateway), .. } => Err(MayNotChange::Gateway),
            Self::Represented { person, .. } if !is_allowed(&person.role) => {
                let label = person.name.as_ref().unwrap_or(&person.key);
                Err(MayNotChange::Role { person: label.clone(), role: person.role.clone() })
            }
            _ => Ok(self.record()),
        }
    }

    /// The public key of the user, or the key of the person for whom a gateway asks, if the server vouches for it.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::User { key, .. } => Some(key),
            Self::Represented { person, .. } => Some(&person.key),
            Self::Unverified => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::jwt::NatsClaims;

    use super::*;

    fn signers(tags: &[&str]) -> Signers {
        let nats = NatsClaims {
            kind: "user".to_owned(),
            tags: tags.iter().map(ToString::to_string).collect(),
            issuer_account: String::new(),
            revocations: BTreeMap::new(),
        };
        let (sub, iss) = ("U".to_owned(), "A".to_owned());
        Signers::of(&TokenClaims { sub, iss, name: "rollup".to_owned(), iat: 1, exp: None, nats })
    }

    #[test]
    fn a_role_follows_from_the_signing_key_and_not_from_tags() {
        let signers =
            signers(&["role:rollup", "signer-operator:AOP", "signer-viewer:AVIEW", "signer-king:AK"]);
        let asked = |issuer: &str| {
            let info = format!(
                r#"{{"acc":"AP","user":"UANNA","name_tag":"anna","issuer_key":"{issuer}","tags":["role:operator"]}}"#
            );
            signers.requester(&info)
        };
        let anna = |role| Requester::User { key: "UANNA".to_owned(), name: "anna".to_owned(), role };
        assert_eq!(asked("AVIEW"), anna(Some(Role::Viewer)));
        assert!(asked("AOP").is_operator());
        assert_eq!(asked("AK"), anna(None));
        assert_eq!(asked("AOP").key(), Some("UANNA"));
        assert_eq!(asked("AOP").record(), Some(RequestedBy::new("UANNA", "anna", Some("operator"))));
        assert_eq!(Requester::Unverified.record(), None, "nothing is invented");
    }

    #[test]
    fn a_gateway_changes_for_operators_and_approves_for_approvers_alone() {
        const SUBJECT: &str = "muster.publisher.release";
        let user =
            |role| Requester::User { key: "UG".to_owned(), name: "gateway-1".to_owned(), role: Some(role) };
        let person = |role: &str| OnBehalfOf::new("UANNA", "anna", role);
        for role in Role::ALL.into_iter().filter(|role| *role != Role::Gateway) {
            assert_eq!(user(role).representing(person("operator")), None, "{role:?}");
        }
        assert_eq!(Requester::Unverified.representing(person("operator")), None);
        let gateway = user(Role::Gateway);
        assert_eq!(gateway.author(SUBJECT), Err(MayNotChange::Gateway));
        let approvals = [
            "muster.publisher.decide",
            "muster.planner.operation-approve",
            "muster.planner.operation-reject",
            "muster.planner.plan-approve",
        ];
        let others = [
            SUBJECT,
            "muster.publisher.apply",
            "muster.planner.operation-cancel",
            "muster.planner.operation-complete",
            "muster.planner.operation-fail",
            "muster.planner.plan-migrate",
            "muster.view.apply",
            "",
        ];
        for (role, may_approve) in [("viewer", false), ("subscriber", false), ("approver", true)] {
            let asked = gateway.representing(person(role)).unwrap();
            for subject in approvals {
                assert_eq!(asked.author(subject).is_ok(), may_approve, "{role} {subject}");
            }
            for subject in others {
                let refused = asked.author(subject).unwrap_err().to_string();
                assert!(refused.contains(role) && refused.contains("needs the role operator"), "{refused}");
            }
            assert!(!asked.is_operator(), "{role}");
        }
        let operator = gateway.representing(person("operator")).unwrap();
        assert_eq!((operator.is_operator(), operator.key()), (true, Some("UANNA")));
        let record = operator.author(SUBJECT).unwrap().unwrap();
        assert_eq!(
            (record.key.as_str(), record.role.as_deref(), record.person()),
            ("UG", Some("gateway"), "UANNA")
        );
        assert_eq!(user(Role::Operator).author(SUBJECT).unwrap().unwrap().person(), "UG");
    }

    #[test]
    fn a_header_without_a_user_is_unverified() {
        for info in ["", "{}", "[]", "no JSON", r#"{"acc":"A","rtt":1}"#, r#"{"user":""}"#] {
            assert_eq!(signers(&[]).requester(info), Requester::Unverified, "{info}");
        }
    }
}
