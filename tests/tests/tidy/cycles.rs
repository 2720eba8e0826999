//! The rule about cycles of modules: a cycle has a parent and its direct children, and at most four files. Edges are the
//! paths in the code of a module that begin with `crate`, `super`, `self` or the name of a child. A path through an imported module
//! (`use crate::a; a::b::f()`) counts for that module alone.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{self, Source};

/// Files in a cycle at most.
const CYCLE_FILES_MAX: usize = 4;

/// A module, as the names from the root of its crate.
type Module = Vec<String>;

/// The modules that each module names.
fn edges(files: &[(Module, String)]) -> BTreeMap<Module, BTreeSet<Module>> {
    let known: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    let named = |(module, code): &(Module, String)| {
        let children = known.iter().filter(|child| is_child(child, module)).filter_map(|child| child.last());
        let begins = ["crate", "super", "self"].into_iter().chain(children.map(String::as_str));
        let paths = begins.flat_map(|begin| paths(code, begin));
        let named = paths.map(|path| resolve(module, &path, &known));
        (module.clone(), named.filter(|other| other != module).collect())
    };
    files.iter().map(named).collect()
}

fn is_child(module: &Module, parent: &Module) -> bool {
    module.len() == parent.len() + 1 && module.starts_with(parent)
}

/// The module that a path of another module refers to: the longest prefix of the path that is a module.
fn resolve(from: &Module, path: &[&str], known: &BTreeSet<&Module>) -> Module {
    let mut at = if path[0] == "crate" { Module::new() } else { from.clone() };
    for name in path.iter().filter(|name| !matches!(**name, "crate" | "self")) {
        if *name == "super" {
            at.pop();
            continue;
        }
        at.push((*name).to_owned());
        if !known.contains(&at) {
            at.pop();
            break;
        }
    }
    at
}

/// The paths in code that begin with a name; `a::{b, c}` counts as two.
fn paths<'a>(code: &'a str, begin: &str) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(begin).filter(|(at, _)| code[at + begin.len()..].starts_with("::")) {
        let before = &code[..at];
        let is_begin =
            before.chars().next_back().is_none_or(|one| !is_name(one) && !matches!(one, ':' | '$' | '.'));
        // A visibility (`pub(in crate::a)`) is no import.
        if is_begin && !before.ends_with("(in ") {
            expand(&code[at..], &[], &mut found);
        }
    }
    found
}

/// Adds the path at the beginning of a text, or one for each name of its group; returns the text after it.
fn expand<'a>(text: &'a str, prefix: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let end = text.find(|at: char| !is_name(at)).unwrap_or(text.len());
    let path = [prefix, &[&text[..end]]].concat();
    let rest = &text[end..];
    match rest.strip_prefix("::") {
        Some(group) if group.starts_with('{') => expand_group(&group[1..], &path, found),
        Some(rest) if rest.starts_with(is_name) => expand(rest, &path, found),
        _ => {
            found.push(path);
            rest
        }
    }
}

fn expand_group<'a>(mut rest: &'a str, path: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    loop {
        rest = rest.trim_start_matches([' ', '\n', ',']);
        if let Some(renamed) = rest.strip_prefix("as ") {
            rest = renamed.trim_start_matches(is_name);
        } else if rest.starts_with(is_name) {
            rest = expand(rest, path, found);
        } else {
            return rest.strip_prefix('}').unwrap_or(rest);
        }
    }
}

/// Whether a character is part of a name; `*` names everything.
fn is_name(at: char) -> bool {
    at.is_alphanumeric() || matches!(at, '_' | '*')
}

/// The cycles that break the rule.
fn cycles(files: &[(Module, String)]) -> Vec<Vec<Module>> {
    let edges = edges(files);
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|from| (from, reach(from, &edges))).collect();
    let cycle = |from: &&Module| -> Vec<Module> {
        let both = reached[*from].iter().filter(|other| reached[**other].contains(*from));
        both.map(|other| (*other).clone()).collect()
    };
    let all: BTreeSet<Vec<Module>> = reached.keys().map(cycle).filter(|cycle| cycle.len() > 1).collect();
    all.into_iter().filter(|cycle| !is_parent_with_children(cycle)).collect()
}

/// Every module that can be reached from one, in any number of steps.
fn reach<'a>(from: &'a Module, edges: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(edges.get(module).into_iter().flatten().filter(|other| reached.insert(*other)));
    }
    reached
}

fn is_parent_with_children(cycle: &[Module]) -> bool {
    let Some(parent) = cycle.iter().min_by_key(|module| module.len()) else { return true };
    cycle.len() <= CYCLE_FILES_MAX && cycle.iter().all(|module| module == parent || is_child(module, parent))
}

/// The modules of a crate that ship, each with its code.
fn modules(sources: &[Source], root: &str) -> Vec<(Module, String)> {
    let module = |source: &Source| {
        let path = source.path.strip_prefix(root)?.strip_suffix(".rs")?;
        let names = path.split('/').filter(|name| !matches!(*name, "lib" | "main" | "mod"));
        let code: Vec<&str> = source.code().map(|(_, line)| line).collect();
        (source.ships() && source.name() != "main.rs")
            .then(|| (names.map(str::to_owned).collect(), code.join("\n")))
    };
    sources.iter().filter_map(module).collect()
}

#[test]
fn a_cycle_of_modules_is_a_parent_with_its_children() {
    let found = |files: &[(&str, &str)]| {
        let module = |path: &str| path.split('/').map(str::to_owned).collect();
        let files: Vec<_> = files.iter().map(|(path, code)| (module(path), (*code).to_owned())).collect();
        cycles(&files).len()
    };
    assert_eq!(found(&[("a", "use crate::b::{self, C as D};"), ("b", "fn f() { crate::a::g() }")]), 1);
    assert_eq!(
        found(&[("a", "use self::b::B;"), ("a/b", "use super::{C, D};")]),
        0,
        "a parent and its child"
    );
    let siblings = [("a", ""), ("a/b", "use super::{c::C};"), ("a/c", "use crate::{\n    a::b::*,\n};")];
    assert_eq!(found(&siblings), 1, "two children without their parent");
    assert_eq!(found(&[("a", "use crate::b::B;"), ("b", "use other::a::A;")]), 0);
    let children = ["b", "c", "d", "e"].map(|name| (format!("a/{name}"), "use super::X;"));
    let mut large: Vec<(&str, &str)> = children.iter().map(|(path, code)| (path.as_str(), *code)).collect();
    large.push(("a", "use self::{b::B, c::C, d::D, e::E};"));
    assert_eq!(found(&large), 1, "five files");
    large.pop();
    large.push(("a", "use b::B; fn f() -> c::C { (d::D, e::E) }"));
    assert_eq!(found(&large), 1, "children by their names alone");
    let sources = tree::sources();
    for root in roots(&sources) {
        let modules = modules(&sources, &root);
        assert!(!modules.is_empty(), "{root} has no code");
        let cycles = cycles(&modules);
        assert!(cycles.is_empty(), "{root}: {cycles:?}");
    }
}

/// The roots of all crates that ship.
fn roots(sources: &[Source]) -> BTreeSet<String> {
    let root = |source: &Source| {
        let (root, _) = source.path.split_once("/src/").filter(|_| source.ships())?;
        (root.starts_with("services/") || root.starts_with("shared/")).then(|| format!("{root}/src/"))
    };
    sources.iter().filter_map(root).collect()
}
