//! Terminates every process of a unit: sends SIGTERM, waits, sends SIGKILL, and lists them until none is left.
//!
//! Signals are sent to whole process groups, so that children forked meanwhile get them too; a process that has
//! joined the group of another program gets its own. Only processes that the last list names as the unit's are
//! signalled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};
use tokio::time::{Instant, sleep};

use super::env_tag::EnvTag;
use super::paths::UnitPaths;
use super::process_id::ProcessId;
use super::process_table::{ProcessTable, ProcessTableError};
use crate::runtime::{Stopped, UnitName};

/// Longest time for a killed process to disappear.
pub(super) const KILL_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between the first two lists; it doubles with every list.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Longest time between two lists.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(200);

const _: () = assert!(
    POLL_INTERVAL_MIN.as_millis() < POLL_INTERVAL_MAX.as_millis()
        && POLL_INTERVAL_MAX.as_millis() < KILL_WAIT_MAX.as_millis()
);

/// The error of terminating a unit: something of it may still run.
#[derive(Debug, thiserror::Error)]
pub(super) enum TerminateError {
    /// The processes cannot be listed.
    #[error("cannot find out what is left of it")]
    List(#[source] ProcessTableError),
    /// Processes survived SIGKILL.
    #[error(
        "still there {KILL_WAIT_MAX:?} after SIGKILL: process {pids:?}; either it hangs in the kernel (a device, a \
         network file system), or this agent may not signal its user"
    )]
    Stuck {
        /// The processes.
        pids: Vec<i32>,
    },
}

/// Terminates every process of a unit, and returns whether some had to be killed. `known` is its main process, if the agent knows it.
/// It is no error if none runs.
pub(super) async fn terminate(
    paths: &Arc<UnitPaths>,
    name: &UnitName,
    known: Option<(ProcessId, EnvTag)>,
    timeout: Duration,
) -> Result<Stopped, TerminateError> {
    let groups = known.iter().map(|(main, _)| main.pid).collect();
    let mut termination = Termination { paths, name, known: known.into_iter().collect(), groups };
    let found = termination.list().await?;
    termination.signal(&found, Signal::TERM);
    if found.is_empty() || termination.wait(timeout, None).await?.is_empty() {
        return Ok(Stopped::InTime);
    }
    tracing::warn!(
        deployment.id = %name.deployment, component.name = %name.component,
        "a component did not stop within {timeout:?}: killing it"
    );
    let left = termination.wait(KILL_WAIT_MAX, Some(Signal::KILL)).await?;
    if left.is_empty() {
        Ok(Stopped::Killed)
    } else {
        Err(TerminateError::Stuck { pids: left.iter().map(|it| it.pid).collect() })
    }
}

/// A process to signal.
#[derive(Debug, Clone, Copy)]
struct Target {
    pid: i32,
    group: i32,
}

/// The termination of one unit.
struct Termination<'a> {
    paths: &'a Arc<UnitPaths>,
    name: &'a UnitName,
    known: Vec<(ProcessId, EnvTag)>,
    /// The unit's groups in the last list: their members belong to the unit even after the last tagged one is gone.
    groups: BTreeSet<i32>,
}

impl Termination<'_> {
    async fn list(&mut self) -> Result<Vec<Target>, TerminateError> {
        let processes =
            ProcessTable::read(self.paths, self.known.clone()).await.map_err(TerminateError::List)?;
        self.groups = processes.groups(self.name, &self.groups);
        let members = processes.members(self.name, &self.groups);
        Ok(members.iter().map(|seen| Target { pid: seen.id.pid, group: seen.group }).collect())
    }

    /// Lists the processes until nothing is left or the time is up, and signals what it finds. Returns what is left.
    async fn wait(&mut self, timeout: Duration, with: Option<Signal>) -> Result<Vec<Target>, TerminateError> {
        let deadline = Instant::now() + timeout;
        let mut pause = POLL_INTERVAL_MIN;
        loop {
            let left = self.list().await?;
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left);
            }
            if let Some(with) = with {
                self.signal(&left, with);
            }
            sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
            pause = (pause * 2).min(POLL_INTERVAL_MAX);
        }
    }

    /// Sends a signal. Errors are ignored: the next list shows what is still there.
    fn signal(&self, targets: &[Target], signal: Signal) {
        let own = getpgrp().as_raw_nonzero().get();
        let is_whole = |group: i32| group != own && self.groups.contains(&group);
        let groups: BTreeSet<i32> = targets.iter().map(|it| it.group).filter(|it| is_whole(*it)).collect();
        for group in groups.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process_group(group, signal);
        }
        for pid in targets.iter().filter(|it| !is_whole(it.group)).filter_map(|it| Pid::from_raw(it.pid)) {
            let _ = kill_process(pid, signal);
        }
    }
}
