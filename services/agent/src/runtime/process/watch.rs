//! Watches one running unit: waits for the end of its main process, terminates its remaining processes, limits its
//! logs, and sends the exit if no one stopped it. It starts and stops nothing by itself.
//!
//! ```text
//! Starting ── ready ──► Ready ── stop ──► Stopping
//!    │  └────── stop ─────┼──────────────────▲ │
//!    └──────────────── main process ends ──────┴──► Ended     (an Exit is sent only from Ready)
//! ```

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::env_tag::EnvTag;
use super::logs::{self, Logs};
use super::paths::UnitPaths;
use super::process_end::{EndTime, ExitCause, ProcessEnd};
use super::process_id::ProcessId;
use super::state_file::StoredUnit;
use super::terminate::terminate;
use crate::runtime::{Exit, UnitName};

/// Time for the children of an ended main process to end too, before they are killed.
const REMAINS_STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two polls of an adopted process.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A watched unit.
#[derive(Debug)]
pub(super) struct WatchedUnit {
    /// The unit and its version.
    pub(super) tag: EnvTag,
    /// Its main process.
    pub(super) main: ProcessId,
    /// The times that decide its readiness.
    pub(super) times: Times,
    /// Its log files.
    pub(super) logs: Logs,
    /// It is a job: an end with 0 is success.
    is_job: bool,
    phase: watch::Sender<UnitPhase>,
}

/// The times that decide the readiness of a unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When its main process started.
    pub(super) since: Instant,
    /// It is not ready before this: another process held its port when it started.
    pub(super) settled: Instant,
    /// It is not late before this.
    pub(super) grace: Instant,
}

/// The phase of a unit.
#[derive(Debug, Clone)]
pub(super) enum UnitPhase {
    /// Started and not known to be ready.
    Starting,
    /// Ready: its end is an exit to send.
    Ready,
    /// Being stopped.
    Stopping,
    /// Its main process has ended, and its remaining processes are terminated.
    Ended(Arc<ProcessEnd>),
}

/// The context of a watch.
#[derive(Debug)]
pub(super) struct WatchContext {
    /// The paths.
    pub(super) paths: Arc<UnitPaths>,
    /// The channel for exits.
    pub(super) exits: mpsc::Sender<Exit>,
    /// Ends the watch and leaves the unit running, because the agent ends.
    pub(super) leave: CancellationToken,
}

impl WatchedUnit {
    /// A unit that was just launched or adopted.
    pub(super) fn new(tag: EnvTag, main: ProcessId, times: Times, is_job: bool, logs: Logs) -> Self {
        Self { tag, main, times, logs, is_job, phase: watch::Sender::new(UnitPhase::Starting) }
    }

    /// Its main process and tag, for the process table. `None` once it has ended: its number may be another process's
    /// then.
    pub(super) fn known(&self) -> Option<(ProcessId, EnvTag)> {
        (!matches!(self.phase(), UnitPhase::Ended(_))).then(|| (self.main, self.tag.clone()))
    }

    /// Its phase.
    pub(super) fn phase(&self) -> UnitPhase {
        self.phase.borrow().clone()
    }

