//! Schemas of the documents that are read or written without a type: capabilities, and deployments.

use muster_contract::DeploymentId;
use muster_contract::constraints::DeviceConstraints;
use muster_contract::desired::Parameter;
use serde_json::{Value, json};

use super::super::capabilities::Properties;
use super::{DEVICE_ID, Schemas};

/// Names of members that other parties add, each an object.
const EXTENSION: &str = "^x-[a-z][a-z0-9-]*-extensions$";
/// A version (SemVer) with `_` for the `+` before the build.
const REVISION: &str = "^[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?(_[0-9A-Za-z.-]+)?$";

/// The schema of a device's capabilities.
pub(super) fn capabilities(schemas: &mut Schemas) -> Value {
    let list_of = |kind: &str| json!({ "type": "array", "items": { "type": kind } });
    let label = json!({ "anyOf": [
        { "type": ["string", "number", "boolean"] }, list_of("string"), list_of("number"),
    ] });
    json!({
        "type": "object",
        "description": "The capabilities of a device",
        "required": ["properties"],
        "properties": {
            "properties": schemas.request::<Properties>(),
            "labels": { "type": "object", "additionalProperties": label },
        },
        "patternProperties": { EXTENSION: { "type": "object" } },
        "additionalProperties": false,
    })
}

/// The schema of a deployment.
pub(super) fn deployment(schemas: &mut Schemas) -> Value {
    let profile = json!({
        "type": "object", "required": ["type", "components"], "additionalProperties": false,
        "properties": {
            "type": { "enum": ["helm", "compose"] },
            "components": { "type": "array", "minItems": 1, "items": component() },
            "deviceConstraints": schemas.answer::<DeviceConstraints>(),
        },
    });
    let spec = json!({
        "type": "object", "required": ["applicationId", "deploymentProfile"], "additionalProperties": false,
        "properties": {
            "applicationId": { "type": "string", "pattern": "^[-a-z0-9]{1,200}$" },
            "deploymentProfile": profile,
            "parameters": { "type": "object", "additionalProperties": schemas.answer::<Parameter>() },
        },
    });
    let metadata = json!({
        "type": "object", "required": ["name", "namespace", "deviceId"],
        "properties": {
            "name": { "type": "string" },
            "namespace": { "type": "string" },
            "deviceId": { "type": "string", "pattern": DEVICE_ID },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } },
        },
    });
    json!({
        "type": "object", "description": "A deployment: JSON, which is YAML 1.2 as well",
        "required": ["id", "metadata", "spec"],
        "properties": { "id": schemas.answer::<DeploymentId>(), "metadata": metadata, "spec": spec },
    })
}

fn component() -> Value {
    json!({
        "type": "object", "required": ["name", "properties"], "additionalProperties": false,
        "patternProperties": { EXTENSION: { "type": "object" } },
        "properties": {
            "name": { "type": "string" },
            "properties": {
                "type": "object", "required": ["repository", "revision"], "additionalProperties": false,
                "properties": {
                    "repository": { "type": "string", "pattern": "^oci://.+" },
                    "revision": { "type": "string", "pattern": REVISION },
                    "wait": { "type": "boolean" },
                    "timeout": { "type": "string", "pattern": "^[0-9]+m[0-9]+s$" },
                },
            },
        },
    })
}
