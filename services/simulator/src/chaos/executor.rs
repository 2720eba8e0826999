//! Executes the fault schedule: it injects and removes each fault at its time, commits changes meanwhile, and removes all
//! faults in the end. The schedule decides when a fault begins.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::monitor::ViewMonitor;
use super::process::EndCause;
use super::processes::Processes;
use super::schedule::{FaultSchedule, ProcessFault, Role};
use super::script::{Commit, Script};
use super::standby::LAST_WRITES_WITHIN;
use super::workloads;
use crate::error::Error;
use crate::link::Profile;
use crate::link_schedule::{self, LinkSchedule};
use crate::repository::Repository;

/// Time between two looks whether a process has ended by itself.
const WATCH: Duration = Duration::from_millis(250);
/// Pause before a process that ended on a full disk is started again, as a service manager does.
const START_AGAIN: Duration = Duration::from_secs(1);
/// A shorter outage of a rollup is not counted: the other one may have had nothing to write.
const OUTAGE_MIN: Duration = Duration::from_secs(3);

const _: () = assert!(2 * LAST_WRITES_WITHIN.as_millis() < OUTAGE_MIN.as_millis());

/// How often each fault was carried out.
#[derive(Debug, Clone, Default)]
pub(super) struct FaultCounts {
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl FaultCounts {
    /// One more.
    pub(super) fn add(&self, fault: impl Into<String>) {
        // A count is whole at any moment, so a panic elsewhere cannot have left half of one.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(fault.into()).or_default() += 1;
    }

    /// All counts.
    pub(super) fn all(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Times one rollup was down or frozen for at least [`OUTAGE_MIN`] while the other was up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RollupOutages {
    /// All.
    pub(super) all: u64,
    /// Those in which the other rollup wrote views.
    pub(super) bridged: u64,
}

/// An outage of a rollup.
#[derive(Debug)]
struct Outage {
    since: Instant,
    /// Up to where views had read, once the stopped rollup could have written nothing more.
    views_at: Option<u64>,
}

/// An action that undoes a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Recovery {
    Start(Role),
    Thaw(Role),
    ClearDisk(Role),
}

/// The executor of a schedule.
pub(super) struct FaultExecutor<'a> {
    processes: &'a mut Processes,
    script: &'a mut Script,
    repository: &'a Repository,
    monitor: &'a ViewMonitor,
    small_disks: Vec<usize>,
    counts: FaultCounts,
    recoveries: BinaryHeap<Reverse<(Instant, Recovery)>>,
    /// The processes that were asked to end, and how long each is to be away.
    terminated: BTreeMap<Role, Duration>,
    outages: BTreeMap<Role, Outage>,
    rollup_outages: RollupOutages,
    links: JoinSet<()>,
    links_stop: CancellationToken,
}

impl<'a> FaultExecutor<'a> {
    /// An executor that has done nothing yet.
    pub(super) fn new(
        processes: &'a mut Processes,
        script: &'a mut Script,
        repository: &'a Repository,
        monitor: &'a ViewMonitor,
        small_disks: Vec<usize>,
        counts: FaultCounts,
    ) -> Self {
        Self {
            processes,
            script,
            repository,
            monitor,
            small_disks,
            counts,
            recoveries: BinaryHeap::new(),
            terminated: BTreeMap::new(),
            outages: BTreeMap::new(),
            rollup_outages: RollupOutages::default(),
            links: JoinSet::new(),
            links_stop: CancellationToken::new(),
        }
    }

    /// Carries out the schedule of a seed for a while, then undoes every fault; or ends with `stop`.
    ///
    /// # Errors
    /// A process ended by itself, or the machine failed.
    pub(super) async fn run(
        mut self,
        seed: u64,
        length: Duration,
        stop: &CancellationToken,
    ) -> Result<RollupOutages, Error> {
        self.break_links(seed);
        let mut schedule = FaultSchedule::new(seed, self.processes.devices.len(), self.small_disks.len());
        let begin = Instant::now();
        let end = begin + length;
        while Instant::now() < end {
            let due = begin + schedule.due();
            let recovery = self.recoveries.peek().map_or(end, |Reverse((at, _))| *at);
            let next = due.min(recovery).min(end).min(Instant::now() + WATCH);
            if stop.run_until_cancelled(sleep_until(next)).await.is_none() {
                // The person who stops the run does not ask for a healed fleet. But a process that cannot reach the hub takes long to
                // end: it tries to send what it has.
                self.heal_links().await;
                self.processes.process(Role::Server).thaw();
                return Ok(self.rollup_outages);
            }
            self.watch()?;
            self.recover_due()?;
            if begin + schedule.due() <= Instant::now()
                && let Some((_, fault)) = schedule.next()
            {
                self.execute(fault).await?;
            }
        }
        self.recover_all().await?;
        Ok(self.rollup_outages)
    }

    fn break_links(&mut self, seed: u64) {
        let links: Vec<_> = self.processes.all().filter_map(|process| process.link.clone()).collect();
        for (at, link) in links.into_iter().enumerate() {
            let (counts, stop) = (self.counts.clone(), self.links_stop.clone());
            let schedule = LinkSchedule::new(Profile::FLAKY, seed, at);
            self.links.spawn(async move {
                link_schedule::follow(&link, schedule, &stop, |fault, _| {
                    counts.add(format!("link.{}", fault.name()));
                })
                .await;
            });
        }
    }

