//! Status in the shape and with the key names of EMCO's status query: an app has clusters, a cluster is a site's device,
//! its resources are the components. Empty values are left out.
//!
//! What EMCO has no word for is said with the more careful one: not known is NotReady, going is Applied until it is gone.
//! Messages and times of last change are added to what EMCO gives. There is no history of actions (`states`): LEDGER has it.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::query::Output;
use muster_contract::state::ComponentStatus;
use muster_contract::status::{ComponentLine, Deployed, Ready, StatusAnswer, TargetStatus};
use muster_contract::view::Freshness;
use serde_json::{Map, Value, json};

use crate::config::Names;

/// The whole answer.
pub fn status(answer: &StatusAnswer, output: Output) -> Value {
    let rollup = &answer.rollup;
    let mut shape = named(answer);
    insert(&mut shape, "deployedStatus", rollup.deployed_status.and_then(lifecycle).map(Value::from));
    insert(&mut shape, "readyStatus", rollup.ready_status.and_then(ready).map(Value::from));
    let deployed = rollup.deployed_counts.iter().filter_map(|(key, count)| Some((resource(*key)?, *count)));
    insert(&mut shape, "deployedCounts", counts(deployed));
    let observed = rollup.ready_counts.iter().filter_map(|(key, count)| Some((ready(*key)?, *count)));
    insert(&mut shape, "readyCounts", counts(observed));
    insert(&mut shape, "message", rollup.message.clone().map(Value::from));
    insert(&mut shape, "lastChange", rollup.changed_at.map(|at| at.to_string().into()));
    if output != Output::Summary {
        let apps = by_app(answer).into_iter().map(|(app, targets)| {
            let clusters: Vec<_> = targets.into_iter().map(|target| cluster(target, output)).collect();
            let mut value = Map::new();
            insert(&mut value, "name", app.map(Value::from));
            value.insert("clusters".to_owned(), clusters.into());
            Value::Object(value)
        });
        let apps: Vec<_> = apps.collect();
        insert(&mut shape, "apps", (!apps.is_empty()).then(|| apps.into()));
    }
    Value::Object(shape)
}

/// Names alone: `?apps`, `?clusters`, `?resources`.
pub fn names(answer: &StatusAnswer, names: Names) -> Value {
    let mut shape = named(answer);
    let apps = by_app(answer);
    let list: Vec<Value> = match names {
        Names::Apps => apps.keys().flatten().map(|app| (*app).into()).collect(),
        Names::Targets => {
            let clusters = |targets: &[&TargetStatus]| targets.iter().map(|it| place(it)).collect::<Vec<_>>();
            apps.iter().map(|(app, targets)| json!({ "app": app, "clusters": clusters(targets) })).collect()
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
    let mut value = place(target);
    value["app"] = app.into();
    value["resources"] = kinds.into();
    value
}

/// The deployment; of a question about a cluster its name, as EMCO writes it.
fn named(answer: &StatusAnswer) -> Map<String, Value> {
    let clusters: BTreeSet<_> =
        answer.targets.iter().map(|target| format!("{}+{}", target.key.site, target.key.device)).collect();
    let cluster = clusters.first().filter(|_| clusters.len() == 1).cloned();
    let name = answer.deployment.as_ref().map(ToString::to_string).or(cluster);
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

fn place(target: &TargetStatus) -> Value {
    json!({ "clusterProvider": target.key.site, "cluster": target.key.device })
}

fn cluster(target: &TargetStatus, output: Output) -> Value {
    let mut value = place(target);
    value["connectivity"] = match target.freshness {
        Freshness::Fresh => "Available",
        Freshness::Stale => "Retrying",
        Freshness::Never => "Unknown",
    }
    .into();
    value["message"] = target.message.clone().into();
    if let Some(at) = target.changed_at {
        value["lastChange"] = at.to_string().into();
    }
    let reported = target.report.as_ref().map_or(&[][..], |report| &report.components);
    let resources = target.components.iter().map(|component| {
        let live = reported.iter().find(|live| live.name == component.name);
        resource_line(component, live.filter(|_| output == Output::Detail))
    });
    value["resources"] = resources.collect();
    value
}

fn resource_line(component: &ComponentLine, live: Option<&ComponentStatus>) -> Value {
    let mut value = Map::new();
    insert(&mut value, "GVK", Some(kind()));
    insert(&mut value, "name", Some(component.name.as_str().into()));
    insert(&mut value, "detail", live.and_then(|live| serde_json::to_value(live).ok()));
    insert(&mut value, "deployedStatus", component.deployed_status.and_then(resource).map(Value::from));
    insert(&mut value, "readyStatus", component.ready_status.and_then(ready).map(Value::from));
    insert(&mut value, "message", Some(component.message.clone().into()));
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
