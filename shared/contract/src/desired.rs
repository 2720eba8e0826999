//! DesiredState: every deployment that one device is to run. The device removes a deployment that it does not name.

mod removal_phase;
mod retry_delays;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical::Digest;
use crate::constraints::DeviceConstraints;
use crate::decode::{Document, Violation};
use crate::ids::{ComponentName, DeploymentId, Generation, Namespace};
use crate::labels::{self, Labels};
use crate::limits::{COMPONENTS_MAX, DEPLOYMENT_LABELS_MAX, DEPLOYMENTS_PER_DEVICE_MAX, RUNTIMES_MAX};
use crate::metadata::{self, DeploymentLabels};
use crate::omit;
use crate::requested_by::RequestedBy;
use crate::version::{ApiVersion, kind};

pub use self::removal_phase::RemovalPhase;
pub use self::retry_delays::{RETRY_DELAY_MAX, RETRY_DELAY_MIN, RetryDelays};

/// The annotation of an ApplicationDeployment that becomes [`DesiredDeployment::stopped`]: `"true"` or `"false"`.
pub const STOPPED_ANNOTATION: &str = "io.muster.stopped";
/// The annotation of an ApplicationDeployment that becomes [`DesiredDeployment::restart`]: a whole number.
pub const RESTART_ANNOTATION: &str = "io.muster.restart";

/// `muster.desired.<site>.<device>`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend(
    "if" = { "properties": { "retired": { "const": true } }, "required": ["retired"] },
    "then" = { "properties": { "deployments": { "maxItems": 0 } } }
))]
pub struct DesiredState {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `DesiredState`
    pub kind: kind::DesiredState,
    /// Rises strictly with every document of this device.
    pub generation: Generation,
    /// When the publisher made it.
    pub issued_at: Timestamp,
    /// The device is taken out of every view; then there are no deployments.
    #[serde(default)]
    pub retired: bool,
    /// Where it comes from.
    pub source: Source,
    /// The groups of the device beside its site, as the hub assigns them. The device's own statements do not count, and the
    /// labels change nothing on the device.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "labels::schema")]
    pub labels: Labels,
    /// The delays between the attempts of the device at what has failed, in place of its own: `retries.backoff` of the `rollout.yaml`
    /// that governs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryDelays>,
    /// The deployments that the device must run, ordered by id.
    #[schemars(length(max = DEPLOYMENTS_PER_DEVICE_MAX))]
    pub deployments: Vec<DesiredDeployment>,
}

/// Where a desired state, or one entry of it, comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Which way it came.
    pub kind: SourceKind,
    /// The exact source: a commit, the id of a request, or a plan.
    pub revision: String,
    /// Who asked for it; none where nobody proves who asks. No part of an entry's digest. Beside a commit it is who asked
    /// for the change to the document, not who made the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<RequestedBy>,
}

impl Source {
    /// A source that nobody is named of.
    pub const fn new(kind: SourceKind, revision: String) -> Self {
        Self { kind, revision, requested_by: None }
    }

    /// The same without who asked.
    #[must_use]
    pub fn unsigned(&self) -> Self {
        Self::new(self.kind, self.revision.clone())
    }
}

/// The ways in which desired state comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A Git repository.
    Git,
    /// A request to the publisher.
    Api,
    /// The planner.
    Plan,
}

/// One deployment of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DesiredDeployment {
    /// Its id; a change of content keeps it.
    pub id: DeploymentId,
    /// Its name for people.
    pub name: String,
    /// The application it is an instance of.
    pub application_id: String,
    /// Margo's namespace, for the runtimes that have packages: that of its objects in a cluster, and the prefix of its Compose
    /// projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Margo's labels, which these runtimes put on what they create.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = DEPLOYMENT_LABELS_MAX))]
    pub labels: DeploymentLabels,
    /// The generation at which this digest last changed.
    pub target_generation: Generation,
    /// Digest of the entry without `targetGeneration`, `digest` and `source.requestedBy`. It covers `stopped` and `restart`
    /// where they are set.
    pub digest: Digest,
    /// The profile to run.
    pub profile: Profile,
    /// Values and where they go.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Parameter>,
    /// No component runs: the device stops them and keeps their data. Absent if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Another number than before starts every component anew. Absent if 0.
    #[serde(default, skip_serializing_if = "omit::is_zero")]
    pub restart: u64,
    /// Where this entry comes from, if not from where the document does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// A deployment profile: components of one type, in the order in which they are installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// The type of every component.
    #[serde(rename = "type")]
    pub profile_type: ProfileType,
    /// The components in order.
    #[schemars(length(min = 1, max = COMPONENTS_MAX))]
    pub components: Vec<Component>,
    /// The requirements on a device; a device that does not meet them deploys nothing of it and reports why.
    #[serde(default, rename = "deviceConstraints", skip_serializing_if = "Option::is_none")]
    pub device_constraints: Option<DeviceConstraints>,
}

