//! Views of all hubs into the bucket `views` of the top: each view that changed is written, at most so often, and what is
//! there last is the final state. A view whose digest did not change is not written; one that is gone is deleted, also if
//! an earlier life left it behind.
//!
//! Nothing is written until every hub was read once: a view must not go back in time. A second federation writes the same; a
//! view of it that has read further is left alone for as long as it takes to read every hub anew, and then it was wrong or
//! a hub was restored from a backup, and it is written over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{StreamExt, stream};
use muster_bus::{Bus, Decision, Held, PublishErrorKind, ReadError, Signed, ViewEntry, Written};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::limits::VIEW_WRITES_PER_SECOND;
use muster_contract::parts::{HUBS_KEY, HubList};
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, content_digest};
use muster_domain::fold::Merge;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::merged::Merged;
use crate::metrics::{Metrics, ViewResult};
use crate::pace::AHEAD_PATIENCE;

/// Least time between two writes of one view.
const WRITE_INTERVAL: Duration = Duration::from_millis(1000 / VIEW_WRITES_PER_SECOND as u64);
/// Least time between two writes of how far the hubs are read, where no hub is heard or not heard anew.
const HUBS_INTERVAL: Duration = Duration::from_secs(10);
/// Views built at one look: the hubs' followers wait meanwhile.
const LOOK_MAX: usize = 64;
/// Views under way to the bus at once.
const IN_FLIGHT_MAX: usize = 64;
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;
/// Time between two readings of the bucket: another federation may have died after it wrote what this one never knew of.
const LEARN_EVERY: Duration = Duration::from_secs(60);
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Least and longest upper bound of the delay before the bus is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Up to where a document has read that is of no fact.
const NOTHING_READ: AsOf = AsOf { ledger_seq: 0, at: Timestamp::UNIX_EPOCH };

const _: () = assert!(WRITE_INTERVAL.as_millis() * VIEW_WRITES_PER_SECOND as u128 >= 1000);

/// A key that the federation writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// A view.
    View(ViewKey),
    /// Which hubs there are.
    Hubs,
}

impl Key {
    fn parse(key: &str) -> Option<Self> {
        if key == HUBS_KEY { Some(Self::Hubs) } else { ViewKey::parse(key).map(Self::View) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::View(key) => key.fmt(f),
            Self::Hubs => f.write_str(HUBS_KEY),
        }
    }
}

/// The writer of views.
#[derive(Debug)]
pub struct Writer {
    bus: Bus,
    merged: Arc<Merged>,
    metrics: Metrics,
    chance: Rng,
    /// What the bucket holds, as far as it is known.
    held: BTreeMap<Key, Held>,
    /// Keys to look at, and when.
    due: BTreeMap<Key, Instant>,
    /// What was said of the hubs when that was looked at last.
    hubs: Vec<(bool, Option<AsOf>)>,
    retry: FullJitter,
}

/// What is to be written under a key: a document, or none, in place of a revision.
#[derive(Debug)]
struct Write {
    key: Key,
    view: Option<(Signed, Bytes)>,
    expected: u64,
}

impl Writer {
    /// A writer of what is merged.
    pub fn new(bus: Bus, merged: Arc<Merged>, metrics: Metrics, chance: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let (held, due) = (BTreeMap::new(), BTreeMap::new());
        Self { bus, merged, metrics, chance, held, due, hubs: Vec::new(), retry }
    }

