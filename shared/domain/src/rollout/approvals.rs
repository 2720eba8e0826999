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
    let of_record = |record: &RolloutRecord| {
        // An approval of evidence counts from the moment at which there was evidence to approve.
        let ready = (wave.approval == Approval::After).then(|| record.ready(wave.name.as_str()));
        match ready {
            Some(None) => 0,
            Some(Some(ready)) => record.approvals(&wave.name, since.max(ready), &rollout.approvals),
            None => record.approvals(&wave.name, since, &rollout.approvals),
        }
    };
    let given = record.map_or(0, of_record);
    let needed = usize::try_from(rollout.approvals.need.get()).unwrap_or(usize::MAX);
    Some(ApprovalCount { given, needed })
}
