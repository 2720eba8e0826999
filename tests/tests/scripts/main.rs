//! The behaviour of `make`, the scripts in `.ci` and the Dockerfile on a machine that lacks something, and their arguments;
//! the help of the programs, and the content of a release ([`release`]).

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod release;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use clap::Parser as _;
use muster_simulator::config::{Cli, Settings, chaos, demo};
use muster_tests::system::program;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The commands that `make` would run, independent of a `make` above it.
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

/// The variables of `compose/up.sh` that choose ports.
const PORTS: [&str; 6] = [
    "MUSTER_PORT",
    "MUSTER_WEB_PORT",
    "MUSTER_MARGO_PORT",
    "MUSTER_WS_PORT",
    "MUSTER_GIT_PORT",
    "MUSTER_GRAFANA_PORT",
];

/// Runs `compose/up.sh` on a machine whose `docker` is a script; variables choose what it lacks.
fn up(docker: &str, words: &[&str], variables: &[(&str, String)]) -> (bool, String) {
    let path = tempfile::tempdir().unwrap();
    for (name, script) in [("docker", docker), ("docker-compose", "exit 1")] {
        let program = path.path().join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let search = format!("{}:/usr/bin:/bin", path.path().display());
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut command = Command::new(Path::new(TOP).join("compose/up.sh"));
    let ports = PORTS.map(|name| (name, free()));
    command
        .args(words)
        .env("PATH", search)
        .env_remove("COMPOSE_PROFILES")
        .envs(ports)
        .envs(variables.iter().cloned());
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_fleet_that_started_says_where_its_page_is() {
    let started = "started: compose up --detach --scale agent=2\n";
    let page = |answer: &str| {
        let docker = format!(
            r#"case "$*" in "compose up"*) echo "started: $*";; "compose port gateway 8080") {answer};; esac"#
        );
        let (passed, said) = up(&docker, &["--scale", "agent=2"], &[]);
        assert!(passed, "{answer}: {said}");
        said.strip_prefix(started).unwrap_or_else(|| panic!("{answer}: {said}")).to_owned()
    };
    assert_eq!(page("echo 127.0.0.1:9090"), "the page of the fleet: http://127.0.0.1:9090/\n");
    for no_gateway in ["echo no container >&2; exit 1", "echo", "echo :0"] {
        assert_eq!(page(no_gateway), "", "{no_gateway}");
    }
    let fails = r#"case "$1 $2" in "compose up") exit 3;; "compose port") echo 127.0.0.1:9090;; esac"#;
    let (passed, said) = up(fails, &[], &[]);
    assert!(!passed && said.is_empty(), "{said}");
}

#[test]
fn a_fleet_that_cannot_start_says_what_is_missing_and_what_to_do() {
    let works = r#"case "$1 $2" in "compose up") echo "started: $*";; esac"#;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let is_taken = format!("port {port} of 127.0.0.1 is taken");
    let table: [(&str, &[&str], [&str; 2]); 4] = [
        (
            r#"[ "$1" != version ] || { echo "cannot connect" >&2; exit 1; }"#,
            &[],
            ["no Docker engine answers: cannot connect", "systemctl start docker"],
        ),
        (
            r#"[ "$1 $2" != "compose version" ]"#,
            &[],
            ["no Compose command is here", "install Docker's compose plugin or docker-compose"],
        ),
        (
            r#"[ "$1 $2 $3" != "image inspect muster-gateway:latest" ]"#,
            &["--no-build"],
            ["there is no image muster-gateway:latest", "compose/offline.sh"],
        ),
        (
            r#"[ "$1 $2" != "image inspect" ]"#,
            &["--no-build"],
            ["there is no image muster-nats:latest", "compose/offline.sh"],
        ),
    ];
    for (docker, words, told) in table {
        let (started, said) = up(docker, words, &[]);
        assert!(!started && told.iter().all(|told| said.contains(told)), "{told:?}: {said}");
    }
    for variable in PORTS {
        let (started, said) = up(works, &["prometheus", "grafana"], &[(variable, port.clone())]);
        assert!(!started && said.contains(&is_taken) && said.contains(&format!("{variable}=PORT")), "{said}");
    }
    let (started, said) = up(works, &[], &[("MUSTER_GRAFANA_PORT", port)]);
    assert!(started, "Grafana is not started: {said}");
    drop(taken);
}

#[test]
fn an_image_larger_than_a_release_image_may_be_is_refused() {
    let sizes = |bytes: u64| {
        let path = tempfile::tempdir().unwrap();
        let program = path.path().join("docker");
        let script = format!("#!/bin/sh\n[ \"$2\" = ls ] && echo muster-ctl:x && exit\necho {bytes}\n");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let search = format!("{}:/usr/bin:/bin", path.path().display());
        let mut command = Command::new(Path::new(TOP).join(".ci/image-sizes"));
        let output = command.arg("x").env("PATH", search).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    const MIB: u64 = 1024 * 1024;
    assert!(sizes(30 * MIB).0);
    let (passed, said) = sizes(30 * MIB + 1);
    assert!(!passed && said.contains("30 MiB"), "{said}");
}

#[test]
fn release_images_are_made_and_checked_by_a_verb_that_the_summary_names() {
    let read = |path: &str| std::fs::read_to_string(Path::new(TOP).join(path)).unwrap();
    // Without a variable that names other programs, or allows large images.
    assert_eq!(dry(&["images"]), "compose/offline.sh\n");
    assert!(read("compose/offline.sh").contains("\n.ci/image-sizes \"$tag\" || "));
    let untried = read(".ci/test");
    let named: Vec<_> =
        untried.lines().filter(|line| line.contains("not_run \"sizes of release images\"")).collect();
    assert!(named.len() == 2 && named.iter().all(|line| line.contains("make images")), "{named:?}");
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
fn trial(words: &[&str]) -> chaos::ChaosConfig {
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
    let what = |config: &chaos::ChaosConfig| (config.length, config.agents, config.sites, config.seed);
    assert_eq!(what(&again), what(&told), "{replay}");
}

/// The settings of the demo that `make` starts with these words.
fn demo_of(words: &[&str]) -> demo::DemoConfig {
    let steps = dry(&[&["demo"], words].concat()).replace('\'', "");
    let step = steps.lines().find(|line| line.contains("muster-simulator demo")).unwrap();
    let begun = step.split_whitespace().skip_while(|word| *word != "demo");
    let cli = Cli::parse_from(["muster-simulator"].into_iter().chain(begun));
    let Settings::Demo(config) = cli.check(0, "bin".into()).unwrap() else { panic!("{step}") };
    config
}

#[test]
fn a_demo_releases_in_waves_if_it_is_given_the_time() {
    for (words, has_rollouts) in
        [(&[][..], true), (&["DEMO_SECONDS=180"], true), (&["DEMO_SECONDS=45", "DEMO_JSON=1"], false)]
    {
        let config = demo_of(words);
        assert_eq!(config.rollouts.is_some(), has_rollouts, "{words:?}");
        assert_eq!(config.json, words.len() == 2, "{words:?}");
    }
}

#[test]
fn images_that_nobody_told_a_version_have_that_of_the_workspace() {
    let dockerfile = std::fs::read_to_string(Path::new(TOP).join("compose/Dockerfile")).unwrap();
    let version = format!("ARG VERSION={}", env!("CARGO_PKG_VERSION"));
    assert!(dockerfile.lines().any(|line| line == version), "compose/Dockerfile says another than {version}");
}

/// Where tests name themselves as not run.
const NOT_ALWAYS_RUN: [&str; 14] = [
    "services/agent/src/outbox/tests/damage.rs",
    "tests/tests/alerts/main.rs",
    "tests/tests/chaos.rs",
    "tests/tests/ctl_top.rs",
    "tests/tests/disk.rs",
    "tests/tests/examples/guide.rs",
    "tests/tests/examples/main.rs",
    "tests/tests/gateway/browser/driver.rs",
    "tests/tests/gateway/grpc_python.rs",
    "tests/tests/honesty.rs",
    "tests/tests/kubernetes/porch.rs",
    "tests/tests/kubernetes/real.rs",
    "tests/tests/names.rs",
    "tests/tests/security/clients.rs",
];

/// The result of `.ci/not-run` for tests and steps that could not run.
fn not_run(ci: bool, tried_not: &str, allowed: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, list) = (folder.path().join("not-run"), folder.path().join("allowed"));
    std::fs::write(&file, tried_not).unwrap();
    std::fs::write(&list, allowed).unwrap();
    let mut command = Command::new(Path::new(TOP).join(".ci/not-run"));
    let output = command.args([file, list]).env("CI", ci.to_string()).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn ci_fails_on_what_was_not_run_unless_it_is_listed_with_a_reason() {
    let tried_not = "advisories: no network\na_full_disk: nobody may mount\n";
    let (passed, said) = not_run(false, tried_not, "");
    assert!(passed && said.contains("NOT RUN  a_full_disk: nobody may mount"), "{said}");
    for allowed in ["", "a_full_disk:\n", "a_full_disk: \n", "# a_full_disk: x\n", "a_full: x\n"] {
        let (passed, said) = not_run(true, tried_not, &format!("advisories: no GitHub\n{allowed}"));
        assert!(!passed && said.contains("FAILED   a_full_disk") && !said.contains("FAILED   adv"), "{said}");
    }
    let (passed, said) = not_run(true, tried_not, "advisories: no GitHub\na_full_disk: a sandbox\n");
    assert!(passed && !said.contains("FAILED"), "{said}");
    assert!(not_run(true, "", "").0);
}

#[test]
fn whatever_ci_may_go_without_is_a_step_or_a_test() {
    let read = |path: &str| std::fs::read_to_string(Path::new(TOP).join(path)).unwrap();
    let (allowed, steps) = (read(".ci/not-run-allowed"), read(".ci/test"));
    let names =
        allowed.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once(": ").unwrap());
    for (name, reason) in names {
        let is_test = || tests_that_may_not_run().contains(&format!("\"{name}\""));
        assert!(steps.contains(&format!("not_run \"{name}\"")) || is_test(), "{name} is nothing that runs");
        assert!(reason.len() > 20, "{name}: '{reason}' is no reason");
    }
}

/// Steps of `.ci/test` that take the place of others, or need a registry of public images.
const STEPS_BESIDE: [&str; 2] = ["tests, documentation included", "images from public images"];

#[test]
fn the_budgets_of_the_steps_are_within_that_of_a_whole_run() {
    let script = std::fs::read_to_string(Path::new(TOP).join(".ci/test")).unwrap();
    let whole = script.lines().find_map(|line| line.strip_prefix("total_budget=")).unwrap();
    let budget = |line: &str| {
        let (name, seconds) = line.trim().strip_prefix('[')?.split_once("]=")?;
        Some((name.trim_matches('"').to_owned(), seconds.parse::<u32>().ok()?))
    };
    let mut budgets: BTreeMap<_, _> = script.lines().filter_map(budget).collect();
    for step in script.split("step \"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(budgets.contains_key(step), "{step} has no budget");
    }
    budgets.retain(|name, _| !STEPS_BESIDE.contains(&name.as_str()));
    let sum: u32 = budgets.values().sum();
    assert!(sum <= whole.parse().unwrap(), "{sum} s of {whole} s");
}

/// The files with tests that may not run.
fn tests_that_may_not_run() -> String {
    let read = |path: &str| std::fs::read_to_string(Path::new(TOP).join(path)).unwrap();
    NOT_ALWAYS_RUN.map(read).concat()
}

/// The command lines whose help is read.
const HELP: [&[&str]; 16] = [
    &["muster-agent"],
    &["muster-federation"],
    &["muster-gateway"],
    &["muster-ingest"],
    &["muster-planner"],
    &["muster-probe"],
    &["muster-publisher"],
    &["muster-renewer"],
    &["muster-rollup"],
    &["muster-simulator"],
    &["muster"],
    &["muster", "why"],
    &["muster", "watch"],
    &["muster", "verify"],
    &["muster", "enroll"],
    &["muster", "restore"],
];

/// The lines of a help that end although the next word would fit.
fn lines_cut_short(help: &str, width: usize) -> Vec<String> {
    let lines: Vec<&str> = help.lines().collect();
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
    let fits = |line: &str, next: &str| {
        let word = next.split(' ').next().unwrap_or_default();
        line.chars().count() + 1 + word.chars().count() <= width
    };
    let pairs =
        lines.windows(2).filter(|pair| is_prose(pair[0]) && !pair[1].is_empty() && !pair[1].starts_with(' '));
    pairs.filter(|pair| fits(pair[0], pair[1])).map(|pair| pair.join("\n")).collect()
}

#[test]
fn a_help_is_wrapped_once_at_the_terminals_width() {
    assert_eq!(
        lines_cut_short("One that\ngoes on.\n\nUse:\n  a\nTwo words\nlonger", 10),
        ["One that\ngoes on."; 0]
    );
    assert_eq!(lines_cut_short("One that\ngoes on.\n", 20).len(), 1);
    for words in HELP {
        for width in [80, 100] {
            let mut command = Command::new(program(words[0]));
            let output =
                command.args(&words[1..]).arg("--help").env("COLUMNS", width.to_string()).output().unwrap();
            let cut = lines_cut_short(&String::from_utf8(output.stdout).unwrap(), width);
            assert!(cut.is_empty(), "{words:?} at {width} columns:\n{}", cut.join("\n--\n"));
        }
    }
}
