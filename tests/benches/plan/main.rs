//! How long the planner takes from the fact that opens a gate to the decision that the next wave begins, with many running
//! rollouts of a large fleet, while LEDGER takes in other facts at an even rate; how much memory a placement takes, and how
//! long a planner needs after its start. The real planner, publisher and fold are in one process: no bus, no disk. LEDGER's
//! facts are made when a planner reads them, and are not parsed. The allocator is that of the C library, as in muster-planner.
//!
//! `cargo bench -p muster-tests --bench plan -- --devices 100000 --rollouts 20 --rate 2000`. It measures and names the bounds
//! that are missed; no test asserts them.

#![allow(clippy::unwrap_used, reason = "a failure here is the bench's result")]

mod hub;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use muster_bus::IncidentReporter;
use muster_contract::{DeploymentId, DeviceKey};
use muster_planner::asker::Asker;
use muster_planner::checkpoint::{Checkpoint, Checkpoints};
use muster_planner::planner::Planner;
use muster_planner::services::Services;
use muster_planner::webhook::{WebhookConfig, Webhooks};
use muster_publisher::announce::{Announcer, AnnouncerHandle, Context};
use muster_publisher::responder::Responder;
use muster_publisher::source::{self, Body, File, Fleet, Policy, Tree};
use muster_publisher::status::Status;
use muster_service::clock::SystemClock;
use muster_service::supervisor::Supervisor;
use muster_tests::bench::{self, HubKind, say};
use tokio_util::sync::CancellationToken;

use self::hub::{Follower, Hub, Local};

/// Waves of one device that each rollout has before its last, which waits for an approval.
const WAVES: usize = 4;
/// Time between two questions of the planner to the publisher, as its settings have it.
const EVERY: Duration = Duration::from_secs(2);
/// Targets: time to a decision, bytes of a placement, time from a start until every rollout is judged.
const DECISION_MAX: Duration = Duration::from_millis(50);
const PLACEMENT_BYTES_MAX: u64 = 200;
const RESTART_MAX: Duration = Duration::from_secs(3);
/// Time after the start until the memory is read again.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// Longest time that the bench waits for all decisions.
const PATIENCE: Duration = Duration::from_secs(600);

/// The bench `plan`
#[derive(Debug, Parser)]
struct Args {
    /// Devices, each with all of the deployments
    #[arg(long, default_value_t = 100_000)]
    devices: usize,
    /// Deployments, each with a running rollout of all devices
    #[arg(long, default_value_t = 20)]
    rollouts: usize,
    /// Facts of other devices a second
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// Cargo says so to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let result = runtime.block_on(measure(&args));
    bench::tell(HubKind::None, &result)
}

fn key(at: usize) -> DeviceKey {
    format!("site-{:04}/device-{at:07}", at / 250).parse().unwrap()
}

