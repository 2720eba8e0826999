//! Sends notices to subscribers. When something that a subscription watches changes, at most once in its
//! window, the notifier compares its state with its last notice and publishes a notice if they differ.
//!
//! A notice takes effect when NOTICES stores it in place of the previous one, which this process must know: so
//! a restart repeats no notice, and of two processes one publishes. A process that dies earlier has published
//! nothing, and the next one finds the same difference. Nothing is published until the source has caught up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{FutureExt, StreamExt, stream};
use muster_bus::{Bus, Delivery, NoticeEntry, NoticeKind, PublishError, PublishErrorKind, Replay};
use muster_contract::SubscriptionName;
use muster_contract::decode::to_bytes;
use muster_contract::notify::{EndReason, Notice, NoticeEvent, SubscriptionRecord};
use muster_contract::view::AsOf;
use muster_service::backoff::FullJitter;
use muster_service::clock::{Clock as _, SystemClock};
use muster_service::error::chain;
use muster_service::retry::{RetryPolicy, retry_with};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::compose::{FoundNotice, SubscriptionRead, ending, packed};
use crate::metrics::{NoticeResult, NotifyMetrics};
use crate::origin::Origin;
use crate::register::{LastNotice, Line, SharedRegister, held};
use crate::source::NoticeSource;
use crate::webhooks;

/// Entries of the stream taken at once.
const BATCH_MAX: usize = 256;
/// Least time between two looks at what has changed: many facts are one look.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);
/// Subscriptions evaluated while the fold waits. As many notices are sent to the bus at once; the next batch
/// waits for the slowest of them.
const LOOK_MAX: usize = 8;
/// How long to wait for the stream's reader when it has to restart and some subscription is always due.
const MEND_TURN: Duration = Duration::from_secs(1);
/// How long a notice from a process that has read further is left alone before LEDGER's end is read, and the interval
/// after that. If LEDGER ends before it, the notice belongs to another LEDGER.
const AHEAD_ASK: Duration = Duration::from_secs(5);
/// How long the last notice of an ended subscription stays.
const ENDED_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Delays before the bus is tried again.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(200), max: Duration::from_secs(5) };

/// Writes notices, and forgets subscriptions that have ended.
#[derive(Debug)]
pub struct Notifier<S> {
    bus: Bus,
    source: Arc<S>,
    register: SharedRegister,
    metrics: NotifyMetrics,
    chance: Rng,
    retry: FullJitter,
    /// The position up to which changes were evaluated, and its LEDGER.
    looked: Option<(Origin, u64)>,
    /// Subscriptions to evaluate.
    due: BTreeMap<SubscriptionName, Due>,
    /// Subscriptions for which another process has long published more than this process has read.
    doubtful: Vec<SubscriptionName>,
}

/// When a subscription is due.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: Instant,
    /// Its window is not over.
    held_back: bool,
}

/// A notice that is to be written.
struct Write {
    name: SubscriptionName,
    notice: Notice,
    bytes: Bytes,
    expected: u64,
    /// The LEDGER of the notice.
    origin: Origin,
    /// The revision of the subscription itself, if the notice ends it.
    ends: Option<u64>,
}

impl<S: NoticeSource> Notifier<S> {
    /// Creates a notifier for what a source shows.
    pub fn new(
        bus: Bus,
        source: Arc<S>,
        register: SharedRegister,
        metrics: NotifyMetrics,
        chance: Rng,
    ) -> Self {
        let retry = FullJitter::new(RETRY.min, RETRY.max);
        let (looked, due, doubtful) = (None, BTreeMap::new(), Vec::new());
        Self { bus, source, register, metrics, chance, retry, looked, due, doubtful }
    }

