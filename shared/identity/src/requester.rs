//! Who asks a service, read from what nats-server vouches for.
//!
//! A request from another account carries `Nats-Request-Info`: the server writes it, in place of whatever the user sent
//! under that name, because the import is shared ([`exchange`](crate::exchange)). It names the user's key and the key that
//! signed the user's token. The role follows from the signing key and never from the token's own tags: whoever holds the
//! signing key of one role could write any tag.
//!
//! A header on a request within the services' own account proves nothing; the caller of this module decides by the
//! reply subject whether to read it.

use std::collections::BTreeMap;

use muster_contract::RequestedBy;
use serde::Deserialize;

use crate::jwt::Known;
use crate::roles::Role;

/// The header in which nats-server tells a service who asks.
pub const REQUEST_INFO: &str = "Nats-Request-Info";
/// The beginning of the tags with which a service's token names the signing keys of roles.
const SIGNER_TAG: &str = "signer-";

/// Who asks, as far as the server vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Requester {
    /// A user of another account.
    User {
        /// The user's public key, which is proven.
        key: String,
        /// The name in the user's token.
        name: String,
        /// The role whose signing key signed the token; none if it is no role that this service knows.
        role: Option<Role>,
    },
    /// A request within the services' own account or on an open server, where nobody vouches for who asks.
    #[default]
    Unverified,
}

/// The signing keys of roles, by which a service knows a requester's role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signers(BTreeMap<String, Role>);

/// The part of `Nats-Request-Info` that is read.
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
    pub fn of(token: &Known) -> Self {
        let named = token.nats.tags.iter().filter_map(|tag| {
            let (role, key) = tag.strip_prefix(SIGNER_TAG)?.split_once(':')?;
            Some((key.to_owned(), Role::of(role)?))
        });
        Self(named.collect())
    }

    /// The tag that names the signing key of a role.
    pub(crate) fn tag(role: Role, key: &str) -> String {
        format!("{SIGNER_TAG}{}:{key}", role.as_str())
    }

    /// Who asks, by the value of [`REQUEST_INFO`].
    pub fn requester(&self, info: &str) -> Requester {
        match serde_json::from_str::<RequestInfo>(info) {
            Ok(info) if !info.user.is_empty() => Requester::User {
                role: self.0.get(&info.issuer_key).copied(),
                key: info.user,
                name: info.name_tag,
            },
            _ => Requester::Unverified,
        }
    }
}

impl Requester {
    /// Whether an operator asks.
    pub fn is_operator(&self) -> bool {
        matches!(self, Self::User { role: Some(Role::Operator), .. })
    }

    /// What a record of a change says of the requester, where the server vouches for it.
    pub fn record(&self) -> Option<RequestedBy> {
        match self {
            Self::User { key, name, role } => Some(RequestedBy::new(key, name, role.map(Role::as_str))),
            Self::Unverified => None,
        }
    }

    /// The user's public key, where the server vouches for it.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::User { key, .. } => Some(key),
            Self::Unverified => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::jwt::KnownNats;

    use super::*;

    fn signers(tags: &[&str]) -> Signers {
        let nats = KnownNats {
            kind: "user".to_owned(),
            tags: tags.iter().map(ToString::to_string).collect(),
            issuer_account: String::new(),
            revocations: BTreeMap::new(),
        };
        let (sub, iss) = ("U".to_owned(), "A".to_owned());
        Signers::of(&Known { sub, iss, name: "rollup".to_owned(), iat: 1, exp: None, nats })
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
    fn what_names_no_user_is_unverified() {
        for info in ["", "{}", "[]", "no JSON", r#"{"acc":"A","rtt":1}"#, r#"{"user":""}"#] {
            assert_eq!(signers(&[]).requester(info), Requester::Unverified, "{info}");
        }
    }
}
