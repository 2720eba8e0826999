//! The bucket `views` as one writer keeps it: what each key holds, when each may be written again, and writing it. What is
//! to be said under a key, and whether now, its writer knows; here nothing is decided and nothing is counted.
//!
//! A view is written at most so often, and what is there last is the final state: a key that is due stays due until it was
//! looked at, and again where its write was overtaken or failed.

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
use crate::held::{Held, Signed, Written};
use crate::publish::PublishErrorKind;
use crate::read::ReadError;
use crate::views::ViewEntry;

/// Least time between two writes of one view.
pub const WRITE_INTERVAL: Duration = Duration::from_millis(1000 / VIEW_WRITES_PER_SECOND as u64);
/// Time between two readings of the bucket: another writer may have died after it wrote what this one never knew of.
pub const LEARN_EVERY: Duration = Duration::from_secs(60);
/// Views under way to the bus at once.
const IN_FLIGHT_MAX: usize = 64;
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Least and longest upper bound of the delay before the bus is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(WRITE_INTERVAL.as_millis() * VIEW_WRITES_PER_SECOND as u128 >= 1000);

/// What one writer knows of the bucket.
#[derive(Debug)]
pub struct Board<K> {
    bus: Bus,
    chance: Rng,
    retry: FullJitter,
    /// What the bucket holds, as far as it is known.
    pub held: BTreeMap<K, Held>,
    /// Keys to look at, and when.
    pub due: BTreeMap<K, Instant>,
}

/// How a writer reads what is in the bucket.
#[derive(Debug)]
pub struct Reader<K> {
    /// The writer's name for a key; none where it is not the writer's.
    pub key: fn(&str) -> Option<K>,
    /// What its entry holds.
    pub holds: fn(&K, &ViewEntry) -> Held,
}

/// What is to be written under a key: a view, or none, in place of a revision.
#[derive(Debug)]
pub struct Write<K> {
    /// The key.
    pub key: K,
    /// The view, and what tells it from others; nothing where the key is to be deleted.
    pub view: Option<(Signed, Bytes)>,
    /// The revision that its writer knows of.
    pub expected: u64,
    /// Up to where in LEDGER its writer has read; 0 where it reads none.
    pub read_to: u64,
}

/// How a write went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is written.
    Written,
    /// It is deleted.
    Deleted,
    /// Somebody else had written meanwhile; it is due again.
    Overtaken,
    /// It was refused, or its fate is not known; unless it was refused for good, it is due again.
    Failed,
}

impl<K: Ord + Clone + Display> Board<K> {
    /// One that knows nothing yet.
    pub fn new(bus: Bus, chance: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        Self { bus, chance, retry, held: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// Where the bucket is.
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Reads the bucket. What another life or another writer wrote
    /// is due: it is either still so, or to be written over. So is what the bucket has no more: it was made anew, or restored
    /// without it.
    ///
    /// # Errors
    /// It cannot be read now.
    pub async fn learn(&mut self, reader: &Reader<K>) -> Result<(), ReadError> {
        let (mut watch, mut seen) = (self.bus.view_watch(">").await?, BTreeSet::new());
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                let Some(key) = (reader.key)(&entry.key) else { continue };
                if self.held.get(&key).is_none_or(|held| held.revision != entry.revision) {
                    self.held.insert(key.clone(), (reader.holds)(&key, &entry));
                    self.due.insert(key.clone(), Instant::now());
                }
                seen.insert(key);
            }
        }
        for (key, held) in self.held.iter_mut().filter(|(key, _)| !seen.contains(*key)) {
            if held.vanish() {
                self.due.insert(key.clone(), Instant::now());
            }
        }
        self.retry.reset();
        Ok(())
    }

    /// Reads the bucket, as often as it takes.
    pub async fn learn_at_last(&mut self, reader: &Reader<K>) {
        while let Err(error) = self.learn(reader).await {
            let retry_in = self.retry.next(&mut self.chance);
            tracing::warn!(error = chain(&error), ?retry_in, "cannot read the views yet");
            sleep(retry_in).await;
        }
    }

    /// These may have changed: each is due as soon as it may be written again.
    pub fn changed(&mut self, keys: impl IntoIterator<Item = K>) {
        let now = Instant::now();
        for key in keys {
            let written_at = self.held.get(&key).and_then(|held| held.written_at);
            let allowed = written_at.map_or(now, |at| now.max(at + WRITE_INTERVAL));
            self.due.entry(key).or_insert(allowed);
        }
    }

    /// The keys that are due by now.
    pub fn due_now(&self) -> Vec<K> {
        let now = Instant::now();
        self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect()
    }

    /// What is known of a key.
    pub fn held(&mut self, key: &K) -> &mut Held {
        self.held.entry(key.clone()).or_insert(Held::NOTHING)
    }

    /// Writes, many at once, remembers what the bucket holds now, and makes due again what failed. `count` hears of each.
    pub async fn write(&mut self, writes: Vec<Write<K>>, mut count: impl FnMut(Fate)) {
        let bus = &self.bus;
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
        for (Write { key, view, .. }, written) in results {
            let held = self.held.entry(key.clone()).or_insert(Held::NOTHING);
            match written {
                Written::As(revision) => {
                    count(if view.is_some() { Fate::Written } else { Fate::Deleted });
                    *held = Held::written(revision, view.map(|(signed, _)| signed), now);
                }
                Written::Overtaken(there) => {
                    count(Fate::Overtaken);
                    *held = there;
                    self.due.insert(key, now);
                }
                Written::Failed(error) => {
                    count(Fate::Failed);
                    *held = held.doubted(now);
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
                let retry_in = self.retry.next(&mut self.chance).max(WRITE_INTERVAL);
                tracing::warn!(view = %key, error = chain(&error), ?retry_in, "cannot write a view");
                self.due.values_mut().for_each(|at| *at = (*at).max(now + retry_in));
            }
        }
    }
}
