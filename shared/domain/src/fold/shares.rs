//! The share that a part of the fleet has of each deployment, by the deployment's number. Most parts are small and have few:
//! counts lie beside the tree, whose leaves have room for eleven.

use std::collections::BTreeMap;

use super::tally::Group;

/// Counts by deployment, none of them empty.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<u32, Box<Group>>);

impl Shares {
    pub(super) fn get(&self, deployment: u32) -> Option<&Group> {
        self.0.get(&deployment).map(|group| &**group)
    }

    pub(super) fn has(&self, deployment: u32) -> bool {
        self.0.contains_key(&deployment)
    }

    /// Changes the counts of a deployment, of which there may be none yet, and none afterwards.
    pub(super) fn change(&mut self, deployment: u32, change: impl FnOnce(&mut Group)) {
        let group = self.0.entry(deployment).or_default();
        change(group);
        if group.is_empty() {
            self.0.remove(&deployment);
        }
    }
}
