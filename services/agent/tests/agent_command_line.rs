//! The program as a person meets it: what it says about bad settings and bad places, and the codes it ends with.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn agent(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster-agent"));
    command.args(["--site=plant7", "--device=press-4", "--runtime=simulated", "--nats-url=127.0.0.1:9"]);
    command.arg("--data-dir").arg(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn invalid_settings_are_listed_at_once_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("agent");
    let output = Command::new(env!("CARGO_BIN_EXE_muster-agent"))
        .args(["--site=Plant 7", "--data-dir"])
        .arg(&place)
        .args(["--runtime=docker", "--heartbeat=soon", "--label=x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    for flag in ["--site", "--device", "--runtime", "--heartbeat", "--label"] {
        assert!(said(&output).contains(flag), "{flag}: {}", said(&output));
    }
    assert!(!place.exists());
}

#[test]
fn an_unusable_data_directory_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = agent(&file.join("agent")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot use the data directory"), "{}", said(&output));
    assert!(said(&output).contains("writable"), "{}", said(&output));
}

#[test]
fn a_second_agent_on_a_directory_is_refused_and_the_first_one_drains() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = agent(dir.path()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !dir.path().join("agent.db").exists() {
        assert!(Instant::now() < deadline, "no database appears");
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = agent(dir.path()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let expected = format!("another agent (process {}) uses the data directory", first.id());
    assert!(said(&second).contains(&expected), "{}", said(&second));
    let pid = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(0));
}
