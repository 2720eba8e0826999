//! The paths of a run. A lock and a marker keep other programs and other runs out of its directory.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::child;
use crate::config::run::{MARKER, RunLocation};
use crate::error::Error;

/// The text of the marker.
const MARKER_TEXT: &str = "The directory of `muster-simulator`: the next run empties it.\n";

/// The paths of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunPaths {
    /// The run's directory: its files and its logs.
    pub dir: PathBuf,
    /// The directory with the programs of Muster.
    pub programs: PathBuf,
    /// The NATS server's program.
    pub nats_server: PathBuf,
    /// The lock of the directory, held by every clone.
    _lock: Arc<Lock>,
}

impl RunPaths {
    /// A clean directory: what an earlier run left in it, and left running, is removed. A directory that no run made
    /// is left alone, and so is one in which a run is under way.
    ///
    /// # Errors
    /// The directory is somebody else's or another run's, or cannot be made.
    pub(crate) fn prepare(location: &RunLocation) -> Result<Self, Error> {
        let dir = std::path::absolute(&location.dir)
            .map_err(|source| Error::Prepare { path: location.dir.clone(), source })?;
        let occupied = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
        if occupied && !dir.join(MARKER).is_file() {
            return Err(Error::Occupied { dir });
        }
        let lock = Arc::new(lock(&dir)?);
        let swept = child::sweep(&dir);
        if swept > 0 {
            tracing::warn!(processes = swept, "ended processes that an earlier run left behind");
        }
        crate::disk::unmount_below(&dir);
        empty(&dir).map_err(|source| Error::Prepare { path: dir.clone(), source })?;
        let (programs, nats_server) = (location.programs.clone(), location.nats_server.clone());
        Ok(Self { dir, programs, nats_server, _lock: lock })
    }

    /// Where the logs are.
    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }
}

/// Takes the directory for this run, making it if need be. The system gives the lock back when the process ends, however
/// it does.
fn lock(dir: &Path) -> Result<Lock, Error> {
    let path = dir.join(MARKER);
    let unusable = |source| Error::Prepare { path: path.clone(), source };
    std::fs::create_dir_all(dir).map_err(unusable)?;
    let mut options = File::options();
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(&path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // Only for the message: a lock that cannot be read is held all the same.
            _ = file.read_to_string(&mut text);
            let holder = text.lines().last().unwrap_or_default().to_owned();
            return Err(Error::InUse { dir: dir.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    let held = writeln!(file, "{MARKER_TEXT}process {}", std::process::id());
    held.and_then(|()| file.stream_position()).and_then(|end| file.set_len(end)).map_err(unusable)?;
    Ok(Lock(file))
}

/// Given back when it is dropped, also where a process that is just being started has a copy of the file.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // If unlocking fails, the end of the process unlocks it.
        _ = self.0.unlock();
    }
}

/// Removes everything but the marker: the lock on it would go with it.
fn empty(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else if entry.file_name() != MARKER {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Where the programs of this build are: beside the running one.
///
/// # Errors
/// The running program cannot say where it is.
pub(crate) fn own_directory() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().map(Path::to_path_buf).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(dir: &Path) -> RunLocation {
        RunLocation { dir: dir.to_owned(), programs: PathBuf::new(), nats_server: PathBuf::new() }
    }

    #[test]
    fn a_directory_that_no_run_made_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "mine").unwrap();
        let message = RunPaths::prepare(&location(dir.path())).unwrap_err().to_string();
        assert!(message.contains("--dir"), "{message}");
        assert!(precious.is_file());
    }

    #[test]
    fn a_run_empties_what_a_run_left() {
        let dir = tempfile::tempdir().unwrap();
        RunPaths::prepare(&location(dir.path())).unwrap();
        let left = dir.path().join("left");
        std::fs::write(&left, "old").unwrap();
        let nested = dir.path().join("logs/old");
        std::fs::create_dir_all(&nested).unwrap();
        RunPaths::prepare(&location(dir.path())).unwrap();
        assert!(!left.exists() && !nested.exists());
    }

    #[test]
    fn a_run_spares_the_directory_of_a_running_one_and_names_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunPaths::prepare(&location(dir.path())).unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "of the first").unwrap();
        let message = RunPaths::prepare(&location(dir.path())).unwrap_err().to_string();
        let own = format!("process {}", std::process::id());
        assert!(message.contains(&own) && message.contains("--dir"), "{message}");
        assert!(precious.is_file());
        drop(first);
        RunPaths::prepare(&location(dir.path())).unwrap();
        assert!(!precious.exists());
    }
}
