//! Whose token is to be signed anew, and whose ends before that was possible. Pure.

use muster_contract::DeviceKey;
use muster_identity::{Entry, Role};

/// A token is renewed once this part of its life is over: one half.
const RENEWED_AFTER: u64 = 2;
/// A token ends soon when this part of its life is left: a tenth.
const ENDS_WITHIN: u64 = 10;

const _: () = assert!(RENEWED_AFTER > 1 && ENDS_WITHIN > RENEWED_AFTER);

/// A device's token, as the roster has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The device.
    pub device: DeviceKey,
    /// Its public key.
    pub key: String,
    /// When it was issued: Unix seconds.
    pub issued: u64,
    /// When it ends.
    pub expires: u64,
}

impl Token {
    /// The token of an entry; none where it is no device's, was revoked, or does not end.
    pub fn of(entry: &Entry) -> Option<Self> {
        if entry.role != Role::Device.as_str() || entry.is_revoked() {
            return None;
        }
        let (device, expires) = (entry.name.parse().ok()?, entry.expires?);
        Some(Self { device, key: entry.key.clone(), issued: entry.issued, expires })
    }

    /// How long it counts as a whole, in seconds.
    pub const fn life(&self) -> u64 {
        self.expires.saturating_sub(self.issued)
    }

    /// Whether it is to be signed anew. One that has ended is not: its device cannot fetch another, and a person decides.
    pub const fn is_due(&self, now: u64) -> bool {
        now < self.expires && self.left(now) <= self.life() / RENEWED_AFTER
    }

    /// Whether a tenth of its life or less is left.
    pub const fn ends_soon(&self, now: u64) -> bool {
        self.left(now) <= self.life() / ENDS_WITHIN
    }

    const fn left(&self, now: u64) -> u64 {
        self.expires.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(role: &str, expires: Option<u64>, revoked: Option<u64>) -> Entry {
        let (name, key) = ("plant7/press-4".to_owned(), "UA".to_owned());
        Entry { name, role: role.to_owned(), key, issued: 1_000, expires, revoked }
    }

    #[test]
    fn a_token_is_renewed_at_half_its_life_and_ends_soon_within_a_tenth() {
        let token = Token::of(&entry("device", Some(2_000), None)).unwrap();
        let at = |now| (token.is_due(now), token.ends_soon(now));
        assert_eq!(at(1_499), (false, false));
        assert_eq!(at(1_500), (true, false));
        assert_eq!(at(1_899), (true, false));
        assert_eq!(at(1_900), (true, true));
        assert_eq!(at(2_000), (false, true), "a device whose token has ended cannot fetch another");
    }

    #[test]
    fn only_devices_that_are_in_have_a_token_to_renew() {
        assert!(Token::of(&entry("device", Some(2_000), None)).is_some());
        assert!(Token::of(&entry("device", Some(2_000), Some(999))).is_some(), "let in again since");
        assert_eq!(Token::of(&entry("device", Some(2_000), Some(1_000))), None, "revoked");
        assert_eq!(Token::of(&entry("device", None, None)), None, "does not end");
        assert_eq!(Token::of(&entry("operator", Some(2_000), None)), None, "a person");
    }
}
