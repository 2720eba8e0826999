//! Records decisions about rollouts, and refuses releases that they forbid.
//!
//! The commit point of a decision is the message in DOWNLINK, stored by compare-and-set. The record is read anew before each
//! decision and each release, so a decision by another publisher is not overlooked. It judges no evidence: the requester has
//! done so.

use std::collections::{BTreeMap, BTreeSet};

use muster_bus::{PublishErrorKind, ReadError, Trace};
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::rollout::{
    Approvals, DecideAnswer, DecideRequest, ReleaseRefusal, RolloutDecision, RolloutDecisions, RolloutRecord,
    RolloutVerb, RolloutWord,
};
use muster_contract::{DeploymentId, DeviceKey, WaveName};
use muster_service::error::chain;

use super::Announcer;
use super::change::{ATTEMPTS, unread};
use crate::downlink::{Downlink, Message};
use crate::requests::{Decide, bad_request, conflict, internal};

/// The decisions about the rollouts of each deployment, with their sequence in DOWNLINK.
#[derive(Debug, Default)]
pub(super) struct Decisions(BTreeMap<DeploymentId, (u64, RolloutDecisions)>);

impl Decisions {
    /// The decisions that DOWNLINK holds.
    pub(super) fn read(messages: BTreeMap<DeploymentId, Message>) -> Self {
        let mut decisions = Self::default();
        for (deployment, message) in messages {
            decisions.put(&deployment, Some(message));
        }
        decisions
    }

    /// Replaces the decisions about a deployment by those of a message. A message that cannot be read holds none, and the
    /// next decision replaces it.
    fn put(&mut self, deployment: &DeploymentId, message: Option<Message>) {
        let Some(Message { sequence, payload, .. }) = message else {
            self.0.remove(deployment);
            return;
        };
        let decisions = decode::parse(&payload).unwrap_or_else(|error| {
            tracing::warn!(%deployment, error = chain(&error), "ignored unreadable decisions about rollouts");
            RolloutDecisions::new(deployment.clone())
        });
        self.0.insert(deployment.clone(), (sequence, decisions));
    }

    /// The sequence and a copy of the decisions about a deployment.
    fn of(&self, deployment: &DeploymentId) -> (u64, RolloutDecisions) {
        let none = || (0, RolloutDecisions::new(deployment.clone()));
        self.0.get(deployment).cloned().unwrap_or_else(none)
    }

    /// The rollouts of a deployment, the one that was decided about last at the end.
    pub(super) fn rollouts(&self, deployment: &DeploymentId) -> &[RolloutRecord] {
        self.0.get(deployment).map_or(&[], |(_, decisions)| &decisions.rollouts)
    }

    /// The state of a rollout.
    pub(super) fn word(&self, deployment: &DeploymentId, digest: Digest, rollout: &str) -> RolloutWord {
        let decisions = self.0.get(deployment).map(|(_, decisions)| decisions);
        let record = decisions.and_then(|decisions| decisions.of(digest, rollout));
        record.map(RolloutRecord::word).unwrap_or_default()
    }

    /// The contents of a deployment that were stopped or rolled back.
    pub(super) fn given_up(&self, deployment: &DeploymentId) -> BTreeSet<Digest> {
        let is_given_up =
            |record: &&RolloutRecord| matches!(record.word(), RolloutWord::Stopped | RolloutWord::RolledBack);
        self.rollouts(deployment).iter().filter(is_given_up).map(|record| record.digest).collect()
    }

    /// The newest rollout of each deployment that has begun and not ended, or may still have devices to roll back.
    pub(super) fn open(&self) -> impl Iterator<Item = (&DeploymentId, &RolloutRecord)> {
        let newest = self.0.iter().filter_map(|(id, (_, decisions))| Some((id, decisions.rollouts.last()?)));
        newest.filter(|(_, record)| matches!(record.word(), RolloutWord::Running | RolloutWord::RolledBack))
    }
}

