//! Recomputes a recorded decision: the counts of its wave and the rule that led to it, from what LEDGER held at its sequence
//! and from the waves of its commit.
//!
//! A decision is right if the counts are the recorded ones and the rules lead to it. It does not judge what LEDGER does not
//! hold: windows, budgets, the order of rollouts, and who decided.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::limits::{DECISION_REASON_BYTES_MAX, DECISIONS_MAX, ROLLOUT_RECORD_BYTES_MAX};
use muster_contract::rollout::{
    Approval, GateEvidence, RolloutDecision, RolloutRecord, RolloutTarget, RolloutVerb, TargetsAnswer,
};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use serde::Serialize;

use super::gate::Gate;
use super::lines::Lines;
use super::progress::{RolloutProgress, progress};
use super::state::Step;

/// Longest time between a judgement and its record: the clocks of requester and publisher may differ by this.
const RECORDED_WITHIN: Duration = Duration::from_secs(5 * 60);

/// The lines of a deployment at one sequence of LEDGER, with the content that each device had in its desired state.
#[derive(Debug, Clone, Default)]
pub struct PastLines {
    /// The lines.
    pub lines: Lines,
    /// The content of each device that had one, as LEDGER holds it.
    pub contents: BTreeMap<DeviceKey, Digest>,
    /// Devices on which a request replaced the deployment: rollouts leave them out.
    pub requested: BTreeSet<DeviceKey>,
    /// Devices whose desired state LEDGER does not give any more.
    pub unreadable: BTreeSet<DeviceKey>,
}

/// A decision recomputed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recomputed {
    /// The counts that LEDGER gives.
    pub counts: GateEvidence,
    /// Why the rules do not lead to the decision, if they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contradiction: Option<String>,
}

/// Why a decision cannot be recomputed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotRecomputable {
    /// It names no evidence.
    NoEvidence,
    /// An older release recorded it, without the commit and the time of the judgement.
    OlderRecord,
    /// Its counts are of several sequences.
    SeveralSequences(u64, u64),
    /// It was judged and recorded at times that are far apart.
    ClocksApart(Timestamp, Timestamp),
    /// LEDGER does not give the desired states of so many of its targets.
    Unreadable(usize),
    /// Its record has dropped older decisions, and what is left does not lead to this one.
    Shortened,
}

impl fmt::Display for NotRecomputable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEvidence => f.write_str("it names no evidence"),
            Self::OlderRecord => {
                f.write_str("an older release recorded it, without its commit and the time of the judgement")
            }
            Self::SeveralSequences(first, last) => {
                write!(f, "its counts were read page by page, from LEDGER {first} to {last}")
            }
            Self::ClocksApart(judged, recorded) => {
                write!(f, "it was judged at {judged} and recorded at {recorded}: the clocks are far apart")
            }
            Self::Unreadable(count) => {
                write!(f, "LEDGER no longer gives the desired states of {count} of its targets")
            }
            Self::Shortened => f.write_str("older decisions that led to it are no longer recorded"),
        }
    }
}

/// Whether a decision rests on evidence: those of persons do not.
pub fn rests_on_evidence(decision: &RolloutDecision) -> bool {
    matches!(
        decision.verb,
        RolloutVerb::Begin
            | RolloutVerb::Check
            | RolloutVerb::Ready
            | RolloutVerb::Force
            | RolloutVerb::Finish
    ) || decision.evidence.is_some()
}

/// The evidence of a decision, the commit of its waves and the time of its judgement, if it can be recomputed.
///
/// # Errors
/// The record does not say enough.
pub fn recomputable(decision: &RolloutDecision) -> Result<(&GateEvidence, &str, Timestamp), NotRecomputable> {
    let evidence = decision.evidence.as_ref().ok_or(NotRecomputable::NoEvidence)?;
    let named = evidence.revision.as_deref().zip(evidence.judged_at);
    let (revision, judged_at) = named.ok_or(NotRecomputable::OlderRecord)?;
    if let Some(through) = evidence.ledger_through {
        return Err(NotRecomputable::SeveralSequences(evidence.ledger_seq, through));
    }
    if judged_at.duration_since(decision.at).unsigned_abs() > RECORDED_WITHIN {
        return Err(NotRecomputable::ClocksApart(judged_at, decision.at));
    }
    Ok((evidence, revision, judged_at))
}

