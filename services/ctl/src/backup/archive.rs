//! The directory of a backup: files that only its owner reads, and a manifest that names each with its size and digest.
//!
//! The directory gets its name when it is whole, so a backup that did not end has another name and no manifest. Opening
//! reads every byte: a file that is missing, shorter, longer or altered is named, and nothing else is done with the backup.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use muster_contract::canonical::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::BackupError;
use super::manifest::{FORMAT, MANIFEST, Manifest, SavedFile};

const SECRET: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
/// Ends the name of a directory that is not whole yet.
const UNFINISHED: &str = ".unfinished";
const READ_BYTES: usize = 256 * 1024;

/// The manifest with its own digest.
#[derive(Serialize, Deserialize)]
struct Sealed {
    digest: Digest,
    manifest: Manifest,
}

/// A backup that is being made.
#[derive(Debug)]
pub struct Draft {
    folder: PathBuf,
    whole: PathBuf,
}

/// A file of a backup that is being made.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    full: PathBuf,
    path: String,
    mode: u32,
    bytes: u64,
    hash: Sha256,
}

impl Draft {
    /// Makes the directory beside its place.
    ///
    /// # Errors
    /// The place is taken, or the directory cannot be made.
    pub fn create(whole: &Path) -> Result<Self, BackupError> {
        refuse_if_there(whole)?;
        let folder = unfinished(whole);
        if folder.exists() {
            // A backup that was killed leaves it.
            fs::remove_dir_all(&folder).map_err(BackupError::file("remove", &folder))?;
        }
        private_folder(&folder)?;
        Ok(Self { folder, whole: whole.to_owned() })
    }

    /// Begins a file, whose original has an access mode.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn file(&self, path: &str, mode: u32) -> Result<DraftFile, BackupError> {
        let full = self.folder.join(path);
        if let Some(folder) = full.parent() {
            private_folder(folder)?;
        }
        let file = File::options().write(true).create_new(true).mode(SECRET).open(&full);
        let file = file.map_err(BackupError::file("make", &full))?;
        Ok(DraftFile { file, full, path: path.to_owned(), mode, bytes: 0, hash: Sha256::new() })
    }

    /// A path below the directory.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Writes the manifest, and gives the directory its name.
    ///
    /// # Errors
    /// Something cannot be written.
    pub fn finish(self, manifest: &Manifest) -> Result<(), BackupError> {
        let sealed = Sealed { digest: Digest::of_value(manifest), manifest: manifest.clone() };
        let text = serde_json::to_string_pretty(&sealed).unwrap_or_default() + "\n";
        let mut file = self.file(MANIFEST, SECRET)?;
        file.write(text.as_bytes())?;
        file.finish()?;
        refuse_if_there(&self.whole)?;
        let failed = BackupError::file("write", &self.whole);
        fs::rename(&self.folder, &self.whole).and_then(|()| sync_parent(&self.whole)).map_err(failed)
    }
}

impl Drop for Draft {
    /// Removes what is not whole; a finished one has another name.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl DraftFile {
    /// Appends bytes.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.file.write_all(bytes).map_err(BackupError::file("write", &self.full))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Bytes so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the file, which is on the disk then.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<SavedFile, BackupError> {
        self.file.sync_all().map_err(BackupError::file("write", &self.full))?;
        let digest = hex(self.hash);
        Ok(SavedFile { path: self.path, bytes: self.bytes, digest, mode: self.mode })
    }
}

/// The manifest of a backup of which every byte was read and is right.
///
/// # Errors
/// The first thing that is wrong, by its name.
pub fn open(folder: &Path) -> Result<Manifest, BackupError> {
    let path = folder.join(MANIFEST);
    if !path.is_file() {
        return Err(BackupError::NotABackup(folder.to_owned()));
    }
    let text = fs::read(&path).map_err(BackupError::file("read", &path))?;
    let damaged = |reason: &str| BackupError::Damaged { path: path.clone(), reason: reason.to_owned() };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|_| damaged("it is no JSON"))?;
    let found = value["manifest"]["format"].as_u64().ok_or_else(|| damaged("it names no format"))?;
    if found != FORMAT {
        return Err(BackupError::Newer { path: folder.to_owned(), found });
    }
    let sealed: Sealed = serde_json::from_value(value).map_err(|error| damaged(&error.to_string()))?;
    if Digest::of_value(&sealed.manifest) != sealed.digest {
        return Err(damaged("its digest is another one"));
    }
    let Manifest { streams, keys, rollup, .. } = &sealed.manifest;
    let files = streams.iter().map(|stream| &stream.file).chain(keys).chain(rollup);
    for file in files {
        check(folder, file)?;
    }
    Ok(sealed.manifest)
}

