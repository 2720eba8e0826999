//! What shall run, as far as questions need it: the application and the names of the components. Most devices of a
//! deployment share it, so the fleet holds each once, by a number that rows have.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_contract::ComponentName;
use muster_contract::desired::DesiredDeployment;
use serde::{Deserialize, Serialize};

/// An application and its components.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Blueprint {
    /// The application's id.
    #[serde(rename = "app")]
    pub(super) application: Arc<str>,
    /// The components, in the order in which they are installed.
    #[serde(rename = "parts")]
    pub(super) components: Box<[ComponentName]>,
}

/// The number of no blueprint: nothing shall run, as far as is known nothing ever did.
pub(super) const NONE: u32 = u32::MAX;

/// Every blueprint that a row has.
#[derive(Debug, Default)]
pub(super) struct Blueprints {
    numbers: HashMap<Arc<Blueprint>, u32>,
    slots: Vec<Slot>,
    spare: Vec<u32>,
    applications: BTreeMap<Arc<str>, u32>,
    components: BTreeMap<ComponentName, u32>,
    /// Rows of each application that count for anything; an application without one is not here.
    shown: BTreeMap<Arc<str>, u32>,
}

#[derive(Debug)]
struct Slot {
    blueprint: Arc<Blueprint>,
    rows: u32,
}

impl Blueprint {
    pub(super) fn of(entry: &DesiredDeployment) -> Self {
        let components = entry.profile.components.iter().map(|component| component.name.clone());
        Self { application: entry.application_id.as_str().into(), components: components.collect() }
    }
}

impl Blueprints {
    /// The blueprint of a number.
    pub(super) fn get(&self, number: u32) -> Option<&Blueprint> {
        self.slots.get(number as usize).map(|slot| &*slot.blueprint)
    }

    /// The same for whoever keeps it longer than the row.
    pub(super) fn shared(&self, number: u32) -> Option<Arc<Blueprint>> {
        self.slots.get(number as usize).map(|slot| slot.blueprint.clone())
    }

    /// The number of a blueprint, for one more row that has it.
    pub(super) fn take(&mut self, blueprint: Blueprint) -> u32 {
        if let Some(number) = self.numbers.get(&blueprint) {
            self.slots[*number as usize].rows += 1;
            return *number;
        }
        let blueprint = self.with_shared_names(blueprint);
        let slot = Slot { blueprint: blueprint.clone(), rows: 1 };
        let number = match self.spare.pop() {
            Some(number) => {
                self.slots[number as usize] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.numbers.insert(blueprint, number);
        number
    }

    /// A row has it no more.
    pub(super) fn release(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        slot.rows -= 1;
        if slot.rows > 0 {
            return;
        }
        let blueprint = slot.blueprint.clone();
        self.numbers.remove(&blueprint);
        self.spare.push(number);
        uncount(&mut self.applications, &blueprint.application);
        blueprint.components.iter().for_each(|name| uncount(&mut self.components, name));
    }

    /// A row that has it counts for something from now on.
    pub(super) fn show(&mut self, number: u32) {
        let Some(slot) = self.slots.get(number as usize) else { return };
        match self.shown.get_mut(&slot.blueprint.application) {
            Some(rows) => *rows += 1,
            None => _ = self.shown.insert(slot.blueprint.application.clone(), 1),
        }
    }

    /// A row that has it counts for nothing any more, or has another now. Called before the row lets go of it.
    pub(super) fn hide(&mut self, number: u32) {
        let Some(slot) = self.slots.get(number as usize) else { return };
        uncount(&mut self.shown, &slot.blueprint.application);
    }

    /// Every application that shall run anywhere or is left anywhere, in order.
    pub(super) fn applications(&self) -> impl Iterator<Item = &str> {
        self.shown.keys().map(AsRef::as_ref)
    }

    /// Whether this application shall run anywhere, or is left anywhere. What was removed everywhere is not.
    pub(super) fn has_application(&self, id: &str) -> bool {
        self.shown.contains_key(id)
    }

    /// Every component that shall run anywhere or shall not any more, in order.
    pub(super) fn components(&self) -> impl Iterator<Item = &ComponentName> {
        self.components.keys()
    }

    /// Whether a component of this name shall run anywhere, or is left anywhere.
    pub(super) fn has_component(&self, name: &ComponentName) -> bool {
        self.components.contains_key(name)
    }

    /// The blueprint with the copies of names that are held already, each counted.
    fn with_shared_names(&mut self, blueprint: Blueprint) -> Arc<Blueprint> {
        let application = shared(&mut self.applications, blueprint.application);
        let components = blueprint.components.into_iter().map(|name| shared(&mut self.components, name));
        Arc::new(Blueprint { application, components: components.collect() })
    }
}

/// The copy of a name that is held already, or this one; it is counted.
pub(super) fn shared<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, name: K) -> K {
    let held = counts.get_key_value(&name).map(|(held, _)| held.clone());
    let name = held.unwrap_or(name);
    *counts.entry(name.clone()).or_default() += 1;
    name
}

/// One less has it; a name that nobody has is not held.
pub(super) fn uncount<K: Ord>(counts: &mut BTreeMap<K, u32>, name: &K) {
    let Some(count) = counts.get_mut(name) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blueprint(application: &str, components: &[&str]) -> Blueprint {
        let components = components.iter().map(|name| name.parse().unwrap()).collect();
        Blueprint { application: application.into(), components }
    }

    #[test]
    fn equal_blueprints_are_one_until_the_last_row_lets_go() {
        let mut all = Blueprints::default();
        let web = all.take(blueprint("web", &["main", "side"]));
        assert_eq!(all.take(blueprint("web", &["main", "side"])), web);
        let other = all.take(blueprint("web", &["main"]));
        assert_ne!(other, web);
        all.release(web);
        assert_eq!(all.get(web).unwrap().components.len(), 2);
        all.release(web);
        let names = |all: &Blueprints| all.components().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&all), ["main"]);
        all.release(other);
        assert_eq!((names(&all), all.applications.len()), (vec![], 0));
        assert_eq!(all.take(blueprint("db", &["main"])), other, "numbers are used again");
        all.release(NONE);
    }

    #[test]
    fn an_application_is_known_while_a_row_of_any_of_its_blueprints_counts() {
        let mut all = Blueprints::default();
        let [first, second] = ["main", "side"].map(|name| all.take(blueprint("web", &[name])));
        assert!(!all.has_application("web"), "nothing of it counts");
        [first, first, second].into_iter().for_each(|number| all.show(number));
        assert_eq!(all.applications().collect::<Vec<_>>(), ["web"]);
        [first, first].into_iter().for_each(|number| all.hide(number));
        all.release(first);
        assert!(all.has_application("web"));
        all.hide(second);
        assert!(!all.has_application("web"), "though a row has it still");
        all.show(NONE);
        all.hide(NONE);
        assert_eq!(all.applications().count(), 0);
    }
}
