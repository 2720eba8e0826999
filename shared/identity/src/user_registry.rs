//! Records which users an operator enrolled, until when, and which were revoked. The account's revocations follow from it.
//!
//! Rules: a key belongs to one user; a device has one valid key, and only an explicit replacement enrols another; a token
//! issued after the revocation of its key is valid again.

use std::collections::BTreeMap;

use nkeys::{KeyPair, KeyPairType};
use serde::{Deserialize, Serialize};

/// All keys that were ever enrolled, in the order of their first enrolment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserRegistry {
    /// One entry for each key.
    pub users: Vec<UserEntry>,
    /// When the account was last signed: Unix seconds. A server keeps the newest token, so each signing is later.
    pub account_issued: u64,
}

/// An enrolled key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserEntry {
    /// `SITE/DEVICE` for a device; a name of the operator's choice otherwise.
    pub name: String,
    /// Its role's name.
    pub role: String,
    /// Its public key.
    pub key: String,
    /// When its last token was issued: Unix seconds.
    pub issued: u64,
    /// When that token expires: Unix seconds; never if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// The second up to which its tokens are revoked, if the key was ever revoked: Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

/// Why a user cannot be enrolled or revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The text is not the public key of a user.
    #[error(
        "'{0}' is not the public key of a user: it begins with U and has 56 letters and digits; `muster-agent key` prints a device's"
    )]
    NotAKey(String),
    /// The key belongs to another user.
    #[error("this key belongs to {holder} ({role}): every device makes its own with `muster-agent key`")]
    OthersKey {
        /// The user's name.
        holder: String,
        /// The user's role.
        role: String,
    },
    /// The user has another valid key.
    #[error("{name} is enrolled with another key ({key}): `--replace` revokes it and enrols the new one")]
    AnotherKey {
        /// The user's name.
        name: String,
        /// The valid key.
        key: String,
    },
    /// No such user or key was enrolled.
    #[error("{0} was never enrolled; `muster auth list` shows the enrolled users")]
    NotEnrolled(String),
}

impl RegistryError {
    fn not_a_key(given: &str) -> Self {
        Self::NotAKey(without_secrets(given))
    }

    fn not_enrolled(given: &str) -> Self {
        Self::NotEnrolled(without_secrets(given))
    }
}

impl UserEntry {
    /// Whether its last token is valid at a time: neither revoked nor expired.
    pub fn is_valid(&self, now: u64) -> bool {
        !self.is_revoked() && self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether its last token is revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.is_some_and(|revoked| self.issued <= revoked)
    }
}

impl UserRegistry {
    /// Enrols a key, or enrols it again; the entry has the times of its token. With `replace`, all other keys of the same
    /// name are revoked.
    ///
    /// # Errors
    /// The text is no key, the key belongs to another user, or the user has another valid key and `replace` is not set.
    /// The registry is unchanged then.
    pub fn enroll(
        &mut self,
        name: &str,
        role: &str,
        key: &str,
        now: u64,
        valid: Option<u64>,
        replace: bool,
    ) -> Result<UserEntry, RegistryError> {
        check_key(key)?;
        let same = |entry: &UserEntry| entry.name == name && entry.role == role;
        if let Some(holder) = self.users.iter().find(|entry| entry.key == key && !same(entry)) {
            return Err(RegistryError::OthersKey { holder: holder.name.clone(), role: holder.role.clone() });
        }
        let other = self.users.iter().find(|entry| same(entry) && entry.key != key && entry.is_valid(now));
        if let Some(other) = other
            && !replace
        {
            return Err(RegistryError::AnotherKey { name: name.to_owned(), key: other.key.clone() });
        }
        for entry in
            self.users.iter_mut().filter(|entry| same(entry) && entry.key != key && entry.is_valid(now))
        {
            revoke_entry(entry, now);
        }
        let revoked = self.users.iter().find(|entry| entry.key == key).and_then(|entry| entry.revoked);
        // A token issued in the second of the revocation would be revoked as well.
        let issued = revoked.map_or(now, |revoked| now.max(revoked + 1));
        let expires = valid.map(|valid| issued + valid);
        let entry = UserEntry {
            name: name.to_owned(),
            role: role.to_owned(),
            key: key.to_owned(),
            issued,
            expires,
            revoked,
        };
        match self.users.iter_mut().find(|known| known.key == key) {
            Some(known) => *known = entry.clone(),
            None => self.users.push(entry.clone()),
        }
        Ok(entry)
    }

