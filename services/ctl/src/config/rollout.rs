//! Arguments of `muster rollout`. No IO.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
pub use muster_client::rollout::RolloutWord;
use muster_contract::{CommitName, DeploymentId, Timestamp, WaveName};

use super::device_arg::DeviceArg;
use super::time;
use super::watch::duration;

pub(super) const ROLLOUT_EXAMPLES: &str = "\
A rollout.yaml in the repository of the fleet holds changes of its devices until they are released. A gate opens on devices
that are heard and have confirmed the content; a device that is not heard counts neither for nor against it.

Examples:
  muster rollout list                    changes that wait for a release
  muster rollout preview web             the wave of each device
  muster rollout show web                waves, counts, and what the next step waits for
  muster rollout show web --at 2h        as it stood two hours ago
  muster rollout watch web               the same as it changes, with a bar for each wave
  muster rollout watch web --until done --fail-on failing,paused,rolled-back --commit $(git rev-parse HEAD) --within 1h
                                         after a push: exit code 0 when every gate is open, 1 as soon as a wave has failed
  muster rollout reject web --reason 'not this week'               no wave begins, until `retry`
  muster rollout approve web --wave quarter                        the planner begins the wave once its gates are open
  muster rollout next web                approve and release the next wave, if the gates before it are open
  muster rollout next web --force --reason 'press-4 is being replaced'
                                         the same past the gate that holds it; approvals of others are needed all the same
  muster rollout pause web --reason 'checking press-4'             no further device gets it, until `resume`
  muster rollout pause --all --reason 'restored from a backup'     every rollout of the hub
  muster rollout abort web               devices that have not begun with the content get the one that they had before it
  muster rollout rollback web            devices that have the content get the one that they had before it
  muster rollout retry web               begins again after `stop`, `abort` or `rollback`
  muster rollout history web             every decision: by whom, why, on which evidence
  muster rollout verify web              does each decision follow from what LEDGER held then?
  muster rollout release web --device plant7/press-4               to one device, whatever the gates say

Exit code 1 of `next`: a rollout waits, or a device was refused. Exit code 1 of `release` and `rollback`: a device was refused.
Exit codes of `watch`: 0 reached; 1 a state of --fail-on, or the commit is rejected or superseded; 2 wrong usage, or nobody
answers; 3 the time is over.
Exit codes of `verify`: 0 each decision recomputes to itself; 1 one does not; 2 nothing can be said: LEDGER or Git no longer
gives the past of a decision, or no decision rests on evidence.";

/// `muster rollout`
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Changes that wait for a release: those first that only a person or a commit continues, then those of most devices
    List,
    /// The waves of a deployment's rollouts, and the next step of each
    Show {
        /// The deployment
        deployment: DeploymentId,
        /// As it stood at this time: by the decisions up to then, and what LEDGER held; also 2h or 3d (ago)
        #[arg(long, value_name = "TIME", value_parser = time::past)]
        at: Option<Timestamp>,
    },
    /// Follow the waves of a deployment's rollouts: confirmed, possible, failed and silent devices apart
    Watch(RolloutWatchArgs),
    /// The wave of each device, with the evidence about it
    Preview {
        /// The deployment
        deployment: DeploymentId,
    },
    /// Approve and release the next wave, if the gates before it are open
    Next {
        /// The deployment
        deployment: DeploymentId,
        /// Let the gate that is shut, or has failed, count as open; the history has who forced it, why, and its counts
        #[arg(long, requires = "reason")]
        force: bool,
        /// The reason to force it, in one sentence
        #[arg(long, value_name = "TEXT", requires = "force")]
        reason: Option<String>,
    },
    /// Approve a wave that needs approval: the planner begins it once the gates before it are open
    Approve {
        /// The deployment, and the reason
        #[command(flatten)]
        decision: DecisionArgs,
        /// The wave; if left out, the first one that needs approval and has not begun
        #[arg(long)]
        wave: Option<WaveName>,
    },
    /// Release to no further device until `resume`
    Pause(PauseArgs),
    /// Continue a paused rollout
    Resume(DecisionArgs),
    /// Refuse a wave that waits for approval: the rollout is stopped, and its approvals do not count any more
    Reject {
        /// The deployment, and the reason
        #[command(flatten)]
        decision: DecisionArgs,
        /// The wave; if left out, the first one that needs approval and has not begun
        #[arg(long)]
        wave: Option<WaveName>,
    },
    /// End a rollout: devices that have the content keep it, and no further device gets it; approvals do not count any more
    #[command(visible_alias = "cancel")]
    Stop(DecisionArgs),
    /// End a rollout, and take the content back from devices that have reported nothing of it; the planner or `next` does so
    Abort(DecisionArgs),
    /// End a rollout, and give devices that have the content the one that they had before it
    Rollback(DecisionArgs),
    /// Begin a rollout again that was stopped, aborted or rolled back
    Retry(DecisionArgs),
    /// The decisions about the rollouts of a deployment, oldest first
    History {
        /// The deployment
        deployment: DeploymentId,
    },
    /// Recompute every recorded decision that rests on evidence, from LEDGER at its sequence
    Verify {
        /// The deployment
        deployment: DeploymentId,
    },
    /// Release to devices, whatever the gates say; also back to an earlier content
    Release(ReleaseArgs),
}

