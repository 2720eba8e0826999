//! Verifies decisions about rollouts: recomputes each recorded decision that rests on evidence, from LEDGER at its sequence and
//! the waves of its commit. A decision whose past cannot be read any more is never counted as right.

use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{GateEvidence, RolloutRecord, RolloutVerb};
use muster_contract::{DeploymentId, RequestedBy, Timestamp, WaveName};
use muster_domain::rollout::{NotRecomputable, Recomputed, recomputable, recompute, rests_on_evidence};
use serde::Serialize;

use super::gather::recorded_decisions;
use super::past::{Part, Past};
use crate::ask::{AskError, Hub};
use crate::history::OnProgress;

/// LEDGER's fact at a decision's sequence is at most this much later than the decision, by the clocks of two machines.
const FACT_WITHIN: Duration = Duration::from_secs(5 * 60);

/// The recorded decisions about the rollouts of a deployment, recomputed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Decisions that recompute to themselves.
    pub same: u64,
    /// Decisions that do not.
    pub different: u64,
    /// Decisions that cannot be recomputed.
    pub unverifiable: u64,
    /// Decisions that rest on no evidence: those of persons, and `supersede`.
    pub without_evidence: u64,
    /// The rollouts, the one that was decided about last at the end.
    pub rollouts: Vec<VerifiedRollout>,
}

/// The decisions about one rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedRollout {
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// Its decisions that rest on evidence, oldest first.
    pub decisions: Vec<VerifiedDecision>,
}

/// A decision, as recorded and as recomputed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifiedDecision {
    /// The decision.
    pub verb: RolloutVerb,
    /// The wave that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveName>,
    /// Time of the decision.
    pub at: Timestamp,
    /// The requester.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// The recorded counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<GateEvidence>,
    /// The result.
    pub result: VerifyResult,
    /// The counts that LEDGER gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recomputed: Option<GateEvidence>,
    /// Why it is not the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a decision recomputes to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum VerifyResult {
    /// The counts are the same, and the rules lead to the decision.
    Same,
    /// The counts are different, or the rules do not lead to the decision.
    Different,
    /// LEDGER or Git no longer says enough, or the record never did.
    Unverifiable,
}

/// Verifies the decisions about the rollouts of a deployment; `None` if no rollout governs it.
///
/// # Errors
/// A service does not answer.
pub async fn verify(
    hub: &Hub,
    id: &DeploymentId,
    on_progress: &mut OnProgress<'_>,
) -> Result<Option<Verification>, AskError> {
    let Some(records) = recorded_decisions(hub, id).await? else { return Ok(None) };
    let mut past = Past::new(hub, id, on_progress);
    let mut whole = Verification {
        deployment: id.clone(),
        same: 0,
        different: 0,
        unverifiable: 0,
        without_evidence: 0,
        rollouts: Vec::new(),
    };
    for record in records {
        let mut decisions = Vec::new();
        for at in 0..record.decisions.len() {
            match verify_decision(&mut past, id, &record, at).await? {
                Some(decision) => decisions.push(decision),
                None => whole.without_evidence += 1,
            }
        }
        whole.add(VerifiedRollout { digest: record.digest, rollout: record.rollout, decisions });
    }
    Ok(Some(whole))
}

impl Verification {
    fn add(&mut self, rollout: VerifiedRollout) {
        let count =
            |result| rollout.decisions.iter().filter(|decision| decision.result == result).count() as u64;
        self.same += count(VerifyResult::Same);
        self.different += count(VerifyResult::Different);
        self.unverifiable += count(VerifyResult::Unverifiable);
        self.rollouts.push(rollout);
    }
}

/// A decision recomputed; `None` if it is a person's, which rests on no evidence.
async fn verify_decision(
    past: &mut Past<'_>,
    id: &DeploymentId,
    record: &RolloutRecord,
    at: usize,
) -> Result<Option<VerifiedDecision>, AskError> {
    let decision = &record.decisions[at];
    if !rests_on_evidence(decision) {
        return Ok(None);
    }
    let mut found = VerifiedDecision {
        verb: decision.verb,
        wave: decision.wave.clone(),
        at: decision.at,
        requested_by: decision.requested_by.clone(),
        recorded: decision.evidence.clone(),
        result: VerifyResult::Unverifiable,
        recomputed: None,
        reason: None,
    };
    match recompute_decision(past, id, record, at).await? {
        Err(reason) => found.reason = Some(reason),
        Ok(Recomputed { counts, contradiction }) => {
            let is_same = decision.evidence.as_ref() == Some(&counts) && contradiction.is_none();
            found.result = if is_same { VerifyResult::Same } else { VerifyResult::Different };
            (found.recomputed, found.reason) = (Some(counts), contradiction);
        }
    }
    Ok(Some(found))
}

/// The recomputed counts, or why there are none.
async fn recompute_decision(
    past: &mut Past<'_>,
    id: &DeploymentId,
    record: &RolloutRecord,
    at: usize,
) -> Result<Part<Recomputed>, AskError> {
    let decision = &record.decisions[at];
    let (evidence, revision, _) = match recomputable(decision) {
        Ok(named) => named,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let commit = match past.commit(revision).await? {
        Ok(commit) => commit,
        Err(reason) => return Ok(Err(reason)),
    };
    let moment = match past.moment(evidence.ledger_seq).await? {
        Ok(moment) => moment,
        Err(reason) => return Ok(Err(reason)),
    };
    if moment.at.duration_since(decision.at) > FACT_WITHIN.try_into().unwrap_or_default() {
        return Ok(Err(format!(
            "LEDGER {} is of {}, later than the decision: LEDGER was replaced since",
            evidence.ledger_seq, moment.at
        )));
    }
    Ok(recompute(id, record, at, &commit, &moment.lines).map_err(|error: NotRecomputable| error.to_string()))
}
