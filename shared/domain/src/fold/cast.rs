//! The components of a report with their states. A fleet tells few combinations apart, so it holds each once and reports
//! point to it: a report costs no memory for its components, and none is made for one that comes.
//!
//! A combination is let go of with the last report that has it; where a copy of that report was around then, when as many
//! combinations have come as there were. What is held is held by its names, too: whether any report tells of a component is
//! known however many combinations there are.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use muster_contract::state::ComponentStatus;
use muster_contract::{ComponentName, State};
use serde::{Deserialize, Serialize};

use super::blueprint::{shared, uncount};

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
    /// The names in them, and how often each is.
    names: BTreeMap<ComponentName, u32>,
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
        let (held, hasher) = (HashTable::new(), DefaultHashBuilder::default());
        Self { held, hasher, names: BTreeMap::new(), sweep_at: SWEEP_MIN }
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
        if let Some(held) = self.held.find(hash, same) {
            return held.clone();
        }
        let cast =
            Cast(parts().map(|(name, state)| (shared(&mut self.names, name.clone()), state)).collect());
        self.keep(hash, Arc::new(cast))
    }

    /// Every name that a combination has, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &ComponentName> {
        self.names.keys()
    }

    /// Whether any report has a component of this name. Where there are more combinations than may be looked at, also one
    /// counts that no report has any more and that was not let go of yet.
    pub(super) fn has(&self, name: &ComponentName, looked_at_max: usize) -> bool {
        let reported = |cast: &&Arc<Cast>| Arc::strong_count(cast) > 1;
        let names = || self.held.iter().filter(reported).flat_map(|cast| cast.iter().map(|(name, _)| name));
        self.names.contains_key(name)
            && (self.held.len() > looked_at_max || names().any(|reported| reported == name))
    }

    /// A report that had it is about to go: it is let go of with the last one.
    pub(super) fn release(&mut self, cast: &Arc<Cast>) {
        // Held by that report and by the table.
        if Arc::strong_count(cast) > 2 {
            return;
        }
        let hash = hash_of(&self.hasher, cast.iter().map(|(name, state)| (name, *state)));
        if let Ok(held) = self.held.find_entry(hash, |held| Arc::ptr_eq(held, cast)) {
            held.remove();
            cast.iter().for_each(|(name, _)| uncount(&mut self.names, name));
        }
    }

    /// The one that is held already in place of its equal.
    pub(super) fn sharing(&mut self, cast: Arc<Cast>) -> Arc<Cast> {
        let hash = hash_of(&self.hasher, cast.iter().map(|(name, state)| (name, *state)));
        match self.held.find(hash, |held| *held == cast) {
            Some(held) => held.clone(),
            None => {
                cast.iter().for_each(|(name, _)| _ = shared(&mut self.names, name.clone()));
                self.keep(hash, cast)
            }
        }
    }

    /// Keeps a new one, whose names are counted.
    fn keep(&mut self, hash: u64, cast: Arc<Cast>) -> Arc<Cast> {
        if self.held.len() >= self.sweep_at {
            self.sweep();
        }
        let hasher = &self.hasher;
        let rehash = |held: &Arc<Cast>| hash_of(hasher, held.iter().map(|(name, state)| (name, *state)));
        self.held.insert_unique(hash, cast.clone(), rehash);
        cast
    }

    fn sweep(&mut self) {
        let Self { held, names, .. } = self;
        held.retain(|cast| {
            let stays = Arc::strong_count(cast) > 1;
            if !stays {
                cast.iter().for_each(|(name, _)| uncount(names, name));
            }
            stays
        });
        self.sweep_at = SWEEP_MIN.max(2 * self.held.len());
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

    /// A report that has it goes.
    fn let_go(casts: &mut Casts, cast: Arc<Cast>) {
        casts.release(&cast);
        drop(cast);
    }

    fn names(casts: &Casts) -> Vec<&str> {
        casts.names().map(ComponentName::as_str).collect()
    }

    #[test]
    fn a_combination_goes_with_the_last_report_that_has_it_and_its_names_with_the_last_combination() {
        let mut casts = Casts::default();
        let both = casts.of(&components(&[(0, State::Installed), (1, State::Failed)]));
        let [one, again] = [0, 0].map(|at| casts.of(&components(&[(at, State::Installed)])));
        let_go(&mut casts, one);
        assert_eq!((casts.held.len(), names(&casts)), (2, vec!["c0", "c1"]), "another report has it");
        let_go(&mut casts, again);
        assert_eq!((casts.held.len(), names(&casts)), (1, vec!["c0", "c1"]));
        let copy = both.clone();
        let_go(&mut casts, both);
        assert_eq!(casts.held.len(), 1, "a copy is around");
        let_go(&mut casts, copy);
        assert_eq!((casts.held.len(), names(&casts)), (0, vec![]));
        let read: Arc<Cast> = Arc::new(serde_json::from_str(r#"[["c7","installed"]]"#).unwrap());
        let read = casts.sharing(read);
        assert_eq!(names(&casts), ["c7"]);
        let_go(&mut casts, read);
        assert!(names(&casts).is_empty());
    }

    #[test]
    fn a_name_is_known_by_reports_and_beyond_what_may_be_looked_at_by_what_is_held() {
        let mut casts = Casts::default();
        let kept = casts.of(&components(&[(0, State::Installed), (1, State::Failed)]));
        drop(casts.of(&components(&[(2, State::Installed)])));
        let has = |looked_at_max| {
            [0, 1, 2, 3].map(|at| casts.has(&format!("c{at}").parse().unwrap(), looked_at_max))
        };
        assert_eq!(has(2), [true, true, false, false], "nobody reports the third any more");
        assert_eq!(has(1), [true, true, true, false], "and it was not let go of yet");
        drop(kept);
    }

    #[test]
    fn what_is_swept_away_takes_its_names_along() {
        let mut casts = Casts::default();
        let kept = casts.of(&components(&[(0, State::Installed)]));
        (1..=SWEEP_MIN).for_each(|at| drop(casts.of(&components(&[(at, State::Installed)]))));
        assert_eq!(names(&casts), ["c0", &format!("c{SWEEP_MIN}")], "the last one came after the sweep");
        drop(kept);
    }
}
