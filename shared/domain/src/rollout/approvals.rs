//! Counts the approvals of a wave. Who may approve is `muster-contract`'s rule, and the server vouches for the requester.

use muster_contract::Timestamp;
use muster_contract::rollout::{Approval, Rollout, RolloutRecord, Wave};
use serde::Serialize;

/// The approvals of a wave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalCount {
    /// Number of different requesters that have approved it lately.
    pub given: usize,
    /// Number that it needs.
    pub needed: usize,
    /// Number of those that were given to an earlier `rollout.yaml` and do not count: the wave or `approvals` was edited.
    #[serde(skip_serializing_if = "is_zero")]
    pub void: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The approvals of a wave that needs some.
pub(super) fn approvals(
    rollout: &Rollout,
    wave: &Wave,
    record: Option<&RolloutRecord>,
    now: Timestamp,
) -> Option<ApprovalCount> {
    if wave.approval.is_none() {
        return None;
    }
    let since = now.checked_sub(rollout.approvals.expires_after).unwrap_or(Timestamp::MIN);
    let policy = rollout.approved_policy(wave);
    let of_record = |record: &RolloutRecord| {
        // An approval of evidence counts from the moment at which there was evidence to approve.
        let since = match wave.approval {
            Approval::After => since.max(record.ready(wave.name.as_str())?),
            Approval::Before | Approval::None => since,
        };
        let count = |policy| record.approvals(&wave.name, since, policy, &rollout.approvals);
        Some((count(Some(policy)), count(None)))
    };
    let (given, of_any_policy) = record.and_then(of_record).unwrap_or_default();
    let needed = usize::try_from(rollout.approvals.need.get()).unwrap_or(usize::MAX);
    Some(ApprovalCount { given, needed, void: of_any_policy - given })
}
