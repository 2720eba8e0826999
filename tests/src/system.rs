//! A whole system for a story: a real nats-server, the services and agents as processes, a real Git repository.
//!
//! Every part can be killed and started again; facts are awaited with a deadline and what was seen is printed.
//! Everything ends with the value, also when a test fails.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::subjects::ViewKey;
use muster_service::error::chain;
use muster_simulator::child::{Child, Spec, sweep};
use muster_simulator::disk::Disk;
use muster_simulator::hub::Hub;
pub use muster_simulator::ledger::Entry;
use muster_simulator::ledger::{self, Rebuild};
use muster_simulator::repository::{BRANCH, Repository};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::server::Server;

/// Time any awaited fact may take: generous, because machines that test are slow and shared.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(25);

/// Program of the gateway.
pub const GATEWAY: &str = "muster-gateway";
/// Program of ingest.
pub const INGEST: &str = "muster-ingest";
/// Program of the rollup.
pub const ROLLUP: &str = "muster-rollup";
/// Every program that ships.
pub const PROGRAMS: [&str; 12] = [
    "muster",
    "muster-agent",
    "muster-agent-kubernetes",
    "muster-federation",
    "muster-gateway",
    "muster-ingest",
    "muster-planner",
    "muster-probe",
    "muster-publisher",
    "muster-renewer",
    "muster-rollup",
    "muster-simulator",
];
/// Program of the publisher.
pub const PUBLISHER: &str = "muster-publisher";

/// A running system.
pub struct System {
    /// The query service.
    pub hub: Hub,
    /// A connection of the test's own, with every right.
    pub bus: Bus,
    /// The repository that is published.
    pub repository: Repository,
    /// The server.
    pub server: Server,
    processes: BTreeMap<String, Process>,
    dir: TempDir,
}

struct Process {
    spec: Spec,
    running: Option<Child>,
}

impl System {
    /// A server and the three services, with an empty repository that has one commit.
    pub async fn start() -> Self {
        Self::with_settings(&[]).await
    }

    /// The same with further arguments for services: `(service, arguments)`.
    pub async fn with_settings(settings: &[(&str, &[&str])]) -> Self {
        Self::start_on(Server::start(), settings).await
    }

    /// The same on a server of the test's own.
    pub async fn start_on(server: Server, settings: &[(&str, &[&str])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::create(dir.path().join("repository")).await.unwrap();
        repository.write("README", "the fleet of a test\n").unwrap();
        repository.commit("empty").await.unwrap();
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        let hub = Hub::new(bus.clone());
        let mut system = Self { hub, bus, repository, server, processes: BTreeMap::new(), dir };
        for name in [INGEST, ROLLUP, PUBLISHER] {
            let more = settings.iter().find(|setting| setting.0 == name).map_or(&[][..], |setting| setting.1);
            system.start_service(name, more);
        }
        system
    }

    /// A directory that ends with the system.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn start_service(&mut self, name: &str, more: &[&str]) {
        let data = self.dir.path().join(name).display().to_string();
        let git = self.repository.dir().display().to_string();
        let own: Vec<&str> = match name {
            INGEST => vec!["--lease", "3s"],
            ROLLUP => vec!["--data-dir", &data],
            _ => vec!["--git-url", &git, "--git-branch", BRANCH, "--git-poll", "400ms", "--data-dir", &data],
        };
        let url = self.server.url();
        let args = ["--nats-url", &url].into_iter().chain(own).chain(more.iter().copied());
        let args = args.map(str::to_owned).collect();
        self.start_process(Spec { name: name.to_owned(), program: program(name), args });
    }

    /// Starts the agent of a device, connected to `hub` (a link, or the server itself).
    pub fn start_agent(&mut self, key: &DeviceKey, hub: SocketAddr, more: &[&str]) {
        let data = self.device_dir(key);
        self.start_agent_as(&agent_name(key), key, &data, hub, more);
    }

    /// The same under a process name and with a directory of its own: a double, if there is one of that device.
    pub fn start_agent_as(
        &mut self,
        name: &str,
        key: &DeviceKey,
        data: &Path,
        hub: SocketAddr,
        more: &[&str],
    ) {
        let spec = self.agent_spec(key, data, hub, more);
        self.start_process(Spec { name: name.to_owned(), ..spec });
    }

