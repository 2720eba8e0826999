//! EMCO's shape of a status: an app has clusters, a cluster is a device of a site, its resources are the components. A device as
//! a whole has EMCO's shape of a cluster, a site that of a logical cloud. Empty values are left out.
//!
//! A state that EMCO does not know becomes the more careful one: an unknown state is NotReady, and a component that is being
//! removed is Applied until it is gone. Statuses, messages and times of the last change are added to apps, clusters and
//! resources, which have none at EMCO, as are the attempts of running retries (`retried` of roll-ups, `retry` of the others).
//! Roll-ups and clusters also have `lastHeard`. [`states`] has the history of actions, [`plan`] the status of a plan, [`notification`] the messages of EMCO's notification service.
//! `manifestsLeftOut` counts the targets whose manifest is left out of the answer. Names of projects, composite apps and
//! profiles are left out: only plans may have them ([`plan`]).
//!
//! Every function takes an answer with both axes, because EMCO shows `deployedStatus` whichever axis is asked for, and leaves
//! out the rest of the other axis.

pub mod deprecated;
mod detail;
pub mod notification;
pub mod plan;
pub mod states;

use std::collections::BTreeMap;

use muster_contract::query::Output;
use muster_contract::status::{
    AppStatus, Axis, ComponentLine, Deployed, Ready, Rollup, StatusAnswer, TargetStatus,
};
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, SiteId};
use serde_json::{Map, Value, json};

use self::detail::Detail;

/// Said in place of a reason where there is nothing to have one. EMCO calls that Ready.
const NOTHING: &str = "nothing is there that passes";

/// The subject of an answer. Each has a shape of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// A deployment, or any targets: applications with their clusters.
    Deployment,
    /// Everything on a device: one cluster.
    Device(&'a DeviceKey),
    /// Everything at a site: its clusters, without applications.
    Site(&'a SiteId),
}

/// A list of names in place of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Applications.
    Apps,
    /// Devices of each application.
    Targets,
    /// Components of each application and device.
    Components,
}

/// The requested parts of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// How much.
    pub output: Output,
    /// One axis alone; both where none is named.
    pub axis: Option<Axis>,
}

impl Asked {
    /// How far things were delivered.
    fn deployed<T>(self, status: Option<T>) -> Option<T> {
        status.filter(|_| self.axis != Some(Axis::Ready))
    }

    /// The observed status; none if the request left it out.
    fn ready<T>(self, status: Option<T>) -> Option<T> {
        status.filter(|_| self.axis != Some(Axis::Deployed))
    }
}

/// The whole answer.
pub fn status(answer: &StatusAnswer, of: Subject<'_>, asked: Asked) -> Value {
    let rollup = &answer.rollup;
    let mut shape = named(answer, of);
    insert(&mut shape, "deployedStatus", rollup.deployed_status.and_then(lifecycle).map(Value::from));
    insert(&mut shape, "readyStatus", asked.ready(rollup.ready_status).and_then(ready).map(Value::from));
    let deployed = rollup.deployed_counts.iter().filter_map(|(key, count)| Some((resource(*key)?, *count)));
    insert(&mut shape, "deployedCounts", asked.deployed(counts(deployed)));
    let observed = rollup.ready_counts.iter().filter_map(|(key, count)| Some((ready(*key)?, *count)));
    insert(&mut shape, "readyCounts", asked.ready(counts(observed)));
    insert_reason(&mut shape, rollup);
    if rollup.message.is_none() && rollup.targets + rollup.leaving + rollup.superseded == 0 {
        insert(&mut shape, "message", Some(NOTHING.into()));
    }
    let left_out = answer.manifests_left_out;
    insert(&mut shape, "manifestsLeftOut", (left_out > 0).then(|| left_out.into()));
    match (of, asked.output) {
        // EMCO has the key there in any case.
        (Subject::Device(_), Output::Summary) => insert(&mut shape, "cluster", Some(json!({}))),
        (Subject::Deployment | Subject::Site(_), Output::Summary) => {}
        (Subject::Device(key), _) => {
            let targets: Vec<_> = answer.targets.iter().collect();
            insert(&mut shape, "cluster", Some(whole_cluster(key, answer, &targets, asked)));
        }
        (Subject::Site(_), _) => {
            let clusters = by_device(answer).into_iter();
            let clusters: Vec<_> =
                clusters.map(|(key, targets)| whole_cluster(key, answer, &targets, asked)).collect();
            insert(&mut shape, "clusters", (!clusters.is_empty()).then(|| clusters.into()));
        }
        (Subject::Deployment, _) => {
            let apps = by_app(answer).into_iter();
            let apps: Vec<_> = apps.map(|(name, targets)| app(answer, name, &targets, asked)).collect();
            insert(&mut shape, "apps", (!apps.is_empty()).then(|| apps.into()));
        }
    }
    Value::Object(shape)
}

