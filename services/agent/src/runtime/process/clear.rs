//! Ends whatever is left of a unit: asks with SIGTERM, waits, kills, and looks until nothing is there any more.
//!
//! Signals go to whole process groups, so that a child forked meanwhile is met too; a process that has joined the
//! group of somebody else is met alone. Nothing is signalled that the last look did not show to be the unit's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};
use tokio::time::{Instant, sleep};

use super::census::{Census, CensusError, Identity};
use super::home::Home;
use super::mark::Mark;
use crate::runtime::UnitName;

/// How long a killed process may take to be gone.
pub(super) const KILL_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between the first two looks; it doubles with every look.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(10);
/// Longest time between two looks.
const LOOK_EVERY_MAX: Duration = Duration::from_millis(200);

const _: () = assert!(
    LOOK_EVERY_MIN.as_millis() < LOOK_EVERY_MAX.as_millis()
        && LOOK_EVERY_MAX.as_millis() < KILL_WAIT_MAX.as_millis()
);

/// Why something of a unit may still run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClearError {
    /// It cannot be seen whether.
    #[error("cannot see what is left of it")]
    Look(#[source] CensusError),
    /// It survived being killed.
    #[error(
        "still there {KILL_WAIT_MAX:?} after SIGKILL: process {pids:?}; either hanging in the kernel (a device, a \
         network file system) or under a user that this agent may not signal"
    )]
    Stuck {
        /// The processes.
        pids: Vec<i32>,
    },
}

/// Ends everything of a unit. `known` is its main process, where the agent knows it. Nothing there is success.
pub(super) async fn clear(
    home: &Arc<Home>,
    name: &UnitName,
    known: Option<(Identity, Mark)>,
    timeout: Duration,
) -> Result<(), ClearError> {
    let groups = known.iter().map(|(main, _)| main.pid).collect();
    let mut hunt = Hunt { home, name, known: known.into_iter().collect(), groups };
    let found = hunt.look().await?;
    hunt.signal(&found, Signal::TERM);
    if found.is_empty() || hunt.wait(timeout, None).await?.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        deployment.id = %name.deployment, component.name = %name.component,
        "did not stop within {timeout:?}: killing it"
    );
    let left = hunt.wait(KILL_WAIT_MAX, Some(Signal::KILL)).await?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(ClearError::Stuck { pids: left.iter().map(|it| it.pid).collect() })
    }
}

/// A process to be met by a signal.
#[derive(Debug, Clone, Copy)]
struct Target {
    pid: i32,
    group: i32,
}

/// One hunt for the processes of a unit.
struct Hunt<'a> {
    home: &'a Arc<Home>,
    name: &'a UnitName,
    known: Vec<(Identity, Mark)>,
    /// The unit's groups at the last look: their members are the unit's also when the last marked one is gone.
    groups: BTreeSet<i32>,
}

impl Hunt<'_> {
    async fn look(&mut self) -> Result<Vec<Target>, ClearError> {
        let census = Census::take(self.home, self.known.clone()).await.map_err(ClearError::Look)?;
        self.groups = census.groups(self.name, &self.groups);
        let members = census.members(self.name, &self.groups);
        Ok(members.iter().map(|seen| Target { pid: seen.identity.pid, group: seen.group }).collect())
    }

    /// Looks until nothing is left or the time is up, and signals what it sees. Returns what is left.
    async fn wait(&mut self, timeout: Duration, with: Option<Signal>) -> Result<Vec<Target>, ClearError> {
        let deadline = Instant::now() + timeout;
        let mut pause = LOOK_EVERY_MIN;
        loop {
            let left = self.look().await?;
            if left.is_empty() || Instant::now() >= deadline {
                return Ok(left);
            }
            if let Some(with) = with {
                self.signal(&left, with);
            }
            sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
            pause = (pause * 2).min(LOOK_EVERY_MAX);
        }
    }

    /// Sends a signal. Who is gone meanwhile needs none, and who may not be signalled is seen at the next look.
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
