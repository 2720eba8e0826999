//! JSON Schema (draft 2020-12) files: one a shape, each complete in itself.
//!
//! The schemas say what a reader takes: unknown fields are allowed everywhere but in requests, a field with a default may be
//! absent.

use muster_contract::{limits, view};
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;

use super::Generated;
use super::catalogue::{self, Shape};
use super::ordered::Ordered;

/// Schemas have names, not addresses: nothing is ever fetched to validate a document.
const ID_PREFIX: &str = "urn:muster:v1";

/// All schema files.
pub fn files() -> Vec<Generated> {
    let shapes = catalogue::shapes()
        .map(|shape| Generated { path: format!("json/{}.json", shape.name), text: text(&schema(shape)) });
    let properties = catalogue::PROPERTIES.iter().map(|(profile, make)| {
        let mut schema = make(generator());
        finish(&mut schema, &format!("properties:{profile}"));
        schema.insert("title".to_owned(), format!("Properties of a component of type {profile}").into());
        Generated { path: format!("json/properties/{profile}.json"), text: text(&schema) }
    });
    shapes.chain(properties).collect()
}

/// The schema of one shape.
pub fn schema(shape: &Shape) -> Schema {
    let mut schema = (shape.schema)(generator());
    finish(&mut schema, shape.name);
    if shape.is_request && schema.get("additionalProperties").is_none() {
        schema.insert("unevaluatedProperties".to_owned(), false.into());
    }
    schema
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().with_transform(RecursiveTransform(plain_words)).into_generator()
}

fn finish(schema: &mut Schema, name: &str) {
    schema.insert("$id".to_owned(), format!("{ID_PREFIX}:{name}").into());
    schema.insert("title".to_owned(), name.into());
}

fn text(schema: &Schema) -> String {
    let pretty = serde_json::to_string_pretty(&Ordered(schema.as_value())).expect("a schema is JSON");
    pretty + "\n"
}

/// Descriptions come from Rust's documentation comments: its links and paths become plain words.
fn plain_words(schema: &mut Schema) {
    if let Some(Value::String(words)) = schema.get_mut("description") {
        *words = plain(words);
    }
}

fn plain(words: &str) -> String {
    let paragraphs: Vec<_> = words.split("\n\n").map(|lines| lines.replace('\n', " ")).collect();
    let words = without_targets(&paragraphs.join("\n\n")).replace("[`", "`").replace("`]", "`");
    let parts = words.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { code(part) } else { part.to_owned() }).collect()
}

/// A link without the place it leads to.
fn without_targets(words: &str) -> String {
    let mut parts = words.split("`](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "`]" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// `StatusReport::observed_at` is `StatusReport.observedAt` to everyone outside, and a constant is its value.
fn code(path: &str) -> String {
    if let Some(value) = constant(path) {
        return value;
    }
    let Some((owner, field)) = path.rsplit_once("::") else { return format!("`{path}`") };
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    let camel = words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..]);
    format!("`{owner}.{camel}`")
}

/// Constants that descriptions name.
fn constant(name: &str) -> Option<String> {
    Some(match name {
        "COMPONENTS_MAX" => limits::COMPONENTS_MAX.to_string(),
        "VIEW_ERRORS_MAX" => limits::VIEW_ERRORS_MAX.to_string(),
        "ERROR_CODE_BYTES_MAX" => format!("{} bytes", limits::ERROR_CODE_BYTES_MAX),
        "VIEW_MESSAGE_BYTES_MAX" => format!("{} bytes", limits::VIEW_MESSAGE_BYTES_MAX),
        "UNSPECIFIED" => format!("`{}`", view::UNSPECIFIED),
        _ => return None,
    })
}
