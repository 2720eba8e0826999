//! The record of decisions about rollouts in DOWNLINK, the request for a decision, and the state that decisions lead to. It
//! does not judge evidence: `muster-domain` does.

mod evidence;
mod phase;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::evidence::GateEvidence;
pub use self::phase::{ImpossibleDecision, RolloutEnd, RolloutPhase, RolloutVerb};
use super::approvals::Approvals;
use super::check::CheckResult;
use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::ids::{DeploymentId, WaveName};
use crate::limits::{
    DECISION_REASON_BYTES_MAX, DECISIONS_MAX, MESSAGE_BYTES_MAX, ROLLOUT_BYTES_MAX, ROLLOUT_RECORD_BYTES_MAX,
    ROLLOUT_RECORDS_MAX,
};
use crate::requested_by::RequestedBy;
use crate::version::{ApiVersion, kind};

// An answer has room for the records beside two files of the largest size, and a record for its largest decision.
const _: () = assert!(
    ROLLOUT_RECORDS_MAX * ROLLOUT_RECORD_BYTES_MAX + 2 * ROLLOUT_BYTES_MAX < MESSAGE_BYTES_MAX
        && 6 * DECISION_REASON_BYTES_MAX + 1024 < ROLLOUT_RECORD_BYTES_MAX
);

/// Longest id of a commit: SHA-256 in hexadecimal digits.
const COMMIT_BYTES_MAX: usize = 64;

/// The decisions about the rollouts of a deployment on the devices of one `rollout.yaml`: the newest message of
/// `muster.rollout.<deployment>-<file>` in DOWNLINK. The publisher alone writes it, with compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutDecisions {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `RolloutDecisions`
    pub kind: kind::RolloutDecisions,
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its rollouts, one for each content, the one that was decided about last at the end. Older ones are dropped, unless Git
    /// wants their content or a device has it.
    #[schemars(length(max = ROLLOUT_RECORDS_MAX))]
    pub rollouts: Vec<RolloutRecord>,
}

/// The decisions about one rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRecord {
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml` that governs the devices.
    pub rollout: String,
    /// The decisions, oldest first. Older ones are dropped, but never the last that changed the phase.
    #[schemars(length(max = DECISIONS_MAX))]
    pub decisions: Vec<RolloutDecision>,
}

/// One decision about a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutDecision {
    /// The decision.
    pub verb: RolloutVerb,
    /// The wave that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveName>,
    /// The reason, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The evidence that the requester judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<GateEvidence>,
    /// The result of the wave's checks, of `check`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<CheckResult>,
    /// Digest of the policy that an `approve` is about: the wave and the `approvals` of the `rollout.yaml`, as the publisher had
    /// them. An approval of another policy does not count. Older releases did not record it, so their approvals count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Digest>,
    /// Who decided, if the server vouches for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// Time of the decision, by the publisher's clock.
    pub at: Timestamp,
}

/// The planner's reaction to a wave with more failures than it allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// Pauses the rollout.
    #[default]
    Pause,
    /// Aborts it.
    Abort,
    /// Rolls it back.
    Rollback,
}

/// Request of `muster.publisher.decide`: a decision about a rollout. The same decision again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecideRequest {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml` that governs the devices.
    pub rollout: String,
    /// The decision.
    pub verb: RolloutVerb,
    /// The wave, of `begin`, `check`, `ready`, `force` and `approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveName>,
    /// The reason, in one sentence; `force` needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The evidence that the requester has judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<GateEvidence>,
    /// The result, of `check`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<CheckResult>,
    /// The phase that the requester has seen. In another one, the decision is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<RolloutPhase>,
    /// The commit whose waves and policies the requester has judged (`revision` of TargetsAnswer). If it is not the last accepted
    /// one, the decision is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Digest of the record that the requester has seen (a rollout without decisions has an empty one). If the rollout has another
    /// record, the decision is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Digest>,
}

/// Answer of `muster.publisher.decide`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecideAnswer {
    /// The rollout's decisions with this one.
    pub record: RolloutRecord,
    /// False if the rollout was in that state already.
    pub changed: bool,
}

impl OnFailure {
    /// Whether it is the default.
    pub const fn is_pause(&self) -> bool {
        matches!(self, Self::Pause)
    }

    /// The decision.
    pub const fn verb(self) -> RolloutVerb {
        match self {
            Self::Pause => RolloutVerb::Pause,
            Self::Abort => RolloutVerb::Abort,
            Self::Rollback => RolloutVerb::Rollback,
        }
    }
}

