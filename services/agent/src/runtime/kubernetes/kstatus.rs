//! The status of one object from its content, by kstatus's rules: `Current`, `InProgress`, `Failed` or `Terminating`. Pure:
//! no clock, no other object.
//!
//! This module is stricter than kstatus: a failed pod has failed, a running job is in progress, and a claim that lost its
//! volume has failed. A pod's age does not matter: [`pod`] returns its problem, and the component fails at its timeout.

pub(super) mod pod;

use muster_contract::ComponentName;
use muster_contract::limits::ERROR_CODE_BYTES_MAX;
use muster_contract::state::StatusError;
use serde_json::Value;

use crate::runtime::code;

/// Characters of a code. Reasons of the API server are ASCII and may be longer.
const CODE_CHARS_MAX: usize = ERROR_CODE_BYTES_MAX / 4;

/// The status of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ObjectStatus {
    /// It is as desired.
    Current,
    /// Its controller is still working on it.
    InProgress(String),
    /// Its controller has given up, or it has failed.
    Failed(Failure),
    /// It is being deleted.
    Terminating,
}

/// Why an object has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// A code for programs, in the cluster's words where it has one.
    pub(super) code: String,
    /// The reason for people.
    pub(super) message: String,
}

impl Failure {
    /// The error of a component.
    pub(super) fn error(self, component: &ComponentName) -> StatusError {
        // Controllers may give a reason of any length.
        let code: String = self.code.chars().take(CODE_CHARS_MAX).collect();
        StatusError::new(code, component.as_str(), self.message)
    }
}

/// The status of an object.
pub(super) fn status(object: &Value) -> ObjectStatus {
    if object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()) {
        return ObjectStatus::Terminating;
    }
    let observed = object.pointer("/status/observedGeneration").and_then(Value::as_i64);
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64);
    if observed.zip(generation).is_some_and(|(observed, generation)| observed != generation) {
        return in_progress("its controller has not seen the newest version");
    }
    if let Some(failure) = stalled(object) {
        return ObjectStatus::Failed(failure);
    }
    if let Some(condition) = condition(object, "Reconciling").filter(|it| is_true(it)) {
        return in_progress(words(condition, "it is reconciling"));
    }
    let group = object["apiVersion"].as_str().unwrap_or_default().split_once('/').map_or("", |it| it.0);
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("apps", "Deployment") => deployment(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("apps", "DaemonSet") => daemon_set(object),
        ("apps", "ReplicaSet") => replica_set(object),
        ("batch", "Job") => job(object),
        ("", "Pod") => pod::status(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("", "Service") => service(object),
        ("", "Namespace") => namespace(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object),
        _ => by_conditions(object),
    }
}

pub(super) fn in_progress(message: impl Into<String>) -> ObjectStatus {
    ObjectStatus::InProgress(message.into())
}

pub(super) fn failed(code: impl Into<String>, message: impl Into<String>) -> ObjectStatus {
    ObjectStatus::Failed(Failure { code: code.into(), message: message.into() })
}

/// A condition of an object.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

pub(super) fn is_true(condition: &Value) -> bool {
    condition["status"] == "True"
}

/// The message of a condition, or its reason, or `otherwise`.
pub(super) fn words(condition: &Value, otherwise: &str) -> String {
    let text = |field: &str| condition[field].as_str().filter(|text| !text.is_empty());
    text("message").or_else(|| text("reason")).unwrap_or(otherwise).to_owned()
}

fn reason(condition: &Value) -> &str {
    condition["reason"].as_str().unwrap_or_default()
}

/// A number of an object; 0 if the API omits it.
fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// The desired replicas; the default is 1.
fn desired(object: &Value) -> i64 {
    object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// The failure that the standard condition `Stalled` declares.
fn stalled(object: &Value) -> Option<Failure> {
    let condition = condition(object, "Stalled").filter(|it| is_true(it))?;
    let code = Some(reason(condition)).filter(|it| !it.is_empty()).unwrap_or("Stalled");
    Some(Failure { code: code.to_owned(), message: words(condition, "its controller has stalled") })
}

/// The first count that is below its target, as a status.
fn shortfall(counts: &[(i64, i64, &str)]) -> Option<ObjectStatus> {
    let (is, wanted, what) = counts.iter().find(|(is, wanted, _)| is < wanted)?;
    Some(in_progress(format!("{is} of {wanted} {what}")))
}

/// Whether the controller of an object has observed any version of it.
fn is_observed(object: &Value) -> bool {
    object.pointer("/status/observedGeneration").is_some()
}

fn unobserved() -> ObjectStatus {
    in_progress("its controller has not seen it")
}

fn deployment(object: &Value) -> ObjectStatus {
    let progressing = condition(object, "Progressing");
    if let Some(condition) = progressing.filter(|it| reason(it) == code::PROGRESS_DEADLINE_EXCEEDED) {
        return failed(code::PROGRESS_DEADLINE_EXCEEDED, words(condition, "it has not progressed in time"));
    }
    if !is_observed(object) {
        return unobserved();
    }
    if object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
        return in_progress("its rollout is paused");
    }
    let wanted = desired(object);
    let (all, updated) = (number(object, "/status/replicas"), number(object, "/status/updatedReplicas"));
    let counts = [
        (updated, wanted, "replicas are updated"),
        (number(object, "/status/availableReplicas"), wanted, "replicas are available"),
        (number(object, "/status/readyReplicas"), wanted, "replicas are ready"),
    ];
    if let Some(shortfall) = shortfall(&counts) {
        return shortfall;
    }
    if all > updated {
        return in_progress(format!("{} replicas of the version before are left", all - updated));
    }
    match condition(object, "Available") {
        Some(condition) if !is_true(condition) => in_progress(words(condition, "it is not available")),
        _ => ObjectStatus::Current,
    }
}

