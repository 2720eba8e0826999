//! The order of rollouts: the rollout of a deployment begins once those that it comes after have succeeded (`after` of
//! `rollout.yaml`).
//!
//! Decisions and held changes decide this, so the publisher, which has both, computes it and refuses the first begin. It judges no
//! evidence: the planner has done so before it recorded that a rollout has succeeded.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::DeploymentId;
use muster_contract::query::ErrorBody;
use muster_contract::rollout::{DecideRequest, RolloutPhase, RolloutRecord, RolloutVerb, WaitsFor};

use super::Announcer;
use crate::downlink::Downlink;
use crate::requests::{Decide, conflict};

impl<D: Downlink> Announcer<D> {
    /// The rollouts that those of a deployment wait for, by the path of their `rollout.yaml`.
    ///
    /// # Errors
    /// Decisions cannot be read.
    pub(super) async fn waits(
        &mut self,
        deployment: &DeploymentId,
    ) -> Result<BTreeMap<String, Vec<WaitsFor>>, ErrorBody> {
        let mut waits = BTreeMap::new();
        for (path, others) in self.table.after(deployment) {
            let waits_for = self.waits_for(&path, &others).await?;
            if !waits_for.is_empty() {
                waits.insert(path, waits_for);
            }
        }
        Ok(waits)
    }

    /// Those of some deployments whose rollouts under a `rollout.yaml` have not succeeded.
    async fn waits_for(
        &mut self,
        path: &str,
        deployments: &BTreeSet<DeploymentId>,
    ) -> Result<Vec<WaitsFor>, ErrorBody> {
        let mut waits_for = Vec::new();
        for deployment in deployments {
            self.read_decisions(deployment, path).await?;
            let phase = self.unfinished(deployment, path);
            waits_for.extend(phase.map(|phase| WaitsFor { deployment: deployment.clone(), phase }));
        }
        Ok(waits_for)
    }

    /// The phase of a rollout of a deployment that has not succeeded; `None` if all have, or nothing was to be released.
    fn unfinished(&self, deployment: &DeploymentId, path: &str) -> Option<RolloutPhase> {
        let mut wanted = self.table.wanted_contents(deployment, path);
        wanted.find_map(|(digest, is_held)| {
            let record = self.decisions.record(deployment, digest, path);
            let phase = record.map(RolloutRecord::phase).unwrap_or_default();
            let has_begun = record.is_some_and(|record| record.first_began().is_some());
            match phase {
                // Devices that come later get the content without waves.
                RolloutPhase::Succeeded => None,
                RolloutPhase::Running | RolloutPhase::Superseded if !is_held && !has_begun => None,
                phase => Some(phase),
            }
        })
    }

    /// Refuses the first begin of a rollout while one that it comes after has not succeeded.
    pub(super) async fn check_order(
        &mut self,
        decide: &Decide,
        record: &RolloutRecord,
    ) -> Result<(), ErrorBody> {
        let DecideRequest { deployment, rollout: path, verb, .. } = &decide.request;
        if *verb != RolloutVerb::Begin || record.waves_begun() != 1 {
            return Ok(());
        }
        let of_path = self.table.after(deployment).into_iter().find(|(of, _)| of == path);
        let Some((_, others)) = of_path else { return Ok(()) };
        match self.waits_for(path, &others).await?.first() {
            None => Ok(()),
            Some(WaitsFor { deployment: other, .. }) => Err(conflict(format!(
                "the rollout of {deployment} comes after that of {other} (`after` in {path}), which has not succeeded: \
                 `muster rollout show {other}`"
            ))),
        }
    }
}
