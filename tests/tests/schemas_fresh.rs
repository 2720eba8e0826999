//! The files under `schemas/` say what the code says. `UPDATE_SCHEMAS=1` rewrites them instead of failing.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeSet;
use std::path::Path;

use muster_identity::Role;
use muster_identity::claims::{CONNECTED, DISCONNECTED, END_CONNECTION, LIST_CONNECTIONS, UPDATE_ACCOUNT};
use muster_identity::exchange::OFFERS;
use muster_tests::{golden, schemas};
use serde_json::Value;

const SWITCH: &str = "UPDATE_SCHEMAS";
const REMEDY: &str = "UPDATE_SCHEMAS=1 cargo test -p muster-tests --test schemas_fresh";

#[test]
fn schemas_and_asyncapi_are_what_the_code_says() {
    let differences: String = schemas::generated()
        .iter()
        .filter_map(|file| golden::difference(&schemas::folder().join(&file.path), &file.text, SWITCH))
        .collect();
    assert!(differences.is_empty(), "schemas/ is stale; `{REMEDY}` rewrites it\n{differences}");
}

#[test]
fn no_schema_file_is_left_over() {
    let wanted: BTreeSet<_> = schemas::generated().into_iter().map(|file| file.path).collect();
    for folder in ["json", "json/properties"] {
        for name in json_files(&schemas::folder().join(folder)) {
            let path = format!("{folder}/{name}");
            assert!(wanted.contains(&path), "schemas/{path} belongs to no type: delete it");
        }
    }
}

#[test]
fn every_schema_is_a_schema() {
    for shape in schemas::catalogue::shapes() {
        let schema = schemas::json_schema::schema(shape);
        let verdict = jsonschema::meta::validate(schema.as_value());
        assert!(verdict.is_ok(), "{}: {}", shape.name, verdict.unwrap_err());
    }
}

#[test]
fn descriptions_name_nothing_of_rust() {
    for file in schemas::generated() {
        let rust = |word: &&str| {
            word.contains("::") || word.contains("[`") || word.contains("_MAX") || word.contains("`UN")
        };
        let found: Vec<_> = file.text.split_whitespace().filter(rust).collect();
        assert!(found.is_empty(), "{}: {found:?}", file.path);
    }
}

#[test]
fn every_reference_of_asyncapi_leads_somewhere() {
    let document = schemas::asyncapi::document();
    for reference in references(&document) {
        let found = match reference.strip_prefix('#') {
            Some(pointer) => document.pointer(pointer).is_some(),
            None => schemas::folder().join(&reference).exists(),
        };
        assert!(found, "asyncapi.yaml: {reference} leads nowhere");
    }
}

#[test]
fn every_shape_travels_on_a_channel() {
    let references: BTreeSet<_> =
        references(&schemas::asyncapi::document()["channels"]).into_iter().collect();
    for shape in schemas::catalogue::shapes() {
        let message = format!("#/components/messages/{}", shape.name);
        assert!(references.contains(&message), "no channel carries {}", shape.name);
    }
}

#[test]
fn the_stream_of_a_channel_holds_its_subject() {
    let document = schemas::asyncapi::document();
    for (name, channel) in document["channels"].as_object().unwrap() {
        let Some(stream) = channel["x-muster-stream"].as_str() else { continue };
        let address = channel["address"].as_str().unwrap();
        let held = held_by(&document["x-muster-streams"][stream]);
        assert!(held.iter().any(|pattern| covers(pattern, address)), "{name}: {stream} holds {held:?}");
    }
}

#[test]
fn each_address_and_exported_subject_has_a_row_in_the_table_of_rights() {
    let files = schemas::generated();
    let table = &files.iter().find(|file| file.path == "RIGHTS.md").unwrap().text;
    let rows: Vec<_> = table.split('`').skip(1).step_by(2).flat_map(subjects_of).collect();
    let document = schemas::asyncapi::document();
    let channels = document["channels"].as_object().unwrap().values();
    let addresses = channels.filter_map(|channel| channel["address"].as_str().map(str::to_owned));
    let fetched = ["desired", "receipt", "credential"].map(|kind| format!("muster.fetch.{kind}.{{site}}.$1"));
    let system = [UPDATE_ACCOUNT, LIST_CONNECTIONS, END_CONNECTION, CONNECTED, DISCONNECTED];
    for address in addresses.chain(fetched).chain(system.map(str::to_owned)) {
        assert!(rows.iter().any(|row| covers(row, &address)), "{address} has no row in RIGHTS.md");
    }
}