    /// Starts the agent of a device on a small disk, which can be filled where this system allows mounts.
    pub fn start_agent_on_a_small_disk(&mut self, key: &DeviceKey) -> Disk {
        let disk = Disk::small(&self.device_dir(key)).unwrap();
        let spec = self.agent_spec(key, &self.device_dir(key), self.address(), &[]);
        self.start_process(spec);
        disk
    }

    /// The process id of a process that runs.
    pub fn pid(&self, name: &str) -> Option<rustix::process::Pid> {
        self.processes.get(name)?.running.as_ref()?.pid()
    }

    fn agent_spec(&self, key: &DeviceKey, data: &Path, hub: SocketAddr, more: &[&str]) -> Spec {
        let data = data.display().to_string();
        let url = format!("nats://{hub}");
        let own = [
            "--nats-url",
            &url,
            "--site",
            key.site.as_str(),
            "--device",
            key.device.as_str(),
            "--data-dir",
            &data,
            "--heartbeat",
            "1s",
            "--reconnect-max",
            "1s",
            "--retry-min",
            "500ms",
            "--retry-max",
            "2s",
            "--on-exit",
            "stop",
        ];
        let args = own.into_iter().chain(more.iter().copied()).map(str::to_owned).collect();
        Spec { name: agent_name(key), program: program("muster-agent"), args }
    }

    /// Where the server listens, also while it is down.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    /// Where a device keeps its things.
    pub fn device_dir(&self, key: &DeviceKey) -> PathBuf {
        self.dir.path().join("devices").join(key.site.as_str()).join(key.device.as_str())
    }

    /// Starts a process of the test's own making, which ends with the system.
    pub fn start_own(&mut self, spec: Spec) {
        self.start_process(spec);
    }

    fn start_process(&mut self, spec: Spec) {
        let running = Some(Child::start(spec.clone(), self.dir.path()).unwrap());
        self.processes.insert(spec.name.clone(), Process { spec, running });
    }

    /// Kills a process where it stands (SIGKILL).
    pub async fn kill(&mut self, name: &str) {
        self.process(name).running.take().expect("it runs").kill().await.unwrap();
    }

    /// Asks a process to end (SIGTERM) and gives its exit status.
    pub async fn terminate(&mut self, name: &str) -> ExitStatus {
        self.process(name).running.take().expect("it runs").stop().await.unwrap()
    }

    /// Starts a process again if it has ended by itself, as a service manager does.
    pub fn watch_over(&mut self, name: &str) {
        if self.process(name).running.as_mut().is_some_and(|child| child.expect_running().is_err()) {
            self.start_again(name);
        }
    }

    /// Halts a process where it stands (SIGSTOP), as a machine that is paused does.
    pub fn freeze(&mut self, name: &str) {
        self.process(name).running.as_ref().expect("it runs").freeze();
    }

    /// Lets a halted process go on.
    pub fn thaw(&mut self, name: &str) {
        self.process(name).running.as_ref().expect("it runs").thaw();
    }

    /// Starts a second process just like one that is there, under a name of its own.
    pub fn start_another(&mut self, name: &str, own_name: &str) {
        let spec = Spec { name: own_name.to_owned(), ..self.process(name).spec.clone() };
        self.start_process(spec);
    }

    /// Starts a process again as it was started.
    pub fn start_again(&mut self, name: &str) {
        let spec = self.process(name).spec.clone();
        self.start_process(spec);
    }

    /// Starts a process again that reaches the server through this address. The next start is as the first was.
    pub fn start_again_through(&mut self, name: &str, link: SocketAddr) {
        let (url, mut spec) = (self.server.url(), self.process(name).spec.clone());
        for arg in spec.args.iter_mut().filter(|arg| **arg == url) {
            *arg = format!("nats://{link}");
        }
        let running = Child::start(spec, self.dir.path()).unwrap();
        self.process(name).running = Some(running);
    }

    fn process(&mut self, name: &str) -> &mut Process {
        self.processes.get_mut(name).unwrap_or_else(|| panic!("no process is named {name}"))
    }

