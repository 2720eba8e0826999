//! Arguments of `muster node`, `cluster`, `capability` and `disruption`. No IO.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use muster_contract::plans::NodeState;
use muster_contract::{CapabilityName, ClusterName, ComponentName, SiteId, Timestamp};

use super::device_arg::DeviceArg;
use super::time;
use super::verdicts::YesArg;

pub(super) const NODE_EXAMPLES: &str = "\
A node is a device with resources for instances of plans. Instances are placed on nodes in state allocated.
A file is checked whole before the first request. Each of its nodes is then applied whole or not at all, and a refused one stops no
other: the output has the result of each node, and a node that is as the file has it stays unchanged.

Examples:
  muster node create -m nodes.yaml --site plant7     MRDS's file; names without a site get this one; a node
                                                     may have runtimes, as in runtimes: [process, compose]
  muster node add-to-cluster plant7/press-4 -c north
  muster node list --remaining-cores-gte 8 --payload-names-not-in web,db
  muster node show plant7/press-4
  muster node state plant7/press-4 evicted --message 'new disks'
  muster disruption add plant7/press-4 disks --start 3d --evict";

/// `muster node`
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Create the nodes of a file, or change those that exist
    #[command(visible_aliases = ["add", "apply"])]
    Create(NodeManifestArgs),
    /// The nodes, with their free resources
    List(NodeListArgs),
    /// A node: its resources, volumes, capabilities and disruptions
    Show {
        /// The node, as SITE/DEVICE
        node: DeviceArg,
    },
    /// Allocate a node to a cluster
    AddToCluster {
        /// The node, as SITE/DEVICE
        node: DeviceArg,
        /// The cluster
        #[arg(short, long, visible_alias = "cluster-id")]
        cluster: ClusterName,
    },
    /// Change the state of a node
    State(NodeStateArgs),
    /// Delete a node that runs nothing
    Delete {
        /// The node, as SITE/DEVICE
        node: DeviceArg,
        /// Do not ask first.
        #[command(flatten)]
        yes: YesArg,
    },
}

/// `muster node create`
#[derive(Debug, Args)]
pub struct NodeManifestArgs {
    /// The file (YAML or JSON); `-` is standard input
    #[arg(short, long, visible_alias = "file", short_alias = 'f', value_name = "FILE")]
    pub manifest: PathBuf,
    /// The site of nodes whose name has none
    #[arg(long)]
    pub site: Option<SiteId>,
}

/// `muster node list`
#[derive(Debug, Default, Args)]
pub struct NodeListArgs {
    /// Only nodes that run none of these payloads, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub payload_names_not_in: Vec<ComponentName>,
    /// Only nodes that run one of these payloads, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub payload_names_in: Vec<ComponentName>,
    /// Only nodes with at least so many free cores
    #[arg(long, value_name = "N")]
    pub remaining_cores_gte: Option<u64>,
    /// Only nodes with at least so much free memory
    #[arg(long, value_name = "N")]
    pub remaining_memory_gte: Option<u64>,
    /// Only nodes of this cluster; may be repeated
    #[arg(long)]
    pub cluster: Vec<ClusterName>,
    /// Only nodes of this update domain; may be repeated
    #[arg(long)]
    pub update_domain: Vec<String>,
    /// Only nodes in this state; may be repeated
    #[arg(long, value_enum)]
    pub state: Vec<NodeStateWord>,
    /// Deleted ones as well
    #[arg(long)]
    pub include_deleted: bool,
    /// Most nodes to show
    #[arg(long)]
    pub limit: Option<usize>,
}

/// `muster node state`
#[derive(Debug, Args)]
pub struct NodeStateArgs {
    /// The node, as SITE/DEVICE
    pub node: DeviceArg,
    /// The state
    #[arg(value_enum)]
    pub state: NodeStateWord,
    /// The cluster, with allocating and allocated
    #[arg(short, long, visible_alias = "cluster-id")]
    pub cluster: Option<ClusterName>,
    /// The reason, for people
    #[arg(long)]
    pub message: Option<String>,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

/// The states of a node on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeStateWord {
    /// It belongs to no cluster
    Unallocated,
    /// It joins a cluster
    Allocating,
    /// Instances may be placed on it
    Allocated,
    /// Its instances must leave it
    Evicted,
    /// It is cleaned before it may be allocated again
    Sanitizing,
}

