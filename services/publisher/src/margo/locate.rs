//! Finds the line of a field in a file with several YAML documents.

use muster_contract::field_path::place_of;

use super::path::Path;

/// The line of a field in the `document`th document of a file (from 0), or of its nearest existing parent if the field is
/// missing. `None` only if there is no such document.
pub(super) fn line_of(text: &str, document: usize, path: &Path) -> Option<u64> {
    let source = || serde_norway::Deserializer::from_str(text).nth(document);
    place_of(source, path.steps(), |stop| stop.location().map(|at| at.line() as u64))
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
