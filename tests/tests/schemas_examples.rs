//! The examples under `schemas/examples/` mean what their folder says: `good/` is what our code reads and writes,
//! `bad/` is refused, each for the one rule that its name tells, in the words of its file, and `tolerated/` is read
//! and never written.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeSet;
use std::path::Path;

use jsonschema::Validator;
use muster_tests::schemas::catalogue::{self, Shape};
use muster_tests::{golden, schemas};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const SWITCH: &str = "UPDATE_SCHEMAS";
const REMEDY: &str = "UPDATE_SCHEMAS=1 cargo test -p muster-tests --test schemas_examples";
/// Longest line of a refusal in the golden file.
const LINE_CHARS_MAX: usize = 200;

/// A file of `bad/<Shape>/`: a document, and how it is refused.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    /// The good example that the document is made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<String>,
    /// The merge patch (RFC 7386) that makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<Value>,
    /// The document itself, where no patch can express it, or a text is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The refusal of our code.
    refusal: String,
    /// The refusal of the JSON Schema; `None` if the document passes.
    schema: Option<String>,
}

/// One document, and the file that it comes from.
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
    for (example, on_record) in bad_examples() {
        let refusal = (example.shape.read)(&example.bytes);
        let Err(refusal) = refusal else { panic!("bad/{} was accepted", example.name) };
        let refused = Refused {
            refusal: cut(without_position(&refusal)),
            schema: schema_refusal(&example).as_deref().map(cut),
            ..on_record
        };
        let text = serde_json::to_string_pretty(&refused).unwrap() + "\n";
        let file = schemas::folder().join("examples/bad").join(&example.name);
        let difference = golden::difference(&file, &text, SWITCH);
        assert_eq!(difference, None, "a refusal reads otherwise; if that is wanted: `{REMEDY}`");
    }
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
    let bad = bad_examples().into_iter().map(|(example, _)| example).collect();
    for (folder, examples) in [("good", examples("good")), ("bad", bad)] {
        let shown: BTreeSet<_> = examples.iter().map(|example| example.shape.name).collect();
        let hidden: Vec<_> =
            catalogue::shapes().map(|shape| shape.name).filter(|name| !shown.contains(name)).collect();
        assert!(hidden.is_empty(), "no {folder} example of {hidden:?}");
    }
}

fn examples(folder: &str) -> Vec<Example> {
    let folder = schemas::folder().join("examples").join(folder);
    let mut names = names(&folder);
    names.retain(|name| name.ends_with(".json"));
    names.into_iter().map(|name| Example::of(&name, std::fs::read(folder.join(&name)).unwrap())).collect()
}

/// The documents of `bad/`, each with its file.
fn bad_examples() -> Vec<(Example, Refused)> {
    let folder = schemas::folder().join("examples");
    let kinds = names(&folder.join("bad"));
    let files = kinds.iter().flat_map(|kind| {
        names(&folder.join("bad").join(kind)).into_iter().map(move |case| format!("{kind}/{case}"))
    });
    let example = |name: String| {
        let refused: Refused =
            serde_json::from_slice(&std::fs::read(folder.join("bad").join(&name)).unwrap()).unwrap();
        let bytes = match (&refused.base, &refused.patch, &refused.text) {
            (Some(base), Some(patch), None) => {
                let base = std::fs::read(folder.join("good").join(base)).unwrap();
                let mut document = serde_json::from_slice(&base).unwrap();
                merge(&mut document, patch);
                serde_json::to_vec(&document).unwrap()
            }
            (None, None, Some(text)) => text.clone().into_bytes(),
            _ => panic!("bad/{name}: has either base and patch, or text"),
        };
        (Example::of(&name, bytes), refused)
    };
    files.map(example).collect()
}

impl Example {
    /// A document of the shape with which the name begins.
    fn of(name: &str, bytes: Vec<u8>) -> Self {
        let kind = name.split(['.', '/']).next().unwrap_or_default();
        let shape = catalogue::shape(kind).unwrap_or_else(|| panic!("{name}: there is no shape {kind}"));
        Self { name: name.to_owned(), shape, bytes }
    }
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Applies a JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Map::new().into();
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
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
