//! Interns application specs: the application, the deployment's name and the component names that a row should run.
//! Most devices of a deployment share one, so the fleet holds each spec once and rows refer to it by number.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_contract::ComponentName;
use muster_contract::desired::DesiredDeployment;
use serde::{Deserialize, Serialize};

use super::slots::fill_slot;

/// An application and its components.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct AppSpec {
    /// The application's id.
    #[serde(rename = "app")]
    pub(super) application: Arc<str>,
    /// The deployment's name for people.
    pub(super) name: Arc<str>,
    /// The components, in the order in which they are installed.
    #[serde(rename = "parts")]
    pub(super) components: Box<[ComponentName]>,
    /// The deployment is desired as stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) stopped: bool,
}

/// Sentinel: no spec was ever assigned.
pub(super) const NONE: u32 = u32::MAX;

/// Every spec that a row has.
#[derive(Debug, Default)]
pub(super) struct AppSpecInterner {
    numbers: HashMap<Arc<AppSpec>, u32>,
    slots: Vec<SpecSlot>,
    spare: Vec<u32>,
    applications: BTreeMap<Arc<str>, u32>,
    components: BTreeMap<ComponentName, u32>,
    /// Rows of each application that count for anything; an application without one is not here.
    shown: BTreeMap<Arc<str>, u32>,
}

#[derive(Debug)]
struct SpecSlot {
    spec: Arc<AppSpec>,
    rows: u32,
}

impl AppSpec {
    pub(super) fn of(entry: &DesiredDeployment) -> Self {
        let components = entry.profile.components.iter().map(|component| component.name.clone());
        Self {
            application: entry.application_id.as_str().into(),
            name: entry.name.as_str().into(),
            components: components.collect(),
            stopped: entry.stopped,
        }
    }
}

impl AppSpecInterner {
    /// Whether a deployment with the spec of this number is desired as stopped.
    pub(super) fn is_stopped(&self, number: u32) -> bool {
        self.get(number).is_some_and(|spec| spec.stopped)
    }

    /// The spec of a number.
    pub(super) fn get(&self, number: u32) -> Option<&AppSpec> {
        self.slots.get(number as usize).map(|slot| &*slot.spec)
    }

    /// A shared copy of the spec, for callers that keep it longer than the row.
    pub(super) fn shared(&self, number: u32) -> Option<Arc<AppSpec>> {
        self.slots.get(number as usize).map(|slot| slot.spec.clone())
    }

    /// The number of a spec, for one more row that has it.
    pub(super) fn intern(&mut self, spec: AppSpec) -> u32 {
        self.one_more_of(&spec).unwrap_or_else(|| self.insert(spec))
    }

    /// The same for a spec that others share.
    pub(super) fn intern_shared(&mut self, spec: &AppSpec) -> u32 {
        self.one_more_of(spec).unwrap_or_else(|| self.insert(spec.clone()))
    }

    /// The number of a held spec, for one more row.
    fn one_more_of(&mut self, spec: &AppSpec) -> Option<u32> {
        let number = *self.numbers.get(spec)?;
        Some(self.one_more(number))
    }

    /// The same number, for one more row.
    pub(super) fn one_more(&mut self, number: u32) -> u32 {
        self.slots[number as usize].rows += 1;
        number
    }

    fn insert(&mut self, spec: AppSpec) -> u32 {
        let spec = self.with_shared_names(spec);
        let slot = SpecSlot { spec: spec.clone(), rows: 1 };
        let number = fill_slot(&mut self.slots, &mut self.spare, slot);
        self.numbers.insert(spec, number);
        number
    }

    /// Releases a row's spec; the last release frees its number.
    pub(super) fn release(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        slot.rows -= 1;
        if slot.rows > 0 {
            return;
        }
        let spec = slot.spec.clone();
        self.numbers.remove(&spec);
        self.spare.push(number);
        uncount(&mut self.applications, &spec.application);
        spec.components.iter().for_each(|name| uncount(&mut self.components, name));
    }

    /// Counts a row that is shown from now on.
    pub(super) fn show(&mut self, number: u32) {
        let Some(slot) = self.slots.get(number as usize) else { return };
        match self.shown.get_mut(&slot.spec.application) {
            Some(rows) => *rows += 1,
            None => _ = self.shown.insert(slot.spec.application.clone(), 1),
        }
    }

    /// Uncounts a row that is no longer shown, or that has another spec now. Called before the row's release.
    pub(super) fn hide(&mut self, number: u32) {
        let Some(slot) = self.slots.get(number as usize) else { return };
        uncount(&mut self.shown, &slot.spec.application);
    }

    /// Every application that is targeted or leaving anywhere, in order.
    pub(super) fn applications(&self) -> impl Iterator<Item = &str> {
        self.shown.keys().map(AsRef::as_ref)
    }

    /// Whether this application is targeted or leaving anywhere. One that was removed everywhere is not.
    pub(super) fn has_application(&self, id: &str) -> bool {
        self.shown.contains_key(id)
    }

    /// Every component of a held spec, in order.
    pub(super) fn components(&self) -> impl Iterator<Item = &ComponentName> {
        self.components.keys()
    }

    /// Whether a held spec has a component of this name.
    pub(super) fn has_component(&self, name: &ComponentName) -> bool {
        self.components.contains_key(name)
    }

    /// The spec with the copies of names that are held already, each counted.
    fn with_shared_names(&mut self, spec: AppSpec) -> Arc<AppSpec> {
        let application = shared(&mut self.applications, spec.application);
        let components = spec.components.into_iter().map(|name| shared(&mut self.components, name));
        Arc::new(AppSpec { application, components: components.collect(), ..spec })
    }
}

/// The copy of a name that is held already, or this one; its count is raised.
pub(super) fn shared<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, name: K) -> K {
    let held = counts.get_key_value(&name).map(|(held, _)| held.clone());
    let name = held.unwrap_or(name);
    *counts.entry(name.clone()).or_default() += 1;
    name
}

/// Lowers a name's count; a name without users is not held.
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

    fn spec(application: &str, components: &[&str]) -> AppSpec {
        let components = components.iter().map(|name| name.parse().unwrap()).collect();
        AppSpec { application: application.into(), name: "shop".into(), components, stopped: false }
    }

    #[test]
    fn equal_specs_are_interned_once_until_the_last_row_releases_them() {
        let mut all = AppSpecInterner::default();
        let web = all.intern(spec("web", &["main", "side"]));
        assert_eq!(all.intern(spec("web", &["main", "side"])), web);
        let other = all.intern(spec("web", &["main"]));
        assert_ne!(other, web);
        all.release(web);
        assert_eq!(all.get(web).unwrap().components.len(), 2);
        all.release(web);
        let names = |all: &AppSpecInterner| all.components().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&all), ["main"]);
        all.release(other);
        assert_eq!((names(&all), all.applications.len()), (vec![], 0));
        assert_eq!(all.intern(spec("db", &["main"])), other, "numbers are used again");
        all.release(NONE);
    }

    #[test]
    fn an_application_is_known_while_a_row_of_any_of_its_specs_counts() {
        let mut all = AppSpecInterner::default();
        let [first, second] = ["main", "side"].map(|name| all.intern(spec("web", &[name])));
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
