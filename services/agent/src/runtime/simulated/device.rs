//! The transitions of simulated units: each reads and writes the file once and never waits.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_contract::profile::Simulated;
use muster_contract::{DeviceKey, Timestamp};
use muster_service::clock::Clock;

use super::state_file::{SimulatedUnit, SimulatedUnits, UnitState, UnitsFileError, elapsed};
use crate::runtime::{Unit, UnitName};

/// A simulated device.
#[derive(Debug)]
pub(super) struct SimulatedDevice {
    /// The device.
    pub(super) key: DeviceKey,
    data_dir: PathBuf,
    clock: Arc<dyn Clock>,
    /// Read at the first use. The file is small: it is written while the lock is held, on the caller's thread.
    units: Mutex<Option<SimulatedUnits>>,
}

/// The progress of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartProgress {
    /// Starting for this time.
    Starting(Duration),
    /// Up for this time.
    Up(Duration),
}

impl SimulatedDevice {
    /// A device with its data directory.
    pub(super) fn new(key: DeviceKey, data_dir: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self { key, data_dir, clock, units: Mutex::default() }
    }

    /// Runs a function on the units.
    pub(super) fn with<T>(
        &self,
        function: impl FnOnce(&mut SimulatedUnits, Timestamp) -> Result<T, UnitsFileError>,
    ) -> Result<T, UnitsFileError> {
        let now = self.clock.now();
        let mut units = self.lock();
        if let Some(units) = units.as_mut() {
            return function(units, now);
        }
        function(units.insert(SimulatedUnits::open(&self.data_dir, now)?), now)
    }

    /// Begins a start, or returns the progress of one under way.
    pub(super) fn start(&self, unit: &Unit, script: &Simulated) -> Result<StartProgress, UnitsFileError> {
        self.with(|units, now| {
            let name = unit.name();
            let same = units.get(&name).filter(|record| record.digest_prefix == unit.digest_prefix());
            match same.map(|record| record.state) {
                Some(UnitState::Starting(since)) => return Ok(StartProgress::Starting(elapsed(since, now))),
                Some(UnitState::Up(since)) => return Ok(StartProgress::Up(elapsed(since, now))),
                Some(UnitState::Down | UnitState::Stopping) | None => {}
            }
            let record = SimulatedUnit {
                digest_prefix: unit.digest_prefix(),
                failed_starts: same.map_or(0, |record| record.failed_starts),
                stop_delay: script.stop_delay.unwrap_or_default(),
                crash_after: script.crash_after,
                state: UnitState::Starting(now),
            };
            units.write_unit(&name, Some(record))?;
            Ok(StartProgress::Starting(Duration::ZERO))
        })
    }

    /// Ends a start by the script: up, or down if another start must fail. Returns the number of that failure.
    pub(super) fn finish_start(
        &self,
        name: &UnitName,
        script: &Simulated,
    ) -> Result<Option<u32>, UnitsFileError> {
        self.with(|units, now| {
            let Some(record) = units.get(name).cloned() else { return Ok(None) };
            let fails = record.failed_starts < script.fail_starts;
            let failed_starts = record.failed_starts + u32::from(fails);
            let state = if fails { UnitState::Down } else { UnitState::Up(now) };
            units.write_unit(name, Some(SimulatedUnit { failed_starts, state, ..record }))?;
            Ok(fails.then_some(failed_starts))
        })
    }

    /// Sets the state of a unit. Returns the unit as it was, if there is one.
    pub(super) fn set_state(
        &self,
        name: &UnitName,
        state: UnitState,
    ) -> Result<Option<SimulatedUnit>, UnitsFileError> {
        self.with(|units, _| {
            let Some(record) = units.get(name).cloned() else { return Ok(None) };
            units.write_unit(name, Some(SimulatedUnit { state, ..record.clone() }))?;
            Ok(Some(record))
        })
    }

    /// The units are always whole, so a panic of another thread leaves none incomplete.
    fn lock(&self) -> MutexGuard<'_, Option<SimulatedUnits>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
