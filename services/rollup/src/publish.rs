//! Publishes views into the bucket `views`: each changed view is written at a bounded rate, and the last write
//! is the final state. A view with an unchanged digest is not written. A view that no longer exists is deleted,
//! also if an earlier process wrote it.
//!
//! The writer watches the bucket ([`BucketWatch`]): it removes foreign keys, overwrites foreign values with its
//! own view, both at once, and reports the incident. It leaves another rollup's views alone: they are right as
//! of their position.
//!
//! A view states until when it is valid and is renewed before that. The rollup takes the validity back from all views while
//! LEDGER stores no fact about the hub's hearing ([`renew`]).
//!
//! Views of deployments that no desired state names are written last, with spare capacity ([`spare`]).
//!
//! Nothing is written until LEDGER is read to its end: a view must not go back in time. [`CachedEntry`] tracks the
//! bucket's content, [`ViewWriter`] writes it.

mod inspect;
pub mod renew;
mod rest;
mod seen;
mod spare;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{
    BUCKET_READ_INTERVAL, Bus, CachedEntry, EntryAction, EntryReader, IncidentReporter, ViewIdentity,
    ViewResult, ViewWrite, ViewWriter, WRITE_INTERVAL,
};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::incident::ForeignView;
use muster_contract::subjects::ViewKey;
use muster_contract::subjects::stream::LEDGER;
use muster_contract::validity::valid_to;
use muster_contract::view::AsOf;
use muster_service::error::chain;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::renew::VALID_MIN;
use self::rest::Rest;
use self::seen::{ViewRead, show};
use self::spare::{SpareViews, comes_first};
use crate::bucket::{BucketEvent, BucketWatch};
use crate::lag::LagState;
use crate::metrics::Metrics;
use crate::projection::{AHEAD_ASK, Origin, Projection, ProjectionState};

/// Views built at one read of the projection: the fold waits meanwhile.
const LOOK_MAX: usize = 64;
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;

/// Time between two checks for views to renew.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// The bucket holds views, and what people have defined, which is not the rollup's.
const READER: EntryReader<ViewKey> =
    EntryReader { key: ViewKey::parse, entry: |_, entry| CachedEntry::read(Some(entry)) };

/// The writer of views.
#[derive(Debug)]
pub struct Publisher {
    writer: ViewWriter<ViewKey>,
    projection: Arc<Projection>,
    metrics: Metrics,
    origin: Option<Origin>,
    /// Whether it was known which views are defined.
    knew_definitions: bool,
    read_every: Duration,
    /// Nothing is written before its end.
    rest: Rest,
    incidents: IncidentReporter,
    /// Observations of the bucket.
    bucket: Option<mpsc::Receiver<BucketEvent>>,
    /// The part of them to apply.
    seen: Option<BucketEvent>,
    /// The last turn was a write. What was seen of the bucket then comes first, so that neither holds up the other where a view is
    /// due at every turn.
    has_written: bool,
    /// LEDGER's last sequence, as far as it was asked for.
    ledger_end: u64,
    read_at: Instant,
    /// Due views that wait for those of the writer.
    spare: SpareViews,
    /// Up to when views may be vouched for; they say no time where this is not known.
    lag: Option<Arc<LagState>>,
    /// The shortest validity of a view.
    validity: Duration,
    /// When the next check for views to renew is due.
    renew_at: Instant,
    /// Due views that are written again also where they have not changed.
    renewing: BTreeSet<ViewKey>,
}

impl Publisher {
    /// Creates a writer of the projection's views.
    pub fn new(
        bus: Bus,
        projection: Arc<Projection>,
        metrics: Metrics,
        incidents: IncidentReporter,
        chance: Rng,
    ) -> Self {
        let writer = ViewWriter::new(bus, chance);
        Self {
            writer,
            projection,
            metrics,
            origin: None,
            knew_definitions: false,
            read_every: BUCKET_READ_INTERVAL,
            rest: Rest::new(Instant::now()),
            incidents,
            bucket: None,
            seen: None,
            has_written: false,
            ledger_end: 0,
            read_at: Instant::now(),
            spare: SpareViews::new(Instant::now()),
            lag: None,
            validity: VALID_MIN,
            renew_at: Instant::now(),
            renewing: BTreeSet::new(),
        }
    }

