//! Reads the capabilities that a device reports, checks them against Margo's schema, and makes a report of the contract.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::limits::REPORT_BYTES_MAX;
use muster_contract::report::CapabilitiesReport;
use muster_contract::version::{ApiVersion, kind};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::application::is_extension;
use super::problems;
use super::record::{Numbered, agent_version};
use crate::problem::Problem;

/// Longest document in bytes: its report has more fields, and must stay within the contract's limit.
const DOCUMENT_BYTES_MAX: usize = REPORT_BYTES_MAX / 2;
/// Longest `deviceId` in bytes.
pub(super) const DEVICE_ID_BYTES_MAX: usize = 255;

/// Margo's DeviceCapabilitiesManifest.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CapabilitiesManifest {
    /// The device's properties.
    pub properties: Map<String, Value>,
    /// Its labels; lists as JSON.
    pub labels: BTreeMap<String, String>,
}

/// The properties that have a type; others are accepted and kept.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeviceProperties")]
#[allow(dead_code, reason = "the types are the check")]
pub(super) struct Properties {
    id: String,
    vendor: String,
    model_number: String,
    serial_number: String,
    #[serde(default)]
    cpus: Vec<Cpu>,
    #[serde(default)]
    memory: Option<String>,
    #[serde(default)]
    storage: Option<String>,
    #[serde(default)]
    peripherals: Vec<Peripheral>,
    #[serde(default)]
    interfaces: Vec<Interface>,
    #[serde(default)]
    otel_collector: Option<bool>,
    #[serde(default)]
    #[schemars(length(min = 1))]
    supported_runtimes: Option<Vec<Runtime>>,
    #[serde(default)]
    #[schemars(length(min = 1))]
    supported_deployment_types: Option<Vec<DeploymentType>>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "the types are the check")]
struct Cpu {
    cores: f64,
    #[serde(default)]
    architecture: Option<Architecture>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "the types are the check")]
struct Peripheral {
    #[serde(rename = "type")]
    kind: PeripheralKind,
    #[serde(default)]
    manufacturer: Option<String>,
    #[serde(default)]
    model: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "the types are the check")]
