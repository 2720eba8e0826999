//! The command line of `muster`: every command, flag, default and example. What a flag says becomes a type here.

mod applications;
mod auth;
mod backup;
mod connection;
mod device_arg;
mod devices;
mod format;
mod groups;
mod history;
mod inventory;
mod login;
mod packages;
mod plan_history;
mod plans;
mod quarantine;
mod rollout;
mod status;
mod subscriptions;
mod support;
mod time;
mod verdicts;
mod watch;
mod webhooks;
mod why;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use jiff::tz::TimeZone;
use muster_contract::{DeploymentId, SiteId};
use muster_service::VERSION;

use crate::render::local;

pub(crate) use applications::AppCommand;
pub(crate) use auth::{
    AuthCommand, CredsArgs, EnrollArgs, InitArgs, LeafArgs, PollLease, RevokeArgs, RotateArgs, VaultArgs,
};
pub(crate) use backup::{BackupArgs, RestoreArgs};
pub(crate) use connection::{ConnectionArgs, ConnectionError};
pub(crate) use device_arg::DeviceArg;
pub use devices::DevicesArgs;
pub use format::Format;
pub(crate) use groups::{GroupsArgs, ViewCommand};
pub(crate) use history::{ChangesArgs, DiffArgs, PointArgs, TimelineArgs};
pub(crate) use inventory::{
    CapabilityCommand, ClusterCommand, DisruptionArgs, DisruptionCommand, NodeCommand, NodeListArgs,
    NodeManifestArgs, NodeStateArgs,
};
pub use login::LoginArgs;
pub(crate) use packages::PackageCommand;
pub(crate) use plan_history::PlanHistoryArgs;
pub(crate) use plans::{
    InstanceArgs, InstanceCommand, InstanceCreateArgs, InstanceListArgs, ManifestArgs, MigrateArgs,
    OperateArgs, OperationCommand, OperationListArgs, PlanCommand, PlanListArgs, PlanStateArgs, RevisionArgs,
    RollbackArgs,
};
pub(crate) use quarantine::{JudgeArgs, ListArgs, QuarantineCommand};
pub(crate) use rollout::{
    DecisionArgs, PauseArgs, ReleaseArgs, RolloutCommand, RolloutStates, RolloutWatchArgs,
};
pub use status::{DeprecatedType, Export, Names, Show, StatusArgs};
pub(crate) use subscriptions::SubscriptionCommand;
pub(crate) use support::SupportArgs;
pub(crate) use verdicts::{SelectedArgs, VerdictArgs, YesArg};
pub(crate) use watch::{WatchAbout, WatchArgs};
pub(crate) use webhooks::WebhookCommand;
pub(crate) use why::{WhyAbout, WhyArgs};
pub use {auth::Valid, connection::Connection, rollout::RolloutWord};

const EXAMPLES: &str = "\
Examples:
  muster status                          every deployment, with its verdict
  muster status web --output brief       one deployment: a line for each device
  muster why web                         which devices make its verdict, by which facts
  muster devices --site plant7           the devices of a site
  muster devices --freshness stale       those that have fallen silent
  muster groups region                   the fleet by a label
  muster watch web                       follow a deployment until Ctrl-C
  muster top                             the fleet on a screen that follows it
  muster changes --since 1h              every change of the last hour
  muster timeline                        how the counts have changed for a day
  muster diff web --from 2h              how it differs from two hours ago
  muster verify                          does a rebuild say the same as what runs?
  muster audit                           is every report of every device accounted for?
  muster --context hub status            reach the server as `nats --context hub` does
  muster devices --format json | jq .    the same for a program

Exit codes: 0 yes; 1 the answer is no (not found, refused, unexplained); 2 wrong usage, or nobody answers; 3 the time of
a watch is over.";

const DEVICE_EXAMPLES: &str = "\
Examples:
  muster device plant7/press-4
  muster device plant7/press-4 --at 2026-11-20T10:00:00Z          as known then
  muster device plant7/press-4 --event-time 2026-11-20T10:00:00Z  what is known of that moment by now";

const SITE_EXAMPLES: &str = "\
Examples:
  muster site plant7
  muster site plant7 --at 2026-11-20T10:00:00Z     as known then";

const FLEET_EXAMPLES: &str = "\
Examples:
  muster fleet
  muster fleet --at-seq 4711                       as known with that fact of LEDGER";

const AUDIT_EXAMPLES: &str = "\
For every device, head = received + coalesced + quarantined + missing must hold, and missing must be 0; every view's
digest must be right and its counts must add up to its targets. If not, it says where, and the exit code is 1.
Reports of a device that is offline are missing until it is back: that is a no as well.

