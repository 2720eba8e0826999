//! Simulates units of profile type `simulated` by their script: the duration of a start, the number of failing
//! starts, the time of a crash. Runs nothing, but fetches packages. Otherwise deterministic: it follows the script,
//! tokio's time and the given clock.
//!
//! The simulated units outlive the agent in a file (`state_file`), so a restarted agent finds them again, except
//! those whose crash was due meanwhile. Waiting uses tokio's time; the clock only says how long a unit has been
//! there.

mod device;
mod state_file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_contract::DeviceKey;
use muster_contract::desired::ProfileType;
use muster_contract::profile::{Simulated, Workload};
use muster_contract::state::StatusError;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::device::{SimulatedDevice, StartProgress};
use self::state_file::{UnitState, UnitsFileError};
use super::{Exit, Running, Runtime, Started, Stopped, Unit, UnitName, code};
use crate::package::{PackageError, PackageSource, PackageStore};

/// The folder of packages below the data directory.
const FOLDER: &str = "simulated";

/// The runtime of profile type `simulated`. Dropping it is the end of the agent: the simulated units stay.
#[derive(Debug)]
pub struct SimulatedRuntime {
    device: Arc<SimulatedDevice>,
    packages: PackageStore,
    /// The folder with the packages of all units.
    folder: PathBuf,
    exits: mpsc::Sender<Exit>,
    crashes: Mutex<BTreeMap<UnitName, AbortOnDropHandle<()>>>,
}

/// The error of a simulated start.
#[derive(Debug, thiserror::Error)]
enum SimulatedStartError {
    #[error(transparent)]
    File(#[from] UnitsFileError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error("its package is not fetched within {0:?}")]
    LatePackage(Duration),
    #[error("its folder {} cannot be made", .path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("simulated: start {count} of {of} that fail")]
    Scripted { count: u32, of: u32 },
    #[error("simulated: not ready within {timeout:?}; its script starts it in {start_delay:?}")]
    Late { timeout: Duration, start_delay: Duration },
}

impl Runtime for SimulatedRuntime {
    fn profiles(&self) -> &'static [ProfileType] {
        &[ProfileType::Simulated]
    }

    fn start_progress(&self, name: &UnitName) -> Option<String> {
        Some(self.packages.progress(&self.home(name))?.to_string())
    }

    fn start<'a>(
        &'a self,
        unit: &'a Unit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Started, StatusError>> {
        Box::pin(async move {
            let Workload::Simulated(script) = &unit.workload else {
                let message = "the agent's runtime is 'simulated' and runs no component of another type";
                return Err(StatusError::new(code::UNSUPPORTED_PROFILE, unit.component.as_str(), message));
            };
            let failed = |error: SimulatedStartError| {
                StatusError::new(error.code(), unit.component.as_str(), chain(&error))
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => Ok(Started::Cancelled),
                started = self.start_unit(unit, script) => started.map(|()| Started::Ready).map_err(failed),
            }
        })
    }

    fn stop<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        let failed = |error| StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error));
        Box::pin(async move { self.stop_unit(name, timeout).await.map_err(failed) })
    }

    fn remove<'a>(
        &'a self,
        name: &'a UnitName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Stopped, StatusError>> {
        Box::pin(async move {
            let stopped = self.stop(name, timeout).await?;
            match std::fs::remove_dir_all(self.home(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(StatusError::new(code::STOP_FAILED, name.component.as_str(), error.to_string()))
                }
                _ => Ok(stopped),
            }
        })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let failed =
            |error| StatusError::new(code::INVENTORY_FAILED, self.device.key.device.as_str(), chain(&error));
        let found = self.device.with(|units, _| Ok(units.running())).map_err(failed);
        Box::pin(std::future::ready(found))
    }
}

impl SimulatedRuntime {
    /// A runtime for the units of a device. Reads and writes nothing yet.
    pub fn new(
        device: DeviceKey,
        data_dir: &Path,
        clock: Arc<dyn Clock>,
        packages: PackageStore,
        exits: mpsc::Sender<Exit>,
    ) -> Self {
        let device = Arc::new(SimulatedDevice::new(device, data_dir.to_owned(), clock));
        Self { device, packages, folder: data_dir.join(FOLDER), exits, crashes: Mutex::default() }
    }

    /// The folder of a unit with a package.
    fn home(&self, name: &UnitName) -> PathBuf {
        self.folder.join(name.deployment.as_str()).join(name.component.as_str())
    }