/// The committed table, and not the one that is made: a subject that is added to a stream or to a role's rights is a row that
/// somebody reads in a change.
#[test]
fn each_subject_of_a_stream_and_right_has_a_row_in_the_table_of_rights() {
    let table = std::fs::read_to_string(schemas::folder().join("RIGHTS.md")).unwrap();
    let cells: BTreeSet<&str> = table.split('`').skip(1).step_by(2).collect();
    let (before, after) = table.split_once("## Roles without a list").unwrap();
    for role in Role::ALL {
        let heading = format!("\n## {}, in {}\n", role.as_str(), role.account().as_str());
        let section = before.split_once(&heading).unwrap_or_else(|| panic!("{role:?} has no section")).1;
        let section = section.split("\n## ").next().unwrap();
        let listed: BTreeSet<&str> = section.split('`').skip(1).step_by(2).collect();
        let rights = role.rights();
        let own: BTreeSet<&str> =
            rights.publish.iter().chain(&rights.subscribe).map(String::as_str).collect();
        assert_eq!(listed, own, "{role:?}");
    }
    assert!(Role::of("federation").is_none() && after.contains("| federation |"));
    let streams = muster_bus::topology::described();
    for stream in streams["streams"].as_array().unwrap() {
        for subject in stream["subjects"].as_array().unwrap() {
            let subject = subject.as_str().unwrap();
            let is_written = |role: &Role| role.rights().publish.iter().any(|right| overlap(right, subject));
            assert!(Role::ALL.iter().any(is_written), "nobody may write {subject}");
            assert!(cells.iter().any(|cell| overlap(cell, subject)), "{subject} has no row in RIGHTS.md");
        }
    }
    for offer in &OFFERS {
        assert!(cells.contains(offer.subject), "{offer:?} has no row in RIGHTS.md");
        assert!(offer.local.is_none_or(|local| cells.contains(local)), "{offer:?}");
    }
}

/// A subject of the table, and the one that a request for it reads: by direct get, or through a consumer's filter.
fn subjects_of(row: &str) -> Vec<&str> {
    let read = |prefix: &str, skipped: usize| row.strip_prefix(prefix)?.splitn(skipped + 1, '.').nth(skipped);
    let of_stream = [read("$JS.API.DIRECT.GET.", 1), read("$JS.API.CONSUMER.CREATE.", 2)];
    of_stream.into_iter().flatten().chain([row]).filter(|subject| *subject != ">").collect()
}

/// Patterns of the subjects that a stream stores.
fn held_by(stream: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if let Some(stored) = stream["subject_transform"]["dest"].as_str() {
        let token = |token: &str| if token.contains("{{") { "*".to_owned() } else { token.to_owned() };
        return vec![stored.split('.').map(token).collect::<Vec<_>>().join(".")];
    }
    let sources = list(&stream["sources"]);
    list(&stream["subjects"])
        .iter()
        .chain(sources.iter().map(|one| &one["filter_subject"]))
        .map(text)
        .collect()
}

fn covers(pattern: &str, address: &str) -> bool {
    let mut tokens = address.split('.');
    let fits = pattern.split('.').all(|wanted| match wanted {
        ">" => tokens.by_ref().count() > 0,
        "*" => tokens.next().is_some(),
        literal => tokens.next() == Some(literal),
    });
    fits && tokens.next().is_none()
}

/// Whether some subject is one of both patterns.
fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b))
                if a == b || [a, b].iter().any(|token| *token == "*" || token.starts_with('{')) => {}
            _ => return false,
        }
    }
}

fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(object) => object
            .iter()
            .flat_map(|(key, value)| match value {
                Value::String(reference) if key == "$ref" => vec![reference.clone()],
                other => references(other),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

fn json_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".json")).collect()
}