    /// Revokes every key of a name; returns the entries after that. Repeating it changes nothing.
    ///
    /// # Errors
    /// No user of that name was enrolled.
    pub fn revoke_name(&mut self, name: &str, now: u64) -> Result<Vec<UserEntry>, RegistryError> {
        let revoked = self.revoke(|entry| entry.name == name, now);
        if revoked.is_empty() { Err(RegistryError::not_enrolled(name)) } else { Ok(revoked) }
    }

    /// Revokes one key; returns its entry after that. Repeating it changes nothing.
    ///
    /// # Errors
    /// The text is no key, or the key was never enrolled.
    pub fn revoke_key(&mut self, key: &str, now: u64) -> Result<Vec<UserEntry>, RegistryError> {
        // A name in place of a key must revoke nothing.
        check_key(key)?;
        let revoked = self.revoke(|entry| entry.key == key, now);
        if revoked.is_empty() { Err(RegistryError::not_enrolled(key)) } else { Ok(revoked) }
    }

    fn revoke(&mut self, is_meant: impl Fn(&UserEntry) -> bool, now: u64) -> Vec<UserEntry> {
        let revoked = self.users.iter_mut().filter(|entry| is_meant(entry)).map(|entry| {
            revoke_entry(entry, now);
            entry.clone()
        });
        revoked.collect()
    }

    /// The revocations for the account's token: each revoked key with the second up to which its tokens are revoked.
    ///
    /// They include keys that were enrolled again, because their older tokens stay revoked.
    pub fn revocations(&self) -> BTreeMap<String, u64> {
        self.users.iter().filter_map(|entry| Some((entry.key.clone(), entry.revoked?))).collect()
    }

    /// The time for the next signing of the account, later than the last one.
    pub fn next_signing(&mut self, now: u64) -> u64 {
        self.account_issued = now.max(self.account_issued + 1);
        self.account_issued
    }
}

/// Revokes every token issued so far, also one dated by a clock ahead of this one.
fn revoke_entry(entry: &mut UserEntry, now: u64) {
    if !entry.is_revoked() {
        entry.revoked = Some(now.max(entry.issued));
    }
}

fn check_key(key: &str) -> Result<(), RegistryError> {
    let user =
        KeyPair::from_public_key(key).is_ok_and(|pair| matches!(pair.key_pair_type(), KeyPairType::User));
    if user { Ok(()) } else { Err(RegistryError::not_a_key(key)) }
}

