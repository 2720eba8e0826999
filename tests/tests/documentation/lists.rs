//! Compares the lists in pages with their sources: tests, metrics, units, pages.

use std::collections::BTreeSet;
use std::process::Command;

use super::commands::Known;
use super::markdown::Page;
use super::repository;

/// A name of code in a page is a test's from so many characters on.
const TEST_CHARS_MIN: usize = 25;
/// Entries that the top of the repository may have, beside those that git ignores.
const TOP: [&str; 24] = [
    ".cargo",
    ".ci",
    ".clippy.toml",
    ".config",
    ".deny.toml",
    ".dockerignore",
    ".editorconfig",
    ".git",
    ".github",
    ".gitignore",
    ".rustfmt.toml",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "compose",
    "rust-toolchain.toml",
    "schemas",
    "services",
    "shared",
];
/// Entries that work on a machine leaves there.
const MADE: [&str; 4] = ["target", ".tools", ".demo", ".ready"];

/// Words that pages do not use, each with the field's own.
const HABITS: [(&str, &str); 6] = [
    ("whoever", "name the actor"),
    ("said again", "re-asserted, repeated"),
    ("put out", "revoked, shut out"),
    ("let in", "enrolled, accepted"),
    ("whose place", "superseded"),
    ("is told", "name who reports what"),
];
/// A page that is generated from code.
const GENERATED: &str = "schemas/RIGHTS.md";

/// Words of [`HABITS`], and sentences that open with "Of".
pub(crate) fn habits(pages: &[Page]) -> Vec<String> {
    let mut found = Vec::new();
    for page in pages.iter().filter(|page| page.path != GENERATED) {
        for (at, line) in &page.prose {
            let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
            let lower = line.to_lowercase();
            let used = HABITS
                .iter()
                .filter(|(word, _)| lower.match_indices(word).any(|(at, _)| is_word(&lower, at, word.len())));
            found.extend(used.map(|(word, plain)| format!("{}:{at}: '{word}': {plain}", page.path)));
            if line.starts_with("Of ") || line.contains(". Of ") {
                found.push(format!("{}:{at}: a sentence opens with 'Of': begin with its subject", page.path));
            }
        }
    }
    found
}

fn is_word(line: &str, at: usize, length: usize) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + length..].chars().next())
}

/// The names of all functions that are tests, or may be.
pub(crate) fn tests() -> BTreeSet<String> {
    let sources = repository::files("", "rs").into_iter().map(|path| repository::read(&path));
    let name = |line: &str| {
        let line = line.trim_start().trim_start_matches("pub ").trim_start_matches("async ");
        Some(line.strip_prefix("fn ")?.split(['(', '<']).next()?.to_owned())
    };
    sources.flat_map(|text| text.lines().filter_map(name).collect::<Vec<_>>()).collect()
}

pub(crate) fn tests_that_do_not_exist(pages: &[Page]) -> Vec<String> {
    let tests = tests();
    let is_vector = |name: &str| repository::exists(&format!("schemas/vectors/{name}.json"));
    let is_test = |span: &str| {
        let of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        span.len() >= TEST_CHARS_MIN
            && span.chars().all(of_a_name)
            && !span.starts_with("muster_")
            && !is_vector(span)
    };
    // A number and `…` stand for all tests of a row; a longer beginning would stand for one, and nobody would notice another.
    let is_cut = |span: &str| span.strip_suffix("_…").is_some_and(|begin| begin.contains('_'));
    let gone = |page: &Page| {
        let named = page.spans().filter(|(_, span)| is_test(span) && !tests.contains(*span) || is_cut(span));
        named.map(|(at, span)| format!("{}:{at}: there is no test {span}", page.path)).collect::<Vec<_>>()
    };
    pages.iter().flat_map(gone).collect()
}

