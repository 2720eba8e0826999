//! Knowledge of a planner about the answers of a plan's hooks that PLANS does not keep: it spares PLANS one document per attempt. A
//! planner that starts anew has none, and asks about the best candidates again.

use std::collections::BTreeSet;

use muster_contract::{DeviceKey, RevisionId};

/// The last attempts to get answers for one revision.
#[derive(Debug, Clone)]
pub(super) struct HookMemory {
    pub(super) revision: RevisionId,
    /// Candidates that the hooks have left out, since each of them was left out once.
    pub(super) left_out: BTreeSet<DeviceKey>,
    /// The hook without a usable answer in the last attempt, and the reason.
    pub(super) inconclusive: Option<(String, String)>,
    /// The epoch of capacity and the version of the plan at which no node was a candidate.
    pub(super) none_at: Option<(u64, u64)>,
}

impl HookMemory {
    /// No attempt yet.
    pub(super) const fn new(revision: RevisionId) -> Self {
        Self { revision, left_out: BTreeSet::new(), inconclusive: None, none_at: None }
    }
}
