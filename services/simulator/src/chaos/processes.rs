//! The processes under test: the server, two ingests and two rollups (each pair one owner and one hot standby), the
//! publisher, the planner and the agents. Each is a process of its own, and each but the server sits behind a link of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_contract::DeviceKey;
use muster_identity as identity;

use super::process::Process;
use super::schedule::Role;
use super::secured::SecuredHub;
use crate::child::Spec;
use crate::config::chaos::ChaosConfig;
use crate::disk::{Disk, IGNORE_SIGXFSZ};
use crate::error::Error;
use crate::fleet::{
    ReadyProbe, Timing, agent_args, agent_name, await_ready, device_dir, find_program, open_link,
};
use crate::ports::free_address;
use crate::repository::{BRANCH, Repository};
use crate::run_paths::RunPaths;

/// The tempo of a run: minutes of a real fleet are seconds, and a snapshot is taken often enough to be killed in.
const TIMING: Timing = Timing {
    heartbeat: "2s",
    lease: "8s",
    reconnect_max: "3s",
    retry_min: "500ms",
    retry_max: "3s",
    git_poll: "300ms",
    snapshot_every: "2s",
};
/// Time between two rounds of the planner.
const PLAN_EVERY: &str = "300ms";
/// Time between two checkpoints of the planner.
const CHECKPOINT_EVERY: &str = "2s";
/// How long a component must stay ready until its failures are forgotten: a fleet comes to rest only after it.
const CRASH_LOOP_WINDOW: &str = "20s";
/// The files of an agent's database.
const AGENT_FILES: [&str; 2] = ["agent.db", "agent.db-wal"];
/// Pause between two agents that are started: together they would only wait for each other.
const SPREAD: Duration = Duration::from_millis(20);

/// All processes under test.
#[derive(Debug)]
pub(super) struct Processes {
    /// Where things are.
    pub(super) paths: RunPaths,
    /// The hub's keys.
    pub(super) hub: SecuredHub,
    /// The devices, in the order of [`Role::Agent`].
    pub(super) devices: Vec<DeviceKey>,
    /// The devices whose agents have lost their databases, and how often.
    pub(super) wiped: BTreeMap<DeviceKey, u64>,
    all: Vec<Process>,
}

impl Processes {
    /// Makes the hub's keys, then starts the server, the services and the agents.
    ///
    /// # Errors
    /// Something could not be started. What was started ends with the error.
    pub(super) async fn start(
        config: &ChaosConfig,
        paths: RunPaths,
        repository: &Repository,
    ) -> Result<Self, Error> {
        let hub = SecuredHub::prepare(&paths, free_address()?).await?;
        let server = Process::new(Role::Server, server_spec(&paths, &hub)?, None);
        let (devices, dir) = (config.device_keys(), paths.dir.clone());
        let mut processes = Self { paths, hub, devices, wiped: BTreeMap::new(), all: vec![server] };
        processes.process(Role::Server).start(&dir)?;
        processes.ready(Role::Server).await?;
        for role in Role::SERVICES {
            processes.add_service(role, repository).await?;
            processes.ready(role).await?;
        }
        let small = config.small_disks();
        for at in 0..processes.devices.len() {
            processes.add_agent(at, at < config.process_agents(), small.contains(&at)).await?;
            tokio::time::sleep(SPREAD).await;
        }
        Ok(processes)
    }

    async fn add_planner(&mut self) -> Result<(), Error> {
        let program = find_program(&self.paths.programs, Role::Planner.program())?;
        let data = self.data_dir(Role::Planner).unwrap_or_default().display().to_string();
        let plans = self.hub.credentials(identity::Role::Scheduler).display().to_string();
        let own = ["--every", PLAN_EVERY, "--checkpoint-every", CHECKPOINT_EVERY, "--plans-creds", &plans];
        let args = [&own[..], &["--data-dir", &data]].concat().into_iter().map(str::to_owned).collect();
        let spec = Spec { name: Role::Planner.name(), program, args };
        let credentials = self.hub.credentials(identity::Role::Planner);
        self.add(Role::Planner, spec, &credentials, None).await
    }

