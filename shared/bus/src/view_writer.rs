//! Writes the bucket `views` for one owner: caches the entry of each key, schedules the next write of each, and writes.
//! The owner decides what to write and counts the outcomes.
//!
//! A view is written at most once in [`WRITE_INTERVAL`], and the last write has the final state: a key stays due until its
//! owner has handled it, and becomes due again if its write was overtaken or failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{StreamExt, stream};
use muster_contract::limits::VIEW_WRITES_PER_SECOND;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::time::{Instant, sleep};

use crate::bus::Bus;
use crate::cached_entry::{CachedEntry, ViewIdentity, WriteResult};
use crate::publish::PublishErrorKind;
use crate::read_error::ReadError;
use crate::views::ViewEntry;

/// Least time between two writes of one view.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(1000 / VIEW_WRITES_PER_SECOND as u64);
/// Time between two reads of the whole bucket, which find writes of another writer that this one has missed.
pub const BUCKET_READ_INTERVAL: Duration = Duration::from_secs(60);
/// Writes under way at once.
const IN_FLIGHT_MAX: usize = 64;
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Least upper bound of the delay after a failure.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Longest upper bound of that delay.
const RETRY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(WRITE_INTERVAL.as_millis() * VIEW_WRITES_PER_SECOND as u128 >= 1000);

/// One writer of the bucket, with its cache and its schedule.
#[derive(Debug)]
pub struct ViewWriter<K> {
    bus: Bus,
    rng: Rng,
    retry: FullJitter,
    /// The last known entry of each key.
    pub cached: BTreeMap<K, CachedEntry>,
    /// Keys to handle, each with the earliest time.
    pub due: BTreeMap<K, Instant>,
}

/// How an owner interprets the entries of the bucket.
#[derive(Debug)]
pub struct EntryReader<K> {
    /// The owner's name of a key; `None` if the key is not the owner's.
    pub key: fn(&str) -> Option<K>,
    /// The entry of that key.
    pub entry: fn(&K, &ViewEntry) -> CachedEntry,
}

/// One write: a view, or a deletion, that replaces a revision of a key.
#[derive(Debug)]
pub struct ViewWrite<K> {
    /// The key.
    pub key: K,
    /// The view with its identity; `None` to delete the key.
    pub view: Option<(ViewIdentity, Bytes)>,
    /// The revision that it replaces.
    pub expected: u64,
    /// The sequence of LEDGER up to which the owner has read; 0 if it does not read LEDGER.
    pub read_to: u64,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The view is written.
    Written,
    /// The view is deleted.
    Deleted,
    /// Another writer was faster; the key is due again.
    Overtaken,
    /// The server refused, or its answer was lost; the key is due again unless the refusal is permanent.
    Failed,
}

impl<K: Ord + Clone + Display> ViewWriter<K> {
    /// A writer with an empty cache.
    pub fn new(bus: Bus, rng: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        Self { bus, rng, retry, cached: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// The bus of the bucket.
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Reads the bucket. Every key whose entry differs from the cache becomes due, and so does every key that the bucket no
    /// longer has because it was created again or restored.
    ///
    /// # Errors
    /// The bucket cannot be read now.
    pub async fn read_bucket(&mut self, reader: &EntryReader<K>) -> Result<(), ReadError> {
        let (mut watch, mut seen) = (self.bus.view_watch(">").await?, BTreeSet::new());
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                let Some(key) = (reader.key)(&entry.key) else { continue };
                if self.cached.get(&key).is_none_or(|cached| cached.revision != entry.revision) {
                    self.cached.insert(key.clone(), (reader.entry)(&key, &entry));
                    self.due.insert(key.clone(), Instant::now());
                }
                seen.insert(key);
            }
        }
        for (key, cached) in self.cached.iter_mut().filter(|(key, _)| !seen.contains(*key)) {
            if cached.set_missing() {
                self.due.insert(key.clone(), Instant::now());
            }
        }
        self.retry.reset();
        Ok(())
    }

    /// Reads the bucket and repeats failed attempts until one succeeds.
    pub async fn read_bucket_with_retry(&mut self, reader: &EntryReader<K>) {
        while let Err(error) = self.read_bucket(reader).await {
            let retry_in = self.retry.next(&mut self.rng);
            tracing::warn!(error = chain(&error), ?retry_in, "cannot read the views yet");
            sleep(retry_in).await;
        }
    }

    /// Schedules keys whose view may have changed: each becomes due as soon as it may be written again.
    pub fn changed(&mut self, keys: impl IntoIterator<Item = K>) {
        let now = Instant::now();
        for key in keys {
            let written_at = self.cached.get(&key).and_then(|cached| cached.written_at);
            let allowed = written_at.map_or(now, |at| now.max(at + WRITE_INTERVAL));
            self.due.entry(key).or_insert(allowed);
        }
    }

    /// The keys that are due by now.
    pub fn due_now(&self) -> Vec<K> {
        let now = Instant::now();
        self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect()
    }

    /// The last known entry of a key.
    pub fn cached(&mut self, key: &K) -> &mut CachedEntry {
        self.cached.entry(key.clone()).or_insert(CachedEntry::NOTHING)
    }

    /// Writes many views at once, updates the cache, and schedules failed writes again. `count` is called with each outcome.
    ///
    /// The interval of a view counts from the begin of its write, so that a slow bus makes no view older than it must be.
    pub async fn write(&mut self, writes: Vec<ViewWrite<K>>, mut count: impl FnMut(WriteOutcome)) {
        let (bus, begun) = (&self.bus, Instant::now());
        let results: Vec<_> = stream::iter(writes)
            .map(|write| async move {
                let view = write.view.as_ref().map(|(_, bytes)| bytes.clone());
                let (key, read_to) = (write.key.to_string(), write.read_to);
                let written = bus.view_write(&key, view, write.expected, read_to).await;
                (write, written)
            })
            .buffer_unordered(IN_FLIGHT_MAX)
            .collect()
            .await;
        let (now, mut failure) = (Instant::now(), None);
        for (ViewWrite { key, view, .. }, written) in results {
            let cached = self.cached.entry(key.clone()).or_insert(CachedEntry::NOTHING);
            match written {
                WriteResult::As(revision) => {
                    count(if view.is_some() { WriteOutcome::Written } else { WriteOutcome::Deleted });
                    *cached = CachedEntry::written(revision, view.map(|(identity, _)| identity), begun);
                }
                WriteResult::Overtaken(there) => {
                    count(WriteOutcome::Overtaken);
                    *cached = there;
                    self.due.insert(key, now);
                }
                WriteResult::Failed(error) => {
                    count(WriteOutcome::Failed);
                    *cached = cached.after_unknown_write(now);
                    if error.kind != PublishErrorKind::Permanent {
                        self.due.insert(key.clone(), now);
                    }
                    failure.get_or_insert((key, error));
                }
            }
        }
        match failure {
            None => self.retry.reset(),
            Some((key, error)) => {
                let retry_in = self.retry.next(&mut self.rng).max(WRITE_INTERVAL);
                tracing::warn!(view = %key, error = chain(&error), ?retry_in, "cannot write a view");
                self.due.values_mut().for_each(|at| *at = (*at).max(now + retry_in));
            }
        }
    }
}