/// Recomputes the decision at an index of a record, by the targets of its commit and LEDGER at its sequence.
///
/// # Errors
/// The record and LEDGER do not say enough.
pub fn recompute(
    id: &DeploymentId,
    record: &RolloutRecord,
    at: usize,
    commit: &TargetsAnswer,
    past: &PastLines,
) -> Result<Recomputed, NotRecomputable> {
    let decision = record.decisions.get(at).ok_or(NotRecomputable::NoEvidence)?;
    let (evidence, _, judged_at) = recomputable(decision)?;
    let before = RolloutRecord { decisions: record.decisions[..at].to_vec(), ..record.clone() };
    let unreadable = commit
        .targets
        .iter()
        .filter(|target| target.wanted == Some(record.digest) && past.unreadable.contains(&target.key));
    match unreadable.count() {
        0 => {}
        count => return Err(NotRecomputable::Unreadable(count)),
    }
    let found = past_progress(id, &before, commit, past, judged_at);
    let recomputed = found.map_or_else(
        || Recomputed {
            counts: GateEvidence {
                targets: 0,
                released: 0,
                confirmed: 0,
                soaked: 0,
                failed: 0,
                debt: 0,
                dark: evidence.dark.map(|_| 0),
                debt_of_all: None,
                ..evidence.clone()
            },
            contradiction: Some("its commit wants the content for no device of this rollout".to_owned()),
        },
        |found| of(decision, evidence, &found),
    );
    let is_same = recomputed.contradiction.is_none() && recomputed.counts == *evidence;
    if !is_same && is_shortened(record) {
        return Err(NotRecomputable::Shortened);
    }
    Ok(recomputed)
}

/// A rollout as it stood at a sequence of LEDGER, by the decisions up to then; `None` if its commit wants the content for no
/// device that its `rollout.yaml` governs.
pub fn past_progress(
    id: &DeploymentId,
    record: &RolloutRecord,
    commit: &TargetsAnswer,
    past: &PastLines,
    now: Timestamp,
) -> Option<RolloutProgress> {
    let is_of_record = |target: &&RolloutTarget| {
        target.rollout == record.rollout
            && target.wanted == Some(record.digest)
            && !past.requested.contains(&target.key)
    };
    let with_content = |target: &RolloutTarget| {
        let line = past.lines.of_devices.get(&target.key);
        RolloutTarget {
            published: past.contents.get(&target.key).copied(),
            target_generation: line.and_then(|line| line.target_generation),
            ..target.clone()
        }
    };
    let answer = TargetsAnswer {
        revision: commit.revision.clone(),
        rollouts: commit.rollouts.clone(),
        targets: commit.targets.iter().filter(is_of_record).map(with_content).collect(),
        decisions: if record.decisions.is_empty() { Vec::new() } else { vec![record.clone()] },
        // LEDGER does not hold the decisions about other rollouts.
        waits_for: BTreeMap::new(),
        next: None,
    };
    progress(id, answer, &past.lines, now).pop()
}

