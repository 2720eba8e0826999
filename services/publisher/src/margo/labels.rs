//! Reads `labels.yaml`, the labels of a folder's devices: one document, a mapping of labels to values. It is no Margo
//! document, but is parsed by the same code, with the same problems.

use muster_contract::{LabelKey, LabelValue};

use super::locate;
use super::node::{Findings, Node};
use super::path::Path;
use super::{push_findings, text_of, yaml};
use crate::problems::Problems;

/// A label of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelEntry {
    /// Its name.
    pub label: LabelKey,
    /// Its value.
    pub value: LabelValue,
}

/// True for the path of a file of labels.
pub(crate) fn is_labels(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["labels.yaml", "labels.yml"].iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Reads the labels of one file. Problems are added to `problems` under the name `file`.
pub fn read(file: &str, text: &[u8], problems: &mut Problems) -> Vec<LabelEntry> {
    let Some(text) = text_of(file, text, problems) else { return Vec::new() };
    let mut labels = Vec::new();
    for (at, read) in yaml::documents(text).into_iter().enumerate() {
        match read {
            Ok(value) if value.is_null() => {}
            Ok(_) if at > 0 => {
                let rule = "is a second document; labels are one mapping";
                problems.push(file, || locate::line_of(text, at, &Path::default()), "", rule);
            }
            Ok(value) => {
                let mut found = Findings::default();
                labels = read_labels(&Node { value: &value, path: Path::default() }, &mut found);
                push_findings(file, text, at, found, problems);
            }
            Err(bad) => problems.push(file, || bad.line, bad.path, bad.rule),
        }
    }
    labels
}

/// The line of a label in a file, if the file has it.
pub fn line_of(text: &[u8], label: &LabelKey) -> Option<u64> {
    locate::line_of(std::str::from_utf8(text).ok()?, 0, &Path::default().key(label.as_str()))
}

fn read_labels(node: &Node<'_>, found: &mut Findings) -> Vec<LabelEntry> {
    let Some(object) = node.open_object(found) else { return Vec::new() };
    let mut labels = Vec::new();
    for (name, value) in object.map {
        let path = object.path.key(name);
        let label = name.parse::<LabelKey>().map_err(|error| found.push(&path, error.to_string()));
        let value = Node { value, path }.parse::<LabelValue>(found);
        labels.extend(label.ok().zip(value).map(|(label, value)| LabelEntry { label, value }));
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusals(text: &str) -> String {
        let mut problems = Problems::default();
        read("sites/a/labels.yaml", text.as_bytes(), &mut problems);
        problems.to_string()
    }

    #[test]
    fn labels_are_one_mapping_of_names_to_texts() {
        let mut problems = Problems::default();
        let labels = read("labels.yaml", b"region: north\nring: \"1\"\n", &mut problems);
        let shown: Vec<_> =
            labels.iter().map(|labels| format!("{}={}", labels.label, labels.value)).collect();
        assert_eq!((shown.join(" ").as_str(), problems.is_empty()), ("region=north ring=1", true));
        assert!(read("labels.yaml", b"# none yet\n", &mut problems).is_empty() && problems.is_empty());
    }

    #[test]
    fn a_malformed_label_is_named_by_line_field_and_rule() {
        for (text, words) in [
            (
                "region: North\n",
                "sites/a/labels.yaml:1: region: 'North' is not a valid value of a label: 1 to 63",
            ),
            ("ok: a\nRegion: north\n", "sites/a/labels.yaml:2: Region: 'Region' is not a valid label"),
            ("ring: 1\n", "is a number, not a text; write it in quotes"),
            ("ring:\n", "ring: is nothing, not a text"),
            ("- region\n", "is a list, not a mapping"),
            ("a: b\n---\nc: d\n", "is a second document"),
            ("a: b\na: c\n", "is there twice"),
        ] {
            assert!(refusals(text).contains(words), "{text:?}: {}", refusals(text));
        }
    }

    #[test]
    fn a_file_of_labels_is_recognised_by_its_name() {
        for path in ["sites/a/labels.yaml", "fleet/labels.yml", "sites/a/b/Labels.YAML"] {
            assert!(is_labels(path), "{path}");
        }
        for path in ["sites/a/my-labels.yaml", "sites/labels.yaml/x.yaml", "labels"] {
            assert!(!is_labels(path), "{path}");
        }
    }
}
