//! Finds the Git commit for `--version`. Works without Git and without a repository: the commit is then `unknown`.
//!
//! Only a release build watches the repository: a debug build that did would rebuild every service on each commit,
//! so it says `or later` instead.

use std::env;
use std::path::Path;
use std::process::Command;

/// Hex digits of a commit that are shown.
const COMMIT_DIGITS: &str = "--short=12";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MUSTER_COMMIT");
    let given = env::var("MUSTER_COMMIT").ok().filter(|commit| !commit.is_empty());
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if release && given.is_none() {
        watch();
    }
    let exact = release || given.is_some();
    let commit = given.or_else(|| git(&["rev-parse", COMMIT_DIGITS, "HEAD"]));
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let label = match commit {
        Some(commit) if exact => format!("commit {commit}"),
        Some(commit) => format!("commit {commit} or later, debug build"),
        None => "commit unknown".to_owned(),
    };
    println!("cargo::rustc-env=MUSTER_VERSION={version} ({label})");
}

/// Rebuilds when HEAD points elsewhere, or at another commit.
fn watch() {
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        // A path that does not exist would make Cargo run this at every build.
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
