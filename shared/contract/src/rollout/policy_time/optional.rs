//! A time of a policy as its text, if there is one.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Writes a time, or null.
pub(in crate::rollout) fn serialize<S: Serializer>(
    time: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => super::serialize(time, to),
        None => to.serialize_none(),
    }
}

/// Reads a time, or null.
pub(in crate::rollout) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| super::parse(&text).map_err(serde::de::Error::custom)).transpose()
}
