//! Reads, writes and follows the bucket `views`. The bucket has the format of NATS KV, so other clients' KV functions work
//! on it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use muster_contract::RequestedBy;
use muster_contract::headers::{REQUESTED_BY, TTL};
use muster_service::error::chain;

use crate::bus::Bus;
use crate::message::{Delivery, Outgoing};
use crate::publish::PublishError;
use crate::read_error::ReadError;
use crate::replay::{Replay, Start};
use crate::topology::{VIEWS_STREAM, VIEWS_SUBJECT_PREFIX};

/// The header of a tombstone.
const OPERATION: &str = "KV-Operation";
/// The header that makes a message replace all earlier ones of its key.
const ROLLUP: &str = "Nats-Rollup";
/// The header of a rollup's tombstone with the sequence of LEDGER up to which the rollup had read.
const READ_TO: &str = "Muster-Read-To";
/// How long a tombstone stays, for readers that were away.
const TOMBSTONE_TTL: &str = "24h";

/// Time before a failed read of a key is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An entry of the bucket: a value or a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewEntry {
    /// The key.
    pub key: String,
    /// The value; `None` when the key was deleted.
    pub value: Option<Bytes>,
    /// The revision, which rises with every write to the bucket; 0 for a deletion without a tombstone.
    pub revision: u64,
    /// For a deletion by a rollup: the sequence of LEDGER up to which the rollup had read.
    pub read_to: Option<u64>,
    /// Entries that the watch had not received yet; 0 means that it has caught up.
    pub pending: u64,
}

/// Follows the bucket: the current entries first, then every change. If the bucket is created again, the watch yields its
/// current entries again, and then a deletion at revision 0 for each missing key: the new bucket has no tombstones of them.
#[derive(Debug)]
pub struct ViewWatch {
    bus: Bus,
    filter: String,
    replay: Replay,
    /// Keys whose last entry had a value.
    known: BTreeSet<String>,
    /// While the current entries are read again: the known keys that have not come yet.
    unconfirmed: Option<BTreeSet<String>>,
}

impl ViewWatch {
    /// Number of current entries when it was opened.
    pub const fn waiting(&self) -> u64 {
        self.replay.waiting()
    }

    /// The next of the entries that were current when it was opened; `None` when all are read. Cancel-safe.
    pub async fn next_present(&mut self, max: usize) -> Result<Option<Vec<ViewEntry>>, ReadError> {
        loop {
            match self.replay.next_present(max).await {
                Ok(Some(batch)) => return Ok(Some(self.record_entries(batch))),
                Ok(None) => return Ok(self.missing_entries().await),
                Err(error) => self.read_again(&error).await?,
            }
        }
    }

