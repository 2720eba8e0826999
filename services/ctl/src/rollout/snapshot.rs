//! A rollout in numbers: its state in one word, its waves with each target counted once, and what it waits for. Pure.

use muster_client::rollout::Gathered;
use muster_contract::canonical::Digest;
use muster_contract::rollout::RolloutPhase;
use muster_domain::rollout::{ApprovalCount, Blocked, Gate, Known, RolloutProgress, Step, WaveState};
use serde::Serialize;

use crate::config::RolloutWord;

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
    /// Its targets.
    pub targets: u64,
    /// Heard, with all reports in, and installed.
    pub confirmed: u64,
    /// Heard and neither confirmed nor failed: it may still become either.
    pub possible: u64,
    /// Heard, with all reports in, and failed.
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
    pub(super) fn all(gathered: &Gathered) -> Vec<Self> {
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
        (Step::Held { .. } | Step::RollBack { .. }, RolloutPhase::Stopped) => RolloutWord::Stopped,
        (Step::Held { .. } | Step::RollBack { .. }, _) => RolloutWord::RolledBack,
        (Step::Done, _) => RolloutWord::Done,
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
            targets: wave.tally.targets,
            confirmed: count(&[Known::Confirmed]),
            possible: count(&[Known::UnderWay, Known::TriesAgain, Known::ReportsMissing, Known::NotInLedger]),
            failed: count(&[Known::Failed]),
            dark: count(&[Known::NotHeard]),
            not_released: count(&[Known::NotReleased]),
            left_out: wave.tally.debt,
            approvals: wave.approvals,
        }
    }
}