/// Types of components. The older drafts' names are read and the newest written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProfileType {
    /// Processes of the device's operating system (ours).
    Process,
    /// Compose packages.
    #[serde(alias = "docker-compose")]
    Compose,
    /// Helm charts.
    #[serde(alias = "helm.v3")]
    Helm,
    /// Manifests of Kubernetes objects (ours).
    Kubernetes,
    /// Scripts for simulations (ours).
    Simulated,
}

impl ProfileType {
    /// All types.
    pub const ALL: [Self; RUNTIMES_MAX] =
        [Self::Process, Self::Compose, Self::Helm, Self::Kubernetes, Self::Simulated];

    /// Its word on the wire: the newest draft's.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Compose => "compose",
            Self::Helm => "helm",
            Self::Kubernetes => "kubernetes",
            Self::Simulated => "simulated",
        }
    }

    /// Whether a runtime can stop such a component without removing its data, and start it again. False for objects of a
    /// cluster: a component runs as long as they exist, its volume claims are among them, and the API server does not restart
    /// an unchanged object.
    pub const fn stops_in_place(self) -> bool {
        match self {
            Self::Process | Self::Compose | Self::Simulated => true,
            Self::Helm | Self::Kubernetes => false,
        }
    }

    /// Whether its components are packages, whose runtimes know namespaces and labels.
    pub const fn is_packaged(self) -> bool {
        match self {
            Self::Compose | Self::Helm | Self::Kubernetes => true,
            Self::Process | Self::Simulated => false,
        }
    }

    /// Whether parameters set values of a chart; otherwise they set variables of the environment.
    pub const fn takes_values(self) -> bool {
        match self {
            Self::Helm => true,
            Self::Process | Self::Compose | Self::Kubernetes | Self::Simulated => false,
        }
    }
}

/// One component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Component {
    /// Its name.
    pub name: ComponentName,
    /// The properties, by the type of the profile; `Workload` has them as types.
    #[serde(default)]
    pub properties: Map<String, Value>,
    /// When a removal job runs. Absent: the component runs while the deployment is installed. An agent that does not know the
    /// field refuses the document, because its digest covers the field.
    #[serde(default, rename = "runsAt", skip_serializing_if = "Option::is_none")]
    pub runs_at: Option<RemovalPhase>,
}

impl Component {
    /// A component that runs while its deployment is installed.
    pub const fn new(name: ComponentName, properties: Map<String, Value>) -> Self {
        Self { name, properties, runs_at: None }
    }
}

/// A value and where it goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Parameter {
    /// A string, a number, a truth value, or an array of these.
    #[schemars(schema_with = "parameter_value")]
    pub value: Value,
    /// Where it goes.
    pub targets: Vec<Target>,
}

fn parameter_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["string", "number", "boolean", "array"],
        "items": { "type": ["string", "number", "boolean"] }
    })
}

/// Where a parameter goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// An environment variable (`process`, `compose`) or a values path (`helm`).
    pub pointer: String,
    /// The components that get it.
    pub components: Vec<ComponentName>,
}

/// The part of an entry that its digest covers.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    id: &'a DeploymentId,
    name: &'a str,
    application_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a Namespace>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a DeploymentLabels,
    profile: &'a Profile,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: &'a BTreeMap<String, Parameter>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stopped: bool,
    #[serde(skip_serializing_if = "omit::is_zero")]
    restart: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
}

impl DesiredDeployment {
    /// The digest its content has: what `digest` must say.
    pub fn content_digest(&self) -> Digest {
        let Self {
            id,
            name,
            application_id,
            namespace,
            labels,
            target_generation: _,
            digest: _,
            profile,
            parameters,
            stopped,
            restart,
            source,
        } = self;
        let (stopped, restart, source) = (*stopped, *restart, source.as_ref().map(Source::unsigned));
        let namespace = namespace.as_ref();
        Digest::of_value(&Content {
            id,
            name,
            application_id,
            namespace,
            labels,
            profile,
            parameters,
            stopped,
            restart,
            source,
        })
    }

    /// The rules of one entry, and that its digest is that of its content.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.check_content()?;
        let digest = self.content_digest();
        if self.digest != digest {
            return Err(Violation::at("digest", format!("says {}, its content has {digest}", self.digest)));
        }
        Ok(())
    }

    /// The rules of one entry but for its digest, which a publisher has yet to fill in.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check_content(&self) -> Result<(), Violation> {
        let components = &self.profile.components;
        if components.is_empty() || components.len() > COMPONENTS_MAX {
            let rule = format!("has {} components; 1 to {COMPONENTS_MAX} are allowed", components.len());
            return Err(Violation::at("profile.components", rule));
        }
        let mut names = BTreeSet::new();
        for (at, component) in components.iter().enumerate() {
            if !names.insert(&component.name) {
                let rule = format!("'{}' is there twice", component.name);
                return Err(Violation::at(format!("profile.components[{at}].name"), rule));
            }
        }
        self.workloads()?;
        self.profile.check_removal_jobs().map_err(|broken| broken.within("profile"))?;
        metadata::check(&self.labels).map_err(|(key, rule)| Violation::at(format!("labels.{key}"), rule))?;
        if let Some(constraints) = &self.profile.device_constraints {
            constraints.check().map_err(|broken| broken.within("profile.deviceConstraints"))?;
        }
        self.parameters.iter().try_for_each(|(name, parameter)| {
            parameter
                .check(self.profile.profile_type, &names)
                .map_err(|broken| broken.within(format!("parameters.{name}")))
        })
    }
}

