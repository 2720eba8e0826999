//! Where the things of a run are, and that its directory is its own: of no other program, and of no other run meanwhile.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::child;
use crate::config::Stage;
use crate::error::Error;

/// Marks a directory as a run's own, which the next run may empty; locked while the run lasts.
pub(crate) const MARKER: &str = ".muster-demo";
/// What the marker says to a person.
const MARKER_TEXT: &str = "The directory of `muster-simulator`: the next run empties it.\n";

/// Where things are.
#[derive(Debug, Clone)]
pub struct Places {
    /// The run's directory: everything it keeps, and its logs.
    pub dir: PathBuf,
    /// Where the programs of Muster are.
    pub programs: PathBuf,
    /// The NATS server's program.
    pub nats_server: PathBuf,
    /// Held while anybody knows of these places.
    _lock: Arc<Lock>,
}

impl Places {
    /// A clean directory: what an earlier run left in it, and left running, is removed. A directory that no run made
    /// is left alone, and so is one in which a run is under way.
    ///
    /// # Errors
    /// The directory is somebody else's or another run's, or cannot be made.
    pub fn prepare(stage: &Stage) -> Result<Self, Error> {
        let dir = std::path::absolute(&stage.dir)
            .map_err(|source| Error::Prepare { path: stage.dir.clone(), source })?;
        let occupied = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
        if occupied && !dir.join(MARKER).is_file() {
            return Err(Error::Occupied { dir });
        }
        let lock = Arc::new(lock(&dir)?);
        let swept = child::sweep(&dir);
        if swept > 0 {
            tracing::warn!(processes = swept, "an earlier run left processes behind; they were ended");
        }
        crate::disk::unmount_below(&dir);
        empty(&dir).map_err(|source| Error::Prepare { path: dir.clone(), source })?;
        let (programs, nats_server) = (stage.programs.clone(), stage.nats_server.clone());
        Ok(Self { dir, programs, nats_server, _lock: lock })
    }

    /// Where the logs are.
    pub fn logs(&self) -> PathBuf {
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
        // What cannot be given back goes with the process.
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
pub fn own_directory() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().map(Path::to_path_buf).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(dir: &Path) -> Stage {
        Stage { dir: dir.to_owned(), programs: PathBuf::new(), nats_server: PathBuf::new() }
    }

    #[test]
    fn a_directory_that_no_run_made_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "mine").unwrap();
        let message = Places::prepare(&stage(dir.path())).unwrap_err().to_string();
        assert!(message.contains("--dir"), "{message}");
        assert!(precious.is_file());
    }

    #[test]
    fn a_run_empties_what_a_run_left() {
        let dir = tempfile::tempdir().unwrap();
        Places::prepare(&stage(dir.path())).unwrap();
        let left = dir.path().join("left");
        std::fs::write(&left, "old").unwrap();
        let nested = dir.path().join("logs/old");
        std::fs::create_dir_all(&nested).unwrap();
        Places::prepare(&stage(dir.path())).unwrap();
        assert!(!left.exists() && !nested.exists());
    }

    #[test]
    fn a_run_leaves_the_directory_of_one_that_is_under_way_alone_and_says_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let first = Places::prepare(&stage(dir.path())).unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "of the first").unwrap();
        let message = Places::prepare(&stage(dir.path())).unwrap_err().to_string();
        let own = format!("process {}", std::process::id());
        assert!(message.contains(&own) && message.contains("--dir"), "{message}");
        assert!(precious.is_file());
        drop(first);
        Places::prepare(&stage(dir.path())).unwrap();
        assert!(!precious.exists());
    }
}
