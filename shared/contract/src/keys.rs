//! Rejects unknown keys of requests, so that a misspelt filter does not select everything.
//!
//! The known keys are the properties of the request type's JSON Schema. Serde's `deny_unknown_fields` does not support
//! flattened fields, and every query flattens its point in time. This module checks no values; deserialization does.

use std::any::TypeId;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::decode::Violation;
use crate::near::{did_you_mean, near};

/// Characters of an unknown key that are compared with the known keys and repeated in the error.
const KEY_CHARS_MAX: usize = 64;

/// Schemas of the types checked so far, each generated once in a process.
static SCHEMAS: LazyLock<RwLock<HashMap<TypeId, Arc<Value>>>> = LazyLock::new(RwLock::default);

/// Checks that every key of a JSON value is one of a type's, at any depth.
///
/// # Errors
/// The path of the first unknown key, with similar known keys or, if none is similar, all known keys.
pub fn check_keys<T: JsonSchema + 'static>(value: &Value) -> Result<(), Violation> {
    check(&[&schema_of::<T>()], value, "")
}

/// The schema of a type without references, generated once.
fn schema_of<T: JsonSchema + 'static>() -> Arc<Value> {
    let id = TypeId::of::<T>();
    if let Some(schema) = SCHEMAS.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
        return Arc::clone(schema);
    }
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = Arc::new(settings.into_generator().into_root_schema_for::<T>().to_value());
    let mut schemas = SCHEMAS.write().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(schemas.entry(id).or_insert(schema))
}

/// Checks a value against alternative schemas. If none of them has properties, every key is allowed.
fn check(schemas: &[&Value], value: &Value, path: &str) -> Result<(), Violation> {
    let mut shapes = Vec::new();
    schemas.iter().for_each(|schema| add_shapes(schema, value, &mut shapes));
    match value {
        Value::Object(fields) => check_fields(&shapes, fields, path),
        Value::Array(items) => {
            let item_schemas: Vec<_> = shapes.iter().filter_map(|shape| shape.get("items")).collect();
            let mut items = items.iter().enumerate();
            items.try_for_each(|(at, item)| check(&item_schemas, item, &format!("{path}[{at}]")))
        }
        _ => Ok(()),
    }
}

fn check_fields(shapes: &[&Value], fields: &Map<String, Value>, path: &str) -> Result<(), Violation> {
    let named: Vec<_> = shapes.iter().filter_map(|shape| shape.get("properties")?.as_object()).collect();
    let others = shapes.iter().filter_map(|shape| shape.get("additionalProperties"));
    let others: Vec<_> = others.filter(|schema| **schema != Value::Bool(false)).collect();
    for (key, child) in fields {
        let child_path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let mut child_schemas: Vec<_> = named.iter().filter_map(|properties| properties.get(key)).collect();
        if child_schemas.is_empty() {
            child_schemas.clone_from(&others);
        }
        if child_schemas.is_empty() && !named.is_empty() {
            return Err(unknown(&named, key, path));
        }
        check(&child_schemas, child, &child_path)?;
    }
    Ok(())
}

/// Adds a schema and the schemas that it consists of. An alternative whose constant, such as `type`, differs from the value
/// is left out, unless all alternatives differ.
fn add_shapes<'s>(schema: &'s Value, value: &Value, shapes: &mut Vec<&'s Value>) {
    shapes.push(schema);
    for word in ["allOf", "anyOf", "oneOf"] {
        let parts = || schema.get(word).and_then(Value::as_array).into_iter().flatten();
        let all_differ = parts().all(|part| differs(part, value));
        let fitting = parts().filter(|part| all_differ || !differs(part, value));
        fitting.for_each(|part| add_shapes(part, value, shapes));
    }
}

/// True if the schema has a constant for a key that has another value.
fn differs(schema: &Value, value: &Value) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten().any(|(key, property)| {
        let constant = property.get("const");
        constant.is_some_and(|constant| value.get(key).is_some_and(|there| there != constant))
    })
}

fn unknown(named: &[&Map<String, Value>], key: &str, path: &str) -> Violation {
    let known: BTreeSet<&str> =
        named.iter().flat_map(|properties| properties.keys().map(String::as_str)).collect();
    // A key may be as long as a message, and the comparison takes time and memory by its length.
    let key: String = key.chars().take(KEY_CHARS_MAX).collect();
    let hint = match near(&key, known.iter().copied()).as_slice() {
        [] => format!("; known are {}", known.into_iter().collect::<Vec<_>>().join(", ")),
        near => did_you_mean(near),
    };
    let path = if path.is_empty() { key } else { format!("{path}.{key}") };
    Violation::at(path, format!("unknown key{hint}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::defined::ViewDefinition;
    use crate::incident::IncidentRequest;
    use crate::notify::Subscription;
    use crate::query::{ApplyRequest, Query};
    use crate::status::StatusQuery;

    fn refusal<T: JsonSchema + 'static>(value: &Value) -> String {
        check_keys::<T>(value).map_or_else(|violation| violation.to_string(), |()| "taken".to_owned())
    }

    #[test]
    fn an_unknown_key_is_named_with_the_near_ones() {
        for (refusal, words) in [
            (refusal::<StatusQuery>(&json!({"sitee": ["a"]})), "sitee: unknown key; did you mean site?"),
            (refusal::<Query>(&json!({"atseq": 4})), "atseq: unknown key; did you mean atSeq?"),
            (
                refusal::<Subscription>(&json!({"name": "n", "waitfor": true})),
                "waitfor: unknown key; did you mean waitFor?",
            ),
            (
                refusal::<ApplyRequest>(&json!({"gateway": 1})),
                "gateway: unknown key; known are device, documents, file, site",
            ),
            (
                refusal::<ViewDefinition>(&json!({"select": {"sitees": ["a"]}})),
                "select.sitees: unknown key; did you mean sites?",
            ),
        ] {
            assert_eq!(refusal, words);
        }
    }

    #[test]
    fn keys_of_maps_are_free_and_null_is_absent() {
        let labels = json!({"select": {"labels": {"any": ["a"]}, "sites": null}});
        assert_eq!(refusal::<ViewDefinition>(&labels), "taken");
        assert_eq!(refusal::<Query>(&json!([1])), "taken", "reading it refuses that");
    }

    #[test]
    fn the_keys_of_the_alternative_with_the_same_type_are_known() {
        let skew = json!({"type": "clockSkew", "seconds": 900, "site": "a", "device": "b"});
        assert_eq!(refusal::<IncidentRequest>(&skew), "taken");
        let mixed = json!({"type": "clockSkew", "seconds": 900, "knownEpoch": 1});
        assert!(
            refusal::<IncidentRequest>(&mixed)
                .starts_with("knownEpoch: unknown key; known are device, seconds")
        );
    }

    #[test]
    fn a_refusal_repeats_a_long_key_in_part() {
        let long = "k".repeat(10 * KEY_CHARS_MAX);
        let said = refusal::<Query>(&json!({ long: 1 }));
        assert!(said.starts_with(&format!("{}: unknown key", "k".repeat(KEY_CHARS_MAX))), "{said}");
    }
}
