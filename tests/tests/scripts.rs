//! What `make`, the scripts in `.ci` and the Dockerfile do on a machine that lacks something, and with what they are told.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use clap::Parser as _;
use muster_simulator::config::{Cli, Settings, chaos};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What `make` would do, which does not care whether a `make` is above it.
fn dry(words: &[&str]) -> String {
    let mut command = Command::new("make");
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        command.env_remove(name);
    }
    let output = command.arg("--dry-run").args(words).current_dir(TOP).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Looks for git as root on a machine that has none, where apt-get ends like this.
fn look_for_git(apt_get: &str) -> Output {
    let path = tempfile::tempdir().unwrap();
    for (program, script) in [("id", "echo 0"), ("apt-get", apt_get)] {
        let program = path.path().join(program);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("/bin/sh");
    command.arg(Path::new(TOP).join(".ci/git")).env("PATH", path.path()).output().unwrap()
}

#[test]
fn git_that_cannot_be_installed_is_a_failure_that_says_so() {
    for apt_get in ["exit 100", r#"[ "$1" = update ]"#] {
        let output = look_for_git(apt_get);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("could not be installed"), "{apt_get}: {said}");
    }
    assert!(look_for_git("exit 0").status.success());
}

#[test]
fn whatever_makes_a_repository_sees_to_git_first() {
    for verb in ["demo", "chaos", "tools"] {
        let steps = dry(&[verb]);
        let first = steps.lines().next().unwrap_or_default();
        assert!([".ci/git", ".ci/tools >&2"].contains(&first), "make {verb}:\n{steps}");
    }
    assert!(std::fs::read_to_string(Path::new(TOP).join(".ci/tools")).unwrap().contains("\n.ci/git\n"));
}

/// The settings of the trial that a command line of `muster-simulator` begins.
fn trial(words: &[&str]) -> chaos::Config {
    let words = [&["muster-simulator"], words].concat();
    let Settings::Chaos(config) = Cli::parse_from(words).check(0, "bin".into()).unwrap() else { panic!() };
    config
}

#[test]
fn the_command_that_a_trial_tells_plays_the_very_trial_again() {
    let told = trial(&["chaos", "--seconds", "45", "--agents", "24", "--sites", "3", "--seed", "150"]);
    let replay = told.replay();
    let words: Vec<&str> = replay.split(' ').collect();
    assert_eq!(words[0], "make");
    let steps = dry(&words[1..]).replace("\\\n", " ").replace('\'', "");
    let step = steps.lines().find(|line| line.contains("muster-simulator chaos")).unwrap();
    let begun: Vec<&str> = step.split_whitespace().skip_while(|word| *word != "chaos").collect();
    let again = trial(&begun);
    let what = |config: &chaos::Config| (config.length, config.agents, config.sites, config.seed);
    assert_eq!(what(&again), what(&told), "{replay}");
}

#[test]
fn images_that_nobody_told_a_version_have_that_of_the_workspace() {
    let dockerfile = std::fs::read_to_string(Path::new(TOP).join("compose/Dockerfile")).unwrap();
    let version = format!("ARG VERSION={}", env!("CARGO_PKG_VERSION"));
    assert!(dockerfile.lines().any(|line| line == version), "compose/Dockerfile says another than {version}");
}
