//! The ResourceGroups of the golden files are such by kpt's CustomResourceDefinition (kpt.dev/v1alpha1), told here in our own
//! words, with the values that its controller gives: what is required is there, and nothing that an API server would drop.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};

fn object(required: &[&str], properties: &Value) -> Value {
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

fn one_of(words: &[&str]) -> Value {
    json!({ "enum": words })
}

/// The fields of the CustomResourceDefinition; annotations are anybody's, so their values only have to be text.
fn schema() -> Validator {
    let text = json!({"type": "string"});
    let list = |items: &Value| json!({"type": "array", "items": items});
    let condition = object(
        &["type", "status"],
        &json!({"type": text, "status": one_of(&["True", "False", "Unknown"]), "message": text,
            "reason": {"type": "string", "pattern": "^[A-Z][A-Za-z]*$"},
            "lastTransitionTime": {"type": "string", "format": "date-time"}}),
    );
    let named = ["group", "kind", "name", "namespace"];
    let resource = object(&named, &json!({"group": text, "kind": text, "name": text, "namespace": text}));
    let mut status = resource.clone();
    status["required"] = json!(["group", "kind", "name", "namespace", "status"]);
    let fields = json!({
        "status": one_of(&["InProgress", "Failed", "Current", "Terminating", "NotFound", "Unknown"]),
        "strategy": one_of(&["Apply", "Delete"]),
        "actuation": one_of(&["Pending", "Succeeded", "Skipped", "Failed"]),
        "reconcile": one_of(&["Pending", "Succeeded", "Skipped", "Timeout", "Failed"]),
        "conditions": list(&condition)});
    status["properties"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let descriptor = object(&[], &json!({"type": text, "revision": text, "description": text}));
    let metadata = object(
        &["name"],
        &json!({"name": text, "namespace": text, "generation": {"type": "integer"},
            "annotations": {"type": "object", "additionalProperties": text}}),
    );
    let whole = object(
        &["apiVersion", "kind", "metadata", "spec", "status"],
        &json!({"apiVersion": {"const": "kpt.dev/v1alpha1"}, "kind": {"const": "ResourceGroup"}, "metadata": metadata,
            "spec": object(&[], &json!({"descriptor": descriptor, "resources": list(&resource)})),
            "status": object(&["observedGeneration"], &json!({"observedGeneration": {"type": "integer"},
                "conditions": list(&condition), "resourceStatuses": list(&status)}))}),
    );
    jsonschema::draft202012::options().should_validate_formats(true).build(&whole).unwrap()
}

#[test]
fn every_resource_group_is_one_by_kpts_definition() {
    let (schema, folder) = (schema(), Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/ctl"));
    let mut read = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name.starts_with("resource-group-") {
            let document: Value = serde_norway::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            schema
                .validate(&document)
                .unwrap_or_else(|error| panic!("{name}: {error} at {}", error.instance_path()));
            read += 1;
        }
    }
    assert!(read >= 8, "the golden documents are elsewhere: {read}");
}

#[test]
fn a_document_that_lacks_what_is_required_or_has_what_is_unknown_is_none() {
    let good = json!({"apiVersion": "kpt.dev/v1alpha1", "kind": "ResourceGroup", "metadata": {"name": "web"},
        "spec": {}, "status": {"observedGeneration": 0}});
    assert!(schema().is_valid(&good));
    for (pointer, value) in [
        ("/status", json!({})),
        ("/metadata", json!({"name": "web", "region": "north"})),
        ("/status", json!({"observedGeneration": 0, "conditions": [{"type": "Stalled"}]})),
        ("/spec", json!({"resources": [{"kind": "Component", "name": "web", "namespace": "plant7"}]})),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        assert!(!schema().is_valid(&bad), "{bad}");
    }
}
