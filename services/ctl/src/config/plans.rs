//! Arguments of `muster plan`, `instance` and `operation`. No IO.
//!
//! MRDS's names of commands and flags are aliases.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use muster_contract::plans::{OperationState, OperationType, PlanState};
use muster_contract::{ComponentName, DeploymentId, PlanName, RevisionId, Timestamp};

use super::device_arg::DeviceArg;
use super::plan_history::{self, PlanHistoryArgs};
use super::time;
use super::verdicts::{
    CompleteArgs, InstanceCompleteArgs, InstanceVerdictArgs, PlanVerdictArgs, VerdictArgs, YesArg,
};

pub(super) const PLAN_EXAMPLES: &str = "\
A plan has the payloads of an instance and their requirements for a node. A deployment of a plan sets the number of instances in
all, and their content. Each change of a node is an operation that waits for an approval. MRDS's files and names are accepted: `add-deployment`, `cancel-deployment`, `approve-operation`, `--meta-instance-name`, `--operation-id`.

Examples:
  muster plan create -m plans.yaml       the plans of a file
  muster plan apply -m plans.yaml        the same, and changes of plans without instances
  muster plan deploy -m deployment.yaml  instances of a plan
  muster plan show web                   deployments, instances, and operations that wait
  muster plan explain web                the node that another instance would get, and why not others
  muster plan approve web                approve an operation that waits, picked from a list
  muster plan approve web --all --yes    approve all of them
  muster plan operate web --relocate     move an instance to another node
  muster plan rollback web --to web-1 -D web-3   deploy again, as web-3, what web-1 ran
  muster plan migrate web --to web-north -D moved   web-north runs the instances, and then web stops its own
  muster plan history web                what was changed, when and by whom
  muster plan cancel web -D web-2        end a deployment; operations that run go on
  muster plan stop web -D web-2          end a deployment that waits for silent nodes; its running operations fail
  muster plan delete web

At a terminal a change asks before it is made, unless --yes is given. Exit code 1: a request was refused, or you said no.

A file is checked whole before the first request. Each of its plans is then applied whole or not at all, and a refused one stops no
other: the output has the result of each plan. `apply` leaves a plan unchanged that is as the file has it.";

pub(super) const INSTANCE_EXAMPLES: &str = "\
Examples:
  muster instance list --plan web
  muster instance show Web-DW5PKpHDi1em1D8sGwqejQ
  muster instance relocate web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d --yes
  muster instance stop web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d --not-before 2h
  muster instance approve --meta-instance-name Web-DW5PKpHDi1em1D8sGwqejQ";

pub(super) const OPERATION_EXAMPLES: &str = "\
Examples:
  muster operation list --state pending-approval            of plans, and of rollouts under way
  muster operation approve create-0d6e4f2a          any unique beginning of its id
  muster operation approve --plan web --all --rule canary-is-green
  muster operation list --deployment web            the releases of its rollouts, by wave
  muster operation approve --deployment web --wave quarter          as `muster rollout approve`
  muster operation reject update-5a4684c0 --reason 'not this week'
  muster operation cancel stop-426a611b
  muster operation complete delete-7c1e09d2 --reason 'the device is scrapped'";

