//! Arguments of `muster rollout`. No IO.

use clap::{Args, Subcommand};
use muster_contract::{DeploymentId, WaveName};

use super::DeviceArg;

pub(super) const ROLLOUT_EXAMPLES: &str = "\
A rollout.yaml in the repository of the fleet holds changes of its devices until they are released. A gate opens on devices
that are heard and have confirmed the content; a device that is not heard counts neither for nor against it.

Examples:
  muster rollout list                    changes that wait for a release
  muster rollout preview web             the wave of each device
  muster rollout show web                waves, counts, and what the next step waits for
  muster rollout approve web --wave quarter                        the planner begins the wave once its gates are open
  muster rollout next web                approve and release the next wave, if the gates before it are open
  muster rollout pause web --reason 'checking press-4'             no further device gets it, until `resume`
  muster rollout rollback web            devices that have the content get the one that they had before it
  muster rollout retry web               begins again after `stop` or `rollback`
  muster rollout history web             every decision: by whom, why, on which evidence
  muster rollout release web --device plant7/press-4               to one device, whatever the gates say

Exit code 1 of `next`: a rollout waits, or a device was refused. Exit code 1 of `release` and `rollback`: a device was refused.";

/// `muster rollout`
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Changes that wait for a release, those of most devices first
    List,
    /// The waves of a deployment's rollouts, and the next step of each
    Show {
        /// The deployment
        deployment: DeploymentId,
    },
    /// The wave of each device, with the evidence about it
    Preview {
        /// The deployment
        deployment: DeploymentId,
    },
    /// Approve and release the next wave, if the gates before it are open
    Next {
        /// The deployment
        deployment: DeploymentId,
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
    Pause(DecisionArgs),
    /// Continue a paused rollout
    Resume(DecisionArgs),
    /// End a rollout: devices that have the content keep it, and no further device gets it
    Stop(DecisionArgs),
    /// End a rollout, and give devices that have the content the one that they had before it
    Rollback(DecisionArgs),
    /// Begin a rollout again that was stopped or rolled back
    Retry(DecisionArgs),
    /// The decisions about the rollouts of a deployment, oldest first
    History {
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
            Self::Show { deployment }
            | Self::Preview { deployment }
            | Self::Next { deployment }
            | Self::History { deployment } => Some(deployment),
            Self::Approve { decision, .. }
            | Self::Pause(decision)
            | Self::Resume(decision)
            | Self::Stop(decision)
            | Self::Rollback(decision)
            | Self::Retry(decision) => Some(&mut decision.deployment),
            Self::Release(args) => Some(&mut args.deployment),
        }
    }
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
