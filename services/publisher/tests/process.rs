//! The program itself: its help, its refusals, its end.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_muster-publisher");

#[test]
fn the_help_names_every_setting_and_the_layout_of_a_repository() {
    let help = Command::new(PROGRAM).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for word in [
        "--git-url",
        "--git-branch",
        "--git-poll",
        "--git-token-file",
        "--data-dir",
        "--nats-url",
        "--creds",
        "--http-addr",
        "--log-format",
        "MUSTER_GIT_TOKEN_FILE",
        "sites/<site>/<device>/*.yaml",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word} is missing:\n{help}");
    }
}

#[test]
fn all_unusable_settings_are_reported_with_exit_code_2() {
    let run = Command::new(PROGRAM)
        .args(["--nats-url", "http://x", "--git-poll", "soon", "--git-branch", "a b"])
        .env("MUSTER_GIT_URL", "https://me:hidden@git.example/fleet")
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(2), "{said}");
    for flag in ["--nats-url", "--git-poll", "--git-branch", "--git-url"] {
        assert!(said.contains(flag), "{flag} is missing:\n{said}");
    }
    assert!(!said.contains("hidden"), "{said}");
}

#[test]
fn a_killed_publisher_leaves_a_clone_that_the_next_start_removes() {
    let temporary = tempfile::tempdir().unwrap();
    let start = || {
        let mut child = Command::new(PROGRAM)
            .args(["--nats-url", "nats://127.0.0.1:1", "--git-url", "/srv/fleet"])
            .env("TMPDIR", temporary.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(log.any(|line| line.unwrap().contains("cannot reach NATS yet")));
        // Its log goes on being read: a process without a reader ends by that.
        (child, log)
    };
    let left =
        || std::fs::read_dir(temporary.path()).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>();
    let (mut first, _log) = start();
    first.kill().unwrap();
    first.wait().unwrap();
    let clone = left();
    assert_eq!(clone.len(), 1, "{clone:?}");
    let (mut second, log) = start();
    assert!(!clone[0].exists() && left().len() == 1, "{:?}", left());
    kill_process(Pid::from_child(&second), Signal::TERM).unwrap();
    let rest: Vec<_> = log.map_while(Result::ok).collect();
    assert_eq!((second.wait().unwrap().code(), left().len()), (Some(0), 0), "{rest:?}");
}

#[test]
fn it_stops_when_asked_to_while_it_waits_for_nats() {
    let mut child = Command::new(PROGRAM)
        .args(["--nats-url", "nats://127.0.0.1:1", "--log-format", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("cannot reach NATS yet")));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let rest: Vec<_> = log.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest:?}");
}