/// `muster plan`
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Create the plans of a file; one that exists is refused
    Create(ManifestArgs),
    /// Create the plans of a file, or change those that have no instances
    Apply(ManifestArgs),
    /// The plans
    List(PlanListArgs),
    /// A plan: what it needs and runs, its deployments, instances and operations
    Show {
        /// The plan
        plan: PlanName,
    },
    /// Deploy a plan: a number of instances, and what they run
    #[command(visible_alias = "add-deployment")]
    Deploy(ManifestArgs),
    /// Roll a plan back: a new deployment with the instances and content of an earlier one that has completed
    Rollback(RollbackArgs),
    /// Migrate a plan: another plan runs its instances, and then this one stops its own
    Migrate(MigrateArgs),
    /// Show the node that another instance would get, and why the others are rejected
    Explain {
        /// The plan
        plan: PlanName,
    },
    /// Approve a deployment as a whole: all its operations, also those that it has not made yet
    ApproveDeployment(RevisionArgs),
    /// Approve an operation of a plan
    #[command(visible_alias = "approve-operation")]
    Approve(PlanVerdictArgs),
    /// Request an operation on an instance of a plan
    Operate(OperateArgs),
    /// Pause a deployment: it begins no further operation until `resume`
    Pause(RevisionArgs),
    /// Resume a paused deployment
    Resume(RevisionArgs),
    /// Cancel a deployment, and its operations that have not begun
    #[command(visible_alias = "cancel-deployment")]
    Cancel(RevisionArgs),
    /// Stop a deployment that runs: it fails, and so do its running operations, whatever their nodes report
    Stop(RevisionArgs),
    /// Activate a plan: it accepts deployments again
    Activate(PlanStateArgs),
    /// Deactivate a plan: it accepts no further deployments; its instances stay
    Deactivate(PlanStateArgs),
    /// Delete a plan that has no instances
    Delete(PlanStateArgs),
    /// Show what was changed of plans, instances and the inventory, when and by whom
    #[command(after_long_help = plan_history::EXAMPLES)]
    History(PlanHistoryArgs),
}

/// `muster instance`
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// The instances
    List(InstanceListArgs),
    /// An instance: its nodes and operations
    Show {
        /// The instance: its name or display name
        instance: String,
    },
    /// Request another instance of a plan, beside those of its deployments
    Create(InstanceCreateArgs),
    /// Stop an instance; it keeps its node
    #[command(visible_alias = "stop-instance")]
    Stop(InstanceArgs),
    /// Start an instance again
    #[command(visible_alias = "restart-instance")]
    Restart(InstanceArgs),
    /// Move an instance: another node runs it before the first one stops it. An instance without a node gets one
    #[command(visible_aliases = ["swap-instance", "add-runtime-instance"])]
    Relocate {
        /// The instance.
        #[command(flatten)]
        of: InstanceArgs,
        /// The node, as SITE/DEVICE; chosen by the planner if left out
        #[arg(long, visible_alias = "node", value_name = "NODE")]
        to: Option<DeviceArg>,
    },
    /// Give an instance the content of a deployment that has completed
    Update {
        /// The instance.
        #[command(flatten)]
        of: InstanceArgs,
        /// The deployment; the newest if left out
        #[arg(short = 'D', long, value_name = "ID")]
        deployment_id: Option<RevisionId>,
    },
    /// Delete an instance, at once if no node has its order; the plan's next deployment counts those that are left
    Delete(InstanceArgs),
    /// Approve an operation of an instance
    #[command(visible_alias = "approve-operation")]
    Approve(InstanceVerdictArgs),
    /// Complete a running operation of an instance by hand
    #[command(visible_alias = "complete-operation")]
    Complete(InstanceCompleteArgs),
}

/// `muster operation`
#[derive(Debug, Subcommand)]
pub enum OperationCommand {
    /// The operations of plans, and those of rollouts that are under way or hold a change
    List(OperationListArgs),
    /// Approve operations
    Approve(VerdictArgs),
    /// Reject operations that wait for an approval
    Reject(VerdictArgs),
    /// Cancel operations that have not begun
    Cancel(VerdictArgs),
    /// Complete running operations by hand, without a report of their nodes
    Complete(CompleteArgs),
}

/// A file of plans, or of one deployment.
#[derive(Debug, Args)]
pub struct ManifestArgs {
    /// The file (YAML or JSON); `-` is standard input
    #[arg(short, long, visible_alias = "file", short_alias = 'f', value_name = "FILE")]
    pub manifest: PathBuf,
}

/// `muster plan list`
#[derive(Debug, Default, Args)]
pub struct PlanListArgs {
    /// Only plans of this service; may be repeated
    #[arg(long)]
    pub service_name: Vec<String>,
    /// Only plans with this payload; may be repeated
    #[arg(long)]
    pub payload_name: Vec<ComponentName>,
    /// Only plans in this state; may be repeated
    #[arg(long, value_enum)]
    pub state: Vec<PlanStateWord>,
    /// Most plans to show
    #[arg(long)]
    pub limit: Option<usize>,
}