    /// Fetches the package of a unit, if its script names one, within the time of its start.
    async fn ensure_package(&self, name: &UnitName, script: &Simulated) -> Result<(), SimulatedStartError> {
        let Some(location) = &script.package_location else { return Ok(()) };
        let source = PackageSource::archive(location, script.package_digest)?;
        let path = self.home(name);
        let failed = |source| SimulatedStartError::Folder { path: path.clone(), source };
        std::fs::create_dir_all(&path).map_err(failed)?;
        let fetch = self.packages.ensure_unpacked(&source, None, &path);
        match script.gate.timeout {
            Some(limit) => {
                timeout(limit, fetch).await.map_err(|_| SimulatedStartError::LatePackage(limit))??;
            }
            None => {
                fetch.await?;
            }
        }
        Ok(())
    }

    async fn start_unit(&self, unit: &Unit, script: &Simulated) -> Result<(), SimulatedStartError> {
        self.ensure_package(&unit.name(), script).await?;
        let up = match self.device.start(unit, script)? {
            StartProgress::Up(lasting) => lasting,
            StartProgress::Starting(passed) => {
                self.await_start(&unit.name(), script, passed).await?;
                Duration::ZERO
            }
        };
        if let Some(crash_after) = script.crash_after {
            self.schedule_crash(unit, crash_after, crash_after.saturating_sub(up));
        }
        Ok(())
    }

    /// Waits for the rest of a start and ends it by the script, or fails it at its timeout.
    async fn await_start(
        &self,
        name: &UnitName,
        script: &Simulated,
        passed: Duration,
    ) -> Result<(), SimulatedStartError> {
        let start_delay = script.start_delay.unwrap_or_default();
        if let Some(timeout) = script.gate.timeout.filter(|timeout| *timeout < start_delay) {
            sleep(timeout.saturating_sub(passed)).await;
            self.device.set_state(name, UnitState::Down)?;
            return Err(SimulatedStartError::Late { timeout, start_delay });
        }
        sleep(start_delay.saturating_sub(passed)).await;
        let failure = self.device.finish_start(name, script)?;
        failure.map_or(Ok(()), |count| Err(SimulatedStartError::Scripted { count, of: script.fail_starts }))
    }

    /// Schedules the unit's crash `delay` from now, unless it is already scheduled.
    fn schedule_crash(&self, unit: &Unit, crash_after: Duration, delay: Duration) {
        let mut crashes = self.crashes();
        let name = unit.name();
        if crashes.get(&name).is_some_and(|crash| !crash.is_finished()) {
            return;
        }
        let (device, exits) = (Arc::clone(&self.device), self.exits.clone());
        let message = format!("simulated: crash {crash_after:?} after it was ready");
        let error = StatusError::new(code::EXITED, unit.component.as_str(), message);
        let exit = Exit { name: name.clone(), digest_prefix: unit.digest_prefix(), error };
        let crash = tokio::spawn(async move {
            sleep(delay).await;
            if let Err(error) = device.set_state(&exit.name, UnitState::Down) {
                tracing::warn!(deployment.id = %exit.name.deployment, "{}", chain(&error));
            }
            // A closed channel means that the agent ends; its inventory finds the exit later.
            let _ = exits.send(exit).await;
        });
        crashes.insert(name, AbortOnDropHandle::new(crash));
    }

    async fn stop_unit(&self, name: &UnitName, timeout: Duration) -> Result<Stopped, UnitsFileError> {
        self.crashes().remove(name);
        let is_down = |units: &state_file::SimulatedUnits| {
            units.get(name).is_none_or(|record| record.state == UnitState::Down)
        };
        // The count of failed starts is kept until one has succeeded, as the script says.
        if self.device.with(|units, _| Ok(is_down(units)))? {
            return Ok(Stopped::InTime);
        }
        let record = self.device.set_state(name, UnitState::Stopping)?;
        let delay = record.map_or(Duration::ZERO, |record| record.stop_delay);
        sleep(delay.min(timeout)).await;
        self.device.with(|units, _| units.write_unit(name, None))?;
        Ok(Stopped::killed_if(delay > timeout))
    }

    /// Entries are always whole, so a panic of another thread leaves none incomplete.
    fn crashes(&self) -> MutexGuard<'_, BTreeMap<UnitName, AbortOnDropHandle<()>>> {
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedStartError {
    const fn code(&self) -> &'static str {
        match self {
            Self::File(_) | Self::Folder { .. } => code::START_FAILED,
            Self::Package(_) => code::PACKAGE_FAILED,
            Self::Scripted { .. } => code::EXITED,
            Self::Late { .. } | Self::LatePackage(_) => code::NOT_READY,
        }
    }
}
