//! Orders stale and never heard devices by their silence: never heard first, then by the second in which each was last heard.
//! Each fact that changes the silence of a device moves one entry. A retired device has no entry, and none has a device that is
//! stale only because the hub does not hear its partition.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};
use std::str::FromStr;

use muster_contract::ids::DeviceKeyError;
use muster_contract::query::DeviceLine;
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, Timestamp};

use super::standing::DeviceContext;

/// The second in which a device was last heard; `None` if it never was.
pub(super) type LastHeardSecond = Option<i64>;

/// The position of a device in the order of silence, at which a page may end. Its text is `SECOND/SITE/DEVICE`, or `never/SITE/DEVICE`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SilenceCursor {
    pub(super) second: LastHeardSecond,
    pub(super) device: DeviceKey,
}

/// Why a text is no [`SilenceCursor`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SilenceCursorError {
    /// It does not begin with a second.
    #[error("'{0}' must be SECOND/SITE/DEVICE or never/SITE/DEVICE")]
    Second(String),
    /// The device is none.
    #[error(transparent)]
    Device(#[from] DeviceKeyError),
}

impl SilenceCursor {
    /// The position of a stale or never heard device.
    pub fn of(line: &DeviceLine) -> Self {
        let heard_at = line.last_heard_at.filter(|_| line.freshness == Freshness::Stale);
        Self { second: heard_at.map(Timestamp::as_second), device: line.key.clone() }
    }
}

impl FromStr for SilenceCursor {
    type Err = SilenceCursorError;
    fn from_str(text: &str) -> Result<Self, SilenceCursorError> {
        let unreadable = || SilenceCursorError::Second(text.to_owned());
        let (second, device) = text.split_once('/').ok_or_else(unreadable)?;
        let second = match second {
            "never" => None,
            second => Some(second.parse().map_err(|_| unreadable())?),
        };
        Ok(Self { second, device: device.parse()? })
    }
}

impl fmt::Display for SilenceCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.second {
            None => write!(f, "never/{}", self.device),
            Some(second) => write!(f, "{second}/{}", self.device),
        }
    }
}

/// Stale and never heard devices by the second in which each was last heard, and by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SilenceOrder(BTreeSet<(LastHeardSecond, DeviceKey)>);

impl SilenceOrder {
    /// Adds a device that a fact has just named.
    pub(super) fn admit(&mut self, key: &DeviceKey, context: &DeviceContext) {
        self.0.extend(silence(context).map(|second| (second, key.clone())));
    }

    /// Moves a device by its silence before and after a fact. `key` is called only if these differ.
    pub(super) fn exchange(
        &mut self,
        key: impl FnOnce() -> DeviceKey,
        before: &DeviceContext,
        after: &DeviceContext,
    ) {
        let (was, is) = (silence(before), silence(after));
        if was == is {
            return;
        }
        let key = key();
        if let Some(second) = was {
            self.0.remove(&(second, key.clone()));
        }
        self.0.extend(is.map(|second| (second, key)));
    }

    /// The devices after a cursor, the longest silence first.
    pub(super) fn after(
        &self,
        cursor: Option<&SilenceCursor>,
    ) -> impl Iterator<Item = &(LastHeardSecond, DeviceKey)> {
        let from = cursor.map(|cursor| (cursor.second, cursor.device.clone()));
        self.0.range((from.map_or(Unbounded, Excluded), Unbounded))
    }
}

/// The second in which a stale or never heard device was last heard. `None` if it is fresh or retired, or if the hub does not hear its
/// partition: nothing is known of its silence then.
fn silence(context: &DeviceContext) -> Option<LastHeardSecond> {
    let is_silent = !context.retired && !context.is_masked && context.freshness != Freshness::Fresh;
    let heard_at = context.heard_at.filter(|_| context.freshness == Freshness::Stale);
    is_silent.then(|| heard_at.map(Timestamp::as_second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_the_text_that_it_was_read_from() {
        for text in ["never/plant7/press-1", "1764000000/plant7/press-1", "-1/a/b"] {
            assert_eq!(text.parse::<SilenceCursor>().unwrap().to_string(), text);
        }
        let order = ["never/z/z", "-1/a/b", "7/a/a", "7/a/b", "8/a/a"]
            .map(|text| text.parse::<SilenceCursor>().unwrap());
        assert!(order.is_sorted());
        for text in ["plant7/press-1", "never", "soon/plant7/press-1", "never/plant7"] {
            assert!(text.parse::<SilenceCursor>().is_err(), "{text}");
        }
    }
}
