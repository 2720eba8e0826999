//! The files of the repository, as a rule sees them: what is source, what ships, what is a comment.

use std::fs;
use std::path::Path;

/// Folders that hold nothing of ours, or nothing that is kept.
const SKIPPED: [&str; 6] = ["target", ".git", ".tools", ".demo", "__pycache__", "node_modules"];
/// Endings of files that are text written by people.
const TEXT: [&str; 7] = ["rs", "toml", "md", "py", "sh", "yaml", "yml"];

/// A text file, by its path from the top of the repository.
#[derive(Debug)]
pub(crate) struct Source {
    pub path: String,
    pub text: String,
    /// Is it a module that its parent declares for tests alone?
    only_for_tests: bool,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Counted from 1.
    pub line: usize,
    /// The rule, and what to do.
    pub rule: String,
}

impl Finding {
    pub(crate) fn at(line: usize, rule: impl Into<String>) -> Self {
        Self { line, rule: rule.into() }
    }
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), only_for_tests: false }
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub(crate) fn is(&self, extension: &str) -> bool {
        self.name().rsplit_once('.').is_some_and(|(_, ending)| ending == extension)
    }

    pub(crate) fn is_python(&self) -> bool {
        let first = self.text.lines().next().unwrap_or_default();
        self.is("py") || (first.starts_with("#!") && first.contains("python"))
    }

    /// Is it Rust that runs at a user's, not a test, a bench, an example or a build script?
    pub(crate) fn ships(&self) -> bool {
        let inside = |folder: &str| self.path.contains(folder);
        let home = self.path.starts_with("shared/") || self.path.starts_with("services/");
        home && self.is("rs") && inside("/src/") && !self.only_for_tests
    }

    /// The lines that are neither comments nor part of the unit tests at the end, numbered from 1.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let tests = |pair: &[&str]| {
            let inline = pair[1].ends_with('{') && pair[1].split_whitespace().any(|word| word == "mod");
            pair[0] == "#[cfg(test)]" && inline
        };
        let end = lines.windows(2).position(tests).unwrap_or(lines.len());
        let numbered = lines.into_iter().take(end).enumerate().map(|(at, line)| (at + 1, line));
        numbered.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// A finding for each line of code that `breaks` the rule.
    pub(crate) fn code_where(&self, breaks: impl Fn(&str) -> bool, rule: &str) -> Vec<Finding> {
        self.code().filter(|(_, line)| breaks(line)).map(|(at, _)| Finding::at(at, rule)).collect()
    }

    /// Findings as a person and an editor read them.
    pub(crate) fn report(&self, findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|found| format!("{}:{}: {}", self.path, found.line, found.rule)).collect()
    }
}

/// Every text file of the repository.
pub(crate) fn sources() -> Vec<Source> {
    let read = |path: String| Source::new(&path, &fs::read_to_string(top().join(&path)).unwrap_or_default());
    let mut sources: Vec<Source> = paths().into_iter().filter(|path| is_text(path)).map(read).collect();
    let modules: Vec<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        let rest = |module: &String| source.path.strip_prefix(module.as_str());
        source.only_for_tests = modules.iter().filter_map(rest).any(|rest| rest.starts_with(['.', '/']));
    }
    sources
}

/// The modules that a file declares for tests alone, by their paths without an ending.
fn test_modules(parent: &Source) -> Vec<String> {
    let stem = parent.path.strip_suffix(".rs").unwrap_or_default();
    let folder = match parent.name() {
        "lib.rs" | "main.rs" | "mod.rs" => stem.rsplit_once('/').map_or("", |(folder, _)| folder),
        _ => stem,
    };
    let lines: Vec<&str> = parent.text.lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let names = pairs.filter_map(|pair| pair[1].strip_suffix(';')?.split("mod ").nth(1));
    names.map(|name| format!("{folder}/{name}")).collect()
}

/// Every file of the repository with its size in bytes.
pub(crate) fn sizes() -> Vec<(String, u64)> {
    let size = |path: &str| fs::metadata(top().join(path)).map_or(0, |found| found.len());
    paths().into_iter().map(|path| (path.clone(), size(&path))).collect()
}

/// The top of the repository.
pub(crate) fn top() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn is_text(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.map_or(name == "Makefile" || path.starts_with(".ci/"), |ending| TEXT.contains(&ending))
}

fn paths() -> Vec<String> {
    let mut found = Vec::new();
    walk("", &mut found);
    found.sort();
    assert!(found.iter().any(|path| path == "Cargo.toml"), "{} is not the repository", top().display());
    found
}

fn walk(folder: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(top().join(folder)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !SKIPPED.contains(&name.as_str()) => walk(&path, found),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn what_ships_is_neither_test_nor_example() {
    let table = [
        ("services/agent/src/relay.rs", true),
        ("services/agent/tests/kill.rs", false),
        ("shared/service/examples/ticker.rs", false),
        ("shared/service/build.rs", false),
        ("tests/src/server.rs", false),
        ("services/agent/src/schema.sql", false),
    ];
    for (path, ships) in table {
        assert_eq!(Source::new(path, "").ships(), ships, "{path}");
    }
}

#[test]
fn a_module_declared_for_tests_alone_does_not_ship() {
    let text = "//! A.\nmod b;\n#[cfg(test)]\npub(crate) mod model;\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(test_modules(&Source::new("shared/a/src/lib.rs", text)), ["shared/a/src/model"]);
    assert_eq!(test_modules(&Source::new("shared/a/src/border.rs", text)), ["shared/a/src/border/model"]);
    let supervisor =
        sources().into_iter().find(|source| source.path == "shared/service/src/supervisor/tests.rs");
    assert!(supervisor.is_some_and(|source| !source.ships()));
}

#[test]
fn code_ends_where_the_unit_tests_begin_and_leaves_comments_out() {
    let text = "//! a\n#[cfg(test)]\nmod b;\n// c\nfn d() {}\n#[cfg(test)]\npub(crate) mod tests {\n}\n";
    let source = Source::new("a.rs", text);
    let lines: Vec<usize> = source.code().map(|(at, _)| at).collect();
    assert_eq!(lines, [2, 3, 5]);
}

#[test]
fn the_repository_is_read_whole() {
    let sources = sources();
    for path in ["Makefile", ".ci/run", "shared/service/src/supervisor.rs", "tests/tests/tidy/tree.rs"] {
        assert!(sources.iter().any(|source| source.path == path && !source.text.is_empty()), "{path}");
    }
    assert!(sources.iter().all(|source| !source.path.starts_with("target/")));
}
