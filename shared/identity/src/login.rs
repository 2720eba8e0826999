//! Signs and verifies the proof with which a person logs in to a gateway: the person's token, and a signature by the token's key
//! over a nonce. The seed never leaves the person's machine.
//!
//! The signed text names the gateway's host, the purpose and the nonce, so a proof is invalid for any other. This module does not
//! check the nonce itself: the gateway knows which nonces it issued.

use std::collections::BTreeMap;

use data_encoding::BASE64URL_NOPAD;
use muster_contract::OnBehalfOf;
use nkeys::{KeyPair, KeyPairType};
use serde::{Deserialize, Serialize};

use crate::jwt::{self, TokenError};
use crate::requester::Signers;
use crate::roles::Role;

/// Longest token of a person, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// How far the clock that issued a token may be ahead, in seconds.
const CLOCK_AHEAD_MAX: u64 = 300;
/// The key that stands for all keys in revocations.
const EVERY_KEY: &str = "*";

/// The use of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LoginPurpose {
    /// A code for the login page of a browser.
    Page,
    /// A token for a program.
    Token,
}

/// A proof as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoginProof {
    /// The use.
    #[serde(rename = "for")]
    pub purpose: LoginPurpose,
    /// The person's token.
    pub jwt: String,
    /// The signed nonce.
    pub nonce: String,
    /// The signature in base64url.
    pub signature: String,
}

/// The account of people as a gateway knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeopleAccount {
    /// Its public key.
    pub key: String,
    /// The signing keys of its roles.
    pub signers: Signers,
    /// Revoked keys, each with the second up to which its tokens are revoked; empty if they are not known.
    pub revocations: BTreeMap<String, u64>,
}

/// A person who has proven a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenPerson {
    /// The person, with the role whose signing key signed the token.
    pub person: OnBehalfOf,
    /// The signing key.
    pub issuer: String,
    /// When the token was issued: Unix seconds.
    pub issued: u64,
    /// When it expires: Unix seconds; never if `None`.
    pub expires: Option<u64>,
}

/// Why a proof is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The token is unreadable, or was altered.
    #[error("the JWT is refused: {0}")]
    Token(#[from] TokenError),
    /// The token belongs to no user of this hub's account of people.
    #[error(
        "the JWT is of no user of this hub's account PEOPLE: log in with credentials that `muster auth creds` made for it"
    )]
    OtherAccount,
    /// No role that the gateway knows signed it.
    #[error(
        "the JWT is signed by no key of a role that this gateway knows; was the role's key replaced (`muster auth rotate`)?"
    )]
    UnknownSigner,
    /// The role is not one of people.
    #[error("the role {0} does not log in: it needs viewer, approver, subscriber or operator")]
    Role(&'static str),
    /// The token has expired.
    #[error("the JWT has expired; renew the credentials with `muster auth creds`")]
    Expired,
    /// The token was issued in the future.
    #[error("the JWT was issued in the future: compare the clocks")]
    Future,
    /// The key was revoked.
    #[error("the key is revoked")]
    Revoked,
    /// The key of the token did not sign the nonce.
    #[error("the signature is not that of the JWT's key over this gateway's host and nonce")]
    Signature,
}

/// The text that a proof signs.
fn signed_text(host: &str, purpose: LoginPurpose, nonce: &str) -> String {
    let purpose = match purpose {
        LoginPurpose::Page => "page",
        LoginPurpose::Token => "token",
    };
    format!("muster-login\n{}\n{purpose}\n{nonce}", host.to_ascii_lowercase())
}

impl LoginProof {
    /// Makes the proof for a gateway's host, with the port unless it is the scheme's default.
    ///
    /// # Errors
    /// The key has no seed.
    pub fn sign(
        key: &KeyPair,
        jwt: &str,
        host: &str,
        purpose: LoginPurpose,
        nonce: &str,
    ) -> Result<Self, TokenError> {
        let signature = key.sign(signed_text(host, purpose, nonce).as_bytes());
        let signature = signature.map_err(|error| TokenError::Key(error.to_string()))?;
        Ok(Self {
            purpose,
            jwt: jwt.to_owned(),
            nonce: nonce.to_owned(),
            signature: BASE64URL_NOPAD.encode(&signature),
        })
    }

    /// Verifies the proof at the time `now`, in Unix seconds; the person who made it.
    ///
    /// # Errors
    /// The proof is invalid.
    pub fn verify(&self, host: &str, account: &PeopleAccount, now: u64) -> Result<ProvenPerson, LoginError> {
        if self.jwt.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Shape.into());
        }
        let claims = jwt::read(&self.jwt)?;
        if claims.nats.kind != "user" || account.key.is_empty() || claims.nats.issuer_account != account.key {
            return Err(LoginError::OtherAccount);
        }
        let role = account.signers.role_of(&claims.iss).ok_or(LoginError::UnknownSigner)?;
        if !role.is_of_people() {
            return Err(LoginError::Role(role.as_str()));
        }
        if claims.iat > now.saturating_add(CLOCK_AHEAD_MAX) {
            return Err(LoginError::Future);
        }
        let proven = ProvenPerson {
            person: OnBehalfOf::new(&claims.sub, &claims.name, role.as_str()),
            issuer: claims.iss,
            issued: claims.iat,
            expires: claims.exp,
        };
        account.check(&proven, now)?;
        let key = KeyPair::from_public_key(&claims.sub).map_err(|_| LoginError::Signature)?;
        let signature =
            BASE64URL_NOPAD.decode(self.signature.as_bytes()).map_err(|_| LoginError::Signature)?;
        let text = signed_text(host, self.purpose, &self.nonce);
        let is_user = matches!(key.key_pair_type(), KeyPairType::User);
        if !is_user || key.verify(text.as_bytes(), &signature).is_err() {
            return Err(LoginError::Signature);
        }
        Ok(proven)
    }
}