    /// Writes until `stop`, and then once more what is due.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.merged.changes();
        if stop.run_until_cancelled(self.begin()).await.is_none() {
            return;
        }
        let mut learn_at = Instant::now() + LEARN_EVERY;
        loop {
            let wait = async {
                // First: where a view is due at every turn, the wait is over before the time is.
                let is_time = Instant::now() >= learn_at;
                !is_time && timeout_at(learn_at, self.wait(&mut changes)).await.is_ok()
            };
            match stop.run_until_cancelled(wait).await {
                None => break,
                // Not cancelled in the middle: what is under way would be unknown.
                Some(true) => self.write_due().await,
                Some(false) => {
                    if let Some(Err(error)) = stop.run_until_cancelled(self.learn()).await {
                        tracing::debug!(error = chain(&error), "cannot read the views again; trying later");
                    }
                    learn_at = Instant::now() + LEARN_EVERY;
                }
            }
        }
        self.finish().await;
    }

    /// Waits until there is something true to say, and learns what the bucket says already.
    async fn begin(&mut self) {
        let mut whole = self.merged.whole();
        // What is merged outlives this task, so the wait cannot end for want of a sender.
        let _ = whole.wait_for(|whole| *whole).await;
        // The fleet's view is there from the start, also of an empty fleet.
        let now = Instant::now();
        self.due.extend([(Key::View(ViewKey::Fleet), now), (Key::Hubs, now)]);
        loop {
            match self.learn().await {
                Ok(()) => return,
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.chance);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot read the views yet");
                    sleep(retry_in).await;
                }
            }
        }
    }

    /// Reads the bucket. What another life or another federation wrote is due: it is either still so, or to be written over.
    /// So is what the bucket has no more: it was made anew, or restored without it.
    async fn learn(&mut self) -> Result<(), ReadError> {
        let (mut watch, mut seen) = (self.bus.view_watch(">").await?, BTreeSet::new());
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                let Some(key) = Key::parse(&entry.key) else { continue };
                if self.held.get(&key).is_none_or(|held| held.revision != entry.revision) {
                    self.held.insert(key.clone(), there(&key, &entry));
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

    /// Waits until a key is due. Cancel-safe.
    async fn wait(&mut self, changes: &mut watch::Receiver<u64>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            changes.mark_unchanged();
            self.take_changed();
            let next = self.due.values().min().copied();
            if next.is_some_and(|next| next <= Instant::now()) {
                return;
            }
            let timer = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Ends with an error only when what is merged is gone, and this task holds it.
                _ = changes.changed() => {}
                () = timer => {}
            }
        }
    }

    /// Takes over which views may have changed, and when each may be written.
    fn take_changed(&mut self) {
        let now = Instant::now();
        let changed: Vec<Key> = self.merged.take_changed().into_iter().map(Key::View).collect();
        for key in changed {
            let allowed = self.allowed(&key, WRITE_INTERVAL, now);
            self.due.entry(key).or_insert(allowed);
        }
        self.take_hubs(now);
        self.metrics.views_due.set(self.due.len() as i64);
    }

    /// The same of the hubs: at once where one falls silent or is back, now and then where one was only read further.
    fn take_hubs(&mut self, now: Instant) {
        let view = self.merged.look(Merge::hub_list);
        let hubs: Vec<_> = view.hubs.iter().map(|hub| (hub.heard, hub.as_of)).collect();
        if hubs == self.hubs {
            return;
        }
        let heard = |hubs: &[(bool, Option<AsOf>)]| hubs.iter().map(|(heard, _)| *heard).collect::<Vec<_>>();
        let interval = if heard(&hubs) == heard(&self.hubs) { HUBS_INTERVAL } else { WRITE_INTERVAL };
        self.hubs = hubs;
        let allowed = self.allowed(&Key::Hubs, interval, now);
        self.due.entry(Key::Hubs).and_modify(|at| *at = (*at).min(allowed)).or_insert(allowed);
    }

    fn allowed(&self, key: &Key, interval: Duration, now: Instant) -> Instant {
        let written_at = self.held.get(key).and_then(|held| held.written_at);
        written_at.map_or(now, |at| now.max(at + interval))
    }

    /// Writes what is due now, look by look.
    async fn write_due(&mut self) {
        let now = Instant::now();
        let keys: Vec<Key> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for look in keys.chunks(LOOK_MAX) {
            let (writes, bus) = (self.look(look), &self.bus);
            let results: Vec<_> = stream::iter(writes)
                .map(|write| async move {
                    let view = write.view.as_ref().map(|(_, bytes)| bytes.clone());
                    let written = bus.view_write(&write.key.to_string(), view, write.expected).await;
                    (write, written)
                })
                .buffer_unordered(IN_FLIGHT_MAX)
                .collect()
                .await;
            self.settle(results);
        }
        self.metrics.views_due.set(self.due.len() as i64);
    }

    /// What has to be written of some keys, all as of one moment. They are due no more.
    fn look(&mut self, keys: &[Key]) -> Vec<Write> {
        let show = |merge: &Merge| {
            let views = keys.iter().map(|key| (key.clone(), show(merge, key)));
            (merge.as_of(), views.collect::<Vec<_>>())
        };
        let (as_of, views) = self.merged.look(show);
        let (now, mut writes) = (Instant::now(), Vec::new());
        for (key, view) in views {
            self.due.remove(&key);
            let held = self.held.entry(key.clone()).or_insert(Held::NOTHING);
            if held.is_doubtful(AHEAD_PATIENCE, now) {
                held.judge(as_of.ledger_seq, now);
            }
            match held.decide(view.as_ref().map(|(digest, _)| *digest), as_of, now) {
                Decision::Leave => self.metrics.view(ViewResult::Unchanged),
                Decision::Wait => _ = self.due.insert(key, now + WRITE_INTERVAL),
                Decision::Put | Decision::Delete => {
                    let as_of = if key == Key::Hubs { NOTHING_READ } else { as_of };
                    let view = view.map(|(digest, bytes)| (Signed { digest, as_of }, bytes));
                    writes.push(Write { key, view, expected: held.revision });
                }
            }
        }
        writes
    }

    /// Remembers what the bucket holds now, and makes due again what failed.
    fn settle(&mut self, results: Vec<(Write, Written)>) {
        let (now, mut failure) = (Instant::now(), None);
        for (Write { key, view, .. }, written) in results {
            let held = self.held.entry(key.clone()).or_insert(Held::NOTHING);
            match written {
                Written::As(revision) => {
                    let result = if view.is_some() { ViewResult::Written } else { ViewResult::Deleted };
                    self.metrics.view(result);
                    *held = Held::written(revision, view.map(|(signed, _)| signed), now);
                }
                Written::Overtaken(there) => {
                    self.metrics.view(ViewResult::Overtaken);
                    *held = there;
                    self.due.insert(key, now);
                }
                Written::Failed(error) => {
                    self.metrics.view(ViewResult::Failed);
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

    /// The end: no hub is followed any more, and the bucket shall say what they said. What cannot be written now is written
    /// by the next life.
    async fn finish(&mut self) {
        self.take_changed();
        // How far hubs were read says itself that it is not of now.
        self.due.remove(&Key::Hubs);
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.due.values().max().copied() else { return };
            if !self.bus.link().borrow().is_up() {
                break;
            }
            sleep_until(next).await;
            self.write_due().await;
        }
        if !self.due.is_empty() {
            let views = self.due.len();
            tracing::warn!(views, "views are left as they are; the next start brings them up to date");
        }
    }
}

/// A document and what tells it from another; none where there is no such view.
fn show(merge: &Merge, key: &Key) -> Option<(Digest, Bytes)> {
    match key {
        Key::View(key) => merge.view(key).map(|(digest, view)| (digest, view.to_string().into())),
        Key::Hubs => {
            let hubs = merge.hub_list();
            Some((digest_of_hubs(&hubs), to_bytes(&hubs).into()))
        }
    }
}

/// What an entry of the bucket holds.
fn there(key: &Key, entry: &ViewEntry) -> Held {
    let value = entry.value.as_ref().filter(|_| *key == Key::Hubs);
    match value.and_then(|value| serde_json::from_slice::<HubList>(value).ok()) {
        // It has read nothing itself, and so is never ahead of anything.
        Some(hubs) => {
            Held::holding(entry.revision, Signed { digest: digest_of_hubs(&hubs), as_of: NOTHING_READ })
        }
        None => Held::read(Some(entry)),
    }
}

/// The digest of what is said of hubs, without when each was heard: that changes all the while and is no news.
fn digest_of_hubs(view: &HubList) -> Digest {
    let mut view = view.clone();
    view.hubs.iter_mut().for_each(|hub| hub.heard_at = None);
    content_digest(&view)
}