    /// The output of a process so far.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("logs").join(format!("{name}.log"))).unwrap_or_default()
    }

    /// The output of a device's agent so far.
    pub fn agent_log(&self, key: &DeviceKey) -> String {
        self.log(&agent_name(key))
    }

    /// Runs `muster` with arguments and gives what it printed.
    pub async fn muster(&self, args: &[&str]) -> Output {
        tokio::process::Command::new(program("muster"))
            .args(["--nats-url", &self.server.url()])
            .args(args)
            .env("NO_COLOR", "1")
            .output()
            .await
            .unwrap()
    }

    /// Waits until `look` finds what it looks for; panics with what it saw last, and with the logs.
    pub async fn eventually<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            match look().await {
                Ok(found) => return found,
                Err(saw) if tokio::time::Instant::now() >= deadline => {
                    panic!("{what}: not within {DEADLINE:?}; last seen: {saw}\n{}", self.logs())
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    fn logs(&self) -> String {
        let tail = |name: &String| {
            let log = self.log(name);
            let lines: Vec<_> = log.lines().collect();
            format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(30)..].join("\n"))
        };
        self.processes.keys().map(tail).collect()
    }

    /// The digest of every view that a fold of the whole ledger gives, by key.
    pub async fn rebuilt_digests(&self) -> BTreeMap<ViewKey, Digest> {
        let mut rebuild = Rebuild::default();
        self.ledger().await.into_iter().for_each(|entry| rebuild.apply(entry));
        rebuild.digests()
    }

    /// The digest of every view in the bucket, by key.
    pub async fn shown_digests(&self, keys: impl IntoIterator<Item = &ViewKey>) -> BTreeMap<ViewKey, Digest> {
        let mut digests = BTreeMap::new();
        for key in keys {
            let Some(value) =
                self.bus.view_get(&key.to_string()).await.unwrap().and_then(|entry| entry.value)
            else {
                continue;
            };
            let view: serde_json::Value = serde_json::from_slice(&value).unwrap();
            digests.insert(key.clone(), view["digest"].as_str().unwrap().parse().unwrap());
        }
        digests
    }

    /// All of LEDGER up to now. Waits while the server is away.
    pub async fn ledger(&self) -> Vec<Entry> {
        self.eventually("LEDGER can be read", async || {
            let mut entries = Vec::new();
            let read = ledger::read(&self.bus, |entry| entries.push(entry)).await;
            read.map(|()| entries).map_err(|error| chain(&error))
        })
        .await
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // Agents that were killed leave workloads behind; they carry the directory in their environment.
        self.processes.clear();
        sweep(self.dir.path());
    }
}

/// Name of a device's agent process.
pub fn agent_name(key: &DeviceKey) -> String {
    format!("agent-{}-{}", key.site, key.device)
}

/// Names a directory of programs to use in place of this build's: those of an older release, to compare.
const PROGRAMS_VARIABLE: &str = "MUSTER_PROGRAMS";

/// A program of this build, or of the directory that `MUSTER_PROGRAMS` names.
///
/// # Panics
/// It is not built: tests of a package do not build the programs of others.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let dir = own.ancestors().nth(2).expect("a test runs in target/<profile>/deps");
    let program =
        std::env::var_os(PROGRAMS_VARIABLE).map_or_else(|| dir.to_owned(), PathBuf::from).join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `make test`, or `cargo build --workspace --bins`",
        program.display()
    );
    program
}

/// The numbers of every (device, epoch) in LEDGER.
///
/// # Panics
/// A number is in twice: invariant 2 is broken.
pub fn numbers(ledger: &[Entry]) -> BTreeMap<(DeviceKey, u64), BTreeSet<u64>> {
    let mut numbers: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
    for entry in ledger {
        let (epoch, seq) = match &entry.fact {
            Fact::Status(fact) if !fact.reasserted => (fact.epoch, fact.seq),
            Fact::Device(fact) if !fact.reasserted => (fact.epoch, fact.seq),
            _ => continue,
        };
        let device = entry.subject.device().expect("a report has a device").clone();
        let new = numbers.entry((device.clone(), epoch.get())).or_default().insert(seq.get());
        assert!(new, "({device}, {epoch}, {seq}) is in LEDGER twice, the second time at {}", entry.seq);
    }
    numbers
}
