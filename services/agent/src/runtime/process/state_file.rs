//! The state file of a unit: what a restarted agent cannot find in `/proc`. That a job is complete and must not run
//! again, and which process is the main one although it overwrote its environment.
//!
//! One JSON file per unit, replaced as a whole. If it is missing, torn or stale, the runtime may run a job once more,
//! but never starts a second instance of a process that it can see.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::env_tag::EnvTag;
use super::paths::UnitPaths;
use super::process_id::ProcessId;
use crate::runtime::UnitName;

/// The stored state of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum StoredUnit {
    /// Its main process was started.
    Started {
        /// The version.
        digest_prefix: String,
        /// The boot of the machine: process numbers and ticks are valid in one boot only.
        boot: String,
        /// The process's number.
        pid: i32,
        /// Its start in ticks since boot.
        started: u64,
    },
    /// It is a job that ended with 0.
    Done {
        /// The version.
        digest_prefix: String,
    },
}

/// The stored states of all units.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StoredUnits {
    /// The main processes started in this boot of the machine; some may have ended.
    pub(super) started: Vec<(ProcessId, EnvTag)>,
    /// The completed jobs.
    pub(super) done: Vec<EnvTag>,
}

impl StoredUnit {
    /// The state after the start of a main process.
    pub(super) fn started(tag: &EnvTag, main: ProcessId) -> Self {
        let ProcessId { pid, started } = main;
        Self::Started { digest_prefix: tag.digest_prefix.clone(), boot: boot(), pid, started }
    }

    /// Writes the state file; returns after it is synced to the disk.
    ///
    /// # Errors
    /// The disk's; the file before is still there then.
    pub(super) fn write(&self, paths: &UnitPaths, name: &UnitName) -> io::Result<()> {
        let path = paths.state_file(name);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let fresh = path.with_extension("json.new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(folder)?.sync_all()
    }
}

impl StoredUnits {
    /// Reads all state files. One that cannot be read is ignored.
    pub(super) fn read(paths: &UnitPaths) -> Self {
        let now = boot();
        let mut stored = Self::default();
        for (name, unit) in all(paths) {
            match unit {
                StoredUnit::Done { digest_prefix } => stored.done.push(EnvTag { name, digest_prefix }),
                StoredUnit::Started { digest_prefix, boot, pid, started } if boot == now => {
                    stored.started.push((ProcessId { started, pid }, EnvTag { name, digest_prefix }));
                }
                StoredUnit::Started { .. } => {}
            }
        }
        stored
    }
}

/// Removes the state file of a unit.
///
/// # Errors
/// The disk's. A missing file is no error.
pub(super) fn remove(paths: &UnitPaths, name: &UnitName) -> io::Result<()> {
    match fs::remove_file(paths.state_file(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn all(paths: &UnitPaths) -> Vec<(UnitName, StoredUnit)> {
    let folders = fs::read_dir(paths.state_files()).into_iter().flatten().flatten();
    let of_folder = |folder: fs::DirEntry| {
        let deployment = folder.file_name().to_str()?.parse().ok()?;
        let files = fs::read_dir(folder.path()).ok()?.flatten();
        let of_file = move |file: fs::DirEntry| {
            let component = file.file_name().to_str()?.strip_suffix(".json")?.parse().ok()?;
            let name = UnitName { deployment: Clone::clone(&deployment), component };
            Some((name, serde_json::from_slice(&fs::read(file.path()).ok()?).ok()?))
        };
        Some(files.filter_map(of_file))
    };
    folders.filter_map(of_folder).flatten().collect()
}

/// The id of this boot of the machine; empty if it has none, which is correct within one boot.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> (tempfile::TempDir, UnitPaths, EnvTag) {
        let dir = tempfile::tempdir().unwrap();
        let paths = UnitPaths::new("plant/press".parse().unwrap(), dir.path());
        let name = UnitName { deployment: "line".parse().unwrap(), component: "job".parse().unwrap() };
        (dir, paths, EnvTag { name, digest_prefix: "0123456789abcdef".to_owned() })
    }

    #[test]
    fn a_state_file_is_read_until_it_is_removed() {
        let (_dir, paths, tag) = fixture();
        assert_eq!(StoredUnits::read(&paths), StoredUnits::default());
        let main = ProcessId { started: 7, pid: 42 };
        StoredUnit::started(&tag, main).write(&paths, &tag.name).unwrap();
        assert_eq!(
            StoredUnits::read(&paths),
            StoredUnits { started: vec![(main, tag.clone())], done: Vec::new() }
        );
        StoredUnit::Done { digest_prefix: tag.digest_prefix.clone() }.write(&paths, &tag.name).unwrap();
        assert_eq!(StoredUnits::read(&paths), StoredUnits { started: Vec::new(), done: vec![tag.clone()] });
        remove(&paths, &tag.name).unwrap();
        remove(&paths, &tag.name).unwrap();
        assert_eq!(StoredUnits::read(&paths), StoredUnits::default());
    }

    #[test]
    fn a_process_of_an_earlier_boot_is_ignored() {
        let (_dir, paths, tag) = fixture();
        let digest_prefix = tag.digest_prefix.clone();
        let stored = StoredUnit::Started { digest_prefix, boot: "earlier".to_owned(), pid: 42, started: 7 };
        stored.write(&paths, &tag.name).unwrap();
        assert_eq!(StoredUnits::read(&paths), StoredUnits::default());
    }

    #[test]
    fn a_torn_state_file_is_ignored() {
        let (_dir, paths, tag) = fixture();
        StoredUnit::started(&tag, ProcessId { started: 7, pid: 42 }).write(&paths, &tag.name).unwrap();
        let whole = fs::read(paths.state_file(&tag.name)).unwrap();
        for length in 0..whole.len() {
            fs::write(paths.state_file(&tag.name), &whole[..length]).unwrap();
            assert_eq!(StoredUnits::read(&paths), StoredUnits::default(), "{length} bytes");
        }
    }
}
