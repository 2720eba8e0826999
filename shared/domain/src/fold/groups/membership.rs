//! The groups of each device: moves a device between groups, and shows its labels. It counts nothing itself.

use std::collections::BTreeMap;

use muster_contract::DeploymentId;
use muster_contract::host::{HOSTED_BY, Host};
use muster_contract::labels::Labels;
use muster_contract::view::Verdict;

use super::super::delta::Delta;
use super::super::device::Device;
use super::super::fleet::Fleet;
use super::super::standing::Row;

impl Fleet {
    /// Moves a device and its contributions into the groups of these labels.
    pub(in crate::fold) fn regroup(&mut self, number: u32, labels: &Labels) {
        let device = &mut self.devices[number as usize];
        let named = device.groups.iter().map(|number| self.totals.groups.get(*number));
        if named.map(|group| (&group.label, &group.value)).eq(labels) {
            return;
        }
        let context = device.state.context();
        self.view_aggregates.apply_delta(Delta::Retract, &self.totals, number, device, &context);
        let joined = labels.iter().map(|(label, value)| self.totals.groups.join(label, value)).collect();
        let left = std::mem::replace(&mut device.groups, joined);
        self.totals.apply_to_groups(Delta::Retract, device, &left);
        self.totals.apply_to_groups(Delta::Add, device, &device.groups);
        left.iter().for_each(|number| self.totals.groups.remove_member(*number));
        self.view_aggregates.apply_delta(Delta::Add, &self.totals, number, device, &context);
    }

    /// The hub's labels of a device.
    pub(in crate::fold) fn labels_of(&self, device: &Device) -> Labels {
        let named = device.groups.iter().map(|number| self.totals.groups.get(*number));
        named.map(|group| (group.label.clone(), group.value.clone())).collect()
    }

    /// The deployment that hosts a device, by its label from the hub; none if the device itself should run it.
    pub(in crate::fold) fn host_of(&self, device: &Device) -> Option<Host> {
        let mut groups = device.groups.iter().map(|number| self.totals.groups.get(*number));
        let deployment: DeploymentId =
            groups.find(|group| group.label.as_str() == HOSTED_BY)?.value.as_str().parse().ok()?;
        let number = self.totals.deployment_numbers.get(&deployment);
        let is_own = |row: &Row| Some(&row.deployment) == number && row.target.is_some();
        if device.rows.iter().any(is_own) {
            return None;
        }
        let verdict = number.map_or(Verdict::Empty, |number| self.totals.deployment(*number).group.verdict());
        Some(Host { deployment, verdict })
    }

    /// The device's own labels, overridden by the hub's labels.
    pub(in crate::fold) fn labels_shown(&self, device: &Device) -> BTreeMap<String, String> {
        let own = device
            .state
            .capabilities
            .as_deref()
            .map(|capabilities| capabilities.labels.clone())
            .unwrap_or_default();
        let hub = self.labels_of(device);
        own.into_iter()
            .chain(hub.into_iter().map(|(label, value)| (label.to_string(), value.to_string())))
            .collect()
    }
}