pub(crate) fn python_that_does_not_compile(pages: &[Page]) -> Vec<String> {
    let mut wrong = Vec::new();
    for page in pages {
        for block in page.blocks.iter().filter(|block| block.language == "python") {
            let text: String = block.lines.iter().map(|(_, line)| format!("{line}\n")).collect();
            let mut python = Command::new("python3");
            let check = "import sys; compile(sys.argv[1], 'block', 'exec')";
            let output = python.args(["-c", check, &text]).output().unwrap();
            if !output.status.success() {
                let at = block.lines.first().map_or(0, |(at, _)| *at);
                wrong.push(format!("{}:{at}: {}", page.path, String::from_utf8_lossy(&output.stderr)));
            }
        }
    }
    wrong
}

/// The file of metrics that several services register, and their prefixes.
const OF_SEVERAL_SERVICES: (&str, [&str; 2]) =
    ("shared/bus/src/query_metrics.rs", ["rollup_", "federation_"]);

/// Every metric that a service registers, as `/metrics` shows it, without the `_total` of a counter.
pub(crate) fn metrics() -> Vec<String> {
    let of =
        |path: &String| path.contains("/src/") && !path.contains("/tests") && !path.starts_with("tests/");
    let mut metrics = BTreeSet::new();
    for path in repository::files("", "rs").iter().filter(|path| of(path)) {
        let text = repository::read(path);
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let text: String = code.map(|line| format!("{line}\n")).collect();
        if !text.contains("registry.register(") {
            continue;
        }
        let prefix = text.split("sub_registry_with_prefix(\"").nth(1).and_then(|rest| rest.split('"').next());
        let prefixes = match OF_SEVERAL_SERVICES {
            (shared, prefixes) if shared == path => prefixes.map(str::to_owned).to_vec(),
            _ => vec![prefix.map_or_else(String::new, |prefix| format!("{prefix}_"))],
        };
        let registered = text.split("registry.register(").skip(1).map(str::trim_start);
        let listed =
            text.split("(\"").skip(1).filter(|rest| rest.starts_with("agent_") || rest.starts_with("link_"));
        let names = registered.filter_map(|rest| rest.strip_prefix('"')).chain(listed);
        let names = names.filter_map(|rest| rest.split('"').next());
        for name in names {
            metrics.extend(prefixes.iter().map(|prefix| format!("muster_{prefix}{name}")));
        }
    }
    metrics.into_iter().collect()
}

pub(crate) fn wrong_unit(known: &Known, path: &str) -> Vec<String> {
    wrong_lines(known, path, &repository::read(path))
}

/// Settings of a unit that no program of Muster has.
pub(crate) fn wrong_lines(known: &Known, path: &str, text: &str) -> Vec<String> {
    let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/")).unwrap_or_default();
    let program = started.split(' ').next().unwrap_or_default();
    if !Known::is_program(program) {
        return vec![format!("{path}: it starts '{program}', which is no program")];
    }
    let settings = text.lines().filter_map(|line| line.strip_prefix("Environment=")?.split('=').next());
    let ours = settings.filter(|name| name.starts_with("MUSTER_"));
    let unknown = ours.filter(|name| !known.has_variable(program, name));
    unknown.map(|name| format!("{path}: {program} has no setting {name}")).collect()
}

/// Services without a page, and decisions that the list leaves out.
pub(crate) fn pages_left_out() -> Vec<String> {
    let services = repository::names("services").into_iter().map(|name| format!("services/{name}"));
    let is_service = |folder: &String| repository::exists(&format!("{folder}/Cargo.toml"));
    let pages = services.filter(is_service).map(|folder| format!("{folder}/README.md"));
    let mut left_out: Vec<String> = pages.filter(|page| !repository::exists(page)).collect();
    let list = repository::read("shared/README.md");
    let decisions = repository::names("shared/decisions");
    left_out.extend(decisions.into_iter().filter(|page| !list.contains(&format!("(decisions/{page})"))));
    left_out
}

pub(crate) fn strangers_at_the_top() -> Vec<String> {
    let known =
        |name: &String| TOP.contains(&name.as_str()) || MADE.contains(&name.as_str()) || name == "tests";
    repository::names("").into_iter().filter(|name| !known(name)).collect()
}
