//! Counts groups of devices by label, beside the sites: each standing is added to or retracted from as many
//! groups as its device has labels. Labels come from the newest desired state alone.

pub(super) mod answer;
mod membership;

use std::collections::BTreeMap;

use muster_contract::{LabelKey, LabelValue};

use super::counts_by_deployment::CountsByDeployment;
use super::max_by_deployment::MaxByDeployment;
use super::max_timestamp::MaxTimestamp;
use super::slots::fill_slot;
use super::tally::GroupChange;
use super::whole::Whole;

/// All groups, by number: small keys for the devices.
#[derive(Debug, Default)]
pub(super) struct Groups {
    numbers: BTreeMap<LabelKey, BTreeMap<LabelValue, u32>>,
    list: Vec<LabelGroup>,
    /// Numbers of groups that no device is in any more.
    spare: Vec<u32>,
}

/// The counts of one group.
#[derive(Debug)]
pub(super) struct LabelGroup {
    pub(super) label: LabelKey,
    pub(super) value: LabelValue,
    pub(super) whole: Whole,
    /// The group's share of each deployment.
    deployments: CountsByDeployment,
    /// The last change of its devices' standings, including standings that count for nothing.
    pub(super) changed_at: MaxTimestamp,
    /// The same of each deployment.
    pub(super) changed_with: MaxByDeployment,
    /// When a device with a counted standing of each deployment was last heard.
    pub(super) heard_with: MaxByDeployment,
    /// Devices in it, retired ones too.
    members: u32,
    pub(super) changed: bool,
}

impl Groups {
    /// The number of a group, for one more device in it.
    pub(super) fn join(&mut self, label: &LabelKey, value: &LabelValue) -> u32 {
        let known = self.numbers.get(label).and_then(|values| values.get(value)).copied();
        let number = known.unwrap_or_else(|| self.insert_group(label.clone(), value.clone()));
        self.list[number as usize].members += 1;
        number
    }

    fn insert_group(&mut self, label: LabelKey, value: LabelValue) -> u32 {
        // The copy of a name that the groups hold already is kept.
        let label = self.numbers.get_key_value(&label).map_or(label, |(held, _)| held.clone());
        let fresh = LabelGroup {
            label: label.clone(),
            value: value.clone(),
            whole: Whole::default(),
            deployments: CountsByDeployment::default(),
            changed_at: MaxTimestamp::default(),
            changed_with: MaxByDeployment::default(),
            heard_with: MaxByDeployment::default(),
            members: 0,
            changed: false,
        };
        let number = fill_slot(&mut self.list, &mut self.spare, fresh);
        self.numbers.entry(label).or_default().insert(value, number);
        number
    }

    /// Removes a device from a group. The caller has retracted its counts there before.
    pub(super) fn remove_member(&mut self, number: u32) {
        let group = &mut self.list[number as usize];
        group.members -= 1;
        if group.members > 0 {
            return;
        }
        if let Some(values) = self.numbers.get_mut(&group.label) {
            values.remove(&group.value);
            if values.is_empty() {
                self.numbers.remove(&group.label);
            }
        }
        self.spare.push(number);
    }

    pub(super) fn get(&self, number: u32) -> &LabelGroup {
        &self.list[number as usize]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut LabelGroup {
        &mut self.list[number as usize]
    }

    pub(super) fn find(&self, label: &LabelKey, value: &LabelValue) -> Option<&LabelGroup> {
        Some(self.get(*self.numbers.get(label)?.get(value)?))
    }

    /// The groups of a label by value; none where no device has it.
    fn of(&self, label: &LabelKey) -> Option<impl Iterator<Item = &LabelGroup>> {
        Some(self.numbers.get(label)?.values().map(|number| self.get(*number)))
    }

    /// All of them, by label and value.
    pub(super) fn all(&self) -> impl Iterator<Item = &LabelGroup> {
        self.numbers.values().flat_map(|values| values.values().map(|number| self.get(*number)))
    }

    /// The labels and values of all groups.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&LabelKey, &LabelValue)> {
        self.numbers.iter().flat_map(|(label, values)| values.keys().map(move |value| (label, value)))
    }

    /// Its view is known to have changed.
    pub(super) fn unmark(&mut self, label: &LabelKey, value: &LabelValue) {
        if let Some(number) = self.numbers.get(label).and_then(|values| values.get(value)) {
            self.list[*number as usize].changed = false;
        }
    }
}

impl LabelGroup {
    /// Changes a standing of a deployment in its counts.
    pub(super) fn apply(&mut self, deployment: u32, change: &GroupChange) {
        self.whole.apply(change, deployment, &mut self.deployments);
    }
}
