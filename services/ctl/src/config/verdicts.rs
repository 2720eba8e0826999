//! Arguments of verdicts on operations: `muster operation approve`, `reject`, `cancel` and `complete`, and the same of a plan or an
//! instance. No IO.

use clap::Args;
use muster_contract::{DeploymentId, PlanName, WaveName};

/// The operations of a verdict.
#[derive(Debug, Default, Args)]
pub struct SelectedArgs {
    /// The operations, by their ids or unique beginnings of them; asked for if left out and there are several
    #[arg(value_name = "OPERATION")]
    pub operations: Vec<String>,
    /// Only operations of this plan
    #[arg(long)]
    pub plan: Option<PlanName>,
    /// Only operations of this instance, by its name or display name
    #[arg(long, visible_alias = "meta-instance-name")]
    pub instance: Option<String>,
    /// Flags of every verdict.
    #[command(flatten)]
    pub flags: VerdictFlags,
}

/// `muster operation approve`, `reject` and `cancel`
#[derive(Debug, Default, Args)]
pub struct VerdictArgs {
    /// The operations.
    #[command(flatten)]
    pub selected: SelectedArgs,
    /// In place of operations of plans: the releases of this deployment's rollouts. It is the same as `muster rollout approve`,
    /// `reject` and `cancel`
    #[arg(long, conflicts_with_all = ["operations", "plan", "instance", "all"])]
    pub deployment: Option<DeploymentId>,
    /// The wave, with --deployment; the first one that waits for approval if left out
    #[arg(long, requires = "deployment")]
    pub wave: Option<WaveName>,
}

/// `muster plan approve`
#[derive(Debug, Args)]
pub struct PlanVerdictArgs {
    /// The plan
    pub plan: PlanName,
    /// Only operations of this instance, by its name or display name
    #[arg(long, visible_alias = "instance")]
    pub meta_instance_name: Option<String>,
    /// The operation, by its id or a unique beginning of it; asked for if left out and there are several
    #[arg(long, visible_alias = "operation")]
    pub operation_id: Option<String>,
    /// Flags of every verdict.
    #[command(flatten)]
    pub flags: VerdictFlags,
}

/// `muster instance approve`
#[derive(Debug, Args)]
pub struct InstanceVerdictArgs {
    /// The instance: its name or display name
    #[arg(long, visible_alias = "instance")]
    pub meta_instance_name: String,
    /// The operation, by its id or a unique beginning of it; asked for if left out and there are several
    #[arg(long, visible_alias = "operation")]
    pub operation_id: Option<String>,
    /// Flags of every verdict.
    #[command(flatten)]
    pub flags: VerdictFlags,
}

/// Flags of a verdict on operations.
#[derive(Debug, Clone, Default, Args)]
pub struct VerdictFlags {
    /// All operations that wait and are selected
    #[arg(long)]
    pub all: bool,
    /// The rule by which a program decides; it is recorded
    #[arg(long)]
    pub rule: Option<String>,
    /// The reason; it is recorded
    #[arg(long)]
    pub reason: Option<String>,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// The flag for a change without a question.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct YesArg {
    /// Make the change without asking first
    #[arg(short, long)]
    pub yes: bool,
}

/// `muster operation complete`
#[derive(Debug, Args)]
#[command(mut_arg("reason", |reason| reason.required(true)))]
pub struct CompleteArgs {
    /// The operations.
    #[command(flatten)]
    pub selected: SelectedArgs,
    /// The operation has failed; otherwise it has succeeded
    #[arg(long)]
    pub failed: bool,
}

/// `muster instance complete`. MRDS's command has no reason, so a constant one is recorded.
#[derive(Debug, Args)]
#[command(mut_arg("reason", |reason| reason.default_value("no reason was given")))]
pub struct InstanceCompleteArgs {
    /// The operation.
    #[command(flatten)]
    pub of: InstanceVerdictArgs,
    /// The operation has failed; otherwise it has succeeded
    #[arg(long)]
    pub failed: bool,
}

impl From<PlanVerdictArgs> for SelectedArgs {
    fn from(args: PlanVerdictArgs) -> Self {
        Self {
            operations: args.operation_id.into_iter().collect(),
            plan: Some(args.plan),
            instance: args.meta_instance_name,
            flags: args.flags,
        }
    }
}

impl From<InstanceVerdictArgs> for SelectedArgs {
    fn from(args: InstanceVerdictArgs) -> Self {
        Self {
            operations: args.operation_id.into_iter().collect(),
            plan: None,
            instance: Some(args.meta_instance_name),
            flags: args.flags,
        }
    }
}
