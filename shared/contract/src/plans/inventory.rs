//! The inventory: nodes (devices with resources), clusters and capabilities.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::PlansChange;
use super::checks::{check_length, check_text};
use crate::decode::{Document, Violation};
use crate::desired::ProfileType;
use crate::ids::{CapabilityName, ClusterName, DeviceKey};
use crate::limits::{DISRUPTIONS_MAX, MATCHERS_MAX, PORTS_MAX, RESOURCE_MAX, RUNTIMES_MAX};
use crate::version::{ApiVersion, kind};

/// `muster.inventory.node.<site>.<device>`: a device that instances may run on. Its free resources are the total without the
/// reserved ones and those of the placements on it; no document stores them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Node`
    pub kind: kind::Node,
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Rises by one with each change; 0 at first.
    pub version: u64,
    /// Its state.
    pub state: NodeState,
    /// The state in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The cluster that it is allocated to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// Nodes of one update domain are changed together: instances spread over domains.
    pub update_domain: String,
    /// All its resources.
    pub total_resources: Resources,
    /// The part that no instance gets.
    #[serde(default)]
    pub system_reserved_resources: Resources,
    /// Its local volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PORTS_MAX))]
    pub local_volumes: Vec<NodeVolume>,
    /// Its capabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MATCHERS_MAX))]
    pub capabilities: Vec<CapabilityName>,
    /// The types that its agent runs, the preferred one first. Empty: not known, and a plan's type follows from its coordinates
    /// alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RUNTIMES_MAX))]
    pub runtimes: Vec<ProfileType>,
    /// Its disruptions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = DISRUPTIONS_MAX))]
    pub disruptions: Vec<Disruption>,
    /// Whether it is deleted, and its name free.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Time of the first version.
    pub created_at: Timestamp,
    /// The newest change.
    pub change: PlansChange,
}

/// Resources of a node or an application.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// Cores.
    #[serde(default)]
    #[schemars(range(max = RESOURCE_MAX))]
    pub cores: u64,
    /// Memory, in the unit that plans and nodes share: MRDS shows GiB.
    #[serde(default)]
    #[schemars(range(max = RESOURCE_MAX))]
    pub memory: u64,
}

/// States of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NodeState {
    /// It belongs to no cluster.
    Unallocated,
    /// It joins a cluster.
    Allocating,
    /// It belongs to a cluster: instances may be placed on it.
    Allocated,
    /// Its instances must leave it.
    Evicted,
    /// It is cleaned before it may be allocated again.
    Sanitizing,
}

/// A local volume of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeVolume {
    /// The path on the node.
    pub mount_path: String,
    /// Its class.
    pub storage_class: String,
    /// GB of it.
    #[schemars(range(max = RESOURCE_MAX))]
    pub storage_capacity: u64,
}

/// A planned disruption of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// Its id, unique within the node.
    pub id: String,
    /// Whether instances must leave the node before it starts.
    #[serde(default)]
    pub should_evict: bool,
    /// Its start.
    pub start: Timestamp,
    /// Its state.
    pub state: DisruptionState,
}

/// States of a disruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DisruptionState {
    /// It is planned.
    Scheduled,
    /// It may begin.
    Approved,
    /// It is over.
    Completed,
}

/// States of a cluster or a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum InventoryState {
    /// It is new.
    Pending,
    /// It is in use.
    Active,
    /// It is not in use: nodes of an inactive cluster are not chosen.
    Inactive,
    /// It is deleted, and its name free.
    Deleted,
}

/// `muster.inventory.cluster.<name>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Cluster`
    pub kind: kind::Cluster,
    /// Its name.
    pub name: ClusterName,
    /// Rises by one with each change; 0 at first.
    pub version: u64,
    /// Its state.
    pub state: InventoryState,
    /// The state in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the first version.
    pub created_at: Timestamp,
    /// The newest change.
    pub change: PlansChange,
}

/// `muster.inventory.capability.<name>`: a compute capability, such as a model of GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capability {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Capability`
    pub kind: kind::Capability,
    /// Its name.
    pub name: CapabilityName,
    /// Its type: GPU.
    #[serde(rename = "type")]
    pub capability_type: String,
    /// Its score among those of its type: the higher, the better.
    pub score: u64,
    /// Rises by one with each change; 0 at first.
    pub version: u64,
    /// Its state.
    pub state: InventoryState,
    /// The state in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the first version.
    pub created_at: Timestamp,
    /// The newest change.
    pub change: PlansChange,
}

impl Resources {
    /// Resources of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { cores: self.cores + other.cores, memory: self.memory + other.memory }
    }

    /// The rest without `other`; `None` if a dimension would be negative.
    pub fn minus(self, other: Self) -> Option<Self> {
        Some(Self {
            cores: self.cores.checked_sub(other.cores)?,
            memory: self.memory.checked_sub(other.memory)?,
        })
    }

    /// Checks the bound of each dimension.
    pub(super) fn check(self, path: &str) -> Result<(), Violation> {
        if self.cores.max(self.memory) > RESOURCE_MAX {
            return Err(Violation::at(path, format!("has a number above {RESOURCE_MAX}")));
        }
        Ok(())
    }
}

impl Node {
    /// The resources for instances.
    pub fn usable(&self) -> Resources {
        self.total_resources.minus(self.system_reserved_resources).unwrap_or_default()
    }
}

impl Document for Node {
    const KIND: &'static str = "Node";

    fn check(&self) -> Result<(), Violation> {
        check_text("updateDomain", &self.update_domain)?;
        self.total_resources.check("totalResources")?;
        if self.total_resources.cores == 0 || self.total_resources.memory == 0 {
            return Err(Violation::at("totalResources", "has no cores or no memory"));
        }
        if self.total_resources.minus(self.system_reserved_resources).is_none() {
            return Err(Violation::at("systemReservedResources", "is above totalResources"));
        }
        check_length("localVolumes", self.local_volumes.len(), PORTS_MAX)?;
        check_length("capabilities", self.capabilities.len(), MATCHERS_MAX)?;
        check_length("runtimes", self.runtimes.len(), RUNTIMES_MAX)?;
        check_length("disruptions", self.disruptions.len(), DISRUPTIONS_MAX)?;
        for (at, volume) in self.local_volumes.iter().enumerate() {
            check_text(&format!("localVolumes[{at}].mountPath"), &volume.mount_path)?;
            check_text(&format!("localVolumes[{at}].storageClass"), &volume.storage_class)?;
            if volume.storage_capacity > RESOURCE_MAX {
                let rule = format!("is above {RESOURCE_MAX}");
                return Err(Violation::at(format!("localVolumes[{at}].storageCapacity"), rule));
            }
        }
        self.disruptions.iter().try_for_each(|disruption| check_text("disruptions", &disruption.id))
    }
}

impl Document for Cluster {
    const KIND: &'static str = "Cluster";
}

impl Document for Capability {
    const KIND: &'static str = "Capability";

    fn check(&self) -> Result<(), Violation> {
        check_text("type", &self.capability_type)
    }
}
