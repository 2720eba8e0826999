//! A fixed order of keys, whatever features of serde_json the build has: what a reader looks for comes first.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Keys that come before all others, in this order. The rest follows by name, `$defs` last.
const FIRST: [&str; 16] = [
    "asyncapi",
    "$schema",
    "$id",
    "info",
    "title",
    "name",
    "summary",
    "description",
    "address",
    "action",
    "channel",
    "type",
    "const",
    "enum",
    "required",
    "properties",
];
const LAST: [&str; 2] = ["components", "$defs"];

/// A value that is written with its keys in order.
pub(super) struct Ordered<'a>(pub(super) &'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(object) => {
                let mut entries: Vec<_> = object.iter().collect();
                entries.sort_by_key(|(key, _)| (rank(key), *key));
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, &Ordered(value))?;
                }
                map.end()
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(Ordered)),
            other => other.serialize(serializer),
        }
    }
}

fn rank(key: &str) -> usize {
    let place = |list: &[&str]| list.iter().position(|known| *known == key);
    match (place(&FIRST), place(&LAST)) {
        (Some(at), _) => at,
        (None, Some(at)) => FIRST.len() + 1 + at,
        (None, None) => FIRST.len(),
    }
}
