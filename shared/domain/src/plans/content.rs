//! The content of an instance on a node: the deployment that the publisher is asked to apply. It depends on the plan, on the
//! coordinates and on the instance's name, and not on the revision's id: a revision with the same coordinates restarts nothing.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::desired::{Component, Profile, ProfileType, RESTART_ANNOTATION, STOPPED_ANNOTATION};
use muster_contract::plans::{
    ApplicationPort, Coordinates, Instance, Placement, PlanApplication, PlanSpec, Resources,
};
use muster_contract::profile::Workload;
use muster_contract::{ComponentName, Namespace};
use serde_json::{Map, Value, json};

/// The coordinate that is a whole service of the type `compose`.
const IMAGE: &str = "image";
const COMMAND: &str = "command";

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

/// The type of what the plan runs: its own word, or what all coordinates name.
fn profile_type(spec: &PlanSpec, coordinates: &BTreeMap<ComponentName, Coordinates>) -> ProfileType {
    let all_name = |key: &str| !coordinates.is_empty() && coordinates.values().all(|of| of.contains_key(key));
    match spec.profile {
        Some(profile) => profile,
        None if all_name(IMAGE) => ProfileType::Compose,
        None if all_name(COMMAND) => ProfileType::Process,
        None => ProfileType::Simulated,
    }
}

/// The profile of a plan's instances with these coordinates.
///
/// # Errors
/// The payload and the rule that its coordinates break.
pub fn content(
    spec: &PlanSpec,
    coordinates: &BTreeMap<ComponentName, Coordinates>,
) -> Result<Profile, ContentError> {
    let known = |name: &ComponentName| spec.applications.iter().any(|app| app.payload_name == *name);
    if let Some(name) = coordinates.keys().find(|name| !known(name)) {
        return Err(ContentError::Unknown(name.clone()));
    }
    let profile = profile_type(spec, coordinates);
    let component = |application: &PlanApplication| {
        let name = &application.payload_name;
        let of = coordinates.get(name).ok_or_else(|| ContentError::Missing(name.clone()))?;
        let component = Component { name: name.clone(), properties: properties(profile, application, of) };
        match Workload::of(profile, &component) {
            Ok(_) => Ok(component),
            Err(violation) => Err(ContentError::Rule {
                payload: name.clone(),
                profile: profile.as_str(),
                rule: violation.to_string(),
            }),
        }
    };
    let components = spec.applications.iter().map(component);
    let components = components.collect::<Result<Vec<_>, _>>()?;
    Ok(Profile { profile_type: profile, components, device_constraints: None })
}

/// The properties of a component: coordinates that the type knows, and others as extensions.
fn properties(profile: ProfileType, application: &PlanApplication, of: &Coordinates) -> Map<String, Value> {
    let name = &application.payload_name;
    let mut properties = Map::new();
    for (key, value) in of {
        properties.insert(key.clone(), value.clone());
        let component = Component { name: name.clone(), properties: properties.clone() };
        if Workload::unread_property(profile, &component).is_some() {
            properties.remove(key);
            let extension: String =
                key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
            properties.insert(format!("x-{extension}"), value.clone());
        }
    }
    let image = of.get(IMAGE).filter(|_| profile == ProfileType::Compose);
    if let Some(image) = image
        .filter(|_| !["composeFile", "packageLocation", "repository"].iter().any(|key| of.contains_key(*key)))
    {
        properties.insert("composeFile".to_owned(), Value::String(compose_file(application, image)));
    }
    properties
}

/// The Compose file of an image, with the ports, volumes and limits of its application. JSON is YAML. The engine does not bound
/// the capacity of a volume: the scheduler accounts for it.
fn compose_file(application: &PlanApplication, image: &Value) -> String {
    let mut service = json!({ "image": image });
    let Resources { cores, memory } = application.resources;
    if cores > 0 {
        service["cpus"] = json!(cores);
    }
    if memory > 0 {
        service["mem_limit"] = json!(format!("{memory}g"));
    }
    let port = |port: &ApplicationPort| format!("{0}:{0}/{1}", port.port, port.protocol.to_ascii_lowercase());
    let ports: Vec<_> = application.ports.iter().map(port).collect();
    if !ports.is_empty() {
        service["ports"] = json!(ports);
    }
    let mut volumes = Map::new();
    let mut mounts = Vec::new();
    for (nth, volume) in application.persistent_volumes.iter().enumerate() {
        let name = format!("volume-{nth}");
        mounts.push(format!("{name}:{}", volume.mount_path));
        volumes.insert(name, json!({}));
    }
    let mut file = json!({});
    if !mounts.is_empty() {
        service["volumes"] = json!(mounts);
        file["volumes"] = Value::Object(volumes);
    }
    file["services"] = json!({ application.payload_name.as_str(): service });
    file.to_string()
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
pub(super) fn application_id(plan: &muster_contract::PlanName) -> String {
    format!("{APPLICATION_PREFIX}{plan}")
}

/// The plan of a deployment with this application id, if it is of a plan.
pub fn plan_of(application_id: &str) -> Option<muster_contract::PlanName> {
    application_id.strip_prefix(APPLICATION_PREFIX)?.parse().ok()
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
        content(&spec(profile), &serde_json::from_value(json!({ "main": coordinates })).unwrap())
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
    fn an_image_has_the_ports_volumes_and_limits_of_its_application() {
        let mut spec = spec(None);
        spec.applications[0] = serde_json::from_value(json!({
            "payloadName": "main", "resources": { "cores": 2, "memory": 4 },
            "ports": [{ "protocol": "TCP", "port": 8080 }],
            "persistentVolumes": [{ "storageClass": "ssd", "capacity": 10, "mountPath": "/data" }],
        }))
        .unwrap();
        let coordinates = serde_json::from_value(json!({ "main": { "image": "nginx:1" } })).unwrap();
        let profile = content(&spec, &coordinates).unwrap();
        let text = profile.components[0].properties["composeFile"].as_str().unwrap();
        let service = json!({
            "image": "nginx:1", "cpus": 2, "mem_limit": "4g", "ports": ["8080:8080/tcp"], "volumes": ["volume-0:/data"],
        });
        let expected = json!({ "services": { "main": service }, "volumes": { "volume-0": {} } });
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), expected);
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
            content(&spec(None), &serde_json::from_value(json!({ "main": {}, "other": {} })).unwrap());
        assert!(matches!(unknown, Err(ContentError::Unknown(name)) if name.as_str() == "other"));
        assert!(matches!(content(&spec(None), &BTreeMap::new()), Err(ContentError::Missing(_))));
    }
}
