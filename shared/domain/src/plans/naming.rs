//! Names that the planner makes: UUIDs of plans, instances and operations. They are digests of their cause, so two planners that
//! decide the same make the same names.

use std::fmt::Write as _;

use muster_contract::canonical::Digest;
use muster_contract::plans::OperationType;
use muster_contract::{InstanceName, OperationId, Timestamp};

/// Characters of the service's name in the name of an instance: with 32 digits and a hyphen it stays a DNS label.
const SERVICE_CHARS_MAX: usize = 30;
const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// A UUID (version 8) of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uuid([u8; 16]);

impl Uuid {
    /// The UUID of a cause. The parts are separated, so that no two causes read the same.
    pub(super) fn of(cause: &[&str]) -> Self {
        let digest = Digest::of_bytes(cause.join("\n").as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest.as_bytes()[..16]);
        bytes[6] = bytes[6] & 0x0f | 0x80;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }

    /// 32 hexadecimal digits.
    pub(super) fn digits(self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The usual form, with hyphens.
    pub(super) fn hyphenated(self) -> String {
        let digits = self.digits();
        [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
    }

    /// 22 characters of base64url.
    fn base64url(self) -> String {
        let bits = u128::from_be_bytes(self.0);
        let sextet = |at: u32| {
            let shifted = if at < 21 { bits >> (122 - 6 * at) } else { bits << 4 };
            char::from(BASE64URL[(shifted & 63) as usize])
        };
        (0..22).map(sextet).collect()
    }
}

/// The UUID of a plan that is made.
pub(super) fn plan_uid(name: &str, at: Timestamp, request_id: Option<&str>) -> String {
    Uuid::of(&["plan", name, &at.to_string(), request_id.unwrap_or_default()]).hyphenated()
}

/// The name and the name for people of the instance of a plan that a revision makes as its `number`th.
pub(super) fn instance(
    uid: &str,
    service: &str,
    revision: &str,
    number: u32,
) -> Option<(InstanceName, String)> {
    let uuid = Uuid::of(&["instance", uid, revision, &number.to_string()]);
    let label: String = service
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(SERVICE_CHARS_MAX)
        .collect();
    let label = label.trim_matches('-');
    let label = if label.is_empty() { "instance" } else { label };
    let name = format!("{label}-{}", uuid.digits()).parse().ok()?;
    Some((name, format!("{service}-{}", uuid.base64url())))
}

/// The id of an operation, by its instance, the instance's version and the cause.
pub(super) fn operation(
    operation_type: OperationType,
    instance: &InstanceName,
    version: u64,
    cause: &str,
) -> Option<OperationId> {
    let word = operation_type.as_str().to_ascii_lowercase();
    let uuid = Uuid::of(&["operation", &word, instance.as_str(), &version.to_string(), cause]);
    format!("{word}-{}", uuid.hyphenated()).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_for_people_and_a_dns_label_are_of_one_uuid() {
        let (name, display) = instance("u", "Line Dashboard", "r1", 0).unwrap();
        let (label, digits) = name.as_str().rsplit_once('-').unwrap();
        assert_eq!((label, digits.len()), ("line-dashboard", 32));
        let (service, base64) = display.split_at("Line Dashboard-".len());
        assert_eq!((service, base64.len()), ("Line Dashboard-", 22));
        let bits = base64.bytes().fold(0_u128, |bits, c| {
            let sextet = BASE64URL.iter().position(|known| *known == c).unwrap() as u128;
            bits.wrapping_shl(6) | sextet
        });
        let last = BASE64URL.iter().position(|known| Some(*known) == base64.bytes().last()).unwrap() as u128;
        let whole = (bits >> 6).wrapping_shl(2) | (last >> 4);
        assert_eq!(format!("{whole:032x}"), digits, "the same 128 bits");
    }

    #[test]
    fn any_service_gives_a_label() {
        for service in ["", "---", "Ünïcode 7", &"x".repeat(200)] {
            assert!(instance("u", service, "r", 1).is_some(), "{service}");
        }
        assert_ne!(instance("u", "a", "r", 1), instance("u", "a", "r", 2));
        assert_ne!(instance("u", "a", "r", 1), instance("u", "a", "s", 1));
    }
}
