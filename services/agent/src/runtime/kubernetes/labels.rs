//! The labels by which the units of a device are found in the cluster, and the names of their objects. Pure.

use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::metadata::DeploymentLabels;
use serde_json::Value;

use crate::runtime::{Unit, UnitName};

/// Label with the device: the first digits of its name's digest, because the name may be too long for a label.
pub(super) const DEVICE: &str = "io.muster.device";
/// Label with the deployment.
pub(super) const DEPLOYMENT: &str = "io.muster.deployment";
/// Label with the component.
pub(super) const COMPONENT: &str = "io.muster.component";
/// Label with the first digits of the unit's digest.
pub(super) const DIGEST: &str = "io.muster.digest";

/// Bytes of the device's digest in its label, two digits each.
const DEVICE_BYTES: usize = 8;
/// Bytes of the unit's digest in the names of its objects, two digits each.
const NAME_BYTES: usize = 4;
/// Characters of the component in these names.
const COMPONENT_CHARS_MAX: usize = 40;
/// Characters that Helm allows for the name of a release.
const RELEASE_CHARS_MAX: usize = 53;

const _: () = assert!(COMPONENT_CHARS_MAX + 1 + 2 * NAME_BYTES <= RELEASE_CHARS_MAX);

fn digits(text: &str, bytes: usize) -> String {
    let digest = Digest::of_bytes(text.as_bytes());
    digest.as_bytes().iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// The value of the device's label.
pub(super) fn device(device: &DeviceKey) -> String {
    digits(&device.to_string(), DEVICE_BYTES)
}

/// The labels of a unit: those that its author chose, and ours.
pub(super) fn of_unit(unit: &Unit) -> Vec<(String, String)> {
    let own = [
        (DEVICE, device(&unit.device)),
        (DEPLOYMENT, unit.deployment.to_string()),
        (COMPONENT, unit.component.to_string()),
        (DIGEST, unit.digest_prefix()),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
    unit.labels.clone().into_iter().chain(own).collect()
}

/// Adds the labels that a unit's author chose to objects; an object's own label of the same key stays.
pub(super) fn add(objects: &mut [Value], labels: &DeploymentLabels) {
    for object in objects {
        for (key, value) in labels {
            let present = &mut object["metadata"]["labels"];
            // Anything else is refused by the API server, by name.
            if (present.is_null() || present.is_object()) && present[key].is_null() {
                present[key] = Value::from(value.as_str());
            }
        }
    }
}

/// The name of a unit's release or inventory: unique in the cluster, and readable.
pub(super) fn object_name(device: &DeviceKey, name: &UnitName) -> String {
    let component: String = name.component.as_str().chars().take(COMPONENT_CHARS_MAX).collect();
    let digest = digits(&format!("{device}/{}/{}", name.deployment, name.component), NAME_BYTES);
    format!("{}-{digest}", component.trim_end_matches('-'))
}

/// The selector of all units of a device.
pub(super) fn selector(own: &DeviceKey) -> String {
    format!("{DEVICE}%3D{}", device(own))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_get_the_labels_of_the_author_beside_their_own() {
        let mut objects =
            [json!({"metadata": {"labels": {"line": "own"}}}), json!({"metadata": {"name": "a"}})];
        let labels = [("line".to_owned(), "press".to_owned()), ("team".to_owned(), "b".to_owned())].into();
        add(&mut objects, &labels);
        assert_eq!(objects[0]["metadata"]["labels"], json!({"line": "own", "team": "b"}));
        assert_eq!(objects[1]["metadata"], json!({"name": "a", "labels": {"line": "press", "team": "b"}}));
    }

    #[test]
    fn names_are_short_and_differ_by_device_deployment_and_component() {
        let key = |device: &str| device.parse::<DeviceKey>().unwrap();
        let unit = |deployment: &str, component: &str| UnitName {
            deployment: deployment.parse().unwrap(),
            component: component.parse().unwrap(),
        };
        let long = "a".repeat(39) + "-" + &"b".repeat(23);
        let name = object_name(&key("plant/press"), &unit("line", &long));
        assert!(
            name.len() <= RELEASE_CHARS_MAX && name.starts_with(&"a".repeat(39)) && !name.contains("--"),
            "{name}"
        );
        let names = [
            object_name(&key("plant/press"), &unit("line", "web")),
            object_name(&key("plant/saw"), &unit("line", "web")),
            object_name(&key("plant/press"), &unit("other", "web")),
        ];
        assert!(names[0] != names[1] && names[0] != names[2] && names[0].starts_with("web-"), "{names:?}");
    }
}
