//! The private folder of a publisher without `--data-dir`. The publisher removes it at its end; after a kill the next start
//! does.
//!
//! A folder is in use while its lock is held, and the kernel releases the lock when its holder ends. A folder without a lock
//! file belongs to an older release or another program, and is never removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::{Builder, TempDir};

/// Prefix of the folder names.
const PREFIX: &str = "muster-publisher-";
/// The lock file in the folder.
const LOCK: &str = "in-use";

/// A private folder, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct CloneDir {
    dir: TempDir,
    _lock: File,
}

impl CloneDir {
    /// Creates a folder in the system's temporary folder, and removes those that killed publishers left there.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub(crate) fn create() -> io::Result<Self> {
        Self::create_with(|builder| builder.tempdir())
    }

    fn create_with(make: impl Fn(&mut Builder<'_, '_>) -> io::Result<TempDir>) -> io::Result<Self> {
        let created = Self::lock(make)?;
        if let Some(parent) = created.path().parent() {
            remove_abandoned(parent);
        }
        Ok(created)
    }

    fn lock(make: impl Fn(&mut Builder<'_, '_>) -> io::Result<TempDir>) -> io::Result<Self> {
        loop {
            let dir = make(Builder::new().prefix(PREFIX))?;
            let lock = File::create(dir.path().join(LOCK))?;
            // Another start may have removed the folder as abandoned between these two lines.
            if is_locked_by_us(&lock) && dir.path().join(LOCK).exists() {
                return Ok(Self { dir, _lock: lock });
            }
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Takes the lock without waiting; true if that succeeds.
fn is_locked_by_us(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn remove_abandoned(parent: &Path) {
    for dir in abandoned(parent) {
        match fs::remove_dir_all(&dir) {
            Ok(()) => tracing::info!(path = %dir.display(), "removed the clone that a killed publisher left"),
            Err(error) => {
                tracing::warn!(path = %dir.display(), %error, "cannot remove the clone that a killed publisher left");
            }
        }
    }
}

fn abandoned(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    let dirs = entries.flatten().filter(ours).map(|entry| entry.path());
    dirs.filter(|dir| File::open(dir.join(LOCK)).is_ok_and(|lock| is_locked_by_us(&lock))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(parent: &Path) -> CloneDir {
        CloneDir::create_with(|builder| builder.tempdir_in(parent)).unwrap()
    }

    #[test]
    fn a_start_removes_only_abandoned_folders() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, lock: bool| {
            let dir = parent.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("objects"), "x").unwrap();
            if lock {
                fs::write(dir.join(LOCK), "").unwrap();
            }
            dir
        };
        let (killed, foreign) = (make("muster-publisher-a", true), make("elsewhere", true));
        let (older, in_use) = (make("muster-publisher-b", false), create(parent.path()));
        assert!(!killed.exists() && foreign.exists() && older.exists());
        let other = create(parent.path());
        assert!(in_use.path().exists() && other.path().exists());
        let path = other.path().to_owned();
        drop(other);
        assert!(!path.exists(), "its end removes it");
    }
}
