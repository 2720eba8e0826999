//! Writes the views of all hubs into the bucket `views` at the top.
//!
//! Each changed view is written at a bounded rate, and the last write is the final state. A view with an
//! unchanged digest is not written. A view that no longer exists is deleted, also if an earlier process wrote
//! it.
//!
//! No sum is written before every hub was read once, because a view must not go back in time. Views of an
//! earlier process do not stay true for ever: once the lease has ended and some hub was never read, they are
//! rewritten to say that no device is heard and nothing is known.
//!
//! A second federation writes the same views. If its view has read further, this process leaves it alone for as
//! long as reading every hub anew takes; after that the view was wrong, or a hub was restored from a backup,
//! and it is overwritten. A federation that does not hear a hub which another one hears leaves the writing to that
//! one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{
    BUCKET_READ_INTERVAL, Bus, CachedEntry, EntryAction, EntryReader, ReadError, ViewEntry, ViewIdentity,
    ViewResult, ViewWrite, ViewWriter, WRITE_INTERVAL, WriteResult,
};
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::parts::{HUBS_KEY, HubList};
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, content_digest};
use muster_contract::{HubName, Timestamp};
use muster_domain::fold::{Merge, all_unheard};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::lease::hears_more;
use crate::merged::Merged;
use crate::metrics::Metrics;
use crate::timing::{AHEAD_PATIENCE, Timing};

/// Views built at one look: the hubs' followers wait meanwhile.
const LOOK_MAX: usize = 64;
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Time between two looks at a view that has read further.
const AHEAD_LOOK: Duration = Duration::from_secs(5);
/// Up to where a document has read that is of no fact.
const NOTHING_READ: AsOf = AsOf { ledger_seq: 0, at: Timestamp::UNIX_EPOCH };

const READER: EntryReader<Key> = EntryReader { key: Key::parse, entry: there };

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
pub(crate) struct Writer {
    writer: ViewWriter<Key>,
    merged: Arc<Merged>,
    metrics: Metrics,
    /// The state of the hubs at the last read.
    hubs: Vec<bool>,
    hubs_looked_at: Option<Instant>,
    timing: Timing,
    clock: Arc<dyn Clock>,
    /// When it was last checked whether another federation hears a hub that this one does not, and the result.
    stood_back: Option<(Instant, bool)>,
    /// The log already says that an earlier process's views are out of date.
    disowned: bool,
}

impl Writer {
    /// Creates a writer of the merged views.
    pub(crate) fn new(
        bus: Bus,
        merged: Arc<Merged>,
        timing: Timing,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        chance: Rng,
    ) -> Self {
        Self {
            writer: ViewWriter::new(bus, chance),
            merged,
            metrics,
            hubs: Vec::new(),
            hubs_looked_at: None,
            timing,
            clock,
            stood_back: None,
            disowned: false,
        }
    }

