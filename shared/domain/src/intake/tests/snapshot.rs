//! The format of a snapshot: a file that an earlier ingest wrote can be read.

use super::*;

/// A hub whose device uses every field of the format.
fn varied() -> Hub {
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired(3, false), at(900));
    hub.report(&status(1, 1, 9));
    hub.report(&with(status(1, 2, 9), "generation", json!("?")));
    hub.report(&with(status(1, 1, 9), "generation", json!(4)));
    hub.report(&json!({
        "apiVersion": "muster/v1", "kind": "CapabilitiesReport", "epoch": 1, "seq": 3, "head": 9,
        "observedAt": at(1_000).to_string(), "properties": {}, "agentVersion": "1",
    }));
    hub.live(120, 1, 9);
    hub.report(&status(2, 1, 1));
    hub.report(&status(1, 8, 9));
    hub.beat_with_token(2, Some((0, 1_000)));
    hub.refusing(2, 3, Some((2, "older")));
    hub.pass(200);
    hub
}

/// The names of all fields, by their paths.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let path = format!("{path}.{name}");
            found.push(path.clone());
            paths(value, &path, found);
        }),
        Value::Array(entries) => entries.iter().for_each(|entry| paths(entry, path, found)),
        _ => {}
    }
}

#[test]
fn a_snapshot_keeps_the_names_of_its_format() {
    let text = String::from_utf8(varied().intake.snapshot()).unwrap();
    let mut found = Vec::new();
    text.lines().for_each(|line| paths(&serde_json::from_str(line).unwrap(), "", &mut found));
    found.sort();
    found.dedup();
    let format = include_str!("snapshot_fields.txt");
    assert_eq!(found, format.lines().collect::<Vec<_>>(), "a new name needs a new SNAPSHOT_VERSION");
}
