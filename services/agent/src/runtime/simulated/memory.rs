//! What a simulated device runs, kept in one file, so that it outlives the agent as real processes do.
//! Replaced as a whole at every change; not synced: a simulation does not survive a loss of power.

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

/// One unit and how far its script is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The version.
    pub(super) digest_prefix: String,
    /// Starts that have failed so far.
    pub(super) failed_starts: u32,
    /// How long it takes to stop.
    pub(super) stop_delay: Duration,
    /// How long it stays up, where that is not for ever.
    pub(super) crash_after: Option<Duration>,
    /// What it does.
    pub(super) life: Life,
}

/// What a simulated unit does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Life {
    /// Nothing: it has failed. Kept for the count of its starts.
    Down,
    /// It is on its way up.
    Starting(Timestamp),
    /// It is ready.
    Up(Timestamp),
    /// It is on its way down.
    Stopping,
}

/// All units of a simulated device.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    records: BTreeMap<UnitName, Record>,
}

/// Why the memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    /// It cannot be read.
    #[error("cannot read what the simulation runs from {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("{path} is no memory of a simulation: remove it to begin again with nothing running")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "cannot write what the simulation runs to {path}: check the room and the rights under --data-dir"
    )]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Memory {
    /// Reads the memory of a device, and lets time have passed in it: a unit whose script had it crash while no agent
    /// was there is down now.
    pub(super) fn open(data_dir: &Path, now: Timestamp) -> Result<Self, MemoryError> {
        let path = data_dir.join(FILE);
        let listed: Vec<(UnitName, Record)> = match fs::read(&path) {
            Ok(bytes) => parse(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(MemoryError::Read { path, source }),
        };
        let records = listed.into_iter().map(|(name, record)| (name, record.settled(now))).collect();
        Ok(Self { path, records })
    }

    /// A unit.
    pub(super) fn get(&self, name: &UnitName) -> Option<&Record> {
        self.records.get(name)
    }

    /// Every unit of which something runs.
    pub(super) fn running(&self) -> Vec<Running> {
        let running = |(name, record): (&UnitName, &Record)| Running {
            name: name.clone(),
            digest_prefix: record.digest_prefix.clone(),
        };
        self.records.iter().filter(|(_, record)| record.life != Life::Down).map(running).collect()
    }

    /// Sets a unit, or forgets it, on the disk too; where the disk refuses, nothing has changed.
    pub(super) fn put(&mut self, name: &UnitName, record: Option<Record>) -> Result<(), MemoryError> {
        let before = self.set(name, record);
        self.save().map_err(|source| {
            self.set(name, before);
            MemoryError::Write { path: self.path.clone(), source }
        })
    }

    fn set(&mut self, name: &UnitName, record: Option<Record>) -> Option<Record> {
        match record {
            Some(record) => self.records.insert(name.clone(), record),
            None => self.records.remove(name),
        }
    }

    fn save(&self) -> io::Result<()> {
        let listed: BTreeMap<String, &Record> =
            self.records.iter().map(|(name, record)| (key(name), record)).collect();
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
        let fresh = self.path.with_extension("json.new");
        fs::write(&fresh, serde_json::to_vec(&listed)?)?;
        fs::rename(fresh, &self.path)
    }
}

impl Record {
    fn settled(self, now: Timestamp) -> Self {
        let life = match (self.life, self.crash_after) {
            (Life::Up(since), Some(lasting)) if elapsed(since, now) >= lasting => Life::Down,
            (life, _) => life,
        };
        Self { life, ..self }
    }
}

/// The time between two moments; zero where the clock was set back.
pub(super) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn key(name: &UnitName) -> String {
    format!("{}/{}", name.deployment, name.component)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<(UnitName, Record)>, MemoryError> {
    let failed = |source| MemoryError::Parse { path: path.to_owned(), source };
    let listed: BTreeMap<String, Record> = serde_json::from_slice(bytes).map_err(failed)?;
    let named = |(key, record): (String, Record)| {
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

    fn up(crash_after: Option<Duration>) -> Record {
        let life = Life::Up(Timestamp::UNIX_EPOCH);
        Record { digest_prefix: "00".into(), failed_starts: 1, stop_delay: Duration::ZERO, crash_after, life }
    }

    #[test]
    fn what_was_put_is_there_in_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap();
        memory.put(&name(), Some(up(None))).unwrap();
        let mut memory = Memory::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(memory.get(&name()), Some(&up(None)));
        memory.put(&name(), None).unwrap();
        assert_eq!(Memory::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap().running().len(), 0);
    }

    #[test]
    fn a_crash_due_while_no_agent_was_there_has_happened() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap();
        memory.put(&name(), Some(up(Some(Duration::from_secs(5))))).unwrap();
        for (second, running) in [(4, 1), (5, 0)] {
            let now = Timestamp::from_second(second).unwrap();
            assert_eq!(Memory::open(dir.path(), now).unwrap().running().len(), running, "second {second}");
        }
    }

    #[test]
    fn a_file_that_is_no_memory_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        let error = Memory::open(dir.path(), Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(error.to_string().contains("simulated.json is no memory"), "{error}");
        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), b"{");
    }
}
