//! Converts one Margo ApplicationDeployment, of any draft, to the contract's type.
//!
//! The drafts differ in the places of fields: the early one (2024) has `apiVersion`, `kind` and the ids as annotations, the
//! newest has `id` and `spec.applicationId` and no envelope, and those in between mix them. All places are read, and two
//! places of one field must agree. An unknown field is refused: it is a typing mistake, or its author relies on an effect
//! that it does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use muster_contract::canonical::Digest;
use muster_contract::constraints::DeviceConstraints;
use muster_contract::decode::Violation;
use muster_contract::desired::{
    Component, DesiredDeployment, Parameter, Profile, ProfileType, RESTART_ANNOTATION, RemovalPhase,
    STOPPED_ANNOTATION, Target,
};
use muster_contract::limits::COMPONENTS_MAX;
use muster_contract::metadata::{self, DeploymentLabels};
use muster_contract::profile::Workload;
use muster_contract::removal_jobs::check_removal_job;
use muster_contract::{ComponentName, DeploymentId, Generation, Namespace};
use serde_json::{Map, Value};

use super::Level;
use super::node::{Findings, Node, Object};
use super::path::Path;
use super::plain::{PlainRule, plain};

/// `apiVersion` of the drafts that have one.
const API_VERSIONS: [&str; 3] =
    ["application.margo.org/v1alpha1", "margo.org/v1-alpha1", "margo.deployment/v1"];
const KIND: &str = "ApplicationDeployment";
/// Margo's limit of application ids.
const APPLICATION_ID_CHARS_MAX: usize = 200;
/// Longest name, as in Kubernetes.
const NAME_CHARS_MAX: usize = 253;
/// Profile types with their earlier names.
const PROFILE_TYPES: &str = "process, simulated, compose (docker-compose), helm (helm.v3)";

/// Reads a document of `level`.
///
/// # Errors
/// All problems of the document.
pub(super) fn read(value: &Value, level: &Level) -> Result<DesiredDeployment, Findings> {
    let mut found = Findings::default();
    let entry = deployment(&Node { value, path: Path::default() }, level, &mut found);
    match entry {
        Some(entry) if found.0.is_empty() => match entry.check_content() {
            Ok(()) => Ok(entry),
            // A rule of the contract that this module does not check itself; its path may be less precise.
            Err(Violation { path, rule }) => {
                let spec = Path::default().key("spec");
                let path = match path.strip_prefix("profile.") {
                    Some(below) => spec.key("deploymentProfile").below(below),
                    None => spec.below(&path),
                };
                found.push(&path, rule);
                Err(found)
            }
        },
        _ => Err(found),
    }
}

fn deployment(root: &Node<'_>, level: &Level, found: &mut Findings) -> Option<DesiredDeployment> {
    let root = root.object(&["apiVersion", "kind", "id", "metadata", "spec"], found)?;
    envelope(&root, found);
    let metadata = root
        .required("metadata", found)
        .and_then(|node| node.object(&["name", "namespace", "deviceId", "labels", "annotations"], found));
    let spec = root
        .required("spec", found)
        .and_then(|node| node.object(&["applicationId", "deploymentProfile", "parameters"], found));
    let annotations = metadata
        .as_ref()
        .and_then(|metadata| metadata.optional("annotations"))
        .and_then(|node| node.open_object(found));

    let id = unique_field(Some(&root), annotations.as_ref(), "id", found)
        .and_then(|node| node.parse::<DeploymentId>(found));
    let application_id = unique_field(spec.as_ref(), annotations.as_ref(), "applicationId", found)
        .and_then(|node| application_id(&node, found));
    let described = metadata.as_ref().and_then(|metadata| describe(metadata, level, found));
    let annotations = annotations.as_ref();
    let stopped = annotations
        .and_then(|own| run_annotation(own, STOPPED_ANNOTATION, "is neither true nor false", found));
    let restart = annotations
        .and_then(|own| run_annotation(own, RESTART_ANNOTATION, "is not a whole number from 0", found));
    let profile = spec
        .as_ref()
        .and_then(|spec| spec.required("deploymentProfile", found))
        .and_then(|node| profile(&node, found));
    let parameters = spec.as_ref().and_then(|spec| parameters(spec, profile.as_ref(), found));
    let (described, profile) = (described?, profile?);
    // Other runtimes have no use for them, and an agent of an older release refuses an entry that has them.
    let is_packaged = profile.profile_type.is_packaged();
    Some(DesiredDeployment {
        id: id?,
        name: described.name,
        application_id: application_id?,
        namespace: described.namespace.filter(|_| is_packaged),
        labels: if is_packaged { described.labels } else { DeploymentLabels::new() },
        target_generation: Generation::FIRST,
        digest: Digest::of_bytes(b""),
        profile,
        parameters: parameters?,
        stopped: stopped.unwrap_or_default(),
        restart: restart.unwrap_or_default(),
        source: None,
    })
}

