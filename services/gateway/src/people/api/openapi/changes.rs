//! The changes of one request in the OpenAPI document.

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::super::change::{Change, ChangeMethod};
use super::super::changes::CHANGES;
use super::super::handler_helpers::PREFIX;
use super::{IDEMPOTENCY, OF_CHANGES, etag, header, operation, path_params, responses};
use crate::openapi::refused;

/// Adds all of them.
pub(super) fn add(paths: &mut Map<String, Value>, generator: &mut SchemaGenerator) {
    for change in CHANGES {
        let routes = paths.entry(format!("{PREFIX}{}", change.path)).or_insert_with(|| json!({}));
        routes[change.method.as_str()] = described(change, generator);
    }
}

fn described(change: &Change, generator: &mut SchemaGenerator) -> Value {
    let mut parameters = path_params(change.path);
    parameters.push(header("Idempotency-Key", IDEMPOTENCY));
    if change.is_versioned() {
        parameters.push(header("If-Match", "Only if it has this ETag"));
    }
    let mut operation = json!({
        "summary": change.summary,
        "operationId": operation(change.method.as_str(), change.path),
        "parameters": parameters,
        "responses": responses_of(change, generator),
    });
    if let Some(schema) = change.body_schema(generator) {
        let is_required = schema["required"].as_array().is_some_and(|required| !required.is_empty());
        let mut content = json!({ "application/json": { "schema": schema } });
        if change.takes_form() {
            content["application/x-www-form-urlencoded"] = json!({ "schema": schema });
        }
        operation["requestBody"] = json!({ "required": is_required, "content": content });
    }
    operation
}

fn responses_of(change: &Change, generator: &mut SchemaGenerator) -> Value {
    let answer = json!((change.answer)(generator));
    let mut responses = responses("application/json", &answer);
    OF_CHANGES.iter().for_each(|status| responses[*status] = refused(status));
    if change.is_versioned() {
        responses["200"]["headers"] = etag("The version, for If-Match");
    }
    let good = responses.as_object_mut().and_then(|all| all.remove("200")).unwrap_or_default();
    // One that makes the document, or replaces it.
    if change.is_versioned() && change.method == ChangeMethod::Put {
        responses["201"] = good.clone();
    }
    responses[change.status.as_str()] = good;
    responses
}
