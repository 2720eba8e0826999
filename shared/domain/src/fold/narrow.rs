//! Numbers as rows of a large fleet keep them: in as many bytes as they can have, and between others without a gap.

use muster_contract::limits::COUNTER_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where LEDGER holds a fact; 0 for none. 281 million million facts are 89 years of a hundred thousand a second.
pub(super) type Place = Narrow<6>;
/// A number of the contract that counts from 1; 0 for none.
pub(super) type Count = Narrow<7>;

const _: () = assert!(COUNTER_MAX <= Count::MAX);

/// A number of at most so many bytes. A larger one is the largest there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Narrow<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Narrow<BYTES> {
    pub(super) const ZERO: Self = Self([0; BYTES]);
    const MAX: u64 = (1 << (8 * BYTES)) - 1;

    pub(super) fn get(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..BYTES].copy_from_slice(&self.0);
        u64::from_le_bytes(bytes)
    }
}

impl<const BYTES: usize> From<u64> for Narrow<BYTES> {
    fn from(number: u64) -> Self {
        let mut narrow = [0; BYTES];
        narrow.copy_from_slice(&number.min(Self::MAX).to_le_bytes()[..BYTES]);
        Self(narrow)
    }
}

impl<const BYTES: usize> Default for Narrow<BYTES> {
    fn default() -> Self {
        Self::ZERO
    }
}

impl<const BYTES: usize> Serialize for Narrow<BYTES> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}

impl<'de, const BYTES: usize> Deserialize<'de> for Narrow<BYTES> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_too_large_is_the_largest_there_is() {
        assert_eq!(Place::from(u64::MAX).get(), Place::MAX);
        assert_eq!(Count::from(u64::MAX).get(), Count::MAX);
        assert_eq!((Place::default().get(), Count::ZERO.get()), (0, 0));
    }

    proptest! {
        #[test]
        fn any_number_that_fits_comes_back_as_it_was_and_is_written_as_a_number(
            place in 0..=Place::MAX,
            count in 0..=COUNTER_MAX,
        ) {
            prop_assert_eq!((Place::from(place).get(), Count::from(count).get()), (place, count));
            let text = serde_json::to_string(&Place::from(place)).unwrap();
            prop_assert_eq!(&text, &place.to_string());
            prop_assert_eq!(serde_json::from_str::<Place>(&text).unwrap().get(), place);
        }
    }
}
