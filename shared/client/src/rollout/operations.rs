//! The releases of a rollout as operations: each is an update of one device, approved by a wave. Derived from the decisions and the
//! evidence alone, so an operation needs no record of its own.

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use muster_contract::canonical::Digest;
use muster_contract::plans::{OperationState, OperationType, OperationsQuery};
use muster_contract::query::SomeDevices;
use muster_contract::rollout::{Approval, RolloutPhase, RolloutRecord};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{ApprovalCount, Known, RolloutProgress, WaveState};
use serde::Serialize;

use super::approvals::under_way;
use super::gather::{ask_each, rollouts_at};
use crate::ask::{AskError, Hub};

/// Devices that an entry names, at most.
const DEVICES_NAMED_MAX: usize = 20;

/// The operations of one wave that have the same state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutOperations {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The wave: its approval approves these operations.
    pub wave: String,
    /// Their type.
    #[serde(rename = "type")]
    pub operation_type: OperationType,
    /// Their state.
    pub state: OperationState,
    /// Their devices.
    pub devices: SomeDevices,
    /// The approvals before the wave, if it needs some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
}

/// The operations of all rollouts that are under way or hold a change.
///
/// # Errors
/// No publisher or query service answers, the query service lags behind LEDGER, or a commit is accepted meanwhile.
async fn operations_under_way(hub: &Hub, now: Timestamp) -> Result<Vec<RolloutOperations>, AskError> {
    let rollouts = ask_each(under_way(hub).await?, |id| async move { rollouts_at(hub, &id, now).await });
    rollouts.map_ok(|found| found.iter().flat_map(operations).collect::<Vec<_>>()).try_concat().await
}

/// The operations of rollouts under way that pass the filters of a list; `None` if the filters select operations of plans alone.
///
/// # Errors
/// As [`operations_under_way`].
pub async fn operations_listed(
    hub: &Hub,
    query: &OperationsQuery,
    now: Timestamp,
) -> Result<Option<Vec<RolloutOperations>>, AskError> {
    // A release of a rollout is an update, and belongs to no plan.
    let types = &query.operation_type;
    if !query.plan.is_empty()
        || !query.instance.is_empty()
        || !types.is_empty() && !types.contains(&OperationType::Update)
    {
        return Ok(None);
    }
    let mut all = operations_under_way(hub, now).await?;
    all.retain(|one| query.state.is_empty() || query.state.contains(&one.state));
    Ok(Some(all))
}

/// The operations of a rollout, by wave and state.
pub fn operations(rollout: &RolloutProgress) -> Vec<RolloutOperations> {
    let of_wave = |(at, wave): (usize, &WaveState)| {
        let mut by_state: BTreeMap<OperationState, Vec<usize>> = BTreeMap::new();
        for member in &wave.members {
            by_state.entry(state(rollout, wave, at, rollout.known[*member])).or_default().push(*member);
        }
        let needs_before = needs_approval_before(rollout, at);
        let operations = move |(state, members): (OperationState, Vec<usize>)| RolloutOperations {
            deployment: rollout.deployment.clone(),
            digest: rollout.digest,
            rollout: rollout.file.clone(),
            wave: wave.name.clone(),
            operation_type: OperationType::Update,
            state,
            devices: SomeDevices::of(
                members.iter().map(|member| &rollout.targets[*member].key),
                DEVICES_NAMED_MAX,
            ),
            approvals: wave.approvals.filter(|_| needs_before),
        };
        by_state.into_iter().map(operations).collect::<Vec<_>>()
    };
    rollout.state.waves.iter().enumerate().flat_map(of_wave).collect()
}

fn needs_approval_before(rollout: &RolloutProgress, wave: usize) -> bool {
    rollout.policy.waves.get(wave).is_some_and(|wave| wave.approval == Approval::Before)
}

