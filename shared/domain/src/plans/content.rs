//! The content of an instance on a node: the deployment that the publisher is asked to apply. It depends on the plan, the
//! coordinates, the runtimes of the node and the instance's name, and not on the revision's id: a revision with the same coordinates
//! restarts nothing.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::decode::Violation;
use muster_contract::desired::{
    Component, Profile, ProfileType, RESTART_ANNOTATION, RemovalPhase, STOPPED_ANNOTATION,
};
use muster_contract::plans::{Coordinates, Instance, Placement, PlanApplication, PlanSpec};
use muster_contract::profile::Workload;
use muster_contract::{ComponentName, Namespace};
use serde_json::{Map, Value, json};

use super::image::{compose_file, manifests};

/// The coordinate that is a whole service, of the type `compose` or `kubernetes`.
const IMAGE: &str = "image";
const COMMAND: &str = "command";
const COMPOSE_FILE: &str = "composeFile";
const MANIFESTS: &str = "manifests";
/// The coordinate that makes a payload a removal job.
const RUNS_AT: &str = "runsAt";

/// Why coordinates are no content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// A payload has no coordinates.
    #[error("payload {0} of the plan is missing")]
    Missing(ComponentName),
    /// The plan has no such payload.
    #[error("the plan has no payload {0}")]
    Unknown(ComponentName),
    /// The coordinates do not fit the type of the plan.
    #[error("payload {payload}, as {profile}: {rule}")]
    Rule {
        /// The payload.
        payload: ComponentName,
        /// The type.
        profile: &'static str,
        /// The rule.
        rule: String,
    },
}

/// The type of what the plan runs on a node whose agent runs these types: the plan's own, or the first of them that the coordinates
/// fit. Without such a type it follows from the coordinates, and the device reports that it cannot run it.
fn profile_type(
    spec: &PlanSpec,
    coordinates: &BTreeMap<ComponentName, Coordinates>,
    runtimes: &[ProfileType],
) -> ProfileType {
    let first = runtimes.iter().copied().find(|runtime| fits(spec, coordinates, *runtime));
    let all_name = |key: &str| !coordinates.is_empty() && coordinates.values().all(|of| of.contains_key(key));
    match spec.profile.or(first) {
        Some(profile) => profile,
        None if all_name(IMAGE) => ProfileType::Compose,
        None if all_name(COMMAND) => ProfileType::Process,
        None => ProfileType::Simulated,
    }
}

/// Whether a plan with these coordinates can run as a type: they name what the type runs, and break none of its rules.
pub(super) fn fits(
    spec: &PlanSpec,
    coordinates: &BTreeMap<ComponentName, Coordinates>,
    runtime: ProfileType,
) -> bool {
    names(spec, coordinates, runtime) && profile(spec, coordinates, runtime).is_ok()
}

/// Whether the plan is of a type, or each payload has a coordinate that the type runs.
fn names(spec: &PlanSpec, coordinates: &BTreeMap<ComponentName, Coordinates>, runtime: ProfileType) -> bool {
    let keys: &[&str] = match runtime {
        _ if spec.profile.is_some() => return spec.profile == Some(runtime),
        ProfileType::Compose => &[IMAGE, COMPOSE_FILE],
        ProfileType::Process => &[COMMAND],
        ProfileType::Kubernetes => &[IMAGE, MANIFESTS],
        // A chart has no coordinate of its own: the plan must say that it is one.
        ProfileType::Helm => return false,
        ProfileType::Simulated => return true,
    };
    let has_key = |of: &Coordinates| keys.iter().any(|key| of.contains_key(*key));
    !coordinates.is_empty() && coordinates.values().all(has_key)
}

/// The profile of a plan's instances with these coordinates, on a node whose agent runs these types (none: not known).
///
/// # Errors
/// The payload and the rule that its coordinates break.
pub fn content(
    spec: &PlanSpec,
    coordinates: &BTreeMap<ComponentName, Coordinates>,
    runtimes: &[ProfileType],
) -> Result<Profile, ContentError> {
    profile(spec, coordinates, profile_type(spec, coordinates, runtimes))
}

