//! Reads `device.yaml`, which retires a device. It is no Margo document, but is parsed by the same code.

use super::node::{Findings, Node};
use super::path::Path;
use super::{push_findings, text_of, yaml};
use crate::problems::Problems;

/// True for the path of a tombstone.
pub fn is_one(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["device.yaml", "device.yml"].iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Whether the file retires its device. Problems are added to `problems` under the name `file`.
pub fn read(file: &str, text: &[u8], problems: &mut Problems) -> bool {
    let Some(text) = text_of(file, text, problems) else { return false };
    let mut retired = false;
    for (at, read) in yaml::documents(text).into_iter().enumerate() {
        match read {
            Ok(value) if value.is_null() => {}
            Ok(value) => {
                let mut found = Findings::default();
                retired |= is_retired(&Node { value: &value, path: Path::default() }, &mut found);
                push_findings(file, text, at, found, problems);
            }
            Err(bad) => problems.push(file, || bad.line, bad.path, bad.rule),
        }
    }
    retired
}

fn is_retired(node: &Node<'_>, found: &mut Findings) -> bool {
    let Some(object) = node.object(&["retired"], found) else { return false };
    let Some(retired) = object.required("retired", found) else { return false };
    let said = retired.value.as_bool();
    if said.is_none() {
        found.push(&retired.path, "is neither true nor false");
    }
    said == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_says_retired_and_nothing_else() {
        for (text, retired, words) in [
            ("retired: true\n", true, ""),
            ("retired: false\n", false, ""),
            ("# nothing yet\n", false, ""),
            ("retired: yes please\n", false, "device.yaml:1: retired: is neither true nor false"),
            ("retierd: true\n", false, "retierd: is not a field here; retired are"),
            ("- retired\n", false, "is a list, not a mapping"),
        ] {
            let mut problems = Problems::default();
            assert_eq!(read("device.yaml", text.as_bytes(), &mut problems), retired, "{text}");
            assert!(
                problems.to_string().contains(words) && problems.is_empty() == words.is_empty(),
                "{problems}"
            );
        }
        assert!(is_one("sites/a/one/Device.yml") && !is_one("sites/a/one/my-device.yaml"));
    }
}
