//! Parses YAML text into documents, as JSON values. It accepts only values that every JSON parser reads equally: no tags, no
//! duplicate fields, no numbers that lose digits. Expanded aliases count towards the limits of a file. This module does not
//! interpret documents.

use std::cell::{Cell, RefCell};
use std::fmt;

use muster_contract::field_path::{KeySeed, PathStep};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::FILE_BYTES_MAX;
use super::path::Path;
use super::plain::syntax;

/// Values of one file, counted with its aliases expanded.
pub(super) const NODES_MAX: usize = 100_000;
/// Bytes of text of one file, counted in the same way: four times the limit of a file's size.
pub(super) const TEXT_BYTES_MAX: usize = 4 * FILE_BYTES_MAX;
/// Documents of one file.
pub(super) const DOCUMENTS_MAX: usize = 1024;
/// Largest integer that every JSON parser keeps exact: 2^53 - 1.
const EXACT_INTEGER_MAX: u64 = (1 << 53) - 1;

/// Why a document could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    /// The path of the field.
    pub(super) path: Path,
    /// The line in the file, if it has one.
    pub(super) line: Option<u64>,
    /// The broken rule.
    pub(super) rule: String,
}

/// Reads the documents of a file in order. A document with a syntax error ends the read.
pub(super) fn documents(text: &str) -> Vec<Result<Value, Unreadable>> {
    let mut documents = Vec::new();
    let state = ReadState::default();
    for source in serde_norway::Deserializer::from_str(text) {
        if documents.len() == DOCUMENTS_MAX {
            let rule = format!("has more than {DOCUMENTS_MAX} documents: split the file");
            documents.push(Err(Unreadable { path: Path::default(), line: None, rule }));
            break;
        }
        let read = state.start().read(source, text);
        let last = read.is_err() && !state.can_continue();
        documents.push(read);
        if last {
            break;
        }
    }
    documents
}

/// The state of a read: counters, the current path, and a broken rule that this module has found.
#[derive(Default)]
struct ReadState {
    nodes: Cell<usize>,
    bytes: Cell<usize>,
    path: RefCell<Path>,
    rule: RefCell<Option<String>>,
}

impl ReadState {
    fn start(&self) -> ValueSeed<'_> {
        *self.path.borrow_mut() = Path::default();
        self.rule.borrow_mut().take();
        ValueSeed(self)
    }

    /// True if the last document broke a rule of this module and not the syntax, so that the parser can continue.
    fn can_continue(&self) -> bool {
        let within = self.nodes.get() <= NODES_MAX && self.bytes.get() <= TEXT_BYTES_MAX;
        self.rule.borrow().is_some() && within
    }

    fn refuse<E: Error>(&self, rule: impl Into<String>) -> E {
        self.rule.borrow_mut().get_or_insert_with(|| rule.into());
        E::custom("refused")
    }

    /// Checks a field's name while the parser is at it, so that the error of a duplicate has its line.
    fn check_key(&self, key: &str, taken: &Map<String, Value>) -> Result<String, &'static str> {
        if !taken.contains_key(key) {
            let counted: Result<(), serde::de::value::Error> = self.count_text(key);
            return counted.map(|()| key.to_owned()).map_err(|_| "refused");
        }
        self.path.borrow_mut().enter(PathStep::Key(key.to_owned()));
        *self.rule.borrow_mut() = Some("is there twice in one mapping".to_owned());
        Err("refused")
    }

    fn count<E: Error>(&self) -> Result<(), E> {
        self.nodes.set(self.nodes.get() + 1);
        if self.nodes.get() <= NODES_MAX {
            return Ok(());
        }
        Err(self
            .refuse(format!("the file holds more than {NODES_MAX} values (its aliases followed): split it")))
    }

    /// Counts a text before it is copied: an alias of a long text costs a file two bytes.
    fn count_text<E: Error>(&self, text: &str) -> Result<(), E> {
        self.bytes.set(self.bytes.get().saturating_add(text.len()));
        if self.bytes.get() <= TEXT_BYTES_MAX {
            return Ok(());
        }
        Err(self.refuse(format!(
            "the file holds more than {TEXT_BYTES_MAX} bytes of text (its aliases followed): split it"
        )))
    }

    fn inside<T, E>(&self, step: PathStep, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.path.borrow_mut().enter(step);
        let value = read()?;
        // Not reached after an error: the path then names its place.
        self.path.borrow_mut().pop();
        Ok(value)
    }
}

#[derive(Clone, Copy)]
struct ValueSeed<'a>(&'a ReadState);

