//! Interns the components of reports with their states. A fleet has few distinct sets, so each is held once and
//! reports point to it: a report costs no memory for its components.
//!
//! Each set counts the reports of the fold that use it and is released with the last one, even if another part
//! still has a copy. The names are counted too: a lookup of a component's name visits no set.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use muster_contract::state::ComponentStatus;
use muster_contract::{ComponentName, State};
use serde::{Deserialize, Serialize};

use super::app_spec::{shared, uncount};

/// Components in the order of the report, each with its state.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ComponentSet(Box<[(ComponentName, State)]>);

/// Every set that a report has.
#[derive(Debug, Default)]
pub(super) struct ComponentInterner {
    held: HashTable<InternedSet>,
    hasher: DefaultHashBuilder,
    /// The names in the sets, each with the number of its occurrences.
    names: BTreeMap<ComponentName, u32>,
}

/// A set, and the number of reports that have it.
#[derive(Debug)]
struct InternedSet {
    set: Arc<ComponentSet>,
    reports: u32,
}

impl Deref for ComponentSet {
    type Target = [(ComponentName, State)];
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl ComponentInterner {
    /// The interned set with a report's components, held for that report until it is released.
    pub(super) fn of(&mut self, components: &[ComponentStatus]) -> Arc<ComponentSet> {
        let parts = || components.iter().map(|component| (&component.name, component.state));
        let hash = hash_of(&self.hasher, parts());
        let same = |held: &InternedSet| {
            held.set.len() == components.len()
                && held
                    .set
                    .iter()
                    .zip(components)
                    .all(|(own, other)| own.0 == other.name && own.1 == other.state)
        };
        if let Some(held) = self.held.find_mut(hash, same) {
            return held.one_more();
        }
        let set = ComponentSet(
            parts().map(|(name, state)| (shared(&mut self.names, name.clone()), state)).collect(),
        );
        self.keep(hash, Arc::new(set))
    }

    /// The interned set in place of its equal, or this one, held for one more report.
    pub(super) fn sharing(&mut self, set: Arc<ComponentSet>) -> Arc<ComponentSet> {
        let hash = hash_of(&self.hasher, set.parts());
        if let Some(held) = self.held.find_mut(hash, |held| held.set == set) {
            return held.one_more();
        }
        set.iter().for_each(|(name, _)| _ = shared(&mut self.names, name.clone()));
        self.keep(hash, set)
    }

    /// Releases a report's set; the last release removes it.
    pub(super) fn release(&mut self, set: &Arc<ComponentSet>) {
        let hash = hash_of(&self.hasher, set.parts());
        let Ok(mut entry) = self.held.find_entry(hash, |held| Arc::ptr_eq(&held.set, set)) else { return };
        entry.get_mut().reports -= 1;
        if entry.get().reports == 0 {
            entry.remove();
            set.iter().for_each(|(name, _)| uncount(&mut self.names, name));
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

    /// Stores a new set, whose names are counted already, for its first report.
    fn keep(&mut self, hash: u64, set: Arc<ComponentSet>) -> Arc<ComponentSet> {
        let hasher = &self.hasher;
        let rehash = |held: &InternedSet| hash_of(hasher, held.set.parts());
        self.held.insert_unique(hash, InternedSet { set: set.clone(), reports: 1 }, rehash);
        set
    }
}

impl InternedSet {
    fn one_more(&mut self) -> Arc<ComponentSet> {
        self.reports += 1;
        self.set.clone()
    }
}

impl ComponentSet {
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
    fn equal_sets_are_interned_once_and_different_ones_apart() {
        let mut component_sets = ComponentInterner::default();
        let [one, other] = [(0, State::Installed), (1, State::Failed)];
        let first = component_sets.of(&components(&[one, other]));
        assert!(Arc::ptr_eq(&first, &component_sets.of(&components(&[one, other]))));
        for different in [&[other, one][..], &[one], &[], &[one, (1, State::Installed)]] {
            assert!(!Arc::ptr_eq(&first, &component_sets.of(&components(different))), "{different:?}");
        }
        let read = Arc::new(serde_json::from_str(&serde_json::to_string(&first).unwrap()).unwrap());
        assert!(Arc::ptr_eq(&first, &component_sets.sharing(read)));
    }

    fn names(component_sets: &ComponentInterner) -> Vec<&str> {
        component_sets.names().map(ComponentName::as_str).collect()
    }

    #[test]
    fn a_set_is_released_with_its_last_report_and_names_with_the_last_set() {
        let mut component_sets = ComponentInterner::default();
        let both = component_sets.of(&components(&[(0, State::Installed), (1, State::Failed)]));
        let [one, again] = [0, 0].map(|at| component_sets.of(&components(&[(at, State::Installed)])));
        component_sets.release(&one);
        assert_eq!(
            (component_sets.held.len(), names(&component_sets)),
            (2, vec!["c0", "c1"]),
            "another report has it"
        );
        component_sets.release(&again);
        assert_eq!((component_sets.held.len(), names(&component_sets)), (1, vec!["c0", "c1"]));
        let read: Arc<ComponentSet> = Arc::new(serde_json::from_str(r#"[["c7","installed"]]"#).unwrap());
        let [read, too] = [read.clone(), read].map(|set| component_sets.sharing(set));
        component_sets.release(&both);
        component_sets.release(&read);
        assert_eq!((component_sets.held.len(), names(&component_sets)), (1, vec!["c7"]), "two were restored");
        component_sets.release(&too);
        assert_eq!((component_sets.held.len(), names(&component_sets)), (0, vec![]));
    }

    /// The answer to a question about names must not depend on whether a snapshot is being written.
    #[test]
    fn a_remaining_copy_keeps_no_name_and_counts_as_no_report() {
        let mut component_sets = ComponentInterner::default();
        let report = component_sets.of(&components(&[(0, State::Installed)]));
        let copy = report.clone();
        component_sets.release(&report);
        assert!(!component_sets.has(&"c0".parse().unwrap()) && component_sets.held.is_empty());
        let anew = component_sets.of(&components(&[(0, State::Installed)]));
        component_sets.release(&copy);
        assert!(component_sets.has(&"c0".parse().unwrap()), "the copy was released before");
        component_sets.release(&anew);
        assert!(names(&component_sets).is_empty());
    }
}