/// `muster cluster`
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Create a cluster
    Create {
        /// Its name
        cluster: ClusterName,
    },
    /// The clusters
    List,
    /// Activate a cluster: the scheduler may choose its nodes
    Activate {
        /// The cluster
        cluster: ClusterName,
    },
    /// Deactivate a cluster: the scheduler chooses none of its nodes
    Deactivate {
        /// The cluster
        cluster: ClusterName,
        /// Do not ask first.
        #[command(flatten)]
        yes: YesArg,
    },
    /// Delete a cluster without nodes
    Delete {
        /// The cluster
        cluster: ClusterName,
        /// Do not ask first.
        #[command(flatten)]
        yes: YesArg,
    },
}

/// `muster capability`
#[derive(Debug, Subcommand)]
pub enum CapabilityCommand {
    /// Create a capability
    Create {
        /// Its name
        capability: CapabilityName,
        /// Its type, such as GPU
        #[arg(long = "type", value_name = "TYPE")]
        kind: String,
        /// Its score among those of its type: the higher, the better
        #[arg(long, default_value_t = 0)]
        score: u64,
    },
    /// The capabilities
    List {
        /// Only those of this type; may be repeated
        #[arg(long = "type", value_name = "TYPE")]
        kind: Vec<String>,
    },
    /// Activate a capability: plans match it
    Activate {
        /// The capability
        capability: CapabilityName,
    },
    /// Deactivate a capability: plans no longer match it
    Deactivate {
        /// The capability
        capability: CapabilityName,
        /// Do not ask first.
        #[command(flatten)]
        yes: YesArg,
    },
    /// Delete a capability that no node has
    Delete {
        /// The capability
        capability: CapabilityName,
        /// Do not ask first.
        #[command(flatten)]
        yes: YesArg,
    },
}

/// `muster disruption`
#[derive(Debug, Subcommand)]
pub enum DisruptionCommand {
    /// Schedule a disruption of a node
    Add {
        /// The node, as SITE/DEVICE
        node: DeviceArg,
        /// Its id, unique within the node
        id: String,
        /// Its start; also 2h or 3d (from now), tomorrow
        #[arg(long, value_name = "TIME", value_parser = time::future)]
        start: Timestamp,
        /// Instances must leave the node before it starts
        #[arg(long, visible_alias = "should-evict")]
        evict: bool,
    },
    /// The disruptions of all nodes, or of one
    List {
        /// The node, as SITE/DEVICE
        node: Option<DeviceArg>,
    },
    /// Approve a disruption: it may begin
    Approve(DisruptionArgs),
    /// End a disruption
    Complete(DisruptionArgs),
    /// Remove a disruption that is over
    Remove(DisruptionArgs),
}

/// One disruption.
#[derive(Debug, Args)]
pub struct DisruptionArgs {
    /// The node, as SITE/DEVICE
    pub node: DeviceArg,
    /// The disruption's id
    pub id: String,
    /// Do not ask first.
    #[command(flatten)]
    pub yes: YesArg,
}

impl NodeCommand {
    /// The node of the command.
    pub(super) const fn node_mut(&mut self) -> Option<&mut DeviceArg> {
        match self {
            Self::Show { node }
            | Self::AddToCluster { node, .. }
            | Self::State(NodeStateArgs { node, .. })
            | Self::Delete { node, .. } => Some(node),
            Self::Create(_) | Self::List(_) => None,
        }
    }
}

impl DisruptionCommand {
    /// The node of the command.
    pub(super) const fn node_mut(&mut self) -> Option<&mut DeviceArg> {
        match self {
            Self::Add { node, .. }
            | Self::Approve(DisruptionArgs { node, .. })
            | Self::Complete(DisruptionArgs { node, .. })
            | Self::Remove(DisruptionArgs { node, .. }) => Some(node),
            Self::List { node } => node.as_mut(),
        }
    }
}

impl From<NodeStateWord> for NodeState {
    fn from(word: NodeStateWord) -> Self {
        match word {
            NodeStateWord::Unallocated => Self::Unallocated,
            NodeStateWord::Allocating => Self::Allocating,
            NodeStateWord::Allocated => Self::Allocated,
            NodeStateWord::Evicted => Self::Evicted,
            NodeStateWord::Sanitizing => Self::Sanitizing,
        }
    }
}
