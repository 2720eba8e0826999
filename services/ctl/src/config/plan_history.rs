//! Arguments of `muster plan history`. No IO.

use clap::Args;
use muster_contract::{CapabilityName, ClusterName, PlanName};

use super::device_arg::DeviceArg;

pub(super) const EXAMPLES: &str = "\
The hub keeps the newest 64 changes of each document. `--format json` prints a line for each change, with the document after it.

Examples:
  muster plan history                    everything that is recorded
  muster plan history web                a plan and its instances
  muster plan history --node plant7/press-4
  muster plan history web --follow --after 4711   each change after a sequence, once, in order, until you end it";

/// `muster plan history`
#[derive(Debug, Default, Args)]
pub struct PlanHistoryArgs {
    /// Only this plan and its instances
    pub plan: Option<PlanName>,
    /// Only this instance: its name or display name
    #[arg(long, visible_alias = "meta-instance-name")]
    pub instance: Option<String>,
    /// Only this node, as SITE/DEVICE
    #[arg(long, conflicts_with_all = ["plan", "instance"])]
    pub node: Option<DeviceArg>,
    /// Only this cluster
    #[arg(long, conflicts_with_all = ["plan", "instance"])]
    pub cluster: Option<ClusterName>,
    /// Only this capability
    #[arg(long, conflicts_with_all = ["plan", "instance"])]
    pub capability: Option<CapabilityName>,
    /// Only changes after this sequence of PLANS, which is the second column
    #[arg(long, value_name = "SEQUENCE")]
    pub after: Option<u64>,
    /// Go on with each change as it is made
    #[arg(short, long)]
    pub follow: bool,
}
