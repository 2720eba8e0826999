//! The set of sequence numbers held of an epoch. Nearly always it is a prefix 1..=n, which needs no heap
//! memory; any other set is stored with its size, because counting it has a cost.

use muster_contract::SeqRanges;

/// A set of numbers from 1 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SeqSet {
    /// All up to this one; 0 where none is held.
    Through(u64),
    /// Any other set.
    Fragments(Box<Fragments>),
}

/// Numbers with a hole before some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fragments {
    set: SeqRanges,
    count: u64,
}

impl Default for SeqSet {
    fn default() -> Self {
        Self::NONE
    }
}

impl SeqSet {
    pub(super) const NONE: Self = Self::Through(0);

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Through(last) => *last,
            Self::Fragments(parts) => parts.count,
        }
    }

    /// The highest number; 0 where none is held.
    pub(super) fn last(&self) -> u64 {
        match self {
            Self::Through(last) => *last,
            Self::Fragments(parts) => parts.set.max().unwrap_or(0),
        }
    }

    /// Adds one number; false if it was held already.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        match self {
            Self::Through(last) if number <= *last => false,
            Self::Through(last) if number - 1 == *last => {
                *last = number;
                true
            }
            _ => self.extend(&SeqRanges::span(number, number)) == 1,
        }
    }

    /// Adds all of another set and says how many are new.
    pub(super) fn extend(&mut self, other: &SeqRanges) -> u64 {
        match self {
            Self::Through(last) => {
                let (count, mut set) = (*last, SeqRanges::span(1, *last));
                let new = set.extend(other);
                *self = Self::of(Fragments { set, count: count + new });
                new
            }
            Self::Fragments(parts) => {
                let new = parts.set.extend(other);
                parts.count += new;
                if let Some(last) = parts.whole() {
                    *self = Self::Through(last);
                }
                new
            }
        }
    }

    /// Into how many pieces they fall.
    pub(super) fn pieces(&self) -> usize {
        match self {
            Self::Through(last) => usize::from(*last > 0),
            Self::Fragments(parts) => parts.set.len(),
        }
    }

    /// The numbers of `from..=to` that are held.
    pub(super) fn within(&self, from: u64, to: u64) -> SeqRanges {
        match self {
            Self::Through(last) => SeqRanges::span(from.max(1), to.min(*last)),
            Self::Fragments(parts) => parts.set.within(from, to),
        }
    }

    /// The numbers of `from..=to` that are not held.
    pub(super) fn missing_within(&self, from: u64, to: u64) -> SeqRanges {
        match self {
            Self::Through(last) => {
                let next = last.checked_add(1);
                next.map_or_else(SeqRanges::new, |next| SeqRanges::span(from.max(next), to))
            }
            Self::Fragments(parts) => parts.set.missing_within(from, to),
        }
    }

    /// The whole set.
    pub(super) fn ranges(&self) -> SeqRanges {
        match self {
            Self::Through(last) => SeqRanges::span(1, *last),
            Self::Fragments(parts) => parts.set.clone(),
        }
    }

    fn of(parts: Fragments) -> Self {
        parts.whole().map_or_else(|| Self::Fragments(Box::new(parts)), Self::Through)
    }
}

impl Fragments {
    /// The highest number, where there are as many numbers: then there is no hole.
    fn whole(&self) -> Option<u64> {
        let last = self.set.max().unwrap_or(0);
        (last == self.count).then_some(last)
    }
}

impl From<SeqRanges> for SeqSet {
    fn from(set: SeqRanges) -> Self {
        let count = set.count();
        Self::of(Fragments { set, count })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_of_all_numbers_misses_none() {
        let mut held = SeqSet::Through(u64::MAX);
        assert!(held.missing_within(1, u64::MAX).is_empty() && !held.insert(u64::MAX));
        assert_eq!((held.count(), held.last()), (u64::MAX, u64::MAX));
    }

    proptest! {
        #[test]
        fn the_set_holds_exactly_the_inserted_numbers(
            spans in prop::collection::vec((1u64..40, 0u64..12), 0..30),
            (from, length) in (0u64..50, 0u64..30),
        ) {
            let (mut held, mut set) = (SeqSet::default(), SeqRanges::new());
            for (from, length) in spans {
                let span = SeqRanges::span(from, from + length);
                if length == 0 {
                    prop_assert_eq!(held.insert(from), set.insert(from));
                } else {
                    prop_assert_eq!(held.extend(&span), set.extend(&span));
                }
                prop_assert_eq!((held.count(), held.last()), (set.count(), set.max().unwrap_or(0)));
                prop_assert_eq!(&held.ranges(), &set);
                prop_assert_eq!(&held, &SeqSet::from(set.clone()), "one set has one form");
            }
            prop_assert_eq!(held.within(from, from + length), set.within(from, from + length));
            prop_assert_eq!(held.missing_within(from, from + length), set.missing_within(from, from + length));
        }
    }
}
