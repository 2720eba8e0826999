//! The private folder of a publisher without `--data-dir`: removed at the end, and by the next start where the end was a kill.
//!
//! A folder is in use while its lock is held, and the kernel gives a lock back when its holder ends, however it ends. A
//! folder without a lock file is of an older release, or of somebody else: it stays.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::{Builder, TempDir};

/// How the name of each begins.
const PREFIX: &str = "muster-publisher-";
/// The file in it whose lock its user holds.
const LOCK: &str = "in-use";

/// A folder of its own for as long as this lives.
#[derive(Debug)]
pub(crate) struct CloneDir {
    dir: TempDir,
    _lock: File,
}

impl CloneDir {
    /// Makes one in the system's temporary folder, and removes those there that nobody uses.
    ///
    /// # Errors
    /// When none can be made.
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
            // Another start may have taken it for abandoned between these two lines; then it is as good as gone.
            if is_locked_by_us(&lock) && dir.path().join(LOCK).exists() {
                return Ok(Self { dir, _lock: lock });
            }
        }
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Takes the lock, if nobody holds it.
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
    fn a_start_removes_what_nobody_uses_and_nothing_else() {
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