impl RolloutCommand {
    /// The deployment that it names.
    pub(super) const fn deployment_mut(&mut self) -> Option<&mut DeploymentId> {
        match self {
            Self::List => None,
            Self::Show { deployment, .. }
            | Self::Preview { deployment }
            | Self::Next { deployment, .. }
            | Self::Verify { deployment }
            | Self::History { deployment } => Some(deployment),
            Self::Watch(args) => Some(&mut args.deployment),
            Self::Approve { decision, .. }
            | Self::Reject { decision, .. }
            | Self::Resume(decision)
            | Self::Stop(decision)
            | Self::Abort(decision)
            | Self::Rollback(decision)
            | Self::Retry(decision) => Some(&mut decision.deployment),
            Self::Pause(args) => args.deployment.as_mut(),
            Self::Release(args) => Some(&mut args.deployment),
        }
    }
}

/// `muster rollout watch`
#[derive(Debug, Args)]
pub struct RolloutWatchArgs {
    /// The deployment
    pub deployment: DeploymentId,
    /// End with exit code 0 when every rollout of the deployment is there
    #[arg(long, value_name = "STATE", value_parser = state_parser())]
    pub until: Option<RolloutStates>,
    /// End with exit code 1 when one of them is in one of these states, such as paused,rolled-back
    #[arg(long, value_name = "STATES", requires = "until", value_delimiter = ',', value_parser = state_parser())]
    pub fail_on: Vec<RolloutStates>,
    /// Count a state only once this commit is accepted: its id, or the first 7 digits of it or more
    #[arg(long, value_name = "REVISION", requires = "until")]
    pub commit: Option<CommitName>,
    /// End after this time, with exit code 3 if something was waited for; as in 90s or 10m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub within: Option<Duration>,
}

impl RolloutWatchArgs {
    /// Checks that the flags do not contradict each other.
    ///
    /// # Errors
    /// `--until` and `--fail-on` name the same state.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(until) = &self.until else { return Ok(()) };
        match self.fail_on.iter().flat_map(|other| &other.states).find(|state| until.states.contains(state)) {
            Some(both) => {
                Err(format!("--until and --fail-on contradict each other: both name {}", both.as_str()))
            }
            None => Ok(()),
        }
    }
}

/// The states of a rollout that a word names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutStates {
    /// The word.
    pub word: String,
    /// Its states.
    pub states: Vec<RolloutWord>,
}

impl RolloutStates {
    /// The states of a word.
    pub fn of(word: String) -> Self {
        Self { states: RolloutWord::named(&word), word }
    }
}

/// Words for several states.
const SHARED_WORDS: [(&str, &str); 2] =
    [("done", "succeeded, or succeeded-with-debt"), ("stopped", "cancelled, or failed")];

/// Reads a word for states of a rollout.
fn state_parser() -> impl TypedValueParser<Value = RolloutStates> {
    let words = RolloutWord::ALL.map(|word| PossibleValue::new(word.as_str()).help(word.meaning()));
    let shared = SHARED_WORDS.map(|(word, meaning)| PossibleValue::new(word).help(meaning));
    let values: Vec<_> = words.into_iter().chain(shared).collect();
    PossibleValuesParser::new(values).map(RolloutStates::of)
}

/// A decision about the rollouts of a deployment
#[derive(Debug, Args)]
pub struct DecisionArgs {
    /// The deployment
    pub deployment: DeploymentId,
    /// Only the rollout of this rollout.yaml, by its path in the repository
    #[arg(long, value_name = "PATH")]
    pub file: Option<String>,
    /// The reason, in one sentence, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// `muster rollout pause`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The deployment
    #[arg(required_unless_present = "all")]
    pub deployment: Option<DeploymentId>,
    /// Every rollout of the hub that has not ended, also before its first wave; resume each by its deployment
    #[arg(long, conflicts_with_all = ["deployment", "file"])]
    pub all: bool,
    /// Only the rollout of this rollout.yaml, by its path in the repository
    #[arg(long, value_name = "PATH")]
    pub file: Option<String>,
    /// The reason, in one sentence, for the history
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// `muster rollout release`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["devices", "all"]))]
pub struct ReleaseArgs {
    /// The deployment
    pub deployment: DeploymentId,
    /// The content, by its digest or the beginning of its digest; the one that Git wants for each device if left out
    #[arg(long)]
    pub digest: Option<String>,
    /// A device, as SITE/DEVICE, or its name alone where one site has it; may be repeated
    #[arg(long = "device", value_name = "DEVICE")]
    pub devices: Vec<DeviceArg>,
    /// Every device that a rollout governs and that has the deployment or for which Git wants it
    #[arg(long)]
    pub all: bool,
    /// Release although the rollout is paused, stopped or rolled back
    #[arg(long)]
    pub force: bool,
}