impl RolloutRecord {
    /// A rollout without decisions.
    pub const fn new(digest: Digest, rollout: String) -> Self {
        Self { digest, rollout, decisions: Vec::new() }
    }

    /// The digest of the record, which changes with each decision.
    pub fn version(&self) -> Digest {
        Digest::of_value(self)
    }

    /// The digest of the record of a rollout; without one, that of a record without decisions.
    pub fn version_of(record: Option<&Self>, digest: Digest, rollout: &str) -> Digest {
        record.map_or_else(|| Self::new(digest, rollout.to_owned()).version(), Self::version)
    }

    /// The phase.
    pub fn phase(&self) -> RolloutPhase {
        self.decisions.iter().fold(RolloutPhase::Running, |phase, decision| decision.verb.after(phase))
    }

    /// The end that it came to; `None` while it continues or is paused.
    pub fn end(&self) -> Option<RolloutEnd> {
        let evidence = || self.last().and_then(|last| last.evidence.as_ref());
        Some(match self.phase() {
            RolloutPhase::Running | RolloutPhase::Paused => return None,
            RolloutPhase::Succeeded if evidence().is_some_and(|counts| counts.debt_of_all > Some(0)) => {
                RolloutEnd::SucceededWithDebt
            }
            RolloutPhase::Succeeded => RolloutEnd::Succeeded,
            // A person who stops a rollout judges no evidence; a planner that applies `atEnd` does.
            RolloutPhase::Stopped if evidence().is_some() => RolloutEnd::Failed,
            RolloutPhase::Stopped => RolloutEnd::Cancelled,
            RolloutPhase::Aborted => RolloutEnd::Aborted,
            RolloutPhase::RolledBack => RolloutEnd::RolledBack,
            RolloutPhase::Superseded => RolloutEnd::Superseded,
        })
    }

