//! A duration as its text in a document: `8m30s`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serializer};

use crate::profile::parse_duration;

pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    let text = SignedDuration::try_from(*time).map_err(serde::ser::Error::custom)?;
    to.collect_str(&format_args!("{text:#}"))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map_err(serde::de::Error::custom)
}
