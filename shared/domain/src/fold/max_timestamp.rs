//! Keeps the maximum of timestamps that are added and retracted, and how many of them equal it. Once the last of those
//! is retracted, the maximum is stale: only an upper bound, until a timestamp that is not older is added. The other
//! timestamps are not stored, so the holder of a stale maximum searches them.

use muster_contract::Timestamp;

use super::delta::Delta;

/// A maximum of timestamps, with its multiplicity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MaxTimestamp {
    at: Option<Timestamp>,
    /// How many timestamps equal it; with 0 it is stale.
    count: u32,
}

/// When a standing last changed, and when a device was last heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) changed_at: Option<Timestamp>,
    pub(super) heard_at: Option<Timestamp>,
}

impl Times {
    /// The newer time of each kind.
    pub(super) fn newest(self, other: Self) -> Self {
        Self {
            changed_at: self.changed_at.max(other.changed_at),
            heard_at: self.heard_at.max(other.heard_at),
        }
    }
}

/// The newest of several maxima.
pub(super) fn highest(maxima: impl Iterator<Item = MaxTimestamp>) -> MaxTimestamp {
    let mut sum = MaxTimestamp::default();
    maxima.for_each(|max| sum.join(max));
    sum
}

impl MaxTimestamp {
    /// The maximum of one timestamp.
    pub(super) const fn of(at: Option<Timestamp>) -> Self {
        Self { at, count: 1 }
    }

    /// The newest time; an upper bound if it is stale.
    pub(super) const fn bound(self) -> Option<Timestamp> {
        self.at
    }

    /// The newest time; the result of a search if it is stale.
    pub(super) fn or_search(self, search: impl FnOnce() -> Option<Timestamp>) -> Option<Timestamp> {
        if self.is_stale() { search() } else { self.at }
    }

    /// Replaces a time. False if the maximum is stale afterwards.
    pub(super) fn exchange(&mut self, was: Option<Timestamp>, is: Option<Timestamp>) -> bool {
        if was != is {
            self.apply(Delta::Retract, was);
            self.apply(Delta::Add, is);
        }
        !self.is_stale()
    }

    /// Adds a time or retracts it.
    pub(super) fn apply(&mut self, delta: Delta, at: Option<Timestamp>) {
        match delta {
            Delta::Add => self.join(Self::of(at)),
            Delta::Retract if self.at == at => self.count -= u32::from(at.is_some()),
            Delta::Retract => {}
        }
    }

    /// Merges another maximum.
    fn join(&mut self, others: Self) {
        if others.at > self.at {
            *self = others;
        } else if others.at == self.at && others.at.is_some() {
            self.count += others.count;
        }
    }

    /// True once every timestamp that equals the maximum is retracted.
    pub(super) const fn is_stale(self) -> bool {
        self.at.is_some() && self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_is_stale_once_its_last_equal_is_retracted() {
        let at = |second| Timestamp::from_second(second).ok();
        let mut max = MaxTimestamp::default();
        [at(5), at(9), at(9), None].into_iter().for_each(|at| max.apply(Delta::Add, at));
        assert!(max.exchange(at(9), at(7)), "another one equals it");
        assert_eq!(max.or_search(|| None), at(9));
        assert!(!max.exchange(at(9), None), "none equals it");
        assert_eq!((max.bound(), max.or_search(|| at(7))), (at(9), at(7)));
        assert!(max.exchange(at(5), at(12)), "a newer one ends the search");
        assert_eq!(max.or_search(|| None), at(12));
    }
}
