//! A unit as a Compose project: its name, its files, and the file that is run, which is Compose's output for the
//! package's file with the unit's identity as labels on everything in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use muster_contract::canonical::Digest;
use muster_contract::metadata::DeploymentLabels;
use muster_contract::{DeviceKey, Namespace};
use serde_norway::{Mapping, Value};

use super::engine::{DEVICE_LABEL, DIGEST_LABEL, SERVICES_LABEL, UNIT_LABEL, unit_label};
use crate::runtime::{Unit, UnitName};

const FOLDER: &str = "compose";
const DONE: &str = "done";
/// Bytes of the device's digest in a project's name: projects of two devices on one engine have different names.
const DEVICE_DIGITS: usize = 4;

/// The paths of this device's projects.
#[derive(Debug)]
pub(super) struct ProjectPaths {
    root: PathBuf,
    device: String,
}

/// The error of labelling a Compose file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProjectError {
    #[error("cannot parse Compose's output for its file as YAML")]
    Garbled(#[from] serde_norway::Error),
    #[error("its Compose file has no services to run")]
    NoServices,
}

impl ProjectPaths {
    /// The paths below the data directory of a device.
    pub(super) fn new(data_dir: &Path, device: &DeviceKey) -> Self {
        let digest = Digest::of_bytes(device.to_string().as_bytes());
        let device = digest.as_bytes().iter().take(DEVICE_DIGITS).map(|byte| format!("{byte:02x}")).collect();
        Self { root: data_dir.join(FOLDER), device }
    }

    /// The folder of a unit.
    pub(super) fn home(&self, name: &UnitName) -> PathBuf {
        self.root.join(name.deployment.as_str()).join(name.component.as_str())
    }

    /// Stores the ids of a unit's completed jobs. Without them the jobs run again.
    pub(super) fn store_done(&self, name: &UnitName, done: &BTreeSet<String>) {
        let ids: String = done.iter().map(|id| format!("{id}\n")).collect();
        let path = self.home(name).join(DONE);
        if let Err(error) = std::fs::write(&path, ids) {
            tracing::warn!(path = %path.display(), %error, "cannot store which jobs are complete: they would run again");
        }
    }

    /// The ids of a unit's jobs that were complete when it was ready.
    pub(super) fn done(&self, name: &UnitName) -> BTreeSet<String> {
        let noted = std::fs::read_to_string(self.home(name).join(DONE)).unwrap_or_default();
        noted.lines().map(str::to_owned).collect()
    }

    /// The name of the project, which prefixes the names of its containers.
    pub(super) fn project(&self, name: &UnitName, namespace: Option<&Namespace>) -> String {
        // No identifier contains `_`, so two units never share a project, in which each would remove the other's
        // containers as orphans.
        let prefix = namespace.map_or_else(|| "m-".to_owned(), |namespace| format!("{namespace}_"));
        format!("{prefix}{}_{}-{}", name.deployment, name.component, self.device)
    }
}

/// A project's file with the unit's labels on its services, networks and volumes.
///
/// # Errors
/// It is not YAML, or has no services.
pub(super) fn labelled(resolved: &str, unit: &Unit) -> Result<String, ProjectError> {
    let mut file: Mapping = serde_norway::from_str(resolved)?;
    let services = mapping(&mut file, "services").len();
    if services == 0 {
        return Err(ProjectError::NoServices);
    }
    let own = [
        (DEVICE_LABEL, unit.device.to_string()),
        (UNIT_LABEL, unit_label(&unit.name())),
        (DIGEST_LABEL, unit.digest_prefix()),
        (SERVICES_LABEL, services.to_string()),
    ];
    // The network of services that name none.
    mapping(&mut file, "networks").entry("default".into()).or_insert(Value::Null);
    for section in ["services", "networks", "volumes"] {
        for (_, entry) in mapping(&mut file, section).iter_mut() {
            if !is_external(entry) {
                label(entry, &unit.labels, &own);
            }
        }
    }
    Ok(serde_norway::to_string(&file)?)
}

/// A section of the file; created if it is missing.
fn mapping<'a>(file: &'a mut Mapping, section: &str) -> &'a mut Mapping {
    as_mapping(file.entry(section.into()).or_insert(Value::Null))
}

