//! A duration as its text in a document: `8m30s`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serializer};

/// Longest duration a document may ask for.
pub const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses `8m30s`, `500ms`, `1h`.
///
/// # Errors
/// The duration of a text such as `30s`; the error names the text and an example.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|signed| Duration::try_from(signed).ok())
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| format!("'{text}' is not a duration of 0 to 24 h, as in 500ms, 90s or 8m30s"))
}

pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    let text = SignedDuration::try_from(*time).map_err(serde::ser::Error::custom)?;
    to.collect_str(&format_args!("{text:#}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map_err(serde::de::Error::custom)
}
