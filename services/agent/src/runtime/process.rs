//! Runs units as processes of the device's operating system (Linux: it reads `/proc`, and reports an error without
//! it).
//!
//! A unit is a process group of its own, with its own files for stdout and stderr and a tag in its environment, and
//! it outlives the agent. A service manager must not end it with the agent either (systemd: `KillMode=process`). A
//! unit's main process must stay in the foreground: when it ends, the unit has ended, and its remaining processes are
//! terminated.
//!
//! ```text
//! start ─► process_table ─┬─ runs already ─────────► watch ─┬─► ready ─► Ready
//!                         └─ does not ─► launch ─────▲      └─► ended ─► terminate ─► Exit
//! stop ──► terminate ─► ended (the watch reaps)
//! ```
//!
//! `process_table` is the authority on what runs; the table of watched units saves reading it, and holds what only a
//! parent process knows. [`crate::reconcile`] decides whether to start, in which order and how often.

mod env_tag;
pub(super) mod environment;
mod launch;
mod logs;
mod paths;
mod process_end;
mod process_id;
mod process_table;
mod ready;
mod start;
mod state_file;
mod terminate;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_contract::DeviceKey;
use muster_contract::desired::ProfileType;
use muster_contract::state::StatusError;
use muster_service::error::chain;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::paths::UnitPaths;
use self::process_table::{ProcessTable, ProcessTableError};
use self::terminate::{KILL_WAIT_MAX, TerminateError, terminate};
use self::watch::{WatchContext, WatchedUnit, watch};
use super::{Exit, Running, Runtime, Started, Stopped, Unit, UnitName, code};

/// The runtime of profile type `process`. Dropping it ends its watches and leaves its units running.
#[derive(Debug)]
pub struct ProcessRuntime {
    paths: Arc<UnitPaths>,
    exits: mpsc::Sender<Exit>,
    units: Mutex<BTreeMap<UnitName, Arc<WatchedUnit>>>,
    leave: CancellationToken,
    _leaves_on_drop: DropGuard,
}

/// The error of stopping a unit: it may still run.
#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error(transparent)]
    Clear(TerminateError),
    #[error("its main process has ended, but its watch has not noticed within {KILL_WAIT_MAX:?}")]
    Unnoticed,
    #[error("it has stopped, but its state file cannot be removed: a completed job would not run again")]
    Forget(#[source] std::io::Error),
}

impl Runtime for ProcessRuntime {
    fn profiles(&self) -> &'static [ProfileType] {
        &[ProfileType::Process]
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(self.start_unit(unit, cancel))
    }

    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        let failed = |error| StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error));
        Box::pin(async move { self.stop_unit(name, timeout).await.map_err(failed) })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let device = self.paths.device.device.as_str();
        let failed = move |error| StatusError::new(code::INVENTORY_FAILED, device, chain(&error));
        Box::pin(async move { self.list_units().await.map_err(failed) })
    }
}

impl ProcessRuntime {
    /// A runtime for the units of a device. Reads and writes nothing yet.
    pub fn new(device: DeviceKey, data_dir: &Path, exits: mpsc::Sender<Exit>) -> Self {
        let paths = Arc::new(UnitPaths::new(device, data_dir));
        let leave = CancellationToken::new();
        Self { paths, exits, units: Mutex::default(), _leaves_on_drop: leave.clone().drop_guard(), leave }
    }

    /// Stops a unit and removes its state file. It is no error if nothing runs.
    async fn stop_unit(&self, name: &UnitName, timeout: Duration) -> Result<Stopped, StopError> {
        let watched = self.entry(name);
        if let Some(watched) = &watched {
            watched.set_stopping();
        }
        let known = watched.as_ref().and_then(|watched| watched.known());
        let stopped = terminate(&self.paths, name, known, timeout).await.map_err(StopError::Clear)?;
        if let Some(watched) = watched {
            // The watch must reap the process and finish before another unit may have this name.
            let ended = tokio::time::timeout(KILL_WAIT_MAX, watched.ended());
            ended.await.map_err(|_| StopError::Unnoticed)?;
            self.table().remove(name);
        }
        state_file::remove(&self.paths, name).map_err(StopError::Forget)?;
        Ok(stopped)
    }

    async fn list_units(&self) -> Result<Vec<Running>, ProcessTableError> {
        let entries: Vec<_> = self.table().values().cloned().collect();
        let processes =
            ProcessTable::read(&self.paths, entries.iter().filter_map(|watched| watched.known()).collect())
                .await?;
        let completed = entries.iter().filter(|watched| watched.is_done()).map(|watched| &watched.tag);
        let done = processes.done().iter().chain(completed).cloned();
        let mut found: BTreeMap<UnitName, String> = done.map(|tag| (tag.name, tag.digest_prefix)).collect();
        for name in processes.units() {
            let digest_prefix = processes.main(&name).map(|(_, tag)| tag.digest_prefix.clone());
            found.insert(name, digest_prefix.unwrap_or_default());
        }
        Ok(found.into_iter().map(|(name, digest_prefix)| Running { name, digest_prefix }).collect())
    }

    fn watch_unit(&self, watched: WatchedUnit, child: Option<Child>) -> Arc<WatchedUnit> {
        let watched = Arc::new(watched);
        let context = WatchContext {
            paths: Arc::clone(&self.paths),
            exits: self.exits.clone(),
            leave: self.leave.clone(),
        };
        self.table().insert(watched.tag.name.clone(), Arc::clone(&watched));
        tokio::spawn(watch(context, Arc::clone(&watched), child));
        watched
    }

    fn entry(&self, name: &UnitName) -> Option<Arc<WatchedUnit>> {
        self.table().get(name).cloned()
    }

    /// Entries are always whole, so a panic of another thread leaves none incomplete.
    fn table(&self) -> MutexGuard<'_, BTreeMap<UnitName, Arc<WatchedUnit>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
