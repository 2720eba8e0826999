//! Reads packages from the hub's object store, chunk by chunk over the agent's own connection. After each chunk it stores the position
//! beside the unfinished file, so a fetch that a lost link, a kill or a stop ended resumes after the last stored chunk.
//!
//! It uses the one right to `$JS.API.DIRECT.GET.OBJ_packages` and creates no consumer. The caller verifies the digest of the
//! whole file; records and chunks are the hub's word alone.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError};
use muster_contract::canonical::Digest;
use muster_contract::packages::{ObjectName, ObjectRecord, chunk_subject};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::block_on;
use super::error::PackageError;
use super::http::PROGRESS_INTERVAL;
use super::progress::FetchControl;
use crate::relay::budget::Rate;

/// How long a fetch waits for the connection to the hub.
const LINK_WAIT: Duration = Duration::from_secs(20);
/// Lost answers in a row to one read after which the fetch ends; the next one goes on there.
const LOST_ANSWERS_MAX: u32 = 3;

/// The advice about an object whose chunks do not fit its record: another put or remove during the fetch has the same effect.
const DAMAGED: &str = "the next attempt begins anew; if it fails too, remove the package, then put it again";

/// The connection of the agent, whose client a later one may replace.
#[derive(Debug, Clone)]
pub(super) struct HubStore {
    connected: watch::Receiver<Option<Bus>>,
    rate: Option<Rate>,
}

/// The position after the newest chunk of an unfinished file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// The set of chunks and the time of its record: the same set is written anew by a later put.
    set: String,
    /// The sequence of the newest chunk.
    seq: u64,
    /// Chunks so far.
    chunks: u64,
    /// Bytes so far.
    bytes: u64,
}

/// A read of the bucket.
#[derive(Debug, Clone, Copy)]
enum Read {
    Record,
    /// The first message at this sequence or after it.
    From(u64),
}

impl HubStore {
    /// The store of the hub that an agent is connected to.
    pub(super) const fn new(connected: watch::Receiver<Option<Bus>>, rate: Option<Rate>) -> Self {
        Self { connected, rate }
    }

    /// The record of an object.
    ///
    /// # Errors
    /// The hub does not answer, or has no such package.
    pub(super) fn record(
        &self,
        name: &ObjectName,
        stop: &CancellationToken,
    ) -> Result<ObjectRecord, PackageError> {
        let found = block_on(stop, self.find(name))?;
        found.ok_or_else(|| {
            unusable(name, "the hub has no such package; `muster package list` shows those it has")
        })
    }

    /// A small object as a whole; none if there is no such object.
    ///
    /// # Errors
    /// The hub does not answer, or the object is damaged or too large.
    pub(super) fn small(
        &self,
        name: &ObjectName,
        bytes_max: u64,
        stop: &CancellationToken,
    ) -> Result<Option<Vec<u8>>, PackageError> {
        let Some(record) = block_on(stop, self.find(name))? else { return Ok(None) };
        if record.size > bytes_max {
            return Err(PackageError::Large { address: name.address(), max: bytes_max });
        }
        let mut content = Vec::new();
        let collect = |_: &Position, chunk: &[u8]| {
            content.extend_from_slice(chunk);
            Ok(())
        };
        block_on(stop, self.chunks(name, &record, Position::default(), collect))?;
        Ok(Some(content))
    }

    /// Downloads an object to `part`, from where an earlier transfer of it ended.
    ///
    /// # Errors
    /// The hub does not answer: what came is kept for the next transfer. Or the object is damaged: the next transfer begins anew.
    pub(super) fn download(
        &self,
        name: &ObjectName,
        record: &ObjectRecord,
        part: &Path,
        control: &FetchControl,
    ) -> Result<(), PackageError> {
        let written = |source| PackageError::Write { path: part.to_owned(), source };
        let mut file = File::options().create(true).append(true).open(part).map_err(written)?;
        let have = file.seek(SeekFrom::End(0)).map_err(written)?;
        let start = Position::stored(part, &format!("{} {}", record.nuid, record.mtime), have);
        file.set_len(start.bytes).map_err(written)?;
        control.advance(start.bytes, Some(record.size));
        let mut logged_at = Instant::now();
        let store = |position: &Position, chunk: &[u8]| {
            file.write_all(chunk).map_err(written)?;
            position.store(part)?;
            control.advance(position.bytes, Some(record.size));
            if logged_at.elapsed() >= PROGRESS_INTERVAL {
                logged_at = Instant::now();
                tracing::info!(
                    package = name.address(),
                    bytes = position.bytes,
                    total = record.size,
                    "fetching a package"
                );
            }
            Ok(())
        };
        let fetched = block_on(&control.stop, self.chunks(name, record, start, store));
        if matches!(fetched, Ok(()) | Err(PackageError::Object { .. })) {
            // Only the next attempt would read it.
            let _ = fs::remove_file(position_path(part));
        }
        fetched
    }

    async fn find(&self, name: &ObjectName) -> Result<Option<ObjectRecord>, PackageError> {
        let Some(message) = self.read(name, &name.record_subject(), Read::Record).await? else {
            return Ok(None);
        };
        let record = ObjectRecord::parse(&message.payload).map_err(|rule| unusable(name, rule))?;
        Ok(Some(record).filter(|record| !record.deleted))
    }