/// Checks `apiVersion` and `kind`: both or, in the newest draft, neither.
fn envelope(root: &Object<'_>, found: &mut Findings) {
    let (version, kind) = (root.optional("apiVersion"), root.optional("kind"));
    if version.is_some() != kind.is_some() {
        let missing = if version.is_none() { "apiVersion" } else { "kind" };
        found.push(&root.path.key(missing), "is missing: apiVersion and kind come together, or not at all");
    }
    let mut one_of = |node: Option<Node<'_>>, allowed: &[&str]| {
        let Some(text) = node.as_ref().and_then(|node| node.text(found)) else { return };
        if !allowed.contains(&text) {
            let path = node.map(|node| node.path).unwrap_or_default();
            found.push(&path, format!("'{text}' is not known; allowed are: {}", allowed.join(", ")));
        }
    };
    one_of(version, &API_VERSIONS);
    one_of(kind, &[KIND]);
}

/// A field that the newest draft has in `new`, and earlier drafts in the annotations.
fn unique_field<'a>(
    new: Option<&Object<'a>>,
    annotations: Option<&Object<'a>>,
    key: &str,
    found: &mut Findings,
) -> Option<Node<'a>> {
    let early = annotations.and_then(|annotations| annotations.optional(key));
    let new = new?;
    match (new.optional(key), early) {
        (Some(one), Some(other)) if one.value != other.value => {
            found.push(&other.path, format!("differs from {}: write it once", one.path));
            None
        }
        (None, None) => {
            let rule = format!("is missing (in earlier drafts: metadata.annotations.{key})");
            found.push(&new.path.key(key), rule);
            None
        }
        (one, other) => one.or(other),
    }
}

/// Reads an annotation that stops or restarts the deployment, for which Margo has no field. Its value is a text, or a boolean or
/// number of YAML.
fn run_annotation<T: FromStr>(
    annotations: &Object<'_>,
    key: &str,
    rule: &str,
    found: &mut Findings,
) -> Option<T> {
    let node = annotations.optional(key)?;
    let text = match node.value {
        Value::Bool(_) | Value::Number(_) => node.value.to_string(),
        _ => node.text(found)?.to_owned(),
    };
    let parsed = text.parse().ok();
    if parsed.is_none() {
        found.push(&node.path, rule);
    }
    parsed
}

fn application_id(node: &Node<'_>, found: &mut Findings) -> Option<String> {
    let text = node.text(found)?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.len() <= APPLICATION_ID_CHARS_MAX && text.bytes().all(allowed) {
        return Some(text.to_owned());
    }
    let rule =
        format!("is not an application id: 1 to {APPLICATION_ID_CHARS_MAX} characters of a-z, 0-9 and '-'");
    found.push(&node.path, rule);
    None
}

/// The name, namespace and labels of `metadata`.
struct Description {
    name: String,
    namespace: Option<Namespace>,
    labels: DeploymentLabels,
}

/// Reads and checks `metadata` without the annotations.
fn describe(metadata: &Object<'_>, level: &Level, found: &mut Findings) -> Option<Description> {
    let namespace = metadata.optional("namespace").and_then(|node| node.parse::<Namespace>(found));
    let labels = labels(metadata, found);
    if let Some(node) = metadata.optional("deviceId")
        && let Some(device) = node.text(found)
        && !level.is_meant_by(device)
    {
        found.push(&node.path, format!("'{device}' {}", level.expectation()));
    }
    let name = metadata.required("name", found)?;
    let text = name.text(found)?;
    if text.chars().count() <= NAME_CHARS_MAX && !text.chars().any(char::is_control) {
        return Some(Description { name: text.to_owned(), namespace, labels });
    }
    found.push(
        &name.path,
        format!("is not a name: 1 to {NAME_CHARS_MAX} characters, none of them a control character"),
    );
    None
}

/// The labels; a wrong one is found by its key.
fn labels(metadata: &Object<'_>, found: &mut Findings) -> DeploymentLabels {
    let Some(node) = metadata.optional("labels").and_then(|node| node.open_object(found)) else {
        return DeploymentLabels::new();
    };
    let text = |(key, value)| {
        Some((String::clone(key), Node { value, path: node.path.key(key) }.text(found)?.to_owned()))
    };
    let labels: DeploymentLabels = node.map.iter().filter_map(text).collect();
    if let Err((key, rule)) = metadata::check(&labels) {
        found.push(&node.path.key(&key), format!("'{key}' {rule}"));
    }
    labels
}

fn profile(node: &Node<'_>, found: &mut Findings) -> Option<Profile> {
    let profile = node.object(&["type", "components", "deviceConstraints"], found)?;
    let constraints = profile.optional("deviceConstraints").and_then(|node| constraints(&node, found));
    let profile_type = profile.required("type", found).and_then(|node| profile_type(&node, found));
    let components = profile.required("components", found).and_then(|node| {
        let items = node.list(found)?;
        if items.is_empty() || items.len() > COMPONENTS_MAX {
            found.push(
                &node.path,
                format!("has {} components; 1 to {COMPONENTS_MAX} are allowed", items.len()),
            );
            return None;
        }
        let mut names = BTreeSet::new();
        let read: Vec<_> =
            items.iter().map(|item| component(item, profile_type, &mut names, found)).collect();
        read.into_iter().collect::<Option<Vec<_>>>()
    });
    Some(Profile { profile_type: profile_type?, components: components?, device_constraints: constraints })
}

