//! The path of a field in a document, and its place in the document's text.
//!
//! The place is found by parsing the text again up to the field, where the parser's error has the line. That is right for every
//! notation of a format, and costs time only for documents with problems.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// Into the field of a mapping.
    Key(String),
    /// Into the item of a list.
    Index(usize),
}

/// The steps of a path such as `plans[0].applications[1].ports`.
pub fn steps(path: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (key, indexes) = part.split_once('[').unwrap_or((part, ""));
        if !key.is_empty() {
            steps.push(PathStep::Key(key.to_owned()));
        }
        steps.extend(indexes.split(['[', ']']).filter_map(|index| index.parse().ok()).map(PathStep::Index));
    }
    steps
}

/// The place of a field, or of its nearest parent that is there: what `place` makes of the parser's error at it. `document` begins
/// to parse the document anew; `None` if there is no such document.
pub fn place_of<'de, D: Deserializer<'de>, T>(
    document: impl Fn() -> Option<D>,
    path: &[PathStep],
    place: impl Fn(D::Error) -> Option<T>,
) -> Option<T> {
    (0..=path.len()).rev().find_map(|depth| {
        let is_found = Cell::new(false);
        let stop = Probe { steps: &path[..depth], is_found: &is_found }.deserialize(document()?).err()?;
        if is_found.get() { place(stop) } else { None }
    })
}

/// Follows its steps and fails on purpose at the last one.
struct Probe<'a> {
    steps: &'a [PathStep],
    is_found: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // Without a further step every visit below is an error at this place.
        self.is_found.set(self.steps.is_empty());
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Probe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wanted field")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let [PathStep::Index(wanted), rest @ ..] = self.steps else {
            return Err(A::Error::custom("not below"));
        };
        for _ in 0..*wanted {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Probe { steps: rest, is_found: self.is_found }).map(|_| ())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let [PathStep::Key(wanted), rest @ ..] = self.steps else {
            return Err(A::Error::custom("not below"));
        };
        let matches = |key: &str| {
            let is_match = key == wanted;
            if is_match && rest.is_empty() {
                self.is_found.set(true);
                return Err("found");
            }
            Ok(is_match)
        };
        while let Some(is_match) = fields.next_key_seed(KeySeed(matches))? {
            if is_match {
                return fields.next_value_seed(Probe { steps: rest, is_found: self.is_found });
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Passes a mapping's key to a closure while the parser is at the key; the closure's error becomes the parser's, with its line.
pub struct KeySeed<F>(pub F);

impl<'de, T, F: FnOnce(&str) -> Result<T, &'static str>> DeserializeSeed<'de> for KeySeed<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Result<T, &'static str>> Visitor<'_> for KeySeed<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<T, E> {
        (self.0)(key).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_steps_into_mappings_and_lists() {
        let key = |name: &str| PathStep::Key(name.to_owned());
        assert_eq!(
            steps("a[0].b[1][2]"),
            [key("a"), PathStep::Index(0), key("b"), PathStep::Index(1), PathStep::Index(2)]
        );
        assert_eq!(steps("[3].c.."), [PathStep::Index(3), key("c")]);
        assert_eq!(steps(""), []);
    }
}
