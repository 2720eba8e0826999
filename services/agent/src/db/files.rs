//! The files around the database: the lock, the marker of damage, and the names of files that are moved aside.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;

use super::{Error, LOCK};

const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE: u32 = 0o600;

/// Locks the directory for this process; creates it if it is missing.
pub(super) fn lock(dir: &Path) -> Result<File, Error> {
    let unusable = |source| Error::Directory { dir: dir.to_owned(), source };
    make(dir).map_err(unusable)?;
    let mut options = File::options();
    let path = dir.join(LOCK);
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Used in the message only: the lock is held even if its text cannot be read.
            _ = file.read_to_string(&mut holder);
            let holder =
                holder.trim().parse::<u32>().map(|pid| format!(" (process {pid})")).unwrap_or_default();
            return Err(Error::InUse { dir: dir.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(unusable)?;
    Ok(file)
}

/// Creates the directory for this user only: documents and workloads may hold secrets. An existing directory keeps its
/// permissions.
fn make(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        std::fs::create_dir_all(above)?;
    }
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(dir)
}

/// Creates the file for this user only; SQLite gives its companions the same mode. An existing file stays as it is.
pub(super) fn make_private(path: &Path) {
    // If it cannot be created, opening it fails with a better error.
    _ = File::options().write(true).create_new(true).mode(PRIVATE).open(path);
}

/// The path of the marker of damage.
pub(super) fn marker(path: &Path) -> PathBuf {
    suffixed(path, ".damaged")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Renames the file and its companions. The marker is removed last: a crash before that repeats the renaming.
pub(super) fn set_aside(path: &Path, now: Timestamp) -> Result<(), Error> {
    let failed = |source| Error::SetAside { path: path.to_owned(), source };
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let names = (0..).map(|attempt| match attempt {
        0 => suffixed(path, &format!(".damaged-{stamp}")),
        more => suffixed(path, &format!(".damaged-{stamp}-{more}")),
    });
    // The names never end, so one is free.
    let Some(aside) = names.into_iter().find(|name| !name.exists()) else { return Ok(()) };
    for companion in ["-wal", "-shm", ""] {
        match std::fs::rename(suffixed(path, companion), suffixed(&aside, companion)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    tracing::error!(
        db.path = %path.display(), db.aside = %aside.display(),
        "the database is damaged: moved it aside; a new one begins a new epoch"
    );
    match std::fs::remove_file(marker(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}
