//! The targets of a live rollout as the rules of steps read them. Lists them anew where a policy counts them otherwise.

use std::borrow::Cow;

use super::super::steps::Targets;
use super::super::target::Target;
use super::LiveRollout;

/// The targets of a live rollout, under its policies for devices that are not heard if it has any.
pub(super) struct LiveTargets<'a> {
    pub(super) rollout: &'a LiveRollout,
    pub(super) counted: Option<Vec<Target<'a>>>,
}

impl Targets for LiveTargets<'_> {
    fn all(&self) -> Cow<'_, [Target<'_>]> {
        self.counted.as_ref().map_or_else(|| Cow::Owned(self.rollout.list()), |all| Cow::Borrowed(&all[..]))
    }

    fn members(&self, wave: usize) -> Vec<usize> {
        let rows = &self.rollout.rows;
        (0..rows.len()).filter(|at| usize::from(rows[*at].wave) == wave).collect()
    }
}
