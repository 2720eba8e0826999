//! The process runtime after the death of the agent: what runs is found, taken over or stopped, and never doubled.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is the test's result")]

mod runtime_kit;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use muster_agent::runtime::process::ProcessRuntime;
use muster_agent::runtime::{Running, Runtime, Unit, code};
use muster_contract::canonical::Digest;
use runtime_kit::{DEADLINE, Device, beside, job, lives, script, shell, unit, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const TRACE_AND_STAY: &str = "echo $$ >> trace; touch ready; exec sleep 600";
/// Lists of a process that becomes another program all the time.
const EXEC_LISTS: u32 = 300;
const TRACE_AND_WAIT: &str =
    "echo $$ >> trace; touch ready; while [ ! -e die ]; do sleep 0.02; done; echo no more >&2; exit 7";

#[tokio::test]
async fn a_running_unit_is_adopted_and_its_exit_is_sent() {
    let mut device = Device::new();
    let web = script("web", TRACE_AND_WAIT);
    device.start(&web).await;
    device.restart();
    assert_eq!(device.inventory().await, [Running { name: web.name(), digest_prefix: web.digest_prefix() }]);
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace").len(), 1, "no twin");
    fs::write(device.work(&web).join("die"), "").unwrap();
    let exit = device.exit().await;
    assert_eq!((exit.name, exit.digest_prefix), (web.name(), web.digest_prefix()));
    assert_eq!(exit.error.code, code::EXITED);
    let said = "ended, exit status unknown, the process outlived an agent restart; last lines of ";
    assert!(
        exit.error.message.starts_with(said) && exit.error.message.ends_with("no more"),
        "{:?}",
        exit.error
    );
    assert_eq!(device.inventory().await, []);
}

#[tokio::test]
async fn an_adopted_unit_can_be_stopped() {
    let mut device = Device::new();
    let web = script("web", TRACE_AND_STAY);
    device.start(&web).await;
    device.restart();
    device.start(&web).await;
    device.stop(&web.name(), DEADLINE).await;
    assert_eq!(device.pids(), [0; 0]);
    assert_eq!(device.exit_told(), None);
}

#[tokio::test]
async fn only_what_is_left_of_readiness_is_waited_for() {
    let mut device = Device::new();
    let web = script(
        "web",
        "echo $$ >> trace; while [ ! -e go ]; do sleep 0.02; done; touch ready; exec sleep 600",
    );
    {
        let never = CancellationToken::new();
        let mut start = device.runtime.start(&web, &never);
        beside(&mut start, device.until_lines(&web, "trace", 1)).await;
    }
    device.restart();
    fs::write(device.work(&web).join("go"), "").unwrap();
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace").len(), 1, "no twin");
}

#[tokio::test]
async fn a_unit_that_was_late_when_the_agent_died_is_late_still() {
    let mut device = Device::new();
    let mut properties = shell("echo $$ >> trace; exec sleep 600", json!({"type": "file", "path": "never"}));
    properties["timeout"] = "100ms".into();
    let web = unit("web", properties);
    {
        let cancel = CancellationToken::new();
        let mut start = device.runtime.start(&web, &cancel);
        tokio::select! {
            biased;
            _ = &mut start => {}
            _ = device.until_lines(&web, "trace", 1) => {}
        }
    }
    device.restart();
    let error = device.try_start(&web).await.unwrap_err();
    assert_eq!(error.code, code::NOT_READY);
    assert_eq!(device.pids(), [0; 0]);
}

#[tokio::test]
async fn a_unit_that_became_ready_without_an_agent_is_ready_despite_a_timeout() {
    let mut device = Device::new();
    let timeout = Duration::from_secs(2);
    let waits = "echo $$ >> trace; while [ ! -e go ]; do sleep 0.02; done; touch ready; exec sleep 600";
    let mut properties = shell(waits, json!({"type": "file", "path": "ready"}));
    properties["timeout"] = "2s".into();
    let web = unit("web", properties);
    {
        let never = CancellationToken::new();
        let mut start = device.runtime.start(&web, &never);
        beside(&mut start, device.until_lines(&web, "trace", 1)).await;
    }
    device.restart();
    fs::write(device.work(&web).join("go"), "").unwrap();
    tokio::time::sleep(timeout).await;
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace").len(), 1, "no twin");
}

#[tokio::test]
async fn a_process_that_hides_its_environment_is_adopted_and_stopped() {
    let mut device = Device::new();
    let web = script("web", "echo $$ >> trace; touch ready; exec env -i sleep 600");
    device.start(&web).await;
    let pid: i32 = device.lines(&web, "trace")[0].parse().unwrap();
    until("its environment to be gone", || device.pids().is_empty().then_some(())).await;
    // The note is written beside the start; the agent's death must not come before it in this test.
    until("its note", || fs::exists(device.path().join("units/line/web.json")).unwrap().then_some(())).await;
    device.restart();
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace").len(), 1, "no twin");
    device.stop(&web.name(), DEADLINE).await;
    assert!(!lives(pid));
}

#[tokio::test]
async fn a_finished_job_does_not_run_again_until_it_was_stopped() {
    let mut device = Device::new();
    let job = job("job", "echo done >> trace");
    device.start(&job).await;
    let held = [Running { name: job.name(), digest_prefix: job.digest_prefix() }];
    assert_eq!(device.inventory().await, held);
    device.restart();
    assert_eq!(device.inventory().await, held, "it holds its place");
    device.start(&job).await;
    assert_eq!(device.lines(&job, "trace").len(), 1);
    let other = Unit { digest: Digest::of_bytes(b"other"), ..job.clone() };
    device.stop(&other.name(), DEADLINE).await;
    device.start(&other).await;
    assert_eq!(device.lines(&job, "trace").len(), 2, "another version is another job");
    device.stop(&job.name(), DEADLINE).await;
    assert_eq!(device.inventory().await, []);
    device.start(&job).await;
    assert_eq!(device.lines(&job, "trace").len(), 3, "a removal forgets it");
}

#[tokio::test]
async fn a_job_that_was_running_is_awaited_and_its_unknown_end_is_a_failure() {
    let mut device = Device::new();
    let job = job("job", "echo begun >> trace; while [ ! -e go ]; do sleep 0.02; done");
    {
        let never = CancellationToken::new();
        let mut start = device.runtime.start(&job, &never);
        beside(&mut start, device.until_lines(&job, "trace", 1)).await;
    }
    device.restart();
    fs::write(device.work(&job).join("go"), "").unwrap();
    // Whether the job ended before the start or under its eyes, nobody knows how, so it has to run again.
    if let Err(error) = device.try_start(&job).await {
        assert!(error.message.contains("exit status unknown"), "{error:?}");
        device.start(&job).await;
    }
    assert_eq!(device.lines(&job, "trace").len(), 2);
}

#[tokio::test]
async fn orphans_are_found_and_stopped() {
    let mut device = Device::new();
    let (web, old) = (script("web", TRACE_AND_STAY), script("old", TRACE_AND_STAY));
    device.start(&web).await;
    device.start(&old).await;
    device.restart();
    let found: Vec<_> = device.inventory().await.into_iter().map(|running| running.name).collect();
    assert_eq!(found, [old.name(), web.name()]);
    device.stop(&old.name(), DEADLINE).await;
    assert_eq!(device.pids().len(), 1);
    device.start(&web).await;
    assert_eq!(device.lines(&web, "trace").len(), 1);
}

#[tokio::test]
async fn another_version_left_by_an_earlier_life_never_runs_beside_the_new_one() {
    let mut device = Device::new();
    let old = script("web", "echo old >> trace; touch ready; exec sleep 600");
    device.start(&old).await;
    device.restart();
    let new = script("web", TRACE_AND_STAY);
    device.start(&new).await;
    assert_eq!(device.inventory().await, [Running { name: new.name(), digest_prefix: new.digest_prefix() }]);
    assert_eq!(device.pids().len(), 1);
}

#[tokio::test]
async fn a_unit_that_is_becoming_another_program_is_in_every_inventory() {
    let mut device = Device::new();
    let web = script("web", "echo 'exec sh again' > again; touch ready; exec sh again");
    device.start(&web).await;
    // It is recognised by its environment alone.
    until("its note", || fs::exists(device.path().join("units/line/web.json")).unwrap().then_some(())).await;
    device.restart();
    fs::remove_dir_all(device.path().join("units")).unwrap();
    for list in 0..EXEC_LISTS {
        let held = [Running { name: web.name(), digest_prefix: web.digest_prefix() }];
        assert_eq!(device.inventory().await, held, "list {list}");
    }
    device.stop(&web.name(), DEADLINE).await;
}

#[tokio::test]
async fn remaining_processes_are_no_version_and_are_terminated() {
    let mut device = Device::new();
    let web = script("web", "echo $$ >> trace; setsid sleep 600 & sleep 600 & touch ready; wait");
    device.start(&web).await;
    let main: i32 = device.lines(&web, "trace")[0].parse().unwrap();
    until("both children", || (device.pids().len() == 3).then_some(())).await;
    let children: Vec<_> = device.pids().into_iter().filter(|pid| *pid != main).collect();
    device.restart();
    kill_process(Pid::from_raw(main).unwrap(), Signal::KILL).unwrap();
    until("the main process to be gone", || (!lives(main)).then_some(())).await;
    assert_eq!(device.inventory().await, [Running { name: web.name(), digest_prefix: String::new() }]);
    device.start(&web).await;
    assert!(children.iter().all(|pid| !lives(*pid)), "they would hold its ports and files");
    assert_eq!(device.lines(&web, "trace").len(), 2);
}

#[tokio::test]
async fn agents_of_other_directories_and_devices_keep_to_themselves() {
    let (one, two) = (Device::new(), Device::new());
    let web = script("web", TRACE_AND_STAY);
    one.start(&web).await;
    two.start(&web).await;
    two.stop(&web.name(), DEADLINE).await;
    assert_eq!((one.inventory().await.len(), two.inventory().await.len()), (1, 0));
    assert_eq!(one.pids().len(), 1);
}

/// The variable with the data directory of an agent that is going to be killed; it also tags its children.
const KILLED_AGENT_DIR: &str = "RUNTIME_TEST_DIR";
/// The line that it prints before its start.
const ABOUT_TO_START: &str = "about to start";
/// Agents that are killed, each a little later than the one before: the first before the fork, the last after it.
const KILLED_AGENTS: u32 = 20;
/// The difference.
const LIFE_STEP: Duration = Duration::from_millis(1);

#[tokio::test]
async fn an_agent_killed_at_any_moment_of_a_start_leaves_no_twin() {
    if let Some(dir) = std::env::var_os(KILLED_AGENT_DIR) {
        return be_the_agent(Path::new(&dir)).await;
    }
    for round in 0..KILLED_AGENTS {
        let device = Device::new();
        kill_an_agent(device.path(), LIFE_STEP * round).await;
        until("its half-made children to be made", || carriers(device.path()).is_empty().then_some(())).await;
        device.start(&to_be_found()).await;
        assert_eq!(device.pids().len(), 1, "round {round}");
        device.stop(&to_be_found().name(), DEADLINE).await;
        assert_eq!(device.pids(), [0; 0]);
    }
}

/// Runs this very test as an agent, and kills it when it has lived so long since the beginning of a start.
async fn kill_an_agent(dir: &Path, life: Duration) {
    let this_test = "an_agent_killed_at_any_moment_of_a_start_leaves_no_twin";
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this_test, "--nocapture"])
        .env(KILLED_AGENT_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(ABOUT_TO_START))).unwrap().unwrap();
    tokio::time::sleep(life).await;
    agent.kill().unwrap();
    agent.wait().unwrap();
}

async fn be_the_agent(dir: &Path) {
    let (exits, _keep) = tokio::sync::mpsc::channel(1);
    let runtime = ProcessRuntime::new("plant/press".parse().unwrap(), dir, exits);
    println!("{ABOUT_TO_START}");
    let started = runtime.start(&to_be_found(), &CancellationToken::new()).await;
    println!("{started:?}");
    std::future::pending::<()>().await;
}

fn to_be_found() -> Unit {
    unit("web", json!({"command": "sleep", "args": ["600"], "readiness": {"type": "uptime", "for": "0s"}}))
}

/// Processes that carry the killed agent's environment: itself, and children that have not become the workload yet.
fn carriers(dir: &Path) -> Vec<PathBuf> {
    let mark = format!("{KILLED_AGENT_DIR}={}", dir.display());
    let carries = |folder: &PathBuf| {
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(carries).collect()
}
