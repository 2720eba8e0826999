//! The targets that a release would not reach, by the publisher's list or by its answer to a release. It asks nothing.

use muster_contract::DeviceKey;

use super::LiveRollout;

/// The sources of a target's refusal: the publisher's list, its answer to a release, or both. One byte, because there are millions of
/// targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusals(u8);

impl Refusals {
    const BY_LIST: u8 = 1;
    const BY_ANSWER: u8 = 2;

    pub(super) const fn of_list(is_refused: bool) -> Self {
        Self(if is_refused { Self::BY_LIST } else { 0 })
    }

    pub(super) const fn is_by_list(self) -> bool {
        self.0 & Self::BY_LIST != 0
    }

    pub(super) const fn is_any(self) -> bool {
        self.0 != 0
    }

    const fn set_answer(&mut self, was_refused: bool) {
        self.0 = self.0 & Self::BY_LIST | if was_refused { Self::BY_ANSWER } else { 0 };
    }
}

impl LiveRollout {
    /// Sets whether the publisher has just refused a release to a target: others get the content before it.
    pub fn set_refused_by_answer(&mut self, at: usize, was_refused: bool) {
        if let Some(row) = self.rows.get_mut(at) {
            row.refusals.set_answer(was_refused);
        }
    }

    /// Whether the publisher's list says that a device gets no release, or does not go back.
    pub fn is_refused_by_list(&self, key: &DeviceKey) -> bool {
        self.find(key).is_some_and(|at| self.rows[at].refusals.is_by_list())
    }
}
