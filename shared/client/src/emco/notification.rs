//! A notification of EMCO's `StatusNotify` service as JSON: the value of the whole, and with everything the values of
//! applications, clusters and resources.
//!
//! A whole, an application or a cluster is `DEPLOYED` if all of it is applied, and `READY` if all of it is also ready by
//! reports that are fresh. If nothing passes the filters, the value is the negative one, and never `STATUS_ERROR`, which
//! EMCO uses for failures of its own.

use muster_contract::DeviceKey;
use muster_contract::query::Output;
use muster_contract::status::{Axis, ComponentLine, Deployed, Ready, StatusAnswer, TargetStatus};
use serde_json::{Value, json};

use super::{Subject, by_app, by_device, cluster_of};

/// The notification of an answer that has both axes, without `details` with [`Output::Summary`].
pub fn notification(answer: &StatusAnswer, of: Subject<'_>, axis: Axis, output: Output) -> Value {
    let rollup = &answer.rollup;
    let mut value =
        json!({ "statusValue": word(axis, holds(axis, rollup.deployed_status, rollup.ready_status)) });
    let details: Vec<Value> = match (output, of) {
        (Output::Summary, _) => return value,
        (_, Subject::Device(key)) => {
            vec![whole_cluster(key, &answer.targets.iter().collect::<Vec<_>>(), axis)]
        }
        (_, Subject::Site(_)) => {
            by_device(answer).into_iter().map(|(key, targets)| whole_cluster(key, &targets, axis)).collect()
        }
        (_, Subject::Deployment) => {
            by_app(answer).into_iter().map(|(name, targets)| app(name, &targets, axis)).collect()
        }
    };
    value["details"] = details.into();
    value
}

fn app(name: Option<&str>, targets: &[&TargetStatus], axis: Axis) -> Value {
    let is_all = targets.iter().all(|target| target_holds(target, axis));
    let clusters: Vec<Value> = targets.iter().map(|target| cluster(target, axis)).collect();
    json!({ "app": {
        "app": name.unwrap_or_default(),
        "statusValue": word(axis, is_all),
        "clusters": clusters,
    } })
}

fn cluster(target: &TargetStatus, axis: Axis) -> Value {
    let mut value = cluster_of(target);
    value["statusValue"] = word(axis, target_holds(target, axis)).into();
    value["resources"] = target.components.iter().map(|component| resource(component, axis)).collect();
    value
}

fn whole_cluster(key: &DeviceKey, targets: &[&TargetStatus], axis: Axis) -> Value {
    let is_all = !targets.is_empty() && targets.iter().all(|target| target_holds(target, axis));
    let resources = targets.iter().flat_map(|target| &target.components);
    json!({ "cluster": {
        "clusterProvider": key.site,
        "cluster": key.device,
        "statusValue": word(axis, is_all),
        "resources": resources.map(|component| resource(component, axis)).collect::<Vec<_>>(),
    } })
}

fn resource(component: &ComponentLine, axis: Axis) -> Value {
    let is_so = holds(axis, component.deployed_status, component.ready_status);
    json!({
        "name": component.name,
        "gvk": { "group": "muster", "version": "v1", "kind": "Component" },
        "statusValue": word(axis, is_so),
    })
}

/// Whether a target and each of its components hold.
fn target_holds(target: &TargetStatus, axis: Axis) -> bool {
    let component = |it: &ComponentLine| holds(axis, it.deployed_status, it.ready_status);
    holds(axis, target.deployed_status, target.ready_status) && target.components.iter().all(component)
}

fn holds(axis: Axis, deployed: Option<Deployed>, ready: Option<Ready>) -> bool {
    let is_deployed = deployed == Some(Deployed::Applied);
    match axis {
        Axis::Deployed => is_deployed,
        Axis::Ready => is_deployed && ready == Some(Ready::Ready),
    }
}

const fn word(axis: Axis, holds: bool) -> &'static str {
    match (axis, holds) {
        (Axis::Deployed, true) => "DEPLOYED",
        (Axis::Deployed, false) => "NOT_DEPLOYED",
        (Axis::Ready, true) => "READY",
        (Axis::Ready, false) => "NOT_READY",
    }
}
