//! Where the things of a run are, and that its directory is its own.

use std::path::{Path, PathBuf};

use crate::child;
use crate::config::Stage;
use crate::error::Error;

/// Marks a directory as a run's own, which the next run may empty.
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
}

impl Places {
    /// A clean directory: what an earlier run left in it, and left running, is removed. A directory that no run made
    /// is left alone.
    ///
    /// # Errors
    /// The directory is somebody else's, or cannot be made.
    pub fn prepare(stage: &Stage) -> Result<Self, Error> {
        let dir = std::path::absolute(&stage.dir)
            .map_err(|source| Error::Prepare { path: stage.dir.clone(), source })?;
        let marker = dir.join(MARKER);
        let occupied = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
        if occupied && !marker.is_file() {
            return Err(Error::Occupied { dir });
        }
        let swept = child::sweep(&dir);
        if swept > 0 {
            tracing::warn!(processes = swept, "an earlier run left processes behind; they were ended");
        }
        crate::disk::unmount_below(&dir);
        let made = match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&marker, MARKER_TEXT)),
        };
        made.map_err(|source| Error::Prepare { path: dir.clone(), source })?;
        Ok(Self { dir, programs: stage.programs.clone(), nats_server: stage.nats_server.clone() })
    }

    /// Where the logs are.
    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }
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
        Places::prepare(&stage(dir.path())).unwrap();
        assert!(!left.exists());
    }
}
