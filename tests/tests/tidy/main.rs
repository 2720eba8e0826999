//! The law of this repository as a test. Each rule is enforced on every file, and proven on a bad piece of text
//! right beside it; a finding says the file, the line and the rule.
//!
//! What rustfmt, clippy and cargo-deny can say is theirs. `tree` reads the files, `law` holds the rules about
//! single files, `places` those about what may stand where, `consumers` who reads LEDGER, `claims` what is claimed in
//! tests/CLAIMS.md.

mod claims;
mod consumers;
mod law;
mod places;
mod tree;

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
