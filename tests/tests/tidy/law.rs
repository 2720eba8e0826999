//! Rules about a single file: how it begins, how long it is, what it must not hold.

use super::tree::{self, Finding, Source};
use super::{enforce, lines_found};

/// Lines a source file may have; 300 is the aim.
const FILE_LINES_MAX: usize = 500;
/// Lines a function may have.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines that the entry point of a program may have.
const MAIN_LINES_MAX: usize = 40;
/// Bytes any file may have: what is larger is made or fetched, not kept.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Words that mark unfinished code, split so that this file does not contain them.
const UNFINISHED: [&str; 10] = [
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("for", " now"),
    concat!("place", "holder"),
    concat!("simpli", "fied"),
    concat!("#[ign", "ore"),
];
/// File names that do not name their content.
const NAMELESS: [&str; 8] =
    ["util", "utils", "helper", "helpers", "common", "misc", "manager", "shared_types"];

fn header(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().find(|line| !line.starts_with("#!/")).unwrap_or_default();
    let (begins, with): (fn(&str) -> bool, _) = match source.name() {
        _ if source.is("rs") => (|line| line.starts_with("//! "), "`//! `"),
        _ if source.is_python() => {
            (|line| line.starts_with("\"\"\"") || line.starts_with("# "), "a docstring")
        }
        _ if source.is("md") => (|line| line.starts_with("# "), "a title"),
        _ if source.is("yaml") || source.is("yml") => return Vec::new(),
        // Cargo has a key for it, which the registry and the documentation show.
        "Cargo.toml" if source.text.contains("\ndescription = \"") => return Vec::new(),
        _ => (|line| line.starts_with("# "), "`# `"),
    };
    let rule = format!("a file says first what it is for: begin with {with}");
    if begins(first) { Vec::new() } else { vec![Finding::at(1, rule)] }
}

fn length(source: &Source) -> Vec<Finding> {
    let (limit, what) = match source.name() {
        "main.rs" if source.ships() => (MAIN_LINES_MAX, "the entry point of a program; move logic out of it"),
        _ if source.is("rs") || source.is_python() || source.is("sh") => {
            (FILE_LINES_MAX, "a file; find the noun to split by")
        }
        _ => return Vec::new(),
    };
    let lines = source.text.lines().count();
    let rule = || format!("{lines} lines are over the {limit} of {what}");
    if lines > limit { vec![Finding::at(limit + 1, rule())] } else { Vec::new() }
}

fn function_length(source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = source.text.lines().collect();
    let functions = lines.iter().enumerate().filter(|(_, line)| source.is("rs") && begins_function(line));
    let long = |(at, line): (usize, &&str)| {
        let lines = function_lines(&lines[at..], line);
        let rule =
            || format!("a function of {lines} lines is over the {FUNCTION_LINES_MAX}: lift a step out");
        (lines > FUNCTION_LINES_MAX).then(|| Finding::at(at + 1, rule()))
    };
    functions.filter_map(long).collect()
}

fn begins_function(line: &str) -> bool {
    let line = line.trim_start();
    let visible = line.strip_prefix("pub(").and_then(|rest| rest.split_once(") "));
    let line = visible.map_or(line, |(_, rest)| rest);
    let marks = ["pub", "const", "async", "unsafe", "extern"];
    let mut words = line.split_whitespace().skip_while(|word| marks.contains(word) || word.starts_with('"'));
    words.next() == Some("fn")
}

/// Lines up to the closing brace, which rustfmt puts where the function begins. Without a body, one.
fn function_lines(lines: &[&str], first: &str) -> usize {
    let indent = &first[..first.len() - first.trim_start().len()];
    let signature = lines.iter().position(|line| line.ends_with(['{', ';', '}'])).unwrap_or(0);
    if !lines[signature].ends_with('{') {
        return signature + 1;
    }
    let close = format!("{indent}}}");
    lines.iter().position(|line| *line == close).map_or(1, |at| at + 1)
}

fn unfinished(source: &Source) -> Vec<Finding> {
    let word = |line: &str| UNFINISHED.iter().find(|word| line.contains(**word)).copied();
    let found = source.text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, word(line)?)));
    found
        .map(|(at, word)| {
            Finding::at(at, format!("'{word}' marks something unfinished: finish it or open an issue"))
        })
        .collect()
}

fn named_after_a_noun(source: &Source) -> Vec<Finding> {
    let stem = |part: &str| part.split('.').next().unwrap_or_default().to_owned();
    let nameless = source.path.split('/').map(stem).find(|part| NAMELESS.contains(&part.as_str()));
    let rule = |name| format!("'{name}' says nothing of what is inside: find the noun it is about");
    nameless.map(|name| Finding::at(1, rule(name))).into_iter().collect()
}

fn map_without_logic(source: &Source) -> Vec<Finding> {
    if source.name() != "lib.rs" {
        return Vec::new();
    }
    let logic =
        |line: &str| begins_function(line) || line.starts_with("impl ") || line.starts_with("struct ");
    source.code_where(logic, "lib.rs is a map: what runs lives in a module with a name")
}