    async fn add_service(&mut self, role: Role, repository: &Repository) -> Result<(), Error> {
        if role == Role::Planner {
            return self.add_planner().await;
        }
        let data = self.data_dir(role).unwrap_or_default();
        let (identity, own, last) = match role {
            Role::Ingest(_) => {
                let own = vec!["--lease", TIMING.lease, "--system-creds"];
                (identity::Role::Ingest, own, self.hub.watcher_credentials())
            }
            Role::Rollup(_) => {
                let own = vec!["--snapshot-every", TIMING.snapshot_every, "--readers-creds"];
                (identity::Role::Rollup, own, self.hub.credentials(identity::Role::Keeper))
            }
            _ => {
                let own = vec!["--git-branch", BRANCH, "--git-poll", TIMING.git_poll, "--git-url"];
                (identity::Role::Publisher, own, repository.dir().to_owned())
            }
        };
        let mut args: Vec<String> = own.into_iter().map(str::to_owned).collect();
        args.extend([last.display().to_string(), "--data-dir".to_owned(), data.display().to_string()]);
        let program = find_program(&self.paths.programs, role.program())?;
        let spec = Spec { name: role.name(), program, args };
        let credentials = self.hub.credentials(identity);
        self.add(role, spec, &credentials, None).await
    }

    async fn add(
        &mut self,
        role: Role,
        mut spec: Spec,
        credentials: &Path,
        disk: Option<Disk>,
    ) -> Result<(), Error> {
        let link = Arc::new(open_link(&spec.name, self.hub.address).await?);
        spec.args.extend(self.hub.arguments(credentials, link.address()));
        spec.args.extend(["--log-format", "text"].map(str::to_owned));
        let mut process = Process::new(role, spec, Some(link));
        process.disk = disk;
        process.start(&self.paths.dir)?;
        self.all.push(process);
        Ok(())
    }

    async fn add_agent(&mut self, at: usize, is_real: bool, small_disk: bool) -> Result<(), Error> {
        let key = self.devices[at].clone();
        let credentials = self.hub.enroll(&key).await?;
        let data = device_dir(&self.paths, &key);
        let disk = small_disk.then(|| Disk::small(&data)).transpose();
        let disk = disk.map_err(|source| Error::Prepare { path: data.clone(), source })?;
        let runtime = if is_real { "process" } else { "simulated" };
        let mut args = agent_args(&key, &data, runtime, &TIMING);
        args.extend(["--crash-loop-window", CRASH_LOOP_WINDOW].map(str::to_owned));
        let mut program = find_program(&self.paths.programs, "muster-agent")?;
        if let Some(Disk::Limited) = disk {
            tracing::warn!(device = %key, "cannot mount a small disk; the agent's file size limit stands for it");
            let [shell, rest @ ..] = IGNORE_SIGXFSZ;
            let before = rest.iter().map(|&arg| arg.to_owned()).chain([program.display().to_string()]);
            args = before.chain(args).collect();
            program = shell.into();
        }
        let spec = Spec { name: agent_name(&key), program, args };
        self.add(Role::Agent(at), spec, &credentials, disk).await
    }

    /// Waits until a process is ready.
    async fn ready(&mut self, role: Role) -> Result<(), Error> {
        let address = self.hub.address;
        let process = self.process(role);
        let probe = process.http.map_or(ReadyProbe::Port(address), ReadyProbe::Ready);
        match process.up() {
            Some(child) => await_ready(child, probe).await,
            None => Ok(()),
        }
    }

    /// The process of a role.
    pub(super) fn process(&mut self, role: Role) -> &mut Process {
        &mut self.all[role.index()]
    }

