//! `muster rollout show --at`: the rollouts of a deployment as they stood at a time, by the decisions up to then, what LEDGER
//! held, and the waves of the commit that the last judgement named.

use muster_client::rollout::targets;
use muster_contract::canonical::Digest;
use muster_contract::history::{MomentAnswer, Point};
use muster_contract::query::Query;
use muster_contract::rollout::{RolloutDecision, RolloutPhase, RolloutRecord};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{RolloutProgress, past_progress};
use serde::Serialize;

use super::gather::ungoverned;
use super::past::Past;
use crate::ask::understood;
use crate::error::CtlError;
use crate::history::patiently;
use crate::render;
use crate::session::Session;

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

/// Shows the rollouts of a deployment as they stood at a time.
///
/// # Errors
/// A service does not answer, no rollout governs the deployment, or LEDGER has forgotten the time.
pub(super) async fn show(session: &mut Session<'_>, id: DeploymentId, at: Timestamp) -> Result<(), CtlError> {
    let answer = targets(&session.hub, &id).await?;
    if answer.targets.is_empty() && answer.decisions.is_empty() {
        return Err(ungoverned(session, &id).await);
    }
    let query = Query { point: Point::at(at), ..Query::default() };
    let moment: MomentAnswer = understood(&patiently(session, "moment", &query).await?)?;
    let ledger_seq = moment.as_of.ledger_seq;
    let mut past = Past::new(id.clone());
    let mut found =
        RolloutsThen { deployment: id, at, ledger_seq, rollouts: Vec::new(), unknown: Vec::new() };
    for record in answer.decisions {
        let record = up_to(record, at);
        if record.decisions.is_empty() || record.phase() == RolloutPhase::Superseded {
            continue;
        }
        match rollout(session, &mut past, &found, &record).await? {
            Ok(rollout) => found.rollouts.push(rollout),
            Err(reason) => found.unknown.push(UnknownThen {
                digest: record.digest,
                phase: record.phase(),
                rollout: record.rollout,
                reason,
            }),
        }
    }
    let frame = session.frame();
    session.show_own(&found, |found, _| render::rollout::then(found, frame))
}

/// The decisions that were made by a time.
fn up_to(mut record: RolloutRecord, at: Timestamp) -> RolloutRecord {
    record.decisions.retain(|decision| decision.at <= at);
    record
}

/// A rollout at that time, or why it cannot be told.
async fn rollout(
    session: &mut Session<'_>,
    past: &mut Past,
    found: &RolloutsThen,
    record: &RolloutRecord,
) -> Result<Result<RolloutProgress, String>, CtlError> {
    let revision = |decision: &RolloutDecision| decision.evidence.as_ref()?.revision.clone();
    let Some(revision) = record.decisions.iter().rev().find_map(revision) else {
        return Ok(Err("no decision up to then names its commit".to_owned()));
    };
    let commit = match past.commit(session, &revision).await? {
        Ok(commit) => commit.clone(),
        Err(reason) => return Ok(Err(reason.clone())),
    };
    let lines = match past.moment(session, found.ledger_seq).await? {
        Ok(moment) => &moment.lines,
        Err(reason) => return Ok(Err(reason.clone())),
    };
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
        let decision = |verb, second| RolloutDecision {
            verb,
            wave: None,
            reason: None,
            result: None,
            evidence: None,
            requested_by: None,
            at: time(second),
        };
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
