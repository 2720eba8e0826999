//! The status of a pod, and the problem that keeps it from being ready. Pure.
//!
//! A problem may pass by itself, such as an image that cannot be pulled yet: it fails a component only at its timeout. A pod in
//! the phase `Failed` has failed at once.

use serde_json::Value;

use super::{ObjectStatus, condition, failed, in_progress, is_true, words};
use crate::runtime::code;

/// Characters of a message of the cluster that are reported.
const MESSAGE_CHARS_MAX: usize = 300;
/// Reasons for which a container waits in a normal start.
const NORMAL_WAITS: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The label with the hash at the end of a ReplicaSet's name, if a Deployment made it.
const TEMPLATE_HASH: &str = "/metadata/labels/pod-template-hash";

/// The cause that keeps a pod from being ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodProblem {
    /// The cluster's reason.
    pub(crate) code: String,
    /// The pod and the reason.
    pub(crate) message: String,
}

/// The workload that made a pod: its kind and its name.
pub(crate) type Owner = (String, String);

/// The status of a pod.
pub(super) fn status(pod: &Value) -> ObjectStatus {
    match pod.pointer("/status/phase").and_then(Value::as_str) {
        Some("Succeeded") => ObjectStatus::Current,
        Some("Failed") => match problem(pod) {
            Some(problem) => failed(problem.code, problem.message),
            None => failed(code::POD_FAILED, text(pod, "/status/message", "the pod has failed")),
        },
        Some("Running") if condition(pod, "Ready").is_some_and(is_true) => ObjectStatus::Current,
        phase => match problem(pod) {
            Some(problem) => in_progress(problem.message),
            None => in_progress(format!("the pod is {}", phase.unwrap_or("new"))),
        },
    }
}

/// The cause that keeps a pod from being ready, if there is one.
pub(crate) fn problem(pod: &Value) -> Option<PodProblem> {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let found = unschedulable(pod).or_else(|| container_problem(pod)).or_else(|| evicted(pod))?;
    let message = format!("pod {name}: {}", cut(&found.message));
    Some(PodProblem { code: found.code, message })
}

/// The workload that a pod belongs to. A Deployment's pods name a ReplicaSet, whose name is the Deployment's and a hash.
pub(crate) fn owner(pod: &Value) -> Option<Owner> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let controller = owners.iter().find(|owner| owner["controller"] == Value::Bool(true))?;
    let (kind, name) = (controller["kind"].as_str()?, controller["name"].as_str()?);
    let deployment = pod
        .pointer(TEMPLATE_HASH)
        .and_then(Value::as_str)
        .and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
    match deployment {
        Some(deployment) if kind == "ReplicaSet" => Some(("Deployment".to_owned(), deployment.to_owned())),
        _ => Some((kind.to_owned(), name.to_owned())),
    }
}

fn unschedulable(pod: &Value) -> Option<PodProblem> {
    let condition = condition(pod, "PodScheduled").filter(|it| it["status"] == "False")?;
    let message = words(condition, "the scheduler gives no reason");
    Some(PodProblem { code: code::UNSCHEDULABLE.to_owned(), message: format!("no node takes it: {message}") })
}

fn evicted(pod: &Value) -> Option<PodProblem> {
    let reason = pod.pointer("/status/reason")?.as_str()?;
    let message = text(pod, "/status/message", "the node has removed it");
    Some(PodProblem { code: reason.to_owned(), message: format!("{reason}: {message}") })
}

fn container_problem(pod: &Value) -> Option<PodProblem> {
    let lists = ["/status/initContainerStatuses", "/status/containerStatuses"];
    let containers = lists.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten();
    containers.filter_map(problem_of).next()
}

fn problem_of(container: &Value) -> Option<PodProblem> {
    let name = container["name"].as_str().unwrap_or_default();
    let waiting = &container["state"]["waiting"];
    if let Some(reason) = waiting["reason"].as_str().filter(|reason| !NORMAL_WAITS.contains(reason)) {
        let message = waiting["message"].as_str().unwrap_or_default();
        let before = exit_problem(name, &container["lastState"]["terminated"]);
        // The container's last end has the cause of a crash loop.
        if reason == code::CRASH_LOOP {
            let restarts = container["restartCount"].as_i64().unwrap_or_default();
            let message = format!("container {name} crashes again and again ({restarts} restarts)");
            return Some(match before {
                Some(before) if before.code == code::OOM_KILLED => {
                    PodProblem { code: before.code, message: format!("{message}: {}", before.message) }
                }
                Some(before) => {
                    PodProblem { code: reason.to_owned(), message: format!("{message}: {}", before.message) }
                }
                None => PodProblem { code: reason.to_owned(), message },
            });
        }
        let message = format!("container {name} waits: {reason} {message}").trim_end().to_owned();
        return Some(PodProblem { code: pull_code(reason).to_owned(), message });
    }
    exit_problem(name, &container["state"]["terminated"])
}

/// The failure of a container that has ended.
fn exit_problem(name: &str, ended: &Value) -> Option<PodProblem> {
    let exit = ended["exitCode"].as_i64().filter(|exit| *exit != 0)?;
    let reason = ended["reason"].as_str().unwrap_or_default();
    let output = ended["message"].as_str().unwrap_or_default().trim();
    if reason == code::OOM_KILLED {
        let message = format!("container {name} was killed because its memory limit was reached");
        return Some(PodProblem { code: reason.to_owned(), message });
    }
    let message = format!("container {name} ended with exit code {exit} {output}").trim_end().to_owned();
    Some(PodProblem { code: code::EXITED.to_owned(), message })
}

/// The kubelet alternates between `ErrImagePull` and `ImagePullBackOff`: one code for both.
fn pull_code(reason: &str) -> &str {
    if reason == "ErrImagePull" { code::IMAGE_PULL } else { reason }
}

fn text(object: &Value, pointer: &str, otherwise: &str) -> String {
    let found = object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.unwrap_or(otherwise).to_owned()
}

fn cut(message: &str) -> String {
    if message.chars().count() <= MESSAGE_CHARS_MAX {
        return message.to_owned();
    }
    let kept: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    format!("{kept}…")
}
