//! Records decisions about rollouts, and refuses releases that they forbid.
//!
//! The commit point of a decision is the message in DOWNLINK, stored by compare-and-set. The record is read anew before each
//! decision and each release, so a decision by another publisher is not overlooked. It judges no evidence: the requester has
//! done so.

use std::collections::{BTreeMap, BTreeSet};

use muster_bus::{PublishErrorKind, Role, Trace};
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::limits::RUNNING_ROLLOUTS_MAX;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::rollout::{
    Approval, Approvals, DecideAnswer, DecideRequest, OpenRollout, ReleaseRefusal, RolloutDecision,
    RolloutDecisions, RolloutPhase, RolloutRecord, RolloutVerb, Wave,
};
use muster_contract::{DeploymentId, DeviceKey, RequestedBy, WaveName};
use muster_service::error::chain;

use super::Announcer;
use super::change::{ATTEMPTS, unread};
use crate::downlink::{Downlink, Message};
use crate::requests::{Decide, bad_request, check_revision, conflict, internal, not_ready};

/// The decisions that DOWNLINK holds, by deployment and path of the `rollout.yaml`.
#[derive(Debug, Default)]
pub(super) struct Decisions(BTreeMap<(DeploymentId, String), Stored>);

/// One message of decisions.
#[derive(Debug, Clone)]
struct Stored {
    sequence: u64,
    /// `None` if it cannot be read: then nothing is known to be allowed.
    decisions: Option<RolloutDecisions>,
}

/// A message of decisions that cannot be read.
pub(super) struct UnreadableDecisions;

impl Decisions {
    /// The decisions of all messages. Messages that cannot be read are known once their rollout is asked about.
    pub(super) fn read(messages: Vec<Message>) -> Self {
        let mut all = Self::default();
        for Message { sequence, payload, .. } in messages {
            match decode::parse::<RolloutDecisions>(&payload) {
                Ok(decisions) => {
                    let path = decisions.rollouts.last().map(|record| record.rollout.clone());
                    let key = (decisions.deployment.clone(), path.unwrap_or_default());
                    all.0.insert(key, Stored { sequence, decisions: Some(decisions) });
                }
                Err(error) => {
                    tracing::warn!(sequence, error = chain(&error), "cannot read decisions about rollouts");
                }
            }
        }
        all
    }

    /// Notes the last message of decisions, if there is one.
    pub(super) fn note(&mut self, deployment: &DeploymentId, path: &str, message: Option<Message>) {
        let key = (deployment.clone(), path.to_owned());
        let Some(Message { sequence, payload, .. }) = message else {
            self.0.remove(&key);
            return;
        };
        // A replica that lags behind answers with an older message.
        if self.0.get(&key).is_none_or(|held| held.sequence < sequence) {
            let decisions = decode::parse(&payload);
            if let Err(error) = &decisions {
                tracing::warn!(%deployment, rollout = path, error = chain(error), "cannot read decisions about rollouts");
            }
            self.0.insert(key, Stored { sequence, decisions: decisions.ok() });
        }
    }

    /// The decisions about a deployment under a `rollout.yaml`; an error if they cannot be read.
    pub(super) fn of_file(
        &self,
        deployment: &DeploymentId,
        path: &str,
    ) -> Result<Option<&RolloutDecisions>, UnreadableDecisions> {
        let Some(stored) = self.stored(deployment, path) else { return Ok(None) };
        stored.decisions.as_ref().map(Some).ok_or(UnreadableDecisions)
    }

    fn stored(&self, deployment: &DeploymentId, path: &str) -> Option<&Stored> {
        self.0.get(&(deployment.clone(), path.to_owned()))
    }

    /// Sequence of the decisions about a deployment under a `rollout.yaml`; 0 if there are none.
    pub(super) fn sequence(&self, deployment: &DeploymentId, path: &str) -> u64 {
        self.stored(deployment, path).map_or(0, |stored| stored.sequence)
    }

