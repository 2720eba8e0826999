//! Puts content into the hub's bucket of packages, and removes it.
//!
//! **Order.** `put` claims the name: it writes the present record again, which makes stale what any earlier put expects of it. It then
//! writes the chunks into a set that no record names, the new record, and removes the chunks of the content before. So a device
//! sees the old package or the new one, never a part, and a `put` that was killed leaves chunks that the next one of that name
//! replaces. Each chunk, record and removal expects a sequence as the newest of its subject, so of two puts at once at most one
//! ends well, and none changes what another has stored.
//!
//! The role packager needs no rights to the API of streams: a message that rolls up its subject removes the chunks before it.

use muster_bus::{Bus, Outgoing, PublishError, PublishErrorKind, ReadError};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::headers::ROLLUP;
use muster_contract::limits::{
    PACKAGE_BYTES_MAX, PACKAGE_CHUNK_BYTES, PACKAGES_BYTES_KEPT, PACKAGES_BYTES_MAX, PACKAGES_MAX,
    SIGNATURE_BYTES_MAX,
};
use muster_contract::packages::{
    ObjectName, ObjectRecord, PackageWriter, SLOTS, STREAM, SignatureFormat, chunk_subject,
};
use serde::Serialize;

use super::list;

/// The first bytes of a gzip-compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Why a package is not put or removed.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
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

/// Content that can be a package, or by its name the signature of one.
#[derive(Debug)]
pub struct PackageContent {
    name: ObjectName,
    bytes: Vec<u8>,
    digest: Digest,
}

impl PackageContent {
    /// Checks content and computes its digest, which takes a moment where it is long.
    ///
    /// # Errors
    /// The rule that the content breaks.
    pub fn new(name: ObjectName, bytes: Vec<u8>) -> Result<Self, String> {
        check(&name, &bytes)?;
        Ok(Self { name, digest: Digest::of_bytes(&bytes), bytes })
    }

    /// Its bytes.
    pub const fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

fn check(name: &ObjectName, content: &[u8]) -> Result<(), String> {
    let bytes = content.len() as u64;
    if SignatureFormat::ALL.iter().any(|format| name.as_str().ends_with(format.ending())) {
        return if (1..=SIGNATURE_BYTES_MAX).contains(&bytes) {
            Ok(())
        } else {
            let allowed = format!("1 to {SIGNATURE_BYTES_MAX} are allowed");
            Err(format!("it is no signature: it has {bytes} bytes, and {allowed}"))
        };
    }
    if bytes > PACKAGE_BYTES_MAX {
        return Err(format!("it has more than {PACKAGE_BYTES_MAX} bytes, the most of a package"));
    }
    if content.starts_with(&GZIP) {
        Ok(())
    } else {
        Err("it is no gzip-compressed tar archive, which devices would refuse".to_owned())
    }
}

/// The hub's bucket of packages.
#[derive(Debug, Clone)]
pub struct PackageBucket {
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

impl PackageBucket {
    /// The bucket of a hub, written with the rights of a connection: those of the role packager.
    pub const fn new(bus: Bus) -> Self {
        Self { bus }
    }

    /// Puts content under its name; `writer` is the person for whom a gateway does it. `note` gets the bytes that are stored so far.
    ///
    /// # Errors
    /// The bucket is full, or the hub refuses or does not answer.
    pub async fn put(
        &self,
        content: &PackageContent,
        writer: Option<&PackageWriter>,
        now: Timestamp,
        note: impl FnMut(u64),
    ) -> Result<PackagePut, PackageError> {
        let PackageContent { name, digest, .. } = content;
        let size = content.size();
        let current = self.find(name).await?;
        let is_there = current.record.as_ref().is_some_and(|record| record.digest() == Some(*digest));
        if is_there {
            self.clear_unnamed(name, current).await?;
        } else {
            self.check_room(name, size, current.record.is_some()).await?;
            self.store_content(content, current, (writer, now.to_string()), note).await?;
        }
        let (address, name) = (name.address(), name.to_string());
        Ok(PackagePut { name, address, digest: *digest, bytes: size, changed: !is_there })
    }

    async fn find(&self, name: &ObjectName) -> Result<Current, PackageError> {
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
    ) -> Result<(), PackageError> {
        let list = list(&self.bus).await?;
        let full = |rule| Err(PackageError::Full { name: name.clone(), rule });
        if list.packages.len() >= PACKAGES_MAX && !is_replacing {
            return full(format!("the hub has {PACKAGES_MAX} packages, the most that it may have"));
        }
        let free = PACKAGES_BYTES_MAX.saturating_sub(PACKAGES_BYTES_KEPT + list.bytes);
        if bytes > free {
            return full(format!("it has {bytes} bytes, and the hub has room for {free}"));
        }
        Ok(())
    }

