//! The parts of the first screen that services answer beside the views: rollouts, what waits for an approval, dark devices, incidents,
//! the quarantine. All pages of a gateway share one answer for a second, so a thousand of them ask no more than one.
//!
//! A part that no service answers is shown as unknown, never as none.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use muster_client::ask::{AskError, Hub, understood};
use muster_client::rollout::{ApprovalRequest, HeldChanges, held_changes, read_approvals, rollouts_at};
use muster_contract::DeploymentId;
use muster_contract::Timestamp;
use muster_contract::incident::HubIncident;
use muster_contract::plans::{OperationState, OperationStatus, OperationsAnswer, OperationsQuery};
use muster_contract::quarantine::{QuarantineAction, QuarantineAnswer, QuarantineRequest};
use muster_contract::query::{DeviceLine, DevicesAnswer, PAGE_MAX, Query};
use muster_contract::timeline::TimelineAnswer;
use muster_domain::rollout::RolloutProgress;
use muster_service::error::chain;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Time for which an answer is shared.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Time for all parts together: the page is shown without those that take longer.
const PART_TIMEOUT: Duration = Duration::from_secs(3);
/// Devices that are shown by their silence.
pub(super) const DARK_MAX: usize = 8;
/// Rollouts whose waves are shown.
const ROLLOUTS_MAX: usize = 6;

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
    pub(super) waves: Part<Vec<ApprovalRequest>>,
    /// Operations that wait for an approval, those that have waited longest first, and whether there are more than the first 1,000 by
    /// plan and instance; `None` if no planner runs.
    pub(super) operations: Part<Option<(Vec<OperationStatus>, bool)>>,
}

/// The newest parts, and when they were asked for.
#[derive(Debug, Default)]
pub(crate) struct SideCache(Mutex<Option<(Instant, Arc<Side>)>>);

impl SideCache {
    /// The parts, at most a second old.
    pub(super) async fn read(&self, hub: &Hub, now: Timestamp) -> Arc<Side> {
        let mut held = self.0.lock().await;
        if let Some((at, side)) = &*held
            && at.elapsed() < SHARED_FOR
        {
            return side.clone();
        }
        let side = Arc::new(Box::pin(ask(hub, now)).await);
        *held = Some((Instant::now(), side.clone()));
        side
    }
}

async fn ask(hub: &Hub, now: Timestamp) -> Side {
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
        within(timeline(hub, None)),
    );
    Side { held, rollouts, dark, incidents, quarantined, waves, operations, timeline }
}

pub(super) async fn within<T>(part: impl Future<Output = Result<T, AskError>>) -> Part<T> {
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
    let mut all = Vec::new();
    for id in deployments(held).into_iter().take(ROLLOUTS_MAX) {
        all.extend(rollouts_at(hub, id, now).await?);
    }
    Ok(all)
}

async fn dark(hub: &Hub) -> Result<Vec<DeviceLine>, AskError> {
    let query = Query { by_silence: true, limit: Some(DARK_MAX), ..Query::default() };
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
pub(super) async fn timeline(hub: &Hub, id: Option<&DeploymentId>) -> Result<TimelineAnswer, AskError> {
    let query = Query { id: id.cloned(), ..Query::default() };
    understood(&hub.query("timeline", &query).await?)
}

async fn waves(hub: &Hub, now: Timestamp) -> Result<Vec<ApprovalRequest>, AskError> {
    read_approvals(hub, iter::empty(), now).await?.into_waiting()
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
