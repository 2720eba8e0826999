//! Finds the line of a field by parsing the document again up to the field. That is right for every YAML notation, and costs
//! time only for documents with problems.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::key::Key;
use super::path::{Path, Step};

/// The line of a field in the `document`th document of a file (from 0), or of its nearest existing parent if the field is
/// missing. `None` only if there is no such document.
pub(super) fn line_of(text: &str, document: usize, path: &Path) -> Option<u64> {
    (0..=path.steps().len()).rev().find_map(|depth| {
        let found = Cell::new(false);
        let source = serde_norway::Deserializer::from_str(text).nth(document)?;
        let stop = Probe { steps: &path.steps()[..depth], found: &found }.deserialize(source).err()?;
        if found.get() { stop.location().map(|at| at.line() as u64) } else { None }
    })
}

/// Follows its steps and fails on purpose at the last one: the parser's error has the line.
struct Probe<'a> {
    steps: &'a [Step],
    found: &'a Cell<bool>,
}

impl<'a> Probe<'a> {
    fn after(&self, steps: &'a [Step]) -> Self {
        Self { steps, found: self.found }
    }

    /// Whether a key is the wanted one; an error if that is the last step.
    fn matches(&self, key: &str, wanted: &str, last: bool) -> Result<bool, &'static str> {
        if key == wanted && last {
            self.found.set(true);
            return Err("found");
        }
        Ok(key == wanted)
    }
}

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // Without a further step every visit below is an error at this place.
        self.found.set(self.steps.is_empty());
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Probe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the wanted field")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let [Step::Index(wanted), rest @ ..] = self.steps else { return Err(A::Error::custom("not below")) };
        for _ in 0..*wanted {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(self.after(rest)).map(|_| ())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let [Step::Key(wanted), rest @ ..] = self.steps else { return Err(A::Error::custom("not below")) };
        let matches = |key: &str| self.matches(key, wanted, rest.is_empty());
        while let Some(is_match) = fields.next_key_seed(Key(matches))? {
            if is_match {
                return fields.next_value_seed(self.after(rest));
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
id: one
spec:
  list:
    - name: a
    # another
    - {name: b, 'quoted': 1}
---

id: two
spec: {deep: [1,
  2]}
";

    #[test]
    fn a_field_has_the_line_of_its_name_and_an_item_its_first_line() {
        for (document, path, line) in [
            (0, "", 2),
            (0, "id", 2),
            (0, "spec", 3),
            (0, "spec.list", 4),
            (0, "spec.list[0].name", 5),
            (0, "spec.list[1]", 7),
            (0, "spec.list[1].quoted", 7),
            (1, "", 10),
            (1, "spec.deep[1]", 12),
        ] {
            let found = line_of(TEXT, document, &Path::default().below(path));
            assert_eq!(found, Some(line), "{document} {path}");
        }
    }

    #[test]
    fn a_missing_field_has_the_line_of_its_parent() {
        for (path, line) in [
            ("metadata", 2),
            ("id.inside", 2),
            ("spec.list[0].properties", 5),
            ("spec.list[7]", 4),
            ("spec[1]", 3),
        ] {
            assert_eq!(line_of(TEXT, 0, &Path::default().below(path)), Some(line), "{path}");
        }
        assert_eq!(line_of(TEXT, 2, &Path::default()), None);
    }
}