/// The text that an error may repeat: a person may give a seed by mistake, which must not be logged.
fn without_secrets(given: &str) -> String {
    if given.trim_start().starts_with('S') { "S…".to_owned() } else { given.chars().take(64).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> String {
        KeyPair::new_from_raw(KeyPairType::User, [byte; 32]).unwrap().public_key()
    }

    #[test]
    fn a_device_has_one_key_and_a_key_one_device() {
        let mut registry = UserRegistry::default();
        let before = registry.enroll("a/b", "device", &key(1), 100, Some(10), false).unwrap();
        assert_eq!(
            (before.issued, before.expires, before.is_valid(109), before.is_valid(110)),
            (100, Some(110), true, false)
        );
        assert!(matches!(
            registry.enroll("a/c", "device", &key(1), 101, None, true),
            Err(RegistryError::OthersKey { .. })
        ));
        let before_refusal = registry.clone();
        assert!(matches!(
            registry.enroll("a/b", "device", &key(2), 101, None, false),
            Err(RegistryError::AnotherKey { .. })
        ));
        assert_eq!(registry, before_refusal, "a refusal changes nothing");
        registry.enroll("a/b", "device", &key(2), 101, None, true).unwrap();
        assert_eq!(registry.revocations(), BTreeMap::from([(key(1), 101)]));
        // An expired key does not prevent the enrolment of another.
        let mut registry = before_refusal;
        registry.enroll("a/b", "device", &key(2), 110, None, false).unwrap();
        assert!(registry.revocations().is_empty());
    }

    #[test]
    fn a_revoked_key_is_valid_again_only_with_a_new_token() {
        let mut registry = UserRegistry::default();
        // The clock that issued it was ahead.
        registry.enroll("a/b", "device", &key(1), 200, None, false).unwrap();
        let revoked = registry.revoke_name("a/b", 150).unwrap();
        assert_eq!(
            (revoked[0].revoked, revoked[0].is_revoked(), revoked[0].is_valid(150)),
            (Some(200), true, false)
        );
        assert_eq!(registry.revoke_key(&key(1), 300).unwrap()[0].revoked, Some(200), "twice is once");
        let back = registry.enroll("a/b", "device", &key(1), 200, None, false).unwrap();
        assert_eq!((back.issued, back.is_valid(200)), (201, true));
        assert_eq!(registry.revocations(), BTreeMap::from([(key(1), 200)]), "the older token stays revoked");
    }

    #[test]
    fn unknown_users_and_malformed_keys_are_refused() {
        let mut registry = UserRegistry::default();
        assert!(matches!(registry.revoke_name("a/b", 1), Err(RegistryError::NotEnrolled(_))));
        assert!(matches!(registry.revoke_key(&key(1), 1), Err(RegistryError::NotEnrolled(_))));
        let account = KeyPair::new_from_raw(KeyPairType::Account, [1; 32]).unwrap().public_key();
        let seed = KeyPair::new_from_raw(KeyPairType::User, [1; 32]).unwrap().seed().unwrap();
        for bad in ["", "U", "*", &account, &key(1)[1..]] {
            assert!(
                matches!(
                    registry.enroll("a/b", "device", bad, 1, None, false),
                    Err(RegistryError::NotAKey(_))
                ),
                "{bad}"
            );
        }
        for refusal in [
            registry.enroll("a/b", "device", &seed, 1, None, false).unwrap_err(),
            registry.revoke_key(&seed, 1).unwrap_err(),
            registry.revoke_key(&format!(" {seed}"), 1).unwrap_err(),
            registry.revoke_name(&seed, 1).unwrap_err(),
        ] {
            let text = refusal.to_string();
            assert!(!text.contains(&seed[1..10]) && text.contains("S…"), "{text}");
        }
        assert_eq!(registry, UserRegistry::default());
    }

    #[test]
    fn a_name_does_not_count_as_a_key_nor_a_key_as_a_name() {
        let mut registry = UserRegistry::default();
        registry.enroll("ingest", "ingest", &key(1), 100, None, false).unwrap();
        let before_refusal = registry.clone();
        assert!(matches!(registry.revoke_key("ingest", 101), Err(RegistryError::NotAKey(_))));
        assert!(matches!(registry.revoke_name(&key(1), 101), Err(RegistryError::NotEnrolled(_))));
        assert_eq!(registry, before_refusal, "a refusal revokes nothing");
        assert!(registry.revoke_key(&key(1), 101).unwrap()[0].is_revoked());
    }

    #[test]
    fn every_signing_of_the_account_is_later_than_the_last() {
        let mut registry = UserRegistry::default();
        assert_eq!([5, 5, 3, 9].map(|now| registry.next_signing(now)), [5, 6, 7, 9]);
    }
}
