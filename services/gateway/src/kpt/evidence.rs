//! Brings ResourceGroups of a device to UPLINK as reports, and vouches for the device while they are fresh.
//!
//! | step | after a gateway that dies behind it |
//! |---|---|
//! | 1. check every group against the desired state | nothing has changed; the cluster posts again, or the next poll comes |
//! | 2. deliver each report: number, UPLINK, confirmation (the commit point of each) | the next snapshot delivers the rest; a report that is in is not repeated |
//! | 3. a confirmed heartbeat that says how long the snapshots count | the device is stale from the end of the former one on |
//! | 4. answer | the same groups again make no report |

use std::collections::BTreeMap;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::evidence::EvidenceSource;
use muster_contract::http_device::{HttpDevice, Snapshot};
use muster_contract::report::StatusReport;
use muster_contract::{DeploymentId, DeviceKey, State, Timestamp};
use muster_domain::aggregate;
use serde::Serialize;
use serde_json::json;

use super::condition;
use super::group::{DEPLOYMENT, ResourceGroup, ResourceGroups};
use crate::margo::record::SentReport;
use crate::margo::status::StatusManifest;
use crate::margo::{Devices, problems};
use crate::problem::Problem;

/// Groups as evidence: where they come from, and how long they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeriodicEvidence {
    pub source: EvidenceSource,
    /// The time for which a snapshot is fresh.
    pub period: Duration,
    /// The source has one clock, so that a snapshot never replaces one that was taken later.
    pub is_ordered: bool,
}

/// The answer to groups of a device for which there is no desired state yet.
pub(crate) fn no_desired_state() -> Problem {
    problems::unavailable("the fleet has no desired state for this device yet")
}

/// A deployment as its groups show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ReportedDeployment {
    deployment: DeploymentId,
    state: State,
    generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The groups of a device, evaluated and not yet delivered.
#[derive(Debug)]
pub(crate) struct EvaluatedGroups {
    statuses: Vec<StatusManifest>,
    /// Groups that no report can be made of.
    pub refused: Vec<Problem>,
    /// Groups of a list that are of no deployment of the device.
    pub ignored: usize,
    desired: DesiredState,
    evidence: PeriodicEvidence,
    at: Timestamp,
}

impl EvaluatedGroups {
    /// Evaluates the groups of a device as of `at`; `None` if the fleet has no desired state for the device yet.
    ///
    /// # Errors
    /// The hub cannot be asked now.
    pub(crate) async fn of(
        devices: &Devices,
        key: &DeviceKey,
        groups: &ResourceGroups,
        evidence: PeriodicEvidence,
        at: Timestamp,
    ) -> Result<Option<Self>, Problem> {
        let desired = devices.store.desired(key).await?.map(|(_, desired)| desired);
        let Some(desired) = desired else { return Ok(None) };
        let read = |current: &mut HttpDevice, _: Option<&_>| {
            let known = current.deployments.iter().map(|(id, known)| (id.clone(), known.snapshot));
            Ok((known.collect::<BTreeMap<_, _>>(), false))
        };
        let known = devices.store.update(key, devices.now(), read).await?;
        let mut made = Self { statuses: Vec::new(), refused: Vec::new(), ignored: 0, desired, evidence, at };
        let by_deployment = made.sorted(groups, &known);
        for (id, groups) in &by_deployment {
            made.evaluate(id, groups);
        }
        if groups.is_whole {
            // A source with one clock knows nothing of deployments that others reported.
            let had = |snapshot: Snapshot| !evidence.is_ordered || snapshot.taken_at.is_some();
            let absent =
                known.iter().filter(|(id, known)| known.is_some_and(had) && !by_deployment.contains_key(*id));
            absent.for_each(|(id, _)| made.evaluate(id, &[]));
        }
        Ok(Some(made))
    }

    /// The groups by deployment, of those that the device has or had.
    fn sorted<'a>(
        &mut self,
        groups: &'a ResourceGroups,
        known: &BTreeMap<DeploymentId, Option<Snapshot>>,
    ) -> BTreeMap<DeploymentId, Vec<&'a ResourceGroup>> {
        let mut sorted: BTreeMap<DeploymentId, Vec<&ResourceGroup>> = BTreeMap::new();
        for group in &groups.groups {
            let named = group.deployment();
            let id = named.as_ref().ok().filter(|id| self.is_target(id) || known.contains_key(*id));
            match (id, named.as_ref()) {
                (Some(id), _) => sorted.entry(id.clone()).or_default().push(group),
                (None, _) if groups.is_list && group.text(DEPLOYMENT).is_none() => self.ignored += 1,
                (None, Err(problem)) => self.refused.push(problem.clone()),
                (None, Ok(id)) => {
                    let rule = format!(
                        "{id} is no deployment of this device; the label {DEPLOYMENT} names another one"
                    );
                    self.refused.push(problems::semantic_error("metadata.name", rule));
                }
            }
        }
        sorted
    }

    fn is_target(&self, id: &DeploymentId) -> bool {
        self.desired.deployments.iter().any(|entry| entry.id == *id)
    }

    fn evaluate(&mut self, id: &DeploymentId, groups: &[&ResourceGroup]) {
        let made = condition::status(id, groups, &self.desired);
        match made.and_then(|status| status.check(id).map(|()| status)) {
            Ok(status) => self.statuses.push(status),
            Err(problem) => {
                let detail = format!("ResourceGroup of {id}: {}", problem.detail);
                self.refused.push(Problem { detail, ..problem });
            }
        }
    }

    /// Delivers the reports, and then vouches for the device.
    ///
    /// # Errors
    /// The hub has not confirmed a report or the heartbeat: the groups must come again.
    pub(crate) async fn deliver(
        &self,
        devices: &Devices,
        key: &DeviceKey,
    ) -> Result<Vec<ReportedDeployment>, Problem> {
        let PeriodicEvidence { source: EvidenceSource { origin, fidelity }, period, is_ordered } =
            self.evidence;
        let fresh_until = self.at.checked_add(period).unwrap_or(self.at);
        for status in &self.statuses {
            let leaving = !self.is_target(&status.deployment_id);
            let snapshot = Snapshot {
                fresh_until: (!leaving).then_some(fresh_until),
                taken_at: is_ordered.then_some(self.at),
                severity: if is_ordered { aggregate::severity(status.status.state).into() } else { 0 },
            };
            let is_gone = leaving && status.status.state == State::Removed;
            let sent = SentReport {
                deployment: Some(&status.deployment_id),
                content: Digest::of_value(&json!([status, origin, fidelity])),
                adopted: Some(status.adopted_manifest_version),
                unreachable: None,
                snapshot: (!is_gone).then_some(snapshot),
            };
            let report = |numbered: &_| Ok(StatusReport { origin, fidelity, ..status.report(numbered) });
            devices.deliver(key, sent, Some(&self.desired), report).await?;
        }
        // A device none of whose groups came is not vouched for. A sample of a deployment that leaves has no period that a heartbeat
        // could name, and may be old.
        let mut vouching =
            self.statuses.iter().filter(|one| !is_ordered || self.is_target(&one.deployment_id));
        if vouching.next().is_some() {
            devices.vouch(key).await?;
        }
        Ok(self.statuses.iter().map(ReportedDeployment::of).collect())
    }
}

impl ReportedDeployment {
    fn of(status: &StatusManifest) -> Self {
        Self {
            deployment: status.deployment_id.clone(),
            state: status.status.state,
            generation: status.adopted_manifest_version.get(),
            reason: status.status.reason.clone(),
        }
    }
}
