//! Runs units as Compose projects of the Docker engine on the device, with `docker compose`, otherwise
//! `docker-compose`. A unit is a project: its containers and networks carry its identity as labels and outlive the
//! agent.
//!
//! ```text
//! start ─► list ─┬─ runs already ─────────────────────────► wait ─┬─► ready ─► Ready
//!                └─ does not ─► package ─► project ─► up ───▲     └─► ended ─► stop
//! watch ─► events, lists ─► unit_state ─► Exit
//! ```
//!
//! The engine knows what runs: [`engine`] queries it, [`unit_state`] derives the state of a unit, [`watch`] sends
//! unexpected exits. The engine may restart containers by itself, up to a limit. Named volumes live until their
//! component is removed; a new version finds them again.

mod command;
mod engine;
mod package;
mod project;
mod start;
mod tool;
mod unit_state;
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
use self::project::ProjectPaths;
use self::tool::ComposeTool;
use self::watch::ReadyUnit;
use super::{Exit, Running, Runtime, Started, Stopped, Unit, UnitName, code};
use crate::package::PackageStore;

/// The runtime of profile type `compose`. Dropping it ends its watch and leaves its containers running.
#[derive(Debug)]
pub struct ComposeRuntime {
    inner: Arc<Inner>,
    _leaves_on_drop: DropGuard,
}

/// The state shared by starts and the watch.
#[derive(Debug)]
struct Inner {
    device: DeviceKey,
    paths: ProjectPaths,
    engine: Engine,
    tool: OnceCell<ComposeTool>,
    packages: PackageStore,
    exits: mpsc::Sender<Exit>,
    ready: Mutex<BTreeMap<UnitName, ReadyUnit>>,
    watching: OnceCell<()>,
    leave: CancellationToken,
}

/// The error of removing a unit: something of it may be left.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error("the engine cannot remove it")]
    Engine(#[from] CommandError),
    #[error("the engine still has {0} of its containers after removing them")]
    Left(usize),
    #[error("its folder {} cannot be removed", .path.display())]
    Folder {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// The part of a unit to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemovalScope {
    /// Containers and networks: another version may follow.
    Containers,
    /// Named volumes and files too.
    Everything,
}

impl Runtime for ComposeRuntime {
    fn profiles(&self) -> &'static [ProfileType] {
        &[ProfileType::Compose]
    }

    fn start_progress(&self, name: &UnitName) -> Option<String> {
        Some(self.inner.packages.progress(&self.inner.paths.home(name))?.to_string())
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(Arc::clone(&self.inner).start_unit(unit, cancel))
    }

    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        Box::pin(self.end_unit(name, timeout, RemovalScope::Containers))
    }

    fn remove<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        Box::pin(self.end_unit(name, timeout, RemovalScope::Everything))
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let device = self.inner.device.device.as_str();
        let failed = move |error| StatusError::new(code::INVENTORY_FAILED, device, chain(&error));
        Box::pin(async move { self.inner.list_units().await.map_err(failed) })
    }
}

impl ComposeRuntime {
    /// A runtime for the units of a device. Reads and writes nothing yet.
    pub fn new(
        device: DeviceKey,
        data_dir: &Path,
        packages: PackageStore,
        exits: mpsc::Sender<Exit>,
    ) -> Self {
        let leave = CancellationToken::new();
        let inner = Inner {
            paths: ProjectPaths::new(data_dir, &device),
            engine: Engine::of(&device),
            device,
            tool: OnceCell::new(),
            packages,
            exits,
            ready: Mutex::default(),
            watching: OnceCell::new(),
            leave: leave.clone(),
        };
        Self { inner: Arc::new(inner), _leaves_on_drop: leave.drop_guard() }
    }

    async fn end_unit(
        &self,
        name: &UnitName,
        timeout: Duration,
        clearing: RemovalScope,
    ) -> Result<Stopped, StatusError> {
        let failed =
            |error: RemoveError| StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error));
        self.inner.stop_unit(name, timeout, clearing).await.map_err(failed)
    }
}

impl Inner {
    /// Removes a unit. It is no error if nothing is there.
    async fn stop_unit(
        &self,
        name: &UnitName,
        timeout: Duration,
        clearing: RemovalScope,
    ) -> Result<Stopped, RemoveError> {
        // Removed from the table first: an intended end is not sent as an exit.
        self.table().remove(name);
        let stopped = self.engine.end(name, timeout).await?;
        if clearing == RemovalScope::Everything {
            self.engine.remove_volumes(name).await?;
            let path = self.paths.home(name);
            match std::fs::remove_dir_all(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(RemoveError::Folder { path, source });
                }
                _ => {}
            }
        }
        match self.engine.containers_of(name).await?.len() {
            0 => Ok(stopped),
            left => Err(RemoveError::Left(left)),
        }
    }

    async fn list_units(&self) -> Result<Vec<Running>, CommandError> {
        let mut found: BTreeMap<UnitName, String> =
            self.engine.volumes().await?.into_iter().map(|(name, _)| (name, String::new())).collect();
        for (name, containers) in self.units().await? {
            let version = unit_state::version(&containers, &self.paths.done(&name));
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

    /// Entries are always whole, so a panic of another thread leaves none incomplete.
    fn table(&self) -> MutexGuard<'_, BTreeMap<UnitName, ReadyUnit>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