impl<D: Downlink> Announcer<D> {
    /// Records a decision; the same one again changes nothing.
    pub(super) async fn decide(&mut self, decide: &Decide) -> Result<DecideAnswer, ErrorBody> {
        let DecideRequest { deployment, digest, rollout, .. } = &decide.request;
        let trace = Trace::begin(&mut self.rng);
        let mut publish_error = String::new();
        for _ in 0..ATTEMPTS {
            self.read_decisions(deployment).await.map_err(|error| unread(&error))?;
            let approvals = self.approvals(&decide.request)?;
            let (sequence, mut decisions) = self.decisions.of(deployment);
            let record = decisions.of(*digest, rollout).cloned();
            let mut record = record.unwrap_or_else(|| RolloutRecord::new(*digest, rollout.clone()));
            let changed = record
                .decide(self.decision(decide), approvals)
                .map_err(|impossible| conflict(impossible.to_string()))?;
            if !changed {
                return Ok(DecideAnswer { record, changed });
            }
            decisions.put(record.clone());
            match self.downlink.store_decisions(&decisions, sequence, trace).await {
                Ok(sequence) => {
                    self.decided(decide, sequence, decisions);
                    return Ok(DecideAnswer { record, changed });
                }
                Err(error) if error.kind == PublishErrorKind::Permanent => {
                    return Err(internal(chain(&error)));
                }
                // A decision whose answer was lost is found by the next read.
                Err(error) => publish_error = chain(&error),
            }
        }
        Err(conflict(format!("gave up after {ATTEMPTS} attempts: {publish_error}; ask again")))
    }

    fn decision(&self, decide: &Decide) -> RolloutDecision {
        let DecideRequest { verb, wave, reason, evidence, .. } = decide.request.clone();
        let (requested_by, at) = (decide.requested_by.clone(), self.context.clock.now());
        RolloutDecision { verb, wave, reason, evidence, requested_by, at }
    }

    /// Takes note of a stored decision.
    fn decided(&mut self, decide: &Decide, sequence: u64, decisions: RolloutDecisions) {
        let DecideRequest { deployment, digest, rollout, verb, wave, reason, .. } = &decide.request;
        let by = decide.requested_by.as_ref().map(|by| by.label());
        let (verb, wave) = (verb.as_str(), wave.as_ref().map(ToString::to_string));
        tracing::info!(%deployment, %digest, rollout, verb, wave, reason, by, "recorded a decision about a rollout");
        self.decisions.0.insert(deployment.clone(), (sequence, decisions));
        self.report_status();
    }

    /// The rule of approvals of the rollout that a request is about.
    fn approvals(&self, request: &DecideRequest) -> Result<Approvals, ErrorBody> {
        let DecideRequest { deployment, digest, rollout: path, verb, wave, .. } = request;
        let rollout = self.table.rollout_of(deployment, *digest, path).ok_or_else(|| ErrorBody {
            code: ErrorCode::NotFound,
            message: format!(
                "Git wants {deployment} with {digest} for no device that {path} governs: `muster rollout show {deployment}` \
                 shows its rollouts"
            ),
        })?;
        let needs_approval =
            |name: &WaveName| rollout.waves.iter().any(|wave| wave.name == *name && !wave.approval.is_none());
        match wave {
            Some(name) if *verb == RolloutVerb::Approve && !needs_approval(name) => {
                Err(bad_request(format!("wave: {path} has no wave {name} that needs approval")))
            }
            _ => Ok(rollout.approvals),
        }
    }

    /// Reads the decisions about a deployment.
    pub(super) async fn read_decisions(&mut self, deployment: &DeploymentId) -> Result<(), ReadError> {
        let message = self.downlink.decisions(deployment).await?;
        let held = self.decisions.0.get(deployment).map(|(sequence, _)| *sequence);
        if message.as_ref().map(|message| message.sequence) != held {
            self.decisions.put(deployment, message);
        }
        Ok(())
    }

    /// Why the rollout of a content on a device refuses its release, if it does.
    pub(super) fn forbidden(
        &self,
        key: &DeviceKey,
        deployment: &DeploymentId,
        digest: Digest,
    ) -> Option<ReleaseRefusal> {
        let path = self.table.rollout_path(key)?;
        match self.decisions.word(deployment, digest, path) {
            RolloutWord::Running | RolloutWord::Succeeded => None,
            RolloutWord::Paused => Some(ReleaseRefusal::Paused),
            RolloutWord::Stopped | RolloutWord::RolledBack => Some(ReleaseRefusal::Stopped),
        }
    }

    /// The deployments with a rollout that has begun and not ended, of those that Git still wants.
    pub(super) fn open_rollouts(&self) -> Vec<DeploymentId> {
        let is_wanted = |(id, record): &(&DeploymentId, &RolloutRecord)| {
            self.table.rollout_of(id, record.digest, &record.rollout).is_some()
        };
        self.decisions.open().filter(is_wanted).map(|(id, _)| id.clone()).collect()
    }
}
