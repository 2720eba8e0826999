//! The share that a part of the fleet has of each deployment, by the deployment's number. Most parts are small and have few:
//! a list takes what is in it, where a tree would take room for eleven at once.

use super::tally::Group;

/// Counts by deployment, none of them empty.
#[derive(Debug, Default)]
pub(super) struct Shares(Vec<(u32, Group)>);

impl Shares {
    pub(super) fn get(&self, deployment: u32) -> Option<&Group> {
        self.place(deployment).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn has(&self, deployment: u32) -> bool {
        self.place(deployment).is_ok()
    }

    /// Changes the counts of a deployment, of which there may be none yet, and none afterwards.
    pub(super) fn change(&mut self, deployment: u32, change: impl FnOnce(&mut Group)) {
        let at = self.place(deployment).unwrap_or_else(|at| {
            self.0.reserve_exact(1);
            self.0.insert(at, (deployment, Group::default()));
            at
        });
        change(&mut self.0[at].1);
        if self.0[at].1.is_empty() {
            self.0.remove(at);
            self.0.shrink_to_fit();
        }
    }

    fn place(&self, deployment: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&deployment, |(number, _)| *number)
    }
}
