//! A rollout in numbers: its state in one word, its waves with each target counted once, and what it waits for. Pure.

use muster_contract::canonical::Digest;
use muster_contract::rollout::{RolloutEnd, RolloutPhase, RolloutRecord};
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{ApprovalCount, Blocked, Gate, Known, RolloutProgress, Step, WaveState};
use serde::Serialize;

use super::gather::Gathered;

/// The state of a rollout, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RolloutWord {
    /// It releases, or waits for devices, a budget or a window.
    Running,
    /// A wave waits for approval.
    Approval,
    /// A wave has failed, and the decision about it is not recorded yet.
    Failing,
    /// A decision holds it.
    Paused,
    /// A person has ended it: no further device gets the content.
    Cancelled,
    /// It has ended by a failed wave or a deadline: no further device gets the content.
    Failed,
    /// It has ended: devices that had the content get the one before it.
    RolledBack,
    /// It has ended: devices that have begun with the content keep it, others get the one before it.
    Aborted,
    /// Every target has the content, and every gate is open.
    Succeeded,
    /// Every gate is open, and the waves left out silent devices.
    SucceededWithDebt,
}

impl RolloutWord {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Running,
        Self::Approval,
        Self::Failing,
        Self::Paused,
        Self::Cancelled,
        Self::Failed,
        Self::RolledBack,
        Self::Aborted,
        Self::Succeeded,
        Self::SucceededWithDebt,
    ];

    /// Its meaning.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Running => "It releases, or waits for devices, a budget or a window",
            Self::Approval => "A wave waits for approval",
            Self::Failing => "A wave has failed, and the decision about it is not recorded yet",
            Self::Paused => "A decision holds it",
            Self::Cancelled => "A person has ended it: no further device gets the content",
            Self::Failed => "A failed wave or a deadline has ended it: no further device gets the content",
            Self::RolledBack => "It has ended: devices that had the content get the one before it",
            Self::Aborted => {
                "It has ended: devices that have begun with the content keep it, others get the one before it"
            }
            Self::Succeeded => "Every target has the content, and every gate is open",
            Self::SucceededWithDebt => "Every gate is open, and the waves left out silent devices",
        }
    }

    /// The states that a word names: one of them, or the ones of a word of earlier releases.
    pub fn named(word: &str) -> Vec<Self> {
        match word {
            "done" => vec![Self::Succeeded, Self::SucceededWithDebt],
            "stopped" => vec![Self::Cancelled, Self::Failed],
            _ => Self::ALL.into_iter().filter(|state| state.as_str() == word).collect(),
        }
    }

    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Approval => "approval",
            Self::Failing => "failing",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::RolledBack => "rolled-back",
            Self::Aborted => "aborted",
            Self::Succeeded => "succeeded",
            Self::SucceededWithDebt => "succeeded-with-debt",
        }
    }
}

/// The rollouts of a deployment at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutsFrame {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The last accepted commit.
    pub revision: String,
    /// LEDGER up to this sequence gives the numbers.
    pub ledger_seq: u64,
    /// Time of the judgement.
    pub at: Timestamp,
    /// The rollouts; none if no `rollout.yaml` governs the deployment.
    pub rollouts: Vec<RolloutSnapshot>,
}

impl RolloutsFrame {
    /// The rollouts as they were gathered at a time.
    pub fn of(deployment: DeploymentId, gathered: &Gathered, at: Timestamp) -> Self {
        Self {
            deployment,
            revision: gathered.revision.clone(),
            ledger_seq: gathered.lines.ledger_seq,
            at,
            rollouts: RolloutSnapshot::all(gathered),
        }
    }

    /// Whether it has the content of another frame; the times of the judgements do not count.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.rollouts, &self.revision) == (&other.rollouts, &other.revision)
    }
}

/// A rollout in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSnapshot {
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The state.
    pub state: RolloutWord,
    /// The state of the rollout and its cause, in one sentence.
    pub why: String,
    /// The waves in order.
    pub waves: Vec<WaveBar>,
}

/// A wave, with each of its targets counted once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveBar {
    /// Its name.
    pub name: String,
    /// The gate behind it.
    pub gate: Gate,
    /// Whether a person has decided that the gate counts as open.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// Its targets.
    pub targets: u64,
    /// Heard, with all reports in, and installed.
    pub confirmed: u64,
    /// Heard and neither confirmed nor failed: it may still become either.
    pub possible: u64,
    /// Heard, with all reports in, and failed or past the deadline.
    pub failed: u64,
    /// Released and not heard.
    pub dark: u64,
    /// Without the content in their desired state.
    pub not_released: u64,
    /// Those not heard that the wave leaves out of its counts.
    pub left_out: u64,
    /// The approvals before it, if it needs some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalCount>,
}

impl RolloutSnapshot {
    /// Each rollout in numbers.
    pub fn all(gathered: &Gathered) -> Vec<Self> {
        gathered.rollouts.iter().map(Self::of).collect()
    }

    fn of(rollout: &RolloutProgress) -> Self {
        Self {
            digest: rollout.digest,
            rollout: rollout.file.clone(),
            state: word(rollout),
            why: rollout.why(),
            waves: rollout.state.waves.iter().map(|wave| WaveBar::of(wave, rollout)).collect(),
        }
    }
}

/// The state of a rollout in one word.
fn word(rollout: &RolloutProgress) -> RolloutWord {
    match (&rollout.state.step, rollout.phase()) {
        (Step::Held { .. } | Step::RollBack { .. }, RolloutPhase::Paused) => RolloutWord::Paused,
        (Step::Held { .. } | Step::RollBack { .. }, RolloutPhase::Stopped) => {
            match rollout.record.as_ref().and_then(RolloutRecord::end) {
                Some(RolloutEnd::Failed) => RolloutWord::Failed,
                _ => RolloutWord::Cancelled,
            }
        }
        (Step::Held { .. } | Step::RollBack { .. }, RolloutPhase::Aborted) => RolloutWord::Aborted,
        (Step::Held { .. } | Step::RollBack { .. }, _) => RolloutWord::RolledBack,
        (Step::Done, _) if rollout.debt() > 0 => RolloutWord::SucceededWithDebt,
        (Step::Done, _) => RolloutWord::Succeeded,
        (Step::Fail { .. }, _) => RolloutWord::Failing,
        (Step::Release { needs_approval: true, .. } | Step::Ready { .. }, _)
        | (Step::Wait { because: Blocked::Approval, .. }, _) => RolloutWord::Approval,
        (Step::Release { .. } | Step::Check { .. } | Step::Wait { .. }, _) => RolloutWord::Running,
    }
}

impl WaveBar {
    fn of(wave: &WaveState, rollout: &RolloutProgress) -> Self {
        let count = |of: &[Known]| {
            let members = wave.members.iter().filter(|at| of.contains(&rollout.known[**at]));
            members.count() as u64
        };
        Self {
            name: wave.name.clone(),
            gate: wave.gate,
            forced: wave.forced,
            targets: wave.tally.targets,
            confirmed: count(&[Known::Confirmed]),
            possible: count(&[Known::UnderWay, Known::TriesAgain, Known::ReportsMissing, Known::NotInLedger]),
            failed: count(&[Known::Failed, Known::Overdue]),
            dark: count(&[Known::NotHeard]),
            not_released: count(&[Known::NotReleased]),
            left_out: wave.tally.debt,
            approvals: wave.approvals,
        }
    }
}