    /// Gives each chunk after `position` to `each`, in order, with the position after it.
    async fn chunks(
        &self,
        name: &ObjectName,
        record: &ObjectRecord,
        mut position: Position,
        mut each: impl FnMut(&Position, &[u8]) -> Result<(), PackageError>,
    ) -> Result<(), PackageError> {
        let subject = chunk_subject(&record.nuid);
        while position.chunks < record.chunks {
            let found = self.read(name, &subject, Read::From(position.seq + 1)).await?;
            let Some(message) = found else {
                let (nth, all) = (position.chunks + 1, record.chunks);
                return Err(unusable(name, format!("the hub lacks chunk {nth} of {all}: {DAMAGED}")));
            };
            let bytes = position.bytes + message.payload.len() as u64;
            if message.subject != subject || message.stream_seq <= position.seq || bytes > record.size {
                return Err(unusable(name, format!("its chunks are not those of its record: {DAMAGED}")));
            }
            position = Position { seq: message.stream_seq, chunks: position.chunks + 1, bytes, ..position };
            each(&position, &message.payload)?;
            if let Some(rate) = self.rate {
                sleep(rate.time_of(message.payload.len() as u64)).await;
            }
        }
        if position.bytes < record.size {
            let (found, all) = (position.bytes, record.size);
            return Err(unusable(name, format!("its chunks have {found} of {all} bytes: {DAMAGED}")));
        }
        Ok(())
    }

    /// Reads a message, again after a lost answer, over whatever connection the agent has then.
    async fn read(
        &self,
        name: &ObjectName,
        subject: &str,
        read: Read,
    ) -> Result<Option<Delivery>, PackageError> {
        let mut lost = 0;
        loop {
            let bus = self.bus().await.ok_or_else(|| {
                let down = "the agent is not connected to the hub";
                unreachable(name, io::Error::new(io::ErrorKind::NotConnected, down))
            })?;
            let answer = match read {
                Read::Record => bus.package_record(subject).await,
                Read::From(sequence) => bus.package_message(subject, sequence).await,
            };
            match answer {
                Ok(message) => return Ok(message),
                Err(ReadError::Disconnected { .. } | ReadError::TimedOut { .. })
                    if lost < LOST_ANSWERS_MAX =>
                {
                    lost += 1;
                }
                Err(error) => return Err(unreachable(name, error)),
            }
        }
    }

    /// The client of the agent, once it is connected; none if it is not within [`LINK_WAIT`].
    async fn bus(&self) -> Option<Bus> {
        let mut connected = self.connected.clone();
        let connect = async {
            loop {
                let bus = connected.borrow_and_update().clone();
                let Some(bus) = bus else {
                    connected.changed().await.ok()?;
                    continue;
                };
                let mut link = bus.link();
                if link.borrow_and_update().is_up() {
                    return Some(bus);
                }
                tokio::select! {
                    changed = link.changed() => changed.ok()?,
                    changed = connected.changed() => changed.ok()?,
                }
            }
        };
        timeout(LINK_WAIT, connect).await.ok().flatten()
    }
}

impl Position {
    /// The stored position, if it is of these chunks and the file has all bytes up to it; otherwise the beginning.
    fn stored(part: &Path, set: &str, have: u64) -> Self {
        let text = fs::read(position_path(part)).unwrap_or_default();
        let stored: Option<Self> = serde_json::from_slice(&text).ok();
        stored
            .filter(|stored| stored.set == set && stored.bytes <= have)
            .unwrap_or_else(|| Self { set: set.to_owned(), ..Self::default() })
    }

    fn store(&self, part: &Path) -> Result<(), PackageError> {
        let path = position_path(part);
        // A kill within the write leaves no position that can be parsed, and the next transfer begins anew.
        let text = serde_json::to_vec(self).unwrap_or_default();
        fs::write(&path, text).map_err(|source| PackageError::Write { path, source })
    }
}

/// The digest of an object, which its record has.
pub(super) fn digest_of(record: &ObjectRecord) -> Digest {
    // `ObjectRecord::parse` refuses a record without one.
    record.digest().unwrap_or_else(|| Digest::from([0; 32]))
}

fn position_path(part: &Path) -> PathBuf {
    part.with_extension("chunk")
}

fn unusable(name: &ObjectName, rule: impl Into<String>) -> PackageError {
    PackageError::Object { address: name.address(), rule: rule.into() }
}

fn unreachable(
    name: &ObjectName,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> PackageError {
    PackageError::Unreachable { address: name.address(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_goes_on_only_in_the_same_chunks_and_within_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let part = dir.path().join("sha256-00.part");
        let start = Position { set: "A".to_owned(), ..Position::default() };
        assert_eq!(Position::stored(&part, "A", 0), start);
        let position = Position { seq: 7, chunks: 2, bytes: 200, ..start.clone() };
        position.store(&part).unwrap();
        assert_eq!(Position::stored(&part, "A", 250), position);
        assert_eq!(Position::stored(&part, "A", 199), start, "the file lost bytes");
        assert_eq!(Position::stored(&part, "B", 250).bytes, 0, "another set of chunks");
        fs::write(position_path(&part), "{\"set\":\"A\",\"se").unwrap();
        assert_eq!(Position::stored(&part, "A", 250), start, "a kill within the write");
    }
}