    /// The rollouts of a deployment that were decided about.
    pub(super) fn of_deployment<'a>(
        &'a self,
        deployment: &'a DeploymentId,
    ) -> impl Iterator<Item = &'a RolloutRecord> {
        self.all().filter(move |(id, _)| *id == deployment).map(|(_, record)| record)
    }

    /// Every rollout that was decided about, with its deployment.
    fn all(&self) -> impl Iterator<Item = (&DeploymentId, &RolloutRecord)> {
        let readable = self.0.iter().filter_map(|((id, _), stored)| Some((id, stored.decisions.as_ref()?)));
        readable.flat_map(|(id, decisions)| decisions.rollouts.iter().map(move |record| (id, record)))
    }

    /// The phase of a rollout; `None` if it cannot be read.
    pub(super) fn phase(
        &self,
        deployment: &DeploymentId,
        digest: Digest,
        path: &str,
    ) -> Option<RolloutPhase> {
        let Some(stored) = self.stored(deployment, path) else { return Some(RolloutPhase::Running) };
        let record = stored.decisions.as_ref()?.of(digest);
        Some(record.map(RolloutRecord::phase).unwrap_or_default())
    }

    /// The digest of the record of a rollout; `None` if it cannot be read.
    pub(super) fn version(&self, deployment: &DeploymentId, digest: Digest, path: &str) -> Option<Digest> {
        let decisions = self.of_file(deployment, path).ok()?;
        let record = decisions.and_then(|decisions| decisions.of(digest));
        Some(RolloutRecord::version_of(record, digest, path))
    }

    /// The contents of a deployment that were stopped, aborted or rolled back under a `rollout.yaml`.
    pub(super) fn abandoned(&self, deployment: &DeploymentId, path: &str) -> BTreeSet<Digest> {
        let is_abandoned = |record: &&RolloutRecord| {
            record.rollout == path
                && matches!(
                    record.phase(),
                    RolloutPhase::Stopped | RolloutPhase::Aborted | RolloutPhase::RolledBack
                )
        };
        self.of_deployment(deployment).filter(is_abandoned).map(|record| record.digest).collect()
    }
}

impl<D: Downlink> Announcer<D> {
    /// Records a decision; the same one again changes nothing.
    pub(super) async fn decide(&mut self, decide: &Decide) -> Result<DecideAnswer, ErrorBody> {
        let DecideRequest { deployment, digest, rollout, expected, .. } = &decide.request;
        check_author(decide)?;
        check_revision(decide.request.revision.as_deref(), self.table.revision())?;
        let trace = Trace::random(&mut self.rng);
        let mut publish_error = String::new();
        for _ in 0..ATTEMPTS {
            self.read_decisions(deployment, rollout).await?;
            let (approvals, policy) = self.approvals(decide)?;
            let decision = self.decision(decide, policy);
            let (sequence, mut decisions) = self.of_rollout(deployment, rollout);
            let record = decisions.of(*digest).cloned();
            let mut record = record.unwrap_or_else(|| RolloutRecord::new(*digest, rollout.clone()));
            // A decision whose answer was lost is found by the next read, before what the requester has seen is compared.
            let is_stored =
                |mut record: RolloutRecord| matches!(record.decide(decision.clone(), &approvals), Ok(false));
            if !publish_error.is_empty() && is_stored(record.clone()) {
                return Ok(DecideAnswer { record, changed: true });
            }
            if let Some(expected) = expected.filter(|expected| *expected != record.phase()) {
                let (now, then) = (record.phase().words(), expected.words());
                return Err(conflict(format!("the rollout {now}; the request is about one that {then}")));
            }
            if is_stored(record.clone()) {
                return Ok(DecideAnswer { record, changed: false });
            }
            if decide.request.record.is_some_and(|seen| seen != record.version()) {
                let decided = "another decision about the rollout has come since it was read: read it again";
                return Err(conflict(decided));
            }
            record
                .decide(decision.clone(), &approvals)
                .map_err(|impossible| conflict(impossible.to_string()))?;
            self.check_room(decide, &record)?;
            self.check_order(decide, &record).await?;
            if !decisions.store(record.clone(), |digest| self.table.is_in_use(deployment, digest, rollout)) {
                return Err(conflict(format!(
                    "{} contents of {deployment} under {rollout} are in use and decided about, and no more are kept",
                    decisions.rollouts.len()
                )));
            }
            match self.downlink.store_decisions(rollout, &decisions, sequence, trace).await {
                Ok(sequence) => {
                    self.decided(decide, sequence, decisions);
                    return Ok(DecideAnswer { record, changed: true });
                }
                Err(error) if error.kind == PublishErrorKind::Permanent => {
                    return Err(internal(chain(&error)));
                }
                Err(error) => publish_error = chain(&error),
            }
        }
        // The error may pass, so it is no `conflict` with the present state.
        Err(not_ready(format!("gave up after {ATTEMPTS} attempts: {publish_error}; ask again")))
    }

