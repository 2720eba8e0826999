//! Sets of sequence numbers as ordered, disjoint, closed ranges: `[[1,3],[7,7]]` on the wire.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::COUNTER_MAX;

/// A set of sequence numbers (from 1 on). Its ranges are sorted, do not overlap and do not touch.
#[derive(Clone, Default)]
pub struct SeqRanges(Ranges);

/// Most sets are one range for all their life: it takes no memory of its own. A list may have any length.
#[derive(Clone)]
enum Ranges {
    One((u64, u64)),
    List(Vec<(u64, u64)>),
}

/// Why a list is not a set of ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "[{from},{to}] is not a range: both ends count from 1 to {COUNTER_MAX}, the first is not above the second, and ranges ascend without overlap"
)]
pub struct RangeError {
    /// Its first number.
    pub from: u64,
    /// Its last number.
    pub to: u64,
}

impl Default for Ranges {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl SeqRanges {
    /// The empty set.
    pub const fn new() -> Self {
        Self(Ranges::List(Vec::new()))
    }

    fn list(&self) -> &[(u64, u64)] {
        match &self.0 {
            Ranges::One(range) => std::slice::from_ref(range),
            Ranges::List(list) => list,
        }
    }

    /// Changes the ranges as a list.
    fn change(&mut self, change: impl FnOnce(&mut Vec<(u64, u64)>)) {
        let mut list = match std::mem::take(&mut self.0) {
            Ranges::One(range) => vec![range],
            Ranges::List(list) => list,
        };
        change(&mut list);
        *self = Self::of(list);
    }

    fn of(list: Vec<(u64, u64)>) -> Self {
        Self(match list[..] {
            [range] => Ranges::One(range),
            _ => Ranges::List(list),
        })
    }

    /// The set `from..=to`; empty where `from` is above `to`.
    pub fn span(from: u64, to: u64) -> Self {
        if from <= to && from > 0 { Self(Ranges::One((from, to))) } else { Self::new() }
    }

    /// True where nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// How many numbers are in it.
    pub fn count(&self) -> u64 {
        self.list().iter().map(|(from, to)| to - from + 1).sum()
    }

    /// The highest number.
    pub fn max(&self) -> Option<u64> {
        self.list().last().map(|range| range.1)
    }

    /// The lowest number.
    pub fn min(&self) -> Option<u64> {
        self.list().first().map(|range| range.0)
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.list().iter().copied()
    }

    /// How many ranges.
    pub fn len(&self) -> usize {
        self.list().len()
    }

    /// True where the number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let after = self.list().partition_point(|range| range.0 <= number);
        after > 0 && self.list()[after - 1].1 >= number
    }

    /// Adds one number; false where it was in already.
    pub fn insert(&mut self, number: u64) -> bool {
        self.insert_span(number, number) == 1
    }

    /// Adds `from..=to` and says how many of them are new.
    pub fn insert_span(&mut self, from: u64, to: u64) -> u64 {
        if from > to || from == 0 {
            return 0;
        }
        // The ranges that overlap the new one or touch it are first..last.
        let list = self.list();
        let first = list.partition_point(|range| range.1.saturating_add(1) < from);
        let last = list.partition_point(|range| range.0 <= to.saturating_add(1));
        let touched = &list[first..last];
        let new = to - from + 1 - touched.iter().map(|&range| overlap(range, (from, to))).sum::<u64>();
        let low = touched.first().map_or(from, |range| range.0.min(from));
        let high = touched.last().map_or(to, |range| range.1.max(to));
        if list.len() == touched.len() {
            self.0 = Ranges::One((low, high));
        } else {
            self.change(|list| drop(list.splice(first..last, [(low, high)])));
        }
        new
    }

    /// Adds all of another set and says how many are new.
    pub fn extend(&mut self, other: &Self) -> u64 {
        other.iter().map(|(from, to)| self.insert_span(from, to)).sum()
    }

