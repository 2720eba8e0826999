//! Facts about the streams and their consumers, as the bus's topology has them: the fields of NATS's own API, with
//! durations in nanoseconds. What is unset there is left out.

use muster_bus::topology;
use serde_json::{Map, Value};

/// Every stream by its name, with its consumers.
pub(super) fn all() -> Map<String, Value> {
    let described = topology::described();
    let streams = items(&described["streams"]).map(|config| (name(&config["name"]), set_fields(config)));
    let mut streams: Map<_, _> = streams.collect();
    for consumer in items(&described["consumers"]) {
        let config = &consumer["config"];
        let stream = &mut streams[&name(&consumer["stream"])];
        stream["consumers"][name(&config["durable_name"])] = set_fields(config);
    }
    streams
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn name(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn set_fields(config: &Value) -> Value {
    match config {
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| is_set(value));
            set.map(|(key, value)| (key.clone(), set_fields(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(set_fields).collect(),
        other => other.clone(),
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_i64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}
