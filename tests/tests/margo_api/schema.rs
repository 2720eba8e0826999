//! Checks answers against Margo's schemas: names, types and patterns of the fields, written anew instead of copied.

use serde_json::{Value, json};

const DIGEST: &str = "^sha256:[0-9a-f]{64}$";

fn check(schema: &Value, value: &Value) {
    jsonschema::validate(schema, value).unwrap_or_else(|error| panic!("{error}: {value}"));
}

/// A state manifest.
pub(crate) fn manifest(value: &Value) {
    let reference = |url: &str| {
        json!({
            "type": "object", "required": ["digest", "url"],
            "properties": {
                "digest": {"pattern": DIGEST}, "url": {"pattern": url}, "sizeBytes": {"type": "integer", "minimum": 0},
                "mediaType": {"const": "application/vnd.margo.bundle.v1+tar+gzip"},
            },
        })
    };
    let bundle = reference("^/api/v1/bundles/sha256:[0-9a-f]{64}$");
    let deployment = reference("^/api/v1/deployments/[^/]+/sha256:[0-9a-f]{64}$");
    check(
        &json!({
            "type": "object", "required": ["manifestVersion", "bundle", "deployments"],
            "properties": {
                "manifestVersion": {"type": "integer", "minimum": 1},
                "bundle": {"anyOf": [{"type": "null"}, {"allOf": [bundle, {"required": ["mediaType"]}]}]},
                "deployments": {"type": "array", "items": {"allOf": [deployment, {"required": ["deploymentId"]}]}},
            },
        }),
        value,
    );
    for entry in value["deployments"].as_array().unwrap() {
        let url = format!("/api/v1/deployments/{}/{}", text(&entry["deploymentId"]), text(&entry["digest"]));
        assert_eq!(text(&entry["url"]), url);
    }
}

/// An application deployment.
pub(crate) fn deployment(value: &Value) {
    let component = json!({
        "type": "object", "required": ["name", "properties"], "additionalProperties": false,
        "patternProperties": {"^x-[a-z][a-z0-9-]*-extensions$": {"type": "object"}},
        "properties": {
            "name": {"type": "string"},
            "properties": {
                "type": "object", "required": ["repository", "revision"],
                "properties": {
                    "repository": {"pattern": "^oci://.+"}, "revision": {"pattern": r"^\d+\.\d+\.\d+"},
                    "wait": {"type": "boolean"}, "timeout": {"pattern": r"^\d+m\d+s$"},
                },
            },
        },
    });
    let profile = json!({
        "type": "object", "required": ["type", "components"], "additionalProperties": false,
        "properties": {
            "type": {"enum": ["helm", "compose"]}, "components": {"type": "array", "items": component},
            "deviceConstraints": {"type": "object"},
        },
    });
    check(
        &json!({
            "type": "object", "required": ["id", "metadata", "spec"],
            "properties": {
                "id": {"type": "string"},
                "metadata": {
                    "type": "object", "required": ["name", "namespace", "deviceId"],
                    "properties": {"deviceId": {"pattern": r"^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*(/\*)?$"}},
                },
                "spec": {
                    "type": "object", "required": ["applicationId", "deploymentProfile"], "additionalProperties": false,
                    "properties": {
                        "applicationId": {"pattern": "^[-a-z0-9]{1,200}$"}, "deploymentProfile": profile,
                        "parameters": {"type": "object"},
                    },
                },
            },
        }),
        value,
    );
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
