//! The examples under `schemas/examples/` mean what their folder says: `good/` is what our code reads and writes,
//! `bad/` is refused, each file for the one rule its name tells, `tolerated/` is read and never written.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use jsonschema::Validator;
use muster_tests::schemas::catalogue::{self, Shape};
use muster_tests::{golden, schemas};
use serde_json::Value;

const SWITCH: &str = "UPDATE_SCHEMAS";
const REMEDY: &str = "UPDATE_SCHEMAS=1 cargo test -p muster-tests --test schemas_examples";
/// Longest line of a refusal in the golden file.
const LINE_CHARS_MAX: usize = 200;

/// One file: `<Shape>.<case>.json`.
struct Example {
    name: String,
    shape: &'static Shape,
    bytes: Vec<u8>,
}

#[test]
fn good_examples_pass_the_schema_and_are_what_the_code_writes() {
    for example in examples("good") {
        let value: Value = serde_json::from_slice(&example.bytes).unwrap();
        let read = (example.shape.read)(&example.bytes).unwrap_or_else(|no| panic!("{}: {no}", example.name));
        assert_eq!(read, value, "{}: the code writes something else than it read", example.name);
        assert_eq!(schema_refusal(&example), None, "{}: against its schema", example.name);
    }
}

#[test]
fn the_digests_of_good_views_are_right() {
    for example in examples("good").iter().filter(|example| example.shape.name.ends_with("View")) {
        let value: Value = serde_json::from_slice(&example.bytes).unwrap();
        let digest = muster_contract::view::content_digest(&value);
        assert_eq!(value["digest"], digest.to_string(), "{}", example.name);
    }
}

#[test]
fn the_manifests_of_good_answers_have_the_digests_they_are_told_by() {
    let answer: muster_contract::status::StatusAnswer = schemas::example("StatusAnswer.in-detail");
    assert!(!answer.manifests.is_empty());
    for (digest, manifest) in &answer.manifests {
        assert_eq!(manifest.digest(), *digest);
    }
}

#[test]
fn bad_examples_are_refused_in_the_words_on_record() {
    let mut record = String::from("How each bad example is refused: by our code, and by its JSON Schema.\n");
    for example in examples("bad") {
        let refusal = (example.shape.read)(&example.bytes);
        let Err(refusal) = refusal else { panic!("bad/{} was accepted", example.name) };
        let schema =
            schema_refusal(&example).unwrap_or_else(|| "passes; the rule is beyond a shape".to_owned());
        let refusal = without_position(&refusal);
        record += &format!("\n{}\n  code:   {}\n  schema: {}\n", example.name, cut(refusal), cut(&schema));
    }
    let file = schemas::folder().join("examples/bad/REFUSALS.txt");
    let difference = golden::difference(&file, &record, SWITCH);
    assert_eq!(difference, None, "a refusal reads otherwise; if that is wanted: `{REMEDY}`");
}

#[test]
fn tolerated_examples_are_read_and_written_differently() {
    for example in examples("tolerated") {
        let value: Value = serde_json::from_slice(&example.bytes).unwrap();
        let read = (example.shape.read)(&example.bytes).unwrap_or_else(|no| panic!("{}: {no}", example.name));
        assert_ne!(read, value, "{}: belongs to good/", example.name);
    }
}

#[test]
fn every_shape_has_a_good_and_a_bad_example() {
    for folder in ["good", "bad"] {
        let shown: BTreeSet<_> = examples(folder).iter().map(|example| example.shape.name).collect();
        let hidden: Vec<_> =
            catalogue::shapes().map(|shape| shape.name).filter(|name| !shown.contains(name)).collect();
        assert!(hidden.is_empty(), "no {folder} example of {hidden:?}");
    }
}

fn examples(folder: &str) -> Vec<Example> {
    let folder: PathBuf = schemas::folder().join("examples").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".json"));
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let kind = name.split('.').next().unwrap_or_default();
            let shape = catalogue::shape(kind).unwrap_or_else(|| panic!("{name}: there is no shape {kind}"));
            let bytes = std::fs::read(folder.join(&name)).unwrap();
            Example { name, shape, bytes }
        })
        .collect()
}

/// The first thing the schema has against it, by path; `None` where it passes.
fn schema_refusal(example: &Example) -> Option<String> {
    let value: Value = match serde_json::from_slice(&example.bytes) {
        Ok(value) => value,
        Err(_) => return Some("not JSON".to_owned()),
    };
    let schema = schemas::json_schema::schema(example.shape);
    let validator: Validator =
        jsonschema::draft202012::options().should_validate_formats(true).build(schema.as_value()).unwrap();
    let mut refusals: Vec<_> = validator
        .iter_errors(&value)
        .map(|error| format!("{}: {}", error.instance_path(), error.masked()))
        .collect();
    refusals.sort();
    refusals.into_iter().next()
}

/// The words without the place in the file, which depends on how a shape is parsed and not on the rule.
fn without_position(refusal: &str) -> &str {
    refusal.rsplit_once(" at line ").map_or(refusal, |(words, _)| words)
}

fn cut(text: &str) -> String {
    let mut line: String = text.chars().take(LINE_CHARS_MAX).collect();
    if line.len() < text.len() {
        line.push('…');
    }
    line
}
