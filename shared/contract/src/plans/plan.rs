//! Plan: the applications of its instances, the requirements on a node, and its revisions.

mod composite_app;
mod dependency;
mod migration;
mod start_order;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use self::composite_app::{CompositeApp, check_emco_name};
pub use self::dependency::Dependency;
pub use self::migration::PlanMigration;
use self::start_order::start_order;
use super::change::PlansChange;
use super::checks::{check_length, check_text};
use super::hook::{self, HookAnswers, PlanHook};
use super::inventory::Resources;
use super::operation::OperationApproval;
use crate::decode::{Document, Violation};
use crate::desired::ProfileType;
use crate::duration_text;
use crate::ids::{CapabilityName, ClusterName, ComponentName, PlanName, RevisionId};
use crate::limits::{
    APPROVAL_EXPIRES_AFTER, MATCHERS_MAX, PLAN_APPLICATIONS_MAX, PLAN_BYTES_MAX, PLAN_HOOKS_MAX,
    PLAN_INSTANCES_MAX, PLAN_REVISIONS_MAX, PORTS_MAX, RESOURCE_MAX, SERVICE_NAME_BYTES_MAX,
};
use crate::requested_by::RequestedBy;
use crate::rollout::Retries;
use crate::version::{ApiVersion, kind};

/// `muster.plan.<plan>`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Plan`
    pub kind: kind::Plan,
    /// A UUID: a deleted plan and a later one of its name differ in it.
    pub uid: String,
    /// Rises by one with each change; 0 at first.
    pub version: u64,
    /// Its state.
    pub state: PlanState,
    /// The part that a person applied.
    #[serde(flatten)]
    pub spec: PlanSpec,
    /// Its revisions, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PLAN_REVISIONS_MAX))]
    pub revisions: Vec<PlanRevision>,
    /// The migration to another plan that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Box<PlanMigration>>,
    /// The answers of its hooks for the newest revision, once all of them have answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_answers: Option<Box<HookAnswers>>,
    /// Time of the first version.
    pub created_at: Timestamp,
    /// The newest change.
    pub change: PlansChange,
}

/// The part of a plan that a person applies. It may change while the plan has no instances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanSpec {
    /// Its name, unique among plans that are not deleted.
    pub name: PlanName,
    /// A namespace, for people.
    pub namespace: String,
    /// The service: names of instances begin with it.
    pub service_name: String,
    /// The type of what devices run. Absent: `compose` if each coordinate names an `image`, `process` if each names a `command`,
    /// and `simulated` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileType>,
    /// Capabilities that a node must have; one matcher for each type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MATCHERS_MAX))]
    pub matching_compute_capabilities: Vec<CapabilityMatcher>,
    /// The applications. An instance runs all of them on one node.
    #[schemars(length(min = 1, max = PLAN_APPLICATIONS_MAX))]
    pub applications: Vec<PlanApplication>,
    /// The cluster whose nodes may be chosen; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// Hooks, in the order in which they are asked before instances of a revision are placed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PLAN_HOOKS_MAX))]
    pub hooks: Vec<PlanHook>,
    /// Time after which an operation that nobody has approved expires: 24h unless it says another.
    #[serde(
        default = "approval_expires_after",
        with = "duration_text",
        skip_serializing_if = "is_default_expiry"
    )]
    #[schemars(with = "String")]
    pub approval_expires_after: Duration,
    /// The failures that a node may try again before they fail an operation. Absent: none. `backoff` is that of the node's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,
    /// EMCO's names of the composite app that the plan belongs to. Absent: addresses of EMCO may name any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub composite_app: Option<CompositeApp>,
}

/// States of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PlanState {
    /// It takes revisions.
    Active,
    /// It takes none. Its instances stay.
    Inactive,
    /// It is deleted, and its name is free.
    Deleted,
}

/// An application of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanApplication {
    /// Name of the payload, which is a component on the device. A node has each payload once.
    pub payload_name: ComponentName,
    /// The resources that it takes.
    pub resources: Resources,
    /// The applications of the instance that are ready before it starts, and are removed after it: each a name, or its `app` and
    /// the time to `wait` after that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PLAN_APPLICATIONS_MAX))]
    pub after: Vec<Dependency>,
    /// Its ports. A node gives each port and protocol once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PORTS_MAX))]
    pub ports: Vec<ApplicationPort>,
    /// Its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PORTS_MAX))]
    pub persistent_volumes: Vec<ApplicationVolume>,
}

/// A port of an application.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ApplicationPort {
    /// TCP or UDP.
    pub protocol: String,
    /// The number.
    #[schemars(range(min = 1))]
    pub port: u16,
}

/// A volume of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationVolume {
    /// The class of the node's volume.
    pub storage_class: String,
    /// GB of it.
    #[schemars(range(max = RESOURCE_MAX))]
    pub capacity: u64,
    /// The path in the application.
    pub mount_path: String,
}

/// A rule about a node's capabilities of one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapabilityMatcher {
    /// The type: GPU.
    pub capability_type: String,
    /// How to compare.
    pub comparator: Comparator,
    /// Names of capabilities of that type.
    #[schemars(length(min = 1, max = MATCHERS_MAX))]
    pub capability_names: Vec<CapabilityName>,
}

