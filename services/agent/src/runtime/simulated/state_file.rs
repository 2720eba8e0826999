//! The file with a simulated device's units, which outlives the agent as real processes do. Rewritten as a whole at every
//! change; not synced: a simulation does not survive a power loss.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::Timestamp;
use serde::{Deserialize, Serialize};

use crate::runtime::{Running, UnitName};

/// Name of the file in the agent's data directory.
const FILE: &str = "simulated.json";

/// One unit and the progress of its script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SimulatedUnit {
    /// The version.
    pub(super) digest_prefix: String,
    /// Failed starts so far.
    pub(super) failed_starts: u32,
    /// The duration of its stop.
    pub(super) stop_delay: Duration,
    /// The time until it crashes, if it does.
    pub(super) crash_after: Option<Duration>,
    /// Its state.
    #[serde(rename = "life")]
    pub(super) state: UnitState,
}

/// The state of a simulated unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum UnitState {
    /// It has failed. Kept for the count of its starts.
    Down,
    /// It is starting.
    Starting(Timestamp),
    /// It is ready.
    Up(Timestamp),
    /// It is stopping.
    Stopping,
}

/// All units of a simulated device.
#[derive(Debug)]
pub(super) struct SimulatedUnits {
    path: PathBuf,
    records: BTreeMap<UnitName, SimulatedUnit>,
}

/// The error of reading or writing the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnitsFileError {
    /// It cannot be read.
    #[error("cannot read the simulated units from {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It cannot be parsed.
    #[error("cannot parse {path}: remove it to begin again with nothing running")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write the simulated units to {path}: check the free space and the owner of --data-dir")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl SimulatedUnits {
    /// Reads the units of a device. A unit whose crash was due while no agent ran is down.
    pub(super) fn open(data_dir: &Path, now: Timestamp) -> Result<Self, UnitsFileError> {
        let path = data_dir.join(FILE);
        let listed: Vec<(UnitName, SimulatedUnit)> = match fs::read(&path) {
            Ok(bytes) => parse(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(UnitsFileError::Read { path, source }),
        };
        let records = listed.into_iter().map(|(name, record)| (name, record.settled(now))).collect();
        Ok(Self { path, records })
    }

    /// A unit.
    pub(super) fn get(&self, name: &UnitName) -> Option<&SimulatedUnit> {
        self.records.get(name)
    }

    /// Every unit that runs.
    pub(super) fn running(&self) -> Vec<Running> {
        let running = |(name, record): (&UnitName, &SimulatedUnit)| Running {
            name: name.clone(),
            digest_prefix: record.digest_prefix.clone(),
        };
        self.records.iter().filter(|(_, record)| record.state != UnitState::Down).map(running).collect()
    }

    /// Sets or removes a unit, also in the file; if that fails, nothing has changed.
    pub(super) fn write_unit(
        &mut self,
        name: &UnitName,
        record: Option<SimulatedUnit>,
    ) -> Result<(), UnitsFileError> {
        let before = self.set(name, record);
        self.save().map_err(|source| {
            self.set(name, before);
            UnitsFileError::Write { path: self.path.clone(), source }
        })
    }

    fn set(&mut self, name: &UnitName, record: Option<SimulatedUnit>) -> Option<SimulatedUnit> {
        match record {
            Some(record) => self.records.insert(name.clone(), record),
            None => self.records.remove(name),
        }
    }

    fn save(&self) -> io::Result<()> {
        let listed: BTreeMap<String, &SimulatedUnit> =
            self.records.iter().map(|(name, record)| (key(name), record)).collect();
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
        let fresh = self.path.with_extension("json.new");
        fs::write(&fresh, serde_json::to_vec(&listed)?)?;
        fs::rename(fresh, &self.path)
    }
}

impl SimulatedUnit {
    fn settled(self, now: Timestamp) -> Self {
        let state = match (self.state, self.crash_after) {
            (UnitState::Up(since), Some(lasting)) if elapsed(since, now) >= lasting => UnitState::Down,
            (state, _) => state,
        };
        Self { state, ..self }
    }
}

/// The time between two timestamps; zero if the clock was set back.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn key(name: &UnitName) -> String {
    format!("{}/{}", name.deployment, name.component)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<(UnitName, SimulatedUnit)>, UnitsFileError> {
    let failed = |source| UnitsFileError::Parse { path: path.to_owned(), source };
    let listed: BTreeMap<String, SimulatedUnit> = serde_json::from_slice(bytes).map_err(failed)?;
    let named = |(key, record): (String, SimulatedUnit)| {
        let (deployment, component) = key.split_once('/')?;
        let name = UnitName { deployment: deployment.parse().ok()?, component: component.parse().ok()? };
        Some((name, record))
    };
    Ok(listed.into_iter().filter_map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> UnitName {
        UnitName { deployment: "line".parse().unwrap(), component: "web".parse().unwrap() }
    }

    fn up(crash_after: Option<Duration>) -> SimulatedUnit {
        let state = UnitState::Up(Timestamp::UNIX_EPOCH);
        SimulatedUnit {
            digest_prefix: "00".into(),
            failed_starts: 1,
            stop_delay: Duration::ZERO,
            crash_after,
            state,
        }
    }

    #[test]
    fn a_stored_unit_is_read_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut units = SimulatedUnits::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap();
        units.write_unit(&name(), Some(up(None))).unwrap();
        let mut units = SimulatedUnits::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(units.get(&name()), Some(&up(None)));
        units.write_unit(&name(), None).unwrap();
        assert_eq!(SimulatedUnits::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap().running().len(), 0);
    }

    #[test]
    fn a_crash_due_while_no_agent_ran_has_happened() {
        let dir = tempfile::tempdir().unwrap();
        let mut units = SimulatedUnits::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap();
        units.write_unit(&name(), Some(up(Some(Duration::from_secs(5))))).unwrap();
        for (second, running) in [(4, 1), (5, 0)] {
            let now = Timestamp::from_second(second).unwrap();
            assert_eq!(
                SimulatedUnits::open(dir.path(), now).unwrap().running().len(),
                running,
                "second {second}"
            );
        }
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        let error = SimulatedUnits::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(error.to_string().contains("simulated.json: remove it"), "{error}");
        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), b"{");
    }
}
