//! Answers about groups, and their views. The devices without a group are the whole minus the groups, so no
//! answer walks the fleet.

use std::ops::Bound::{Excluded, Unbounded};

use muster_contract::groups::{GroupLine, GroupView, GroupsAnswer, LabelLine, LabelsAnswer};
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, LabelKey, LabelValue};

use super::super::answer::{Page, cut_page};
use super::super::fleet::Fleet;
use super::super::tally::{Devices, Group};
use super::super::view::shown_group;
use super::LabelGroup;

/// Why there are no groups to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoGroups {
    /// No device has the label.
    Label,
    /// The deployment is targeted nowhere and left nowhere.
    Deployment,
}

impl Fleet {
    /// The view of a group; none where it has no device.
    pub fn group_view(&self, label: &LabelKey, value: &LabelValue) -> Option<GroupView> {
        let group = self.totals.groups.find(label, value)?;
        if group.whole.devices.by_freshness().total() == 0 {
            return None;
        }
        Some(shown_group(label.clone(), value.clone(), self.tally(&group.whole, self.times_of_group(group))))
    }

    /// Whether a group has a view.
    pub(in crate::fold) fn has_group(&self, label: &LabelKey, value: &LabelValue) -> bool {
        let group = self.totals.groups.find(label, value);
        group.is_some_and(|group| group.whole.devices.by_freshness().total() > 0)
    }

    /// The labels that group devices.
    pub fn labels_answer(&self, page: &Page<LabelKey>) -> LabelsAnswer {
        let groups = &self.totals.groups;
        let from = page.after.as_ref().map_or(Unbounded, Excluded);
        let named = groups.numbers.range::<LabelKey, _>((from, Unbounded));
        let lines = named.map(|(label, values)| {
            let devices = values.values().map(|number| groups.get(*number).whole.devices);
            label_line(label, &self.totals.fleet.devices, devices)
        });
        let (labels, next) = cut_page(lines, page.limit, |line| line.label.to_string());
        LabelsAnswer { as_of: self.as_of, labels, next }
    }

    /// The fleet, or a deployment, by a label.
    ///
    /// # Errors
    /// Which of the two there is not.
    pub fn groups_answer(
        &self,
        label: &LabelKey,
        deployment: Option<&DeploymentId>,
        page: &Page<LabelValue>,
    ) -> Result<GroupsAnswer, NoGroups> {
        let number = match deployment {
            Some(id) => Some(*self.totals.deployment_numbers.get(id).ok_or(NoGroups::Deployment)?),
            None => None,
        };
        let total = number.map_or(self.totals.fleet.group, |number| self.totals.deployment(number).group);
        if number.is_some() && total.is_empty() {
            return Err(NoGroups::Deployment);
        }
        let groups = self.totals.groups.of(label).ok_or(NoGroups::Label)?;
        let counts = groups.map(|group| (&group.value, group.whole.devices, group.counts_of(number)));
        let counts = counts.filter(|(.., counts)| number.is_none() || !counts.is_empty());
        let split = Split { label, deployment, total, counts: counts.collect() };
        Ok(split.answer(self.as_of, page))
    }
}

/// A whole by a label: each value with its devices and its share.
pub(in crate::fold) struct Split<'a> {
    pub(in crate::fold) label: &'a LabelKey,
    pub(in crate::fold) deployment: Option<&'a DeploymentId>,
    pub(in crate::fold) total: Group,
    pub(in crate::fold) counts: Vec<(&'a LabelValue, Devices, Group)>,
}

impl Split<'_> {
    pub(in crate::fold) fn answer(&self, as_of: AsOf, page: &Page<LabelValue>) -> GroupsAnswer {
        let without = self.counts.iter().fold(self.total, |rest, (.., counts)| rest.without(counts));
        let wanted =
            self.counts.iter().filter(|(value, ..)| page.after.as_ref().is_none_or(|at| *value > at));
        let lines = wanted.map(|(value, devices, counts)| GroupLine {
            value: (*value).clone(),
            devices: devices.by_freshness(),
            part: counts.part(),
        });
        let (groups, next) = cut_page(lines, page.limit, |line| line.value.to_string());
        GroupsAnswer {
            as_of,
            label: self.label.clone(),
            deployment: self.deployment.cloned(),
            total: self.total.part(),
            groups,
            without: without.part(),
            next,
        }
    }
}

/// A label of some of these devices, with the devices by value.
pub(in crate::fold) fn label_line(
    label: &LabelKey,
    all: &Devices,
    values: impl Iterator<Item = Devices>,
) -> LabelLine {
    let (mut count, mut devices) = (0, Devices::default());
    for part in values {
        count += 1;
        devices += part;
    }
    LabelLine {
        label: label.clone(),
        values: count,
        devices: devices.by_freshness(),
        without: all.without(&devices).by_freshness(),
    }
}

impl LabelGroup {
    /// Its share of a deployment, or of everything.
    pub(in crate::fold) fn counts_of(&self, deployment: Option<u32>) -> Group {
        match deployment {
            Some(number) => self.deployments.get(number).copied().unwrap_or_default(),
            None => self.whole.group,
        }
    }
}