    /// The next entries: at least one, and at most `max` besides deletions without a tombstone. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<ViewEntry>, ReadError> {
        loop {
            if self.unconfirmed.is_some() {
                match self.next_present(max).await? {
                    Some(entries) => return Ok(entries),
                    None => continue,
                }
            }
            match self.replay.next_batch(max).await {
                Ok(batch) => return Ok(self.record_entries(batch)),
                Err(error) => self.read_again(&error).await?,
            }
        }
    }

    async fn read_again(&mut self, cause: &ReadError) -> Result<(), ReadError> {
        tracing::info!(cause = chain(cause), "reading all views again");
        self.replay = present(&self.bus, &self.filter).await?;
        self.unconfirmed = Some(self.known.clone());
        Ok(())
    }

    /// Whether a key has a value; repeats the read until it succeeds.
    async fn exists(&self, key: &str) -> bool {
        loop {
            match self.bus.view_get(key).await {
                Ok(found) => return found.is_some(),
                Err(error) => {
                    tracing::debug!(view = key, cause = chain(&error), "cannot read a view; trying again");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    fn record_entries(&mut self, batch: Vec<Delivery>) -> Vec<ViewEntry> {
        let entries: Vec<_> = batch.into_iter().map(ViewEntry::from).collect();
        for entry in &entries {
            if let Some(unconfirmed) = &mut self.unconfirmed {
                unconfirmed.remove(&entry.key);
            }
            match entry.value {
                Some(_) => _ = self.known.insert(entry.key.clone()),
                None => _ = self.known.remove(&entry.key),
            }
        }
        entries
    }

    /// Deletions of the keys that are missing after the current entries were read again. A key that was written since still
    /// exists, and its entry will come.
    async fn missing_entries(&mut self) -> Option<Vec<ViewEntry>> {
        let mut missing = self.unconfirmed.clone()?;
        for key in self.unconfirmed.iter().flatten() {
            if self.exists(key).await {
                missing.remove(key);
            }
        }
        self.unconfirmed = None;
        self.known.retain(|key| !missing.contains(key));
        if missing.is_empty() {
            return None;
        }
        Some(
            missing
                .into_iter()
                .map(|key| ViewEntry { key, value: None, revision: 0, read_to: None, pending: 0 })
                .collect(),
        )
    }
}

impl Bus {
    /// Writes a value if the key's revision is `expected` (0: no entry), or in any case with `None`; the new revision.
    pub async fn view_put(
        &self,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PublishError> {
        self.publish(put(key, value, expected)).await.map(|stored| stored.sequence)
    }

    /// Writes a value that a request defines, or deletes it with `None`, if the key's revision is `expected`; the entry names
    /// the requester.
    pub async fn view_define(
        &self,
        key: &str,
        value: Option<Bytes>,
        expected: u64,
        requested_by: Option<&RequestedBy>,
    ) -> Result<u64, PublishError> {
        let mut entry = match value {
            Some(value) => put(key, value, Some(expected)),
            None => tombstone(key, Some(expected), None),
        };
        // Cannot fail: the record is an object of texts.
        if let Some(record) = requested_by.and_then(|requester| serde_json::to_string(requester).ok()) {
            entry.headers.insert(REQUESTED_BY, record);
        }
        self.publish(entry).await.map(|stored| stored.sequence)
    }

    /// Deletes a key if its revision is `expected`, or in any case with `None`; the revision of the tombstone, which stays for
    /// a day so that readers of the bucket see it.
    pub async fn view_delete(&self, key: &str, expected: Option<u64>) -> Result<u64, PublishError> {
        self.view_delete_as_of(key, expected, None).await
    }

    /// The same, with the sequence of LEDGER up to which the writer has read.
    pub async fn view_delete_as_of(
        &self,
        key: &str,
        expected: Option<u64>,
        read_to: Option<u64>,
    ) -> Result<u64, PublishError> {
        self.publish(tombstone(key, expected, read_to)).await.map(|stored| stored.sequence)
    }

    /// Reads a value; `None` if there is none.
    pub async fn view_get(&self, key: &str) -> Result<Option<ViewEntry>, ReadError> {
        Ok(self.view_last(key).await?.filter(|entry| entry.value.is_some()))
    }

    /// Reads the last entry of a key, which may be a tombstone; `None` if there is none.
    pub async fn view_last(&self, key: &str) -> Result<Option<ViewEntry>, ReadError> {
        let last = self.last(VIEWS_STREAM, &format!("{VIEWS_SUBJECT_PREFIX}{key}")).await?;
        Ok(last.map(ViewEntry::from))
    }

    /// Follows keys: `>` for all, `deployment.*`, or one.
    pub async fn view_watch(&self, keys: &str) -> Result<ViewWatch, ReadError> {
        let filter = format!("{VIEWS_SUBJECT_PREFIX}{keys}");
        let replay = present(self, &filter).await?;
        Ok(ViewWatch { bus: self.clone(), filter, replay, known: BTreeSet::new(), unconfirmed: None })
    }
}

async fn present(bus: &Bus, filter: &str) -> Result<Replay, ReadError> {
    bus.replay(VIEWS_STREAM, &[filter], Start::LastPerSubject).await
}

fn put(key: &str, value: Bytes, expected: Option<u64>) -> Outgoing {
    let subject = format!("{VIEWS_SUBJECT_PREFIX}{key}");
    Outgoing {
        expected_stream: Some(VIEWS_STREAM),
        expected_last_subject_sequence: expected,
        ..Outgoing::new(subject, value)
    }
}

fn tombstone(key: &str, expected: Option<u64>, read_to: Option<u64>) -> Outgoing {
    let mut tombstone = put(key, Bytes::new(), expected);
    if let Some(read_to) = read_to {
        tombstone.headers.insert(READ_TO, read_to.to_string());
    }
    tombstone.headers.insert(OPERATION, "PURGE");
    tombstone.headers.insert(ROLLUP, "sub");
    tombstone.headers.insert(TTL, TOMBSTONE_TTL);
    tombstone
}

impl From<Delivery> for ViewEntry {
    fn from(delivery: Delivery) -> Self {
        let key = delivery.subject.strip_prefix(VIEWS_SUBJECT_PREFIX).unwrap_or(&delivery.subject).to_owned();
        // `Nats-Marker-Reason` is the server's tombstone if an operator configured values to expire.
        let deleted = [OPERATION, "Nats-Marker-Reason"]
            .iter()
            .any(|name| delivery.headers.get(name).is_some_and(|op| op != "PUT"));
        let read_to = delivery.headers.get(READ_TO).filter(|_| deleted).and_then(|text| text.parse().ok());
        let Delivery { payload, stream_seq, pending, .. } = delivery;
        Self { key, value: (!deleted).then_some(payload), revision: stream_seq, read_to, pending }
    }
}