/// An application over the targets that are shown, with its roll-up if it is of exactly these.
fn app(answer: &StatusAnswer, name: Option<&str>, targets: &[&TargetStatus], asked: Asked) -> Value {
    let mut value = Map::new();
    insert(&mut value, "name", name.map(Value::from));
    let held = answer.apps.iter().find(|held| held.app.as_deref() == name);
    if let Some(AppStatus { rollup, .. }) = held {
        insert_statuses(&mut value, asked, rollup.deployed_status, rollup.ready_status);
        insert_reason(&mut value, rollup);
    }
    let clusters = targets.iter().map(|target| cluster(answer, target, asked));
    value.insert("clusters".to_owned(), clusters.collect());
    Value::Object(value)
}

/// A device with the components of all its deployments: each says of which it is, because names repeat.
fn whole_cluster(key: &DeviceKey, answer: &StatusAnswer, targets: &[&TargetStatus], asked: Asked) -> Value {
    let mut value = json!({ "clusterProvider": key.site, "cluster": key.device });
    if let Some(target) = targets.first() {
        value["connectivity"] = connectivity(target).into();
        if let Some(at) = target.last_heard_at {
            value["lastHeard"] = at.to_string().into();
        }
    }
    let lines = targets.iter().flat_map(|target| {
        resource_lines(answer, target, asked).map(|mut line| {
            line["deployment"] = target.deployment.as_str().into();
            line
        })
    });
    value["resources"] = lines.collect();
    value
}

fn insert_statuses(
    map: &mut Map<String, Value>,
    asked: Asked,
    deployed: Option<Deployed>,
    observed: Option<Ready>,
) {
    insert(map, "deployedStatus", asked.deployed(deployed).and_then(lifecycle).map(Value::from));
    insert(map, "readyStatus", asked.ready(observed).and_then(ready).map(Value::from));
}

fn insert_reason(map: &mut Map<String, Value>, rollup: &Rollup) {
    insert(map, "message", rollup.message.clone().map(Value::from));
    insert(map, "lastChange", rollup.changed_at.map(|at| at.to_string().into()));
    insert(map, "lastHeard", rollup.last_heard_at.map(|at| at.to_string().into()));
    insert(map, "retried", (!rollup.retried.is_nothing()).then(|| json!(rollup.retried)));
}

/// Names alone: `?apps`, `?clusters`, `?resources`.
pub fn names(answer: &StatusAnswer, of: Subject<'_>, names: Names) -> Value {
    let mut shape = named(answer, of);
    let apps = by_app(answer);
    let list: Vec<Value> = match names {
        Names::Apps => apps.keys().flatten().map(|app| (*app).into()).collect(),
        Names::Targets => {
            let clusters =
                |targets: &[&TargetStatus]| targets.iter().map(|it| cluster_of(it)).collect::<Vec<_>>();
            let of_app = |(app, targets): (&Option<&str>, &Vec<_>)| {
                with_app(*app, json!({ "clusters": clusters(targets) }))
            };
            apps.iter().map(of_app).collect()
        }
        Names::Components => apps
            .iter()
            .flat_map(|(app, targets)| targets.iter().map(move |target| resources(*app, target)))
            .collect(),
    };
    let key = match names {
        Names::Apps => "apps",
        Names::Targets => "clustersByApp",
        Names::Components => "resourcesByApp",
    };
    shape.insert(key.to_owned(), list.into());
    Value::Object(shape)
}

fn resources(app: Option<&str>, target: &TargetStatus) -> Value {
    let kinds = target.components.iter();
    let kinds: Vec<_> = kinds.map(|it| json!({ "name": it.name, "GVK": kind() })).collect();
    let mut value = cluster_of(target);
    value["resources"] = kinds.into();
    with_app(app, value)
}

/// The answer with its application; a deployment that only leaves and has no known publication has none.
fn with_app(app: Option<&str>, mut value: Value) -> Value {
    if let Some(app) = app {
        value["app"] = app.into();
    }
    value
}

/// The name of the subject; a cluster is named after its provider too, as at EMCO.
fn named(answer: &StatusAnswer, of: Subject<'_>) -> Map<String, Value> {
    let name = match of {
        Subject::Deployment => answer.deployment.as_ref().map(ToString::to_string),
        Subject::Device(key) => Some(format!("{}+{}", key.site, key.device)),
        Subject::Site(site) => Some(site.to_string()),
    };
    let mut shape = Map::new();
    insert(&mut shape, "name", name.map(Value::from));
    shape
}