    async fn execute(&mut self, fault: ProcessFault) -> Result<(), Error> {
        match fault {
            ProcessFault::Kill(role, lasts) => _ = self.kill(role, lasts).await?,
            ProcessFault::KillAndWipe(role, lasts) => {
                if self.kill(role, lasts).await? {
                    self.processes.wipe(role)?;
                    self.counts.add(format!("wipe.{}", role.kind()));
                }
            }
            ProcessFault::Terminate(role, lasts) => {
                if self.processes.process(role).terminate() {
                    self.counts.add(format!("terminate.{}", role.kind()));
                    self.terminated.insert(role, lasts);
                }
            }
            ProcessFault::Freeze(role, lasts) => {
                if self.processes.process(role).freeze() {
                    self.counts.add(format!("freeze.{}", role.kind()));
                    self.start_outage(role);
                    self.recover_after(Recovery::Thaw(role), lasts);
                }
            }
            ProcessFault::FillDisk(at, lasts) => {
                let role = Role::Agent(self.small_disks[at]);
                if !self.processes.process(role).is_full && self.processes.process(role).fill_disk()? {
                    self.counts.add("disk.full");
                    self.recover_after(Recovery::ClearDisk(role), lasts);
                }
            }
            ProcessFault::KillWorkload(number) => self.kill_workload(number),
            ProcessFault::Commit => self.commit().await?,
        }
        tracing::debug!(?fault, "injected a fault");
        Ok(())
    }

    async fn kill(&mut self, role: Role, lasts: Duration) -> Result<bool, Error> {
        let killed = self.processes.process(role).kill().await?;
        if killed {
            self.counts.add(format!("kill.{}", role.kind()));
            self.start_outage(role);
            self.recover_after(Recovery::Start(role), lasts);
        }
        Ok(killed)
    }

    fn kill_workload(&self, number: usize) {
        let pids = workloads::pids(&self.processes.paths.dir);
        let picked = number.checked_rem(pids.len()).and_then(|at| pids.get(at));
        // One that has ended meanwhile was not killed.
        if picked.is_some_and(|pid| kill_process(*pid, Signal::KILL).is_ok()) {
            self.counts.add("kill.workload");
        }
    }

    async fn commit(&mut self) -> Result<(), Error> {
        let Commit { about, bad } = self.script.step();
        self.repository.replace(&self.script.files())?;
        self.repository.commit(&about).await?;
        self.counts.add(if bad { "commit.bad" } else { "commit.good" });
        tracing::info!(bad, "committed: {about}");
        Ok(())
    }

    /// A rollup is stopped: from now on only the other one writes views, if that is up and the server is.
    fn start_outage(&mut self, role: Role) {
        let Some(standby) = role.standby().filter(|_| matches!(role, Role::Rollup(_))) else { return };
        self.outages.remove(&standby);
        let are_up = [standby, Role::Server].map(|role| self.processes.process(role).up().is_some());
        if are_up == [true; 2] {
            self.outages.insert(role, Outage { since: Instant::now(), views_at: None });
        }
    }

    fn watch_outages(&mut self) {
        for outage in self.outages.values_mut() {
            if outage.views_at.is_none() && outage.since.elapsed() >= LAST_WRITES_WITHIN {
                outage.views_at = Some(self.monitor.newest());
            }
        }
    }

    fn end_outage(&mut self, role: Role) {
        let outage = self.outages.remove(&role).filter(|outage| outage.since.elapsed() >= OUTAGE_MIN);
        if let Some(views_at) = outage.and_then(|outage| outage.views_at) {
            let is_bridged = self.monitor.newest() > views_at;
            self.rollup_outages.all += 1;
            self.rollup_outages.bridged += u64::from(is_bridged);
            tracing::info!(
                process = role.name(),
                is_bridged,
                views.at = views_at,
                "ended the outage of a rollup"
            );
        }
    }

    fn recover_after(&mut self, recovery: Recovery, after: Duration) {
        self.recoveries.push(Reverse((Instant::now() + after, recovery)));
    }

    fn recover_due(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        while self.recoveries.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, recovery))) = self.recoveries.pop() else { break };
            let dir = &self.processes.paths.dir.clone();
            match recovery {
                Recovery::Start(role) => {
                    self.end_outage(role);
                    self.processes.process(role).start(dir)?;
                }
                Recovery::Thaw(role) => {
                    self.end_outage(role);
                    self.processes.process(role).thaw();
                }
                Recovery::ClearDisk(role) => self.processes.process(role).clear_disk()?,
            }
        }
        Ok(())
    }

    /// No process may end by itself, but on a full disk; and each that was asked to end must.
    fn watch(&mut self) -> Result<(), Error> {
        self.watch_outages();
        let mut ended = Vec::new();
        for process in self.processes.all() {
            ended.extend(process.end_cause()?.map(|cause| (process.role, cause)));
        }
        for (role, cause) in ended {
            if cause == EndCause::NoRoom {
                self.counts.add("disk.ended");
            }
            // With the standby down, an outage tells nothing any more.
            role.standby().map(|standby| self.outages.remove(&standby));
            let pause = self.terminated.remove(&role).unwrap_or(START_AGAIN);
            self.recover_after(Recovery::Start(role), pause);
        }
        Ok(())
    }

    async fn recover_all(&mut self) -> Result<(), Error> {
        self.heal_links().await;
        self.processes.start_all()
    }

    async fn heal_links(&mut self) {
        self.links_stop.cancel();
        while self.links.join_next().await.is_some() {}
    }
}
