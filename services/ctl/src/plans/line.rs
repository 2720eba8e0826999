//! Finds the line of a field in YAML: parses the text again up to the field, so it covers every notation of YAML.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One step of a path: `applications` or `[2]`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep<'a> {
    Key(&'a str),
    Index(usize),
}

/// The line of a field, as `plans[0].applications[1].ports`; of its nearest parent that is there, if it is missing.
pub(crate) fn line_of(text: &str, path: &str) -> Option<u64> {
    let steps = steps(path);
    (0..=steps.len()).rev().find_map(|depth| {
        let is_found = Cell::new(false);
        let source = serde_norway::Deserializer::from_str(text);
        let stop = Probe { steps: &steps[..depth], is_found: &is_found }.deserialize(source).err()?;
        if is_found.get() { stop.location().map(|at| at.line() as u64) } else { None }
    })
}

fn steps(path: &str) -> Vec<PathStep<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (key, indices) = part.split_once('[').map_or((part, ""), |(key, rest)| (key, rest));
        if !key.is_empty() {
            steps.push(PathStep::Key(key));
        }
        let numbers = indices.split('[').filter_map(|index| index.trim_end_matches(']').parse().ok());
        steps.extend(numbers.map(PathStep::Index));
    }
    steps
}

/// Follows its steps and fails on purpose at the last one: the parser's error has the line.
struct Probe<'a> {
    steps: &'a [PathStep<'a>],
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
        f.write_str("the field")
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
        let key = KeyProbe { wanted, is_last: rest.is_empty(), is_found: self.is_found };
        while let Some(is_match) = fields.next_key_seed(key)? {
            if is_match {
                return fields.next_value_seed(Probe { steps: rest, is_found: self.is_found });
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Compares a key with the wanted one; fails on purpose at that key if it is the last step.
#[derive(Clone, Copy)]
struct KeyProbe<'a> {
    wanted: &'a str,
    is_last: bool,
    is_found: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for KeyProbe<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for KeyProbe<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        if key == self.wanted && self.is_last {
            self.is_found.set(true);
            return Err(E::custom("found"));
        }
        Ok(key == self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
plans:
  - name: web
    applications:
      - payloadName: one
        ports: [{protocol: TCP,
          port: 80}]
";

    #[test]
    fn a_field_has_its_line_and_a_missing_one_that_of_its_parent() {
        for (path, line) in [
            ("plans[0].name", 3),
            ("plans[0].applications[0].payloadName", 5),
            ("plans[0].applications[0].ports[0].port", 7),
            ("plans[0].applications[0].resources", 5),
            ("plans[0].applications[4]", 4),
            ("plans[0].namespace", 3),
            ("", 2),
        ] {
            assert_eq!(line_of(TEXT, path), Some(line), "{path}");
        }
    }
}