    async fn store_content(
        &self,
        PackageContent { name, bytes, digest }: &PackageContent,
        current: Current,
        (writer, now): (Option<&PackageWriter>, String),
        mut note: impl FnMut(u64),
    ) -> Result<(), PackageError> {
        let used = current.record.as_ref().map(|record| record.nuid.clone());
        let is_free = |slot: &u8| used.as_ref() != Some(&name.chunks_id(*slot));
        let slot = (0..SLOTS).find(is_free).unwrap_or_default();
        let claim = current.record.unwrap_or_else(|| nothing(name, now.clone()));
        let claimed = self.store(name, &name.record_subject(), json(&claim), Some(current.seq), true).await?;
        let before = match &used {
            Some(id) => self.content_of(id).await?,
            None => None,
        };
        let subject = chunk_subject(&name.chunks_id(slot));
        let mut last = self.last_of(&subject).await?;
        let (mut sent, mut chunks) = (0, 0);
        for chunk in bytes.chunks(PACKAGE_CHUNK_BYTES) {
            // The first one removes what an attempt before has left.
            last = self.store(name, &subject, chunk.to_vec(), Some(last), chunks == 0).await?;
            (sent, chunks) = (sent + chunk.len() as u64, chunks + 1);
            note(sent);
        }
        let record = ObjectRecord::new(name, slot, digest, sent, chunks, now).written_by(writer);
        self.store(name, &name.record_subject(), json(&record), Some(claimed), true).await?;
        match before {
            Some(before) => self.clear(name, before).await,
            None => Ok(()),
        }
    }

    /// Removes the chunks that a put has left which was killed, if there are any.
    async fn clear_unnamed(&self, name: &ObjectName, current: Current) -> Result<(), PackageError> {
        let Current { seq, record: Some(record) } = current else { return Ok(()) };
        let mut left = Vec::new();
        for id in (0..SLOTS).map(|slot| name.chunks_id(slot)).filter(|id| *id != record.nuid) {
            left.extend(self.content_of(&id).await?);
        }
        if left.is_empty() {
            return Ok(());
        }
        // A claim: another put that still writes these chunks then ends without its record.
        self.store(name, &name.record_subject(), json(&record), Some(seq), true).await?;
        for content in left {
            self.clear(name, content).await?;
        }
        Ok(())
    }

    /// Removes an object and everything that attempts to put it have left; false if there was none.
    ///
    /// # Errors
    /// The hub refuses or does not answer.
    pub async fn remove(
        &self,
        name: &ObjectName,
        writer: Option<&PackageWriter>,
        now: Timestamp,
    ) -> Result<bool, PackageError> {
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
        if !was_there && contents.is_empty() {
            return Ok(false);
        }
        // Without this, a put that is writing these chunks would end with a record of chunks that are gone.
        let now = now.to_string();
        let record = record.unwrap_or_else(|| nothing(name, now.clone())).removed(now).written_by(writer);
        self.store(name, &name.record_subject(), json(&record), Some(seq), true).await?;
        for content in contents {
            self.clear(name, content).await?;
        }
        Ok(was_there)
    }

    /// The chunks that a set holds now; none if it is empty.
    async fn content_of(&self, id: &str) -> Result<Option<ChunkSet>, PackageError> {
        let subject = chunk_subject(id);
        let newest = self.bus.package_record(&subject).await?;
        let newest = newest.filter(|newest| !newest.payload.is_empty());
        Ok(newest.map(|newest| ChunkSet { last: newest.stream_seq, subject }))
    }

    /// Replaces chunks by an empty message, unless a later put has replaced them already.
    async fn clear(&self, name: &ObjectName, content: ChunkSet) -> Result<(), PackageError> {
        match self.store(name, &content.subject, Vec::new(), Some(content.last), true).await {
            Ok(_) | Err(PackageError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn last_of(&self, subject: &str) -> Result<u64, PackageError> {
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
    ) -> Result<u64, PackageError> {
        let mut message = Outgoing {
            expected_stream: Some(STREAM),
            expected_last_subject_sequence: expected,
            ..Outgoing::new(subject, payload)
        };
        if is_rollup {
            message.headers.insert(ROLLUP, "sub");
        }
        let stored = self.bus.publish(message).await.map_err(|source| match source.kind {
            PublishErrorKind::Conflict => PackageError::Conflict(name.clone()),
            _ if source.is_bytes_full() => {
                let rule = "the server's bound of bytes for packages is reached".to_owned();
                PackageError::Full { name: name.clone(), rule }
            }
            _ => PackageError::Write { name: name.clone(), source },
        });
        stored.map(|stored| stored.sequence)
    }
}

/// The record of a name without an object.
fn nothing(name: &ObjectName, now: String) -> ObjectRecord {
    ObjectRecord::new(name, 0, &Digest::of_bytes(&[]), 0, 0, now.clone()).removed(now)
}

fn json(record: &ObjectRecord) -> Vec<u8> {
    // Cannot fail: an object of texts and numbers.
    serde_json::to_vec(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_devices_would_refuse_is_refused_by_rule() {
        let rule = |name: &str, content: &[u8]| check(&name.parse().unwrap(), content).err();
        assert_eq!(rule("web.tar.gz", &[0x1f, 0x8b, 8]), None);
        assert_eq!(rule("web.tar.gz.sig", b"MEUC"), None);
        for (name, content, words) in [
            ("web.zip", &b"PK"[..], "no gzip-compressed tar archive"),
            ("empty.sig", b"", "it has 0 bytes"),
            ("long.asc", &[b'A'; 4097], "1 to 4096 are allowed"),
        ] {
            let rule = rule(name, content).unwrap();
            assert!(rule.contains(words), "{name}: {rule}");
        }
        let mut long = GZIP.to_vec();
        long.resize(PACKAGE_BYTES_MAX as usize + 1, 0);
        assert!(rule("web.tar.gz", &long).unwrap().contains("67108864"));
    }
}
