//! The transitions of simulated units: each reads and writes the memory once and waits for nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_contract::profile::Simulated;
use muster_contract::{DeviceKey, Timestamp};
use muster_service::clock::Clock;

use super::memory::{Life, Memory, MemoryError, Record, elapsed};
use crate::runtime::{Unit, UnitName};

/// A simulated device.
#[derive(Debug)]
pub(super) struct Stage {
    /// Which one.
    pub(super) device: DeviceKey,
    data_dir: PathBuf,
    clock: Arc<dyn Clock>,
    /// Read at the first use. The file is small: it is written with the lock held, on whichever thread asks.
    memory: Mutex<Option<Memory>>,
}

/// How a start stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// On its way up for so long.
    Starting(Duration),
    /// Up for so long.
    Up(Duration),
}

impl Stage {
    /// A device whose memory is in a directory.
    pub(super) fn new(device: DeviceKey, data_dir: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self { device, data_dir, clock, memory: Mutex::default() }
    }

    /// Runs a function on the memory.
    pub(super) fn with<T>(
        &self,
        function: impl FnOnce(&mut Memory, Timestamp) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        let now = self.clock.now();
        let mut memory = self.lock();
        if let Some(memory) = memory.as_mut() {
            return function(memory, now);
        }
        function(memory.insert(Memory::open(&self.data_dir, now)?), now)
    }

    /// Begins a start, or finds it begun.
    pub(super) fn begin(&self, unit: &Unit, script: &Simulated) -> Result<Begun, MemoryError> {
        self.with(|memory, now| {
            let name = unit.name();
            let same = memory.get(&name).filter(|record| record.digest_prefix == unit.digest_prefix());
            match same.map(|record| record.life) {
                Some(Life::Starting(since)) => return Ok(Begun::Starting(elapsed(since, now))),
                Some(Life::Up(since)) => return Ok(Begun::Up(elapsed(since, now))),
                Some(Life::Down | Life::Stopping) | None => {}
            }
            let record = Record {
                digest_prefix: unit.digest_prefix(),
                failed_starts: same.map_or(0, |record| record.failed_starts),
                stop_delay: script.stop_delay.unwrap_or_default(),
                crash_after: script.crash_after,
                life: Life::Starting(now),
            };
            memory.put(&name, Some(record))?;
            Ok(Begun::Starting(Duration::ZERO))
        })
    }

    /// Ends a start as the script has it: up, or down if another start has to fail. Returns which failure it was.
    pub(super) fn rise(&self, name: &UnitName, script: &Simulated) -> Result<Option<u32>, MemoryError> {
        self.with(|memory, now| {
            let Some(record) = memory.get(name).cloned() else { return Ok(None) };
            let fails = record.failed_starts < script.fail_starts;
            let failed_starts = record.failed_starts + u32::from(fails);
            let life = if fails { Life::Down } else { Life::Up(now) };
            memory.put(name, Some(Record { failed_starts, life, ..record }))?;
            Ok(fails.then_some(failed_starts))
        })
    }

    /// Takes a unit to another state. Returns what it was, and nothing where there is no such unit.
    pub(super) fn turn(&self, name: &UnitName, life: Life) -> Result<Option<Record>, MemoryError> {
        self.with(|memory, _| {
            let Some(record) = memory.get(name).cloned() else { return Ok(None) };
            memory.put(name, Some(Record { life, ..record.clone() }))?;
            Ok(Some(record))
        })
    }

    /// A memory is whole at any moment, so a panic elsewhere cannot have left half of one.
    fn lock(&self) -> MutexGuard<'_, Option<Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