fn stateful_set(object: &Value) -> ObjectStatus {
    if !is_observed(object) {
        return unobserved();
    }
    let wanted = desired(object);
    let counts = [
        (number(object, "/status/replicas"), wanted, "replicas exist"),
        (number(object, "/status/readyReplicas"), wanted, "replicas are ready"),
    ];
    if let Some(shortfall) = shortfall(&counts) {
        return shortfall;
    }
    let strategy = object.pointer("/spec/updateStrategy/type").and_then(Value::as_str);
    if strategy == Some("OnDelete") {
        return ObjectStatus::Current;
    }
    let extra = number(object, "/status/replicas") - wanted;
    if extra > 0 {
        return in_progress(format!("{extra} replicas too many are left"));
    }
    let partition = number(object, "/spec/updateStrategy/rollingUpdate/partition");
    let updated = number(object, "/status/updatedReplicas");
    if partition > 0 {
        return shortfall(&[(updated, wanted - partition, "replicas of the partition are updated")])
            .unwrap_or(ObjectStatus::Current);
    }
    let revision = |field: &str| object["status"][field].as_str().unwrap_or_default();
    if wanted > 0 && revision("currentRevision") != revision("updateRevision") {
        return in_progress(format!("{updated} of {wanted} replicas are updated"));
    }
    ObjectStatus::Current
}

fn daemon_set(object: &Value) -> ObjectStatus {
    if !is_observed(object) {
        return unobserved();
    }
    let wanted = number(object, "/status/desiredNumberScheduled");
    let counts = [
        (number(object, "/status/currentNumberScheduled"), wanted, "pods are scheduled"),
        (number(object, "/status/updatedNumberScheduled"), wanted, "pods are updated"),
        (number(object, "/status/numberAvailable"), wanted, "pods are available"),
        (number(object, "/status/numberReady"), wanted, "pods are ready"),
    ];
    shortfall(&counts).unwrap_or(ObjectStatus::Current)
}

fn replica_set(object: &Value) -> ObjectStatus {
    if let Some(condition) = condition(object, "ReplicaFailure").filter(|it| is_true(it)) {
        return in_progress(words(condition, "its pods cannot be created"));
    }
    if !is_observed(object) {
        return unobserved();
    }
    let wanted = desired(object);
    let counts = [
        (number(object, "/status/fullyLabeledReplicas"), wanted, "replicas are labelled"),
        (number(object, "/status/availableReplicas"), wanted, "replicas are available"),
        (number(object, "/status/readyReplicas"), wanted, "replicas are ready"),
    ];
    if let Some(shortfall) = shortfall(&counts) {
        return shortfall;
    }
    let extra = number(object, "/status/replicas") - wanted;
    if extra > 0 { in_progress(format!("{extra} replicas too many are left")) } else { ObjectStatus::Current }
}

fn job(object: &Value) -> ObjectStatus {
    if let Some(condition) = condition(object, "Failed").filter(|it| is_true(it)) {
        let code = Some(reason(condition)).filter(|it| !it.is_empty()).unwrap_or(code::JOB_FAILED);
        return failed(code, words(condition, "the job has failed"));
    }
    if condition(object, "Complete").is_some_and(is_true) {
        return ObjectStatus::Current;
    }
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return in_progress("the job is suspended");
    }
    let (active, done) = (number(object, "/status/active"), number(object, "/status/succeeded"));
    let (failures, wanted) = (number(object, "/status/failed"), object.pointer("/spec/completions"));
    let wanted = wanted.and_then(Value::as_i64).unwrap_or(1);
    in_progress(format!("{done} of {wanted} completions; {active} pods run, {failures} have failed"))
}

fn claim(object: &Value) -> ObjectStatus {
    match object.pointer("/status/phase").and_then(Value::as_str) {
        Some("Bound") => ObjectStatus::Current,
        Some("Lost") => failed("Lost", "its volume does not exist any more"),
        phase => in_progress(format!("it is {}, not Bound", phase.unwrap_or("new"))),
    }
}

fn service(object: &Value) -> ObjectStatus {
    if object.pointer("/spec/type").and_then(Value::as_str) != Some("LoadBalancer") {
        return ObjectStatus::Current;
    }
    let ingress = object.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
    match ingress {
        Some(ingress) if !ingress.is_empty() => ObjectStatus::Current,
        _ => in_progress("its load balancer has no address"),
    }
}

fn namespace(object: &Value) -> ObjectStatus {
    match object.pointer("/status/phase").and_then(Value::as_str) {
        Some("Terminating") => ObjectStatus::Terminating,
        _ => ObjectStatus::Current,
    }
}

fn definition(object: &Value) -> ObjectStatus {
    if let Some(condition) = condition(object, "NamesAccepted").filter(|it| it["status"] == "False") {
        return failed("NamesNotAccepted", words(condition, "its names are taken"));
    }
    match condition(object, "Established") {
        Some(condition) if is_true(condition) => ObjectStatus::Current,
        _ => in_progress("it is not established"),
    }
}

/// The status of an object of any other kind by its condition `Ready`. Without that condition it is current.
fn by_conditions(object: &Value) -> ObjectStatus {
    match condition(object, "Ready") {
        Some(condition) if !is_true(condition) => in_progress(words(condition, "it is not ready")),
        _ => ObjectStatus::Current,
    }
}

#[cfg(test)]
mod tests;