    /// Adds the lag state, from which each view gets its validity: this long, or longer where there are many views.
    pub(crate) fn vouching(self, lag: Arc<LagState>, validity: Duration) -> Self {
        Self { lag: Some(lag), validity, ..self }
    }

    /// Sets the interval at which the bucket is read again.
    pub fn learning_every(self, read_every: Duration) -> Self {
        Self { read_every, ..self }
    }

    /// Writes until `stop`, and then once more what is due.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut read_to, mut caught_up) = (self.projection.read_to(), self.projection.caught_up());
        if stop.run_until_cancelled(self.wait_until_caught_up()).await.is_none() {
            return;
        }
        let (watch, events) = BucketWatch::new(self.writer.bus().clone());
        let watching = tokio::spawn(watch.run(stop.clone()));
        self.bucket = Some(events);
        self.read_at = Instant::now() + self.read_every;
        loop {
            let wait = async {
                // First: where a view is due at every turn, the wait is over before the time is.
                let (is_time, read_at) = (Instant::now() >= self.read_at, self.read_at);
                !is_time && timeout_at(read_at, self.wait(&mut read_to, &mut caught_up)).await.is_ok()
            };
            match stop.run_until_cancelled(wait).await {
                None => break,
                // This is not cancelled midway: the outcome of a write under way would be unknown.
                Some(true) => match self.seen.take() {
                    Some(event) => self.inspect(event).await,
                    None => {
                        self.write_due().await;
                        self.has_written = true;
                    }
                },
                Some(false) => {
                    if let Some(Err(error)) = stop.run_until_cancelled(self.writer.read_bucket(&READER)).await
                    {
                        tracing::debug!(error = chain(&error), "cannot reread the views; retrying later");
                    }
                    self.set_spare_aside(|_| true);
                    self.read_at = Instant::now() + self.read_every;
                }
            }
        }
        self.finish().await;
        watching.abort();
    }

    /// Waits until the projection has caught up with LEDGER, then reads the bucket.
    async fn wait_until_caught_up(&mut self) {
        let mut caught_up = self.projection.caught_up();
        // The projection outlives this task, so its sender cannot be dropped during the wait.
        let _ = caught_up.wait_for(|caught_up| *caught_up).await;
        // The fleet's view is there from the start, also of an empty fleet.
        self.writer.due.insert(ViewKey::Fleet, Instant::now());
        self.writer.read_bucket_with_retry(&READER).await;
        self.set_spare_aside(|_| true);
    }

    /// Waits until a view is due, or something of the bucket was seen. Cancel-safe.
    async fn wait(&mut self, read_to: &mut watch::Receiver<u64>, caught_up: &mut watch::Receiver<bool>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            read_to.mark_unchanged();
            let is_caught_up = *caught_up.borrow_and_update();
            self.collect_changed();
            self.renew();
            let first = self.writer.due.values().min().map(|next| self.rest.until().max(*next));
            let next = first.into_iter().chain(self.spare.next()).min().filter(|_| is_caught_up);
            let renew_at = self.renew_at;
            if next.is_some_and(|next| next <= Instant::now()) {
                let bucket = self.bucket.as_mut().filter(|_| std::mem::take(&mut self.has_written));
                self.seen = bucket.and_then(|bucket| bucket.try_recv().ok());
                return;
            }
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            let bucket = async {
                match &mut self.bucket {
                    Some(bucket) => bucket.recv().await,
                    None => None,
                }
            };
            tokio::select! {
                // These fail only when the projection is gone, and this task holds it.
                _ = read_to.changed() => {}
                _ = caught_up.changed() => {}
                Some(event) = bucket => {
                    self.seen = Some(event);
                    return;
                }
                () = timer => {}
                () = tokio::time::sleep_until(renew_at) => {}
            }
        }
    }

    /// Makes due, once a second, the views whose validity is half over while this rollup does not lag, and the views that are
    /// still valid while LEDGER stores no fact about the hub's hearing.
    fn renew(&mut self) {
        let now = Instant::now();
        if now < self.renew_at {
            return;
        }
        self.renew_at = now + RENEW_EVERY;
        let Some(lag) = &self.lag else { return };
        let Some(vouched_at) = lag.vouched_at() else { return };
        let views = &self.writer.cached;
        let keys = if lag.is_unrecorded() {
            renew::to_end(views, vouched_at)
        } else if lag.now().is_none() {
            renew::due(views, vouched_at, self.validity)
        } else {
            return;
        };
        for key in keys {
            self.writer.due.entry(key.clone()).or_insert(now);
            self.renewing.insert(key);
        }
    }

    /// Collects the views that may have changed, and when each may be written.
    fn collect_changed(&mut self) {
        let look = |now: &mut ProjectionState| {
            (now.origin, now.fleet.knows_definitions(), now.fleet.drain_changed_views())
        };
        let (origin, knows_definitions, changed) = self.projection.update_marks(look);
        let mut changed: BTreeSet<ViewKey> = changed;
        if changed.is_empty() && self.origin == Some(origin) && self.knew_definitions == knows_definitions {
            return;
        }
        if self.origin.replace(origin) != Some(origin) {
            // Another LEDGER: every view written before may be obsolete.
            changed.extend(self.writer.cached.keys().cloned());
        }
        if !std::mem::replace(&mut self.knew_definitions, knows_definitions) && knows_definitions {
            // Only now it is known which views are no longer defined.
            changed
                .extend(self.writer.cached.keys().filter(|key| matches!(key, ViewKey::Defined(_))).cloned());
        }
        self.writer.changed(changed.iter().cloned());
        self.set_spare_aside(|key| changed.contains(key));
        self.count_due();
    }

    /// Moves due views that do not come first to the spare ones, of the views that are `asked` about. A spare view
    /// that comes first now keeps its time and is due.
    fn set_spare_aside(&mut self, asked: impl Fn(&ViewKey) -> bool) {
        let (due, spare) = (&mut self.writer.due, &mut self.spare);
        self.projection.read(|now| {
            due.retain(|key, at| {
                if !asked(key) {
                    return true;
                }
                if comes_first(&now.fleet, key) {
                    let since = spare.remove(key);
                    *at = since.map_or(*at, |since| since.min(*at));
                    return true;
                }
                spare.insert(key.clone(), *at);
                false
            });
        });
    }

    fn count_due(&self) {
        self.metrics.queries.views_due.set((self.writer.due.len() + self.spare.len()) as i64);
    }

    /// Writes what is due now, look by look, and then a turn of what is spare.
    async fn write_due(&mut self) {
        let begun = Instant::now();
        let due = if self.rest.until() <= begun { self.writer.due_now() } else { Vec::new() };
        let mut writes = 0;
        for look in due.chunks(LOOK_MAX) {
            writes += self.write_look(look).await;
        }
        self.rest.begin(writes, begun.elapsed(), Instant::now());
        self.write_spare().await;
        self.judge_doubtful().await;
        self.count_due();
    }

    /// Writes a turn of the views that wait for the others.
    async fn write_spare(&mut self) {
        let begun = Instant::now();
        let turn = self.spare.drain_turn(begun);
        if turn.is_empty() {
            return;
        }
        self.writer.due.extend(turn.iter().map(|key| (key.clone(), begun)));
        self.write_look(&turn).await;
        let again = turn.iter().map(|key| self.writer.due.get(key).copied());
        // If all of them are due again, the bus accepts nothing now.
        let retry_at = again.min().flatten();
        self.spare.end_turn(begun.elapsed(), Instant::now(), retry_at);
        // Those that are due again wait again.
        let turn = BTreeSet::from_iter(turn);
        self.set_spare_aside(|key| turn.contains(key));
    }

    /// Writes those of the views that have changed; returns how many writes it sent.
    async fn write_look(&mut self, keys: &[ViewKey]) -> usize {
        let (writes, metrics) = (self.collect_writes(keys), &self.metrics);
        let sent = writes.len();
        self.writer.write(writes, |outcome| metrics.queries.view(outcome.into())).await;
        sent
    }

    /// Checks whether LEDGER reaches the position of views that have been ahead for long.
    async fn judge_doubtful(&mut self) {
        let now = Instant::now();
        let doubtful =
            |(key, held): (&ViewKey, &CachedEntry)| held.is_check_due(AHEAD_ASK, now).then(|| key.clone());
        let keys: Vec<ViewKey> = self.writer.cached.iter().filter_map(doubtful).collect();
        if keys.is_empty() {
            return;
        }
        // While LEDGER's end cannot be read, these views wait.
        let Ok(ledger) = self.writer.bus().stream_state(LEDGER).await else { return };
        for key in keys {
            if let Some(held) = self.writer.cached.get_mut(&key) {
                held.check_end(ledger.last_seq, now);
            }
        }
    }

    /// Collects the writes for some views, all as of one moment. The views are no longer due, unless nothing
    /// may be published at that moment.
    fn collect_writes(&mut self, keys: &[ViewKey]) -> Vec<ViewWrite<ViewKey>> {
        let show = |now: &ProjectionState| {
            let views = keys.iter().map(|key| (key.clone(), show(&now.fleet, key)));
            (now.fleet.as_of(), views.collect::<Vec<_>>())
        };
        let shown = self.projection.read(|now| now.caught_up.then(|| show(now)));
        let Some((as_of, views)) = shown else { return Vec::new() };
        let (now, mut writes) = (Instant::now(), Vec::new());
        let vouched_at = self.lag.as_ref().and_then(|lag| lag.vouched_at());
        let validity = if self.lag.as_ref().is_some_and(|lag| lag.is_unrecorded()) {
            Duration::ZERO
        } else {
            renew::validity(self.writer.cached.len(), self.validity)
        };
        // Whole seconds: every language reads them.
        let valid_until = vouched_at.and_then(|at| at.checked_add(validity).ok());
        let valid_until = valid_until.and_then(|until| Timestamp::from_second(until.as_second()).ok());
        for (key, view) in views {
            self.writer.due.remove(&key);
            let is_renewed = self.renewing.remove(&key) && valid_until.is_some();
            let view = match view {
                ViewRead::Whole(view) => view.map(|write| write()),
                ViewRead::Unsigned(view) => {
                    let view = view.sign();
                    Some((view.digest, to_bytes(&*view).into()))
                }
                // The view is marked as changed once it is counted.
                ViewRead::NotYet => continue,
            };
            let held = self.writer.cached(&key);
            if held.conflicts_with(view.as_ref().map(|(digest, _)| *digest), as_of) {
                held.suspect.get_or_insert(ForeignView::Contradicts);
                self.metrics.queries.view(ViewResult::Disputed);
                tracing::error!(view = %key, ledger.seq = as_of.ledger_seq, "another rollup published a different view for the same fact: run `muster verify` to find the wrong one");
            }
            let is_ahead = held.read_to() > Some(as_of.ledger_seq);
            match held.decide(view.as_ref().map(|(digest, _)| *digest), as_of, now) {
                EntryAction::Leave if is_renewed && view.is_some() && !is_ahead => {
                    held.suspect = None;
                    self.metrics.renewals.inc();
                    writes.push(write(key, view, held.revision, as_of, valid_until));
                }
                EntryAction::Leave => {
                    held.suspect = None;
                    self.metrics.queries.view(ViewResult::Unchanged);
                }
                EntryAction::Wait => _ = self.writer.due.insert(key, now + WRITE_INTERVAL),
                decision @ (EntryAction::Put | EntryAction::Delete) => {
                    let expected = held.revision;
                    self.report_replaced(&key, decision == EntryAction::Put);
                    writes.push(write(key, view, expected, as_of, valid_until));
                }
            }
        }
        writes
    }

    /// Final write: the fold stands still, and the bucket receives its state. The next process writes what
    /// fails now.
    async fn finish(&mut self) {
        self.collect_changed();
        if !self.projection.read(|now| now.caught_up) {
            return;
        }
        self.writer.due.append(&mut self.spare.drain_all());
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.writer.due.values().max().copied() else { return };
            if !self.writer.bus().link().borrow().is_up() {
                break;
            }
            tokio::time::sleep_until(next).await;
            self.rest = Rest::new(Instant::now());
            self.write_due().await;
        }
        if !self.writer.due.is_empty() {
            tracing::warn!(
                views = self.writer.due.len(),
                "cannot write the last views; the next start updates them"
            );
        }
    }
}

/// A view to write at a revision, or its deletion.
fn write(
    key: ViewKey,
    view: Option<(Digest, Bytes)>,
    expected: u64,
    as_of: AsOf,
    valid_until: Option<Timestamp>,
) -> ViewWrite<ViewKey> {
    let view = view.map(|(digest, bytes)| {
        let bytes = valid_until.map_or(bytes.clone(), |until| valid_to(&bytes, until).into());
        (ViewIdentity { digest, as_of, valid_until }, bytes)
    });
    ViewWrite { key, view, expected, read_to: as_of.ledger_seq }
}
