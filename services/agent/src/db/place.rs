//! The directory around the database: its lock, and where a damaged file goes.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;

use super::{Error, LOCK};

const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE: u32 = 0o600;

/// Takes the directory for this process, making it if need be.
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
            // Only for the message: a lock that cannot be read is held all the same.
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

/// Makes the directory, for this user alone: documents and workloads may hold what others shall not read. One that is
/// there keeps the rights that somebody gave it.
fn make(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        std::fs::create_dir_all(above)?;
    }
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(dir)
}

/// Makes the file, for this user alone; SQLite gives its companions the same rights. One that is there stays as it is.
pub(super) fn make_private(path: &Path) {
    // Where it cannot be made it cannot be opened either, and that says why.
    _ = File::options().write(true).create_new(true).mode(PRIVATE).open(path);
}

/// Where a damaged file is marked.
pub(super) fn marker(path: &Path) -> PathBuf {
    suffixed(path, ".damaged")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Moves the file and its companions to a name of their own. The mark goes last: until then a crash repeats this.
pub(super) fn set_aside(path: &Path, now: Timestamp) -> Result<(), Error> {
    let failed = |source| Error::SetAside { path: path.to_owned(), source };
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let names = (0..).map(|attempt| match attempt {
        0 => suffixed(path, &format!(".damaged-{stamp}")),
        more => suffixed(path, &format!(".damaged-{stamp}-{more}")),
    });
    // An endless supply of names: one of them is free.
    let Some(aside) = names.into_iter().find(|name| !name.exists()) else { return Ok(()) };
    for companion in ["-wal", "-shm", ""] {
        match std::fs::rename(suffixed(path, companion), suffixed(&aside, companion)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    tracing::error!(
        db.path = %path.display(), db.aside = %aside.display(),
        "the database is damaged: it was set aside, a new one begins a new epoch"
    );
    match std::fs::remove_file(marker(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}
