//! Packs timestamps for rows of a large fleet: nine bytes instead of sixteen without loss, or five to the
//! second.

use muster_contract::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of the seconds: 40 bits hold every year from -9999 to 9999.
const SECONDS: usize = 5;
/// Bytes of the nanoseconds within the second.
const NANOS: usize = 4;

/// A time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedTimestamp {
    second: PackedSeconds,
    nanos: [u8; NANOS],
}

/// A time without the part of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedSeconds([u8; SECONDS]);

impl PackedTimestamp {
    /// The unpacked timestamp.
    pub(super) fn get(self) -> Timestamp {
        Timestamp::new(self.second.seconds(), i32::from_le_bytes(self.nanos)).unwrap_or_default()
    }
}

impl PackedSeconds {
    /// The unpacked timestamp.
    pub(super) fn get(self) -> Timestamp {
        Timestamp::from_second(self.seconds()).unwrap_or_default()
    }

    fn seconds(self) -> i64 {
        let [a, b, c, d, e] = self.0;
        // The sign is the highest bit of the five bytes: shifted up and down again it fills the three above.
        i64::from_le_bytes([0, 0, 0, a, b, c, d, e]) >> 24
    }
}

impl From<Timestamp> for PackedTimestamp {
    fn from(at: Timestamp) -> Self {
        Self { second: at.into(), nanos: at.subsec_nanosecond().to_le_bytes() }
    }
}

impl From<Timestamp> for PackedSeconds {
    fn from(at: Timestamp) -> Self {
        let [a, b, c, d, e, ..] = at.as_second().to_le_bytes();
        Self([a, b, c, d, e])
    }
}

impl Serialize for PackedTimestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PackedTimestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_and_the_last_time_there_are_come_back() {
        for at in [Timestamp::MIN, Timestamp::MAX, Timestamp::UNIX_EPOCH] {
            assert_eq!(PackedTimestamp::from(at).get(), at);
        }
    }

    proptest! {
        #[test]
        fn any_time_comes_back_as_it_was(
            seconds in Timestamp::MIN.as_second() + 1..Timestamp::MAX.as_second(),
            nanos in -999_999_999..=999_999_999i32,
        ) {
            let at = Timestamp::new(seconds, nanos).unwrap();
            prop_assert_eq!(PackedTimestamp::from(at).get(), at);
            prop_assert_eq!(PackedSeconds::from(at).get().as_second(), at.as_second());
        }
    }
}
