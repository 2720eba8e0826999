//! The components of a report with their states. A fleet tells few combinations apart, so it holds each once and reports
//! point to it: a report costs no memory for its components, and none is made for one that comes.
//!
//! Combinations that no report has any more are let go of when as many have come as there were.

use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use muster_contract::state::ComponentStatus;
use muster_contract::{ComponentName, State};
use serde::{Deserialize, Serialize};

/// Fewer than this are never looked through for some to let go of.
const SWEEP_MIN: usize = 1024;

/// Components in the order of the report, each with its state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Cast(Box<[(ComponentName, State)]>);

/// Every combination that a report has.
#[derive(Debug)]
pub(super) struct Casts {
    held: HashTable<Arc<Cast>>,
    hasher: DefaultHashBuilder,
    /// How many there may be before those without a report are let go of.
    sweep_at: usize,
}

impl Deref for Cast {
    type Target = [(ComponentName, State)];
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Default for Casts {
    fn default() -> Self {
        Self { held: HashTable::new(), hasher: DefaultHashBuilder::default(), sweep_at: SWEEP_MIN }
    }
}

impl Casts {
    /// The one that says what a report says of its components.
    pub(super) fn of(&mut self, components: &[ComponentStatus]) -> Arc<Cast> {
        let parts = || components.iter().map(|component| (&component.name, component.state));
        let hash = hash_of(&self.hasher, parts());
        let same = |held: &Arc<Cast>| {
            held.len() == components.len()
                && held.iter().zip(components).all(|(own, other)| own.0 == other.name && own.1 == other.state)
        };
        match self.held.find(hash, same) {
            Some(held) => held.clone(),
            None => {
                self.keep(hash, Arc::new(Cast(parts().map(|(name, state)| (name.clone(), state)).collect())))
            }
        }
    }

    /// The names of the components that any report has, each as often as combinations have it, of the first so many
    /// combinations. None where there are more.
    pub(super) fn names(&self, looked_at_max: usize) -> Option<impl Iterator<Item = &ComponentName>> {
        let reported = |cast: &&Arc<Cast>| Arc::strong_count(cast) > 1;
        let names = || self.held.iter().filter(reported).flat_map(|cast| cast.iter().map(|(name, _)| name));
        (self.held.len() <= looked_at_max).then(names)
    }

    /// The one that is held already in place of its equal.
    pub(super) fn sharing(&mut self, cast: Arc<Cast>) -> Arc<Cast> {
        let hash = hash_of(&self.hasher, cast.iter().map(|(name, state)| (name, *state)));
        match self.held.find(hash, |held| *held == cast) {
            Some(held) => held.clone(),
            None => self.keep(hash, cast),
        }
    }

    fn keep(&mut self, hash: u64, cast: Arc<Cast>) -> Arc<Cast> {
        if self.held.len() >= self.sweep_at {
            self.held.retain(|held| Arc::strong_count(held) > 1);
            self.sweep_at = SWEEP_MIN.max(2 * self.held.len());
        }
        let hasher = &self.hasher;
        let rehash = |held: &Arc<Cast>| hash_of(hasher, held.iter().map(|(name, state)| (name, *state)));
        self.held.insert_unique(hash, cast.clone(), rehash);
        cast
    }
}

fn hash_of<'a>(
    hasher: &impl BuildHasher,
    components: impl Iterator<Item = (&'a ComponentName, State)>,
) -> u64 {
    let mut hash = hasher.build_hasher();
    for (name, state) in components {
        name.hash(&mut hash);
        hash.write_u8(state as u8);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(states: &[(usize, State)]) -> Vec<ComponentStatus> {
        let one = |(at, state): &(usize, State)| ComponentStatus {
            name: format!("c{at}").parse().unwrap(),
            state: *state,
            error: None,
        };
        states.iter().map(one).collect()
    }

    #[test]
    fn what_says_the_same_is_one_and_what_differs_in_anything_is_another() {
        let mut casts = Casts::default();
        let [one, other] = [(0, State::Installed), (1, State::Failed)];
        let first = casts.of(&components(&[one, other]));
        assert!(Arc::ptr_eq(&first, &casts.of(&components(&[one, other]))));
        for different in [&[other, one][..], &[one], &[], &[one, (1, State::Installed)]] {
            assert!(!Arc::ptr_eq(&first, &casts.of(&components(different))), "{different:?}");
        }
        let read = Arc::new(serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap());
        assert!(Arc::ptr_eq(&first, &casts.sharing(read)));
    }

    #[test]
    fn those_without_a_report_are_let_go_of_and_those_with_one_stay() {
        let mut casts = Casts::default();
        let kept = casts.of(&components(&[(0, State::Installed)]));
        (1..10 * SWEEP_MIN).for_each(|at| drop(casts.of(&components(&[(at, State::Installed)]))));
        assert!(casts.held.len() <= SWEEP_MIN, "{}", casts.held.len());
        assert!(Arc::ptr_eq(&kept, &casts.of(&components(&[(0, State::Installed)]))));
    }

    #[test]
    fn names_are_those_of_reports_and_none_are_told_where_that_would_take_long() {
        let mut casts = Casts::default();
        let kept = casts.of(&components(&[(0, State::Installed), (1, State::Failed)]));
        drop(casts.of(&components(&[(2, State::Installed)])));
        let names = casts.names(2).unwrap().map(ComponentName::as_str);
        assert_eq!(names.collect::<Vec<_>>(), ["c0", "c1"]);
        assert!(casts.names(1).is_none());
        drop(kept);
    }
}