    /// The end or the phase in words, as the end of a sentence about the rollout.
    pub fn words(&self) -> &'static str {
        self.end().map_or_else(|| self.phase().words(), RolloutEnd::words)
    }

    /// The newest decision that led to the phase, if there is one.
    pub fn last(&self) -> Option<&RolloutDecision> {
        self.last_index().and_then(|at| self.decisions.get(at))
    }

    fn last_index(&self) -> Option<usize> {
        self.decisions.iter().rposition(|decision| !decision.verb.has_wave())
    }

    /// The periods in which it is paused, the oldest first; the last one has no end while it still is.
    pub fn pauses(&self) -> impl Iterator<Item = (Timestamp, Option<Timestamp>)> + '_ {
        let changes = || self.decisions.iter().filter(|decision| !decision.verb.has_wave());
        let next = changes().skip(1).map(|decision| Some(decision.at)).chain([None]);
        let pauses = changes().zip(next).filter(|(decision, _)| decision.verb == RolloutVerb::Pause);
        pauses.map(|(decision, end)| (decision.at, end))
    }

    /// Time at which a wave began in the run under way.
    pub fn began(&self, wave: &str) -> Option<Timestamp> {
        let is_begin =
            |decision: &&RolloutDecision| decision.verb == RolloutVerb::Begin && decision.is_about(wave);
        self.of_this_run().iter().find(is_begin).map(|decision| decision.at)
    }

    /// The result of the checks of a wave in the run under way. No later result replaces `pass` or `fail`; a resume voids `fail`.
    pub fn checked(&self, wave: &str) -> Option<&RolloutDecision> {
        let run = self.of_this_run();
        let is_check =
            |decision: &RolloutDecision| decision.verb == RolloutVerb::Check && decision.is_about(wave);
        let at = run.iter().rposition(is_check)?;
        let decision = run.get(at).filter(|decision| decision.result.is_some())?;
        let is_resumed = || run[at..].iter().any(|later| later.verb == RolloutVerb::Resume);
        let is_void = decision.result == Some(CheckResult::Fail) && is_resumed();
        (!is_void).then_some(decision)
    }

    /// Time since which the evidence of a wave waits for approvals, in the run under way.
    pub fn ready(&self, wave: &str) -> Option<Timestamp> {
        let is_ready =
            |decision: &&RolloutDecision| decision.verb == RolloutVerb::Ready && decision.is_about(wave);
        self.of_this_run().iter().find(is_ready).map(|decision| decision.at)
    }

    /// Number of waves that have begun in the run under way.
    pub fn waves_begun(&self) -> usize {
        self.of_this_run().iter().filter(|decision| decision.verb == RolloutVerb::Begin).count()
    }

    /// Time at which the first wave began in the run under way.
    pub fn first_began(&self) -> Option<Timestamp> {
        let begin = self.of_this_run().iter().find(|decision| decision.verb == RolloutVerb::Begin);
        begin.map(|decision| decision.at)
    }

    /// The decision by which the gate behind a wave counts as open, in the run under way.
    pub fn forced(&self, wave: &str) -> Option<&RolloutDecision> {
        let is_force =
            |decision: &&RolloutDecision| decision.verb == RolloutVerb::Force && decision.is_about(wave);
        self.of_this_run().iter().find(is_force)
    }

    /// Whether a person has requested what the approvals of a wave are for: the run by `retry`, or its open gate by `force`. If a
    /// wave needs several approvals, its requester's is none of them.
    pub fn is_own_request(&self, wave: &str, by: &RequestedBy, approvals: &Approvals) -> bool {
        let began = self.decisions.iter().rfind(|decision| decision.verb.ends_run());
        let retry = began.filter(|decision| decision.verb == RolloutVerb::Retry);
        let mut requesters =
            retry.into_iter().chain(self.forced(wave)).filter_map(|of| of.requested_by.as_ref());
        approvals.need.get() > 1 && requesters.any(|requester| approvals.is_same(requester, by))
    }

    /// The decisions of the run under way.
    pub(super) fn of_this_run(&self) -> &[RolloutDecision] {
        let ended = self.decisions.iter().rposition(|decision| decision.verb.ends_run());
        self.decisions.get(ended.map_or(0, |at| at + 1)..).unwrap_or_default()
    }

    /// Number of people who have approved a wave at `since` or later under this policy (none: any), directly or through a gateway,
    /// are among the approvers, and have not requested it themselves where several must approve.
    pub fn approvals(
        &self,
        wave: &WaveName,
        since: Timestamp,
        policy: Option<Digest>,
        approvals: &Approvals,
    ) -> usize {
        let of = approvals.of.as_ref();
        let is_own = |by: &RequestedBy| self.is_own_request(wave.as_str(), by, approvals);
        let of_wave = |decision: &&RolloutDecision| {
            decision.verb == RolloutVerb::Approve
                && decision.wave.as_ref() == Some(wave)
                && decision.at >= since
                && decision.is_under(policy)
                && !decision.requested_by.as_ref().is_some_and(is_own)
        };
        let mut keys: Vec<_> = self
            .of_this_run()
            .iter()
            .filter(of_wave)
            .filter_map(|decision| match of {
                None => Some(decision.requested_by.as_ref().map(RequestedBy::person)),
                Some(approvers) => Some(Some(approvers.counted(decision.requested_by.as_ref()?)?)),
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }

    /// Adds a decision; false if it would change nothing.
    ///
    /// # Errors
    /// The decision is not possible in the phase of the rollout.
    pub fn decide(
        &mut self,
        decision: RolloutDecision,
        approvals: &Approvals,
    ) -> Result<bool, ImpossibleDecision> {
        let (verb, phase) = (decision.verb, self.phase());
        if self.is_made(&decision, approvals) {
            return Ok(false);
        }
        if !verb.is_possible_in(phase) {
            return Err(ImpossibleDecision { verb, phase });
        }
        self.forget_inconclusive(&decision);
        self.decisions.push(decision);
        while self.decisions.len() > 2 && (self.decisions.len() > DECISIONS_MAX || self.is_too_long()) {
            // The phase is that of the last decision that changed it.
            let oldest = usize::from(self.last_index() == Some(0));
            self.decisions.remove(oldest);
        }
        Ok(true)
    }

    /// Whether the same decision holds already.
    fn is_made(&self, decision: &RolloutDecision, approvals: &Approvals) -> bool {
        match decision.verb {
            RolloutVerb::Begin | RolloutVerb::Ready | RolloutVerb::Force | RolloutVerb::Approve => {
                self.has(decision, approvals)
            }
            // Neither a late message nor another planner replaces a result of `pass` or `fail`.
            RolloutVerb::Check => {
                let name = decision.wave.as_ref().map_or("", WaveName::as_str);
                let is_final = |held: Option<CheckResult>| held != Some(CheckResult::Inconclusive);
                self.checked(name).is_some_and(|held| is_final(held.result) || held.result == decision.result)
            }
            RolloutVerb::Retry => self.last().is_some_and(|last| last.verb == RolloutVerb::Retry),
            RolloutVerb::Resume => self.phase().is_running(),
            verb => self.last().is_some_and(|last| last.verb == verb),
        }
    }

    /// Removes the inconclusive result that a newer one of the same wave replaces: checks may be asked for days.
    fn forget_inconclusive(&mut self, newer: &RolloutDecision) {
        if newer.verb == RolloutVerb::Check {
            self.decisions
                .retain(|older| older.wave != newer.wave || older.result != Some(CheckResult::Inconclusive));
        }
    }

    fn is_too_long(&self) -> bool {
        serde_json::to_vec(self).map_or(0, |json| json.len()) > ROLLOUT_RECORD_BYTES_MAX
    }

    /// Whether the run under way has the same decision about a wave; an approval also by the same requester, and still valid.
    fn has(&self, decision: &RolloutDecision, approvals: &Approvals) -> bool {
        let expired = decision.at.checked_sub(approvals.expires_after).unwrap_or(Timestamp::MIN);
        let is_same = |other: &RolloutDecision| {
            let person = |of: &RolloutDecision| of.requested_by.as_ref().map(|by| by.person().to_owned());
            let is_counted = decision.verb != RolloutVerb::Approve
                || other.at >= expired
                    && other.is_under(decision.policy)
                    && person(other) == person(decision);
            other.verb == decision.verb && other.wave == decision.wave && is_counted
        };
        self.of_this_run().iter().any(is_same)
    }
}

impl RolloutDecision {
    /// A decision about a rollout as a whole, without more to say.
    pub const fn new(verb: RolloutVerb, at: Timestamp) -> Self {
        Self {
            verb,
            wave: None,
            reason: None,
            evidence: None,
            result: None,
            policy: None,
            requested_by: None,
            at,
        }
    }

    /// Whether it is about this policy, if both say which.
    fn is_under(&self, policy: Option<Digest>) -> bool {
        self.policy.zip(policy).is_none_or(|(own, policy)| own == policy)
    }

    /// Whether it is about a wave.
    pub(super) fn is_about(&self, wave: &str) -> bool {
        self.wave.as_ref().is_some_and(|name| name.as_str() == wave)
    }
}

impl RolloutDecisions {
    /// No decisions about a deployment.
    pub const fn new(deployment: DeploymentId) -> Self {
        Self {
            api_version: ApiVersion::V1,
            kind: kind::RolloutDecisions::RolloutDecisions,
            deployment,
            rollouts: Vec::new(),
        }
    }

    /// The decisions about a content.
    pub fn of(&self, digest: Digest) -> Option<&RolloutRecord> {
        self.rollouts.iter().find(|record| record.digest == digest)
    }

    /// Stores the decisions about a content as the newest; false if there is no room, because every content that is decided
    /// about is in use.
    #[must_use]
    pub fn store(&mut self, record: RolloutRecord, is_in_use: impl Fn(Digest) -> bool) -> bool {
        self.rollouts.retain(|other| other.digest != record.digest);
        if self.rollouts.len() >= ROLLOUT_RECORDS_MAX {
            let Some(at) = self.rollouts.iter().position(|other| !is_in_use(other.digest)) else {
                return false;
            };
            self.rollouts.remove(at);
        }
        self.rollouts.push(record);
        true
    }
}

impl Document for RolloutDecisions {
    const KIND: &'static str = "RolloutDecisions";
}

impl DecideRequest {
    /// Checks the rules that a JSON schema cannot express.
    ///
    /// # Errors
    /// The first rule that is broken, with the path of the field.
    pub fn check(&self) -> Result<(), Violation> {
        if self.verb.has_wave() != self.wave.is_some() {
            let rule = if self.verb.has_wave() { "is missing" } else { "is of no use here" };
            return Err(Violation::at("wave", format!("{rule}: the verb is {}", self.verb.as_str())));
        }
        if (self.verb == RolloutVerb::Check) != self.result.is_some() {
            let rule = if self.result.is_some() { "is of no use here" } else { "is missing" };
            return Err(Violation::at("result", format!("{rule}: the verb is {}", self.verb.as_str())));
        }
        if self.verb == RolloutVerb::Force && self.reason.as_ref().is_none_or(String::is_empty) {
            return Err(Violation::at("reason", "is missing: the verb is force"));
        }
        if self.verb == RolloutVerb::Supersede {
            return Err(Violation::at("verb", "supersede is recorded by the publisher alone"));
        }
        let revision = self.evidence.as_ref().and_then(|evidence| evidence.revision.as_ref());
        let bytes = revision.map_or(0, String::len);
        if bytes > COMMIT_BYTES_MAX {
            let rule = format!("has {bytes} bytes; the id of a commit has {COMMIT_BYTES_MAX} at most");
            return Err(Violation::at("evidence.revision", rule));
        }
        let bytes = self.reason.as_ref().map_or(0, String::len);
        if bytes > DECISION_REASON_BYTES_MAX {
            let rule = format!("has {bytes} bytes; {DECISION_REASON_BYTES_MAX} are allowed");
            return Err(Violation::at("reason", rule));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
