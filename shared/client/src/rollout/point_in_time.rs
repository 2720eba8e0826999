//! Tells how the rollouts of a deployment stood at a time, by the decisions up to then, what LEDGER held, and the waves of the
//! commit that the last judgement named.

use muster_contract::canonical::Digest;
use muster_contract::rollout::{RolloutDecision, RolloutPhase, RolloutRecord};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{RolloutProgress, past_progress};
use serde::Serialize;

use super::gather::recorded_decisions;
use super::past::{Part, Past};
use crate::ask::{AskError, Hub};
use crate::history::OnProgress;

/// The rollouts of a deployment at a time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutsThen {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The time.
    pub at: Timestamp,
    /// LEDGER up to this sequence was stored by then.
    pub ledger_seq: u64,
    /// Rollouts that were decided about by then and not superseded.
    pub rollouts: Vec<RolloutProgress>,
    /// Those whose waves cannot be told any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownThen>,
}

/// A rollout whose waves cannot be told any more.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnknownThen {
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// Its phase at the time.
    pub phase: RolloutPhase,
    /// Why they cannot be told.
    pub reason: String,
}

/// The rollouts of a deployment as they stood at a time; `None` if no rollout governs it.
///
/// # Errors
/// A service does not answer, or LEDGER has forgotten the time.
pub async fn rollouts_then(
    hub: &Hub,
    id: &DeploymentId,
    at: Timestamp,
    on_progress: &mut OnProgress<'_>,
) -> Result<Option<RolloutsThen>, AskError> {
    let Some(records) = recorded_decisions(hub, id).await? else { return Ok(None) };
    let mut past = Past::new(hub, id, on_progress);
    let ledger_seq = past.ledger_seq_at(at).await?;
    let mut found =
        RolloutsThen { deployment: id.clone(), at, ledger_seq, rollouts: Vec::new(), unknown: Vec::new() };
    for record in records {
        let record = up_to(record, at);
        if record.decisions.is_empty() || record.phase() == RolloutPhase::Superseded {
            continue;
        }
        match rollout(&mut past, &found, &record).await? {
            Ok(rollout) => found.rollouts.push(rollout),
            Err(reason) => found.unknown.push(UnknownThen {
                digest: record.digest,
                phase: record.phase(),
                rollout: record.rollout,
                reason,
            }),
        }
    }
    Ok(Some(found))
}

/// The decisions that were made by a time.
fn up_to(mut record: RolloutRecord, at: Timestamp) -> RolloutRecord {
    record.decisions.retain(|decision| decision.at <= at);
    record
}

/// A rollout at that time, or why it cannot be told.
async fn rollout(
    past: &mut Past<'_>,
    found: &RolloutsThen,
    record: &RolloutRecord,
) -> Result<Part<RolloutProgress>, AskError> {
    let revision = |decision: &RolloutDecision| decision.evidence.as_ref()?.revision.clone();
    let Some(revision) = record.decisions.iter().rev().find_map(revision) else {
        return Ok(Err("no decision up to then names its commit".to_owned()));
    };
    let commit = match past.commit(&revision).await? {
        Ok(commit) => commit,
        Err(reason) => return Ok(Err(reason)),
    };
    let moment = match past.moment(found.ledger_seq).await? {
        Ok(moment) => moment,
        Err(reason) => return Ok(Err(reason)),
    };
    let lines = &moment.lines;
    if !lines.unreadable.is_empty() {
        let count = lines.unreadable.len();
        return Ok(Err(format!("LEDGER no longer gives the desired states of {count} devices")));
    }
    let rollout = past_progress(&found.deployment, record, &commit, lines, found.at);
    Ok(rollout.ok_or_else(|| format!("commit {revision} wants the content for no device")))
}

#[cfg(test)]
mod tests {
    use muster_contract::rollout::RolloutVerb;

    use super::*;

    #[test]
    fn decisions_after_the_time_do_not_count() {
        let time = |second| Timestamp::from_second(second).unwrap();
        let decision = |verb, second| RolloutDecision::new(verb, time(second));
        let mut record = RolloutRecord::new(Digest::of_bytes(b"v2"), "fleet/rollout.yaml".to_owned());
        record.decisions = vec![decision(RolloutVerb::Pause, 10), decision(RolloutVerb::Stop, 20)];
        for (second, count, phase) in
            [(9, 0, RolloutPhase::Running), (10, 1, RolloutPhase::Paused), (20, 2, RolloutPhase::Stopped)]
        {
            let found = up_to(record.clone(), time(second));
            assert_eq!((found.decisions.len(), found.phase()), (count, phase), "{second}");
        }
    }
}