    /// Takes `from..=to` out and says how many of them were in.
    pub fn remove_span(&mut self, from: u64, to: u64) -> u64 {
        if from > to || from == 0 || self.is_empty() {
            return 0;
        }
        let (first, last) = self.overlapping(from, to);
        let touched = &self.list()[first..last];
        let removed = touched.iter().map(|&range| overlap(range, (from, to))).sum();
        let below = touched.first().filter(|range| range.0 < from).map(|range| (range.0, from - 1));
        let above = touched.last().filter(|range| range.1 > to).map(|range| (to + 1, range.1));
        if removed > 0 {
            self.change(|list| drop(list.splice(first..last, below.into_iter().chain(above))));
        }
        removed
    }

    /// The numbers of `from..=to` that are in the set.
    pub fn within(&self, from: u64, to: u64) -> Self {
        let (first, last) = self.overlapping(from, to);
        Self::of(self.list()[first..last].iter().map(|&(low, high)| (low.max(from), high.min(to))).collect())
    }

    /// The highest number up to `through` that is in the set.
    pub fn max_through(&self, through: u64) -> Option<u64> {
        let after = self.list().partition_point(|range| range.0 <= through);
        (after > 0).then(|| self.list()[after - 1].1.min(through))
    }

    /// How many numbers up to `through` are in the set.
    pub fn count_through(&self, through: u64) -> u64 {
        self.list().iter().map(|&range| overlap(range, (1, through))).sum()
    }

    /// The numbers of `1..=through` that are not in the set.
    pub fn missing(&self, through: u64) -> Self {
        self.missing_within(1, through)
    }

    /// The numbers of `from..=to` that are not in the set. `from` counts from 1.
    pub fn missing_within(&self, from: u64, to: u64) -> Self {
        let mut holes = Vec::new();
        let mut next = from.max(1);
        let (first, last) = self.overlapping(from, to);
        for &(low, high) in &self.list()[first..last] {
            if low > next {
                holes.push((next, low - 1));
            }
            match high.checked_add(1) {
                Some(above) => next = above,
                None => return Self::of(holes),
            }
        }
        if next <= to {
            holes.push((next, to));
        }
        Self::of(holes)
    }

    /// Which of the ranges share a number with `from..=to`: an index range that is empty where none does.
    fn overlapping(&self, from: u64, to: u64) -> (usize, usize) {
        let first = self.list().partition_point(|range| range.1 < from);
        let last = self.list().partition_point(|range| range.0 <= to);
        (first, last.max(first))
    }

    /// The set without its numbers above `max_ranges` ranges: the lowest are kept.
    pub fn truncated(mut self, max_ranges: usize) -> Self {
        if self.len() > max_ranges {
            self.change(|list| list.truncate(max_ranges));
        }
        self
    }
}

impl fmt::Debug for SeqRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeqRanges").field(&self.list()).finish()
    }
}

impl PartialEq for SeqRanges {
    fn eq(&self, other: &Self) -> bool {
        self.list() == other.list()
    }
}

impl Eq for SeqRanges {}

impl Hash for SeqRanges {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list().hash(state);
    }
}

impl Serialize for SeqRanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.list().serialize(serializer)
    }
}

/// How many numbers two ranges share.
fn overlap(one: (u64, u64), other: (u64, u64)) -> u64 {
    let (low, high) = (one.0.max(other.0), one.1.min(other.1));
    if low <= high { high - low + 1 } else { 0 }
}

impl TryFrom<Vec<(u64, u64)>> for SeqRanges {
    type Error = RangeError;
    fn try_from(list: Vec<(u64, u64)>) -> Result<Self, RangeError> {
        let mut above = 0;
        for &(from, to) in &list {
            if from == 0 || from > to || from <= above || to > COUNTER_MAX {
                return Err(RangeError { from, to });
            }
            above = to;
        }
        let mut set = Self::new();
        for (from, to) in list {
            set.insert_span(from, to);
        }
        Ok(set)
    }
}