fn as_mapping(value: &mut Value) -> &mut Mapping {
    if !value.is_mapping() {
        *value = Value::Mapping(Mapping::new());
    }
    match value {
        Value::Mapping(mapping) => mapping,
        // It was just made a mapping.
        _ => as_mapping(value),
    }
}

/// Adds labels to an entry, in either notation (`name: value`, or a list of `name=value`). Its own stay before those that the author
/// of the deployment chose; ours replace any other.
fn label(entry: &mut Value, chosen: &DeploymentLabels, ours: &[(&str, String)]) {
    let slot = as_mapping(entry).entry("labels".into()).or_insert(Value::Null);
    if let Value::Sequence(list) = slot {
        let pair = |item: &Value| {
            let text = item.as_str().unwrap_or_default();
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            (Value::from(name), Value::from(value))
        };
        *slot = Value::Mapping(list.iter().map(pair).collect());
    }
    let slot = as_mapping(slot);
    for (name, value) in chosen {
        slot.entry(name.as_str().into()).or_insert_with(|| value.as_str().into());
    }
    for (name, value) in ours {
        slot.insert((*name).into(), value.as_str().into());
    }
}

/// Whether the file only refers to it.
fn is_external(entry: &Value) -> bool {
    entry.get("external").is_some_and(|external| *external != Value::Bool(false))
}

#[cfg(test)]
mod tests {
    use muster_contract::desired::{Component, ProfileType};
    use muster_contract::profile::Workload;

    use super::*;

    fn unit() -> Unit {
        let component = Component::new("web".parse().unwrap(), Default::default());
        Unit {
            device: "plant/press".parse().unwrap(),
            deployment: "line".parse().unwrap(),
            component: component.name.clone(),
            namespace: None,
            labels: [("acme.example/line", "press"), ("a", "chosen")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            digest: Digest::of_bytes(b"x"),
            workload: Workload::of(ProfileType::Compose, &component).unwrap(),
            is_job: false,
            environment: Default::default(),
            values: Default::default(),
        }
    }

    #[test]
    fn everything_that_is_ours_gets_our_labels_and_keeps_its_own() {
        let resolved = "services:\n  web: {image: x, labels: [a=b]}\n  db: {image: y, labels: {c: d}}\n\
                        volumes:\n  data:\n  theirs: {external: true}\nversion: '3.9'\n";
        let file: Value = serde_norway::from_str(&labelled(resolved, &unit()).unwrap()).unwrap();
        assert_eq!(file["services"]["web"]["labels"]["a"], Value::from("b"));
        assert_eq!(file["services"]["db"]["labels"]["c"], Value::from("d"));
        for entry in [&file["services"]["web"], &file["volumes"]["data"], &file["networks"]["default"]] {
            assert_eq!(entry["labels"][DEVICE_LABEL], Value::from("plant/press"), "{entry:?}");
            assert_eq!(entry["labels"]["acme.example/line"], Value::from("press"));
            assert_eq!(entry["labels"][UNIT_LABEL], Value::from("line/web"));
            assert_eq!(entry["labels"][SERVICES_LABEL], Value::from("2"));
        }
        assert_eq!(file["volumes"]["theirs"].get("labels"), None);
        assert!(matches!(labelled("services: {}", &unit()), Err(ProjectError::NoServices)));
        assert!(matches!(labelled("- x", &unit()), Err(ProjectError::Garbled(_))));
    }

    #[test]
    fn projects_of_two_devices_have_two_names() {
        let name = unit().name();
        let project =
            |device: &str| ProjectPaths::new(Path::new("/d"), &device.parse().unwrap()).project(&name, None);
        assert_ne!(project("plant/press"), project("plant/saw"));
        assert!(project("plant/press").starts_with("m-line_web-"), "{}", project("plant/press"));
    }
    #[test]
    fn projects_of_two_units_have_two_names() {
        let paths = ProjectPaths::new(Path::new("/d"), &"plant/press".parse().unwrap());
        let project = |deployment: &str, component: &str| {
            let name =
                UnitName { deployment: deployment.parse().unwrap(), component: component.parse().unwrap() };
            paths.project(&name, None)
        };
        assert_ne!(project("web", "api-cache"), project("web-api", "cache"));
        let namespace = "m-web".parse().unwrap();
        let named = paths.project(&unit().name(), Some(&namespace));
        assert!(named.starts_with("m-web_line_web-"), "{named}");
    }
}
