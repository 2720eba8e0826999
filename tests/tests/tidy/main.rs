//! The rules of this repository as tests. Each test enforces its rule on every file and proves it on a bad text; a finding
//! names the file, the line and the rule.
//!
//! Rules that rustfmt, clippy and cargo-deny can check are left to them. `tree` reads the files, `law` holds the rules about
//! single files, `places` those about code that is allowed in one place only, `cycles` the rule about cycles of modules,
//! `consumers` the list of LEDGER's readers, `claims` the comparison with tests/CLAIMS.md, `words` the replaced names and
//! phrases (`lexer` splits code, comments and literals), `names` those about names of types and tests.

mod claims;
mod consumers;
mod cycles;
mod law;
mod lexer;
mod names;
mod places;
mod tree;
mod words;

use tree::{Finding, Source};

/// A rule about one file: the lines that break it, each with the rule in words.
type Rule = fn(&Source) -> Vec<Finding>;

/// Fails with every finding in the whole repository.
#[track_caller]
fn enforce(rule: Rule) {
    let found: Vec<String> = tree::sources().iter().flat_map(|source| source.report(&rule(source))).collect();
    assert!(found.is_empty(), "{} places break the rule:\n{}", found.len(), found.join("\n"));
}

/// The numbers of the lines a rule finds in a text, as if it stood at `path`.
fn lines_found(rule: Rule, path: &str, text: &str) -> Vec<usize> {
    rule(&Source::new(path, text)).into_iter().map(|finding| finding.line).collect()
}
