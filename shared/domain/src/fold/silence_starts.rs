//! Tracks when the silent devices of the fleet were last heard, so that the oldest silence is known without a search.
//! Each fact that changes the silence of a device updates one entry.
//!
//! Times are kept to the second: devices that fall silent together share an entry.

use std::collections::BTreeMap;

use muster_contract::Timestamp;

use super::delta::Delta;

/// Silent devices by the second in which each was last heard.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SilenceStarts(BTreeMap<i64, u32>);

impl SilenceStarts {
    /// Replaces the start of one device's silence; none while it is not silent.
    pub(super) fn exchange(&mut self, was: Option<Timestamp>, is: Option<Timestamp>) {
        if was != is {
            self.apply(Delta::Retract, was);
            self.apply(Delta::Add, is);
        }
    }

    /// The oldest start.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let (second, _) = self.0.first_key_value()?;
        Timestamp::from_second(*second).ok()
    }

    fn apply(&mut self, delta: Delta, start: Option<Timestamp>) {
        let Some(second) = start.map(Timestamp::as_second) else { return };
        let devices = self.0.entry(second).or_default();
        delta.apply(devices, 1);
        if *devices == 0 {
            self.0.remove(&second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_start_holds_until_its_last_device_is_heard() {
        let at = |second| Timestamp::from_second(second).ok();
        let mut starts = SilenceStarts::default();
        for second in [9, 5, 5] {
            starts.exchange(None, at(second));
        }
        starts.exchange(at(5), None);
        assert_eq!(starts.oldest(), at(5), "another device has the same start");
        starts.exchange(at(5), at(7));
        assert_eq!(starts.oldest(), at(7));
        starts.exchange(at(7), None);
        starts.exchange(at(9), None);
        assert_eq!(starts, SilenceStarts::default());
    }
}
