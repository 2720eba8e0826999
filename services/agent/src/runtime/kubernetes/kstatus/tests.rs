//! Tables of objects as controllers write them, and the status that each has.

#![allow(clippy::needless_pass_by_value, reason = "rows of tables are values")]

use serde_json::{Value, json};

use super::pod::{owner, problem};
use super::*;

/// The name of a status, without its words.
fn word(object: &Value) -> &'static str {
    match status(object) {
        ObjectStatus::Current => "Current",
        ObjectStatus::InProgress(_) => "InProgress",
        ObjectStatus::Failed(_) => "Failed",
        ObjectStatus::Terminating => "Terminating",
    }
}

/// An object of a kind, second version, with its controller's word about it.
fn object(api_version: &str, kind: &str, spec: Value, mut status: Value) -> Value {
    if status.is_object() && status.get("observedGeneration").is_none() {
        status["observedGeneration"] = json!(2);
    }
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "generation": 2},
        "spec": spec, "status": status})
}

#[track_caller]
fn check(api_version: &str, kind: &str, rows: &[(&str, Value, Value)]) {
    for (expected, spec, status) in rows {
        let object = object(api_version, kind, spec.clone(), status.clone());
        assert_eq!(word(&object), *expected, "{object}");
    }
}

#[test]
fn a_deployment_is_current_when_every_replica_is_updated_and_available() {
    let full = json!({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3});
    let with = |field: &str, value: Value| {
        let mut status = full.clone();
        status[field] = value;
        status
    };
    let progressing = |reason: &str| with("conditions", json!([{"type": "Progressing", "reason": reason}]));
    let spec = || json!({"replicas": 3});
    check(
        "apps/v1",
        "Deployment",
        &[
            ("Current", spec(), full.clone()),
            ("Current", json!({"replicas": 0}), json!({})),
            ("InProgress", spec(), json!({})),
            ("InProgress", spec(), with("updatedReplicas", json!(2))),
            ("InProgress", spec(), with("availableReplicas", json!(2))),
            ("InProgress", spec(), with("readyReplicas", json!(2))),
            ("InProgress", spec(), with("replicas", json!(4))),
            ("InProgress", spec(), with("observedGeneration", json!(1))),
            ("InProgress", json!({"replicas": 3, "paused": true}), full.clone()),
            ("InProgress", spec(), with("conditions", json!([{"type": "Available", "status": "False"}]))),
            ("Current", spec(), progressing("NewReplicaSetAvailable")),
            ("Failed", spec(), progressing("ProgressDeadlineExceeded")),
        ],
    );
    let never_seen =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0}, "status": {}});
    assert_eq!(word(&never_seen), "InProgress");
}

#[test]
fn a_stateful_set_is_current_when_its_revision_is_the_newest() {
    let status = |ready: u32, current: &str| json!({"replicas": 2, "readyReplicas": ready, "updatedReplicas": 1, "currentRevision": current, "updateRevision": "b"});
    let spec = |strategy: Value| json!({"replicas": 2, "updateStrategy": strategy});
    check(
        "apps/v1",
        "StatefulSet",
        &[
            ("Current", spec(json!({})), status(2, "b")),
            ("InProgress", spec(json!({})), status(2, "a")),
            ("InProgress", spec(json!({})), status(1, "b")),
            ("Current", spec(json!({"type": "OnDelete"})), status(2, "a")),
            ("Current", spec(json!({"rollingUpdate": {"partition": 1}})), status(2, "a")),
            ("InProgress", json!({"replicas": 1}), status(2, "b")),
            ("Current", json!({"replicas": 0}), json!({"replicas": 0})),
        ],
    );
}

#[test]
fn a_daemon_set_and_a_replica_set_count_their_pods() {
    let status = |available: u32| {
        json!({"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 2,
            "numberAvailable": available, "numberReady": 2})
    };
    check("apps/v1", "DaemonSet", &[("Current", json!({}), status(2)), ("InProgress", json!({}), status(1))]);
    let status = |replicas: u32, failure: &str| {
        json!({"replicas": replicas, "fullyLabeledReplicas": 2, "availableReplicas": 2, "readyReplicas": 2,
            "conditions": [{"type": "ReplicaFailure", "status": failure}]})
    };
    check(
        "apps/v1",
        "ReplicaSet",
        &[
            ("Current", json!({"replicas": 2}), status(2, "False")),
            ("InProgress", json!({"replicas": 2}), status(2, "True")),
            ("InProgress", json!({"replicas": 2}), status(3, "False")),
            ("InProgress", json!({"replicas": 3}), status(2, "False")),
        ],
    );
}

#[test]
fn a_running_job_is_in_progress_and_one_that_gave_up_has_failed() {
    let condition = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]});
    check(
        "batch/v1",
        "Job",
        &[
            ("InProgress", json!({}), json!({})),
            ("InProgress", json!({}), json!({"active": 1})),
            ("InProgress", json!({"suspend": true}), json!({})),
            ("Current", json!({}), condition("Complete")),
            ("Failed", json!({}), condition("Failed")),
        ],
    );
    let ObjectStatus::Failed(failure) = status(&object("batch/v1", "Job", json!({}), condition("Failed")))
    else {
        panic!("it has failed")
    };
    assert_eq!(failure.code, "BackoffLimitExceeded");
}

