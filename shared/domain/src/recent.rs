//! Remembers the newest few items, within a bound. Older items are forgotten, so no answer may be wrong because
//! of that.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The newest `N` items, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recent<T, const N: usize>(VecDeque<T>);

impl<T, const N: usize> Default for Recent<T, N> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: PartialEq, const N: usize> Recent<T, N> {
    /// Remembers an item; a known item keeps its place.
    pub(crate) fn push(&mut self, item: T) {
        if !self.0.contains(&item) {
            self.push_new(item);
        }
    }

    /// Remembers an item that is not known.
    pub(crate) fn push_new(&mut self, item: T) {
        if self.0.len() >= N {
            self.0.pop_front();
        }
        self.0.push_back(item);
    }

    /// True where the item is remembered.
    pub(crate) fn contains(&self, item: &T) -> bool {
        self.0.contains(item)
    }

    /// The items, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// The newest item for which `matches` holds.
    pub(crate) fn find(&self, matches: impl Fn(&T) -> bool) -> Option<&T> {
        self.0.iter().rev().find(|item| matches(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_are_remembered() {
        let mut recent = Recent::<u8, 3>::default();
        [1, 2, 2, 3, 4].into_iter().for_each(|item| recent.push(item));
        assert!(!recent.contains(&1));
        assert!([2, 3, 4].iter().all(|item| recent.contains(item)));
        assert_eq!(recent.find(|item| *item < 4), Some(&3));
    }
}
