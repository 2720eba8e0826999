//! The bucket `views`: any client's bucket functions work on it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use muster_contract::RequestedBy;
use muster_contract::headers::{REQUESTED_BY, TTL};
use muster_service::error::chain;

use crate::bus::Bus;
use crate::message::{Delivery, Outgoing};
use crate::publish::PublishError;
use crate::read::ReadError;
use crate::replay::{Replay, Start};
use crate::topology::{VIEWS_STREAM, VIEWS_SUBJECT_PREFIX};

/// How a bucket marks what is not a value.
const OPERATION: &str = "KV-Operation";
/// Replaces everything of the key by this message.
const ROLLUP: &str = "Nats-Rollup";
/// Of a deletion, up to where in LEDGER its writer had read: a mark without it is no rollup's.
const READ_TO: &str = "Muster-Read-To";
/// How long the mark of a deleted view stays for those who were away: a day.
const TOMBSTONE_TTL: &str = "24h";

/// Time before a key is looked for again that could not be.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A value of the bucket, or its absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewEntry {
    /// The key.
    pub key: String,
    /// The value; `None` when the key was deleted.
    pub value: Option<Bytes>,
    /// Rises with every write to the bucket; 0 where no write tells of it.
    pub revision: u64,
    /// Of a deletion by a rollup, up to where in LEDGER it had read.
    pub read_to: Option<u64>,
    /// Entries still to come before the watch shows the present; 0 means it does.
    pub pending: u64,
}

/// The bucket followed: the present first, then every change. Where the bucket is made anew, its present comes again, and
/// then the deletion of whatever is not in it any more, at revision 0: no mark in the new bucket tells of that.
#[derive(Debug)]
pub struct ViewWatch {
    bus: Bus,
    filter: String,
    replay: Replay,
    /// Keys that were handed out with a value.
    held: BTreeSet<String>,
    /// Of those, the keys that a present which is read again has not shown; none where none is.
    doubted: Option<BTreeSet<String>>,
}

impl ViewWatch {
    /// Entries that were there when it was opened: a reader of the present alone has seen it after so many.
    pub const fn waiting(&self) -> u64 {
        self.replay.waiting()
    }

    /// The next entries of what was there when it was opened; none when all of that is read. Cancel-safe.
    pub async fn next_present(&mut self, max: usize) -> Result<Option<Vec<ViewEntry>>, ReadError> {
        loop {
            match self.replay.next_present(max).await {
                Ok(Some(batch)) => return Ok(Some(self.hand_out(batch))),
                Ok(None) => return Ok(self.gone().await),
                Err(error) => self.begin_again(&error).await?,
            }
        }
    }

    /// The next entries, at least one, and at most `max` but for deletions that nothing tells of. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<ViewEntry>, ReadError> {
        loop {
            if self.doubted.is_some() {
                match self.next_present(max).await? {
                    Some(entries) => return Ok(entries),
                    None => continue,
                }
            }
            match self.replay.next_batch(max).await {
                Ok(batch) => return Ok(self.hand_out(batch)),
                Err(error) => self.begin_again(&error).await?,
            }
        }
    }

    async fn begin_again(&mut self, cause: &ReadError) -> Result<(), ReadError> {
        tracing::info!(cause = chain(cause), "reading all views again");
        self.replay = present(&self.bus, &self.filter).await?;
        self.doubted = Some(self.held.clone());
        Ok(())
    }

    /// Whether a key has a value, asked for as long as it takes.
    async fn is_there(&self, key: &str) -> bool {
        loop {
            match self.bus.view_get(key).await {
                Ok(found) => return found.is_some(),
                Err(error) => {
                    tracing::debug!(
                        view = key,
                        cause = chain(&error),
                        "cannot look for a view; trying again"
                    );
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }

    fn hand_out(&mut self, batch: Vec<Delivery>) -> Vec<ViewEntry> {
        let entries: Vec<_> = batch.into_iter().map(ViewEntry::from).collect();
        for entry in &entries {
            if let Some(doubted) = &mut self.doubted {
                doubted.remove(&entry.key);
            }
            match entry.value {
                Some(_) => _ = self.held.insert(entry.key.clone()),
                None => _ = self.held.remove(&entry.key),
            }
        }
        entries
    }

    /// The present is read: what it has not shown is not there any more, unless it was written anew since and is still to
    /// come.
    async fn gone(&mut self) -> Option<Vec<ViewEntry>> {
        let mut gone = self.doubted.clone()?;
        for key in self.doubted.iter().flatten() {
            if self.is_there(key).await {
                gone.remove(key);
            }
        }
        self.doubted = None;
        self.held.retain(|key| !gone.contains(key));
        if gone.is_empty() {
            return None;
        }
        Some(
            gone.into_iter()
                .map(|key| ViewEntry { key, value: None, revision: 0, read_to: None, pending: 0 })
                .collect(),
        )
    }
}

impl Bus {
    /// Writes a value in place of the revision that is expected, 0 for none, or of whatever there is; its revision.
    pub async fn view_put(
        &self,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PublishError> {
        self.publish(put(key, value, expected)).await.map(|stored| stored.sequence)
    }

    /// Writes a value that a request defines, or deletes it where there is none, in place of the revision that is expected; the
    /// entry says who asked.
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

    /// Deletes a key at the revision that is expected, or at any; the mark's revision. The mark remains for a day, so that
    /// those who follow the bucket learn of it.
    pub async fn view_delete(&self, key: &str, expected: Option<u64>) -> Result<u64, PublishError> {
        self.view_delete_as_of(key, expected, None).await
    }

    /// The same by a writer of views, who says up to where in LEDGER it has read.
    pub async fn view_delete_as_of(
        &self,
        key: &str,
        expected: Option<u64>,
        read_to: Option<u64>,
    ) -> Result<u64, PublishError> {
        self.publish(tombstone(key, expected, read_to)).await.map(|stored| stored.sequence)
    }

    /// Reads a value; `None` where there is none.
    pub async fn view_get(&self, key: &str) -> Result<Option<ViewEntry>, ReadError> {
        Ok(self.view_last(key).await?.filter(|entry| entry.value.is_some()))
    }

    /// Reads the last entry of a key, which may be the mark of a deletion; `None` where there is none.
    pub async fn view_last(&self, key: &str) -> Result<Option<ViewEntry>, ReadError> {
        let last = self.last(VIEWS_STREAM, &format!("{VIEWS_SUBJECT_PREFIX}{key}")).await?;
        Ok(last.map(ViewEntry::from))
    }

    /// Follows keys: `>` for all, `deployment.*`, or one.
    pub async fn view_watch(&self, keys: &str) -> Result<ViewWatch, ReadError> {
        let filter = format!("{VIEWS_SUBJECT_PREFIX}{keys}");
        let replay = present(self, &filter).await?;
        Ok(ViewWatch { bus: self.clone(), filter, replay, held: BTreeSet::new(), doubted: None })
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
        // `Nats-Marker-Reason` is the server's own mark where an operator lets values expire.
        let deleted = [OPERATION, "Nats-Marker-Reason"]
            .iter()
            .any(|name| delivery.headers.get(name).is_some_and(|op| op != "PUT"));
        let read_to = delivery.headers.get(READ_TO).filter(|_| deleted).and_then(|text| text.parse().ok());
        let Delivery { payload, stream_seq, pending, .. } = delivery;
        Self { key, value: (!deleted).then_some(payload), revision: stream_seq, read_to, pending }
    }
}