impl Parameter {
    /// The rules of one parameter of a deployment that has these components.
    ///
    /// # Errors
    /// The first broken rule; its path starts at the parameter.
    pub fn check(
        &self,
        profile: ProfileType,
        components: &BTreeSet<&ComponentName>,
    ) -> Result<(), Violation> {
        let scalar = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
        let fits = scalar(&self.value) || self.value.as_array().is_some_and(|items| items.iter().all(scalar));
        if !fits {
            return Err(Violation::at("value", "is no string, number, truth value or array of these"));
        }
        for (at, target) in self.targets.iter().enumerate() {
            match profile {
                ProfileType::Kubernetes => {
                    let rule = "manifests take no parameters: use a Helm chart";
                    return Err(Violation::at(format!("targets[{at}]"), rule));
                }
                ProfileType::Process | ProfileType::Compose if target.environment_variable().is_none() => {
                    let rule = format!(
                        "'{}' is not an environment variable (NAME, ENV.NAME or env.NAME)",
                        target.pointer
                    );
                    return Err(Violation::at(format!("targets[{at}].pointer"), rule));
                }
                ProfileType::Process | ProfileType::Compose | ProfileType::Helm | ProfileType::Simulated => {}
            }
            if let Some(stranger) = target.components.iter().find(|name| !components.contains(name)) {
                let rule = format!("aims at component '{stranger}', which the deployment does not have");
                return Err(Violation::at(format!("targets[{at}].components"), rule));
            }
        }
        Ok(())
    }

    /// The value as an environment variable carries it: arrays as JSON.
    pub fn environment_value(&self) -> String {
        match &self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

impl Target {
    /// The environment variable that the pointer names: `NAME`, `ENV.NAME` or `env.NAME`.
    pub fn environment_variable(&self) -> Option<&str> {
        let pointer = &*self.pointer;
        let name = pointer.strip_prefix("ENV.").or_else(|| pointer.strip_prefix("env.")).unwrap_or(pointer);
        is_env_name(name).then_some(name)
    }
}

/// True for `[A-Za-z_][A-Za-z0-9_]*`.
pub fn is_env_name(name: &str) -> bool {
    let head = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    head && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl Document for DesiredState {
    const KIND: &'static str = "DesiredState";

    fn check(&self) -> Result<(), Violation> {
        self.check_by(DesiredDeployment::check)
    }
}

impl DesiredState {
    /// Where an entry comes from: its own source, or the document's. Who asked for the document did not ask for an entry of
    /// the document's source.
    pub fn source_of(&self, entry: &DesiredDeployment) -> Source {
        entry.source.clone().unwrap_or_else(|| self.source.unsigned())
    }

    /// The rules of the document, with those of an entry by what is as good as its own check.
    pub(crate) fn check_by(
        &self,
        mut check_entry: impl FnMut(&DesiredDeployment) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        if self.retired && !self.deployments.is_empty() {
            return Err(Violation::at("deployments", "must be empty where retired is true"));
        }
        labels::check(&self.labels).map_err(|rule| Violation::at("labels", rule))?;
        self.retry.map_or(Ok(()), |delays| delays.check()).map_err(|rule| Violation::at("retry", rule))?;
        if self.deployments.len() > DEPLOYMENTS_PER_DEVICE_MAX {
            let rule =
                format!("has {} entries; {DEPLOYMENTS_PER_DEVICE_MAX} are allowed", self.deployments.len());
            return Err(Violation::at("deployments", rule));
        }
        let mut ids = BTreeSet::new();
        for (at, entry) in self.deployments.iter().enumerate() {
            let here = || format!("deployments[{at}]");
            if !ids.insert(&entry.id) {
                return Err(Violation::at(
                    format!("{}.id", here()),
                    format!("'{}' is there twice", entry.id),
                ));
            }
            if entry.target_generation > self.generation {
                let rule = format!(
                    "{} is above the document's generation {}",
                    entry.target_generation, self.generation
                );
                return Err(Violation::at(format!("{}.targetGeneration", here()), rule));
            }
            check_entry(entry).map_err(|broken| broken.within(here()))?;
        }
        Ok(())
    }
}
