//! Chaos: a real system on a secured hub is started, disturbed by a seeded schedule of faults, healed, and checked.
//!
//! ```text
//! secured: keys, TLS ──► processes (each a process) ──► executor: carries out ── schedule (faults), script (commits)
//!                                                           │ heal
//!                                                           ▼
//!                                          standby: take over from a killed owner on the calm hub
//!                                                           ▼
//!          monitor (subscriber) ─────►  checker (operator): at rest? any violation? ──► summary
//! ```
//!
//! It does not depend on how a service works: it checks what must hold after every schedule.

mod activity;
mod checker;
mod executor;
mod monitor;
mod plan;
mod process;
mod processes;
mod rollouts;
mod schedule;
mod script;
mod secured;
mod standby;
mod summary;
mod violation;
mod workloads;

use std::path::Path;
use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_identity::Role as Identity;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::checker::{CheckedCounts, Checker};
use self::executor::{FaultCounts, FaultExecutor};
use self::monitor::ViewMonitor;
use self::plan::PlanClient;
use self::processes::Processes;
use self::script::Script;
pub use self::secured::HubSecurity;
pub use self::summary::Summary;
use self::violation::Violation;
use crate::child::sweep;
use crate::config::chaos::ChaosConfig;
use crate::error::Error;
use crate::hub::Hub;
use crate::repository::Repository;
use crate::run_paths::RunPaths;

/// Time a healed fleet gets to come to rest without a violation: generous, because machines that test are slow and shared,
/// connections that were stalled are given up only after half a minute, and an instance of a plan that nobody has reported counts as
/// gone after two minutes.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two log messages about what is still missing.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// How SQLite and the system report a write for which there was no room; the last, where a limit stands for the disk.
const NO_ROOM: [&str; 3] = ["database or disk is full", "No space left on device", "disk I/O error"];
/// Looks for processes that are left at the end of a run.
const SWEEPS_MAX: usize = 50;
/// Time between two of them.
const SWEEP_EVERY: Duration = Duration::from_millis(20);
/// How any log reports a panic.
const PANIC: &str = "panicked at";
/// How the server and its clients report a right that a role lacks.
const MISSING_RIGHT: &str = "ermissions";

/// Runs the schedule until its end, or until `stop` is cancelled.
///
/// # Errors
/// The system could not be started, or a part of it ended by itself.
pub async fn run(config: &ChaosConfig, stop: &CancellationToken) -> Result<Summary, Error> {
    let paths = RunPaths::prepare(&config.location)?;
    let repository = Repository::create(paths.dir.join("repository")).await?;
    let mut script = Script::new(config.seed, &config.device_keys(), config.small_disks());
    repository.replace(&script.files())?;
    repository.commit("The first release").await?;
    let ended = disturb_and_check(config, paths.clone(), &repository, &mut script, stop).await;
    // Agents that were killed leave workloads behind, and a run that failed leaves all processes.
    kill_the_rest(&paths.dir).await;
    ended
}

