//! The decisions about a rollout, and the phase that they lead to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A decision about a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RolloutVerb {
    /// A wave begins: the gates before it are open.
    Begin,
    /// The checks of a wave have this result.
    Check,
    /// The evidence of a wave is enough, and its gate waits for approvals alone.
    Ready,
    /// The gate behind a wave counts as open, whatever its evidence and its checks say. It still needs its approvals.
    Force,
    /// A wave that needs approval may begin, or the gate behind it may open.
    Approve,
    /// No further device gets the content until the rollout is resumed.
    Pause,
    /// A paused rollout continues.
    Resume,
    /// No further device gets the content. Devices that have it keep it.
    Stop,
    /// Devices that have the content get the one that they had before it, and no device gets it any more.
    Rollback,
    /// No further device gets the content. Devices that are not known to have begun with it get the one that they had before it; all
    /// others keep it.
    Abort,
    /// A rollout that was stopped, aborted or rolled back begins again with its first wave.
    Retry,
    /// Git wants another content. The publisher alone records it.
    Supersede,
    /// Every target has the content, and every gate is open.
    Finish,
}

/// The phase of a rollout by its decisions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RolloutPhase {
    /// It continues as its gates allow.
    #[default]
    Running,
    /// It continues once it is resumed.
    Paused,
    /// It has ended: devices that have the content keep it.
    Stopped,
    /// It has ended: devices that had the content get the one before it.
    RolledBack,
    /// It has ended: devices that have begun with the content keep it, others get the one before it.
    Aborted,
    /// Every target had the content, and every gate was open. Further devices get it without waves.
    Succeeded,
    /// Git wanted another content. If Git wants this one again, it begins with its first wave.
    Superseded,
}

/// The end of a rollout, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutEnd {
    /// Every target had the content, and every gate was open.
    Succeeded,
    /// Every gate was open, but the waves left out silent devices.
    SucceededWithDebt,
    /// A wave failed or a deadline passed, so the rollout was stopped: devices that have the content keep it.
    Failed,
    /// Devices that have begun with the content keep it, others get the one before it.
    Aborted,
    /// Devices that had the content get the one before it.
    RolledBack,
    /// Git wanted another content.
    Superseded,
    /// A person stopped it: devices that have the content keep it.
    Cancelled,
}

impl RolloutEnd {
    /// The end in words, as the end of a sentence about the rollout.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Succeeded => "has succeeded",
            Self::SucceededWithDebt => "has succeeded with debt",
            Self::Failed => "has failed",
            Self::Aborted => "is aborted",
            Self::RolledBack => "is rolled back",
            Self::Superseded => "was superseded",
            Self::Cancelled => "is cancelled",
        }
    }
}

impl RolloutVerb {
    /// Its name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Check => "check",
            Self::Ready => "ready",
            Self::Force => "force",
            Self::Approve => "approve",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::Rollback => "rollback",
            Self::Abort => "abort",
            Self::Retry => "retry",
            Self::Supersede => "supersede",
            Self::Finish => "finish",
        }
    }

    /// Whether it is about one wave.
    pub const fn has_wave(self) -> bool {
        matches!(self, Self::Begin | Self::Check | Self::Ready | Self::Force | Self::Approve)
    }

    /// The phase after the decision in a phase.
    pub(super) const fn after(self, phase: RolloutPhase) -> RolloutPhase {
        match (self, phase) {
            // A content that Git wants again begins anew.
            (Self::Begin, RolloutPhase::Superseded) | (Self::Resume | Self::Retry, _) => {
                RolloutPhase::Running
            }
            (Self::Begin | Self::Check | Self::Ready | Self::Force | Self::Approve, _) => phase,
            (Self::Pause, _) => RolloutPhase::Paused,
            (Self::Stop, _) => RolloutPhase::Stopped,
            (Self::Rollback, _) => RolloutPhase::RolledBack,
            (Self::Abort, _) => RolloutPhase::Aborted,
            (Self::Finish, _) => RolloutPhase::Succeeded,
            (Self::Supersede, _) => RolloutPhase::Superseded,
        }
    }

    /// Whether the decision can be made in a phase.
    pub const fn is_possible_in(self, phase: RolloutPhase) -> bool {
        use RolloutPhase::{Aborted, Paused, RolledBack, Running, Stopped, Succeeded, Superseded};
        match self {
            // Devices may still have a content that Git wants again, so its evidence is there before its next begin.
            Self::Begin | Self::Check | Self::Ready | Self::Pause => matches!(phase, Running | Superseded),
            Self::Finish => matches!(phase, Running),
            Self::Force | Self::Approve => matches!(phase, Running | Paused | Superseded),
            Self::Stop => matches!(phase, Running | Paused | Succeeded | Superseded),
            Self::Resume => matches!(phase, Paused),
            Self::Rollback => !matches!(phase, RolledBack),
            Self::Abort => !matches!(phase, Aborted | RolledBack),
            Self::Retry => matches!(phase, Stopped | Aborted | RolledBack),
            Self::Supersede => matches!(phase, Running | Succeeded),
        }
    }

    /// Whether the decision ends a run: earlier begins and approvals do not count afterwards.
    pub(super) const fn ends_run(self) -> bool {
        matches!(self, Self::Retry | Self::Supersede)
    }
}

impl RolloutPhase {
    /// Whether no decision has changed it.
    pub const fn is_running(&self) -> bool {
        matches!(self, Self::Running)
    }

    /// The phase in words, as the end of a sentence about the rollout.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Running => "is running",
            Self::Paused => "is paused",
            Self::Stopped => "is stopped",
            Self::RolledBack => "is rolled back",
            Self::Aborted => "is aborted",
            Self::Succeeded => "has succeeded",
            Self::Superseded => "was superseded",
        }
    }

    /// The command of `muster rollout` that continues a rollout in this phase; `None` if none is needed.
    pub const fn continued_by(self) -> Option<&'static str> {
        match self {
            Self::Running | Self::Succeeded | Self::Superseded => None,
            Self::Paused => Some("resume"),
            Self::Stopped | Self::Aborted | Self::RolledBack => Some("retry"),
        }
    }
}

/// A decision that is not possible in the phase of the rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rollout {}, so '{}' is not possible{}", .phase.words(), .verb.as_str(), continued(*.phase))]
pub struct ImpossibleDecision {
    /// The decision.
    pub verb: RolloutVerb,
    /// The phase.
    pub phase: RolloutPhase,
}

fn continued(phase: RolloutPhase) -> String {
    phase.continued_by().map_or_else(String::new, |verb| format!(": `muster rollout {verb}` continues it"))
}
