//! `muster package`: puts archives into the hub's object store, lists and removes them.
//!
//! **Order.** `put` claims the name: it writes the present record again, which makes stale what any earlier put expects of it. It then
//! writes the chunks into a set that no record names, the new record, and removes the chunks of the content before. So a device
//! sees the old package or the new one, never a part, and a `put` that was killed leaves chunks that the next one of that name
//! replaces. Each chunk, record and removal expects a sequence as the newest of its subject, so of two puts at once at most one
//! ends well, and none changes what another has stored.
//!
//! The role packager needs no rights to the API of streams: a message that rolls up its subject removes the chunks before it.

use std::fs;
use std::path::{Path, PathBuf};

use muster_bus::{Bus, Outgoing, PublishError, ReadError};
use muster_client::packages::list;
use muster_contract::canonical::Digest;
use muster_contract::headers::ROLLUP;
use muster_contract::limits::{
    PACKAGE_BYTES_MAX, PACKAGE_CHUNK_BYTES, PACKAGES_BYTES_KEPT, PACKAGES_BYTES_MAX, PACKAGES_MAX,
    SIGNATURE_BYTES_MAX,
};
use muster_contract::packages::{ObjectName, ObjectRecord, SLOTS, STREAM, SignatureFormat, chunk_subject};
use serde::Serialize;

use crate::config::PackageCommand;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// The first bytes of a gzip-compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes that a put sends between two notes about its progress.
const NOTE_BYTES: u64 = 8 << 20;

/// Why a package is not put, listed or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PackagesError {
    /// The file is no package.
    #[error("{} cannot be put: {rule}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        rule: String,
    },
    /// The bucket is full.
    #[error(
        "{name} cannot be put: {rule}; `muster package remove NAME` makes room, also of what a put that was killed has left"
    )]
    Full {
        /// The package.
        name: ObjectName,
        /// The bound.
        rule: String,
    },
    /// Another put or remove of the same name.
    #[error("{0} was changed by another put or remove meanwhile: list it, then try again")]
    Conflict(ObjectName),
    /// A message is not stored.
    #[error(
        "{name} cannot be written to the hub (the role packager may; does the hub have the stream {STREAM}?)"
    )]
    Write {
        /// The package.
        name: ObjectName,
        /// The cause.
        #[source]
        source: PublishError,
    },
    /// The bucket cannot be read.
    #[error(
        "the hub's packages cannot be read (packagers and operators may; does the hub have the stream {STREAM}?)"
    )]
    Read(#[from] ReadError),
}

pub use muster_client::packages::{PackageLine, PackageList};

impl From<PackagesError> for CtlError {
    fn from(error: PackagesError) -> Self {
        Self::Packages(Box::new(error))
    }
}

/// The result of a put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PackagePut {
    /// Its name.
    pub name: String,
    /// Its address for `packageLocation`.
    pub address: String,
    /// Its digest for `packageDigest`.
    pub digest: Digest,
    /// Its bytes.
    pub bytes: u64,
    /// False if the hub had this content under this name.
    pub changed: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PackagesRemoved {
    /// Packages that were removed.
    pub removed: Vec<String>,
    /// Names of which there was none.
    pub missing: Vec<String>,
}

/// Runs a command; false if the answer is no.
///
/// # Errors
/// The hub refuses or does not answer, or the file is no package.
pub(crate) async fn run(session: &mut Session<'_>, command: PackageCommand) -> Result<bool, CtlError> {
    match command {
        PackageCommand::Put { file, name } => put(session, &file, name).await.map(|()| true),
        PackageCommand::List => {
            let list = list(session.hub.bus()).await.map_err(PackagesError::Read)?;
            session.show_own(&list, render::packages::list)?;
            Ok(true)
        }
        PackageCommand::Remove { names } => {
            let bucket = Bucket { bus: session.hub.bus().clone() };
            let mut result = PackagesRemoved { removed: Vec::new(), missing: Vec::new() };
            for name in names {
                let was_there = bucket.remove(&name, session.clock.now().to_string()).await?;
                if was_there { &mut result.removed } else { &mut result.missing }.push(name.to_string());
            }
            session.show_own(&result, |result, _| render::packages::removed(result))?;
            Ok(result.missing.is_empty())
        }
    }
}

async fn put(session: &mut Session<'_>, file: &Path, name: Option<ObjectName>) -> Result<(), CtlError> {
    let name = match name {
        Some(name) => name,
        None => name_of(file)?,
    };
    let content = read(file, &name)?;
    let bucket = Bucket { bus: session.hub.bus().clone() };
    let digest = Digest::of_bytes(&content);
    let current = bucket.find(&name).await?;
    let is_there = current.record.as_ref().is_some_and(|record| record.digest() == Some(digest));
    if !is_there {
        bucket.check_room(&name, content.len() as u64, current.record.is_some()).await?;
        let (now, terminal) = (session.clock.now().to_string(), &mut *session.terminal);
        let note = |sent: u64| terminal.print_note(&render::packages::progress(sent, content.len() as u64));
        bucket.put(&name, &content, digest, current, now, note).await?;
    }
    let result = PackagePut {
        name: name.to_string(),
        address: name.address(),
        digest,
        bytes: content.len() as u64,
        changed: !is_there,
    };
    session.show_own(&result, |result, _| render::packages::put(result))
}

