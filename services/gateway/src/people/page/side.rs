//! The parts of the first screen that services answer beside the views: rollouts, what waits for an approval, dark devices, incidents,
//! the quarantine.
//!
//! A part that no service answers is shown as unknown, never as none.

use std::time::Duration;

use muster_client::ask::{AskError, Hub, understood};
use muster_client::rollout::{
    ApprovalRequest, HeldChanges, approvals_of, held_changes, rollouts_of, under_way,
};
use muster_contract::DeploymentId;
use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;
use muster_contract::plans::{OperationState, OperationStatus, OperationsAnswer, OperationsQuery};
use muster_contract::quarantine::{QuarantineAction, QuarantineAnswer, QuarantineRequest};
use muster_contract::query::{DeviceLine, DevicesAnswer, PAGE_MAX, Query};
use muster_contract::timeline::TimelineAnswer;
use muster_domain::rollout::RolloutProgress;
use muster_service::error::chain;
use tokio::time::timeout;

/// Time for all parts together: the page is shown without those that take longer.
const PART_TIMEOUT: Duration = Duration::from_secs(3);
/// Devices of the longest silence that are shown.
const SILENT_MAX: usize = 8;
/// Rollouts whose waves are shown.
const ROLLOUTS_MAX: usize = 6;
/// Deployments that are asked for waves that wait, the first by id: their answers take half of the time of a part if each takes 90 ms.
const ASKED_MAX: usize = 128;

/// A part, or why it is not known.
pub(super) type Part<T> = Result<T, String>;

/// The parts.
#[derive(Debug)]
pub(super) struct Side {
    /// Held changes and open rollouts.
    pub(super) held: Part<HeldChanges>,
    /// The waves of the first of them.
    pub(super) rollouts: Part<Vec<RolloutProgress>>,
    /// The devices with the longest silence.
    pub(super) dark: Part<Vec<DeviceLine>>,
    /// Incidents of the hub.
    pub(super) incidents: Part<Vec<HubIncident>>,
    /// Rejected reports, and whether there are more.
    pub(super) quarantined: Part<(u64, bool)>,
    /// How the counts of the fleet have changed.
    pub(super) timeline: Part<TimelineAnswer>,
    /// Waves that wait for an approval.
    pub(super) waves: Part<WaitingWaves>,
    /// Operations that wait for an approval, those that have waited longest first, and whether there are more than the first 1,000 by
    /// plan and instance; `None` if no planner runs.
    pub(super) operations: Part<Option<(Vec<OperationStatus>, bool)>>,
}

/// Waves that wait for an approval.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WaitingWaves {
    pub(super) waves: Vec<ApprovalRequest>,
    /// Deployments with a rollout or a held change beyond the [`ASKED_MAX`] that were asked about.
    pub(super) not_asked: u64,
}

/// Asks for the parts.
pub(super) async fn read(hub: &Hub, now: Timestamp) -> Side {
    let ((held, rollouts), dark, incidents, quarantined, waves, operations, timeline) = tokio::join!(
        async {
            let held = within(held_changes(hub)).await;
            let rollouts = match &held {
                Ok(held) => within(rollouts(hub, held, now)).await,
                Err(why) => Err(why.clone()),
            };
            (held, rollouts)
        },
        within(dark(hub)),
        within(hub.incidents()),
        within(quarantined(hub)),
        within(waves(hub, now)),
        within(operations(hub)),
        timeline(hub, None),
    );
    Side { held, rollouts, dark, incidents, quarantined, waves, operations, timeline }
}

async fn within<T>(part: impl Future<Output = Result<T, AskError>>) -> Part<T> {
    match timeout(PART_TIMEOUT, part).await {
        Ok(part) => part.map_err(|error| chain(&error)),
        Err(_) => Err(format!("no answer within {} s", PART_TIMEOUT.as_secs())),
    }
}

/// The deployments with held changes or open rollouts, those under way first.
pub(super) fn deployments(held: &HeldChanges) -> Vec<&DeploymentId> {
    let mut ids: Vec<&DeploymentId> = Vec::new();
    let open = held.open.iter().map(|rollout| &rollout.deployment);
    for id in open.chain(held.held.iter().map(|change| &change.deployment)) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

async fn rollouts(hub: &Hub, held: &HeldChanges, now: Timestamp) -> Result<Vec<RolloutProgress>, AskError> {
    rollouts_of(hub, deployments(held).into_iter().take(ROLLOUTS_MAX).cloned(), now).await
}

async fn dark(hub: &Hub) -> Result<Vec<DeviceLine>, AskError> {
    let query = Query { by_silence: true, limit: Some(SILENT_MAX), ..Query::default() };
    Ok(understood::<DevicesAnswer>(&hub.query("devices", &query).await?)?.devices)
}

async fn quarantined(hub: &Hub) -> Result<(u64, bool), AskError> {
    let request = QuarantineRequest {
        action: QuarantineAction::List,
        quarantine_seq: None,
        device: None,
        reason: None,
    };
    let page: QuarantineAnswer = understood(&hub.quarantine(0, &request).await?)?;
    // An ingest of an earlier release does not count them.
    Ok(page.total.map_or((page.reports.len() as u64, page.next.is_some()), |total| (total, false)))
}

/// How the counts of the fleet, or of a deployment, have changed.
pub(super) async fn timeline(hub: &Hub, id: Option<&DeploymentId>) -> Part<TimelineAnswer> {
    let query = Query { id: id.cloned(), ..Query::default() };
    within(async { understood(&hub.query("timeline", &query).await?) }).await
}

async fn waves(hub: &Hub, now: Timestamp) -> Result<WaitingWaves, AskError> {
    let all = under_way(hub).await?;
    let not_asked = all.len().saturating_sub(ASKED_MAX) as u64;
    let waves = approvals_of(hub, all.into_iter().take(ASKED_MAX), now).await?.into_waiting()?;
    Ok(WaitingWaves { waves, not_asked })
}

async fn operations(hub: &Hub) -> Result<Option<(Vec<OperationStatus>, bool)>, AskError> {
    let query = OperationsQuery {
        state: vec![OperationState::PendingApproval],
        limit: Some(PAGE_MAX),
        ..OperationsQuery::default()
    };
    let answer = match hub.planner("operation-list", &query).await {
        Err(AskError::NoService { .. }) => return Ok(None),
        answer => answer?,
    };
    let OperationsAnswer { mut operations, next } = understood(&answer)?;
    operations.sort_by_key(|status| status.operation.history.last().map(|step| step.at));
    Ok(Some((operations, next.is_some())))
}