/// The state of a wave's operation on a device.
fn state(rollout: &RolloutProgress, wave: &WaveState, at: usize, known: Known) -> OperationState {
    match known {
        Known::NotReleased => not_released(rollout, wave, at),
        Known::NotInLedger => OperationState::Approved,
        Known::NotHeard | Known::ReportsMissing | Known::UnderWay | Known::TriesAgain | Known::Overdue => {
            OperationState::Running
        }
        Known::Confirmed => OperationState::Succeeded,
        Known::Failed => OperationState::Failed,
    }
}

/// The state of an operation whose device does not have the content.
fn not_released(rollout: &RolloutProgress, wave: &WaveState, at: usize) -> OperationState {
    let record = rollout.record.as_ref();
    let has_begun = record.is_some_and(|record| record.began(&wave.name).is_some());
    match record.map(RolloutRecord::phase).unwrap_or_default() {
        RolloutPhase::Stopped | RolloutPhase::Aborted | RolloutPhase::RolledBack => OperationState::Cancelled,
        RolloutPhase::Succeeded => OperationState::Approved,
        RolloutPhase::Running | RolloutPhase::Paused | RolloutPhase::Superseded => {
            let is_missing = |count: ApprovalCount| count.given < count.needed;
            match (has_begun, wave.approvals) {
                (true, _) => OperationState::Approved,
                (false, Some(count)) if needs_approval_before(rollout, at) && is_missing(count) => {
                    OperationState::PendingApproval
                }
                (false, _) => OperationState::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::rollout::{RolloutDecision, RolloutVerb, TargetsAnswer};
    use muster_domain::rollout::{Lines, progress};
    use serde_json::json;

    use super::*;

    /// Each wave's states with their numbers of devices, after decisions.
    fn states(decisions: &[(RolloutVerb, &str)]) -> Vec<(String, OperationState, u64)> {
        let digest = Digest::of_bytes(b"v2");
        let decision = |(verb, wave): &(RolloutVerb, &str)| RolloutDecision {
            wave: wave.parse().ok(),
            ..RolloutDecision::new(*verb, Timestamp::UNIX_EPOCH)
        };
        let mut record = RolloutRecord::new(digest, "rollout.yaml".to_owned());
        record.decisions = decisions.iter().map(decision).collect();
        let target = |at: usize| {
            let published = (at == 0).then_some(digest);
            json!({ "site": "s", "device": format!("d{at}"), "rollout": "rollout.yaml", "wanted": digest, "published": published,
                "targetGeneration": 1 })
        };
        let waves = json!([{ "name": "first", "devices": ["s/d0"] }, { "name": "most", "percent": "100%", "approval": "before" }]);
        let answer: TargetsAnswer = serde_json::from_value(json!({
            "revision": "c1",
            "rollouts": { "rollout.yaml": { "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves } },
            "targets": (0..3).map(target).collect::<Vec<_>>(),
            "decisions": [record],
        }))
        .unwrap();
        let id = "web".parse().unwrap();
        let found = progress(&id, answer, &Lines::default(), Timestamp::UNIX_EPOCH).pop().unwrap();
        let one = |one: RolloutOperations| (one.wave, one.state, one.devices.count);
        operations(&found).into_iter().map(one).collect()
    }

    #[test]
    fn a_waves_operations_wait_for_its_approval_and_end_with_its_rollout() {
        use OperationState::{Approved, Cancelled, Pending, PendingApproval};
        let begin = (RolloutVerb::Begin, "first");
        let of = |state, decisions: &[_]| {
            let found = states(decisions);
            assert_eq!(found, [("first".to_owned(), Approved, 1), ("most".to_owned(), state, 2)]);
        };
        of(PendingApproval, &[begin]);
        of(Pending, &[begin, (RolloutVerb::Approve, "most")]);
        of(Approved, &[begin, (RolloutVerb::Approve, "most"), (RolloutVerb::Begin, "most")]);
        of(Cancelled, &[begin, (RolloutVerb::Stop, "")]);
    }
}