fn links(source: &Source) -> Vec<Finding> {
    if !source.is("md") {
        return Vec::new();
    }
    let mut fenced = false;
    let mut found = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        let dead = targets(line).filter(|target| !fenced && !resolves(&source.path, target));
        found.extend(dead.map(|target| Finding::at(at + 1, format!("the link '{target}' leads nowhere"))));
    }
    found
}

fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

fn resolves(from: &str, target: &str) -> bool {
    let path = target.split('#').next().unwrap_or_default();
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    let folder = tree::top().join(from);
    elsewhere || path.is_empty() || folder.parent().is_some_and(|folder| folder.join(path).exists())
}

fn too_large(files: &[(String, u64)]) -> Vec<String> {
    let large = files.iter().filter(|(_, bytes)| *bytes > FILE_BYTES_MAX);
    large
        .map(|(path, bytes)| format!("{path}:1: {bytes} bytes are over the {FILE_BYTES_MAX} of a file"))
        .collect()
}

#[test]
fn every_file_says_first_what_it_is_for() {
    let ok = "//! What.\n";
    assert_eq!(lines_found(header, "a.rs", "use b;\n"), [1]);
    assert_eq!(lines_found(header, "a.rs", "// a\n"), [1]);
    assert_eq!(lines_found(header, "a.py", "#!/usr/bin/env python3\nimport sys\n"), [1]);
    assert_eq!(lines_found(header, "Cargo.toml", "[package]\n"), [1]);
    assert_eq!(lines_found(header, "Makefile", ".PHONY: a\n"), [1]);
    assert_eq!(lines_found(header, ".ci/run", "#!/bin/sh\nset -e\n"), [1]);
    assert_eq!(lines_found(header, ".ci/get", "#!/usr/bin/env python3\nimport sys\n"), [1]);
    assert!(lines_found(header, "a.rs", ok).is_empty());
    assert!(lines_found(header, "a.py", "#!/usr/bin/env python3\n\"\"\"What.\"\"\"\n").is_empty());
    enforce(header);
}

#[test]
fn no_file_is_longer_than_its_limit() {
    assert_eq!(lines_found(length, "a.rs", &"\n".repeat(501)), [501]);
    assert_eq!(lines_found(length, "services/agent/src/main.rs", &"\n".repeat(41)), [41]);
    assert!(lines_found(length, "a.rs", &"\n".repeat(500)).is_empty());
    enforce(length);
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let long = |indent: &str, head: &str, lines: usize| {
        format!("\n{indent}{head} {{\n{}{indent}}}\n", format!("{indent}    step();\n").repeat(lines))
    };
    for head in ["fn f()", "pub(crate) async fn f()", "pub const fn f()", "pub(in crate::a) fn f()"] {
        assert_eq!(lines_found(function_length, "a.rs", &long("    ", head, 69)), [2], "{head}");
        assert!(lines_found(function_length, "a.rs", &long("", head, 68)).is_empty(), "{head}");
    }
    let declared = format!("trait T {{\n    fn f(\n        &self,\n    );\n{}}}\n", "    // a\n".repeat(80));
    assert!(lines_found(function_length, "a.rs", &declared).is_empty());
    enforce(function_length);
}

#[test]
fn nothing_is_marked_as_unfinished() {
    for word in UNFINISHED {
        assert_eq!(lines_found(unfinished, "a.rs", &format!("a\n// {word}\n")), [2], "{word}");
    }
    enforce(unfinished);
}

#[test]
fn every_module_is_named_after_what_it_holds() {
    for path in ["services/agent/src/utils.rs", "tests/src/common/mod.rs", "shared/bus/src/manager.rs"] {
        assert_eq!(lines_found(named_after_a_noun, path, ""), [1], "{path}");
    }
    assert!(lines_found(named_after_a_noun, "shared/service/src/life.rs", "").is_empty());
    enforce(named_after_a_noun);
}

#[test]
fn every_lib_is_a_map() {
    assert_eq!(lines_found(map_without_logic, "a/src/lib.rs", "//! A.\npub mod b;\npub fn c() {}\n"), [3]);
    assert!(lines_found(map_without_logic, "a/src/b.rs", "fn c() {}\n").is_empty());
    enforce(map_without_logic);
}

#[test]
fn every_link_leads_somewhere() {
    let text = "[a](no/such.md) [b](README.md)\n```\n[c](gone.md)\n```\n[d](https://example.com) [e](#top)\n[f](gone.md#g)\n";
    let found = lines_found(links, "Makefile.md", &text.replace("README.md", "Makefile"));
    assert_eq!(found, [1, 6]);
    enforce(links);
}

#[test]
fn no_file_is_larger_than_its_limit() {
    assert_eq!(too_large(&[("a".to_owned(), FILE_BYTES_MAX + 1), ("b".to_owned(), FILE_BYTES_MAX)]).len(), 1);
    let found = too_large(&tree::sizes());
    assert!(found.is_empty(), "{}", found.join("\n"));
}