impl PeopleAccount {
    /// Checks that a person who has proven a key may still log in.
    ///
    /// # Errors
    /// The token has expired, its key is revoked, or its role has another signing key now.
    pub fn check(&self, proven: &ProvenPerson, now: u64) -> Result<(), LoginError> {
        let role = self.signers.role_of(&proven.issuer).map(Role::as_str);
        if role != Some(proven.person.role.as_str()) {
            return Err(LoginError::UnknownSigner);
        }
        if proven.expires.is_some_and(|expires| expires <= now) {
            return Err(LoginError::Expired);
        }
        if self.is_revoked(&proven.person.key, proven.issued) { Err(LoginError::Revoked) } else { Ok(()) }
    }

    /// Whether the account revokes what was issued to a key at this time, in Unix seconds: by the key itself, or with all keys.
    pub fn is_revoked(&self, key: &str, issued: u64) -> bool {
        let until = [key, EVERY_KEY].into_iter().filter_map(|key| self.revocations.get(key)).max();
        until.is_some_and(|until| issued <= *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{self, User};

    const HOST: &str = "fleet.example.com";
    const NOW: u64 = 1_000;

    struct Hub {
        account: PeopleAccount,
        signers: BTreeMap<Role, KeyPair>,
    }

    impl Hub {
        fn new() -> Self {
            let signers: BTreeMap<_, _> =
                Role::ALL.into_iter().map(|role| (role, KeyPair::new_account())).collect();
            let public = signers.iter().map(|(role, key)| (*role, key.public_key())).collect();
            let account = PeopleAccount {
                key: KeyPair::new_account().public_key(),
                signers: Signers::from_keys(&public),
                revocations: BTreeMap::new(),
            };
            Self { account, signers }
        }

        fn token(&self, role: Role, key: &KeyPair, expires: Option<u64>) -> String {
            let key = key.public_key();
            let user = User { account: &self.account.key, key: &key, issued: 900, expires };
            claims::service(&self.signers[&role], &user, role, "anna", &BTreeMap::new()).unwrap()
        }

        fn proof(&self, role: Role, key: &KeyPair) -> LoginProof {
            let jwt = self.token(role, key, Some(2_000));
            LoginProof::sign(key, &jwt, HOST, LoginPurpose::Page, "nonce").unwrap()
        }

        fn verify(&self, proof: &LoginProof) -> Result<ProvenPerson, LoginError> {
            proof.verify(HOST, &self.account, NOW)
        }
    }

    #[test]
    fn the_role_is_that_of_the_signing_key_and_only_people_log_in() {
        let (hub, key) = (Hub::new(), KeyPair::new_user());
        for role in [Role::Viewer, Role::Approver, Role::Subscriber, Role::Operator] {
            let person = hub.verify(&hub.proof(role, &key)).unwrap().person;
            assert_eq!(person, OnBehalfOf::new(&key.public_key(), "anna", role.as_str()));
        }
        for role in [Role::Planner, Role::Gateway, Role::Ingest, Role::Device] {
            assert_eq!(hub.verify(&hub.proof(role, &key)), Err(LoginError::Role(role.as_str())));
        }
    }

    #[test]
    fn a_token_that_is_forged_expired_revoked_or_of_another_hub_is_refused() {
        let (mut hub, key) = (Hub::new(), KeyPair::new_user());
        let proof = hub.proof(Role::Operator, &key);
        assert!(hub.verify(&proof).is_ok());
        let other = Hub::new();
        assert_eq!(other.verify(&proof), Err(LoginError::OtherAccount));
        let (mut forged, own) = (Hub::new(), KeyPair::new_user());
        forged.account.key = hub.account.key.clone();
        assert_eq!(hub.verify(&forged.proof(Role::Operator, &own)), Err(LoginError::UnknownSigner));
        let altered = LoginProof { jwt: proof.jwt.replacen("ey", "fy", 1), ..proof.clone() };
        assert!(matches!(hub.verify(&altered), Err(LoginError::Token(_))));
        assert_eq!(proof.verify(HOST, &hub.account, 2_000), Err(LoginError::Expired));
        assert_eq!(proof.verify(HOST, &hub.account, 100), Err(LoginError::Future));
        hub.account.revocations.insert(key.public_key(), 899);
        assert!(hub.verify(&proof).is_ok(), "issued after the revocation");
        hub.account.revocations.insert("*".to_owned(), 900);
        assert_eq!(hub.verify(&proof), Err(LoginError::Revoked));
    }

    #[test]
    fn a_signature_is_of_no_use_for_another_host_purpose_nonce_or_token() {
        let (hub, key) = (Hub::new(), KeyPair::new_user());
        let proof = hub.proof(Role::Operator, &key);
        let refused = |proof: &LoginProof| assert_eq!(hub.verify(proof), Err(LoginError::Signature));
        assert_eq!(proof.verify("evil.example", &hub.account, NOW), Err(LoginError::Signature));
        refused(&LoginProof { purpose: LoginPurpose::Token, ..proof.clone() });
        refused(&LoginProof { nonce: "other".to_owned(), ..proof.clone() });
        refused(&LoginProof { signature: String::new(), ..proof.clone() });
        let other = KeyPair::new_user();
        refused(&LoginProof { jwt: hub.token(Role::Operator, &other, None), ..proof });
    }
}
