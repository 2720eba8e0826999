//! Copies the directory of keys and the databases of a rollup into a backup, and back into directories that are empty.
//!
//! Only files with a name that belongs there are copied, whatever else lies beside them.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;

use super::archive::{Draft, for_each_part, private_folder, refuse_if_there, sync_parent, unfinished};
use super::error::BackupError;
use super::manifest::SavedFile;

/// Folders of the backup.
/// Folders of the backup.
const KEYS: &str = "keys";
const ROLLUP: &str = "rollup";
/// Endings of files in a directory of keys.
const KEY_FILES: [&str; 4] = ["json", "seed", "creds", "conf"];
/// The rollup's databases, its snapshot and its checkpoints, with the mark that SQLite keeps in each.
const DATABASES: [(&str, &[u8; 4]); 2] = [("snapshot.db", b"MUST"), ("history.db", b"MUSH")];
/// The beginning of a database of SQLite.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// The offset of the mark.
const MARK: std::ops::Range<usize> = 68..72;
/// Suffixes of the files that SQLite keeps beside a database that is open, or was not closed.
const LOG: &str = "-wal";
/// The file by which a rollup takes restored databases over.
const NOTE: &str = "restored.json";
/// The access mode of files that have no original.
const SECRET: u32 = 0o600;
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
    for (name, mark) in DATABASES {
        let source = dir.join(name);
        if source.is_file() {
            check_database(&source, mark)?;
            saved.push(copy_into(draft, &source, &format!("{ROLLUP}/{name}"), SECRET)?);
        }
    }
    if saved.is_empty() { Err(BackupError::NotOfRollup(dir.to_owned())) } else { Ok(saved) }
}

/// Refuses a database of another kind, and one that is open: a part of it is in its log then.
fn check_database(path: &Path, mark: &[u8; 4]) -> Result<(), BackupError> {
    let mut log = path.as_os_str().to_owned();
    log.push(LOG);
    // An open one may have all of itself there, its mark too.
    if fs::metadata(PathBuf::from(log)).is_ok_and(|log| log.len() > 0) {
        return Err(BackupError::InUse(path.to_owned()));
    }
    let mut head = [0; MARK.end];
    match File::open(path).and_then(|mut file| file.read_exact(&mut head)) {
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(BackupError::file("read", path)(error)),
        _ if head.starts_with(MAGIC) && head[MARK] == *mark => Ok(()),
        _ => Err(BackupError::NotOfRollup(path.to_owned())),
    }
}

/// Puts the databases of a rollup into a directory, for the LEDGER that was created then: a restored stream is a new one to
/// the server, with the same sequences.
pub(super) fn restore_rollup(
    backup: &Path,
    files: &[SavedFile],
    dir: &Path,
    created_at: Timestamp,
) -> Result<(), BackupError> {
    restore_files(backup, files, dir, |beside| {
        let note = serde_json::json!({ "createdAt": created_at }).to_string() + "\n";
        let path = beside.join(NOTE);
        let file = File::options().write(true).create_new(true).mode(SECRET).open(&path);
        file.and_then(|mut file| file.write_all(note.as_bytes())).map_err(BackupError::file("write", &path))
    })
}

/// Puts the directory of keys back.
pub(super) fn restore_keys(backup: &Path, files: &[SavedFile], dir: &Path) -> Result<(), BackupError> {
    restore_files(backup, files, dir, |_| Ok(()))
}

/// Puts files of a folder of the backup into a directory, which appears as a whole.
fn restore_files(
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
