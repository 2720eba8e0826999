//! The order of rollouts: the rollout of a deployment begins once those that it comes after have succeeded (`after` of
//! `rollout.yaml`).
//!
//! Decisions and the contents of devices decide this, so the publisher, which has both, computes it and refuses the first begin. It
//! judges no evidence: the planner has done so before it recorded that a rollout has succeeded.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use muster_bus::ReadError;
use muster_contract::DeploymentId;
use muster_contract::query::ErrorBody;
use muster_contract::rollout::{DecideRequest, RolloutPhase, RolloutRecord, RolloutVerb, WaitsFor};

use super::change::unread;
use super::{Announcer, READS_AT_ONCE};
use crate::downlink::Downlink;
use crate::requests::{Decide, conflict};

/// A deployment under the `rollout.yaml` at a path.
type DeploymentOfFile = (DeploymentId, String);

impl<D: Downlink> Announcer<D> {
    /// The rollouts that those of a deployment wait for, by the path of their `rollout.yaml`. Decisions of another publisher are
    /// read only for rollouts that have not succeeded by what is known here; [`Self::check_order`] reads all.
    pub(super) async fn waits_for(
        &mut self,
        deployment: &DeploymentId,
    ) -> Result<BTreeMap<String, Vec<WaitsFor>>, ErrorBody> {
        let predecessors = self.predecessors(deployment);
        let is_unfinished = |(id, path): &&DeploymentOfFile| self.unfinished(id, path).is_some();
        let unfinished: Vec<_> = predecessors.iter().filter(is_unfinished).cloned().collect();
        self.read_all_decisions(&unfinished).await.map_err(|error| unread(&error))?;
        let mut waits_for = BTreeMap::<_, Vec<_>>::new();
        for (id, path) in unfinished {
            if let Some(phase) = self.unfinished(&id, &path) {
                waits_for.entry(path).or_default().push(WaitsFor { deployment: id, phase });
            }
        }
        Ok(waits_for)
    }

    /// Refuses the first begin of a run while a rollout that it comes after has not succeeded.
    pub(super) async fn check_order(
        &mut self,
        decide: &Decide,
        record: &RolloutRecord,
    ) -> Result<(), ErrorBody> {
        let DecideRequest { deployment, rollout, verb, .. } = &decide.request;
        if *verb != RolloutVerb::Begin || record.waves_begun() != 1 {
            return Ok(());
        }
        let mut predecessors = self.predecessors(deployment);
        predecessors.retain(|(_, path)| path == rollout);
        self.read_all_decisions(&predecessors).await.map_err(|error| unread(&error))?;
        for (id, path) in &predecessors {
            // The error of a single read names the message that cannot be read.
            if self.decisions.of_file(id, path).is_err() {
                self.read_decisions(id, path).await?;
            }
        }
        match predecessors.iter().find(|(id, path)| self.unfinished(id, path).is_some()) {
            None => Ok(()),
            Some((other, path)) => Err(conflict(format!(
                "the rollout of {deployment} comes after that of {other} (`after` in {path}), which has not succeeded: \
                 `muster rollout show {other}`"
            ))),
        }
    }

    /// The deployments that a deployment comes after, under each `rollout.yaml` that governs a device with it.
    fn predecessors(&self, deployment: &DeploymentId) -> Vec<DeploymentOfFile> {
        let of_file = |(path, others): (String, BTreeSet<DeploymentId>)| {
            others.into_iter().map(move |other| (other, path.clone()))
        };
        self.table.after(deployment).into_iter().flat_map(of_file).collect()
    }

    /// The phase of a rollout of a deployment that has not succeeded. `None` if all have succeeded, and if every device had the content
    /// before anything was decided about it, or has it again after another one: no wave begins then. A deployment that no device
    /// has counts as unfinished: a mistake in the commit may have dropped it.
    fn unfinished(&self, deployment: &DeploymentId, path: &str) -> Option<RolloutPhase> {
        let Ok(decisions) = self.decisions.of_file(deployment, path) else {
            return Some(RolloutPhase::Running);
        };
        if !self.table.has_deployment(deployment, path) {
            return Some(RolloutPhase::Running);
        }
        let mut wanted = self.table.wanted_contents(deployment, path);
        wanted.find_map(|(digest, is_lacking)| {
            let record = decisions.and_then(|decisions| decisions.of(digest));
            match record.map(RolloutRecord::phase) {
                // Devices that come later get the content without waves.
                Some(RolloutPhase::Succeeded) => None,
                None | Some(RolloutPhase::Superseded) if !is_lacking => None,
                phase => Some(phase.unwrap_or_default()),
            }
        })
    }

    /// Reads decisions, many at once.
    async fn read_all_decisions(&mut self, of: &[DeploymentOfFile]) -> Result<(), ReadError> {
        for some in of.chunks(READS_AT_ONCE) {
            let messages = join_all(some.iter().map(|(id, path)| self.downlink.decisions(id, path))).await;
            for ((id, path), message) in some.iter().zip(messages) {
                self.decisions.note(id, path, message?);
            }
        }
        Ok(())
    }
}
