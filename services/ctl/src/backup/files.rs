//! Copies the directory of keys and the databases of a rollup into a backup, and back into directories that are empty.
//!
//! Only files with a name that belongs there are copied, whatever else lies beside them.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _};

use super::archive::{
    Draft, SavedFile, for_each_part, private_folder, refuse_if_there, sync_parent, unfinished,
};
use super::error::BackupError;

/// Folders of the backup.
const KEYS: &str = "keys";
/// See [`KEYS`].
const ROLLUP: &str = "rollup";
/// Endings of files in a directory of keys.
const KEY_FILES: [&str; 4] = ["json", "seed", "creds", "conf"];
/// The rollup's snapshot.
const SNAPSHOT: &str = "snapshot.db";
/// The rollup's databases, with the number that SQLite keeps in each and the table that names the LEDGER by its creation.
const DATABASES: [(&str, i64, &str); 2] =
    [(SNAPSHOT, 0x4d55_5354, "snapshot"), ("history.db", 0x4d55_5348, "ledger")];
/// Access bits of a file's mode.
const ACCESS: u32 = 0o777;

/// Copies the directory of keys; the caller holds its lock.
pub(super) fn save_keys(draft: &Draft, dir: &Path) -> Result<Vec<SavedFile>, BackupError> {
    let mut found = Vec::new();
    list(dir, Path::new(""), &mut found)?;
    found.sort();
    found.iter().map(|path| save_file(draft, dir, path)).collect()
}

fn list(dir: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<(), BackupError> {
    let folder = dir.join(below);
    let entries = fs::read_dir(&folder).map_err(BackupError::file("read", &folder))?;
    for entry in entries {
        let entry = entry.map_err(BackupError::file("read", &folder))?;
        let (path, kind) = (below.join(entry.file_name()), entry.file_type());
        let kind = kind.map_err(BackupError::file("read", &folder))?;
        let is_key = path.extension().is_some_and(|ending| KEY_FILES.iter().any(|known| ending == *known));
        if kind.is_dir() {
            list(dir, &path, found)?;
        } else if kind.is_file() && is_key {
            found.push(path);
        }
    }
    Ok(())
}

fn save_file(draft: &Draft, dir: &Path, path: &Path) -> Result<SavedFile, BackupError> {
    let source = dir.join(path);
    let metadata = source.metadata().map_err(BackupError::file("read", &source))?;
    let name = format!("{KEYS}/{}", path.display());
    copy_into(draft, &source, &name, metadata.permissions().mode() & ACCESS)
}

fn copy_into(draft: &Draft, source: &Path, name: &str, mode: u32) -> Result<SavedFile, BackupError> {
    let mut file = draft.file(name, mode)?;
    let mut written = Ok(());
    let read = for_each_part(source, |part| {
        if written.is_ok() {
            written = file.write(part);
        }
    });
    read.map_err(BackupError::file("read", source))?;
    written?;
    file.finish()
}

/// Copies the databases of a rollup that does not run.
pub(super) fn save_rollup(draft: &Draft, dir: &Path) -> Result<Vec<SavedFile>, BackupError> {
    let mut saved = Vec::new();
    for (name, kind, _) in DATABASES {
        let source = dir.join(name);
        if source.is_file() {
            let copy = draft.path(&format!("{name}.copy"));
            copy_database(&source, kind, &copy)?;
            saved.push(copy_into(draft, &copy, &format!("{ROLLUP}/{name}"), 0o600)?);
            fs::remove_file(&copy).map_err(BackupError::file("remove", &copy))?;
        }
    }
    if saved.is_empty() { Err(BackupError::NotOfRollup(dir.to_owned())) } else { Ok(saved) }
}

/// Copies a database as of one moment, with what its log holds.
fn copy_database(source: &Path, kind: i64, copy: &Path) -> Result<(), BackupError> {
    let failed = database_error(source);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(source, flags).map_err(&failed)?;
    let found = database.pragma_query_value(None, "application_id", |row| row.get::<_, i64>(0));
    if found.map_err(&failed)? != kind {
        return Err(BackupError::NotOfRollup(source.to_owned()));
    }
    database.execute("VACUUM INTO ?1", [copy.to_string_lossy()]).map_err(failed)?;
    Ok(())
}

fn database_error(path: &Path) -> impl Fn(rusqlite::Error) -> BackupError {
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => BackupError::InUse(path.to_owned()),
        Some(ErrorCode::NotADatabase) => BackupError::NotOfRollup(path.to_owned()),
        _ => BackupError::Database { path: path.to_owned(), source: error },
    }
}

/// The sequence of LEDGER of the saved snapshot; 0 without one.
pub(super) fn snapshot_seq(backup: &Path) -> Result<u64, BackupError> {
    let path = backup.join(ROLLUP).join(SNAPSHOT);
    if !path.is_file() {
        return Ok(0);
    }
    let failed = database_error(&path);
    let database = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(&failed)?;
    let seq = database.query_row("SELECT ledger_seq FROM snapshot", (), |row| row.get(0)).optional();
    Ok(seq.map_err(failed)?.unwrap_or(0))
}

/// Puts the databases of a rollup into a directory, for the LEDGER that was created then: a restored stream is a new one to
/// the server, with the same sequences.
pub(super) fn put_back_rollup(
    backup: &Path,
    files: &[SavedFile],
    (dir, created_at): (&Path, Timestamp),
) -> Result<(), BackupError> {
    put_back(backup, files, dir, |beside| {
        for (name, _, table) in DATABASES {
            let path = beside.join(name);
            if path.is_file() {
                let failed = database_error(&path);
                let database = Connection::open(&path).map_err(&failed)?;
                let update = format!("UPDATE {table} SET created_at = ?1");
                database.execute(&update, [created_at.to_string()]).map_err(failed)?;
            }
        }
        Ok(())
    })
}

/// Puts the directory of keys back.
pub(super) fn put_back_keys(backup: &Path, files: &[SavedFile], dir: &Path) -> Result<(), BackupError> {
    put_back(backup, files, dir, |_| Ok(()))
}

/// Puts files of a folder of the backup into a directory, which appears as a whole.
fn put_back(
    backup: &Path,
    files: &[SavedFile],
    dir: &Path,
    prepare: impl FnOnce(&Path) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let beside = unfinished(dir);
    if beside.exists() {
        fs::remove_dir_all(&beside).map_err(BackupError::file("remove", &beside))?;
    }
    private_folder(&beside)?;
    for file in files {
        // The first part of the path is the folder in the backup.
        let (_, name) = file.path.split_once('/').unwrap_or(("", &file.path));
        copy_out(&backup.join(&file.path), &beside.join(name), file.mode)?;
    }
    prepare(&beside)?;
    refuse_if_there(dir)?;
    let failed = BackupError::file("write", dir);
    fs::rename(&beside, dir).and_then(|()| sync_parent(dir)).map_err(failed)
}

fn copy_out(source: &Path, target: &Path, mode: u32) -> Result<(), BackupError> {
    if let Some(folder) = target.parent() {
        private_folder(folder)?;
    }
    let file = File::options().write(true).create_new(true).mode(mode & ACCESS).open(target);
    let mut file = file.map_err(BackupError::file("make", target))?;
    let mut written = Ok(());
    for_each_part(source, |part| {
        if written.is_ok() {
            written = file.write_all(part);
        }
    })
    .map_err(BackupError::file("read", source))?;
    written.and_then(|()| file.sync_all()).map_err(BackupError::file("write", target))
}