/// Reads the constraints, which the device compares with its capabilities.
fn constraints(node: &Node<'_>, found: &mut Findings) -> Option<DeviceConstraints> {
    let read = DeviceConstraints::read(node.value);
    read.map_err(|Violation { path, rule }| found.push(&node.path.below(&path), rule)).ok()
}

fn profile_type(node: &Node<'_>, found: &mut Findings) -> Option<ProfileType> {
    let text = node.text(found)?;
    let known = serde_json::from_value(node.value.clone()).ok();
    if known.is_none() {
        found.push(&node.path, format!("'{text}' is not a type of profile; there are {PROFILE_TYPES}"));
    }
    known
}

fn component(
    node: &Node<'_>,
    profile_type: Option<ProfileType>,
    names: &mut BTreeSet<ComponentName>,
    found: &mut Findings,
) -> Option<Component> {
    let object = node.object(&["name", "properties", "runsAt"], found)?;
    let name = object.required("name", found).and_then(|node| node.parse::<ComponentName>(found));
    let properties = match object.optional("properties") {
        None => Some(Map::new()),
        Some(node) => node.open_object(found).map(|properties| properties.map.clone()),
    };
    let runs_at = object.optional("runsAt").and_then(|node| removal_phase(&node, found));
    let component = Component { name: name?, properties: properties?, runs_at };
    if !names.insert(component.name.clone()) {
        found.push(&node.path.key("name"), format!("'{}' is there twice", component.name));
    }
    check_workload(profile_type?, &component, &node.path, found);
    Some(component)
}

/// Reads when a removal job runs.
fn removal_phase(node: &Node<'_>, found: &mut Findings) -> Option<RemovalPhase> {
    RemovalPhase::read(node.value).map_err(|rule| found.push(&node.path, rule)).ok()
}

/// Checks a component's properties against its profile type.
fn check_workload(profile_type: ProfileType, component: &Component, path: &Path, found: &mut Findings) {
    match Workload::of(profile_type, component) {
        Err(Violation { path: field, rule }) => {
            let PlainRule { field: below, rule } = plain(&rule);
            let field_path = path.below(&field);
            found.push(&below.map_or(field_path.clone(), |field| field_path.key(&field)), rule);
        }
        Ok(workload) if component.runs_at.is_some() => {
            if let Err(rule) = check_removal_job(profile_type, &workload) {
                found.push(&path.key("runsAt"), rule);
            }
        }
        Ok(_) => {}
    }
    let mut rest = component.clone();
    while let Some(unread) = Workload::unread_property(profile_type, &rest).map(str::to_owned) {
        found.push(&path.key("properties").key(&unread), "is not a property of this type of component");
        rest.properties.remove(&unread);
    }
}

fn parameters(
    spec: &Object<'_>,
    profile: Option<&Profile>,
    found: &mut Findings,
) -> Option<BTreeMap<String, Parameter>> {
    let Some(node) = spec.optional("parameters") else { return Some(BTreeMap::new()) };
    let object = node.open_object(found)?;
    let mut read = BTreeMap::new();
    for (name, value) in object.map {
        let node = Node { value, path: object.path.key(name) };
        if let Some(parameter) = parameter(&node, profile, found) {
            read.insert(name.clone(), parameter);
        }
    }
    Some(read)
}

fn parameter(node: &Node<'_>, profile: Option<&Profile>, found: &mut Findings) -> Option<Parameter> {
    let object = node.object(&["value", "targets"], found)?;
    let value = object.required("value", found).map(|node| node.value.clone());
    let targets = object.required("targets", found).and_then(|node| {
        let items = node.list(found)?;
        let read: Vec<_> = items.iter().map(|item| target(item, found)).collect();
        read.into_iter().collect::<Option<Vec<_>>>()
    });
    let parameter = Parameter { value: value?, targets: targets? };
    if let Some(profile) = profile {
        let names = profile.components.iter().map(|component| &component.name).collect();
        if let Err(Violation { path, rule }) = parameter.check(profile.profile_type, &names) {
            found.push(&node.path.below(&path), rule);
        }
    }
    Some(parameter)
}

fn target(node: &Node<'_>, found: &mut Findings) -> Option<Target> {
    let object = node.object(&["pointer", "components"], found)?;
    let pointer = object.required("pointer", found).and_then(|node| node.text(found));
    let components = object.required("components", found).and_then(|node| {
        let items = node.list(found)?;
        let read: Vec<_> = items.iter().map(|item| item.parse::<ComponentName>(found)).collect();
        read.into_iter().collect::<Option<Vec<_>>>()
    });
    Some(Target { pointer: pointer?.to_owned(), components: components? })
}