    /// Publishes notices until `stop`. The next process publishes those that are due then.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.publish_notices()).await;
    }

    async fn publish_notices(&mut self) {
        let mut changes = self.source.changes();
        self.source.caught_up().await;
        loop {
            let mut replay = self.open().await;
            loop {
                if let Err(error) = self.wait(&mut replay, &mut changes).await {
                    tracing::info!(cause = chain(&error), "rereading all subscriptions");
                    held(&self.register).clear();
                    break;
                }
                self.publish_due().await;
            }
        }
    }

    /// Reads all subscriptions and their last notices.
    async fn open(&mut self) -> Replay {
        let failure = "cannot read the subscriptions yet";
        retry_with(RETRY, failure, self, |notifier, _| notifier.read_all().boxed()).await
    }

    async fn read_all(&mut self) -> Result<Replay, muster_bus::ReadError> {
        let mut replay = self.bus.notices_all().await?;
        while let Some(batch) = replay.next_present(BATCH_MAX).await? {
            self.apply_entries(&batch);
        }
        self.retry.reset();
        held(&self.register).set_known();
        // Changes that were missed are found by evaluating every subscription once.
        let names: Vec<_> = held(&self.register).iter().map(|(name, _)| name.clone()).collect();
        names.into_iter().for_each(|name| self.make_due(name, Duration::ZERO));
        Ok(replay)
    }

    fn apply_entries(&mut self, batch: &[Delivery]) {
        let ledger = self.origin();
        for entry in batch.iter().filter_map(NoticeEntry::of) {
            let (due, now) = (held(&self.register).apply(&entry, ledger), Instant::now());
            if entry.kind == NoticeKind::Notice
                && let Ok(name) = entry.name.parse()
                && let Some(line) = held(&self.register).line_mut(&name)
            {
                // Also for another process's notice: the window belongs to the subscriber.
                line.told_at = Some(now);
            }
            if let Some(name) = due {
                self.make_due(name, Duration::ZERO);
            }
        }
        let register = held(&self.register);
        self.metrics.subscriptions.set(register.live() as i64);
        self.metrics.disabled_webhooks.set(register.disabled_webhooks() as i64);
    }

    fn origin(&self) -> Origin {
        self.source.origin()
    }

    /// Applies the stream's pending entries. If some subscription is due at every turn, the stream would not be
    /// read otherwise.
    async fn apply_pending(&mut self, replay: &mut Replay) -> Result<(), muster_bus::ReadError> {
        if !replay.is_open() {
            // The reader reconnects only while it is awaited.
            if let Ok(batch) = timeout(MEND_TURN, replay.next_batch(BATCH_MAX)).await {
                self.apply_entries(&batch?);
            }
        } else if let Some(batch) = replay.next_batch(BATCH_MAX).now_or_never() {
            self.apply_entries(&batch?);
        }
        Ok(())
    }

    /// Waits until some subscription may be due. Cancel-safe.
    async fn wait(
        &mut self,
        replay: &mut Replay,
        changes: &mut watch::Receiver<u64>,
    ) -> Result<(), muster_bus::ReadError> {
        loop {
            changes.mark_unchanged();
            self.mark_changed();
            let next = self.due.values().map(|due| due.at).min();
            if next.is_some_and(|next| next <= Instant::now()) {
                return self.apply_pending(replay).await;
            }
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                // Fails only when the source is gone, and this task holds it.
                let _ = changes.changed().await;
                tokio::time::sleep(LOOK_INTERVAL).await;
            };
            tokio::select! {
                batch = replay.next_batch(BATCH_MAX) => self.apply_entries(&batch?),
                () = changed => {}
                () = timer => {}
            }
        }
    }

    /// Marks as due the subscriptions that changes since the last evaluation concern.
    fn mark_changed(&mut self) {
        let Some(evaluation) = self.source.changed_since(self.looked) else { return };
        self.looked = Some(evaluation.at);
        let changed = evaluation.changed;
        let concerned: Vec<_> = held(&self.register)
            .iter()
            .filter_map(|(name, line)| Some((name, &line.record.as_ref()?.subscription)))
            .filter(|(_, about)| changed.as_ref().is_none_or(|changed| changed.concerns(about)))
            .map(|(name, about)| (name.clone(), Duration::from_millis(about.window_ms)))
            .collect();
        concerned.into_iter().for_each(|(name, window)| self.make_due(name, window));
    }

    /// Makes a subscription due, as soon as its window allows.
    fn make_due(&mut self, name: SubscriptionName, window: Duration) {
        let now = Instant::now();
        let told_at = held(&self.register).line(&name).and_then(|line| line.told_at);
        let at = told_at.map_or(now, |told_at| now.max(told_at + window));
        let due = self.due.entry(name).or_insert(Due { at, held_back: at > now });
        due.at = due.at.min(at);
    }

    /// Evaluates all due subscriptions and publishes their notices.
    async fn publish_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .due
            .iter()
            .filter(|(_, due)| due.at <= now)
            .map(|(name, due)| (name.clone(), *due))
            .collect();
        for look in due.chunks(LOOK_MAX) {
            let (writes, bus) = (self.collect_notices(look).await, &self.bus);
            let results: Vec<_> = stream::iter(writes)
                .map(|write| async move {
                    let written = write_notice(bus, &write).await;
                    (write, written)
                })
                .buffer_unordered(LOOK_MAX)
                .collect()
                .await;
            for (write, written) in results {
                self.record_result(write, written).await;
            }
        }
        self.judge_doubtful().await;
    }

    /// Checks whether LEDGER reaches the position that another process's notice names.
    async fn judge_doubtful(&mut self) {
        let doubtful = std::mem::take(&mut self.doubtful);
        if doubtful.is_empty() {
            return;
        }
        // While LEDGER's end cannot be read, these subscriptions wait.
        let Some(last_seq) = self.source.last_seq().await else { return };
        let (mut register, now) = (held(&self.register), Instant::now());
        for name in doubtful {
            let Some(line) = register.line_mut(&name) else { continue };
            line.ahead_since = Some(now);
            if line.last.is_some_and(|told| told.ledger_seq > last_seq) {
                line.notice_ledger = None;
            }
        }
    }

    /// Collects the notices to write, all as of one moment.
    async fn collect_notices(&mut self, due: &[(SubscriptionName, Due)]) -> Vec<Write> {
        let lines: Vec<_> = due
            .iter()
            .filter_map(|(name, due)| {
                let line = held(&self.register).line(name).cloned();
                if line.is_none() {
                    self.due.remove(name);
                }
                Some((name, due.held_back, line?))
            })
            .collect();
        let alone: Vec<Line> = lines.iter().map(|(.., line)| line.clone()).collect();
        let reading = self.source.read(&alone).await;
        // Until LEDGER is read again, every subscription stays due.
        let Some(reading) = reading else {
            self.postpone(due, LOOK_INTERVAL);
            return Vec::new();
        };
        let (as_of, origin) = (reading.as_of, reading.origin);
        let pairs = lines.into_iter().zip(reading.found);
        pairs
            .filter_map(|((name, held_back, line), found)| {
                self.judge(name, &line, found, held_back, as_of, origin)
            })
            .collect()
    }

    /// Composes the notice of one subscription, if it is news.
    fn judge(
        &mut self,
        name: &SubscriptionName,
        line: &Line,
        found: Option<SubscriptionRead>,
        held_back: bool,
        as_of: AsOf,
        origin: Origin,
    ) -> Option<Write> {
        let (told, number) = (line.last, line.next_number());
        let on = line.record.as_ref().map(|record| record.subscription.on).unwrap_or_default();
        let (notice, ends) = match found.map(|seen| seen.found(on)) {
            None if line.is_over() => {
                self.due.remove(name);
                held(&self.register).forget(name);
                return None;
            }
            None => (ending(name, number, told, as_of, line.ended.unwrap_or(EndReason::Expired)), None),
            Some(FoundNotice::NotNow) => {
                self.postpone(&[(name.clone(), Due { at: Instant::now(), held_back })], RETRY.min);
                return None;
            }
            Some(FoundNotice::TooWide) if line.record.as_ref().is_some_and(webhooks::is_disabled) => {
                self.due.remove(name);
                return None;
            }
            Some(FoundNotice::TooWide) => {
                (ending(name, number, told, as_of, EndReason::TooWide), Some(line.revision))
            }
            Some(FoundNotice::Content(findings)) => {
                if self.is_ahead(name, origin, findings.as_of) {
                    return None;
                }
                let told = line.last_notice();
                if !findings.is_news(told) {
                    self.metrics.notice(NoticeResult::Unchanged);
                    self.due.remove(name);
                    return None;
                }
                (findings.notice(name, number, told, held_back), None)
            }
        };
        self.due.remove(name);
        let (notice, bytes) = packed(notice);
        Some(Write { name: name.clone(), notice, bytes, expected: line.notice_revision, origin, ends })
    }

    /// Whether another process has published more than this one has read. The subscription waits until this
    /// one has caught up, however long that takes, or LEDGER turns out to end before that.
    fn is_ahead(&mut self, name: &SubscriptionName, origin: Origin, as_of: AsOf) -> bool {
        let mut register = held(&self.register);
        let Some(line) = register.line_mut(name) else { return false };
        let same_ledger = line.notice_ledger == Some(origin);
        if !same_ledger || line.last.is_none_or(|told| told.ledger_seq <= as_of.ledger_seq) {
            line.ahead_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *line.ahead_since.get_or_insert(now);
        if now.duration_since(since) >= AHEAD_ASK {
            self.doubtful.push(name.clone());
        }
        self.due.insert(name.clone(), Due { at: now + RETRY.min, held_back: true });
        true
    }

    fn postpone(&mut self, due: &[(SubscriptionName, Due)], by: Duration) {
        let at = Instant::now() + by;
        for (name, due) in due {
            self.due.insert(name.clone(), Due { at, ..*due });
        }
    }

    /// Records the published notices, and makes the failed ones due again.
    async fn record_result(&mut self, write: Write, written: Result<u64, PublishError>) {
        let now = Instant::now();
        match written {
            Ok(revision) => {
                self.metrics.notice(NoticeResult::Published);
                self.retry.reset();
                let ended = write.notice.event == NoticeEvent::Ended;
                if let Some(line) = held(&self.register).line_mut(&write.name)
                    && revision > line.notice_revision
                {
                    line.last = Some(LastNotice::from(&write.notice));
                    line.notice_hubs = write.notice.hubs.clone();
                    line.notice_ledger = Some(write.origin);
                    (line.notice_revision, line.told_at) = (revision, Some(now));
                    line.update_waiting(SystemClock.now());
                }
                if ended {
                    self.close(&write).await;
                }
            }
            Err(error) => {
                let result = match error.kind {
                    PublishErrorKind::Conflict => NoticeResult::Overtaken,
                    _ => NoticeResult::Failed,
                };
                self.metrics.notice(result);
                if result == NoticeResult::Overtaken && self.learn(&write.name).await {
                    self.due.insert(write.name, Due { at: now, held_back: true });
                    return;
                }
                let retry_in = self.retry.next(&mut self.chance);
                tracing::warn!(name = %write.name, error = chain(&error), ?retry_in, "cannot publish a notice");
                self.due.insert(write.name, Due { at: now + retry_in, held_back: true });
            }
        }
    }

    /// Reads another process's notice. True on success.
    async fn learn(&self, name: &SubscriptionName) -> bool {
        match self.bus.notice_last(name).await {
            Ok(Some(entry)) => {
                let ledger = self.origin();
                held(&self.register).apply(&entry, ledger);
                true
            }
            Ok(None) => {
                // The entry has gone: it expired, or the stream was purged.
                if let Some(line) = held(&self.register).line_mut(name) {
                    (line.last, line.notice_revision) = (None, 0);
                    line.notice_hubs.clear();
                    line.update_waiting(SystemClock.now());
                }
                true
            }
            Err(_) => false,
        }
    }

    /// Removes a subscription that its last notice ended, and disables a webhook; a name whose end was published is forgotten.
    async fn close(&mut self, write: &Write) {
        if let Some(revision) = write.ends {
            let record = held(&self.register).line(&write.name).and_then(|line| line.record.clone());
            let webhook = record.and_then(|record| webhooks::too_wide(record, SystemClock.now()));
            let is_webhook = webhook.is_some();
            if let Err(error) = self.end(&write.name, webhook, revision).await {
                tracing::warn!(name = %write.name, error = chain(&error), "cannot end a subscription yet");
                self.due.insert(write.name.clone(), Due { at: Instant::now() + RETRY.max, held_back: true });
            }
            if is_webhook {
                return;
            }
        }
        held(&self.register).forget(&write.name);
    }

    /// Ends a subscription, or stores a webhook that is disabled: the list says why it delivers nothing.
    async fn end(
        &self,
        name: &SubscriptionName,
        webhook: Option<(SubscriptionRecord, Duration)>,
        revision: u64,
    ) -> Result<u64, PublishError> {
        match webhook {
            Some((record, kept)) => {
                self.bus.subscription_put(name, to_bytes(&record).into(), kept, revision).await
            }
            None => self.bus.subscription_end(name, revision).await,
        }
    }
}

async fn write_notice(bus: &Bus, write: &Write) -> Result<u64, PublishError> {
    let keep = (write.notice.event == NoticeEvent::Ended).then_some(ENDED_KEPT);
    bus.notice_put(&write.name, write.bytes.clone(), keep, write.expected).await
}