/// A plan whose state is changed.
#[derive(Debug, Args)]
pub struct PlanStateArgs {
    /// The plan
    pub plan: PlanName,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// One deployment of a plan.
#[derive(Debug, Args)]
pub struct RevisionArgs {
    /// The plan
    pub plan: PlanName,
    /// The deployment's id
    #[arg(short = 'D', long, value_name = "ID")]
    pub deployment_id: RevisionId,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// `muster plan rollback`
#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// The plan
    pub plan: PlanName,
    /// The earlier deployment
    #[arg(long, value_name = "ID")]
    pub to: RevisionId,
    /// The id of the new deployment
    #[arg(short = 'D', long, value_name = "ID")]
    pub deployment_id: RevisionId,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// `muster plan migrate`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["to", "manifest"]))]
pub struct MigrateArgs {
    /// The plan
    pub plan: PlanName,
    /// The other plan; it gets as many instances, with the content of the plan's newest completed deployment
    #[arg(long, value_name = "PLAN", requires = "deployment_id")]
    pub to: Option<PlanName>,
    /// The id of the new deployment, in both plans
    #[arg(short = 'D', long, value_name = "ID", conflicts_with = "manifest")]
    pub deployment_id: Option<RevisionId>,
    /// The file of the other plan's deployment, in place of --to: its plan, id, number of instances and content
    #[arg(short, long, visible_alias = "file", short_alias = 'f', value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// `muster plan operate`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("operation").required(true))]
pub struct OperateArgs {
    /// The plan
    pub plan: PlanName,
    /// Stop the instance; it keeps its node
    #[arg(long, group = "operation")]
    pub stop: bool,
    /// Start the instance again
    #[arg(long, visible_alias = "start", group = "operation")]
    pub restart: bool,
    /// Move the instance to another node
    #[arg(long, group = "operation")]
    pub relocate: bool,
    /// The instance; asked for if left out and there are several
    #[arg(long, visible_alias = "instance")]
    pub meta_instance_name: Option<String>,
    /// The operation does not run before this time; also 2h or 3d (from now), tomorrow
    #[arg(long, value_name = "TIME", value_parser = time::future)]
    pub not_before: Option<Timestamp>,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// `muster instance list`
#[derive(Debug, Default, Args)]
pub struct InstanceListArgs {
    /// Only instances of this plan; may be repeated
    #[arg(long, visible_alias = "deployment-plan")]
    pub plan: Vec<PlanName>,
    /// Only instances of this deployment of their plan; may be repeated
    #[arg(long, value_name = "ID")]
    pub deployment_id: Vec<RevisionId>,
    /// Only instances on this node, as SITE/DEVICE; may be repeated
    #[arg(long)]
    pub node: Vec<DeviceArg>,
    /// Deleted instances as well: the newest 256 of each plan
    #[arg(long)]
    pub include_deleted: bool,
}

/// `muster instance create`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("of").required(true))]
pub struct InstanceCreateArgs {
    /// The plan
    #[arg(group = "of")]
    pub plan: Option<PlanName>,
    /// The same, as MRDS has it
    #[arg(long, group = "of", value_name = "PLAN")]
    pub deployment_plan: Option<PlanName>,
    /// The deployment whose content it gets: the newest, and refused if that is another one by then
    #[arg(short = 'D', long, value_name = "ID")]
    pub deployment_id: Option<RevisionId>,
    /// The node, as SITE/DEVICE; chosen by the planner if left out
    #[arg(long)]
    pub node: Option<DeviceArg>,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// One instance.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub struct InstanceArgs {
    /// The instance: its name or display name
    #[arg(group = "which")]
    pub instance: Option<String>,
    /// The same, as MRDS has it
    #[arg(long, visible_alias = "meta-instance", group = "which", value_name = "INSTANCE")]
    pub meta_instance_name: Option<String>,
    /// The operation does not run before this time; also 2h or 3d (from now), tomorrow
    #[arg(long, value_name = "TIME", value_parser = time::future)]
    pub not_before: Option<Timestamp>,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// `muster operation list`
#[derive(Debug, Default, Args)]
pub struct OperationListArgs {
    /// Only operations of this plan; may be repeated
    #[arg(long)]
    pub plan: Vec<PlanName>,
    /// Only operations of this instance, by its name or display name; may be repeated
    #[arg(long, visible_alias = "meta-instance-name")]
    pub instance: Vec<String>,
    /// Only operations of this type; may be repeated
    #[arg(long = "type", value_enum)]
    pub kind: Vec<OperationTypeWord>,
    /// Only operations in this state; may be repeated
    #[arg(long, value_enum)]
    pub state: Vec<OperationStateWord>,
    /// Only the releases of this deployment's rollouts, also of rollouts that have ended
    #[arg(long, conflicts_with_all = ["plan", "instance", "kind"])]
    pub deployment: Option<DeploymentId>,
}

/// The states of a plan on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanStateWord {
    /// It accepts deployments
    Active,
    /// It accepts none
    Inactive,
    /// It is deleted
    Deleted,
}

/// The types of operations on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OperationTypeWord {
    /// A node is chosen, and runs the instance
    Create,
    /// The node runs another content
    Update,
    /// The node stops it and frees its resources
    Delete,
    /// The node stops it, and keeps its resources
    Stop,
    /// The node starts it again
    Restart,
    /// Another node runs it
    Relocate,
}

/// The states of an operation on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OperationStateWord {
    /// It waits for an operation before it
    Pending,
    /// It waits for a node
    Preparing,
    /// It waits for an approval
    PendingApproval,
    /// It is approved, and has not begun
    Approved,
    /// It was rejected
    Rejected,
    /// Nobody approved it in time
    Expired,
    /// It is carried out
    Running,
    /// The nodes have confirmed it, or a person has completed it by hand
    Succeeded,
    /// A node has refused it, or failed
    Failed,
    /// It was cancelled
    Cancelled,
}

impl From<PlanStateWord> for PlanState {
    fn from(word: PlanStateWord) -> Self {
        match word {
            PlanStateWord::Active => Self::Active,
            PlanStateWord::Inactive => Self::Inactive,
            PlanStateWord::Deleted => Self::Deleted,
        }
    }
}

impl From<OperationTypeWord> for OperationType {
    fn from(word: OperationTypeWord) -> Self {
        match word {
            OperationTypeWord::Create => Self::Create,
            OperationTypeWord::Update => Self::Update,
            OperationTypeWord::Delete => Self::Delete,
            OperationTypeWord::Stop => Self::Stop,
            OperationTypeWord::Restart => Self::Restart,
            OperationTypeWord::Relocate => Self::Relocate,
        }
    }
}

impl From<OperationStateWord> for OperationState {
    fn from(word: OperationStateWord) -> Self {
        match word {
            OperationStateWord::Pending => Self::Pending,
            OperationStateWord::Preparing => Self::Preparing,
            OperationStateWord::PendingApproval => Self::PendingApproval,
            OperationStateWord::Approved => Self::Approved,
            OperationStateWord::Rejected => Self::Rejected,
            OperationStateWord::Expired => Self::Expired,
            OperationStateWord::Running => Self::Running,
            OperationStateWord::Succeeded => Self::Succeeded,
            OperationStateWord::Failed => Self::Failed,
            OperationStateWord::Cancelled => Self::Cancelled,
        }
    }
}

impl InstanceCommand {
    /// The nodes of the command.
    pub(super) fn nodes_mut(&mut self) -> Vec<&mut DeviceArg> {
        match self {
            Self::List(args) => args.node.iter_mut().collect(),
            Self::Create(InstanceCreateArgs { node, .. }) | Self::Relocate { to: node, .. } => {
                node.iter_mut().collect()
            }
            _ => Vec::new(),
        }
    }
}

impl OperateArgs {
    /// The operation that the flags name.
    pub const fn operation(&self) -> OperationType {
        match (self.stop, self.relocate) {
            (true, _) => OperationType::Stop,
            (_, true) => OperationType::Relocate,
            (false, false) => OperationType::Restart,
        }
    }
}

impl InstanceArgs {
    /// The instance, by either argument.
    pub fn name(&self) -> &str {
        self.instance.as_deref().or(self.meta_instance_name.as_deref()).unwrap_or_default()
    }
}
