//! Decides which tokens are due for renewal, and which tokens and credentials expire soon. Pure.

use muster_contract::DeviceKey;
use muster_contract::limits::ENDS_SOON_PARTS;
use muster_identity::{Role, UserEntry};

/// A token is due once at most this part of its lifetime is left: one half.
const DUE_WITHIN: u64 = 2;

/// Credentials with a shorter lifetime were made for one task: nobody waits for their renewal.
const TASK_LIFETIME: u64 = 24 * 60 * 60;

const _: () = assert!(DUE_WITHIN > 1 && ENDS_SOON_PARTS > DUE_WITHIN);

/// A device's token, as the registry records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// The device.
    pub device: DeviceKey,
    /// Its public key.
    pub key: String,
    /// When it was issued: Unix seconds.
    pub issued: u64,
    /// When it expires: Unix seconds.
    pub expires: u64,
}

impl Token {
    /// The token of an entry; `None` if the entry is no device's, is revoked, or its token does not expire.
    pub(crate) fn of(entry: &UserEntry) -> Option<Self> {
        if entry.role != Role::Device.as_str() || entry.is_revoked() {
            return None;
        }
        let (device, expires) = (entry.name.parse().ok()?, entry.expires?);
        Some(Self { device, key: entry.key.clone(), issued: entry.issued, expires })
    }

    /// Its lifetime, in seconds.
    pub(crate) const fn lifetime(&self) -> u64 {
        self.expires.saturating_sub(self.issued)
    }

    /// Whether it is due for renewal. An expired token is not: its device cannot fetch another one, so a person must act.
    pub(crate) const fn is_due(&self, now: u64) -> bool {
        now < self.expires && self.left(now) <= self.lifetime() / DUE_WITHIN
    }

    /// Whether a tenth of its lifetime or less is left, or it is expired.
    pub(crate) const fn ends_soon(&self, now: u64) -> bool {
        self.left(now) <= self.lifetime() / ENDS_SOON_PARTS
    }

    const fn left(&self, now: u64) -> u64 {
        self.expires.saturating_sub(now)
    }
}

/// The role of credentials that a person must renew soon, because the renewer renews devices' tokens only: a tenth of their
/// lifetime or less is left. Credentials that are revoked, expired or made for one task are left out.
pub(crate) fn role_ending(entry: &UserEntry, now: u64) -> Option<Role> {
    let role = Role::ALL.into_iter().find(|role| role.as_str() == entry.role)?;
    let expires = entry.expires.filter(|expires| now < *expires && !entry.is_revoked())?;
    let lifetime = expires.saturating_sub(entry.issued);
    let ends_soon = expires - now <= lifetime / ENDS_SOON_PARTS;
    (role != Role::Device && ends_soon && lifetime >= TASK_LIFETIME).then_some(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(role: &str, expires: Option<u64>, revoked: Option<u64>) -> UserEntry {
        let (name, key) = ("plant7/press-4".to_owned(), "UA".to_owned());
        UserEntry { name, role: role.to_owned(), key, issued: 1_000, expires, revoked }
    }

    #[test]
    fn a_token_is_due_at_half_its_lifetime_and_ends_soon_within_a_tenth() {
        let token = Token::of(&entry("device", Some(2_000), None)).unwrap();
        let at = |now| (token.is_due(now), token.ends_soon(now));
        assert_eq!(at(1_499), (false, false));
        assert_eq!(at(1_500), (true, false));
        assert_eq!(at(1_899), (true, false));
        assert_eq!(at(1_900), (true, true));
        assert_eq!(at(2_000), (false, true), "a device with an expired token cannot fetch another");
    }

    #[test]
    fn only_enrolled_devices_have_a_token_to_renew() {
        assert!(Token::of(&entry("device", Some(2_000), None)).is_some());
        assert!(Token::of(&entry("device", Some(2_000), Some(999))).is_some(), "enrolled again since");
        assert_eq!(Token::of(&entry("device", Some(2_000), Some(1_000))), None, "revoked");
        assert_eq!(Token::of(&entry("device", None, None)), None, "does not expire");
        assert_eq!(Token::of(&entry("operator", Some(2_000), None)), None, "a person");
    }

    #[test]
    fn credentials_of_people_and_services_end_soon_until_they_are_over() {
        let day = TASK_LIFETIME;
        let role = |entry: &UserEntry, now| role_ending(entry, now);
        let viewer = entry("viewer", Some(1_000 + 10 * day), None);
        assert_eq!(role(&viewer, 1_000 + 9 * day - 1), None);
        assert_eq!(role(&viewer, 1_000 + 9 * day), Some(Role::Viewer));
        assert_eq!(role(&viewer, 1_000 + 10 * day), None, "over");
        let revoked = entry("viewer", Some(1_000 + 10 * day), Some(1_000));
        assert_eq!(role(&revoked, 1_000 + 9 * day), None);
        let for_a_task = entry("maintainer", Some(1_000 + day - 1), None);
        assert_eq!(role(&for_a_task, 1_000 + day - 2), None);
        assert_eq!(role(&entry("device", Some(1_000 + 10 * day), None), 1_000 + 9 * day), None);
        assert_eq!(role(&entry("operator", None, None), u64::MAX), None, "does not expire");
    }
}
