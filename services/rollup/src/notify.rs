//! Notices to subscribers: who is to be told is looked at when something of what it watches has changed, at most once in
//! its window, and told only what is not what it was told last.
//!
//! What makes a notice true is its storage in NOTICES in place of the one before, which this process must know: so a
//! restart tells nothing twice, and of two rollups one tells. A process that dies before that has told nothing, and the next
//! one finds the same difference. Nothing is told until LEDGER was read to its end.

pub mod desk;
pub mod metrics;
pub mod ownership;
pub mod register;

mod compose;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{FutureExt, StreamExt, stream};
use muster_bus::{Bus, Delivery, NoticeEntry, NoticeRoom, PublishError, PublishErrorKind, Replay};
use muster_contract::SubscriptionName;
use muster_contract::notify::{EndReason, Notice, NoticeEvent, SubscriptionRecord};
use muster_contract::subjects::stream::LEDGER;
use muster_contract::view::AsOf;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::compose::{Found, Seen, ending, packed, see};
use self::metrics::{NoticeResult, NotifyMetrics};
use self::register::{Line, Register, Told};
use crate::present::{AHEAD_ASK, Origin, Present};

/// Entries of the stream taken at once.
const BATCH_MAX: usize = 256;
/// Least time between two looks at what has changed: many facts are one look.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);
/// Subscriptions looked at while the fold waits. As many notices are under way to the bus at once; the next look waits for
/// the slowest of them.
const LOOK_MAX: usize = 8;
/// How long it is waited for the stream's reader where it has to begin again and somebody is due all the time.
const MEND_TURN: Duration = Duration::from_secs(1);
/// How long the last notice of an ended subscription stays.
const ENDED_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Least and longest upper bound of the delay before the bus is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The subscriptions, shared with the desk where they are made.
pub type SharedRegister = Arc<Mutex<Register>>;

pub(crate) fn held(register: &SharedRegister) -> MutexGuard<'_, Register> {
    // It is a copy of what the stream holds: a panic elsewhere leaves it no worse than late.
    register.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The teller of notices.
#[derive(Debug)]
pub struct Notifier {
    bus: Bus,
    present: Arc<Present>,
    register: SharedRegister,
    metrics: NotifyMetrics,
    chance: Rng,
    retry: FullJitter,
    /// Up to where changes were looked at, and of which LEDGER.
    looked: Option<(Origin, u64)>,
    /// Subscriptions to look at.
    due: BTreeMap<SubscriptionName, Due>,
    /// Those of which somebody has told more than this process knows, for long.
    doubtful: Vec<SubscriptionName>,
}

/// When a subscription is to be looked at.
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
    /// Which LEDGER it is of.
    origin: Origin,
    /// The subscription's own revision, where it ends with this.
    ends: Option<u64>,
}

