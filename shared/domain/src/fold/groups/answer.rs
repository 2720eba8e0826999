//! Views of groups, and answers about them. What is in no group is the whole without the groups: nobody walks the fleet.

use std::ops::Bound::{Excluded, Unbounded};

use muster_contract::groups::{GroupLine, GroupView, GroupsAnswer, LabelLine, LabelsAnswer};
use muster_contract::view::content_digest;
use muster_contract::{DeploymentId, LabelKey, LabelValue};

use super::super::answer::{Page, cut_page};
use super::super::fleet::Fleet;
use super::super::tally::{Devices, Group};
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
        let mut view = GroupView {
            api_version: Default::default(),
            kind: Default::default(),
            label: label.clone(),
            value: value.clone(),
            tally: self.tally(&group.whole),
        };
        view.tally.digest = content_digest(&view);
        Some(view)
    }

    /// Whether a group has a view.
    pub(in crate::fold) fn has_group(&self, label: &LabelKey, value: &LabelValue) -> bool {
        let group = self.totals.groups.find(label, value);
        group.is_some_and(|group| group.whole.devices.by_freshness().total() > 0)
    }

    /// What devices are grouped by.
    pub fn labels_answer(&self, page: &Page<LabelKey>) -> LabelsAnswer {
        let groups = &self.totals.groups;
        let from = page.after.as_ref().map_or(Unbounded, Excluded);
        let named = groups.numbers.range::<LabelKey, _>((from, Unbounded));
        let lines = named.map(|(label, values)| {
            let devices = values.values().map(|number| groups.get(*number).whole.devices);
            let devices = devices.fold(Devices::default(), |mut sum, part| {
                sum += part;
                sum
            });
            LabelLine {
                label: label.clone(),
                values: values.len() as u64,
                devices: devices.by_freshness(),
                without: self.totals.fleet.devices.without(&devices).by_freshness(),
            }
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
        let shares: Vec<(&LabelGroup, Group)> = self
            .totals
            .groups
            .of(label)
            .ok_or(NoGroups::Label)?
            .map(|group| (group, group.share_of(number)))
            .filter(|(_, share)| number.is_none() || !share.is_empty())
            .collect();
        let without = shares.iter().fold(total, |rest, (_, share)| rest.without(share));
        let wanted =
            shares.iter().filter(|(group, _)| page.after.as_ref().is_none_or(|at| group.value > *at));
        let lines = wanted.map(|(group, share)| GroupLine {
            value: group.value.clone(),
            devices: group.whole.devices.by_freshness(),
            part: share.part(),
        });
        let (groups, next) = cut_page(lines, page.limit, |line| line.value.to_string());
        Ok(GroupsAnswer {
            as_of: self.as_of,
            label: label.clone(),
            deployment: deployment.cloned(),
            total: total.part(),
            groups,
            without: without.part(),
            next,
        })
    }
}

impl LabelGroup {
    /// Its share of a deployment, or of everything.
    fn share_of(&self, deployment: Option<u32>) -> Group {
        match deployment {
            Some(number) => self.deployments.get(&number).copied().unwrap_or_default(),
            None => self.whole.group,
        }
    }
}
