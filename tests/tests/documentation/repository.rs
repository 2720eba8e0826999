//! The files of the repository, as the rules read them.

use std::fs;
use std::path::Path;

use super::markdown::Page;

/// Folders that hold nothing that is kept.
const SKIPPED: [&str; 6] = ["target", ".git", ".tools", ".demo", "__pycache__", "node_modules"];
const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

pub(crate) fn exists(path: &str) -> bool {
    Path::new(TOP).join(path).exists()
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(Path::new(TOP).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn write(path: &str, text: &str) {
    fs::write(Path::new(TOP).join(path), text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Every page of the documentation.
pub(crate) fn pages() -> Vec<Page> {
    files("", "md").iter().map(|path| Page::new(path, &read(path))).collect()
}

/// Every file below a folder with this ending, by its path from the top.
pub(crate) fn files(folder: &str, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    walk(folder, &mut found);
    found.retain(|path| path.rsplit_once('.').is_some_and(|(_, other)| other == ending));
    found.sort();
    found
}

/// The names right below a folder.
pub(crate) fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(TOP).join(folder)).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn walk(folder: &str, found: &mut Vec<String>) {
    for name in names(folder) {
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let full = Path::new(TOP).join(&path);
        if full.is_dir() && !full.is_symlink() && !SKIPPED.contains(&name.as_str()) {
            walk(&path, found);
        } else if full.is_file() {
            found.push(path);
        }
    }
}