fn by_app(answer: &StatusAnswer) -> BTreeMap<Option<&str>, Vec<&TargetStatus>> {
    let mut apps: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for target in &answer.targets {
        apps.entry(target.app.as_deref()).or_default().push(target);
    }
    apps
}

fn by_device(answer: &StatusAnswer) -> BTreeMap<&DeviceKey, Vec<&TargetStatus>> {
    let mut devices: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for target in &answer.targets {
        devices.entry(&target.key).or_default().push(target);
    }
    devices
}

fn cluster_of(target: &TargetStatus) -> Value {
    json!({ "clusterProvider": target.key.site, "cluster": target.key.device })
}

fn cluster(answer: &StatusAnswer, target: &TargetStatus, asked: Asked) -> Value {
    let mut value = Map::new();
    insert_statuses(&mut value, asked, target.deployed_status, target.ready_status);
    insert(&mut value, "clusterProvider", Some(target.key.site.as_str().into()));
    insert(&mut value, "cluster", Some(target.key.device.as_str().into()));
    insert(&mut value, "connectivity", Some(connectivity(target).into()));
    insert(&mut value, "lastHeard", target.last_heard_at.map(|at| at.to_string().into()));
    insert(&mut value, "message", Some(target.message.clone().into()));
    insert(&mut value, "lastChange", target.changed_at.map(|at| at.to_string().into()));
    insert(&mut value, "retry", target.retry.map(|retry| json!(retry)));
    insert(&mut value, "resources", Some(resource_lines(answer, target, asked).collect()));
    Value::Object(value)
}

const fn connectivity(target: &TargetStatus) -> &'static str {
    match target.freshness {
        Freshness::Fresh => "Available",
        Freshness::Stale => "Retrying",
        Freshness::Never => "Unknown",
    }
}

fn resource_lines(answer: &StatusAnswer, target: &TargetStatus, asked: Asked) -> impl Iterator<Item = Value> {
    target.components.iter().map(move |component| match asked.output {
        Output::Detail => resource_line(component, asked, Detail::of(answer, target, component, asked.axis)),
        Output::Summary | Output::Brief | Output::All => resource_line(component, asked, Detail::NONE),
    })
}

fn resource_line(component: &ComponentLine, asked: Asked, Detail { detail, manifest }: Detail) -> Value {
    let mut value = Map::new();
    let (deployed, observed) =
        (asked.deployed(component.deployed_status), asked.ready(component.ready_status));
    insert(&mut value, "GVK", Some(kind()));
    insert(&mut value, "name", Some(component.name.as_str().into()));
    insert(&mut value, "detail", detail);
    insert(&mut value, "manifest", manifest);
    insert(&mut value, "deployedStatus", deployed.and_then(resource).map(Value::from));
    insert(&mut value, "readyStatus", observed.and_then(ready).map(Value::from));
    insert(&mut value, "message", Some(component.message.clone().into()));
    insert(&mut value, "retry", component.retry.map(|retry| json!(retry)));
    insert(&mut value, "lastChange", component.changed_at.map(|at| at.to_string().into()));
    Value::Object(value)
}

fn kind() -> Value {
    json!({ "Group": "muster", "Version": "v1", "Kind": "Component" })
}

/// The word for a whole: EMCO's states of what was deployed.
const fn lifecycle(status: Deployed) -> Option<&'static str> {
    match status {
        Deployed::Failed => Some("InstantiateFailed"),
        Deployed::Pending => Some("Instantiating"),
        Deployed::Applied => Some("Instantiated"),
        Deployed::Deleting => Some("Terminating"),
        Deployed::Deleted => Some("Terminated"),
        Deployed::Empty => None,
    }
}

const fn resource(status: Deployed) -> Option<&'static str> {
    match status {
        Deployed::Failed => Some("Failed"),
        Deployed::Pending => Some("Pending"),
        Deployed::Applied | Deployed::Deleting => Some("Applied"),
        Deployed::Deleted => Some("Deleted"),
        Deployed::Empty => None,
    }
}

const fn ready(status: Ready) -> Option<&'static str> {
    match status {
        Ready::NotReady | Ready::Unknown => Some("NotReady"),
        Ready::NotPresent => Some("NotPresent"),
        Ready::Ready => Some("Ready"),
        Ready::Empty => None,
    }
}

fn counts(pairs: impl Iterator<Item = (&'static str, u64)>) -> Option<Value> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    pairs.for_each(|(key, count)| *sums.entry(key).or_default() += count);
    (!sums.is_empty()).then(|| json!(sums))
}

fn insert(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value);
    }
}
