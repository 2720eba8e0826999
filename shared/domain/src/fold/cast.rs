//! The components of a report with their states. A fleet tells few combinations apart, so it holds each once and reports
//! point to it: a report costs no memory for its components, and none is made for one that comes.
//!
//! How many reports of the fold have a combination is counted, and it is let go of with the last one, whoever else has a copy
//! of that report. What is held is held by its names, too: whether any report tells of a component is known however many
//! combinations there are.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use muster_contract::state::ComponentStatus;
use muster_contract::{ComponentName, State};
use serde::{Deserialize, Serialize};

use super::blueprint::{shared, uncount};

/// Components in the order of the report, each with its state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Cast(Box<[(ComponentName, State)]>);

/// Every combination that a report has.
#[derive(Debug, Default)]
pub(super) struct Casts {
    held: HashTable<Held>,
    hasher: DefaultHashBuilder,
    /// The names in them, and how often each is.
    names: BTreeMap<ComponentName, u32>,
}

/// A combination, and how many reports have it.
#[derive(Debug)]
struct Held {
    cast: Arc<Cast>,
    reports: u32,
}

impl Deref for Cast {
    type Target = [(ComponentName, State)];
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Casts {
    /// The one that says what a report says of its components, for that report to have until it is released.
    pub(super) fn of(&mut self, components: &[ComponentStatus]) -> Arc<Cast> {
        let parts = || components.iter().map(|component| (&component.name, component.state));
        let hash = hash_of(&self.hasher, parts());
        let same = |held: &Held| {
            held.cast.len() == components.len()
                && held
                    .cast
                    .iter()
                    .zip(components)
                    .all(|(own, other)| own.0 == other.name && own.1 == other.state)
        };
        if let Some(held) = self.held.find_mut(hash, same) {
            return held.one_more();
        }
        let cast =
            Cast(parts().map(|(name, state)| (shared(&mut self.names, name.clone()), state)).collect());
        self.keep(hash, Arc::new(cast))
    }

    /// The one that is held already in place of its equal, for one more report.
    pub(super) fn sharing(&mut self, cast: Arc<Cast>) -> Arc<Cast> {
        let hash = hash_of(&self.hasher, cast.parts());
        if let Some(held) = self.held.find_mut(hash, |held| held.cast == cast) {
            return held.one_more();
        }
        cast.iter().for_each(|(name, _)| _ = shared(&mut self.names, name.clone()));
        self.keep(hash, cast)
    }

    /// A report that had it is gone: it is let go of with the last one.
    pub(super) fn release(&mut self, cast: &Arc<Cast>) {
        let hash = hash_of(&self.hasher, cast.parts());
        let Ok(mut entry) = self.held.find_entry(hash, |held| Arc::ptr_eq(&held.cast, cast)) else { return };
        entry.get_mut().reports -= 1;
        if entry.get().reports == 0 {
            entry.remove();
            cast.iter().for_each(|(name, _)| uncount(&mut self.names, name));
        }
    }

    /// Every name that a report has, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &ComponentName> {
        self.names.keys()
    }

    /// Whether any report has a component of this name.
    pub(super) fn has(&self, name: &ComponentName) -> bool {
        self.names.contains_key(name)
    }

    /// Keeps a new one, whose names are counted, for its first report.
    fn keep(&mut self, hash: u64, cast: Arc<Cast>) -> Arc<Cast> {
        let hasher = &self.hasher;
        let rehash = |held: &Held| hash_of(hasher, held.cast.parts());
        self.held.insert_unique(hash, Held { cast: cast.clone(), reports: 1 }, rehash);
        cast
    }
}

impl Held {
    fn one_more(&mut self) -> Arc<Cast> {
        self.reports += 1;
        self.cast.clone()
    }
}

impl Cast {
    fn parts(&self) -> impl Iterator<Item = (&ComponentName, State)> {
        self.iter().map(|(name, state)| (name, *state))
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

    fn names(casts: &Casts) -> Vec<&str> {
        casts.names().map(ComponentName::as_str).collect()
    }

    #[test]
    fn a_combination_goes_with_the_last_report_that_has_it_and_its_names_with_the_last_combination() {
        let mut casts = Casts::default();
        let both = casts.of(&components(&[(0, State::Installed), (1, State::Failed)]));
        let [one, again] = [0, 0].map(|at| casts.of(&components(&[(at, State::Installed)])));
        casts.release(&one);
        assert_eq!((casts.held.len(), names(&casts)), (2, vec!["c0", "c1"]), "another report has it");
        casts.release(&again);
        assert_eq!((casts.held.len(), names(&casts)), (1, vec!["c0", "c1"]));
        let read: Arc<Cast> = Arc::new(serde_json::from_str(r#"[["c7","installed"]]"#).unwrap());
        let [read, too] = [read.clone(), read].map(|cast| casts.sharing(cast));
        casts.release(&both);
        casts.release(&read);
        assert_eq!((casts.held.len(), names(&casts)), (1, vec!["c7"]), "two were restored");
        casts.release(&too);
        assert_eq!((casts.held.len(), names(&casts)), (0, vec![]));
    }

    /// What a question about names is answered must not follow from whether a snapshot is being written.
    #[test]
    fn a_copy_that_is_around_keeps_no_name_and_is_nobodys_report() {
        let mut casts = Casts::default();
        let report = casts.of(&components(&[(0, State::Installed)]));
        let copy = report.clone();
        casts.release(&report);
        assert!(!casts.has(&"c0".parse().unwrap()) && casts.held.is_empty());
        let anew = casts.of(&components(&[(0, State::Installed)]));
        casts.release(&copy);
        assert!(casts.has(&"c0".parse().unwrap()), "the copy was released before");
        casts.release(&anew);
        assert!(names(&casts).is_empty());
    }
}
