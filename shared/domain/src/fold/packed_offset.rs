//! Packs integers for rows of a large fleet: in as many bytes as they need, without padding.

use muster_contract::limits::COUNTER_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The LEDGER sequence of a fact; 0 for none. 281 million million facts are 89 years at a hundred thousand a
/// second.
pub(super) type PackedOffset = PackedInteger<6>;
/// A number of the contract that counts from 1; 0 for none.
pub(super) type PackedCounter = PackedInteger<7>;

const _: () = assert!(COUNTER_MAX <= PackedCounter::MAX);

/// An integer of at most so many bytes. A larger one saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedInteger<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> PackedInteger<BYTES> {
    pub(super) const ZERO: Self = Self([0; BYTES]);
    const MAX: u64 = (1 << (8 * BYTES)) - 1;

    pub(super) fn get(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..BYTES].copy_from_slice(&self.0);
        u64::from_le_bytes(bytes)
    }
}

impl<const BYTES: usize> From<u64> for PackedInteger<BYTES> {
    fn from(number: u64) -> Self {
        let mut narrow = [0; BYTES];
        narrow.copy_from_slice(&number.min(Self::MAX).to_le_bytes()[..BYTES]);
        Self(narrow)
    }
}

impl<const BYTES: usize> Default for PackedInteger<BYTES> {
    fn default() -> Self {
        Self::ZERO
    }
}

impl<const BYTES: usize> Serialize for PackedInteger<BYTES> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}

impl<'de, const BYTES: usize> Deserialize<'de> for PackedInteger<BYTES> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_that_is_too_large_saturates() {
        assert_eq!(PackedOffset::from(u64::MAX).get(), PackedOffset::MAX);
        assert_eq!(PackedCounter::from(u64::MAX).get(), PackedCounter::MAX);
        assert_eq!((PackedOffset::default().get(), PackedCounter::ZERO.get()), (0, 0));
    }

    proptest! {
        #[test]
        fn any_number_that_fits_round_trips_and_serializes_as_a_number(
            place in 0..=PackedOffset::MAX,
            count in 0..=COUNTER_MAX,
        ) {
            prop_assert_eq!((PackedOffset::from(place).get(), PackedCounter::from(count).get()), (place, count));
            let text = serde_json::to_string(&PackedOffset::from(place)).unwrap();
            prop_assert_eq!(&text, &place.to_string());
            prop_assert_eq!(serde_json::from_str::<PackedOffset>(&text).unwrap().get(), place);
        }
    }
}
