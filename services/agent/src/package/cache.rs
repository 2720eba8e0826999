//! Archives on the device's disk, by digest, within a bound: those used longest ago go first. Unfinished downloads lie there
//! too, so that a fetch goes on where it ended.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use muster_contract::canonical::Digest;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, futimens};
use sha2::{Digest as _, Sha256};

use super::error::PackageError;
use super::http::Download;

const FOLDER: &str = "packages";
const PART: &str = "part";
const READ_BYTES: usize = 64 * 1024;

/// The cache of an agent.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    bytes_max: u64,
}

impl Cache {
    /// The cache below a data directory.
    pub(super) fn new(data_dir: &Path, bytes_max: u64) -> Self {
        Self { folder: data_dir.join(FOLDER), bytes_max }
    }

    /// Creates its folder.
    pub(super) fn create(&self) -> Result<(), PackageError> {
        fs::create_dir_all(&self.folder).map_err(|error| failed(&self.folder, error))
    }

    /// The archive with a digest, if it is there and undamaged. It counts as used now.
    pub(super) fn get(&self, digest: &Digest) -> Option<PathBuf> {
        let path = self.path(digest);
        match digest_of(&path) {
            Ok(found) if found == *digest => {
                // Only the order of removal depends on it.
                let _ = touch(&path);
                Some(path)
            }
            Ok(_) => {
                let _ = fs::remove_file(&path);
                None
            }
            Err(_) => None,
        }
    }

    /// The file of a download that has not ended.
    pub(super) fn part(&self, download: &Download) -> PathBuf {
        self.part_of(&download.digest.unwrap_or_else(|| Digest::of_bytes(download.url.as_bytes())))
    }

    /// The file of an unfinished download with a digest.
    pub(super) fn part_of(&self, digest: &Digest) -> PathBuf {
        self.path(digest).with_extension(PART)
    }

    /// Makes a complete download the archive of its digest.
    pub(super) fn insert(&self, part: &Path, digest: &Digest) -> Result<PathBuf, PackageError> {
        let path = self.path(digest);
        fs::rename(part, &path).map_err(|error| failed(&path, error))?;
        Ok(path)
    }

    /// Ends the use of an archive: removes it unless it shall be kept, then others until all are within the bound.
    pub(super) fn release(&self, archive: &Path, is_kept: bool) {
        if !is_kept {
            let _ = fs::remove_file(archive);
        }
        if let Err(error) = self.shrink() {
            tracing::warn!(path = %self.folder.display(), %error, "cannot shrink the cache of packages");
        }
    }

    fn shrink(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            files.push((about.modified()?, about.len(), entry.path()));
        }
        files.sort();
        let mut sum: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files {
            if sum <= self.bytes_max {
                break;
            }
            fs::remove_file(path)?;
            sum -= bytes;
        }
        Ok(())
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(digest.to_string().replace(':', "-"))
    }
}

/// The digest of a file.
pub(super) fn digest_of(path: &Path) -> Result<Digest, PackageError> {
    let mut file = File::open(path).map_err(|error| failed(path, error))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer).map_err(|error| failed(path, error))? {
            0 => return Ok(Digest::from(<[u8; 32]>::from(hash.finalize()))),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Sets the time of a file's last change to now.
fn touch(path: &Path) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Ok(futimens(File::open(path)?, &Timestamps { last_access: now, last_modification: now })?)
}

fn failed(path: &Path, source: io::Error) -> PackageError {
    PackageError::Write { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn archives_used_longest_ago_go_first_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path(), 25);
        cache.create().unwrap();
        let contents = [b"aaaaaaaaaa", b"bbbbbbbbbb", b"cccccccccc"];
        let digests = contents.map(|content| Digest::of_bytes(content));
        for (age, content) in [(30, contents[0]), (20, contents[1]), (10, contents[2])] {
            let path = cache.path(&Digest::of_bytes(content));
            fs::write(&path, content).unwrap();
            let at = SystemTime::now() - std::time::Duration::from_secs(age);
            File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
        }
        let oldest = cache.get(&digests[0]).unwrap();
        cache.release(&oldest, true);
        assert!(cache.get(&digests[1]).is_none(), "used longest ago");
        assert!(cache.get(&digests[0]).is_some() && cache.get(&digests[2]).is_some());
        fs::write(&oldest, "damaged").unwrap();
        assert!(cache.get(&digests[0]).is_none() && !oldest.exists());
    }
}