    /// Removes what a process that is down keeps for itself. A service must lose nothing by that; an agent begins a new
    /// epoch, and says so.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn wipe(&mut self, role: Role) -> Result<(), Error> {
        let Role::Agent(at) = role else {
            return self.data_dir(role).map_or(Ok(()), |dir| self.set_aside(&dir, &role.name()));
        };
        let key = &self.devices[at];
        *self.wiped.entry(key.clone()).or_default() += 1;
        let dir = device_dir(&self.paths, key);
        let remove = |file: &&str| missing_is_fine(&dir.join(file), std::fs::remove_file(dir.join(file)));
        AGENT_FILES.iter().try_for_each(remove)
    }

    /// Where a service keeps its own files.
    fn data_dir(&self, role: Role) -> Option<PathBuf> {
        (!matches!(role, Role::Server | Role::Agent(_))).then(|| self.paths.dir.join(role.name()))
    }

    /// Moves a directory away: a child of the process that was killed may still write there.
    fn set_aside(&self, from: &Path, name: &str) -> Result<(), Error> {
        let aside = self.paths.dir.join("wiped");
        let made = std::fs::create_dir_all(&aside);
        made.map_err(|source| Error::Prepare { path: aside.clone(), source })?;
        let to = aside.join(format!("{name}-{:016x}", fastrand::u64(..)));
        missing_is_fine(from, std::fs::rename(from, to))
    }

    /// All processes.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        self.all.iter_mut()
    }

    /// How many processes each role has.
    pub(super) fn roles(&self) -> BTreeMap<&'static str, usize> {
        self.all.iter().fold(BTreeMap::new(), |mut roles, process| {
            *roles.entry(process.role.kind()).or_default() += 1;
            roles
        })
    }

    /// How many agents have a small disk, and for how many a file size limit stands for one.
    pub(super) fn small_disks(&self) -> (usize, usize) {
        let disks = || self.all.iter().filter_map(|process| process.disk.as_ref());
        let mounted = disks().filter(|disk| matches!(disk, Disk::Mounted(_))).count();
        (mounted, disks().count() - mounted)
    }

    /// Which ingest each process id was, of all starts.
    pub(super) fn ingests_by_pid(&self) -> BTreeMap<u32, usize> {
        let of = |process: &Process| match process.role {
            Role::Ingest(at) => process.pids.iter().map(|pid| (*pid, at)).collect(),
            _ => Vec::new(),
        };
        self.all.iter().flat_map(of).collect()
    }

    /// The devices with the addresses at which their agents serve metrics.
    pub(super) fn agents(&mut self) -> Vec<(DeviceKey, Option<SocketAddr>)> {
        let keys = self.devices.clone();
        keys.into_iter().enumerate().map(|(at, key)| (key, self.process(Role::Agent(at)).http)).collect()
    }

    /// Starts again each process that has ended after it was asked to, or on a full disk.
    ///
    /// # Errors
    /// A process ended by itself, or could not be started.
    pub(super) fn start_ended(&mut self) -> Result<(), Error> {
        let dir = self.paths.dir.clone();
        for process in &mut self.all {
            if process.end_cause()?.is_some() {
                process.start(&dir)?;
            }
        }
        Ok(())
    }

    /// Lets all processes go on, also those that are frozen or down.
    ///
    /// # Errors
    /// One could not be started.
    pub(super) fn start_all(&mut self) -> Result<(), Error> {
        let dir = self.paths.dir.clone();
        self.all.iter_mut().try_for_each(|process| {
            process.clear_disk()?;
            process.thaw();
            process.start(&dir)
        })
    }

    /// Stops the agents with their workloads, then the services in the reverse order of their start, then the server.
    ///
    /// # Errors
    /// The first process whose end could not be awaited; all are asked to end.
    pub(super) async fn stop(self) -> Result<(), Error> {
        let (mut first, mut others) = (Ok(()), self.all);
        let agents = others.split_off(Role::Agent(0).index());
        for result in join_all(agents.into_iter().map(Process::stop)).await {
            first = first.and(result);
        }
        for process in others.into_iter().rev() {
            first = first.and(process.stop().await);
        }
        first
    }
}

/// How to start the server; writes its configuration.
fn server_spec(paths: &RunPaths, hub: &SecuredHub) -> Result<Spec, Error> {
    let program = paths.nats_server.clone();
    if !program.is_file() {
        return Err(Error::NoServer { path: program });
    }
    let config = paths.dir.join("nats.conf");
    std::fs::write(&config, hub.server_config(&paths.dir))
        .map_err(|source| Error::Prepare { path: config.clone(), source })?;
    let args = vec!["--config".to_owned(), config.display().to_string()];
    Ok(Spec { name: Role::Server.name(), program, args })
}

/// The result of removing a file: one that was not there is removed as well.
fn missing_is_fine(path: &Path, done: std::io::Result<()>) -> Result<(), Error> {
    match done {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Prepare { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