struct Interface {
    #[serde(rename = "type")]
    kind: InterfaceKind,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Architecture {
    Amd64,
    Arm64,
    Arm,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PeripheralKind {
    Gpu,
    Display,
    Camera,
    Microphone,
    Speaker,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum InterfaceKind {
    Ethernet,
    Wifi,
    Cellular,
    Bluetooth,
    Usb,
    Canbus,
    Rs232,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Runtime {
    Oci,
    Custom,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum DeploymentType {
    Helm,
    Compose,
    Custom,
}

/// Whether a text is a `deviceId`: parts of letters, digits and any of `._~-`, separated by slashes.
pub(crate) fn is_device_id(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
        !part.is_empty() && part.bytes().all(is_unreserved)
    };
    text.len() <= DEVICE_ID_BYTES_MAX && text.split('/').all(is_part)
}

impl CapabilitiesManifest {
    /// Reads a body for the device of an address.
    ///
    /// # Errors
    /// 400 if it is no JSON object, 422 if a field breaks a rule.
    pub(crate) fn read(bytes: &[u8], device_id: &str) -> Result<Self, Problem> {
        let mut members: Map<String, Value> = super::status::parse(bytes)?;
        let properties = members.remove("properties").unwrap_or_default();
        let labels = members.remove("labels").unwrap_or_else(|| Value::Object(Map::new()));
        if let Some((key, _)) = members.iter().find(|(key, value)| !is_extension(key, value)) {
            return Err(problems::semantic_error(key.as_str(), "there is no such field"));
        }
        let Value::Object(properties) = properties else {
            return Err(problems::semantic_error("properties", "must be an object"));
        };
        check(&properties, device_id)?;
        if bytes.len() > DOCUMENT_BYTES_MAX {
            let rule = format!("the document may have at most {DOCUMENT_BYTES_MAX} bytes");
            return Err(problems::semantic_error("properties", rule));
        }
        Ok(Self { properties, labels: labels_of(labels)? })
    }

    /// The digest by which a repeated report is recognised.
    pub(crate) fn content(&self) -> Digest {
        Digest::of_value(&(&self.properties, &self.labels))
    }

    /// The report under its number.
    pub(crate) fn report(&self, numbered: &Numbered) -> CapabilitiesReport {
        let Numbered { open, epoch, head } = numbered;
        CapabilitiesReport {
            api_version: ApiVersion::V1,
            kind: kind::CapabilitiesReport::CapabilitiesReport,
            epoch: *epoch,
            seq: open.seq,
            head: *head,
            observed_at: open.at,
            properties: self.properties.clone(),
            labels: self.labels.clone(),
            agent_version: open.agent_version.clone().unwrap_or_else(agent_version),
            coalesced: open.coalesced.clone(),
        }
    }
}

fn check(properties: &Map<String, Value>, device_id: &str) -> Result<(), Problem> {
    let typed: Result<Properties, _> = serde_path_to_error::deserialize(Value::Object(properties.clone()));
    let typed = typed.map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => "properties".to_owned(),
            path => format!("properties.{path}"),
        };
        problems::semantic_error(path, error.inner().to_string())
    })?;
    if typed.id != device_id {
        let rule = format!("is '{:.80}', the address names '{device_id}'", typed.id);
        return Err(problems::semantic_error("properties.id", rule));
    }
    let refuse_empty = |is_empty: bool, name: &str| {
        if is_empty {
            Err(problems::semantic_error(format!("properties.{name}"), "must have one item or more"))
        } else {
            Ok(())
        }
    };
    refuse_empty(typed.supported_runtimes.is_some_and(|all| all.is_empty()), "supportedRuntimes")?;
    refuse_empty(
        typed.supported_deployment_types.is_some_and(|all| all.is_empty()),
        "supportedDeploymentTypes",
    )
}

fn labels_of(labels: Value) -> Result<BTreeMap<String, String>, Problem> {
    let Value::Object(labels) = labels else {
        return Err(problems::semantic_error("labels", "must be an object"));
    };
    let read = |(key, value): (String, Value)| {
        let text = match &value {
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Array(items)
                if items.iter().all(Value::is_string) || items.iter().all(Value::is_number) =>
            {
                value.to_string()
            }
            _ => {
                let rule = "must be a text, number, truth value, or a list of texts or of numbers";
                return Err(problems::semantic_error(format!("labels.{key:.80}"), rule));
            }
        };
        Ok((key, text))
    };
    labels.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> Value {
        json!({
            "properties": {
                "id": "press-4", "vendor": "EdgeBox", "modelNumber": "EB-40", "serialNumber": "SN0091",
                "cpus": [{"cores": 8, "architecture": "amd64"}], "memory": "12Gi", "storage": "200Gi",
                "peripherals": [{"type": "gpu", "model": "a"}], "interfaces": [{"type": "ethernet"}],
                "otelCollector": true, "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["helm"],
            },
            "labels": {"acme.example/line": "press", "n": 4, "on": true, "many": ["a", "b"]},
            "x-acme-extensions": {"anything": [1]},
        })
    }

    #[test]
    fn a_whole_document_becomes_properties_and_labels() {
        let read = CapabilitiesManifest::read(manifest().to_string().as_bytes(), "press-4").unwrap();
        assert_eq!(read.properties["memory"], "12Gi");
        assert_eq!(read.labels["n"], "4");
        assert_eq!(read.labels["many"], r#"["a","b"]"#);
    }

    #[test]
    fn a_broken_rule_is_422_and_names_the_field() {
        let refused = |pointer: &str, key: &str, value: Value| {
            let mut manifest = manifest();
            manifest.pointer_mut(pointer).unwrap()[key] = value;
            let problem = CapabilitiesManifest::read(manifest.to_string().as_bytes(), "press-4").unwrap_err();
            assert_eq!(problem.status, 422, "{problem:?}");
            problem.errors[0].field.clone()
        };
        assert_eq!(refused("", "more", json!({})), "more");
        assert_eq!(refused("", "x-Acme-extensions", json!({})), "x-Acme-extensions");
        assert_eq!(refused("", "x-acme-extensions", json!(1)), "x-acme-extensions");
        assert_eq!(refused("", "properties", json!(1)), "properties");
        assert_eq!(refused("/properties", "id", json!("other")), "properties.id");
        assert_eq!(refused("/properties", "vendor", json!(1)), "properties.vendor");
        assert_eq!(refused("/properties", "supportedRuntimes", json!([])), "properties.supportedRuntimes");
        assert!(
            refused("/properties/cpus/0", "architecture", json!("x86")).starts_with("properties.cpus[0]")
        );
        assert!(
            refused("/properties/interfaces/0", "type", json!("ipoac")).starts_with("properties.interfaces")
        );
        assert_eq!(refused("", "labels", json!([])), "labels");
        assert_eq!(refused("/labels", "many", json!(["a", 1])), "labels.many");
        assert_eq!(CapabilitiesManifest::read(b"{", "press-4").unwrap_err().status, 400);
    }

    #[test]
    fn device_ids_are_parts_of_unreserved_characters() {
        for good in ["a", "A.b_c~d-1", "gateway-1/child-2", "a/b/c"] {
            assert!(is_device_id(good), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a//b", "a b", "a%2f", "ü", "a/*", &"a".repeat(256)] {
            assert!(!is_device_id(bad), "{bad}");
        }
    }
}