    /// Sets it to ready. False if it has ended or is being stopped.
    pub(super) fn set_ready(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let is_starting = matches!(phase, UnitPhase::Starting);
            if is_starting {
                *phase = UnitPhase::Ready;
            }
            is_starting
        })
    }

    /// Sets it to stopping: its end is not an exit to send.
    pub(super) fn set_stopping(&self) {
        self.phase.send_if_modified(|phase| {
            let is_up = matches!(phase, UnitPhase::Starting | UnitPhase::Ready);
            if is_up {
                *phase = UnitPhase::Stopping;
            }
            is_up
        });
    }

    /// Waits for the end of its main process.
    pub(super) async fn ended(&self) -> Arc<ProcessEnd> {
        let mut phase = self.phase.subscribe();
        loop {
            if let UnitPhase::Ended(end) = &*phase.borrow_and_update() {
                return Arc::clone(end);
            }
            if phase.changed().await.is_err() {
                // The sender is this unit's own, so this cannot happen.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether it is a completed job.
    pub(super) fn is_done(&self) -> bool {
        self.is_job && matches!(&*self.phase.borrow(), UnitPhase::Ended(end) if end.is_success())
    }
}

/// Watches a unit until it has ended or the agent ends. `child` is set if this agent has launched it.
pub(super) async fn watch(context: WatchContext, unit: Arc<WatchedUnit>, child: Option<Child>) {
    if child.is_some() {
        write_state(&context, &unit, StoredUnit::started(&unit.tag, unit.main)).await;
    }
    let how = tokio::select! {
        how = end(unit.main, child) => how,
        never = bound_logs(&unit) => match never {},
        () = context.leave.cancelled() => return,
    };
    let end =
        Arc::new(ProcessEnd { how, last_lines: unit.logs.last_lines(), log: unit.logs.err().to_owned() });
    if !matches!(unit.phase(), UnitPhase::Stopping) {
        terminate_remains(&context, &unit).await;
    }
    if unit.is_job && end.is_success() {
        write_state(&context, &unit, StoredUnit::Done { digest_prefix: unit.tag.digest_prefix.clone() })
            .await;
    }
    if matches!(unit.phase.send_replace(UnitPhase::Ended(Arc::clone(&end))), UnitPhase::Ready) {
        send_exit(&context, &unit, &end).await;
    }
}

/// Waits for the end of the main process. Reaps a child.
async fn end(main: ProcessId, child: Option<Child>) -> ExitCause {
    match child {
        Some(mut child) => child.wait().await.map_or(ExitCause::Unknown, ExitCause::from),
        None => {
            until_gone(main).await;
            ExitCause::Unknown
        }
    }
}

/// Waits for the end of a process that is not a child of this agent. (A pidfd would signal it at once, but tokio can
/// wait for one only through `unsafe`; a poll costs one small read.)
async fn until_gone(main: ProcessId) {
    while main.is_alive() {
        sleep(POLL_INTERVAL).await;
    }
}

async fn bound_logs(unit: &WatchedUnit) -> Infallible {
    let (mut size, mut pause) = (0, logs::CHECK_LEAST);
    let name = &unit.tag.name;
    loop {
        sleep(pause).await;
        let logs = unit.logs.clone();
        let check = move || {
            let size = logs.size();
            logs.bound().map(|emptied| (size, emptied))
        };
        match tokio::task::spawn_blocking(check).await {
            Ok(Ok((now, emptied))) => {
                pause = logs::next_check(size, now, pause);
                size = if emptied.is_empty() { now } else { 0 };
                log_truncated(name, &emptied);
            }
            Ok(Err(error)) => tracing::warn!(
                deployment.id = %name.deployment, component.name = %name.component, %error,
                "cannot limit its logs"
            ),
            // The thread panicked; the next check has another.
            Err(_) => {}
        }
    }
}

fn log_truncated(name: &UnitName, emptied: &[PathBuf]) {
    for path in emptied {
        tracing::warn!(
            deployment.id = %name.deployment, component.name = %name.component, log.path = %path.display(),
            "a log is over {} bytes: kept its last {} bytes as .1 and truncated it",
            logs::RUNNING_BYTES_MAX, logs::ROTATE_BYTES,
        );
    }
}

/// Terminates the processes that a main process left: they would hold ports and files against the next start.
async fn terminate_remains(context: &WatchContext, unit: &WatchedUnit) {
    let name = &unit.tag.name;
    if let Err(error) = terminate(&context.paths, name, unit.known(), REMAINS_STOP_TIMEOUT).await {
        tracing::warn!(
            deployment.id = %name.deployment, component.name = %name.component,
            "cannot terminate the remaining processes of a component: {}", muster_service::error::chain(&error)
        );
    }
}

/// Writes a state file. Without it a restarted agent runs a completed job again, and knows a process by its tag alone.
async fn write_state(context: &WatchContext, unit: &WatchedUnit, stored: StoredUnit) {
    let (paths, name) = (Arc::clone(&context.paths), unit.tag.name.clone());
    let written = tokio::task::spawn_blocking(move || stored.write(&paths, &name)).await;
    if let Ok(Err(error)) = written {
        let name = &unit.tag.name;
        tracing::warn!(
            deployment.id = %name.deployment, component.name = %name.component, %error,
            "cannot write the state file: a restarted agent would run the component again if it is a completed job"
        );
    }
}

async fn send_exit(context: &WatchContext, unit: &WatchedUnit, end: &ProcessEnd) {
    let EnvTag { name, digest_prefix } = unit.tag.clone();
    let error = end.error(&name.component, EndTime::AfterReady);
    let exit = Exit { name, digest_prefix, error };
    tokio::select! {
        // A closed channel means that the agent ends; its inventory finds the exit later.
        _ = context.exits.send(exit) => {}
        () = context.leave.cancelled() => {}
    }
}
