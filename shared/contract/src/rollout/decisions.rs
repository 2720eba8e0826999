//! The record of decisions about rollouts in DOWNLINK, the request for a decision, and the state that decisions lead to. It
//! does not judge evidence: `muster-domain` does.

use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{duration_text, one};
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

/// The decisions about the rollouts of a deployment: the newest message of `muster.rollout.<deployment>` in DOWNLINK. The
/// publisher alone writes it, with compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutDecisions {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `RolloutDecisions`
    pub kind: kind::RolloutDecisions,
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its rollouts, the one that was decided about last at the end. Older ones are dropped.
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
    /// The decisions, oldest first. Older ones are dropped.
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
    /// Who decided, if the server vouches for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// Time of the decision, by the publisher's clock.
    pub at: Timestamp,
}

/// A decision about a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RolloutVerb {
    /// A wave begins: the gates before it are open.
    Begin,
    /// A wave that needs approval may begin.
    Approve,
    /// No further device gets the content until the rollout is resumed.
    Pause,
    /// A paused rollout continues.
    Resume,
    /// No further device gets the content. Devices that have it keep it.
    Stop,
    /// Devices that have the content get the one that they had before it, and no device gets it any more.
    Rollback,
    /// A rollout that was stopped or rolled back begins again with its first wave.
    Retry,
    /// Every target has the content, and every gate is open.
    Finish,
}

/// The state of a rollout by its decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RolloutWord {
    /// It continues as its gates allow.
    #[default]
    Running,
    /// It continues once it is resumed.
    Paused,
    /// It has ended: devices that have the content keep it.
    Stopped,
    /// It has ended: devices that had the content get the one before it.
    RolledBack,
    /// Every target had the content, and every gate was open.
    Succeeded,
}

/// The counts of a wave that a decision was based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateEvidence {
    /// LEDGER up to this sequence gives these counts.
    pub ledger_seq: u64,
    /// Targets of the wave.
    pub targets: u64,
    /// Those with the content in their desired state.
    pub released: u64,
    /// Released ones that are heard and have installed it.
    pub confirmed: u64,
    /// Confirmed ones whose soak time is over.
    pub soaked: u64,
    /// Released ones that are heard and have failed.
    pub failed: u64,
}

/// What the planner decides if a wave has more failures than it allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// Pauses the rollout.
    #[default]
    Pause,
    /// Rolls it back.
    Rollback,
}

/// The approvals that a wave with `approval: before` needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Approvals {
    /// Number of different requesters.
    #[serde(default = "one")]
    pub need: NonZeroU32,
    /// Time after which an approval no longer counts for a wave that has not begun: 30m, 8h; at most 24 h.
    #[serde(default = "expires_after", with = "duration_text")]
    #[schemars(with = "String")]
    pub expires_after: Duration,
}

/// Default of `expiresAfter`.
const fn expires_after() -> Duration {
    Duration::from_secs(24 * 60 * 60)
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
    /// The wave, of `begin` and `approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveName>,
    /// The reason, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The evidence that the requester has judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<GateEvidence>,
}

/// Answer of `muster.publisher.decide`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecideAnswer {
    /// The rollout's decisions with this one.
    pub record: RolloutRecord,
    /// False if the rollout was in that state already.
    pub changed: bool,
}

impl Default for Approvals {
    fn default() -> Self {
        Self { need: one(), expires_after: expires_after() }
    }
}

impl Approvals {
    /// Whether one approval is needed, for the default time.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
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
            Self::Rollback => RolloutVerb::Rollback,
        }
    }
}

impl RolloutVerb {
    /// Its name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Approve => "approve",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::Rollback => "rollback",
            Self::Retry => "retry",
            Self::Finish => "finish",
        }
    }

    /// Whether it is about one wave.
    pub const fn has_wave(self) -> bool {
        matches!(self, Self::Begin | Self::Approve)
    }

    /// The state that the decision leads to; `None` if it changes no state.
    const fn leads_to(self) -> Option<RolloutWord> {
        match self {
            Self::Begin | Self::Approve => None,
            Self::Pause => Some(RolloutWord::Paused),
            Self::Resume | Self::Retry => Some(RolloutWord::Running),
            Self::Stop => Some(RolloutWord::Stopped),
            Self::Rollback => Some(RolloutWord::RolledBack),
            Self::Finish => Some(RolloutWord::Succeeded),
        }
    }

    /// Whether the decision can be made in a state.
    const fn is_possible_in(self, word: RolloutWord) -> bool {
        use RolloutWord::{Paused, RolledBack, Running, Stopped, Succeeded};
        match self {
            Self::Begin | Self::Finish | Self::Pause => matches!(word, Running | Succeeded),
            Self::Approve | Self::Stop => matches!(word, Running | Paused | Succeeded),
            Self::Resume => matches!(word, Paused),
            Self::Rollback => !matches!(word, RolledBack),
            Self::Retry => matches!(word, Stopped | RolledBack),
        }
    }
}

