//! Runs units as processes of the device's operating system (Linux: it reads `/proc`, and says so where there is none).
//!
//! A unit is a process group that belongs to nobody but itself: it has its own files for stdout and stderr, its
//! identity in its environment, and it outlives the agent. A service manager must not take it down with the agent
//! either (systemd: `KillMode=process`). A unit's main process is to stay in the foreground: when it ends, the unit
//! has ended, and what it leaves behind is cleared away.
//!
//! ```text
//! start ─► census ─┬─ runs already ────────► watch ─┬─► ready ─► Ready
//!                  └─ does not ─► launch ─────▲     └─► ended ─► clear ─► Exit
//! stop ──► clear ─► ended (the watch reaps)
//! ```
//!
//! Looking (`census`) is the authority on what runs; the table of watched units saves looking and holds what only a
//! parent knows. Whether to start, in which order and how often is [`crate::reconcile`]'s.

mod census;
mod clear;
mod ending;
pub(super) mod environment;
mod home;
mod launch;
mod logs;
mod mark;
mod note;
mod ready;
mod start;
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

use self::census::{Census, CensusError};
use self::clear::{ClearError, KILL_WAIT_MAX, clear};
use self::home::Home;
use self::watch::{Post, Watched, watch};
use super::{Exit, Running, Runtime, Started, Unit, UnitName, code};

/// The runtime of profile type `process`. Dropping it ends its watches and leaves its units running.
#[derive(Debug)]
pub struct ProcessRuntime {
    home: Arc<Home>,
    exits: mpsc::Sender<Exit>,
    units: Mutex<BTreeMap<UnitName, Arc<Watched>>>,
    leave: CancellationToken,
    _leaves_on_drop: DropGuard,
}

/// Why a unit may not have been stopped.
#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error(transparent)]
    Clear(ClearError),
    #[error("its main process is gone, but its watch has not noticed within {KILL_WAIT_MAX:?}")]
    Unnoticed,
    #[error(
        "it has stopped, but the note of its last run cannot be removed: a finished job would not run again"
    )]
    Forget(#[source] std::io::Error),
}

impl Runtime for ProcessRuntime {
    fn supports(&self, profile: ProfileType) -> bool {
        profile == ProfileType::Process
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(self.bring_up(unit, cancel))
    }

    fn stop<'a>(&'a self, name: &'a UnitName, timeout: Duration) -> BoxFuture<'a, Result<(), StatusError>> {
        let failed = |error| StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error));
        Box::pin(async move { self.put_down(name, timeout).await.map_err(failed) })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let device = self.home.device.device.as_str();
        let failed = move |error| StatusError::new(code::INVENTORY_FAILED, device, chain(&error));
        Box::pin(async move { self.look_around().await.map_err(failed) })
    }
}

impl ProcessRuntime {
    /// A runtime for the units of a device. Touches nothing yet.
    pub fn new(device: DeviceKey, data_dir: &Path, exits: mpsc::Sender<Exit>) -> Self {
        let home = Arc::new(Home::new(device, data_dir));
        let leave = CancellationToken::new();
        Self { home, exits, units: Mutex::default(), _leaves_on_drop: leave.clone().drop_guard(), leave }
    }

    /// Ends everything of a unit and forgets it. Nothing there is success.
    async fn put_down(&self, name: &UnitName, timeout: Duration) -> Result<(), StopError> {
        let watched = self.entry(name);
        if let Some(watched) = &watched {
            watched.set_stopping();
        }
        let known = watched.as_ref().and_then(|watched| watched.known());
        clear(&self.home, name, known, timeout).await.map_err(StopError::Clear)?;
        if let Some(watched) = watched {
            // The watch reaps the process and says its last word before anything new may have this name.
            let ended = tokio::time::timeout(KILL_WAIT_MAX, watched.ended());
            ended.await.map_err(|_| StopError::Unnoticed)?;
            self.table().remove(name);
        }
        note::erase(&self.home, name).map_err(StopError::Forget)
    }

    async fn look_around(&self) -> Result<Vec<Running>, CensusError> {
        let entries: Vec<_> = self.table().values().cloned().collect();
        let census =
            Census::take(&self.home, entries.iter().filter_map(|watched| watched.known()).collect()).await?;
        let told = entries.iter().filter(|watched| watched.is_done()).map(|watched| &watched.mark);
        let done = census.done().iter().chain(told).cloned();
        let mut found: BTreeMap<UnitName, String> =
            done.map(|mark| (mark.name, mark.digest_prefix)).collect();
        for name in census.units() {
            let digest_prefix = census.main(&name).map(|(_, mark)| mark.digest_prefix.clone());
            found.insert(name, digest_prefix.unwrap_or_default());
        }
        Ok(found.into_iter().map(|(name, digest_prefix)| Running { name, digest_prefix }).collect())
    }

    fn put_under_watch(&self, watched: Watched, child: Option<Child>) -> Arc<Watched> {
        let watched = Arc::new(watched);
        let post =
            Post { home: Arc::clone(&self.home), exits: self.exits.clone(), leave: self.leave.clone() };
        self.table().insert(watched.mark.name.clone(), Arc::clone(&watched));
        tokio::spawn(watch(post, Arc::clone(&watched), child));
        watched
    }

    fn entry(&self, name: &UnitName) -> Option<Arc<Watched>> {
        self.table().get(name).cloned()
    }

    /// Entries are whole at any moment, so a panic elsewhere cannot have left half of one.
    fn table(&self) -> MutexGuard<'_, BTreeMap<UnitName, Arc<Watched>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
