//! A document of PLANS of any kind.

use muster_contract::decode::{self, Document as _, Refusal};
use muster_contract::plans::{
    Capability, Cluster, Instance, InstanceState, InventoryState, Node, Plan, PlanState, PlansChange,
};
use muster_contract::subjects::PlansSubject;
use serde_json::Value;

/// A document of PLANS.
#[derive(Debug, Clone, PartialEq)]
pub enum PlansDocument {
    /// A plan.
    Plan(Plan),
    /// An instance.
    Instance(Instance),
    /// A node.
    Node(Node),
    /// A cluster.
    Cluster(Cluster),
    /// A capability.
    Capability(Capability),
}

impl PlansDocument {
    /// Parses the document of a subject.
    ///
    /// # Errors
    /// A refusal that names the field and the rule.
    pub fn parse(subject: &PlansSubject, bytes: &[u8]) -> Result<Self, Refusal> {
        match subject {
            PlansSubject::Plan(_) => decode::parse(bytes).map(Self::Plan),
            PlansSubject::Instance(..) => decode::parse(bytes).map(Self::Instance),
            PlansSubject::Node(_) => decode::parse(bytes).map(Self::Node),
            PlansSubject::Cluster(_) => decode::parse(bytes).map(Self::Cluster),
            PlansSubject::Capability(_) => decode::parse(bytes).map(Self::Capability),
        }
    }

    /// Its subject.
    pub fn subject(&self) -> PlansSubject {
        match self {
            Self::Plan(plan) => PlansSubject::Plan(plan.spec.name.clone()),
            Self::Instance(instance) => PlansSubject::Instance(instance.plan.clone(), instance.name.clone()),
            Self::Node(node) => PlansSubject::Node(node.key.clone()),
            Self::Cluster(cluster) => PlansSubject::Cluster(cluster.name.clone()),
            Self::Capability(capability) => PlansSubject::Capability(capability.name.clone()),
        }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Plan(plan) => decode::to_bytes(plan),
            Self::Instance(instance) => decode::to_bytes(instance),
            Self::Node(node) => decode::to_bytes(node),
            Self::Cluster(cluster) => decode::to_bytes(cluster),
            Self::Capability(capability) => decode::to_bytes(capability),
        }
    }

    /// Its JSON.
    pub fn to_value(&self) -> Value {
        serde_json::from_slice(&self.to_bytes()).unwrap_or_default()
    }

    /// Checks the rules that a schema cannot express.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), decode::Violation> {
        match self {
            Self::Plan(plan) => plan.check(),
            Self::Instance(instance) => instance.check(),
            Self::Node(node) => node.check(),
            Self::Cluster(cluster) => cluster.check(),
            Self::Capability(capability) => capability.check(),
        }
    }

    /// Its newest change.
    pub const fn change(&self) -> &PlansChange {
        match self {
            Self::Plan(plan) => &plan.change,
            Self::Instance(instance) => &instance.change,
            Self::Node(node) => &node.change,
            Self::Cluster(cluster) => &cluster.change,
            Self::Capability(capability) => &capability.change,
        }
    }

    /// Its version.
    pub const fn version(&self) -> u64 {
        match self {
            Self::Plan(plan) => plan.version,
            Self::Instance(instance) => instance.version,
            Self::Node(node) => node.version,
            Self::Cluster(cluster) => cluster.version,
            Self::Capability(capability) => capability.version,
        }
    }

    /// Whether it is deleted, and its name free.
    pub fn is_deleted(&self) -> bool {
        match self {
            Self::Plan(plan) => plan.state == PlanState::Deleted,
            Self::Instance(instance) => instance.state == InstanceState::Deleted,
            Self::Node(node) => node.deleted,
            Self::Cluster(cluster) => cluster.state == InventoryState::Deleted,
            Self::Capability(capability) => capability.state == InventoryState::Deleted,
        }
    }

    /// Its name for people.
    pub fn label(&self) -> String {
        match self {
            Self::Plan(plan) => format!("plan {}", plan.spec.name),
            Self::Instance(instance) => format!("instance {}", instance.display_name),
            Self::Node(node) => format!("node {}", node.key),
            Self::Cluster(cluster) => format!("cluster {}", cluster.name),
            Self::Capability(capability) => format!("capability {}", capability.name),
        }
    }
}