#[test]
fn claims_services_definitions_and_namespaces_have_their_rules() {
    check(
        "v1",
        "PersistentVolumeClaim",
        &[
            ("Current", json!({}), json!({"phase": "Bound"})),
            ("InProgress", json!({}), json!({"phase": "Pending"})),
            ("InProgress", json!({}), json!({})),
            ("Failed", json!({}), json!({"phase": "Lost"})),
        ],
    );
    check(
        "v1",
        "Service",
        &[
            ("Current", json!({"type": "ClusterIP"}), json!({"loadBalancer": {}})),
            ("InProgress", json!({"type": "LoadBalancer"}), json!({"loadBalancer": {}})),
            (
                "Current",
                json!({"type": "LoadBalancer"}),
                json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}),
            ),
        ],
    );
    let names = |established: &str, accepted: &str| json!({"conditions": [{"type": "Established", "status": established}, {"type": "NamesAccepted", "status": accepted}]});
    check(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &[
            ("Current", json!({}), names("True", "True")),
            ("InProgress", json!({}), names("False", "True")),
            ("InProgress", json!({}), json!({})),
            ("Failed", json!({}), names("False", "False")),
        ],
    );
    check(
        "v1",
        "Namespace",
        &[
            ("Current", json!({}), json!({"phase": "Active"})),
            ("Terminating", json!({}), json!({"phase": "Terminating"})),
        ],
    );
}

#[test]
fn other_kinds_are_judged_by_the_standard_conditions() {
    let condition = |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status}]});
    check(
        "acme.example/v1",
        "Press",
        &[
            ("Current", json!({}), json!({})),
            ("Current", json!({}), condition("Ready", "True")),
            ("InProgress", json!({}), condition("Ready", "False")),
            ("InProgress", json!({}), condition("Ready", "Unknown")),
            ("InProgress", json!({}), condition("Reconciling", "True")),
            ("Failed", json!({}), condition("Stalled", "True")),
            ("InProgress", json!({}), json!({"observedGeneration": 1})),
        ],
    );
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {}});
    assert_eq!(word(&config), "Current");
    let leaving = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(word(&leaving), "Terminating");
}

fn pod(status: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1"}, "status": status})
}

fn container(state: Value, last: Value) -> Value {
    pod(json!({"phase": "Pending", "containerStatuses": [
        {"name": "http", "restartCount": 4, "state": state, "lastState": last}]}))
}

#[test]
fn a_pod_is_current_when_ready_or_done_and_failed_when_its_phase_says_so() {
    let ready = |phase: &str, ready: &str| {
        pod(json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}))
    };
    for (expected, pod) in [
        ("Current", ready("Running", "True")),
        ("InProgress", ready("Running", "False")),
        ("InProgress", ready("Pending", "False")),
        ("Current", pod(json!({"phase": "Succeeded"}))),
        ("Failed", pod(json!({"phase": "Failed"}))),
        ("InProgress", pod(json!({}))),
    ] {
        assert_eq!(word(&pod), expected, "{pod}");
    }
}

#[test]
fn problems_of_pods_are_told_in_words_with_the_clusters_code() {
    let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
    let ended = |reason: &str, exit: u32| json!({"terminated": {"reason": reason, "exitCode": exit, "message": "no database"}});
    let unscheduled = pod(json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes have enough memory"}]}));
    let evicted =
        pod(json!({"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}));
    let init = pod(json!({"phase": "Pending", "initContainerStatuses": [
        {"name": "init", "state": waiting("CrashLoopBackOff", "")}]}));
    for (code, words, pod) in [
        ("ImagePullBackOff", "no such tag", container(waiting("ImagePullBackOff", "no such tag"), json!({}))),
        ("ImagePullBackOff", "ErrImagePull", container(waiting("ErrImagePull", "no such host"), json!({}))),
        (
            "CrashLoopBackOff",
            "exit code 3 no database",
            container(waiting("CrashLoopBackOff", "back-off"), ended("Error", 3)),
        ),
        ("CrashLoopBackOff", "container init", init),
        (
            "OOMKilled",
            "memory limit",
            container(waiting("CrashLoopBackOff", "back-off"), ended("OOMKilled", 137)),
        ),
        ("OOMKilled", "memory limit", container(ended("OOMKilled", 137), json!({}))),
        ("Exited", "exit code 1", container(ended("Error", 1), json!({}))),
        (
            "CreateContainerConfigError",
            "secret",
            container(waiting("CreateContainerConfigError", "secret x not found"), json!({})),
        ),
        ("Unschedulable", "enough memory", unscheduled),
        ("Evicted", "low on memory", evicted),
    ] {
        let found = problem(&pod).unwrap_or_else(|| panic!("{code}: no problem in {pod}"));
        assert_eq!(found.code, code, "{}", found.message);
        assert!(found.message.contains(words) && found.message.contains("web-1"), "{}", found.message);
    }
    for fine in [
        pod(json!({"phase": "Running"})),
        container(waiting("ContainerCreating", ""), json!({})),
        container(json!({"running": {}}), json!({})),
        container(json!({"terminated": {"exitCode": 0}}), json!({})),
    ] {
        assert_eq!(problem(&fine), None, "{fine}");
    }
}

#[test]
fn a_pod_names_the_workload_that_made_it() {
    let owned = |kind: &str, name: &str, hash: Option<&str>| {
        json!({"metadata": {"name": "x", "labels": {"pod-template-hash": hash},
            "ownerReferences": [{"kind": kind, "name": name, "controller": true}]}})
    };
    let of = |kind: &str, name: &str| Some((kind.to_owned(), name.to_owned()));
    assert_eq!(owner(&owned("ReplicaSet", "web-7d4f", Some("7d4f"))), of("Deployment", "web"));
    assert_eq!(owner(&owned("ReplicaSet", "own", None)), of("ReplicaSet", "own"));
    assert_eq!(owner(&owned("StatefulSet", "db", None)), of("StatefulSet", "db"));
    assert_eq!(owner(&pod(json!({}))), None);
}