/// The profile of a type.
fn profile(
    spec: &PlanSpec,
    coordinates: &BTreeMap<ComponentName, Coordinates>,
    profile: ProfileType,
) -> Result<Profile, ContentError> {
    let known = |name: &ComponentName| spec.applications.iter().any(|app| app.payload_name == *name);
    if let Some(name) = coordinates.keys().find(|name| !known(name)) {
        return Err(ContentError::Unknown(name.clone()));
    }
    let component = |application: &PlanApplication| {
        let name = &application.payload_name;
        let of = coordinates.get(name).ok_or_else(|| ContentError::Missing(name.clone()))?;
        let broken =
            |rule: String| ContentError::Rule { payload: name.clone(), profile: profile.as_str(), rule };
        let runs_at = of.get(RUNS_AT).map(RemovalPhase::read).transpose();
        let runs_at = runs_at.map_err(|rule| broken(format!("{RUNS_AT}: {rule}")))?;
        let properties = properties(profile, application, of);
        let mut component = Component { name: name.clone(), properties, runs_at };
        let wait = application.after.iter().map(|dependency| dependency.wait).max();
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            component.properties.insert("waitBefore".to_owned(), json!(format!("{}ms", wait.as_millis())));
        }
        match Workload::of(profile, &component) {
            Ok(_) => Ok(component),
            Err(violation) => Err(broken(violation.to_string())),
        }
    };
    check_after(spec, coordinates, profile)?;
    let components = spec.start_order().into_iter().map(component);
    let components = components.collect::<Result<Vec<_>, _>>()?;
    let content = Profile { profile_type: profile, components, device_constraints: None };
    if let Some(job) = content.components.iter().find(|component| component.runs_at.is_some()) {
        let (payload, profile) = (job.name.clone(), profile.as_str());
        let broken =
            |violation: Violation| ContentError::Rule { payload, profile, rule: violation.to_string() };
        content.check_removal_jobs().map_err(broken)?;
    }
    Ok(content)
}

/// Checks that no payload starts after a removal job, which does not run before the removal.
fn check_after(
    spec: &PlanSpec,
    coordinates: &BTreeMap<ComponentName, Coordinates>,
    profile: ProfileType,
) -> Result<(), ContentError> {
    let is_job = |name: &ComponentName| coordinates.get(name).is_some_and(|of| of.contains_key(RUNS_AT));
    let started = spec.applications.iter().filter(|application| !is_job(&application.payload_name));
    for application in started {
        if let Some(job) = application.after.iter().find(|dependency| is_job(&dependency.app)) {
            let rule = format!(
                "after: {} is a removal job, which runs when the instance is removed: name another application",
                job.app
            );
            let payload = application.payload_name.clone();
            return Err(ContentError::Rule { payload, profile: profile.as_str(), rule });
        }
    }
    Ok(())
}

/// The properties of a component: coordinates that the type knows, and others as extensions.
fn properties(profile: ProfileType, application: &PlanApplication, of: &Coordinates) -> Map<String, Value> {
    let name = &application.payload_name;
    let mut properties = Map::new();
    for (key, value) in of.iter().filter(|(key, _)| *key != RUNS_AT) {
        properties.insert(key.clone(), value.clone());
        let component = Component::new(name.clone(), properties.clone());
        if Workload::unread_property(profile, &component).is_some() {
            properties.remove(key);
            let extension: String =
                key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
            properties.insert(format!("x-{extension}"), value.clone());
        }
    }
    let has = |key: &str| of.contains_key(key);
    let has_files = [COMPOSE_FILE, MANIFESTS, "packageLocation", "repository"].iter().any(|key| has(key));
    match (of.get(IMAGE).filter(|_| !has_files), profile) {
        (Some(image), ProfileType::Compose) => {
            properties.insert(COMPOSE_FILE.to_owned(), Value::String(compose_file(application, image, of)));
        }
        (Some(image), ProfileType::Kubernetes) => {
            properties.insert(MANIFESTS.to_owned(), Value::String(manifests(application, image, of)));
        }
        _ => {}
    }
    properties
}

/// Digest of the order for a node: the digest of the profile, unless the instance is stopped or was restarted.
pub fn order(profile: Digest, is_stopped: bool, restarts: u64) -> Digest {
    if is_stopped || restarts > 0 { Digest::of_value(&(profile, is_stopped, restarts)) } else { profile }
}