fn check(folder: &Path, file: &SavedFile) -> Result<(), BackupError> {
    let path = folder.join(&file.path);
    let damaged = |reason: String| BackupError::Damaged { path: path.clone(), reason };
    if !Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(damaged("its path leaves the backup".to_owned()));
    }
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let read = for_each_part(&path, |part| {
        hash.update(part);
        bytes += part.len() as u64;
    });
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(damaged("it is missing".to_owned())),
        Err(error) => Err(BackupError::file("read", &path)(error)),
        Ok(()) if bytes != file.bytes => {
            Err(damaged(format!("it has {bytes} bytes in place of {}", file.bytes)))
        }
        Ok(()) if hex(hash) != file.digest => Err(damaged("its digest is another one".to_owned())),
        Ok(()) => Ok(()),
    }
}

/// Reads a file part by part.
pub(super) fn for_each_part(path: &Path, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            read => each(&buffer[..read]),
        }
    }
}

/// Refuses a path at which there is anything but an empty directory.
pub(super) fn refuse_if_there(path: &Path) -> Result<(), BackupError> {
    let is_there = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.symlink_metadata().is_ok(),
    };
    if is_there { Err(BackupError::Exists(path.to_owned())) } else { Ok(()) }
}

/// The name beside a directory that is not whole yet.
pub(super) fn unfinished(whole: &Path) -> PathBuf {
    // The components drop a slash at the end.
    let mut name = whole.components().collect::<PathBuf>().into_os_string();
    name.push(UNFINISHED);
    name.into()
}

/// Makes a folder that other users cannot read.
pub(super) fn private_folder(path: &Path) -> Result<(), BackupError> {
    let made = DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(path);
    made.map_err(BackupError::file("make", path))
}

/// Puts the name of a directory on the disk.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn hex(hash: Sha256) -> String {
    let digits = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{digits}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn backup(place: &Path) -> PathBuf {
        let whole = place.join("backup");
        let draft = Draft::create(&whole).unwrap();
        let mut file = draft.file("keys/operator.seed", SECRET).unwrap();
        file.write(b"a seed").unwrap();
        let keys = vec![file.finish().unwrap()];
        let created_at = "2026-11-26T03:00:00Z".parse().unwrap();
        let (streams, rollup, made_by) = (Vec::new(), Vec::new(), "0.1.0".to_owned());
        draft.finish(&Manifest { format: FORMAT, made_by, created_at, streams, keys, rollup }).unwrap();
        whole
    }

    #[test]
    fn a_backup_is_read_by_its_owner_alone() {
        let place = tempfile::tempdir().unwrap();
        let whole = backup(place.path());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&whole), mode(&whole.join("keys"))), (0o700, 0o700));
        assert_eq!((mode(&whole.join(MANIFEST)), mode(&whole.join("keys/operator.seed"))), (SECRET, SECRET));
        assert_eq!(open(&whole).unwrap().keys.len(), 1);
    }

    #[test]
    fn a_damaged_or_partial_backup_is_refused_by_name() {
        let place = tempfile::tempdir().unwrap();
        let whole = backup(place.path());
        let (seed, manifest) = (whole.join("keys/operator.seed"), whole.join(MANIFEST));
        let refused = || open(&whole).unwrap_err().to_string();
        for (bytes, reason) in
            [("a feed", "its digest is another one"), ("a se", "it has 4 bytes in place of 6")]
        {
            fs::write(&seed, bytes).unwrap();
            assert!(refused().contains("operator.seed") && refused().contains(reason), "{}", refused());
        }
        fs::remove_file(&seed).unwrap();
        assert!(refused().contains("it is missing"), "{}", refused());
        let text = fs::read_to_string(&manifest).unwrap();
        for (from, to, reason) in [
            ("\"bytes\": 6", "\"bytes\": 7", "its digest is another one"),
            ("\"format\": 1", "\"format\": 2", "has format 2"),
            ("{", "", "it is no JSON"),
        ] {
            fs::write(&manifest, text.replace(from, to)).unwrap();
            assert!(refused().contains(reason), "{reason}: {}", refused());
        }
        fs::remove_file(&manifest).unwrap();
        assert!(refused().contains("one that did not end"), "{}", refused());
    }

    #[test]
    fn a_backup_that_does_not_end_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let whole = place.path().join("backup");
        let draft = Draft::create(&whole).unwrap();
        draft.file("streams/LEDGER", SECRET).unwrap().write(b"part").unwrap();
        drop(draft);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        backup(place.path());
        assert!(matches!(Draft::create(&whole), Err(BackupError::Exists(_))));
    }
}
