//! The output of `muster auth`, `enroll` and `revoke` as golden files under `tests/golden/ctl/`: real commands on a real directory of
//! keys, and a real server for revocations. Keys, tokens and folders are masked, because each run has others.
//! `UPDATE_GOLDEN=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use muster_identity::KeyPair;
use muster_tests::golden;
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::system::program;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test ctl_auth";
/// Characters of a public key.
const KEY_CHARS: usize = 56;

/// Compares with the golden file of this name.
#[track_caller]
fn golden(name: &str, text: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/ctl").join(format!("{name}.txt"));
    if let Some(difference) = golden::difference(&file, text, SWITCH) {
        panic!("{difference}Is the new output right? Then: {REMEDY}");
    }
}

/// A text in which public keys, tokens, the folder and the system's number of an error are masked.
fn masked(text: &str, folder: &Path) -> String {
    let text = text.replace(folder.to_str().unwrap(), "DIR").replace("(os error 61)", "(os error 111)");
    let mut masked = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)) {
        let end = word.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(word.len());
        let (body, rest) = word.split_at(end);
        let is_key = body.len() == KEY_CHARS && body.starts_with('U');
        masked += if is_key {
            "UKEY"
        } else if body.starts_with("eyJ") && body.split('.').count() == 3 {
            "TOKEN"
        } else {
            body
        };
        masked += rest;
    }
    masked
}

/// A command with its output, errors last, and with its exit code if that is not 0.
fn transcript(command: &str, done: &Output, folder: &Path) -> String {
    let mut shown = format!("$ muster {command}\n");
    for part in [&done.stdout, &done.stderr] {
        shown += &String::from_utf8_lossy(part);
    }
    if let Some(code) = done.status.code().filter(|code| *code != 0) {
        let _ = writeln!(shown, "(exit code {code})");
    }
    masked(&shown, folder)
}

#[test]
fn keys_and_credentials_are_created_listed_rotated_and_upgraded() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("keys");
    let key = KeyPair::new_user().public_key();
    let mut text = String::new();
    // A few hours more than whole days: seconds that pass between two commands change no word.
    for command in [
        "auth init --dir DIR/keys",
        "auth init --dir DIR/keys",
        "enroll harbour/crane --dir DIR/keys",
        "enroll harbour/crane --dir DIR/keys --key UKEY -o DIR/crane.jwt",
        "enroll harbour/crane --dir DIR/keys --valid 725h",
        "enroll harbour/winch --dir DIR/keys --valid 725h --creds-file DIR/winch.creds",
        "auth creds viewer --name anna --dir DIR/keys --valid 2165h",
        "auth creds operator --name ben --dir DIR/keys -o DIR/ben.creds",
        "auth leaf harbour --dir DIR/keys",
        "auth list --dir DIR/keys",
        "auth rotate operator --dir DIR/keys",
        "auth upgrade --dir DIR/keys",
    ] {
        let words = command.replace("DIR", home.path().to_str().unwrap()).replace("UKEY", &key);
        let done =
            Command::new(program("muster")).args(words.split(' ')).env("NO_COLOR", "1").output().unwrap();
        text += &transcript(command, &done, home.path());
    }
    assert!(dir.is_dir());
    golden("auth", &text);
}

#[tokio::test]
async fn a_revocation_that_no_server_confirms_exits_with_2() {
    let mut hub = Guarded::start();
    for name in ["press-4", "press-5"] {
        hub.enroll(&device(name), "1h");
    }
    let mut text = String::new();
    let mut run = |hub: &Guarded, words: &[&str]| {
        let auth = hub.auth().display().to_string();
        let done = hub.muster(&[words, &["--dir", &auth]].concat());
        let shown = transcript(&words.join(" "), &done, &hub.auth());
        text += &shown.replace(&hub.url(), "URL");
    };
    run(&hub, &["revoke", "plant7/press-4"]);
    run(&hub, &["revoke", "plant7/press-9"]);
    hub.server.stop();
    run(&hub, &["revoke", "plant7/press-5"]);
    hub.server.restart();
    run(&hub, &["auth", "push"]);
    golden("revoke", &text);
}
