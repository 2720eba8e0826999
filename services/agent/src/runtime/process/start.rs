//! Brings one unit up: finds it running or launches it, then waits until it is ready.
//!
//! Wherever the caller drops this, what has been started can be found: between the fork and its entry in the table
//! nothing waits, and before and after the process shows its mark.

use std::sync::Arc;
use std::time::Duration;

use muster_contract::profile::{Process, Readiness, UPTIME_DEFAULT, Workload};
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::census::{Census, CensusError, Identity};
use super::ending::{End, When, said};
use super::launch::{self, LaunchError, Prepared};
use super::logs::Logs;
use super::mark::Mark;
use super::watch::{Phase, Times, Watched};
use super::{ProcessRuntime, StopError, ready};
use crate::runtime::{Started, Unit, code};

/// Time that a unit found running gets to prove that it is ready, where its `timeout` has long passed.
const ADOPTION_GRACE: Duration = Duration::from_secs(2);

/// Why a unit could not be brought up.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cannot see whether it runs already")]
    Look(#[source] CensusError),
    #[error("what is left of an earlier run of it does not end")]
    Clear(#[source] StopError),
    #[error(transparent)]
    Launch(LaunchError),
}

/// What a start finds or makes.
enum Seized {
    /// A running process under watch.
    Runs(Arc<Watched>),
    /// A job that has done its work in this version.
    Done,
}

impl ProcessRuntime {
    pub(super) async fn bring_up(
        &self,
        unit: &Unit,
        cancel: &CancellationToken,
    ) -> Result<Started, StatusError> {
        let Workload::Process(process) = &unit.workload else {
            let message = "the agent's runtime is 'process' and runs no component of another type";
            return Err(StatusError::new(code::UNSUPPORTED_PROFILE, unit.component.as_str(), message));
        };
        let failed = |error| StatusError::new(code::START_FAILED, unit.component.as_str(), chain(&error));
        let seized = tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(Started::Cancelled),
            seized = self.seize(unit, process) => seized.map_err(failed)?,
        };
        match seized {
            Seized::Done => Ok(Started::Ready),
            Seized::Runs(watched) => self.see_ready(&watched, unit, process, cancel).await,
        }
    }

    /// Takes over the unit's process, or launches it where nothing of its name runs.
    async fn seize(&self, unit: &Unit, process: &Process) -> Result<Seized, StartError> {
        let mark = Mark::of(unit);
        let entry = self.entry(&mark.name);
        let same = entry.as_ref().filter(|watched| watched.mark == mark);
        if let Some(watched) = same {
            match watched.phase() {
                Phase::Starting | Phase::Ready => return Ok(Seized::Runs(Arc::clone(watched))),
                Phase::Ended(_) if watched.is_done() => return Ok(Seized::Done),
                Phase::Stopping | Phase::Ended(_) => {}
            }
        }
        let known = entry.iter().filter_map(|watched| watched.known()).collect();
        let census = Census::take(&self.home, known).await.map_err(StartError::Look)?;
        if is_job(process) && census.done().contains(&mark) {
            return Ok(Seized::Done);
        }
        // What is in the table here has ended or is being stopped: it is cleared away, never taken over.
        if let (None, Some((main, found))) = (&entry, census.main(&mark.name))
            && *found == mark
        {
            return Ok(Seized::Runs(self.adopt(mark, main, process)));
        }
        if entry.is_some() || census.units().contains(&mark.name) {
            self.put_down(&mark.name, process.stop_timeout()).await.map_err(StartError::Clear)?;
        }
        self.launch(mark, unit, process).await.map(Seized::Runs).map_err(StartError::Launch)
    }

    fn adopt(&self, mark: Mark, main: Identity, process: &Process) -> Arc<Watched> {
        tracing::info!(
            deployment.id = %mark.name.deployment, component.name = %mark.name.component, process.pid = main.pid,
            "runs already: taken over"
        );
        let now = Instant::now();
        let since = now.checked_sub(main.age()).unwrap_or(now);
        let times = Times { since, settled: since, grace: now + ADOPTION_GRACE };
        let logs = Logs::of(&self.home, &mark.name);
        self.put_under_watch(Watched::new(mark, main, times, is_job(process), logs), None)
    }

    async fn launch(&self, mark: Mark, unit: &Unit, process: &Process) -> Result<Arc<Watched>, LaunchError> {
        let is_port_taken = ready::is_taken(&process.readiness).await;
        let prepared = self.prepare(unit, process).await?;
        // From here to the table nothing may wait: see the file's head.
        let (child, logs) = prepared.spawn()?;
        let since = Instant::now();
        let settled = if is_port_taken { since + UPTIME_DEFAULT } else { since };
        let pid = child.id().map_or(0, u32::cast_signed);
        // A child cannot lose its number before it is reaped; should `/proc` fail us all the same, the mark tells.
        let main = Identity::of(pid).unwrap_or(Identity { started: 0, pid });
        tracing::info!(
            deployment.id = %mark.name.deployment, component.name = %mark.name.component, process.pid = pid, "started"
        );
        let times = Times { since, settled, grace: since };
        Ok(self.put_under_watch(Watched::new(mark, main, times, is_job(process), logs), Some(child)))
    }

    async fn prepare(&self, unit: &Unit, process: &Process) -> Result<Prepared, LaunchError> {
        let (home, unit, process) = (Arc::clone(&self.home), unit.clone(), process.clone());
        let prepared = tokio::task::spawn_blocking(move || launch::prepare(&home, &unit, &process));
        prepared.await.map_err(LaunchError::CutShort)?
    }

    /// Waits until the unit is ready, has ended, is late or is no more wanted, whichever comes first.
    async fn see_ready(
        &self,
        watched: &Watched,
        unit: &Unit,
        process: &Process,
        cancel: &CancellationToken,
    ) -> Result<Started, StatusError> {
        if matches!(watched.phase(), Phase::Ready) {
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

    async fn until_ready(&self, watched: &Watched, unit: &Unit, process: &Process) {
        sleep_until(watched.times.settled).await;
        let directory = launch::directory(&self.home, unit, process);
        ready::until_ready(&process.readiness, watched.times.since, &directory).await;
    }

    /// Stops a unit that is late, and says what it lacked.
    async fn give_up(&self, watched: &Watched, process: &Process) -> StatusError {
        let name = &watched.mark.name;
        let stopped = self.put_down(name, process.stop_timeout()).await;
        let unstopped = stopped.err().map(|error| format!("; and it may still run: {}", chain(&error)));
        let message = format!(
            "not ready within {:?}: {}{}; {}",
            process.gate.timeout.unwrap_or_default(),
            ready::missing(&process.readiness),
            unstopped.unwrap_or_default(),
            said(&watched.logs.last_words(), watched.logs.err()),
        );
        StatusError::new(code::NOT_READY, name.component.as_str(), message)
    }
}

fn is_job(process: &Process) -> bool {
    process.readiness == Readiness::Exit
}

async fn until_late(watched: &Watched, process: &Process) {
    match process.gate.timeout {
        Some(timeout) => sleep_until((watched.times.since + timeout).max(watched.times.grace)).await,
        None => std::future::pending().await,
    }
}

/// What an end before readiness means.
fn outcome(watched: &Watched, end: &End) -> Result<Started, StatusError> {
    if watched.is_done() {
        return Ok(Started::Ready);
    }
    Err(end.error(&watched.mark.name.component, When::BeforeReady))
}
