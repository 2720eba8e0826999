//! Answers about groups, and their views. The devices without a group are the whole minus the groups, so no count
//! needs a visit to devices.

use std::ops::Bound::{Excluded, Unbounded};

use muster_contract::explained::Explained;
use muster_contract::groups::{GroupLine, GroupView, GroupsAnswer, LabelLine, LabelsAnswer};
use muster_contract::standing_part::StandingPart;
use muster_contract::view::AsOf;
use muster_contract::{DeploymentId, LabelKey, LabelValue};

use super::super::answer::{Page, cut_page};
use super::super::fleet::Fleet;
use super::super::max_timestamp::Times;
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
        let groups: Vec<&LabelGroup> = self.totals.groups.of(label).ok_or(NoGroups::Label)?.collect();
        let times = self.times_by_group(number, &groups);
        let values = groups.into_iter().map(|group| ValueCounts {
            value: &group.value,
            devices: group.whole.devices,
            counts: group.counts_of(number),
            times: times.get(&(&group.label, &group.value)).copied().unwrap_or_default(),
        });
        let values = values.filter(|value| number.is_none() || !value.counts.is_empty()).collect();
        let times = number.map_or_else(|| self.times_of_fleet(), |number| self.times_of_deployment(number));
        Ok(Split { label, deployment, total, times, values }.answer(self.as_of, page))
    }
}

/// A whole by a label.
pub(in crate::fold) struct Split<'a> {
    pub(in crate::fold) label: &'a LabelKey,
    pub(in crate::fold) deployment: Option<&'a DeploymentId>,
    pub(in crate::fold) total: Group,
    /// The times of everything.
    pub(in crate::fold) times: Times,
    pub(in crate::fold) values: Vec<ValueCounts<'a>>,
}

/// The share of one group in a whole.
pub(in crate::fold) struct ValueCounts<'a> {
    pub(in crate::fold) value: &'a LabelValue,
    /// All its devices.
    pub(in crate::fold) devices: Devices,
    pub(in crate::fold) counts: Group,
    pub(in crate::fold) times: Times,
}

impl Split<'_> {
    pub(in crate::fold) fn answer(&self, as_of: AsOf, page: &Page<LabelValue>) -> GroupsAnswer {
        let without = self.values.iter().fold(self.total, |rest, value| rest.without(&value.counts));
        let wanted =
            self.values.iter().filter(|value| page.after.as_ref().is_none_or(|after| value.value > after));
        let lines = wanted.map(|ValueCounts { value, devices, counts, times }| GroupLine {
            value: (*value).clone(),
            devices: devices.by_freshness(),
            part: explained(counts, *times),
        });
        let (groups, next) = cut_page(lines, page.limit, |line| line.value.to_string());
        GroupsAnswer {
            as_of,
            label: self.label.clone(),
            deployment: self.deployment.cloned(),
            total: explained(&self.total, self.times),
            groups,
            without: explained(&without, Times::default()),
            next,
        }
    }
}

/// Counts of standings with the rule of their verdict.
fn explained(counts: &Group, times: Times) -> Explained<StandingPart> {
    Explained {
        message: counts.verdict().words(counts.heard()),
        changed_at: times.changed_at,
        last_heard_at: times.heard_at,
        part: counts.part(),
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
