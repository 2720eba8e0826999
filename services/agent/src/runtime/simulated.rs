//! Pretends to run units of profile type `simulated` by their script: how long a start takes, how many fail, when it
//! crashes. Runs nothing. Deterministic: it follows the script, tokio's time and the clock it is given.
//!
//! What it pretends outlives the agent (`memory`), so an agent that restarts finds its units again, and those whose
//! crash was due meanwhile gone. Waiting goes by tokio's time; the clock is asked only how long a unit found again
//! has been there.

mod memory;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;
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
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::memory::{Life, MemoryError};
use self::stage::{Begun, Stage};
use super::{Exit, Running, Runtime, Started, Unit, UnitName, code};

/// The runtime of profile type `simulated`. Dropping it is the death of the agent: what it pretends to run stays.
#[derive(Debug)]
pub struct SimulatedRuntime {
    stage: Arc<Stage>,
    exits: mpsc::Sender<Exit>,
    crashes: Mutex<BTreeMap<UnitName, AbortOnDropHandle<()>>>,
}

/// Why a simulated start did not come to its end.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("simulated: start {count} of {of} that fail")]
    Scripted { count: u32, of: u32 },
    #[error("simulated: not ready within {timeout:?}; its script has it start in {start_delay:?}")]
    Late { timeout: Duration, start_delay: Duration },
}

impl Runtime for SimulatedRuntime {
    fn supports(&self, profile: ProfileType) -> bool {
        profile == ProfileType::Simulated
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
            let failed =
                |error: StartError| StatusError::new(error.code(), unit.component.as_str(), chain(&error));
            tokio::select! {
                biased;
                () = cancel.cancelled() => Ok(Started::Cancelled),
                started = self.bring_up(unit, script) => started.map(|()| Started::Ready).map_err(failed),
            }
        })
    }

    fn stop<'a>(&'a self, name: &'a UnitName, timeout: Duration) -> BoxFuture<'a, Result<(), StatusError>> {
        let failed = |error| StatusError::new(code::STOP_FAILED, name.component.as_str(), chain(&error));
        Box::pin(async move { self.put_down(name, timeout).await.map_err(failed) })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<Running>, StatusError>> {
        let failed = |error| {
            StatusError::new(code::INVENTORY_FAILED, self.stage.device.device.as_str(), chain(&error))
        };
        let found = self.stage.with(|memory, _| Ok(memory.running())).map_err(failed);
        Box::pin(std::future::ready(found))
    }
}

impl SimulatedRuntime {
    /// A runtime for the units of a device. Touches nothing yet.
    pub fn new(device: DeviceKey, data_dir: &Path, clock: Arc<dyn Clock>, exits: mpsc::Sender<Exit>) -> Self {
        let stage = Arc::new(Stage::new(device, data_dir.to_owned(), clock));
        Self { stage, exits, crashes: Mutex::default() }
    }

    async fn bring_up(&self, unit: &Unit, script: &Simulated) -> Result<(), StartError> {
        let up = match self.stage.begin(unit, script)? {
            Begun::Up(lasting) => lasting,
            Begun::Starting(passed) => {
                self.climb(&unit.name(), script, passed).await?;
                Duration::ZERO
            }
        };
        if let Some(crash_after) = script.crash_after {
            self.arm(unit, crash_after, crash_after.saturating_sub(up));
        }
        Ok(())
    }

    /// Waits for the rest of a start and ends it by the script, or gives it up when its timeout is over first.
    async fn climb(&self, name: &UnitName, script: &Simulated, passed: Duration) -> Result<(), StartError> {
        let start_delay = script.start_delay.unwrap_or_default();
        if let Some(timeout) = script.gate.timeout.filter(|timeout| *timeout < start_delay) {
            sleep(timeout.saturating_sub(passed)).await;
            self.stage.turn(name, Life::Down)?;
            return Err(StartError::Late { timeout, start_delay });
        }
        sleep(start_delay.saturating_sub(passed)).await;
        let failure = self.stage.rise(name, script)?;
        failure.map_or(Ok(()), |count| Err(StartError::Scripted { count, of: script.fail_starts }))
    }

    /// Sets the unit's crash for `delay` from now, unless it is set already.
    fn arm(&self, unit: &Unit, crash_after: Duration, delay: Duration) {
        let mut crashes = self.crashes();
        let name = unit.name();
        if crashes.get(&name).is_some_and(|crash| !crash.is_finished()) {
            return;
        }
        let (stage, exits) = (Arc::clone(&self.stage), self.exits.clone());
        let message = format!("simulated: crash {crash_after:?} after it was ready");
        let error = StatusError::new(code::EXITED, unit.component.as_str(), message);
        let exit = Exit { name: name.clone(), digest_prefix: unit.digest_prefix(), error };
        let crash = tokio::spawn(async move {
            sleep(delay).await;
            if let Err(error) = stage.turn(&exit.name, Life::Down) {
                tracing::warn!(deployment.id = %exit.name.deployment, "{}", chain(&error));
            }
            // An agent that has closed its end is about to leave, and will see by looking.
            let _ = exits.send(exit).await;
        });
        crashes.insert(name, AbortOnDropHandle::new(crash));
    }

    async fn put_down(&self, name: &UnitName, timeout: Duration) -> Result<(), MemoryError> {
        self.crashes().remove(name);
        let is_down =
            |memory: &memory::Memory| memory.get(name).is_none_or(|record| record.life == Life::Down);
        // The count of failed starts is kept until one has succeeded, as the script says.
        if self.stage.with(|memory, _| Ok(is_down(memory)))? {
            return Ok(());
        }
        let record = self.stage.turn(name, Life::Stopping)?;
        sleep(record.map_or(Duration::ZERO, |record| record.stop_delay).min(timeout)).await;
        self.stage.with(|memory, _| memory.put(name, None))
    }

    /// Entries are whole at any moment, so a panic elsewhere cannot have left half of one.
    fn crashes(&self) -> MutexGuard<'_, BTreeMap<UnitName, AbortOnDropHandle<()>>> {
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StartError {
    const fn code(&self) -> &'static str {
        match self {
            Self::Memory(_) => code::START_FAILED,
            Self::Scripted { .. } => code::EXITED,
            Self::Late { .. } => code::NOT_READY,
        }
    }
}
