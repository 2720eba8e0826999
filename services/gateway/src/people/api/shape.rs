//! The shape of a body by its schema, without references: types of the fields of a form, and fields of a wrong kind with their
//! paths, which deserialization does not name within flattened parts. The service checks everything else.

use serde_json::{Map, Value, json};

/// Whether a schema has a type.
pub(super) fn is_of(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind || schema["type"].as_array().is_some_and(|all| all.contains(&json!(kind)))
}

/// The fields of a form, each as its schema says. A text that is none of the kind stays a text, which the check refuses.
pub(super) fn typed(pairs: Vec<(String, String)>, known: &Map<String, Value>) -> Map<String, Value> {
    let mut object = Map::new();
    for (name, text) in pairs {
        let schema = known.get(&name).unwrap_or(&Value::Null);
        let is = |kind: &str| is_of(schema, kind);
        let value = if is("integer") {
            text.parse::<u64>().map_or_else(|_| json!(text), Value::from)
        } else if is("boolean") {
            text.parse::<bool>().map_or_else(|_| json!(text), Value::from)
        } else {
            json!(text)
        };
        match object.get_mut(&name) {
            Some(Value::Array(list)) => list.push(value),
            None if is("array") => _ = object.insert(name, json!([value])),
            // Two texts where one is expected: the check refuses a list.
            Some(first) => *first = json!([first.take(), value]),
            None => _ = object.insert(name, value),
        }
    }
    object
}

/// The path of the first value of another kind than its schema says, and the rule. Alternatives are not compared.
pub(super) fn wrong_kind(schema: &Value, value: &Value, path: &str) -> Option<(String, String)> {
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_kind(value, kind)) {
        return Some((path.to_owned(), format!("must be of type {}", kinds.join(" or "))));
    }
    match value {
        Value::Object(object) => object.iter().find_map(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let property = &schema["properties"][name];
            wrong_kind(
                if property.is_null() { &schema["additionalProperties"] } else { property },
                value,
                &path,
            )
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, item)| wrong_kind(&schema["items"], item, &format!("{path}[{at}]"))),
        _ => None,
    }
}

fn is_kind(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "integer" => value.is_u64() || value.is_i64(),
        _ => value.is_number(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_form_get_the_types_of_their_schema() {
        let known = json!({
            "state": { "type": "string" },
            "score": { "type": "integer" },
            "shouldEvict": { "type": ["boolean", "null"] },
            "names": { "type": "array" },
        });
        let pairs = [
            ("state", "7"),
            ("score", "7"),
            ("shouldEvict", "true"),
            ("names", "a"),
            ("names", "b"),
            ("x", "1"),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let read = typed(pairs.into(), known.as_object().unwrap());
        let wanted = json!({ "state": "7", "score": 7, "shouldEvict": true, "names": ["a", "b"], "x": "1" });
        assert_eq!(Value::Object(read), wanted);
        let wrong = typed(vec![("score".to_owned(), "many".to_owned())], known.as_object().unwrap());
        assert_eq!(wrong["score"], "many");
    }

    #[test]
    fn a_value_of_a_wrong_kind_is_named_by_its_path() {
        let schema = json!({ "type": "object", "properties": {
            "name": { "type": "string" },
            "parts": { "type": "array", "items": { "type": "object", "properties": { "cores": { "type": "integer" } } } },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } },
            "any": {},
        }});
        let of = |value: Value| wrong_kind(&schema, &value, "").map(|(path, _)| path);
        let good =
            json!({ "name": "a", "parts": [{ "cores": 1 }], "labels": { "x": "y" }, "any": 7, "other": [] });
        assert_eq!(of(good), None);
        assert_eq!(of(json!({ "name": 7 })).as_deref(), Some("name"));
        assert_eq!(
            of(json!({ "parts": [{ "cores": 1 }, { "cores": "x" }] })).as_deref(),
            Some("parts[1].cores")
        );
        assert_eq!(of(json!({ "labels": { "x": 7 } })).as_deref(), Some("labels.x"));
    }
}
