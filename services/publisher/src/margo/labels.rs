//! `labels.yaml`: what groups the devices of a folder. One document, a mapping of labels to what they say. It is no
//! document of Margo's; it comes in by the same door and is judged with the same words.

use muster_contract::{LabelKey, LabelValue};

use super::locate;
use super::node::{Findings, Node};
use super::path::Path;
use super::{text_of, yaml};
use crate::problems::Problems;

/// A label as a file says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Its name.
    pub label: LabelKey,
    /// What it says.
    pub value: LabelValue,
}

/// True for the file of a folder that says its labels.
pub fn is_labels(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["labels.yaml", "labels.yml"].iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Reads the labels of one file. What is wrong goes to `problems` under the name `file`.
pub fn read(file: &str, text: &[u8], problems: &mut Problems) -> Vec<Said> {
    let Some(text) = text_of(file, text, problems) else { return Vec::new() };
    let mut said = Vec::new();
    for (at, read) in yaml::documents(text).into_iter().enumerate() {
        match read {
            Ok(value) if value.is_null() => {}
            Ok(_) if at > 0 => {
                let rule = "is a second document; labels are one mapping";
                problems.push(file, || locate::line_of(text, at, &Path::default()), "", rule);
            }
            Ok(value) => {
                let mut found = Findings::default();
                said = labels(&Node { value: &value, path: Path::default() }, &mut found);
                for finding in found.0 {
                    let line = || locate::line_of(text, at, &finding.path);
                    problems.push(file, line, &finding.path, &finding.rule);
                }
            }
            Err(bad) => problems.push(file, || bad.line, bad.path, bad.rule),
        }
    }
    said
}

/// Line of a label in a file, if it says it.
pub fn line_of(text: &[u8], label: &LabelKey) -> Option<u64> {
    locate::line_of(std::str::from_utf8(text).ok()?, 0, &Path::default().key(label.as_str()))
}

fn labels(node: &Node<'_>, found: &mut Findings) -> Vec<Said> {
    let Some(object) = node.open_object(found) else { return Vec::new() };
    let mut said = Vec::new();
    for (name, value) in object.map {
        let path = object.path.key(name);
        let label = name.parse::<LabelKey>().map_err(|error| found.push(&path, error.to_string()));
        let value = Node { value, path }.parse::<LabelValue>(found);
        said.extend(label.ok().zip(value).map(|(label, value)| Said { label, value }));
    }
    said
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
        let said = read("labels.yaml", b"region: north\nring: \"1\"\n", &mut problems);
        let shown: Vec<_> = said.iter().map(|said| format!("{}={}", said.label, said.value)).collect();
        assert_eq!((shown.join(" ").as_str(), problems.is_empty()), ("region=north ring=1", true));
        assert!(read("labels.yaml", b"# none yet\n", &mut problems).is_empty() && problems.is_empty());
    }

    #[test]
    fn what_is_no_label_is_named_by_line_field_and_rule() {
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
    fn the_file_is_known_by_its_name_alone() {
        for path in ["sites/a/labels.yaml", "fleet/labels.yml", "sites/a/b/Labels.YAML"] {
            assert!(is_labels(path), "{path}");
        }
        for path in ["sites/a/my-labels.yaml", "sites/labels.yaml/x.yaml", "labels"] {
            assert!(!is_labels(path), "{path}");
        }
    }
}