impl<'de> Deserialize<'de> for SeqRanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<(u64, u64)>::deserialize(deserializer)?;
        list.try_into().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for SeqRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (from, to)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if from == to { write!(f, "{comma}{from}")? } else { write!(f, "{comma}{from}-{to}")? }
        }
        Ok(())
    }
}

impl JsonSchema for SeqRanges {
    fn schema_name() -> Cow<'static, str> {
        "SeqRanges".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "description": "Closed ranges [from, to] of sequence numbers, ascending, without overlap.",
            "items": { "type": "array", "minItems": 2, "maxItems": 2, "items": { "type": "integer", "minimum": 1, "maximum": COUNTER_MAX } }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(spans in prop::collection::vec((1u64..60, 0u64..12), 0..40)) {
            let mut ranges = SeqRanges::new();
            let mut model = BTreeSet::new();
            for (from, length) in spans {
                let new = (from..=from + length).filter(|n| model.insert(*n)).count() as u64;
                prop_assert_eq!(ranges.insert_span(from, from + length), new);
            }
            prop_assert_eq!(ranges.count(), model.len() as u64);
            prop_assert_eq!(ranges.max(), model.last().copied());
            for number in 1..80 {
                prop_assert_eq!(ranges.contains(number), model.contains(&number));
            }
            let missing: Vec<u64> = ranges.missing(75).iter().flat_map(|(a, b)| a..=b).collect();
            prop_assert_eq!(missing, (1..=75).filter(|n| !model.contains(n)).collect::<Vec<_>>());
            let again: SeqRanges = serde_json::from_str(&serde_json::to_string(&ranges).unwrap()).unwrap();
            prop_assert_eq!(again, ranges);
        }

        #[test]
        fn parts_and_holes_are_those_of_the_set(
            spans in prop::collection::vec((1u64..60, 0u64..6), 0..20),
            (from, length) in (1u64..70, 0u64..30),
        ) {
            let mut ranges = SeqRanges::new();
            spans.iter().for_each(|(from, length)| { ranges.insert_span(*from, from + length); });
            let numbers = |set: &SeqRanges| set.iter().flat_map(|(a, b)| a..=b).collect::<Vec<_>>();
            let model = numbers(&ranges);
            let span = from..=from + length;
            let inside: Vec<u64> = model.iter().copied().filter(|n| span.contains(n)).collect();
            prop_assert_eq!(&numbers(&ranges.within(from, from + length)), &inside);
            let holes: Vec<u64> = span.clone().filter(|n| !model.contains(n)).collect();
            prop_assert_eq!(numbers(&ranges.missing_within(from, from + length)), holes);
            prop_assert_eq!(ranges.count_through(from), model.iter().filter(|n| **n <= from).count() as u64);
            prop_assert_eq!(ranges.remove_span(from, from + length), inside.len() as u64);
            let rest: Vec<u64> = model.iter().copied().filter(|n| !span.contains(n)).collect();
            prop_assert_eq!(numbers(&ranges), rest);
        }
    }

    #[test]
    fn the_end_of_u64_is_a_number_like_any_other() {
        let mut ranges = SeqRanges::span(1, u64::MAX);
        assert_eq!(ranges.insert_span(u64::MAX, u64::MAX), 0);
        assert_eq!(ranges.insert_span(5, u64::MAX), 0);
        assert!(ranges.missing(u64::MAX).is_empty());
        assert_eq!(ranges.remove_span(2, u64::MAX), u64::MAX - 1);
        assert_eq!(ranges.count_through(u64::MAX), 1);
        assert_eq!(ranges.missing(3), SeqRanges::span(2, 3));
    }

    #[test]
    fn a_list_that_is_no_set_is_refused() {
        for bad in ["[[0,3]]", "[[4,3]]", "[[1,5],[5,6]]", "[[7,8],[1,2]]", "[[1]]", "[[1,9007199254740992]]"]
        {
            assert!(serde_json::from_str::<SeqRanges>(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn reads_well_in_a_sentence() {
        let set = SeqRanges::try_from(vec![(1, 3), (7, 7)]).unwrap();
        assert_eq!(set.to_string(), "1-3,7");
    }
}
