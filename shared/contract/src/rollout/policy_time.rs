//! A time of a policy as its text in a document: `30m`, `8h`, `7d`.

pub(super) mod optional;

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serializer};

/// Longest time of a policy.
const POLICY_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A time of a policy from its text.
fn parse(text: &str) -> Result<Duration, String> {
    let parsed = || text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    days(text)
        .or_else(parsed)
        .filter(|time| !time.is_zero() && *time <= POLICY_TIME_MAX)
        .ok_or_else(|| format!("'{text}' is not a time above 0 and up to 720h, as in 30m, 8h or 7d"))
}

/// A number of days, of 24 hours each: 7d.
fn days(text: &str) -> Option<Duration> {
    let digits = text.strip_suffix('d').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse::<u64>().ok()?.checked_mul(24 * 60 * 60).map(Duration::from_secs)
}

fn text(time: Duration) -> Result<String, jiff::Error> {
    SignedDuration::try_from(time).map(|time| format!("{time:#}"))
}

/// Writes a time.
pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(*time).map_err(serde::ser::Error::custom)?)
}

/// Reads a time.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}
