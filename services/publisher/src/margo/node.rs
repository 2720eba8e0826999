//! A value of a document with its path, and the findings about it. Every accessor returns the value or adds a finding, so
//! that one read finds all problems.

use serde_json::{Map, Value};

use super::path::Path;

/// A problem of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The path of the field.
    pub(super) path: Path,
    /// The broken rule.
    pub(super) rule: String,
}

/// The problems of a document, in the order of the read.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a problem.
    pub(super) fn push(&mut self, path: &Path, rule: impl Into<String>) {
        self.0.push(Finding { path: path.clone(), rule: rule.into() });
    }
}

/// A value and its path.
#[derive(Debug, Clone)]
pub(super) struct Node<'a> {
    /// The value.
    pub(super) value: &'a Value,
    /// Its path.
    pub(super) path: Path,
}

/// A mapping and its path.
#[derive(Debug, Clone)]
pub(super) struct Object<'a> {
    /// The mapping.
    pub(super) map: &'a Map<String, Value>,
    /// Its path.
    pub(super) path: Path,
}

impl<'a> Node<'a> {
    /// A mapping with only `known` fields and vendor extensions (`x-…`).
    pub(super) fn object(&self, known: &[&str], found: &mut Findings) -> Option<Object<'a>> {
        let object = self.open_object(found)?;
        for key in object.map.keys().filter(|key| !known.contains(&key.as_str()) && !key.starts_with("x-")) {
            found.push(&self.path.key(key), format!("is not a field here; {} are", known.join(", ")));
        }
        Some(object)
    }

    /// A mapping with any fields.
    pub(super) fn open_object(&self, found: &mut Findings) -> Option<Object<'a>> {
        let Value::Object(map) = self.value else { return self.wrong("a mapping", found) };
        Some(Object { map, path: self.path.clone() })
    }

    /// The items of a list.
    pub(super) fn list(&self, found: &mut Findings) -> Option<Vec<Node<'a>>> {
        let Value::Array(items) = self.value else { return self.wrong("a list", found) };
        let node = |(at, value)| Node { value, path: self.path.index(at) };
        Some(items.iter().enumerate().map(node).collect())
    }

    /// A non-empty text.
    pub(super) fn text(&self, found: &mut Findings) -> Option<&'a str> {
        match self.value {
            Value::String(text) if text.is_empty() => {
                found.push(&self.path, "is empty");
                None
            }
            Value::String(text) => Some(text),
            Value::Number(_) | Value::Bool(_) => self.wrong("a text; write it in quotes", found),
            _ => self.wrong("a text", found),
        }
    }

    /// A text parsed as an identifier or another type with a rule.
    pub(super) fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        found: &mut Findings,
    ) -> Option<T> {
        let text = self.text(found)?;
        text.parse().map_err(|error| found.push(&self.path, format!("{error}"))).ok()
    }

    fn wrong<T>(&self, wanted: &str, found: &mut Findings) -> Option<T> {
        found.push(&self.path, format!("is {}, not {wanted}", shape(self.value)));
        None
    }
}

impl<'a> Object<'a> {
    /// A required field.
    pub(super) fn required(&self, key: &str, found: &mut Findings) -> Option<Node<'a>> {
        let field = self.optional(key);
        if field.is_none() {
            let empty = self.map.contains_key(key);
            found.push(&self.path.key(key), if empty { "has no value" } else { "is missing" });
        }
        field
    }

    /// An optional field; a field without a value counts as missing.
    pub(super) fn optional(&self, key: &str) -> Option<Node<'a>> {
        let value = self.map.get(key).filter(|value| !value.is_null())?;
        Some(Node { value, path: self.path.key(key) })
    }
}

/// The type of a value, in words.
const fn shape(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