/// How a node's capabilities of a type are compared with the named ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparator {
    /// It has one of them. `eq` means the same.
    In,
    /// It has none of them.
    NotIn,
    /// It has one with at least the lowest score of them.
    Gte,
    /// It has one with at most the highest score of them.
    Lte,
}

/// Why a text is no comparator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a comparator: in (or eq), notIn (or NOT_IN), gte, lte")]
pub struct ComparatorError(String);

/// The coordinates of one payload: keys that the type of the plan knows are properties of the component, and others are kept as
/// its extensions `x-…`. With the type `compose`, `image` alone is the whole service.
pub type Coordinates = BTreeMap<String, Value>;

/// A revision of a plan: MRDS's deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanRevision {
    /// Its id, unique within the plan.
    pub id: RevisionId,
    /// Number of instances that the plan shall have in all.
    #[schemars(range(max = PLAN_INSTANCES_MAX))]
    pub instances: u32,
    /// The coordinates of each payload.
    pub coordinates: BTreeMap<ComponentName, Coordinates>,
    /// Most instances of the plan that its updates may leave without proof that they run. Absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_unavailable: Option<u32>,
    /// Number of instances that get its coordinates; the others of `instances` keep the revision that they have, and run beside
    /// them. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = PLAN_INSTANCES_MAX))]
    pub canary: Option<u32>,
    /// Whether instances that are proven to run its coordinates get no UPDATE.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_unchanged: bool,
    /// The approval of all its operations at once; absent: each needs its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<OperationApproval>,
    /// The earlier revision whose instances and coordinates it has, if it is a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_to: Option<RevisionId>,
    /// The plan that migrates to it: none of its operations begins before all are approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated_from: Option<PlanName>,
    /// The plan that its plan has migrated to, if it ends a migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated_to: Option<PlanName>,
    /// Its state.
    pub state: RevisionState,
    /// The state in one sentence; empty at first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The requester, if the server vouches for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
    /// Time of the request.
    pub at: Timestamp,
}

/// States of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RevisionState {
    /// It has begun nothing.
    Pending,
    /// It has operations, or makes them.
    InProgress,
    /// It makes no operations until it is resumed.
    Paused,
    /// All its operations have succeeded.
    Completed,
    /// An operation has not succeeded, and all have ended; or a person has stopped it, and its operations end with it.
    Failed,
    /// It was cancelled: no further operation of it begins.
    Cancelled,
}

const fn approval_expires_after() -> Duration {
    APPROVAL_EXPIRES_AFTER
}

fn is_default_expiry(time: &Duration) -> bool {
    *time == APPROVAL_EXPIRES_AFTER
}

impl RevisionState {
    /// Whether it ends the revision.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Its name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "inProgress",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl FromStr for Comparator {
    type Err = ComparatorError;

    fn from_str(text: &str) -> Result<Self, ComparatorError> {
        let word: String = text.chars().filter(|c| !matches!(c, '_' | '-')).collect();
        match word.to_ascii_lowercase().as_str() {
            "in" | "eq" => Ok(Self::In),
            "notin" => Ok(Self::NotIn),
            "gte" => Ok(Self::Gte),
            "lte" => Ok(Self::Lte),
            _ => Err(ComparatorError(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for Comparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::NotIn => "notIn",
            Self::Gte => "gte",
            Self::Lte => "lte",
        })
    }
}

impl<'de> Deserialize<'de> for Comparator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parse(deserializer)
    }
}

impl JsonSchema for Comparator {
    fn schema_name() -> Cow<'static, str> {
        "Comparator".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^([Ii][Nn]|[Ee][Qq]|[Nn][Oo][Tt][_-]?[Ii][Nn]|[Gg][Tt][Ee]|[Ll][Tt][Ee])$",
            "description": "in (or eq), notIn (or NOT_IN), gte, lte, in any case"
        })
    }
}

impl PlanSpec {
    /// The resources of one instance: the sum of its applications.
    pub fn resources(&self) -> Resources {
        let all = self.applications.iter().map(|application| application.resources);
        all.fold(Resources::default(), Resources::plus)
    }

    /// Checks the rules that a JSON schema cannot express.
    ///
    /// # Errors
    /// The first rule that is broken, with the path of the field.
    pub fn check(&self) -> Result<(), Violation> {
        check_text("namespace", &self.namespace)?;
        check_text("serviceName", &self.service_name)?;
        if self.service_name.len() > SERVICE_NAME_BYTES_MAX {
            let rule = format!("has more than {SERVICE_NAME_BYTES_MAX} bytes");
            return Err(Violation::at("serviceName", rule));
        }
        if self.applications.is_empty() {
            return Err(Violation::at("applications", "is empty: name at least one application"));
        }
        check_length("applications", self.applications.len(), PLAN_APPLICATIONS_MAX)?;
        let mut names = BTreeSet::new();
        for (at, application) in self.applications.iter().enumerate() {
            let path = format!("applications[{at}]");
            if !names.insert(&application.payload_name) {
                let rule = format!("'{}' is there twice", application.payload_name);
                return Err(Violation::at(format!("{path}.payloadName"), rule));
            }
            application.check().map_err(|broken| broken.within(path))?;
        }
        start_order(&self.applications)?;
        if let Some(retries) = &self.retries {
            retries.check().map_err(|(field, rule)| Violation::at(format!("retries.{field}"), rule))?;
            if retries.backoff.is_some() {
                return Err(Violation::at("retries.backoff", "is that of the node's agent: leave it out"));
            }
        }
        self.composite_app.as_ref().map_or(Ok(()), CompositeApp::check)?;
        self.check_ports()?;
        hook::check_all(&self.hooks)?;
        self.check_matchers()
    }

