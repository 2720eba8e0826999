//! Whom an operator let in, until when, and whom it put out. The account's revocations follow from it.
//!
//! The rules are here: one key is one user; a device has one key that is in, and a new one takes its place only when
//! that is asked for; a token issued after its key was put out counts again.

use std::collections::BTreeMap;

use nkeys::{KeyPair, KeyPairType};
use serde::{Deserialize, Serialize};

/// Everybody who ever was let in, in the order of the first time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Roster {
    /// The entries, one a key.
    pub users: Vec<Entry>,
    /// When the account was last signed: Unix seconds. A server keeps the newest, so each signing is later.
    pub account_issued: u64,
}

/// A key that was let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// `SITE/DEVICE` of a device; a name of the operator's choice otherwise.
    pub name: String,
    /// Its role's name.
    pub role: String,
    /// Its public key.
    pub key: String,
    /// When its last token was issued: Unix seconds.
    pub issued: u64,
    /// When that ends; never if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Up to when its tokens are out, if it was ever put out: Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

/// Why somebody is not let in, or not put out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// Not a public key of a user.
    #[error(
        "'{0}' is not the public key of a user: it begins with U and has 56 letters and digits; `muster-agent key` prints a device's"
    )]
    NotAKey(String),
    /// The key is somebody else's.
    #[error("this key is that of {holder} ({role}): every device makes its own with `muster-agent key`")]
    OthersKey {
        /// Whose.
        holder: String,
        /// Its role.
        role: String,
    },
    /// There is another key that is in.
    #[error("{name} is in with another key ({key}): `--replace` puts that one out and lets the new one in")]
    AnotherKey {
        /// Who.
        name: String,
        /// The key that is in.
        key: String,
    },
    /// Nobody is there to be put out.
    #[error("{0} was never let in; `muster auth list` names those who were")]
    Nobody(String),
}

impl RosterError {
    fn not_a_key(given: &str) -> Self {
        Self::NotAKey(fit_for_a_log(given))
    }

    fn nobody(given: &str) -> Self {
        Self::Nobody(fit_for_a_log(given))
    }
}

impl Entry {
    /// Whether its last token counts at a time.
    pub fn is_in(&self, now: u64) -> bool {
        !self.is_revoked() && self.expires.is_none_or(|expires| now < expires)
    }

    /// Whether its last token was put out.
    pub fn is_revoked(&self) -> bool {
        self.revoked.is_some_and(|revoked| self.issued <= revoked)
    }
}