impl ValueSeed<'_> {
    fn read(self, source: serde_norway::Deserializer<'_>, text: &str) -> Result<Value, Unreadable> {
        self.deserialize(source).map_err(|error| {
            let line = error.location().map(|at| at.line());
            let words = || line.and_then(|line| text.lines().nth(line.checked_sub(1)?));
            let rule = self.0.rule.borrow().clone();
            let rule = rule.unwrap_or_else(|| syntax(&error.to_string(), words()));
            let line = line.map(|line| line as u64);
            Unreadable { path: self.0.path.borrow().clone(), line, rule }
        })
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON has")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.0.count().map(|()| Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.0.count().map(|()| Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.0.count()?;
        if value > EXACT_INTEGER_MAX { Err(self.0.refuse(inexact(value))) } else { Ok(value.into()) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.0.count()?;
        if value.unsigned_abs() > EXACT_INTEGER_MAX {
            Err(self.0.refuse(inexact(value)))
        } else {
            Ok(value.into())
        }
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        Err(self.0.refuse(inexact(value)))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        Err(self.0.refuse(inexact(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.0.count()?;
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| self.0.refuse(format!("{value} is no number that JSON has: write it in quotes")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.count()?;
        self.0.count_text(value)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(self.0.refuse("has a YAML tag ('!…'), which is not supported: omit it"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.0.count()?;
        let mut list = Vec::new();
        while let Some(item) = self.0.inside(PathStep::Index(list.len()), || items.next_element_seed(self))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        self.0.count()?;
        let mut map = Map::new();
        while let Some(key) = fields.next_key_seed(KeySeed(|key: &str| self.0.check_key(key, &map)))? {
            let value = self.0.inside(PathStep::Key(key.clone()), || fields.next_value_seed(self))?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

fn inexact(value: impl fmt::Display) -> String {
    format!("{value} is beyond ±{EXACT_INTEGER_MAX}, where JSON parsers lose digits: write it in quotes")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_become_json_in_order() {
        let read = documents("a: 1\nb: [x, 1.5, true, null]\n---\n---\n\"c\": &a {d: e}\nf: *a\n");
        let values: Vec<_> = read.into_iter().map(Result::unwrap).collect();
        let third = json!({"c": {"d": "e"}, "f": {"d": "e"}});
        assert_eq!(values, [json!({"a": 1, "b": ["x", 1.5, true, null]}), Value::Null, third]);
    }

    #[test]
    fn values_that_json_parsers_read_differently_are_refused() {
        for (text, path, line, rule) in [
            ("a: 1\nb:\n  c: 1\n  c: 2\n", "b.c", 4, "twice"),
            ("a: 1\nb: 9007199254740993\n", "b", 2, "digits"),
            ("a: -9007199254740993\n", "a", 1, "digits"),
            ("a:\n- 1\n- 99999999999999999999999\n", "a[1]", 3, "digits"),
            ("a: .nan\n", "a", 1, "no number"),
            ("a: b\nc: !secret d\n", "c", 2, "tag"),
            ("a: b\nc: [d\n", "c[1]", 3, "not YAML"),
            ("a: *b\n", "a", 1, "anchor"),
            ("a:\n\tb: c\n", "a", 2, "indent with spaces"),
        ] {
            let refused = documents(text).remove(0).unwrap_err();
            assert_eq!((refused.path.to_string().as_str(), refused.line), (path, Some(line)), "{refused:?}");
            assert!(refused.rule.contains(rule), "{refused:?}");
        }
    }

    #[test]
    fn a_refused_document_does_not_hide_the_next() {
        let read = documents("a: 1\na: 2\n---\nb: 1\n");
        assert!(read[0].is_err());
        assert_eq!(read[1], Ok(json!({"b": 1})));
    }

    #[test]
    fn broken_syntax_ends_the_file() {
        let read = documents("a: 1\n---\nb: [\n---\nc: 1\n");
        assert_eq!(read.len(), 2, "{read:?}");
        assert!(read[1].is_err());
    }

    #[test]
    fn aliases_that_multiply_are_stopped() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..8 {
            let of = vec![format!("*a{}", level - 1); 10].join(", ");
            text += &format!("a{level}: &a{level} [{of}]\n");
        }
        let read = documents(&text);
        assert!(read[0].as_ref().unwrap_err().rule.contains("values"), "{read:?}");
    }

    #[test]
    fn aliases_of_a_long_text_count_towards_the_limit() {
        let long = "x".repeat(FILE_BYTES_MAX / 2);
        for (text, fits) in [
            (format!("a: &a \"{long}\"\nb: [{}]\n", ["*a"; 6].join(",")), true),
            (format!("a: &a \"{long}\"\nb: [{}]\n", ["*a"; 8].join(",")), false),
            (format!("a: &a \"{long}\"\nb: [{}]\n", ["{*a : 1}"; 8].join(",")), false),
        ] {
            let read = documents(&text).remove(0).map(drop).map_err(|error| error.rule);
            assert_eq!(read.is_ok(), fits, "{read:?}");
            assert!(read.is_ok() || read.unwrap_err().contains("bytes of text"));
        }
    }

    #[test]
    fn aliases_that_stop_the_parser_are_explained() {
        let mut text = "a0: &a0 x\n".to_owned();
        for level in 1..12 {
            text += &format!("a{level}: &a{level} [*a{0}, *a{0}, *a{0}]\n", level - 1);
        }
        let read = documents(&text);
        assert!(read[0].as_ref().unwrap_err().rule.starts_with("uses anchors too often"), "{read:?}");
    }

    #[test]
    fn too_many_documents_are_one_problem() {
        let read = documents(&"---\na: 1\n".repeat(DOCUMENTS_MAX + 10));
        assert_eq!(read.len(), DOCUMENTS_MAX + 1);
        assert!(read[DOCUMENTS_MAX].is_err());
    }
}