/// Kills processes of the run until none is found: one that was forked during a look is found by the next.
async fn kill_the_rest(dir: &Path) {
    for _ in 0..SWEEPS_MAX {
        if sweep(dir) == 0 {
            return;
        }
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

async fn disturb_and_check(
    config: &ChaosConfig,
    paths: RunPaths,
    repository: &Repository,
    script: &mut Script,
    stop: &CancellationToken,
) -> Result<Summary, Error> {
    let mut summary = summary(config, &paths);
    let started = stop.run_until_cancelled(Processes::start(config, paths.clone(), repository)).await;
    let Some(processes) = started else { return Ok(summary) };
    let mut processes = processes?;
    let (counts, hub) = (FaultCounts::default(), processes.hub.clone());
    tracing::info!(nats.address = %hub.address, logs = %paths.logs().display(), "started all processes");
    let connect = async |role| Bus::connect(hub.bus_config(role), stop).await.map_err(Error::Bus);
    let monitor = ViewMonitor::start(connect(Identity::Subscriber).await?, stop.clone());
    let small_disks = config.small_disks();
    let bus = connect(Identity::Operator).await?;
    let governed = script.governed_devices();
    let may_be_node = |key: &&DeviceKey| !governed.contains(*key) && !script.runs_real_processes(key);
    let plan = PlanClient::new(bus.clone(), processes.devices.iter().filter(may_be_node).cloned());
    let person = plan::disturb(plan.as_ref(), config.seed).await?;
    let executor =
        FaultExecutor::new(&mut processes, script, repository, &monitor, small_disks, counts.clone());
    let rollup_outages = executor.run(config.seed, config.length, stop).await?;
    summary.plan_requests = person.end().await;
    if stop.is_cancelled() {
        summary.cut_short = true;
        processes.stop().await?;
        return Ok(summary);
    }
    tracing::info!("ended every fault; killing an owner and a rollup on the calm hub");
    let standbys = standby::check(&mut processes, &monitor, stop).await?;
    repair(script, repository, plan.as_ref()).await?;
    tracing::info!(takeover = ?standbys.takeover, "committed a good release; waiting until the fleet is at rest");
    let checker = Checker {
        hub: Hub::new(bus.clone()),
        bus,
        paths: paths.clone(),
        keys: hub.clone(),
        wanted: script.wanted(),
        governed,
        plan,
        real: processes.devices[..config.process_agents()].to_vec(),
        wiped: processes.wiped.clone(),
        monitor,
    };
    let outcome = if stop.is_cancelled() {
        Outcome::default()
    } else {
        wait_until_at_rest(&mut processes, &checker, stop).await?
    };
    (summary.hub, summary.roles) = (hub.security().await?, processes.roles());
    (summary.mounted_disks, summary.limited_disks) = processes.small_disks();
    tracing::info!("stopping all processes");
    processes.stop().await?;
    summary.faults = counts.all();
    outcome.add_to(&mut summary);
    summary.takeover_ms = standbys.takeover.map(millis);
    summary.violations.extend(standbys.violations);
    (summary.takeovers.rollup_outages, summary.takeovers.rollup) =
        (rollup_outages.all, rollup_outages.bridged);
    summary.full_disk_writes = lines(&paths.logs(), &NO_ROOM).len() as u64;
    summary.violations.extend(logged_violations(&paths.logs()));
    summary.held = !summary.cut_short && summary.violations.is_empty();
    Ok(summary)
}

/// Commits a good release, and deploys the plan the last time.
async fn repair(
    script: &mut Script,
    repository: &Repository,
    plan: Option<&PlanClient>,
) -> Result<(), Error> {
    script.repair();
    repository.replace(&script.files())?;
    repository.commit("everything is well").await?;
    match plan {
        Some(plan) => plan.deploy_last().await,
        None => Ok(()),
    }
}

/// How a run ended.
#[derive(Debug, Default)]
struct Outcome {
    was_checked: bool,
    rest_after: Option<Duration>,
    counts: CheckedCounts,
    violations: Vec<Violation>,
}

impl Outcome {
    fn add_to(self, summary: &mut Summary) {
        let Self { was_checked, rest_after, counts, violations } = self;
        summary.cut_short = !was_checked;
        summary.converged_after_ms = rest_after.map(millis);
        summary.violations = violations;
        summary.reports = counts.accounting;
        summary.facts = counts.facts;
        summary.lost = counts.lost;
        summary.duplicated = counts.duplicated;
        summary.views_seen = counts.views_seen;
        summary.incidents = counts.incidents;
        summary.takeovers = counts.takeovers;
        (summary.real_crash_loops, summary.crash_loops) = counts.crash_loops;
        summary.workloads = counts.workloads;
        summary.decisions = counts.decisions;
    }
}

/// Waits until the fleet is at rest and no violation is found, both at once.
async fn wait_until_at_rest(
    processes: &mut Processes,
    checker: &Checker,
    stop: &CancellationToken,
) -> Result<Outcome, Error> {
    let begin = Instant::now();
    let mut outcome = Outcome::default();
    let mut logged_at = None;
    loop {
        processes.start_ended()?;
        let agents = processes.agents();
        outcome.violations = checker.unrest(&agents).await;
        if outcome.violations.is_empty() {
            outcome.rest_after.get_or_insert(begin.elapsed());
            let ingests_by_pid = processes.ingests_by_pid();
            outcome.violations = checker.violations(&ingests_by_pid, &mut outcome.counts).await;
        } else {
            outcome.rest_after = None;
        }
        if let Some(first) = outcome.violations.first()
            && logged_at.is_none_or(|logged: Instant| logged.elapsed() >= LOG_EVERY)
        {
            tracing::info!(violations = outcome.violations.len(), first, "the fleet is not at rest yet");
            logged_at = Some(Instant::now());
        }
        let is_late = begin.elapsed() >= TIMEOUT;
        if outcome.violations.is_empty() || is_late || stop.is_cancelled() {
            outcome.was_checked = outcome.violations.is_empty() || is_late;
            return Ok(outcome);
        }
        stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The summary of a run that has not begun.
fn summary(config: &ChaosConfig, paths: &RunPaths) -> Summary {
    let ChaosConfig { seed, sites, length, .. } = config;
    Summary {
        cut_short: true,
        seed: *seed,
        seconds: length.as_secs(),
        sites: *sites,
        process_agents: config.process_agents(),
        replay: config.replay(),
        logs: paths.logs().display().to_string(),
        ..Summary::default()
    }
}

/// Panics, and rights that a process lacked: no role needs more than it has.
fn logged_violations(logs: &Path) -> Vec<Violation> {
    let found = |text, what| lines(logs, &[text]).into_iter().map(move |line| format!("{what}: {line}"));
    found(PANIC, "a process panicked").chain(found(MISSING_RIGHT, "a process lacked a right")).collect()
}

/// The lines of all logs that hold one of some texts, each with the name of its log.
fn lines(logs: &Path, texts: &[&str]) -> Vec<String> {
    let holds = |line: &&str| texts.iter().any(|text| line.contains(text));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
        let log = std::fs::read(entry.path()).unwrap_or_default();
        let name = entry.file_name().to_string_lossy().into_owned();
        let log = String::from_utf8_lossy(&log);
        found.extend(log.lines().filter(holds).map(|line| format!("{name}: {line}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_log_is_found_with_the_name_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("agent.log"), "fine\nError: database or disk is full\n").unwrap();
        let text = "thread 'main' panicked at src/main.rs:1\nnats: Permissions Violation\n";
        std::fs::write(dir.path().join("ingest.log"), text).unwrap();
        assert_eq!(lines(dir.path(), &NO_ROOM), ["agent.log: Error: database or disk is full"]);
        assert_eq!(logged_violations(dir.path()).len(), 2);
        assert!(logged_violations(&dir.path().join("nowhere")).is_empty());
    }
}