/// A commit of a release of all deployments; the second one is governed.
fn fleet(args: &Args, release: u32) -> Fleet {
    let mut files = Vec::new();
    let mut add = |path: String, text: String| {
        files.push(File { path, body: Body::Text(text.into_bytes().into()) });
    };
    for at in 0..args.rollouts {
        let text = format!(
            "id: app-{at:02}\nmetadata: {{name: app-{at:02}}}\nspec: {{applicationId: app, deploymentProfile: {{type: process, \
             components: [{{name: main, properties: {{command: run-{release}}}}}]}}}}\n"
        );
        add(format!("fleet/app-{at:02}.yaml"), text);
    }
    add("sites/a/one/.gitkeep".to_owned(), String::new());
    if release > 1 {
        let waves: String = (0..WAVES).map(|at| format!("  - {{name: wave-{at}, count: 1}}\n")).collect();
        let last = "  - {name: most, percent: 100%, approval: before}\n";
        add(
            "fleet/rollout.yaml".to_owned(),
            format!("apiVersion: muster/v1\nkind: Rollout\nwaves:\n{waves}{last}"),
        );
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let small = source::read(&Tree { revision: format!("c{release}"), files }, Policy::default()).unwrap();
    let one = "a/one".parse().unwrap();
    let keys = || (0..args.devices).map(key);
    Fleet {
        devices: keys().map(|key| (key, small.devices[&one].clone())).collect(),
        rollouts: small
            .rollouts
            .get(&one)
            .map_or_else(BTreeMap::new, |file| keys().map(|key| (key, file.clone())).collect()),
        ..small
    }
}

/// Commits, and waits until the commit is published.
async fn commit(announcer: &AnnouncerHandle, status: &Status, fleet: Fleet) {
    let revision = fleet.revision.clone();
    announcer.commit(fleet).await.unwrap();
    while status.answer().git.unwrap().applied.as_deref() != Some(&revision) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn measure(args: &Args) -> String {
    let hub = Hub::default();
    let status = Arc::new(Status::new(Some((&"/fleet".parse().unwrap(), &"main".parse().unwrap()))));
    let context = Context {
        clock: Arc::new(SystemClock),
        status: status.clone(),
        metrics: Default::default(),
        incidents: IncidentReporter::new().0,
        git: true,
    };
    let (task, announcer) = Announcer::new(hub.clone(), context, fastrand::Rng::with_seed(7));
    let supervisor = Supervisor::new();
    tokio::spawn(task.run(supervisor.health().latch("desired state"), CancellationToken::new()));
    let mut numbers = Numbers::default();
    let begun = Instant::now();
    commit(&announcer, &status, fleet(args, 1)).await;
    hub.append_pulses();
    (0..args.devices).for_each(|at| hub.hear(&key(at), 0));
    for due in hub.take_due() {
        let number = numbers.next(&due.key);
        hub.confirm(due, number);
    }
    commit(&announcer, &status, fleet(args, 2)).await;
    say(&format!(
        "{} devices with {} deployments after {:.1?}",
        args.devices,
        args.rollouts,
        begun.elapsed()
    ));

    say(&format!("LEDGER has {} facts", hub.ledger_seq()));
    let before = reset_peak();
    let local = || Local {
        hub: hub.clone(),
        responder: Responder { announcer: announcer.clone(), status: status.clone(), past: None },
    };
    let begun = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path(), PATIENCE).unwrap();
    let running = Running::start(local(), &checkpoints, None);
    running.is_ready().await;
    let restart = begun.elapsed();
    let memory = Memory {
        resident: resident("VmRSS:").saturating_sub(before),
        peak: resident("VmHWM:").saturating_sub(before),
        settled: 0,
    };
    say(&format!("every rollout is judged after {restart:.1?}"));
    tokio::time::sleep(SETTLED_AFTER).await;
    let memory = Memory { settled: resident("VmRSS:").saturating_sub(before), ..memory };
    let begun = Instant::now();
    running.stop().await;
    let bytes: u64 =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    say(&format!("a checkpoint of {} MB is written after {:.1?}", bytes / 1_000_000, begun.elapsed()));
    let begun = Instant::now();
    let restored = checkpoints.restore().unwrap();
    say(&format!("it is restored after {:.1?}", begun.elapsed()));
    let running = Running::start(local(), &checkpoints, Some(restored));
    running.is_ready().await;
    let restart = [restart, begun.elapsed()];
    say(&format!("every rollout is judged after {:.1?}", restart[1]));
    let times = decisions(args, &hub, running, &mut numbers).await;
    report(args, restart, &memory, &times)
}

/// The number of the last report of each device.
#[derive(Default)]
struct Numbers(BTreeMap<DeviceKey, u64>);

impl Numbers {
    fn next(&mut self, key: &DeviceKey) -> u64 {
        let number = self.0.entry(key.clone()).or_default();
        *number += 1;
        *number
    }
}

/// A running planner over a local hub, which asks no webhook.
struct Running {
    supervisor: Supervisor,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(local: Local, checkpoints: &Checkpoints, restored: Option<Checkpoint>) -> Self {
        let (supervisor, stop) = (Supervisor::new(), CancellationToken::new());
        let asker = Asker::new(local.clone(), Webhooks::new(WebhookConfig::default()).unwrap());
        let position = restored.as_ref().map_or(0, |restored| restored.mark().position);
        let ledger = Follower::new(local.hub.clone(), position);
        let planner =
            Planner::new(Services::new(local), asker, ledger, Arc::new(SystemClock), Default::default())
                .with_checkpoints(checkpoints.clone(), restored);
        let task = tokio::spawn(planner.run(EVERY, supervisor.health().latch("rollouts"), stop.clone()));
        Self { supervisor, stop, task }
    }

    /// Stops it; it writes its checkpoint.
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    async fn is_ready(&self) {
        while !self.supervisor.health().missing().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Bytes that the planner added to the process.
struct Memory {
    resident: u64,
    peak: u64,
    /// Once the allocator has given back what the start has freed.
    settled: u64,
}

/// The times from facts that open gates to decisions, in order.
async fn decisions(args: &Args, hub: &Hub, planner: Running, numbers: &mut Numbers) -> Vec<Duration> {
    let (mut confirmed, mut times) = (BTreeMap::<DeploymentId, Instant>::new(), Vec::new());
    let (begun, mut other) = (Instant::now(), 0);
    // The first wave began in the first round, and the last waits for an approval.
    while times.len() < args.rollouts * (WAVES - 1) && begun.elapsed() < PATIENCE {
        // Releases are read before begins, so that the begin of each release is read too.
        let dues = hub.take_due();
        for (id, _, at) in hub.take_begins() {
            times.extend(confirmed.remove(&id).map(|since| at.saturating_duration_since(since)));
        }
        for due in dues {
            let (id, number) = (due.id.clone(), numbers.next(&due.key));
            confirmed.insert(id, Instant::now());
            hub.confirm(due, number);
        }
        let until = u64::try_from(begun.elapsed().as_millis()).unwrap() * args.rate / 1000;
        while other < until {
            // Heartbeats of all devices in turn, whose numbers stay the same.
            let key = key(usize::try_from(other).unwrap() % args.devices);
            let head = numbers.0.get(&key).copied().unwrap_or_default();
            hub.hear(&key, head);
            other += 1;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    planner.stop().await;
    times.sort_unstable();
    times
}

fn report(args: &Args, [restart, resumed]: [Duration; 2], memory: &Memory, times: &[Duration]) -> String {
    let quantile = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
    let (p50, p99) = (quantile(50).copied().unwrap_or_default(), quantile(99).copied().unwrap_or(PATIENCE));
    let placements = (args.devices * args.rollouts) as u64;
    let [bytes, peak, settled] = [memory.resident, memory.peak, memory.settled].map(|of| of / placements);
    let kept = |is_kept: bool| if is_kept { "kept" } else { "MISSED" };
    let Args { devices, rollouts, rate, .. } = args;
    format!(
        "{devices} devices, {rollouts} rollouts of all of them, {rate} facts/s\n\
         fact to decision: p50 {p50:.2?}, p99 {p99:.2?} of {} (target {DECISION_MAX:?}: {})\n\
         memory of the planner: {} MiB, {bytes} bytes a placement, {peak} at the peak, {settled} after \
         {SETTLED_AFTER:?} (target {PLACEMENT_BYTES_MAX}: {})\n\
         from a start until every rollout is judged: {restart:.2?} without a checkpoint, {resumed:.2?} with one \
         (target {RESTART_MAX:?}: {})",
        times.len(),
        kept(p99 <= DECISION_MAX),
        memory.resident >> 20,
        kept(bytes <= PLACEMENT_BYTES_MAX),
        kept(resumed <= RESTART_MAX)
    )
}

/// A figure of this process's memory, in bytes.
fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// Forgets the peak of the memory; the memory now.
fn reset_peak() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    resident("VmRSS:")
}