Examples:
  muster audit                           everything
  muster audit --site plant7             the devices of one site
  muster audit --format json | jq .totals";

const APPLY_EXAMPLES: &str = "\
Examples:
  muster apply -f web.yaml --device plant7/press-4
  cat web.yaml | muster apply -f - --device plant7/press-4
  muster remove --device plant7/press-4 web";

const COMPLETIONS_EXAMPLES: &str = "\
The scripts ask the hub for names, for a second at most: the hub of the line being typed, or that of the environment.

Examples:
  source <(muster completions bash)
  source <(muster completions zsh)
  muster completions fish > ~/.config/fish/completions/muster.fish";

/// The state of a fleet: status, devices, accounting
#[derive(Debug, Parser)]
#[command(name = "muster", version = VERSION, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// How to show answers [default: table]
    #[arg(long, global = true, value_enum)]
    pub format: Option<Show>,

    /// Time zone of times in tables, such as UTC or Europe/Berlin [default: this machine's]; JSON has UTC
    #[arg(long, global = true, env = "MUSTER_TIME_ZONE", value_name = "ZONE", value_parser = local::zone)]
    pub time_zone: Option<TimeZone>,

    /// How to reach the server.
    #[command(flatten)]
    pub connection: ConnectionArgs,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// How to show answers, and as which export.
    pub fn shown(&self) -> (Format, Option<Export>) {
        self.format.unwrap_or(Show::Table).split()
    }

    /// Whether every flag says something of the command. What would be passed over is refused.
    ///
    /// # Errors
    /// Refuses flags that exclude each other.
    pub fn check(&self) -> Result<(), String> {
        let (_, export) = self.shown();
        self.command.point().map_or(Ok(()), PointArgs::check)?;
        match &self.command {
            Command::Status(args) => args.check(export),
            Command::Watch(args) if export.is_none() => args.check(),
            Command::Rollout(RolloutCommand::Watch(args)) if export.is_none() => args.check(),
            _ if export.is_some() => {
                Err("--format emco and resourcegroup are for `muster status` alone".to_owned())
            }
            Command::Top if self.format == Some(Show::Json) => {
                Err("muster top has no JSON: `muster watch --format json` follows the fleet for programs"
                    .to_owned())
            }
            Command::Completions { .. } if self.format.is_some() => {
                Err("--format has no meaning with `muster completions`, which prints a script".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Deployments: verdict, bounds of the truth, counts
    #[command(after_help = status::STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Devices: freshness, reports, standings
    #[command(after_help = devices::DEVICES_EXAMPLES)]
    Devices(DevicesArgs),
    /// One device and everything it shall run
    #[command(after_help = DEVICE_EXAMPLES)]
    Device(DeviceArgs),
    /// One site as a whole
    #[command(after_help = SITE_EXAMPLES)]
    Site {
        /// The site
        site: SiteId,
        /// When.
        #[command(flatten)]
        point: PointArgs,
    },
    /// Everything as a whole
    #[command(after_help = FLEET_EXAMPLES)]
    Fleet {
        /// When.
        #[command(flatten)]
        point: PointArgs,
    },
    /// Hubs of a federation: who is heard, and up to where each was read (asked where `muster-federation` answers)
    Hubs,
    /// Devices by label: the fleet or a deployment by region, ring, model
    #[command(after_help = groups::GROUPS_EXAMPLES)]
    Groups(GroupsArgs),
    /// Views of your own: what to select, how to group it, what to count
    #[command(subcommand, after_help = groups::VIEW_EXAMPLES)]
    View(ViewCommand),
    /// Why a deployment has its verdict, or why a rollout stands where it does
    #[command(after_help = why::WHY_EXAMPLES, args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true, disable_help_subcommand = true)]
    Why(WhyArgs),
    /// Follow deployments as they change, or the waves that wait for approval
    #[command(after_help = watch::WATCH_EXAMPLES, args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
    Watch(WatchArgs),
    /// The fleet on a screen that follows it: deployments worst first, silent devices, rollouts, incidents; `?` lists the keys
    Top,
    /// Subscriptions to notices: who has which, and ends them
    #[command(subcommand, visible_alias = "subscriptions", after_help = subscriptions::SUBSCRIPTION_EXAMPLES)]
    Subscription(SubscriptionCommand),
    /// List every change between two points with the fact that caused it
    #[command(after_help = history::CHANGES_EXAMPLES)]
    Changes(ChangesArgs),
    /// How the counts of the fleet or of a deployment have changed
    #[command(after_help = history::TIMELINE_EXAMPLES)]
    Timeline(TimelineArgs),
    /// How a deployment differs between two points of the past: counts, devices, and the facts that did it
    #[command(after_help = history::DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Does a rebuild from LEDGER say the same as the rollup that runs?
    #[command(after_help = history::VERIFY_HELP)]
    Verify,
    /// Is every report accounted for, and every view right?
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(SiteArgs),
    /// Copy a hub to a directory: streams, keys, databases of a rollup
    #[command(after_help = backup::BACKUP_EXAMPLES)]
    Backup(BackupArgs),
    /// The state of the hub's streams, and the source of each that is missing; --from restores a backup
    #[command(after_help = backup::RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Write a file for support: what the hub says of itself, without secrets
    #[command(after_help = support::SUPPORT_EXAMPLES)]
    Support(SupportArgs),
    /// Rejected reports, and why the hub rejected them
    #[command(subcommand, after_help = quarantine::QUARANTINE_EXAMPLES)]
    Quarantine(QuarantineCommand),
    /// Have a device run what a file says, beside what Git says
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Take back what was applied
    Remove(RemoveArgs),
    /// Take a device out of the fleet, also a dead one
    Retire {
        /// The device, as SITE/DEVICE, or its name alone where one site has it
        device: DeviceArg,
    },
    /// The publisher and its sources
    #[command(subcommand)]
    Publisher(PublisherCommand),
    /// Rollouts: changes that wait for their release, wave by wave
    #[command(subcommand, after_help = rollout::ROLLOUT_EXAMPLES)]
    Rollout(RolloutCommand),
    /// Plans: what to run how often on which nodes, and its deployments
    #[command(subcommand, visible_alias = "deployment", after_help = plans::PLAN_EXAMPLES)]
    Plan(PlanCommand),
    /// Instances of plans: where they run, and operations on them
    #[command(subcommand, after_help = plans::INSTANCE_EXAMPLES)]
    Instance(InstanceCommand),
    /// Operations on instances: approve, reject, cancel
    #[command(subcommand, after_help = plans::OPERATION_EXAMPLES)]
    Operation(OperationCommand),
    /// Nodes that instances may be placed on
    #[command(subcommand, after_help = inventory::NODE_EXAMPLES)]
    Node(NodeCommand),
    /// Clusters of nodes
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Capabilities of nodes that plans match
    #[command(subcommand)]
    Capability(CapabilityCommand),
    /// Planned disruptions of nodes
    #[command(subcommand)]
    Disruption(DisruptionCommand),
    /// Applications of a repository's catalogue (Margo's ApplicationDescription), without a hub
    #[command(subcommand, after_help = applications::APP_EXAMPLES)]
    App(AppCommand),
    /// Packages in the hub's object store, which devices fetch from nats://packages/NAME
    #[command(subcommand, after_help = packages::PACKAGE_EXAMPLES)]
    Package(PackageCommand),
    /// Webhooks, which gateways register: how their deliveries go
    #[command(subcommand, after_help = webhooks::WEBHOOK_EXAMPLES)]
    Webhook(WebhookCommand),
    /// The streams and whether they have the shape of this release
    #[command(subcommand, after_help = STREAMS_EXAMPLES)]
    Streams(StreamsCommand),
    /// Manage keys, credentials and the registry of users
    #[command(subcommand, after_help = auth::AUTH_EXAMPLES)]
    Auth(AuthCommand),
    /// Let a device in, or in again
    #[command(after_help = auth::ENROLL_EXAMPLES)]
    Enroll(EnrollArgs),
    /// Put a device or a key out, at once
    #[command(after_help = auth::REVOKE_EXAMPLES)]
    Revoke(RevokeArgs),
    /// Prove your key to a gateway: a code for its login page, or a token for programs
    #[command(after_help = login::LOGIN_EXAMPLES)]
    Login(LoginArgs),
    /// The version of this program
    Version,
    /// Completions for a shell; those for bash, zsh and fish ask the hub for deployments, sites and devices
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the names that complete the last word; the scripts of `completions` call it
    #[command(hide = true)]
    Complete {
        /// The words after `muster`, the incomplete one last
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

impl Command {
    /// Whether the answer is one about the present of the fleet, which incidents of the hub stand above.
    pub(crate) fn is_about_now(&self) -> bool {
        match self {
            Self::Status(_) | Self::Devices(_) | Self::Site { .. } | Self::Fleet { .. } | Self::Why(_) => {
                self.point().is_none_or(|point| *point == PointArgs::default())
            }
            Self::Audit(_) | Self::Watch(_) | Self::Rollout(RolloutCommand::Watch(_)) => true,
            _ => false,
        }
    }

    /// The device arguments of the command.
    pub(crate) fn devices_mut(&mut self) -> Vec<&mut DeviceArg> {
        match self {
            Self::Status(args) => args.device.iter_mut().collect(),
            Self::Why(args) => args.device.iter_mut().collect(),
            Self::Device(DeviceArgs { device, .. })
            | Self::Apply(ApplyArgs { device, .. })
            | Self::Remove(RemoveArgs { device, .. })
            | Self::Retire { device } => vec![device],
            Self::Quarantine(QuarantineCommand::List(args)) => args.select.device.iter_mut().collect(),
            Self::Quarantine(QuarantineCommand::Requeue(args) | QuarantineCommand::Drop(args)) => {
                args.select.device.iter_mut().collect()
            }
            Self::Rollout(RolloutCommand::Release(args)) => args.devices.iter_mut().collect(),
            Self::Instance(command) => command.nodes_mut(),
            Self::Node(command) => command.node_mut().into_iter().collect(),
            Self::Disruption(command) => command.node_mut().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The deployment argument of the command.
    pub const fn deployment_mut(&mut self) -> Option<&mut DeploymentId> {
        match self {
            Self::Status(StatusArgs { deployment, .. })
            | Self::Watch(WatchArgs { deployment, .. })
            | Self::Changes(ChangesArgs { deployment, .. })
            | Self::Timeline(TimelineArgs { deployment, .. })
            | Self::Groups(GroupsArgs { deployment, .. })
            | Self::Devices(DevicesArgs { not_running: deployment, .. })
            | Self::Remove(RemoveArgs { deployment, .. })
            | Self::Why(WhyArgs { about: None, deployment, .. }) => deployment.as_mut(),
            Self::Rollout(command) => command.deployment_mut(),
            Self::Why(WhyArgs { about: Some(WhyAbout::Rollout { deployment }), .. })
            | Self::Diff(DiffArgs { deployment, .. }) => Some(deployment),
            _ => None,
        }
    }

    /// When it is about, of those that can be about the past.
    const fn point(&self) -> Option<&PointArgs> {
        match self {
            Self::Status(StatusArgs { point, .. })
            | Self::Devices(DevicesArgs { point, .. })
            | Self::Device(DeviceArgs { point, .. })
            | Self::Site { point, .. }
            | Self::Fleet { point }
            | Self::Why(WhyArgs { point, .. }) => Some(point),
            _ => None,
        }
    }
}

/// `muster streams`
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum StreamsCommand {
    /// Show where streams differ from this release
    Show,
    /// Change those that differ; what they hold stays, and so does what an operator may decide (copies, place, bounds)
    Upgrade,
}

const STREAMS_EXAMPLES: &str = "\
Services do not start while a stream has the shape of an older release. On a hub with keys, the role maintainer alone may
look and change:
  muster auth creds maintainer --valid 1h --dir DIR -o maintainer.creds
  muster streams show --creds maintainer.creds
  muster streams upgrade --creds maintainer.creds";

/// A command that may be limited to a site.
#[derive(Debug, Args)]
pub struct SiteArgs {
    /// Only the devices of a site
    #[arg(long)]
    pub site: Option<SiteId>,
}

/// A command about one device.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// The device, as SITE/DEVICE, or its name alone where one site has it
    pub device: DeviceArg,
    /// When.
    #[command(flatten)]
    pub point: PointArgs,
}

/// `muster apply`
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Margo ApplicationDeployment documents (YAML); `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// The device, as SITE/DEVICE, or its name alone where one site has it
    #[arg(long)]
    pub device: DeviceArg,
}

/// `muster remove`
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The device, as SITE/DEVICE, or its name alone where one site has it
    #[arg(long)]
    pub device: DeviceArg,
    /// The deployment; everything that was applied to the device if left out
    pub deployment: Option<DeploymentId>,
}

/// `muster publisher`
#[derive(Debug, Subcommand)]
pub enum PublisherCommand {
    /// Which commit is published, and what is wrong with the newest one
    Status,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn rollout_commands_take_a_deployment_by_its_name_as_others_do() {
        for line in ["show web", "preview web", "next web", "verify web", "watch web", "release web --all"] {
            let words = ["muster", "rollout"].into_iter().chain(line.split(' '));
            let mut cli = Cli::try_parse_from(words).unwrap();
            let deployment = cli.command.deployment_mut().map(|id| id.to_string());
            assert_eq!(deployment.as_deref(), Some("web"), "{line}");
        }
    }
}