/// The counts of the wave that a decision is about, and whether the rules lead to it.
fn of(decision: &RolloutDecision, recorded: &GateEvidence, found: &RolloutProgress) -> Recomputed {
    let waves = &found.state.waves;
    let last = waves.len().saturating_sub(1);
    let (wave, contradiction) = match decision.verb {
        RolloutVerb::Begin => begin(decision, found),
        RolloutVerb::Check => at_gate(decision, found, Gate::Checking),
        RolloutVerb::Ready => at_gate(decision, found, Gate::Approving),
        // A person forces a gate whatever its evidence is; the counts must be true all the same.
        RolloutVerb::Force => {
            wave_of(decision, found).map_or_else(|missing| (0, Some(missing)), |(_, at)| (at, None))
        }
        RolloutVerb::Finish => (last, shut_gate(found, waves.len())),
        verb => match &found.state.step {
            Step::Fail { wave, verb: decided, .. } if *decided == verb => (*wave, None),
            Step::Fail { wave, .. }
            | Step::Wait { wave, .. }
            | Step::Check { wave }
            | Step::Ready { wave }
            | Step::Release { wave, .. } => {
                (*wave, Some(format!("the rules give another decision: {}", found.why())))
            }
            Step::Done | Step::Held { .. } | Step::RollBack { .. } => {
                (last, Some(format!("the rules give no such decision: {}", found.why())))
            }
        },
    };
    let counts = found.evidence(wave).unwrap_or_else(|| recorded.clone());
    // LEDGER gives neither the commit nor the time; it may end with an earlier fact.
    let (ledger_seq, revision) = (recorded.ledger_seq, recorded.revision.clone());
    let debt_of_all = recorded.debt_of_all.map(|_| found.debt());
    let dark = counts.dark.filter(|_| recorded.dark.is_some());
    Recomputed { counts: GateEvidence { ledger_seq, revision, dark, debt_of_all, ..counts }, contradiction }
}

/// The wave whose counts let another one begin, and why that may not begin.
fn begin(decision: &RolloutDecision, found: &RolloutProgress) -> (usize, Option<String>) {
    let (name, at) = match wave_of(decision, found) {
        Ok(named) => named,
        Err(missing) => return (0, Some(missing)),
    };
    let is_before = found.policy.waves.get(at).is_some_and(|wave| wave.approval == Approval::Before);
    let approvals = found.state.waves.get(at).and_then(|wave| wave.approvals);
    let missing = approvals.filter(|count| is_before && count.given < count.needed);
    let unapproved =
        || missing.map(|count| format!("wave {name} had {} of {} approvals", count.given, count.needed));
    (at.saturating_sub(1), shut_gate(found, at).or_else(unapproved))
}

/// The wave at whose gate a decision was made, and whether the gate was not in that state.
fn at_gate(decision: &RolloutDecision, found: &RolloutProgress, gate: Gate) -> (usize, Option<String>) {
    match wave_of(decision, found) {
        Ok((name, at)) => {
            let other = found.state.waves.get(at).map(|wave| wave.gate).filter(|other| *other != gate);
            (at, other.map(|other| format!("wave {name} is not at its gate: {other}")))
        }
        Err(missing) => (0, Some(missing)),
    }
}

/// The wave that a decision names, and its index.
fn wave_of<'a>(decision: &'a RolloutDecision, found: &RolloutProgress) -> Result<(&'a str, usize), String> {
    let name = decision.wave.as_ref().map_or("", |wave| wave.as_str());
    let at = found.state.waves.iter().position(|wave| wave.name == name);
    at.map(|at| (name, at)).ok_or_else(|| format!("its commit has no wave {name} with targets"))
}

/// The first gate behind the first `count` waves that is not open.
fn shut_gate(found: &RolloutProgress, count: usize) -> Option<String> {
    let shut = found.state.waves.iter().take(count).find(|wave| wave.gate != Gate::Open)?;
    Some(format!("the gate behind wave {} is not open: {}", shut.name, shut.gate))
}

/// Whether a record may have dropped older decisions.
fn is_shortened(record: &RolloutRecord) -> bool {
    let bytes = serde_json::to_vec(record).map_or(0, |json| json.len());
    record.decisions.len() >= DECISIONS_MAX
        || bytes + 2 * DECISION_REASON_BYTES_MAX > ROLLOUT_RECORD_BYTES_MAX
}

#[cfg(test)]
mod tests;
