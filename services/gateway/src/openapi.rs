//! Parts that the OpenAPI documents of people and of devices share: the schemas of types, refusals, and the header of a conditional
//! read. It describes no address.

use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Value, json};

use crate::problem::PROBLEM_TYPE;

/// Makes the schemas of types, as documents that are read or that are written.
pub(crate) fn generator(contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        settings.contract = contract;
    });
    SchemaGenerator::new(settings)
}

/// A refusal that may pass, with the seconds until then; `is_always` if each such answer has them.
pub(crate) fn passing(words: &str, is_always: bool) -> Value {
    let about = "Seconds after which the same request may succeed";
    let mut refused = refusal(words);
    refused["headers"] = json!({ "Retry-After": {
        "description": about, "required": is_always, "schema": { "type": "integer", "minimum": 0 } } });
    refused
}

/// A refusal.
pub(crate) fn refusal(words: &str) -> Value {
    json!({ "description": words,
        "content": { PROBLEM_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } } })
}

/// The reference to a refusal.
pub(crate) fn refused(status: &str) -> Value {
    json!({ "$ref": format!("#/components/responses/{status}") })
}

/// The schema of a refusal.
pub(crate) fn problem() -> Value {
    json!({
        "type": "object",
        "description": "An error (RFC 9457)",
        "required": ["type", "title", "status", "retryable", "backoffStrategy"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "retryable": { "type": "boolean" },
            "retryAfterSeconds": { "type": "integer" },
            "backoffStrategy": { "enum": ["none", "exponential"] },
            "errors": { "type": "array", "items": { "type": "object", "required": ["field", "message"],
                "properties": { "field": { "type": "string" }, "message": { "type": "string" } } } },
        },
    })
}

/// The header of a conditional read. Every text is allowed: one that is no entity tag of the document is without effect.
pub(crate) fn if_none_match() -> Value {
    json!({ "name": "If-None-Match", "in": "header", "required": false, "schema": { "type": "string" },
        "description": "The ETag of the document that the client has" })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each `$ref` of a document, which must have what it refers to.
    pub(crate) fn references(document: &Value) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        add_references(document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        found
    }

    fn add_references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => object.iter().for_each(|(name, value)| match (name.as_str(), value) {
                ("$ref", Value::String(to)) => _ = found.insert(to.clone()),
                _ => add_references(value, found),
            }),
            Value::Array(list) => list.iter().for_each(|value| add_references(value, found)),
            _ => {}
        }
    }
}
