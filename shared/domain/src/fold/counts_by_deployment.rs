//! Counts of a part of the fleet by deployment number. Most parts have few deployments: the counts are boxed,
//! because leaves of the tree have room for eleven.

use std::collections::BTreeMap;

use super::tally::Group;

/// Counts by deployment, none of them empty.
#[derive(Debug, Default)]
pub(super) struct CountsByDeployment(BTreeMap<u32, Box<Group>>);

impl CountsByDeployment {
    pub(super) fn get(&self, deployment: u32) -> Option<&Group> {
        self.0.get(&deployment).map(|group| &**group)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        self.0.iter().map(|(deployment, group)| (*deployment, &**group))
    }

    pub(super) fn has(&self, deployment: u32) -> bool {
        self.0.contains_key(&deployment)
    }

    /// Changes the counts of a deployment. Empty counts are created before and removed after it as needed.
    pub(super) fn change(&mut self, deployment: u32, change: impl FnOnce(&mut Group)) {
        let group = self.0.entry(deployment).or_default();
        change(group);
        if group.is_empty() {
            self.0.remove(&deployment);
        }
    }
}