/// Whether a placement of an instance shall be stopped. The new node of a RELOCATE runs the instance.
pub(super) const fn is_stopped(instance: &Instance, placement: &Placement) -> bool {
    instance.stopped && placement.active
}

/// The Margo document of an instance with a profile on a node.
pub fn margo_document(
    instance: &Instance,
    placement: &Placement,
    namespace: &str,
    profile: &Profile,
) -> String {
    let mut annotations = BTreeMap::new();
    if is_stopped(instance, placement) {
        annotations.insert(STOPPED_ANNOTATION, "true".to_owned());
    }
    if instance.restarts > 0 {
        annotations.insert(RESTART_ANNOTATION, instance.restarts.to_string());
    }
    let mut metadata = json!({ "name": instance.display_name, "annotations": annotations });
    // A plan's namespace is any text; only one that is a name is one for a runtime.
    if let Ok(namespace) = namespace.parse::<Namespace>() {
        metadata["namespace"] = json!(namespace);
    }
    let document = json!({
        "id": instance.name,
        "metadata": metadata,
        "spec": { "applicationId": application_id(&instance.plan), "deploymentProfile": profile },
    });
    document.to_string()
}

/// The application id of a plan's deployments.
pub fn application_id(plan: &muster_contract::PlanName) -> String {
    format!("{APPLICATION_PREFIX}{plan}")
}

/// The plan of a deployment with this application id, if it is of a plan.
pub fn plan_of(application_id: &str) -> Option<muster_contract::PlanName> {
    application_id.strip_prefix(APPLICATION_PREFIX)?.parse().ok()
}

/// Whether an application id is reserved for deployments of plans.
pub fn is_of_plan(application_id: &str) -> bool {
    application_id.starts_with(APPLICATION_PREFIX)
}