    /// Refuses the first begin of a rollout while as many are running as may run at once.
    fn check_room(&self, decide: &Decide, record: &RolloutRecord) -> Result<(), ErrorBody> {
        let DecideRequest { deployment, digest, rollout, verb, .. } = &decide.request;
        let is_first = *verb == RolloutVerb::Begin && record.waves_begun() == 1;
        let is_running = |(id, other): &(&DeploymentId, &RolloutRecord)| {
            let is_open = matches!(other.phase(), RolloutPhase::Running | RolloutPhase::Paused);
            let is_itself = (*id, other.digest, &other.rollout) == (deployment, *digest, rollout);
            !is_itself
                && is_open
                && other.first_began().is_some()
                && self.table.rollout_of(id, other.digest, &other.rollout).is_some()
        };
        if is_first && self.decisions.all().filter(is_running).count() >= RUNNING_ROLLOUTS_MAX {
            return Err(conflict(format!(
                "{RUNNING_ROLLOUTS_MAX} rollouts are running, and no more may: {deployment} under {rollout} begins once one of \
                 them ends; `muster rollout list` shows them"
            )));
        }
        Ok(())
    }

    /// The decision that a request is for; an approval is of a policy.
    fn decision(&self, decide: &Decide, policy: Option<Digest>) -> RolloutDecision {
        let DecideRequest { verb, wave, reason, evidence, result, .. } = decide.request.clone();
        let (requested_by, at) = (decide.requested_by.clone(), self.context.clock.now());
        let made = RolloutDecision::new(verb, at);
        RolloutDecision { wave, reason, evidence, result, policy, requested_by, ..made }
    }

    /// Takes note of a stored decision.
    fn decided(&mut self, decide: &Decide, sequence: u64, decisions: RolloutDecisions) {
        let DecideRequest { deployment, digest, rollout, verb, wave, reason, .. } = &decide.request;
        let by = decide.requested_by.as_ref().map(|by| by.label());
        let (verb, wave) = (verb.as_str(), wave.as_ref().map(ToString::to_string));
        tracing::info!(%deployment, %digest, rollout, verb, wave, reason, by, "recorded a decision about a rollout");
        let stored = Stored { sequence, decisions: Some(decisions) };
        self.decisions.0.insert((deployment.clone(), rollout.clone()), stored);
        self.report_status();
    }

    /// The sequence and the decisions about a deployment under a `rollout.yaml`.
    fn of_rollout(&self, deployment: &DeploymentId, path: &str) -> (u64, RolloutDecisions) {
        let stored = self.decisions.stored(deployment, path);
        let decisions = stored.and_then(|stored| stored.decisions.clone());
        let decisions = decisions.unwrap_or_else(|| RolloutDecisions::new(deployment.clone()));
        (self.decisions.sequence(deployment, path), decisions)
    }

    /// The rule of approvals of the rollout that a request is about, and the policy that an approval is of.
    fn approvals(&self, decide: &Decide) -> Result<(Approvals, Option<Digest>), ErrorBody> {
        let DecideRequest { deployment, digest, rollout: path, verb, wave, .. } = &decide.request;
        if self.table.revision().is_none() {
            return Err(not_ready("the publisher has read no good commit since its start; ask again"));
        }
        let rollout = self.table.rollout_of(deployment, *digest, path).ok_or_else(|| ErrorBody {
            code: ErrorCode::NotFound,
            message: format!(
                "Git wants {deployment} with {digest} for no device that {path} governs: `muster rollout show {deployment}` \
                 shows its rollouts"
            ),
        })?;
        let has = |is_such: fn(&Wave) -> bool| {
            rollout.waves.iter().any(|of| Some(&of.name) == wave.as_ref() && is_such(of))
        };
        let (is_possible, needed) = match verb {
            RolloutVerb::Approve => (has(|wave| !wave.approval.is_none()), "needs approval"),
            RolloutVerb::Check => (has(|wave| !wave.checks.is_empty()), "has checks"),
            RolloutVerb::Ready => {
                (has(|wave| wave.approval == Approval::After), "needs approval of its evidence")
            }
            _ => (true, ""),
        };
        let name = wave.as_ref().map_or("", WaveName::as_str);
        if !is_possible {
            return Err(bad_request(format!("wave: {path} has no wave {name} that {needed}")));
        }
        let is_after = *verb == RolloutVerb::Approve && has(|wave| wave.approval == Approval::After);
        let record =
            self.decisions.stored(deployment, path).and_then(|stored| stored.decisions.as_ref()?.of(*digest));
        if is_after && record.and_then(|record| record.ready(name)).is_none() {
            return Err(conflict(format!(
                "the evidence of wave {name} is not enough yet, so there is nothing to approve: `muster rollout show {deployment}`"
            )));
        }
        check_role(decide, &rollout.waves, &rollout.approvals, record)?;
        if *verb == RolloutVerb::Approve {
            check_approver(decide.requested_by.as_ref(), &rollout.approvals)?;
            check_other_person(decide.requested_by.as_ref(), name, &rollout.approvals, record)?;
        }
        let approved =
            rollout.waves.iter().find(|of| *verb == RolloutVerb::Approve && Some(&of.name) == wave.as_ref());
        Ok((rollout.approvals.clone(), approved.map(|wave| rollout.approved_policy(wave))))
    }