fn refused(path: &Path, rule: impl Into<String>) -> CtlError {
    PackagesError::File { path: path.to_owned(), rule: rule.into() }.into()
}

fn name_of(file: &Path) -> Result<ObjectName, CtlError> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.parse().map_err(|error| refused(file, format!("{error}; give it another with --name")))
}

/// The content of a file that can be a package or the signature of one.
fn read(path: &Path, name: &ObjectName) -> Result<Vec<u8>, CtlError> {
    let failed = |source| CtlError::File { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_file() {
        return Err(refused(path, "it is no regular file"));
    }
    if about.len() > PACKAGE_BYTES_MAX {
        return Err(refused(
            path,
            format!("it has more than {PACKAGE_BYTES_MAX} bytes, the most of a package"),
        ));
    }
    let content = fs::read(path).map_err(failed)?;
    if SignatureFormat::ALL.iter().any(|format| name.as_str().ends_with(format.ending())) {
        let bytes = content.len() as u64;
        if !(1..=SIGNATURE_BYTES_MAX).contains(&bytes) {
            return Err(refused(
                path,
                format!(
                    "it is no signature: it has {bytes} bytes, and 1 to {SIGNATURE_BYTES_MAX} are allowed"
                ),
            ));
        }
    } else if !content.starts_with(&GZIP) {
        return Err(refused(path, "it is no gzip-compressed tar archive, which devices would refuse"));
    }
    Ok(content)
}

/// The hub's bucket of packages.
struct Bucket {
    bus: Bus,
}

/// The chunks of a set.
struct ChunkSet {
    /// The subject of the set.
    subject: String,
    /// The sequence of the newest chunk.
    last: u64,
}

/// The newest record of a name.
struct Current {
    /// The sequence of its message; 0 if there is none.
    seq: u64,
    /// The record of an object that is there.
    record: Option<ObjectRecord>,
}

impl Bucket {
    async fn find(&self, name: &ObjectName) -> Result<Current, PackagesError> {
        let Some(message) = self.bus.package_record(&name.record_subject()).await? else {
            return Ok(Current { seq: 0, record: None });
        };
        // A record that devices cannot use is replaced like one that is not there.
        let record = ObjectRecord::parse(&message.payload).ok().filter(|record| !record.deleted);
        Ok(Current { seq: message.stream_seq, record })
    }

    /// Whether a package fits beside the others, and beside the one that it replaces.
    async fn check_room(
        &self,
        name: &ObjectName,
        bytes: u64,
        is_replacing: bool,
    ) -> Result<(), PackagesError> {
        let list = list(&self.bus).await?;
        let full = |rule| Err(PackagesError::Full { name: name.clone(), rule });
        if list.packages.len() >= PACKAGES_MAX && !is_replacing {
            return full(format!("the hub has {PACKAGES_MAX} packages, the most that it may have"));
        }
        let free = PACKAGES_BYTES_MAX.saturating_sub(PACKAGES_BYTES_KEPT + list.bytes);
        if bytes > free {
            return full(format!("it has {bytes} bytes, and the hub has room for {free}"));
        }
        Ok(())
    }

    async fn put(
        &self,
        name: &ObjectName,
        content: &[u8],
        digest: Digest,
        current: Current,
        now: String,
        mut note: impl FnMut(u64),
    ) -> Result<(), PackagesError> {
        let used = current.record.as_ref().map(|record| record.nuid.clone());
        let is_free = |slot: &u8| used.as_ref() != Some(&name.chunks_id(*slot));
        let slot = (0..SLOTS).find(is_free).unwrap_or_default();
        let nothing = || ObjectRecord::new(name, slot, &digest, 0, 0, now.clone()).removed(now.clone());
        let claim = current.record.unwrap_or_else(nothing);
        let claimed = self.store(name, &name.record_subject(), json(&claim), Some(current.seq), true).await?;
        let before = match &used {
            Some(id) => self.content_of(id).await?,
            None => None,
        };
        let subject = chunk_subject(&name.chunks_id(slot));
        let mut last = self.last_of(&subject).await?;
        let (mut sent, mut chunks) = (0, 0);
        for chunk in content.chunks(PACKAGE_CHUNK_BYTES) {
            // The first one removes what an attempt before has left.
            last = self.store(name, &subject, chunk.to_vec(), Some(last), chunks == 0).await?;
            if sent / NOTE_BYTES < (sent + chunk.len() as u64) / NOTE_BYTES {
                note(sent + chunk.len() as u64);
            }
            (sent, chunks) = (sent + chunk.len() as u64, chunks + 1);
        }
        let record = ObjectRecord::new(name, slot, &digest, sent, chunks, now);
        self.store(name, &name.record_subject(), json(&record), Some(claimed), true).await?;
        match before {
            Some(before) => self.clear(name, before).await,
            None => Ok(()),
        }
    }

    /// Removes an object and everything that attempts to put it have left; false if there was none.
    async fn remove(&self, name: &ObjectName, now: String) -> Result<bool, PackagesError> {
        let Current { seq, record } = self.find(name).await?;
        let was_there = record.is_some();
        let mut ids: Vec<String> = (0..SLOTS).map(|slot| name.chunks_id(slot)).collect();
        ids.extend(record.as_ref().map(|record| record.nuid.clone()));
        ids.sort();
        ids.dedup();
        let mut contents = Vec::new();
        for id in ids {
            contents.extend(self.content_of(&id).await?);
        }
        if let Some(record) = record {
            self.store(name, &name.record_subject(), json(&record.removed(now)), Some(seq), true).await?;
        }
        for content in contents {
            self.clear(name, content).await?;
        }
        Ok(was_there)
    }

    /// The chunks that a set holds now; none if it is empty.
    async fn content_of(&self, id: &str) -> Result<Option<ChunkSet>, PackagesError> {
        let subject = chunk_subject(id);
        let newest = self.bus.package_record(&subject).await?;
        let newest = newest.filter(|newest| !newest.payload.is_empty());
        Ok(newest.map(|newest| ChunkSet { last: newest.stream_seq, subject }))
    }

    /// Replaces chunks by an empty message, unless a later put has replaced them already.
    async fn clear(&self, name: &ObjectName, content: ChunkSet) -> Result<(), PackagesError> {
        match self.store(name, &content.subject, Vec::new(), Some(content.last), true).await {
            Ok(_) | Err(PackagesError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn last_of(&self, subject: &str) -> Result<u64, PackagesError> {
        Ok(self.bus.package_record(subject).await?.map_or(0, |newest| newest.stream_seq))
    }

    /// Stores a message, if the newest of its subject is the expected one; its sequence.
    async fn store(
        &self,
        name: &ObjectName,
        subject: &str,
        payload: Vec<u8>,
        expected: Option<u64>,
        is_rollup: bool,
    ) -> Result<u64, PackagesError> {
        let mut message = Outgoing {
            expected_stream: Some(STREAM),
            expected_last_subject_sequence: expected,
            ..Outgoing::new(subject, payload)
        };
        if is_rollup {
            message.headers.insert(ROLLUP, "sub");
        }
        let stored = self.bus.publish(message).await.map_err(|source| match source.kind {
            muster_bus::PublishErrorKind::Conflict => PackagesError::Conflict(name.clone()),
            _ if source.is_bytes_full() => {
                let rule = "the server's bound of bytes for packages is reached".to_owned();
                PackagesError::Full { name: name.clone(), rule }
            }
            _ => PackagesError::Write { name: name.clone(), source },
        });
        stored.map(|stored| stored.sequence)
    }
}

fn json(record: &ObjectRecord) -> Vec<u8> {
    // Cannot fail: an object of texts and numbers.
    serde_json::to_vec(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_devices_would_refuse_is_refused_by_rule() {
        let dir = tempfile::tempdir().unwrap();
        let said = |file: &str, content: &[u8]| {
            let path = dir.path().join(file);
            fs::write(&path, content).unwrap();
            let result = name_of(&path).and_then(|name| read(&path, &name));
            result.map(|_| String::new()).unwrap_or_else(|error| error.words().unwrap())
        };
        assert_eq!(said("web.tar.gz", &[0x1f, 0x8b, 8]), "");
        assert_eq!(said("web.tar.gz.sig", b"MEUC"), "");
        for (file, content, words) in [
            ("web.zip", &b"PK"[..], "no gzip-compressed tar archive"),
            ("empty.sig", b"", "it has 0 bytes"),
            ("long.sig", &[b'A'; 4097], "1 to 4096 are allowed"),
            ("a b.tar.gz", &GZIP, "--name"),
        ] {
            let said = said(file, content);
            assert!(said.contains(words) && said.contains(file), "{said}");
        }
        let path = dir.path().join("large.tar.gz");
        fs::File::create(&path).unwrap().set_len(PACKAGE_BYTES_MAX + 1).unwrap();
        assert!(read(&path, &"large".parse().unwrap()).unwrap_err().words().unwrap().contains("67108864"));
        assert!(read(dir.path(), &"folder".parse().unwrap()).is_err());
    }
}
