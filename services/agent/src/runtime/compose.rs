//! Runs units as Compose projects of the Docker engine on the device (`docker compose`, or `docker-compose` where that is
//! what there is). A unit is a project: its containers and networks carry its identity as labels and outlive the agent.
//!
//! ```text
//! start ─► look ─┬─ runs already ─────────────────────────► wait ─┬─► ready ─► Ready
//!                └─ does not ─► package ─► project ─► up ───▲     └─► ended ─► put down
//! watch ─► events, looks ─► judge ─► Exit
//! ```
//!
//! What runs is what the engine says: [`engine`] asks it, [`judge`] says what that means for a unit, [`watch`] tells of an
//! end that nobody asked for. Containers that the engine restarts by itself are its business as long as that helps.
//! Named volumes live until their component is taken away; a new version finds them again.

mod command;
mod engine;
mod judge;
mod package;
mod project;
mod start;
mod tool;
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
use tokio::sync::{OnceCell, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::command::CommandError;
use self::engine::{Container, Engine};
use self::project::Places;
use self::tool::Tool;
use self::watch::Watched;
use super::{Exit, Running, Runtime, Started, Unit, UnitName, code};

/// The runtime of profile type `compose`. Dropping it ends its watch and leaves its containers running.
#[derive(Debug)]
pub struct ComposeRuntime {
    inner: Arc<Inner>,
    _leaves_on_drop: DropGuard,
}

/// What starts and the watch share.
#[derive(Debug)]
struct Inner {
    device: DeviceKey,
    places: Places,
    engine: Engine,
    tool: OnceCell<Tool>,
    exits: mpsc::Sender<Exit>,
    ready: Mutex<BTreeMap<UnitName, Watched>>,
    watching: OnceCell<()>,
    leave: CancellationToken,
}

/// Why something of a unit may be left.
#[derive(Debug, thiserror::Error)]
enum ClearError {
    #[error("the engine cannot take it away")]
    Engine(#[from] CommandError),
    #[error("the engine still has {0} of its containers after taking them away")]
    Left(usize),
    #[error("its folder {} cannot be removed", .path.display())]
    Folder {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// What of a unit is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clearing {
    /// Containers and networks: another version may come.
    Runs,
    /// Named volumes and files as well.
    Everything,
}

impl Runtime for ComposeRuntime {
    fn supports(&self, profile: ProfileType) -> bool {
        profile == ProfileType::Compose
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(Arc::clone(&self.inner).bring_up(unit, cancel))
    }

    fn stop<'a>(&'a self, name: &'a UnitName, timeout: Duration) -> BoxFuture<'a, Result<(), StatusError>> {
        Box::pin(self.take_away(name, timeout, Clearing::Runs))
    }

    fn remove<'a>(&'a self, name: &'a UnitName, timeout: Duration) -> BoxFuture<'a, Result<(), StatusError>> {
        Box::pin(self.take_away(name, timeout, Clearing::Everything))
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let device = self.inner.device.device.as_str();
        let failed = move |error| StatusError::new(code::INVENTORY_FAILED, device, chain(&error));
        Box::pin(async move { self.inner.look_around().await.map_err(failed) })
    }
}

impl ComposeRuntime {
    /// A runtime for the units of a device. Touches nothing yet.
    pub fn new(device: DeviceKey, data_dir: &Path, exits: mpsc::Sender<Exit>) -> Self {
        let leave = CancellationToken::new();
        let inner = Inner {
            places: Places::new(data_dir, &device),
            engine: Engine::of(&device),
            device,
            tool: OnceCell::new(),
            exits,
            ready: Mutex::default(),
            watching: OnceCell::new(),
            leave: leave.clone(),
        };
        Self { inner: Arc::new(inner), _leaves_on_drop: leave.drop_guard() }
    }

    async fn take_away(
        &self,
        name: &UnitName,
        timeout: Duration,
        clearing: Clearing,
    ) -> Result<(), StatusError> {
        let failed =
            |error: ClearError| StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error));
        self.inner.put_down(name, timeout, clearing).await.map_err(failed)
    }
}

impl Inner {
    /// Ends everything of a unit and forgets it. Nothing there is success.
    async fn put_down(
        &self,
        name: &UnitName,
        timeout: Duration,
        clearing: Clearing,
    ) -> Result<(), ClearError> {
        // Nobody is told of an end that is asked for.
        self.table().remove(name);
        self.engine.end(name, timeout).await?;
        if clearing == Clearing::Everything {
            self.engine.remove_volumes(name).await?;
            let path = self.places.home(name);
            match std::fs::remove_dir_all(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(ClearError::Folder { path, source });
                }
                _ => {}
            }
        }
        match self.engine.containers_of(name).await?.len() {
            0 => Ok(()),
            left => Err(ClearError::Left(left)),
        }
    }

    async fn look_around(&self) -> Result<Vec<Running>, CommandError> {
        let mut found: BTreeMap<UnitName, String> =
            self.engine.volumes().await?.into_iter().map(|name| (name, String::new())).collect();
        for (name, containers) in self.units().await? {
            let version = judge::version(&containers, &self.places.done(&name));
            found.insert(name, version.unwrap_or_default());
        }
        Ok(found.into_iter().map(|(name, digest_prefix)| Running { name, digest_prefix }).collect())
    }

    /// All containers of this device, by unit.
    async fn units(&self) -> Result<BTreeMap<UnitName, Vec<Container>>, CommandError> {
        let mut units: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for container in self.engine.containers().await? {
            units.entry(container.unit.clone()).or_default().push(container);
        }
        Ok(units)
    }

    /// Entries are whole at any moment, so a panic elsewhere cannot have left half of one.
    fn table(&self) -> MutexGuard<'_, BTreeMap<UnitName, Watched>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
