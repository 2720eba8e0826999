//! The devices that are not heard, in the order of their silence: never heard first, then by the second in which each was last heard.
//! Each fact that changes the silence of a device moves one entry. Retired devices have none.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use muster_contract::ids::DeviceKeyError;
use muster_contract::query::DeviceLine;
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, Timestamp};

use super::standing::DeviceContext;

/// The second in which a device was last heard; `None` before the first one.
pub(super) type LastHeardSecond = Option<i64>;

/// The place of a device in the order of silence, where a page may end: `SECOND/SITE/DEVICE` as text, `never/…` before the first
/// report.
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
    /// The place of a device that is not heard.
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

/// Numbers of devices by the second in which each was last heard.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SilenceOrder(BTreeSet<(LastHeardSecond, u32)>);

impl SilenceOrder {
    /// Adds a device that a fact has just named.
    pub(super) fn admit(&mut self, number: u32, context: &DeviceContext) {
        self.0.extend(place(context).map(|second| (second, number)));
    }

    /// Moves a device from its place before a fact to the one after it.
    pub(super) fn exchange(&mut self, number: u32, before: &DeviceContext, after: &DeviceContext) {
        let (was, is) = (place(before), place(after));
        if was == is {
            return;
        }
        if let Some(second) = was {
            self.0.remove(&(second, number));
        }
        self.0.extend(is.map(|second| (second, number)));
    }

    /// The numbers of the devices that were last heard in this second or later, the longest silence first; those of one second in no
    /// order that a reader may rely on.
    pub(super) fn since(&self, second: LastHeardSecond) -> impl Iterator<Item = (LastHeardSecond, u32)> {
        self.0.range((second, 0)..).copied()
    }
}

/// The place of a device; `None` if it is heard or retired.
fn place(context: &DeviceContext) -> Option<LastHeardSecond> {
    let is_listed = !context.retired && context.freshness != Freshness::Fresh;
    let heard_at = context.heard_at.filter(|_| context.freshness == Freshness::Stale);
    is_listed.then(|| heard_at.map(Timestamp::as_second))
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