    /// Reads the decisions about a deployment under a `rollout.yaml`.
    ///
    /// # Errors
    /// They cannot be read, so nothing is known to be allowed.
    pub(super) async fn read_decisions(
        &mut self,
        deployment: &DeploymentId,
        path: &str,
    ) -> Result<(), ErrorBody> {
        let message = self.downlink.decisions(deployment, path).await.map_err(|error| unread(&error))?;
        self.decisions.note(deployment, path, message);
        match self.decisions.stored(deployment, path) {
            Some(Stored { sequence, decisions: None }) => Err(internal(format!(
                "message {sequence} of DOWNLINK holds decisions about {deployment} under {path} that this publisher cannot \
                 read: run the release that wrote it"
            ))),
            _ => Ok(()),
        }
    }

    /// Reads the decisions about a deployment under each `rollout.yaml` that governs one of the devices.
    pub(super) async fn read_decisions_of(
        &mut self,
        deployment: &DeploymentId,
        devices: &[DeviceKey],
    ) -> Result<(), ErrorBody> {
        let paths: BTreeSet<_> =
            devices.iter().filter_map(|key| self.table.rollout_path(key)).map(str::to_owned).collect();
        for path in paths {
            self.read_decisions(deployment, &path).await?;
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
        match self.decisions.phase(deployment, digest, path) {
            Some(RolloutPhase::Running | RolloutPhase::Succeeded | RolloutPhase::Superseded) => None,
            Some(RolloutPhase::Paused) | None => Some(ReleaseRefusal::Paused),
            Some(RolloutPhase::Stopped | RolloutPhase::Aborted | RolloutPhase::RolledBack) => {
                Some(ReleaseRefusal::Stopped)
            }
        }
    }

    /// Why a device keeps a content in place of the one before it: its rollout is neither aborted nor rolled back. The requester has
    /// judged which devices of an aborted one have not begun.
    pub(super) fn keeps(
        &self,
        key: &DeviceKey,
        deployment: &DeploymentId,
        digest: Digest,
    ) -> Option<ReleaseRefusal> {
        let path = self.table.rollout_path(key)?;
        let phase = self.decisions.phase(deployment, digest, path);
        let is_taken_back = matches!(phase, Some(RolloutPhase::Aborted | RolloutPhase::RolledBack));
        (!is_taken_back).then_some(ReleaseRefusal::NotRolledBack)
    }

    /// The rollouts that have begun and not ended, those that are running first.
    pub(super) fn open_rollouts(&self) -> Vec<OpenRollout> {
        let is_open = |(id, record): &(&DeploymentId, &RolloutRecord)| match record.phase() {
            RolloutPhase::Running | RolloutPhase::Paused => {
                self.table.rollout_of(id, record.digest, &record.rollout).is_some()
            }
            RolloutPhase::Aborted | RolloutPhase::RolledBack => {
                self.table.has_device_with(id, record.digest, &record.rollout)
            }
            RolloutPhase::Stopped | RolloutPhase::Succeeded | RolloutPhase::Superseded => false,
        };
        let open = self.decisions.all().filter(is_open);
        let mut open: Vec<_> = open
            .map(|(id, record)| OpenRollout {
                deployment: id.clone(),
                digest: record.digest,
                rollout: record.rollout.clone(),
                phase: record.phase(),
            })
            .collect();
        open.sort_by_key(|rollout| rollout.phase);
        open
    }

    /// Records which rollouts a commit has ended: those of contents that Git wants no more. Paused, stopped and rolled
    /// back ones stay as they are, so a bad content that Git wants again is held.
    pub(super) async fn supersede(&mut self) {
        let ended: Vec<_> = self
            .decisions
            .all()
            .filter(|(id, record)| {
                // A pause stays, too: a publisher that lags behind in Git must not end it.
                let is_live = matches!(record.phase(), RolloutPhase::Running | RolloutPhase::Succeeded);
                is_live && self.table.rollout_of(id, record.digest, &record.rollout).is_none()
            })
            .map(|(id, record)| (id.clone(), record.clone()))
            .collect();
        for (deployment, mut record) in ended {
            let (sequence, mut decisions) = self.of_rollout(&deployment, &record.rollout);
            let at = self.context.clock.now();
            let reason =
                self.table.revision().map(|revision| format!("commit {revision} wants another content"));
            let verb = RolloutVerb::Supersede;
            let decision = RolloutDecision { reason, ..RolloutDecision::new(verb, at) };
            if record.decide(decision, &Approvals::default()) != Ok(true) {
                continue;
            }
            let path = record.rollout.clone();
            // A content with a record has its place.
            if !decisions.store(record, |_| true) {
                continue;
            }
            let trace = Trace::random(&mut self.rng);
            match self.downlink.store_decisions(&path, &decisions, sequence, trace).await {
                Ok(sequence) => {
                    let stored = Stored { sequence, decisions: Some(decisions) };
                    self.decisions.0.insert((deployment, path), stored);
                }
                // The next commit records it.
                Err(error) => tracing::warn!(
                    %deployment,
                    rollout = path,
                    error = chain(&error),
                    "cannot record that a commit has superseded a rollout"
                ),
            }
        }
    }
}

/// Refuses the approval of a person who is not among the approvers of the rollout: it would not count.
fn check_approver(by: Option<&RequestedBy>, approvals: &Approvals) -> Result<(), ErrorBody> {
    let Some(of) = &approvals.of else { return Ok(()) };
    if by.is_some_and(|by| of.counted(by).is_some()) {
        return Ok(());
    }
    let who = by.map_or("a requester without credentials", RequestedBy::label);
    let message = format!("{who} is not among the approvers of this rollout (`approvals.of`): {of}");
    Err(ErrorBody { code: ErrorCode::Forbidden, message })
}

/// Refuses the approval of the person who has requested what a wave's approvals are for, if it needs several.
fn check_other_person(
    by: Option<&RequestedBy>,
    wave: &str,
    approvals: &Approvals,
    record: Option<&RolloutRecord>,
) -> Result<(), ErrorBody> {
    let is_own = |by: &&RequestedBy| record.is_some_and(|of| of.is_own_request(wave, by, approvals));
    let Some(by) = by.filter(is_own) else { return Ok(()) };
    let message = format!(
        "{} began this run by `retry` or forced the gate: wave {wave} needs {} approvals of other people \
         (`approvals.need`); ask another approver",
        by.label(),
        approvals.need
    );
    Err(ErrorBody { code: ErrorCode::Forbidden, message })
}

/// Refuses a decision of the role approver unless it approves a wave, or rejects one as a person whose approval counts. A rejection
/// is a stop while a wave waits for approval.
fn check_role(
    decide: &Decide,
    waves: &[Wave],
    approvals: &Approvals,
    record: Option<&RolloutRecord>,
) -> Result<(), ErrorBody> {
    let by = decide.requested_by.as_ref();
    if by.and_then(RequestedBy::person_role) != Some(Role::Approver.as_str()) {
        return Ok(());
    }
    let verb = decide.request.verb;
    match verb {
        RolloutVerb::Approve => return Ok(()),
        RolloutVerb::Stop if waves.iter().any(|wave| wave.waits_for_approval(record)) => {
            return check_approver(by, approvals);
        }
        _ => {}
    }
    let message = format!(
        "the role approver may approve waves, and reject them while they wait for approval; {} needs the role operator",
        verb.as_str()
    );
    Err(ErrorBody { code: ErrorCode::Forbidden, message })
}

/// Refuses a decision that only a person may make if a planner asks for it.
fn check_author(decide: &Decide) -> Result<(), ErrorBody> {
    let is_of_person = matches!(
        decide.request.verb,
        RolloutVerb::Approve | RolloutVerb::Force | RolloutVerb::Resume | RolloutVerb::Retry
    );
    let role = decide.requested_by.as_ref().and_then(|by| by.role.as_deref());
    if is_of_person && role == Some(Role::Planner.as_str()) {
        return Err(bad_request(format!("verb: only a person may {}", decide.request.verb.as_str())));
    }
    Ok(())
}