impl Roster {
    /// Lets a key in, or in again; the entry says from and until when its token is to count. With `replace`, any other
    /// key of the same name is put out.
    ///
    /// # Errors
    /// The key is none, is somebody else's, or takes the place of another without `replace`. Nothing is changed then.
    pub fn admit(
        &mut self,
        name: &str,
        role: &str,
        key: &str,
        (now, valid): (u64, Option<u64>),
        replace: bool,
    ) -> Result<Entry, RosterError> {
        check_key(key)?;
        let same = |entry: &Entry| entry.name == name && entry.role == role;
        if let Some(holder) = self.users.iter().find(|entry| entry.key == key && !same(entry)) {
            return Err(RosterError::OthersKey { holder: holder.name.clone(), role: holder.role.clone() });
        }
        let other = self.users.iter().find(|entry| same(entry) && entry.key != key && entry.is_in(now));
        if let Some(other) = other
            && !replace
        {
            return Err(RosterError::AnotherKey { name: name.to_owned(), key: other.key.clone() });
        }
        for entry in self.users.iter_mut().filter(|entry| same(entry) && entry.key != key && entry.is_in(now))
        {
            put_out(entry, now);
        }
        let revoked = self.users.iter().find(|entry| entry.key == key).and_then(|entry| entry.revoked);
        // A token of the second in which its key was put out would be out as well.
        let issued = revoked.map_or(now, |revoked| now.max(revoked + 1));
        let expires = valid.map(|valid| issued + valid);
        let entry = Entry {
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

    /// Puts out every key of a name; the entries as they are then. Doing it twice changes nothing.
    ///
    /// # Errors
    /// There is no such name.
    pub fn revoke_name(&mut self, name: &str, now: u64) -> Result<Vec<Entry>, RosterError> {
        let out = self.revoke(|entry| entry.name == name, now);
        if out.is_empty() { Err(RosterError::nobody(name)) } else { Ok(out) }
    }

    /// Puts out one key, whoever has it; its entry as it is then. Doing it twice changes nothing.
    ///
    /// # Errors
    /// It is no key, or was never let in.
    pub fn revoke_key(&mut self, key: &str, now: u64) -> Result<Vec<Entry>, RosterError> {
        // A name that stands where a key is expected must put nobody out.
        check_key(key)?;
        let out = self.revoke(|entry| entry.key == key, now);
        if out.is_empty() { Err(RosterError::nobody(key)) } else { Ok(out) }
    }

    fn revoke(&mut self, whom: impl Fn(&Entry) -> bool, now: u64) -> Vec<Entry> {
        let out = self.users.iter_mut().filter(|entry| whom(entry)).map(|entry| {
            put_out(entry, now);
            entry.clone()
        });
        out.collect()
    }

    /// The keys that are out, each with the second up to which its tokens are: for the account.
    ///
    /// Also of keys that are in again: an older token of theirs stays out.
    pub fn revocations(&self) -> BTreeMap<String, u64> {
        self.users.iter().filter_map(|entry| Some((entry.key.clone(), entry.revoked?))).collect()
    }

    /// The time at which the account is to be signed next; later than the last.
    pub fn next_signing(&mut self, now: u64) -> u64 {
        self.account_issued = now.max(self.account_issued + 1);
        self.account_issued
    }
}

/// Every token issued so far is out, also one that a clock ahead of this one dated.
fn put_out(entry: &mut Entry, now: u64) {
    if !entry.is_revoked() {
        entry.revoked = Some(now.max(entry.issued));
    }
}

fn check_key(key: &str) -> Result<(), RosterError> {
    let user =
        KeyPair::from_public_key(key).is_ok_and(|pair| matches!(pair.key_pair_type(), KeyPairType::User));
    if user { Ok(()) } else { Err(RosterError::not_a_key(key)) }
}

/// What was given, as an error may repeat it: somebody may give a seed by mistake, which must not get into a log too.
fn fit_for_a_log(given: &str) -> String {
    match given.trim_start().starts_with('S') {
        true => "S…".to_owned(),
        false => given.chars().take(64).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> String {
        KeyPair::new_from_raw(KeyPairType::User, [byte; 32]).unwrap().public_key()
    }

    #[test]
    fn a_device_has_one_key_and_a_key_one_device() {
        let mut roster = Roster::default();
        let before = roster.admit("a/b", "device", &key(1), (100, Some(10)), false).unwrap();
        assert_eq!(
            (before.issued, before.expires, before.is_in(109), before.is_in(110)),
            (100, Some(110), true, false)
        );
        assert!(matches!(
            roster.admit("a/c", "device", &key(1), (101, None), true),
            Err(RosterError::OthersKey { .. })
        ));
        let held = roster.clone();
        assert!(matches!(
            roster.admit("a/b", "device", &key(2), (101, None), false),
            Err(RosterError::AnotherKey { .. })
        ));
        assert_eq!(roster, held, "a refusal changes nothing");
        roster.admit("a/b", "device", &key(2), (101, None), true).unwrap();
        assert_eq!(roster.revocations(), BTreeMap::from([(key(1), 101)]));
        // One that has expired is in nobody's way.
        let mut roster = held;
        roster.admit("a/b", "device", &key(2), (110, None), false).unwrap();
        assert!(roster.revocations().is_empty());
    }

    #[test]
    fn what_is_put_out_comes_back_only_with_a_new_token() {
        let mut roster = Roster::default();
        // Its clock was ahead of ours.
        roster.admit("a/b", "device", &key(1), (200, None), false).unwrap();
        let out = roster.revoke_name("a/b", 150).unwrap();
        assert_eq!((out[0].revoked, out[0].is_revoked(), out[0].is_in(150)), (Some(200), true, false));
        assert_eq!(roster.revoke_key(&key(1), 300).unwrap()[0].revoked, Some(200), "twice is once");
        let back = roster.admit("a/b", "device", &key(1), (200, None), false).unwrap();
        assert_eq!((back.issued, back.is_in(200)), (201, true));
        assert_eq!(roster.revocations(), BTreeMap::from([(key(1), 200)]), "the older token stays out");
    }

    #[test]
    fn nobody_and_no_key_are_refused() {
        let mut roster = Roster::default();
        assert!(matches!(roster.revoke_name("a/b", 1), Err(RosterError::Nobody(_))));
        assert!(matches!(roster.revoke_key(&key(1), 1), Err(RosterError::Nobody(_))));
        let account = KeyPair::new_from_raw(KeyPairType::Account, [1; 32]).unwrap().public_key();
        let seed = KeyPair::new_from_raw(KeyPairType::User, [1; 32]).unwrap().seed().unwrap();
        for bad in ["", "U", "*", &account, &key(1)[1..]] {
            assert!(
                matches!(roster.admit("a/b", "device", bad, (1, None), false), Err(RosterError::NotAKey(_))),
                "{bad}"
            );
        }
        for refusal in [
            roster.admit("a/b", "device", &seed, (1, None), false).unwrap_err(),
            roster.revoke_key(&seed, 1).unwrap_err(),
            roster.revoke_key(&format!(" {seed}"), 1).unwrap_err(),
            roster.revoke_name(&seed, 1).unwrap_err(),
        ] {
            let said = refusal.to_string();
            assert!(!said.contains(&seed[1..10]) && said.contains("S…"), "{said}");
        }
        assert_eq!(roster, Roster::default());
    }

    #[test]
    fn a_name_is_no_key_and_a_key_no_name() {
        let mut roster = Roster::default();
        roster.admit("ingest", "ingest", &key(1), (100, None), false).unwrap();
        let held = roster.clone();
        assert!(matches!(roster.revoke_key("ingest", 101), Err(RosterError::NotAKey(_))));
        assert!(matches!(roster.revoke_name(&key(1), 101), Err(RosterError::Nobody(_))));
        assert_eq!(roster, held, "a refusal puts nobody out");
        assert!(roster.revoke_key(&key(1), 101).unwrap()[0].is_revoked());
    }

    #[test]
    fn every_signing_of_the_account_is_later_than_the_last() {
        let mut roster = Roster::default();
        assert_eq!([5, 5, 3, 9].map(|now| roster.next_signing(now)), [5, 6, 7, 9]);
    }
}