impl Notifier {
    /// A teller of what the present says.
    pub fn new(
        bus: Bus,
        present: Arc<Present>,
        register: SharedRegister,
        metrics: NotifyMetrics,
        chance: Rng,
    ) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let (looked, due, doubtful) = (None, BTreeMap::new(), Vec::new());
        Self { bus, present, register, metrics, chance, retry, looked, due, doubtful }
    }

    /// Tells until `stop`. What is due then is told by the next life.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.tell()).await;
    }

    async fn tell(&mut self) {
        let (mut read_to, mut caught_up) = (self.present.read_to(), self.present.caught_up());
        // The present outlives this task, so the wait cannot end for want of a sender.
        let _ = caught_up.wait_for(|caught_up| *caught_up).await;
        loop {
            let mut replay = self.open().await;
            loop {
                if let Err(error) = self.wait(&mut replay, &mut read_to, &mut caught_up).await {
                    tracing::info!(cause = chain(&error), "reading all subscriptions again");
                    held(&self.register).clear();
                    break;
                }
                self.tell_due().await;
            }
        }
    }

    /// Reads all subscriptions and what they were told.
    async fn open(&mut self) -> Replay {
        loop {
            match self.read_all().await {
                Ok(replay) => return replay,
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.chance);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot read the subscriptions yet");
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    }

    async fn read_all(&mut self) -> Result<Replay, muster_bus::ReadError> {
        let mut replay = self.bus.notices_all().await?;
        while let Some(batch) = replay.next_present(BATCH_MAX).await? {
            self.take(&batch);
        }
        self.retry.reset();
        held(&self.register).set_known();
        // What has changed while nobody looked is found by looking at everybody once.
        let names: Vec<_> = held(&self.register).iter().map(|(name, _)| name.clone()).collect();
        names.into_iter().for_each(|name| self.make_due(name, Duration::ZERO));
        Ok(replay)
    }

    fn take(&mut self, batch: &[Delivery]) {
        let ledger = self.origin();
        for entry in batch.iter().filter_map(NoticeEntry::of) {
            let (due, now) = (held(&self.register).take(&entry, ledger), Instant::now());
            if entry.room == NoticeRoom::Notice
                && let Ok(name) = entry.name.parse()
                && let Some(line) = held(&self.register).line_mut(&name)
            {
                // Also where another rollup told it: the window is the subscriber's.
                line.told_at = Some(now);
            }
            if let Some(name) = due {
                self.make_due(name, Duration::ZERO);
            }
        }
        self.metrics.subscriptions.set(held(&self.register).live() as i64);
    }

    fn origin(&self) -> Origin {
        self.present.look(|now| now.origin)
    }

    /// Takes in what the stream has for us already. Where somebody is due at every turn, nobody would read it otherwise.
    async fn take_ready(&mut self, replay: &mut Replay) -> Result<(), muster_bus::ReadError> {
        if !replay.is_whole() {
            // It mends itself only while it is waited for.
            if let Ok(batch) = timeout(MEND_TURN, replay.next_batch(BATCH_MAX)).await {
                self.take(&batch?);
            }
        } else if let Some(batch) = replay.next_batch(BATCH_MAX).now_or_never() {
            self.take(&batch?);
        }
        Ok(())
    }

    /// Waits until somebody may have to be told something. Cancel-safe.
    async fn wait(
        &mut self,
        replay: &mut Replay,
        read_to: &mut watch::Receiver<u64>,
        caught_up: &mut watch::Receiver<bool>,
    ) -> Result<(), muster_bus::ReadError> {
        loop {
            read_to.mark_unchanged();
            caught_up.mark_unchanged();
            self.take_touched();
            let next = self.due.values().map(|due| due.at).min();
            if next.is_some_and(|next| next <= Instant::now()) {
                return self.take_ready(replay).await;
            }
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                // These end with an error only when the present is gone, and this task holds it.
                tokio::select! {
                    _ = read_to.changed() => {}
                    _ = caught_up.changed() => {}
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            };
            tokio::select! {
                batch = replay.next_batch(BATCH_MAX) => self.take(&batch?),
                () = changed => {}
                () = timer => {}
            }
        }
    }

    /// Makes due whom the changes since the last look concern.
    fn take_touched(&mut self) {
        let looked = self.looked;
        let found = self.present.look(|now| {
            let at = (now.origin, now.fleet.as_of().ledger_seq);
            if !now.caught_up || looked == Some(at) {
                return None;
            }
            let same_ledger = looked.filter(|(origin, _)| *origin == now.origin);
            Some((at, same_ledger.map(|(_, seq)| now.fleet.touched_since(seq))))
        });
        let Some((at, touched)) = found else { return };
        self.looked = Some(at);
        let concerned: Vec<_> = held(&self.register)
            .iter()
            .filter_map(|(name, line)| Some((name, &line.record.as_ref()?.subscription)))
            .filter(|(_, about)| touched.as_ref().is_none_or(|touched| touched.concerns(about)))
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

    /// Looks at everybody who is due, and tells what is news.
    async fn tell_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .due
            .iter()
            .filter(|(_, due)| due.at <= now)
            .map(|(name, due)| (name.clone(), *due))
            .collect();
        for look in due.chunks(LOOK_MAX) {
            let (writes, bus) = (self.look(look), &self.bus);
            let results: Vec<_> = stream::iter(writes)
                .map(|write| async move {
                    let written = carry_out(bus, &write).await;
                    (write, written)
                })
                .buffer_unordered(LOOK_MAX)
                .collect()
                .await;
            for (write, written) in results {
                self.settle(write, written).await;
            }
        }
        self.judge_doubtful().await;
    }

    /// Finds out whether LEDGER goes as far at all as somebody has told of it.
    async fn judge_doubtful(&mut self) {
        let doubtful = std::mem::take(&mut self.doubtful);
        if doubtful.is_empty() {
            return;
        }
        // Where LEDGER cannot be seen now, they are left alone until it can.
        let Ok(ledger) = self.bus.stream_state(LEDGER).await else { return };
        let (mut register, now) = (held(&self.register), Instant::now());
        for name in doubtful {
            let Some(line) = register.line_mut(&name) else { continue };
            line.ahead_since = Some(now);
            if line.told.is_some_and(|told| told.ledger_seq > ledger.last_seq) {
                line.told_in = None;
            }
        }
    }

    /// What has to be written, all as of one moment.
    fn look(&mut self, due: &[(SubscriptionName, Due)]) -> Vec<Write> {
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
        let found = self.present.look(|now| {
            let see = |line: &Line| {
                let same_ledger = line.told_in == Some(now.origin);
                let of = |record: &SubscriptionRecord| {
                    see(&now.fleet, &record.subscription, line.told_in_this_life(), same_ledger)
                };
                line.record.as_ref().map(of)
            };
            let all = || lines.iter().map(|(.., line)| see(line)).collect::<Vec<_>>();
            now.caught_up.then(|| ((now.fleet.as_of(), now.origin), all()))
        });
        // Until LEDGER is read again, everybody stays due.
        let Some((at, found)) = found else {
            self.put_off(due, LOOK_INTERVAL);
            return Vec::new();
        };
        let pairs = lines.into_iter().zip(found);
        pairs
            .filter_map(|((name, held_back, line), found)| self.judge(name, &line, found, held_back, at))
            .collect()
    }

    /// What is to be written of one subscription, if it is news.
    fn judge(
        &mut self,
        name: &SubscriptionName,
        line: &Line,
        found: Option<Seen>,
        held_back: bool,
        (as_of, origin): (AsOf, Origin),
    ) -> Option<Write> {
        let (told, number) = (line.told, line.next_number());
        let on = line.record.as_ref().map(|record| record.subscription.on).unwrap_or_default();
        let (notice, ends) = match found.map(|seen| seen.found(on)) {
            None if line.is_over() => {
                self.due.remove(name);
                held(&self.register).forget(name);
                return None;
            }
            None => (ending(name, number, told, as_of, line.ended.unwrap_or(EndReason::Expired)), None),
            Some(Found::TooWide) => {
                (ending(name, number, told, as_of, EndReason::TooWide), Some(line.revision))
            }
            Some(Found::Told(findings)) => {
                if self.is_ahead(name, origin, findings.as_of) {
                    return None;
                }
                let told = line.told_in_this_life();
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
        Some(Write { name: name.clone(), notice, bytes, expected: line.told_revision, origin, ends })
    }

    /// Whether another rollup has told more than this one has read. It is left alone until this one has caught up, however
    /// long that takes, or LEDGER turns out not to go as far.
    fn is_ahead(&mut self, name: &SubscriptionName, origin: Origin, as_of: AsOf) -> bool {
        let mut register = held(&self.register);
        let Some(line) = register.line_mut(name) else { return false };
        let same_ledger = line.told_in == Some(origin);
        if !same_ledger || line.told.is_none_or(|told| told.ledger_seq <= as_of.ledger_seq) {
            line.ahead_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *line.ahead_since.get_or_insert(now);
        if now.duration_since(since) >= AHEAD_ASK {
            self.doubtful.push(name.clone());
        }
        self.due.insert(name.clone(), Due { at: now + RETRY_MIN, held_back: true });
        true
    }

    fn put_off(&mut self, due: &[(SubscriptionName, Due)], by: Duration) {
        let at = Instant::now() + by;
        for (name, due) in due {
            self.due.insert(name.clone(), Due { at, ..*due });
        }
    }

    /// Remembers what was told, and makes due again what was not.
    async fn settle(&mut self, write: Write, written: Result<u64, PublishError>) {
        let now = Instant::now();
        match written {
            Ok(revision) => {
                self.metrics.notice(NoticeResult::Told);
                self.retry.reset();
                let ended = write.notice.event == NoticeEvent::Ended;
                if let Some(line) = held(&self.register).line_mut(&write.name)
                    && revision > line.told_revision
                {
                    line.told = Some(Told::from(&write.notice));
                    line.told_in = Some(write.origin);
                    (line.told_revision, line.told_at) = (revision, Some(now));
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
                tracing::warn!(name = %write.name, error = chain(&error), ?retry_in, "cannot tell a subscriber");
                self.due.insert(write.name, Due { at: now + retry_in, held_back: true });
            }
        }
    }

    /// Reads what another rollup has told. True where that went well.
    async fn learn(&self, name: &SubscriptionName) -> bool {
        match self.bus.notice_last(name).await {
            Ok(Some(entry)) => {
                let ledger = self.origin();
                held(&self.register).take(&entry, ledger);
                true
            }
            Ok(None) => {
                // It was there and is gone: its time was over, or somebody emptied the stream.
                if let Some(line) = held(&self.register).line_mut(name) {
                    (line.told, line.told_revision) = (None, 0);
                }
                true
            }
            Err(_) => false,
        }
    }

    /// A subscription that ended by its last notice is taken out; a name of which that was told is forgotten.
    async fn close(&mut self, write: &Write) {
        if let Some(revision) = write.ends
            && let Err(error) = self.bus.subscription_end(&write.name, revision).await
        {
            tracing::warn!(name = %write.name, error = chain(&error), "a subscription could not be ended yet");
            self.due.insert(write.name.clone(), Due { at: Instant::now() + RETRY_MAX, held_back: true });
        }
        held(&self.register).forget(&write.name);
    }
}

async fn carry_out(bus: &Bus, write: &Write) -> Result<u64, PublishError> {
    let keep = (write.notice.event == NoticeEvent::Ended).then_some(ENDED_KEPT);
    bus.notice_put(&write.name, write.bytes.clone(), keep, write.expected).await
}
