//! Groups of devices by label, counted beside the sites: one standing more or less at a time, in as many groups as its
//! device has labels. Labels are the hub's word alone, from the newest desired state.

mod answer;

pub use answer::NoGroups;
pub(super) use answer::{Split, label_line};

use std::collections::BTreeMap;

use muster_contract::labels::Labels;
use muster_contract::{LabelKey, LabelValue};

use super::device::Device;
use super::fleet::Fleet;
use super::shares::Shares;
use super::standing::Share;
use super::tally::Way;
use super::totals::Whole;

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
    deployments: Shares,
    /// Devices in it, retired ones too.
    members: u32,
    pub(super) changed: bool,
}

impl Groups {
    /// The number of a group, for one more device in it.
    fn join(&mut self, label: &LabelKey, value: &LabelValue) -> u32 {
        let known = self.numbers.get(label).and_then(|values| values.get(value)).copied();
        let number = known.unwrap_or_else(|| self.begin(label.clone(), value.clone()));
        self.list[number as usize].members += 1;
        number
    }

    fn begin(&mut self, label: LabelKey, value: LabelValue) -> u32 {
        // The copy of a name that the groups hold already is kept.
        let label = self.numbers.get_key_value(&label).map_or(label, |(held, _)| held.clone());
        let fresh = LabelGroup {
            label: label.clone(),
            value: value.clone(),
            whole: Whole::default(),
            deployments: Shares::default(),
            members: 0,
            changed: false,
        };
        let number = match self.spare.pop() {
            Some(number) => {
                self.list[number as usize] = fresh;
                number
            }
            None => {
                self.list.push(fresh);
                (self.list.len() - 1) as u32
            }
        };
        self.numbers.entry(label).or_default().insert(value, number);
        number
    }

    /// A device has left a group. It must not count for anything there any more.
    fn leave(&mut self, number: u32) {
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

    /// What they are called.
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
    /// Puts a standing into its counts in place of what it was.
    pub(super) fn exchange(&mut self, deployment: u32, from: Share, to: Share) {
        self.whole.exchange(from, to, deployment, &mut self.deployments);
    }
}

impl Fleet {
    /// Moves a device into the groups of these labels, with all that it counts for as it is now.
    pub(super) fn regroup(&mut self, number: u32, labels: &Labels) {
        let device = &mut self.devices[number as usize];
        let named = device.groups.iter().map(|number| self.totals.groups.get(*number));
        if named.map(|group| (&group.label, &group.value)).eq(labels) {
            return;
        }
        let facet = device.about.facet();
        self.lenses.weigh(Way::Out, &self.totals, number, device, &facet);
        let joined = labels.iter().map(|(label, value)| self.totals.groups.join(label, value)).collect();
        let left = std::mem::replace(&mut device.groups, joined);
        self.totals.weigh_in_groups(Way::Out, device, &left);
        self.totals.weigh_in_groups(Way::In, device, &device.groups);
        left.iter().for_each(|number| self.totals.groups.leave(*number));
        self.lenses.weigh(Way::In, &self.totals, number, device, &facet);
    }

    /// The hub's labels of a device.
    pub(super) fn labels_of(&self, device: &Device) -> Labels {
        let named = device.groups.iter().map(|number| self.totals.groups.get(*number));
        named.map(|group| (group.label.clone(), group.value.clone())).collect()
    }

    /// What a device says of itself, and over it what the hub says.
    pub(super) fn labels_shown(&self, device: &Device) -> BTreeMap<String, String> {
        let own = device.about.nature.as_deref().map(|nature| nature.labels.clone()).unwrap_or_default();
        let hub = self.labels_of(device);
        own.into_iter()
            .chain(hub.into_iter().map(|(label, value)| (label.to_string(), value.to_string())))
            .collect()
    }
}
