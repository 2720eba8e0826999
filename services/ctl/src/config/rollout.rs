//! Arguments of `muster rollout`. No IO.

use clap::{Args, Subcommand};
use muster_contract::DeploymentId;

use super::DeviceArg;

pub(super) const ROLLOUT_EXAMPLES: &str = "\
A rollout.yaml in the repository of the fleet holds changes of its devices until they are released. A gate opens on devices
that are heard and have confirmed the content; a device that is not heard counts neither for nor against it.

Examples:
  muster rollout list                    changes that wait for a release
  muster rollout preview web             the wave of each device
  muster rollout show web                waves, counts, and what the next step waits for
  muster rollout next web                release the next wave, if the gates before it are open
  muster rollout release web --device plant7/press-4               to one device, whatever the gates say
  muster rollout release web --digest sha256:1a2b3c4d --all        back to an earlier content, which `show` names

Exit code 1 of `next`: a rollout waits or is stopped, or a device was refused. Exit code 1 of `release`: a device was
refused.";

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
    /// Release the next wave, if the gates before it are open
    Next {
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
            Self::Show { deployment } | Self::Preview { deployment } | Self::Next { deployment } => {
                Some(deployment)
            }
            Self::Release(args) => Some(&mut args.deployment),
        }
    }
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
}