    /// The applications in the order in which an instance starts them.
    pub fn start_order(&self) -> Vec<&PlanApplication> {
        // A plan whose order breaks a rule is refused before it is recorded.
        start_order(&self.applications).unwrap_or_else(|_| self.applications.iter().collect())
    }

    fn check_ports(&self) -> Result<(), Violation> {
        let mut ports = BTreeSet::new();
        let all = self.applications.iter().flat_map(|application| &application.ports);
        match all.into_iter().find(|port| !ports.insert((port.protocol.to_ascii_uppercase(), port.port))) {
            Some(port) => {
                let rule = format!("have {} {} twice: a node has it once", port.protocol, port.port);
                Err(Violation::at("applications", rule))
            }
            None => Ok(()),
        }
    }

    fn check_matchers(&self) -> Result<(), Violation> {
        let matchers = &self.matching_compute_capabilities;
        check_length("matchingComputeCapabilities", matchers.len(), MATCHERS_MAX)?;
        let mut types = BTreeSet::new();
        for (at, matcher) in matchers.iter().enumerate() {
            let path = format!("matchingComputeCapabilities[{at}]");
            check_text(&format!("{path}.capabilityType"), &matcher.capability_type)?;
            check_length(&format!("{path}.capabilityNames"), matcher.capability_names.len(), MATCHERS_MAX)?;
            if matcher.capability_names.is_empty() {
                return Err(Violation::at(format!("{path}.capabilityNames"), "is empty"));
            }
            if !types.insert(&matcher.capability_type) {
                let rule = format!("'{}' has two matchers; one is allowed", matcher.capability_type);
                return Err(Violation::at(format!("{path}.capabilityType"), rule));
            }
        }
        Ok(())
    }
}

impl PlanApplication {
    fn check(&self) -> Result<(), Violation> {
        self.resources.check("resources")?;
        check_length("after", self.after.len(), PLAN_APPLICATIONS_MAX)?;
        for (at, dependency) in self.after.iter().enumerate() {
            dependency.check().map_err(|rule| Violation::at(format!("after[{at}]"), rule))?;
        }
        check_length("ports", self.ports.len(), PORTS_MAX)?;
        check_length("persistentVolumes", self.persistent_volumes.len(), PORTS_MAX)?;
        for (at, port) in self.ports.iter().enumerate() {
            if port.port == 0 || !["TCP", "UDP"].contains(&port.protocol.to_ascii_uppercase().as_str()) {
                return Err(Violation::at(format!("ports[{at}]"), "is not TCP or UDP with a port above 0"));
            }
        }
        for (at, volume) in self.persistent_volumes.iter().enumerate() {
            check_text(&format!("persistentVolumes[{at}].storageClass"), &volume.storage_class)?;
            check_text(&format!("persistentVolumes[{at}].mountPath"), &volume.mount_path)?;
            if volume.capacity > RESOURCE_MAX {
                let rule = format!("is above {RESOURCE_MAX}");
                return Err(Violation::at(format!("persistentVolumes[{at}].capacity"), rule));
            }
        }
        Ok(())
    }
}

impl Plan {
    /// A revision by its id.
    pub fn revision(&self, id: &RevisionId) -> Option<&PlanRevision> {
        self.revisions.iter().find(|revision| revision.id == *id)
    }

    /// Whether a revision may not begin before the hooks of the plan have answered. A revision without instances is not asked about:
    /// nothing holds up a removal.
    pub fn awaits_hooks(&self, revision: &PlanRevision) -> bool {
        let is_answered = self.hook_answers.as_ref().is_some_and(|answers| answers.revision == revision.id);
        !self.spec.hooks.is_empty()
            && revision.state == RevisionState::Pending
            && revision.instances > 0
            && !is_answered
    }

    /// The revision that has not ended, if there is one.
    pub fn open_revision(&self) -> Option<&PlanRevision> {
        self.revisions.iter().find(|revision| !revision.state.is_final())
    }
}

impl Document for Plan {
    const KIND: &'static str = "Plan";

    fn check(&self) -> Result<(), Violation> {
        self.spec.check()?;
        check_length("revisions", self.revisions.len(), PLAN_REVISIONS_MAX)?;
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if bytes > PLAN_BYTES_MAX {
            let rule = format!("makes the plan {bytes} bytes long; {PLAN_BYTES_MAX} are allowed");
            return Err(Violation::at("revisions", rule));
        }
        Ok(())
    }
}
