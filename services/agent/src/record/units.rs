//! The units of an entry: its components with their environment, values and digest. Pure.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::decode::Violation;
use muster_contract::desired::{Component, DesiredDeployment, RemovalPhase};
use muster_contract::metadata::DeploymentLabels;
use muster_contract::profile::Workload;
use muster_contract::{ComponentName, DeviceKey};
use serde_json::Value;

use crate::runtime::Unit;

/// All units, each with its phase if it is a removal job.
pub(super) fn units(
    entry: &DesiredDeployment,
    device: &DeviceKey,
) -> Result<Vec<(Option<RemovalPhase>, Unit)>, Violation> {
    let unit = |(component, workload): (&Component, Workload)| {
        let (environment, values) = (environment(entry, &component.name), values(entry, &component.name));
        let is_packaged = entry.profile.profile_type.is_packaged();
        let unit = Unit {
            device: device.clone(),
            deployment: entry.id.clone(),
            component: component.name.clone(),
            namespace: entry.namespace.clone().filter(|_| is_packaged),
            labels: if is_packaged { entry.labels.clone() } else { DeploymentLabels::new() },
            digest: unit_digest(entry, component, &environment, &values),
            workload,
            is_job: component.runs_at.is_some(),
            environment,
            values,
        };
        (component.runs_at, unit)
    };
    Ok(entry.workloads()?.into_iter().map(unit).collect())
}

/// The variables that the deployment's parameters set for a component. If two parameters set one variable, the one
/// whose name sorts last wins.
fn environment(entry: &DesiredDeployment, component: &ComponentName) -> BTreeMap<String, String> {
    if entry.profile.profile_type.takes_values() {
        return BTreeMap::new();
    }
    let pairs = entry.parameters.values().flat_map(|parameter| {
        let targets = parameter.targets.iter().filter(|target| target.components.contains(component));
        targets.filter_map(|target| {
            let variable = target.environment_variable()?;
            Some((variable.to_owned(), parameter.environment_value()))
        })
    });
    pairs.collect()
}

/// The chart's values that the deployment's parameters set for a component, by pointer. If two parameters set one value,
/// the one whose name sorts last wins.
fn values(entry: &DesiredDeployment, component: &ComponentName) -> BTreeMap<String, Value> {
    if !entry.profile.profile_type.takes_values() {
        return BTreeMap::new();
    }
    let pairs = entry.parameters.values().flat_map(|parameter| {
        let targets = parameter.targets.iter().filter(|target| target.components.contains(component));
        targets.map(|target| (target.pointer.clone(), parameter.value.clone()))
    });
    pairs.collect()
}

fn unit_digest(
    entry: &DesiredDeployment,
    component: &Component,
    environment: &BTreeMap<String, String>,
    values: &BTreeMap<String, Value>,
) -> Digest {
    // Only charts have values, and only a restarted component has a counter: all other digests equal those of earlier agents.
    // Another counter makes another version, so the component is replaced once, also across a crash of the agent.
    let restart = entry.restart;
    let digest = match (values.is_empty(), restart) {
        (true, 0) => Digest::of_value(&(&component.properties, environment)),
        (false, 0) => Digest::of_value(&(&component.properties, values)),
        (true, _) => Digest::of_value(&(&component.properties, environment, restart)),
        (false, _) => Digest::of_value(&(&component.properties, values, restart)),
    };
    // A job is not taken for a component with the same properties that runs, or has run.
    let digest = match component.runs_at {
        None => digest,
        Some(phase) => Digest::of_value(&(digest, phase)),
    };
    let has_metadata = entry.namespace.is_some() || !entry.labels.is_empty();
    if has_metadata && entry.profile.profile_type.is_packaged() {
        return Digest::of_value(&(digest, &entry.namespace, &entry.labels));
    }
    digest
}

/// The digest of each component's unit.
pub(super) fn unit_digests(entry: &DesiredDeployment) -> BTreeMap<&ComponentName, Digest> {
    let digest = |component: &Component| {
        let (environment, values) = (environment(entry, &component.name), values(entry, &component.name));
        unit_digest(entry, component, &environment, &values)
    };
    entry.profile.components.iter().map(|component| (&component.name, digest(component))).collect()
}