impl RolloutWord {
    /// Whether no decision has changed it.
    pub const fn is_running(&self) -> bool {
        matches!(self, Self::Running)
    }

    /// The state in words, as the end of a sentence about the rollout.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Running => "is running",
            Self::Paused => "is paused",
            Self::Stopped => "is stopped",
            Self::RolledBack => "is rolled back",
            Self::Succeeded => "has succeeded",
        }
    }
}

/// The state of a rollout in which a decision is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rollout {}, so it cannot be changed by '{}'{}", .word.words(), .verb.as_str(), .word.way_on())]
pub struct ImpossibleDecision {
    /// The decision.
    pub verb: RolloutVerb,
    /// The state.
    pub word: RolloutWord,
}

impl RolloutWord {
    /// What continues a rollout in this state, as the end of a sentence.
    const fn way_on(self) -> &'static str {
        match self {
            Self::Running | Self::Succeeded => "",
            Self::Paused => ": 'resume' continues it",
            Self::Stopped | Self::RolledBack => ": 'retry' begins it again",
        }
    }
}

impl RolloutRecord {
    /// A rollout without decisions.
    pub const fn new(digest: Digest, rollout: String) -> Self {
        Self { digest, rollout, decisions: Vec::new() }
    }

    /// The state.
    pub fn word(&self) -> RolloutWord {
        let words = self.decisions.iter().rev().filter_map(|decision| decision.verb.leads_to());
        words.into_iter().next().unwrap_or_default()
    }

    /// The newest decision that led to the state, if there is one.
    pub fn last(&self) -> Option<&RolloutDecision> {
        self.decisions.iter().rev().find(|decision| decision.verb.leads_to().is_some())
    }

    /// The decisions of the run under way: those after the last one that began the rollout again.
    fn of_this_run(&self) -> &[RolloutDecision] {
        let began = self.decisions.iter().rposition(|decision| decision.verb == RolloutVerb::Retry);
        self.decisions.get(began.map_or(0, |at| at + 1)..).unwrap_or_default()
    }

    /// Number of different requesters that have approved a wave at `since` or later.
    pub fn approvals(&self, wave: &WaveName, since: Timestamp) -> usize {
        let of_wave = |decision: &&RolloutDecision| {
            decision.verb == RolloutVerb::Approve
                && decision.wave.as_ref() == Some(wave)
                && decision.at >= since
        };
        let mut keys: Vec<_> = self
            .of_this_run()
            .iter()
            .filter(of_wave)
            .map(|decision| decision.requested_by.as_ref().map(|by| &by.key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }

    /// Adds a decision; false if it would change nothing.
    ///
    /// # Errors
    /// The decision is not possible in the state of the rollout.
    pub fn decide(
        &mut self,
        decision: RolloutDecision,
        approvals: Approvals,
    ) -> Result<bool, ImpossibleDecision> {
        let (verb, word) = (decision.verb, self.word());
        if verb.leads_to() == Some(word) && verb != RolloutVerb::Retry || self.has(&decision, approvals) {
            return Ok(false);
        }
        if !verb.is_possible_in(word) {
            return Err(ImpossibleDecision { verb, word });
        }
        self.decisions.push(decision);
        while self.decisions.len() > 1 && (self.decisions.len() > DECISIONS_MAX || self.is_too_long()) {
            self.decisions.remove(0);
        }
        Ok(true)
    }

    fn is_too_long(&self) -> bool {
        serde_json::to_vec(self).map_or(0, |json| json.len()) > ROLLOUT_RECORD_BYTES_MAX
    }

    /// Whether the run under way has the same decision about a wave; an approval also by the same requester, and still valid.
    fn has(&self, decision: &RolloutDecision, approvals: Approvals) -> bool {
        let expired = decision.at.checked_sub(approvals.expires_after).unwrap_or(Timestamp::MIN);
        let is_same = |other: &RolloutDecision| {
            let is_counted = decision.verb == RolloutVerb::Begin
                || other.at >= expired && other.requested_by == decision.requested_by;
            other.verb == decision.verb && other.wave == decision.wave && is_counted
        };
        decision.verb.has_wave() && self.of_this_run().iter().any(is_same)
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

    /// The decisions about a rollout.
    pub fn of(&self, digest: Digest, rollout: &str) -> Option<&RolloutRecord> {
        self.rollouts.iter().find(|record| record.digest == digest && record.rollout == rollout)
    }

    /// Stores the decisions about a rollout as the newest.
    pub fn put(&mut self, record: RolloutRecord) {
        self.rollouts.retain(|other| other.digest != record.digest || other.rollout != record.rollout);
        self.rollouts.push(record);
        let extra = self.rollouts.len().saturating_sub(ROLLOUT_RECORDS_MAX);
        self.rollouts.drain(..extra);
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
