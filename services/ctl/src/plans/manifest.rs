//! Reads files of plans, deployments of plans and nodes, as MRDS writes them. Each error names the file, the line, the field and
//! the rule. Sends nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use muster_contract::decode::{Document as _, Violation};
use muster_contract::desired::ProfileType;
use muster_contract::keys::check_keys;
use muster_contract::plans::{
    Node, NodeSpec, NodeState, NodeVolume, PlanDeployRequest, PlanSpec, PlannerErrorBody, PlansChange,
    Resources,
};
use muster_contract::{CapabilityName, ComponentName, DeviceKey, PlanName, RevisionId, SiteId, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ask::AskError;
use crate::error::CtlError;
use crate::publish;
use crate::yaml::line_of;

/// A file, for the place of an error.
#[derive(Debug)]
pub(super) struct ManifestFile {
    path: PathBuf,
    text: String,
}

/// An entry of a file, with its path there.
#[derive(Debug, PartialEq)]
pub(super) struct Entry<T> {
    /// Its path in the file, as `plans[0]`; empty if the file is the entry.
    pub(super) place: String,
    /// Its content.
    pub(super) value: T,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlansFile {
    plans: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    nodes: Vec<Value>,
}

/// A deployment of a plan. MRDS writes its keys in snake case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeploymentFile {
    #[serde(alias = "deploymentPlanName")]
    deployment_plan_name: PlanName,
    #[serde(alias = "deploymentId")]
    deployment_id: RevisionId,
    #[serde(alias = "payloadCoordinates")]
    payload_coordinates: Vec<PayloadEntry>,
    #[serde(alias = "instanceCount")]
    instance_count: u32,
    /// MRDS has no such key.
    #[serde(default, alias = "maxUnavailable")]
    max_unavailable: Option<u32>,
    /// MRDS has no such key.
    #[serde(default)]
    canary: Option<u32>,
    /// MRDS has no such key.
    #[serde(default, alias = "skipUnchanged")]
    skip_unchanged: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PayloadEntry {
    #[serde(alias = "payloadName")]
    payload_name: ComponentName,
    #[serde(default)]
    coordinates: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeEntry {
    /// `SITE/DEVICE`, or a device of the site that the command names.
    name: String,
    update_domain: String,
    total_resources: Resources,
    #[serde(default)]
    system_reserved_resources: Resources,
    #[serde(default, alias = "capabilityIDs", alias = "capabilityIds")]
    capabilities: Vec<CapabilityName>,
    #[serde(default)]
    local_volumes: Vec<NodeVolume>,
    #[serde(default)]
    runtimes: Vec<ProfileType>,
}

impl ManifestFile {
    /// Reads a file; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be read, or is too large.
    pub(super) fn read(path: &Path) -> Result<Self, CtlError> {
        Ok(Self { text: publish::read(path)?, path: path.to_owned() })
    }

    /// The plans of the file: a list under `plans`.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub(super) fn plans(&self) -> Result<Vec<Entry<PlanSpec>>, CtlError> {
        let plans = self.parsed::<PlansFile>(self.yaml()?, "")?.plans;
        let mut entries = Vec::new();
        for (at, value) in plans.into_iter().enumerate() {
            let place = format!("plans[{at}]");
            check_keys::<PlanSpec>(&value)
                .map_err(|unknown| self.refused(&format!("{place}.{}", unknown.path), unknown.rule))?;
            let value: PlanSpec = self.parsed(value, &place)?;
            value.check().map_err(|broken| self.refused(&format!("{place}.{}", broken.path), broken.rule))?;
            entries.push(Entry { place, value });
        }
        self.check_names(entries.iter().map(|entry| (&entry.place, &entry.value.name)))?;
        self.some(entries, "plans")
    }

    /// The deployment of a plan that the file is.
    ///
    /// # Errors
    /// As [`Self::plans`].
    pub(super) fn deployment(&self) -> Result<Entry<PlanDeployRequest>, CtlError> {
        let file: DeploymentFile = self.parsed(self.yaml()?, "")?;
        let mut coordinates = BTreeMap::new();
        for (at, payload) in file.payload_coordinates.into_iter().enumerate() {
            let name = payload.payload_name;
            if coordinates.insert(name.clone(), payload.coordinates).is_some() {
                let place = format!("payload_coordinates[{at}]");
                return Err(self.refused(&place, format!("'{name}' is there twice")));
            }
        }
        let value = PlanDeployRequest {
            plan: file.deployment_plan_name,
            id: file.deployment_id,
            instances: file.instance_count,
            coordinates,
            max_unavailable: file.max_unavailable,
            canary: file.canary,
            skip_unchanged: file.skip_unchanged,
            expected_version: None,
            request_id: None,
        };
        Ok(Entry { place: String::new(), value })
    }

    /// The deployment of the plan that another one migrates to.
    ///
    /// # Errors
    /// As [`Self::plans`], and a key that a migration does not have.
    pub(super) fn migration(&self) -> Result<Entry<PlanDeployRequest>, CtlError> {
        let entry = self.deployment()?;
        let PlanDeployRequest { max_unavailable, canary, skip_unchanged, .. } = &entry.value;
        let keys = [
            ("max_unavailable", max_unavailable.is_some()),
            ("canary", canary.is_some()),
            ("skip_unchanged", *skip_unchanged),
        ];
        for (key, is_there) in keys {
            if is_there {
                return Err(self.refused(key, "is not of a migration: leave it out".to_owned()));
            }
        }
        Ok(entry)
    }

    /// The nodes of the file: a list under `nodes`. `site` is the site of a name without one.
    ///
    /// # Errors
    /// As [`Self::plans`].
    pub(super) fn nodes(&self, site: Option<&SiteId>) -> Result<Vec<Entry<NodeSpec>>, CtlError> {
        let nodes = self.parsed::<NodesFile>(self.yaml()?, "")?.nodes;
        let mut entries = Vec::new();
        for (at, value) in nodes.into_iter().enumerate() {
            let place = format!("nodes[{at}]");
            let node: NodeEntry = self.parsed(value, &place)?;
            let key = self.key_of(&node.name, site, &format!("{place}.name"))?;
            let value = NodeSpec {
                key,
                update_domain: node.update_domain,
                total_resources: node.total_resources,
                system_reserved_resources: node.system_reserved_resources,
                local_volumes: node.local_volumes,
                capabilities: node.capabilities,
                runtimes: node.runtimes,
            };
            check_node(&value)
                .map_err(|broken| self.refused(&format!("{place}.{}", broken.path), broken.rule))?;
            entries.push(Entry { place, value });
        }
        self.check_names(entries.iter().map(|entry| (&entry.place, &entry.value.key)))?;
        self.some(entries, "nodes")
    }

    /// The error of a request for an entry, with its place in the file if the planner names a field.
    pub(super) fn error(&self, place: &str, error: AskError) -> CtlError {
        match error {
            AskError::RefusedByPlanner(PlannerErrorBody { field: Some(field), message, .. }) => {
                let rest = message.strip_prefix(&field).and_then(|rest| rest.strip_prefix(": "));
                let rule = rest.unwrap_or(&message).to_owned();
                self.refused(&joined(place, &field), rule)
            }
            other => other.into(),
        }
    }

    fn key_of(&self, name: &str, site: Option<&SiteId>, place: &str) -> Result<DeviceKey, CtlError> {
        let whole = match site {
            Some(site) if !name.contains('/') => format!("{site}/{name}"),
            _ => name.to_owned(),
        };
        let hint = if whole.contains('/') { "" } else { ": write SITE/DEVICE, or name the site with --site" };
        whole.parse().map_err(|error| self.refused(place, format!("{error}{hint}")))
    }

    /// The file as a value. A key that is there twice is an error.
    fn yaml(&self) -> Result<Value, CtlError> {
        let failed = |error: serde_norway::Error| CtlError::Manifest {
            path: self.path.clone(),
            line: error.location().map(|at| at.line() as u64),
            reason: plain(&error.to_string()),
        };
        let value: serde_norway::Value = serde_norway::from_str(&self.text).map_err(failed)?;
        serde_json::to_value(value).map_err(|error| self.refused("", error.to_string()))
    }

    fn parsed<T: DeserializeOwned>(&self, value: Value, place: &str) -> Result<T, CtlError> {
        serde_path_to_error::deserialize(value).map_err(|error| {
            let below = error.path().to_string();
            let path = if below == "." { place.to_owned() } else { joined(place, &below) };
            self.refused(&path, error.into_inner().to_string())
        })
    }

    /// Checks that no two entries have the same name.
    fn check_names<'a, T: Ord + Display + 'a>(
        &self,
        entries: impl Iterator<Item = (&'a String, &'a T)>,
    ) -> Result<(), CtlError> {
        let mut names = BTreeSet::new();
        for (place, name) in entries {
            if !names.insert(name) {
                return Err(self.refused(&format!("{place}.name"), format!("'{name}' is there twice")));
            }
        }
        Ok(())
    }

    fn some<T>(&self, entries: Vec<Entry<T>>, key: &str) -> Result<Vec<Entry<T>>, CtlError> {
        if entries.is_empty() { Err(self.refused(key, "is empty".to_owned())) } else { Ok(entries) }
    }

    fn refused(&self, field: &str, rule: String) -> CtlError {
        let field = field.trim_end_matches('.');
        let reason = if field.is_empty() { rule } else { format!("{field}: {rule}") };
        CtlError::Manifest { path: self.path.clone(), line: line_of(&self.text, field), reason }
    }
}

/// Checks a node by the rules of its document that the file alone can break.
fn check_node(spec: &NodeSpec) -> Result<(), Violation> {
    let spec = spec.clone();
    let node = Node {
        api_version: Default::default(),
        kind: Default::default(),
        key: spec.key,
        version: 0,
        state: NodeState::Unallocated,
        message: String::new(),
        cluster: None,
        update_domain: spec.update_domain,
        total_resources: spec.total_resources,
        system_reserved_resources: spec.system_reserved_resources,
        local_volumes: spec.local_volumes,
        capabilities: spec.capabilities,
        runtimes: spec.runtimes,
        disruptions: Vec::new(),
        deleted: false,
        created_at: Timestamp::UNIX_EPOCH,
        change: PlansChange {
            at: Timestamp::UNIX_EPOCH,
            message: String::new(),
            by: None,
            request_id: None,
            request: None,
        },
    };
    node.check()
}

fn joined(place: &str, field: &str) -> String {
    match (place.is_empty(), field.starts_with('[')) {
        (true, _) => field.to_owned(),
        (false, true) => format!("{place}{field}"),
        (false, false) => format!("{place}.{field}"),
    }
}

/// The parser's words without the position, which the error has at its beginning.
fn plain(said: &str) -> String {
    said.split_once(" at line ").map_or(said, |(words, _)| words).to_owned()
}

#[cfg(test)]
mod tests;