/// The application ids of plans begin with this.
const APPLICATION_PREFIX: &str = "muster-plan-";

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(profile: Option<&str>) -> PlanSpec {
        serde_json::from_value(json!({
            "name": "web", "namespace": "demo", "serviceName": "web", "profile": profile,
            "applications": [{ "payloadName": "main", "resources": { "cores": 1, "memory": 1 } }],
        }))
        .unwrap()
    }

    #[allow(clippy::needless_pass_by_value, reason = "tests write JSON in place")]
    fn of(profile: Option<&str>, coordinates: Value) -> Result<Profile, ContentError> {
        content(&spec(profile), &serde_json::from_value(json!({ "main": coordinates })).unwrap(), &[])
    }

    #[test]
    fn the_type_follows_from_the_coordinates_unless_the_plan_says_it() {
        let profile = |spec, coordinates| of(spec, coordinates).unwrap().profile_type;
        assert_eq!(profile(None, json!({ "image": "nginx:1" })), ProfileType::Compose);
        assert_eq!(profile(None, json!({ "command": "run" })), ProfileType::Process);
        assert_eq!(profile(None, json!({})), ProfileType::Simulated);
        assert_eq!(profile(Some("simulated"), json!({ "image": "nginx:1" })), ProfileType::Simulated);
    }

    #[test]
    fn each_node_runs_what_its_agent_can_and_the_coordinates_fit() {
        use ProfileType::{Compose, Helm, Kubernetes, Process, Simulated};
        let coordinates =
            serde_json::from_value(json!({ "main": { "image": "nginx:1", "command": "serve" } })).unwrap();
        let on = |spec: &PlanSpec, runtimes: &[ProfileType]| content(spec, &coordinates, runtimes).unwrap();
        for (runtimes, runs) in [
            (&[Process, Compose][..], Process),
            (&[Compose], Compose),
            (&[Helm, Kubernetes], Kubernetes),
            (&[Simulated], Simulated),
            (&[Helm], Compose),
            (&[], Compose),
        ] {
            assert_eq!(on(&spec(None), runtimes).profile_type, runs, "{runtimes:?}");
        }
        assert_eq!(on(&spec(Some("compose")), &[Process]).profile_type, Compose, "the plan's own word");
        let broken = serde_json::from_value(json!({ "main": { "image": "nginx:1", "command": 5 } })).unwrap();
        let runs = content(&spec(None), &broken, &[Process, Compose]).unwrap().profile_type;
        assert_eq!(runs, Compose, "what breaks a rule of a type does not fit it");
        let cluster = on(&spec(None), &[Kubernetes]);
        assert!(cluster.components[0].properties["manifests"].as_str().unwrap().contains("Deployment"));
    }

    #[test]
    fn components_are_in_the_order_in_which_the_plan_starts_them() {
        let mut spec = spec(Some("simulated"));
        spec.applications[0].after =
            vec![serde_json::from_value(json!({ "app": "db", "wait": "30s" })).unwrap()];
        let db = PlanApplication {
            payload_name: "db".parse().unwrap(),
            after: Vec::new(),
            ..spec.applications[0].clone()
        };
        spec.applications.push(db);
        let coordinates = serde_json::from_value(json!({ "main": {}, "db": {} })).unwrap();
        let components = content(&spec, &coordinates, &[]).unwrap().components;
        let names: Vec<_> = components.iter().map(|component| component.name.as_str()).collect();
        assert_eq!(names, ["db", "main"]);
        let waits = |at: usize| components[at].properties.get("waitBefore");
        assert_eq!((waits(0), waits(1)), (None, Some(&json!("30000ms"))));
    }

    #[test]
    fn a_payload_may_be_a_removal_job_beside_others() {
        let mut spec = spec(None);
        let drain =
            PlanApplication { payload_name: "drain".parse().unwrap(), ..spec.applications[0].clone() };
        spec.applications.push(drain);
        let with = |runs_at: &str, of_main: Value| {
            let exit = json!({ "type": "exit" });
            let drain = json!({ "command": "drain", "readiness": exit, "timeout": "1m", "runsAt": runs_at });
            let coordinates = json!({ "main": of_main, "drain": drain });
            content(&spec, &serde_json::from_value(coordinates).unwrap(), &[])
        };
        let components = with("pre-delete", json!({ "command": "serve" })).unwrap().components;
        let phases: Vec<_> = components.iter().map(|component| component.runs_at).collect();
        assert_eq!(phases, [None, Some(RemovalPhase::PreDelete)]);
        assert!(!components[1].properties.contains_key(RUNS_AT));
        let unknown = with("never", json!({ "command": "serve" })).unwrap_err().to_string();
        assert!(unknown.contains("payload drain") && unknown.contains("post-delete"), "{unknown}");
        let mut after_it = spec.clone();
        after_it.applications[0].after = vec![serde_json::from_value(json!({ "app": "drain" })).unwrap()];
        let job = json!({ "command": "drain", "readiness": { "type": "exit" }, "timeout": "1m", "runsAt": "pre-delete" });
        let coordinates = json!({ "main": { "command": "serve" }, "drain": job });
        let refused = content(&after_it, &serde_json::from_value(coordinates).unwrap(), &[]).unwrap_err();
        assert!(refused.to_string().contains("after: drain is a removal job"), "{refused}");
        let exit = json!({ "command": "x", "readiness": { "type": "exit" }, "timeout": "1m", "runsAt": "post-delete" });
        let alone = with("pre-delete", exit).unwrap_err().to_string();
        assert!(alone.contains("removal jobs alone"), "{alone}");
    }

    #[test]
    fn an_unknown_coordinate_is_kept_as_an_extension() {
        let profile = of(Some("simulated"), json!({ "image": "nginx:1", "startDelay": "1s" })).unwrap();
        let properties = &profile.components[0].properties;
        assert_eq!(properties["x-image"], "nginx:1");
        assert_eq!(properties["startDelay"], "1s");
    }

    #[test]
    fn coordinates_that_the_type_cannot_use_are_refused() {
        let refused = of(Some("process"), json!({ "image": "nginx:1" })).unwrap_err().to_string();
        assert!(refused.contains("payload main, as process"), "{refused}");
        let unknown =
            content(&spec(None), &serde_json::from_value(json!({ "main": {}, "other": {} })).unwrap(), &[]);
        assert!(matches!(unknown, Err(ContentError::Unknown(name)) if name.as_str() == "other"));
        assert!(matches!(content(&spec(None), &BTreeMap::new(), &[]), Err(ContentError::Missing(_))));
    }
}
