//! Starts one unit: finds it running or launches it, then waits until it is ready.
//!
//! Wherever the caller drops this future, the started process can be found: nothing waits between the fork and its
//! entry in the table, and before and after that the process carries its tag.

use std::sync::Arc;
use std::time::Duration;

use muster_contract::profile::{Process, Readiness, UPTIME_DEFAULT, Workload};
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::env_tag::EnvTag;
use super::launch::{self, LaunchError, PreparedLaunch};
use super::logs::Logs;
use super::process_end::{EndTime, ProcessEnd, stderr_summary};
use super::process_id::ProcessId;
use super::process_table::{ProcessTable, ProcessTableError};
use super::watch::{Times, UnitPhase, WatchedUnit};
use super::{ProcessRuntime, StopError, ready};
use crate::runtime::{Started, Unit, code};

/// Time for an adopted unit to become ready, if its `timeout` has long passed.
const ADOPTION_GRACE: Duration = Duration::from_secs(2);

/// The error of starting a unit.
#[derive(Debug, thiserror::Error)]
enum ProcessStartError {
    #[error("cannot find out whether it runs already")]
    List(#[source] ProcessTableError),
    #[error("cannot stop what is left of an earlier run of it")]
    Clear(#[source] StopError),
    #[error(transparent)]
    Launch(LaunchError),
}

/// The result of finding a unit, or of launching it.
enum FoundUnit {
    /// A running process, watched.
    Runs(Arc<WatchedUnit>),
    /// A completed job of this version.
    Done,
}

impl ProcessRuntime {
    pub(super) async fn start_unit(
        &self,
        unit: &Unit,
        cancel: &CancellationToken,
    ) -> Result<Started, StatusError> {
        let Workload::Process(process) = &unit.workload else {
            let message = "the agent's runtime is 'process' and runs no component of another type";
            return Err(StatusError::new(code::UNSUPPORTED_PROFILE, unit.component.as_str(), message));
        };
        let failed = |error| StatusError::new(code::START_FAILED, unit.component.as_str(), chain(&error));
        let found = tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(Started::Cancelled),
            found = self.adopt_or_launch(unit, process) => found.map_err(failed)?,
        };
        match found {
            FoundUnit::Done => Ok(Started::Ready),
            FoundUnit::Runs(watched) => self.await_ready(&watched, unit, process, cancel).await,
        }
    }

    /// Adopts the unit's process, or launches it if nothing of its name runs.
    async fn adopt_or_launch(&self, unit: &Unit, process: &Process) -> Result<FoundUnit, ProcessStartError> {
        let tag = EnvTag::of(unit);
        let entry = self.entry(&tag.name);
        let same = entry.as_ref().filter(|watched| watched.tag == tag);
        if let Some(watched) = same {
            match watched.phase() {
                UnitPhase::Starting | UnitPhase::Ready => return Ok(FoundUnit::Runs(Arc::clone(watched))),
                UnitPhase::Ended(_) if watched.is_done() => return Ok(FoundUnit::Done),
                UnitPhase::Stopping | UnitPhase::Ended(_) => {}
            }
        }
        let known = entry.iter().filter_map(|watched| watched.known()).collect();
        let processes = ProcessTable::read(&self.paths, known).await.map_err(ProcessStartError::List)?;
        if is_job(process) && processes.done().contains(&tag) {
            return Ok(FoundUnit::Done);
        }
        // A unit in the table has ended or is being stopped at this point: it is terminated, never adopted.
        if let (None, Some((main, found))) = (&entry, processes.main(&tag.name))
            && *found == tag
        {
            return Ok(FoundUnit::Runs(self.adopt(tag, main, process)));
        }
        if entry.is_some() || processes.units().contains(&tag.name) {
            self.stop_unit(&tag.name, process.stop_timeout()).await.map_err(ProcessStartError::Clear)?;
        }
        self.launch(tag, unit, process).await.map(FoundUnit::Runs).map_err(ProcessStartError::Launch)
    }

    fn adopt(&self, tag: EnvTag, main: ProcessId, process: &Process) -> Arc<WatchedUnit> {
        tracing::info!(
            deployment.id = %tag.name.deployment, component.name = %tag.name.component, process.pid = main.pid,
            "adopted a running component"
        );
        let now = Instant::now();
        let since = now.checked_sub(main.age()).unwrap_or(now);
        let times = Times { since, settled: since, grace: now + ADOPTION_GRACE };
        let logs = Logs::of(&self.paths, &tag.name);
        self.watch_unit(WatchedUnit::new(tag, main, times, is_job(process), logs), None)
    }

    async fn launch(
        &self,
        tag: EnvTag,
        unit: &Unit,
        process: &Process,
    ) -> Result<Arc<WatchedUnit>, LaunchError> {
        let is_port_taken = ready::is_taken(&process.readiness).await;
        let prepared = self.prepare(unit, process).await?;
        // From here to the entry in the table nothing may wait (see the header of this file).
        let (child, logs) = prepared.spawn()?;
        let since = Instant::now();
        let settled = if is_port_taken { since + UPTIME_DEFAULT } else { since };
        let pid = child.id().map_or(0, u32::cast_signed);
        // A child keeps its number until it is reaped; if `/proc` fails all the same, its tag identifies it.
        let main = ProcessId::of(pid).unwrap_or(ProcessId { started: 0, pid });
        tracing::info!(
            deployment.id = %tag.name.deployment, component.name = %tag.name.component, process.pid = pid,
            "started a component"
        );
        let times = Times { since, settled, grace: since };
        Ok(self.watch_unit(WatchedUnit::new(tag, main, times, is_job(process), logs), Some(child)))
    }

    async fn prepare(&self, unit: &Unit, process: &Process) -> Result<PreparedLaunch, LaunchError> {
        let (paths, unit, process) = (Arc::clone(&self.paths), unit.clone(), process.clone());
        let prepared = tokio::task::spawn_blocking(move || launch::prepare(&paths, &unit, &process));
        prepared.await.map_err(LaunchError::CutShort)?
    }

    /// Waits until the unit is ready, has ended, is late or is cancelled, whichever comes first.
    async fn await_ready(
        &self,
        watched: &WatchedUnit,
        unit: &Unit,
        process: &Process,
        cancel: &CancellationToken,
    ) -> Result<Started, StatusError> {
        if matches!(watched.phase(), UnitPhase::Ready) {
            return Ok(Started::Ready);
        }
        tokio::select! {
            biased;
            end = watched.ended() => outcome(watched, &end),
            () = self.until_ready(watched, unit, process) => {
                if watched.set_ready() { Ok(Started::Ready) } else { outcome(watched, &*watched.ended().await) }
            }
            () = cancel.cancelled() => Ok(Started::Cancelled),
            () = until_late(watched, process) => Err(self.give_up(watched, process).await),
        }
    }

    async fn until_ready(&self, watched: &WatchedUnit, unit: &Unit, process: &Process) {
        sleep_until(watched.times.settled).await;
        let directory = launch::directory(&self.paths, unit, process);
        ready::until_ready(&process.readiness, watched.times.since, &directory).await;
    }

    /// Stops a unit that is late, and reports what it lacked.
    async fn give_up(&self, watched: &WatchedUnit, process: &Process) -> StatusError {
        let name = &watched.tag.name;
        let stopped = self.stop_unit(name, process.stop_timeout()).await;
        let unstopped = stopped.err().map(|error| format!("; and it may still run: {}", chain(&error)));
        let message = format!(
            "not ready within {:?}: {}{}; {}",
            process.gate.timeout.unwrap_or_default(),
            ready::missing(&process.readiness),
            unstopped.unwrap_or_default(),
            stderr_summary(&watched.logs.last_lines(), watched.logs.err()),
        );
        StatusError::new(code::NOT_READY, name.component.as_str(), message)
    }
}

fn is_job(process: &Process) -> bool {
    process.readiness == Readiness::Exit
}

async fn until_late(watched: &WatchedUnit, process: &Process) {
    match process.gate.timeout {
        Some(timeout) => sleep_until((watched.times.since + timeout).max(watched.times.grace)).await,
        None => std::future::pending().await,
    }
}

/// The result of an end before readiness.
fn outcome(watched: &WatchedUnit, end: &ProcessEnd) -> Result<Started, StatusError> {
    if watched.is_done() {
        return Ok(Started::Ready);
    }
    Err(end.error(&watched.tag.name.component, EndTime::BeforeReady))
}
