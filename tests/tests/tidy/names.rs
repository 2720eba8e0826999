//! Rules about names of types and tests: a crate uses the name of a type once, and the name of a test is short.
//!
//! The rule of types has exceptions from before, and these only become fewer.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{self, Source};

/// Characters that the name of a test may have.
const TEST_NAME_CHARS_MAX: usize = 70;
/// Names that a crate uses for several types, by its path.
const REPEATED_TYPES: [(&str, &str); 16] = [
    ("services/agent", "Inner"),
    ("services/agent", "Target"),
    ("services/agent", "WatchedUnit"),
    ("services/publisher", "Entry"),
    ("services/publisher", "Git"),
    ("shared/domain", "Decision"),
    ("shared/domain", "Lines"),
    ("shared/domain", "Outcome"),
    ("shared/domain", "Progress"),
    ("shared/domain", "Rejection"),
    ("shared/domain", "Room"),
    ("shared/domain", "Row"),
    ("shared/domain", "Rules"),
    ("shared/domain", "Step"),
    ("shared/domain", "Tally"),
    ("shared/domain", "Target"),
];

/// The name of a type that a line at the top level declares.
fn declared_type(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let name = ["struct ", "enum ", "trait ", "union "].iter().find_map(|kind| line.strip_prefix(*kind))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Names that a crate declares more than once, each with its crate.
fn repeated_types(sources: &[Source]) -> BTreeSet<(String, String)> {
    let mut files: BTreeMap<(String, String), usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.ships()) {
        let name = source.path.split("/src/").next().unwrap_or_default();
        for (_, line) in source.code() {
            if let Some(declared) = declared_type(line) {
                *files.entry((name.to_owned(), declared.to_owned())).or_default() += 1;
            }
        }
    }
    files.into_iter().filter(|(_, count)| *count > 1).map(|(key, _)| key).collect()
}

/// The names of the tests in a file.
fn test_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if !line.starts_with("//") {
            let name = line.trim_start_matches("async ").strip_prefix("fn ");
            names.extend(name.filter(|_| is_test).and_then(|rest| rest.split('(').next()));
            is_test = false;
        }
    }
    names
}

#[test]
fn a_crate_uses_the_name_of_a_type_once() {
    let twice = |path: &str| Source::new(path, "pub(crate) struct Row {\n");
    let found =
        repeated_types(&[twice("shared/a/src/b.rs"), twice("shared/a/src/c.rs"), twice("shared/d/src/e.rs")]);
    assert_eq!(found, BTreeSet::from([("shared/a".to_owned(), "Row".to_owned())]));
    let listed = REPEATED_TYPES.map(|(at, name)| (at.to_owned(), name.to_owned()));
    let (listed, found) = (BTreeSet::from(listed), repeated_types(&tree::sources()));
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "a crate declares several types of one name: {new:?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "these names are declared once by now; take them off REPEATED_TYPES: {gone:?}");
}

#[test]
fn the_name_of_a_test_is_short() {
    let text = "#[test]\nfn a() {}\n    #[tokio::test(flavor = \"multi_thread\")]\n    // b\n    async fn c() {}\nfn d() {}\n";
    assert_eq!(test_names(text), ["a", "c"]);
    let sources = tree::sources();
    let rust = sources.iter().filter(|source| source.is("rs"));
    let named =
        rust.flat_map(|source| test_names(&source.text).into_iter().map(|name| (source.path.as_str(), name)));
    let long: Vec<_> = named.filter(|(_, name)| name.chars().count() > TEST_NAME_CHARS_MAX).collect();
    assert!(long.is_empty(), "tests have a name over {TEST_NAME_CHARS_MAX} characters: {long:#?}");
}