    /// Writes until `stop`, and then once more what is due.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut changes = self.merged.changes();
        if stop.run_until_cancelled(self.wait_until_whole()).await.is_none() {
            return;
        }
        let mut read_at = Instant::now() + BUCKET_READ_INTERVAL;
        loop {
            let wait = async {
                // First: where a view is due at every turn, the wait is over before the time is.
                let is_time = Instant::now() >= read_at;
                !is_time && timeout_at(read_at, self.wait(&mut changes)).await.is_ok()
            };
            match stop.run_until_cancelled(wait).await {
                None => break,
                // This is not cancelled midway: the outcome of a write under way would be unknown.
                Some(true) => self.write_due().await,
                Some(false) => {
                    if let Some(Err(error)) = stop.run_until_cancelled(self.writer.read_bucket(&READER)).await
                    {
                        tracing::debug!(error = chain(&error), "cannot reread the views; retrying later");
                    }
                    read_at = Instant::now() + BUCKET_READ_INTERVAL;
                }
            }
        }
        self.finish().await;
    }

    /// Waits until every hub was read, then reads the bucket.
    async fn wait_until_whole(&mut self) {
        let mut whole = self.merged.whole();
        // The merged state outlives this task, so the sender cannot be dropped during the wait.
        let mut patience = self.timing.lease;
        while timeout(patience, whole.wait_for(|whole| *whole)).await.is_err() {
            self.disown().await;
            patience = self.timing.sign_every;
        }
        self.writer.read_bucket_with_retry(&READER).await;
        // The hubs are named first; the fleet's view exists from the start, also for an empty fleet.
        let now = Instant::now();
        self.writer.due = [(Key::Hubs, now)].into();
        self.write_due().await;
        self.writer.due.extend(self.writer.cached.keys().map(|key| (key.clone(), now)));
        self.writer.due.insert(Key::View(ViewKey::Fleet), now);
    }

    /// Some hub was not read within the lease, so an earlier process's views are out of date and rewritten,
    /// unless another federation that hears the hub has written them since.
    async fn disown(&mut self) {
        self.writer.read_bucket_with_retry(&READER).await;
        self.writer.due = [(Key::Hubs, Instant::now())].into();
        if self.stands_back().await {
            return;
        }
        if !std::mem::replace(&mut self.disowned, true) {
            let unread = self.merged.read_merge(Merge::unread);
            let names = unread.iter().map(HubName::as_str).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                hubs = names,
                "cannot read all hubs within the lease: the views in the bucket are out of date"
            );
        }
        self.write_due().await;
        if let Err(error) = self.disown_views().await {
            tracing::warn!(error = chain(&error), "cannot read the views; leaving them unchanged");
        }
    }

    async fn disown_views(&mut self) -> Result<(), ReadError> {
        let mut watch = self.writer.bus().view_watch(">").await?;
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                let (Some(Key::View(key)), Some(value)) = (Key::parse(&entry.key), &entry.value) else {
                    continue;
                };
                let Some((digest, view)) = all_unheard(&key, value) else { continue };
                if serde_json::from_slice::<ViewIdentity>(value).is_ok_and(|there| there.digest == digest) {
                    continue;
                }
                let written = self
                    .writer
                    .bus()
                    .view_write(&entry.key, Some(view.to_string().into()), entry.revision, 0)
                    .await;
                match written {
                    WriteResult::Failed(error) => {
                        tracing::warn!(view = entry.key, error = chain(&error), "cannot write a view");
                        // The next turn continues; views that are up to date already are skipped.
                        return Ok(());
                    }
                    WriteResult::As(_) => self.metrics.queries.view(ViewResult::Written),
                    WriteResult::Overtaken(_) => self.metrics.queries.view(ViewResult::Overtaken),
                }
            }
        }
        Ok(())
    }

    /// Whether another federation has heard, within the lease, of a hub that this one does not hear: then its views say more.
    /// Looked up now and then only.
    async fn stands_back(&mut self) -> bool {
        let own = self.merged.read_merge(Merge::hub_list);
        if own.hubs.iter().all(|hub| hub.heard) {
            self.stood_back = None;
            return false;
        }
        let now = Instant::now();
        if let Some((at, answer)) = self.stood_back
            && now < at + self.timing.sign_every / 2
        {
            return answer;
        }
        let answer = match self.writer.bus().view_get(HUBS_KEY).await {
            Ok(entry) => entry.and_then(|entry| entry.value).is_some_and(|value| {
                let theirs = serde_json::from_slice::<HubList>(&value);
                theirs.is_ok_and(|theirs| hears_more(&theirs, &own, self.timing.lease, self.clock.now()))
            }),
            // Asked again in a moment; who cannot see the bucket cannot write to it either.
            Err(_) => true,
        };
        if answer {
            self.metrics.stood_back.inc();
        }
        self.stood_back = Some((now, answer));
        answer
    }

    /// Waits until a key is due. Cancel-safe.
    async fn wait(&mut self, changes: &mut watch::Receiver<u64>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            changes.mark_unchanged();
            self.collect_changed();
            let next = self.writer.due.values().min().copied();
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
                // Ends with an error only when the merged views are dropped, and this task holds them.
                _ = changes.changed() => {}
                () = timer => {}
            }
        }
    }

    /// Collects the views that may have changed, and when each may be written.
    fn collect_changed(&mut self) {
        let now = Instant::now();
        self.writer.changed(self.merged.drain_changed().into_iter().map(Key::View));
        self.schedule_hubs(now);
        self.metrics.queries.views_due.set(self.writer.due.len() as i64);
    }

    /// Schedules the list of hubs: at once if one became silent or is back, else at an interval. Its times
    /// show readers and other federations that this federation is alive.
    fn schedule_hubs(&mut self, now: Instant) {
        let view = self.merged.read_merge(Merge::hub_list);
        let hubs: Vec<bool> = view.hubs.iter().map(|hub| hub.heard).collect();
        let interval = if hubs == self.hubs { self.timing.sign_every } else { WRITE_INTERVAL };
        self.hubs = hubs;
        // The time counts from the last read, not from the last write: an unchanged view is not due again at
        // once.
        let allowed = self.hubs_looked_at.map_or(now, |at| now.max(at + interval));
        self.writer.due.entry(Key::Hubs).and_modify(|at| *at = (*at).min(allowed)).or_insert(allowed);
    }

    /// Writes what is due now, look by look.
    async fn write_due(&mut self) {
        let now = Instant::now();
        if self.stands_back().await {
            self.hubs_looked_at = Some(now);
            self.writer.due.values_mut().for_each(|at| *at = (*at).max(now + self.timing.sign_every / 2));
            return;
        }
        for look in self.writer.due_now().chunks(LOOK_MAX) {
            let (writes, metrics) = (self.collect_writes(look), &self.metrics);
            self.writer.write(writes, |outcome| metrics.queries.view(outcome.into())).await;
        }
        self.metrics.queries.views_due.set(self.writer.due.len() as i64);
    }

    /// Collects the writes for some keys, all as of one moment. The keys are no longer due.
    fn collect_writes(&mut self, keys: &[Key]) -> Vec<ViewWrite<Key>> {
        let show = |merge: &Merge| {
            let views = keys.iter().map(|key| (key.clone(), show(merge, key)));
            (merge.as_of(), views.collect::<Vec<_>>())
        };
        let (as_of, views) = self.merged.read_merge(show);
        let (now, mut writes) = (Instant::now(), Vec::new());
        for (key, view) in views {
            self.writer.due.remove(&key);
            if key == Key::Hubs {
                self.hubs_looked_at = Some(now);
            }
            let held = self.writer.cached(&key);
            if held.is_check_due(AHEAD_PATIENCE, now) {
                held.check_end(as_of.ledger_seq, now);
            }
            match held.decide(view.as_ref().map(|(digest, _)| *digest), as_of, now) {
                EntryAction::Leave => self.metrics.queries.view(ViewResult::Unchanged),
                EntryAction::Wait if held.written_at.is_none() => {
                    _ = self.writer.due.insert(key, now + AHEAD_LOOK);
                }
                // An own view: a hub was set back or removed, so the sum became smaller.
                EntryAction::Wait | EntryAction::Put | EntryAction::Delete => {
                    let as_of = if key == Key::Hubs { NOTHING_READ } else { as_of };
                    let view = view
                        .map(|(digest, bytes)| (ViewIdentity { digest, as_of, valid_until: None }, bytes));
                    writes.push(ViewWrite { key, view, expected: held.revision, read_to: 0 });
                }
            }
        }
        writes
    }

    /// Final write: no hub is followed any more, and the bucket receives the last state. The next process
    /// writes what fails now.
    async fn finish(&mut self) {
        self.collect_changed();
        // A view's position itself shows that it is not current.
        self.writer.due.remove(&Key::Hubs);
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.writer.due.values().max().copied() else { return };
            if !self.writer.bus().link().borrow().is_up() {
                break;
            }
            if self.stands_back().await {
                return;
            }
            sleep_until(next).await;
            self.write_due().await;
        }
        if !self.writer.due.is_empty() {
            let views = self.writer.due.len();
            tracing::warn!(views, "cannot write the last views; the next start updates them");
        }
    }
}

/// A document and its digest; none where there is no such view.
fn show(merge: &Merge, key: &Key) -> Option<(Digest, Bytes)> {
    match key {
        Key::View(key) => merge.view(key).map(|(digest, view)| (digest, view.to_string().into())),
        Key::Hubs => {
            let hubs = merge.hub_list();
            Some((content_digest(&hubs), to_bytes(&hubs).into()))
        }
    }
}

/// The content of a bucket entry.
fn there(key: &Key, entry: &ViewEntry) -> CachedEntry {
    let value = entry.value.as_ref().filter(|_| *key == Key::Hubs);
    match value.and_then(|value| serde_json::from_slice::<HubList>(value).ok()) {
        // It has read nothing itself, and so is never ahead of anything.
        Some(hubs) => {
            let (digest, as_of) = (content_digest(&hubs), NOTHING_READ);
            CachedEntry::of_view(entry.revision, ViewIdentity { digest, as_of, valid_until: None })
        }
        None => CachedEntry::read(Some(entry)),
    }
}
