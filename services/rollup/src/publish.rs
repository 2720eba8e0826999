//! Views into the bucket `views`: each view that changed is written, at most so often, and what is there last is the
//! final state. A view whose digest did not change is not written; one that is gone is deleted, also if an
//! earlier life left it behind.
//!
//! Nothing is written until LEDGER was read to its end: a view must not go back in time. What the bucket holds, and what
//! follows from it, is [`Held`]'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{StreamExt, stream};
use muster_bus::{Bus, Decision, Held, PublishErrorKind, ReadError, Signed, Written};
use muster_contract::canonical::Digest;
use muster_contract::decode::{Document, to_bytes};
use muster_contract::limits::VIEW_WRITES_PER_SECOND;
use muster_contract::subjects::ViewKey;
use muster_contract::subjects::stream::LEDGER;
use muster_domain::fold::{Fleet, Shown, Unsigned};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, ViewResult};
use crate::present::{AHEAD_ASK, Now, Origin, Present};

/// Least time between two writes of one view.
const WRITE_INTERVAL: Duration = Duration::from_millis(1000 / VIEW_WRITES_PER_SECOND as u64);
/// Views built at one look at the present: the fold waits meanwhile.
const LOOK_MAX: usize = 64;
/// Views under way to the bus at once.
const IN_FLIGHT_MAX: usize = 64;
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;
/// Time between two readings of the bucket: another rollup may have died after it wrote what this one never knew of.
const LEARN_EVERY: Duration = Duration::from_secs(60);
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Least and longest upper bound of the delay before the bus is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(WRITE_INTERVAL.as_millis() * VIEW_WRITES_PER_SECOND as u128 >= 1000);

/// The writer of views.
#[derive(Debug)]
pub struct Publisher {
    bus: Bus,
    present: Arc<Present>,
    metrics: Metrics,
    chance: Rng,
    origin: Option<Origin>,
    /// Whether it was known which views are defined.
    knew_definitions: bool,
    /// What the bucket holds, as far as it is known.
    held: BTreeMap<ViewKey, Held>,
    /// Views to look at, and when.
    due: BTreeMap<ViewKey, Instant>,
    retry: FullJitter,
    learn_every: Duration,
}

/// What is to be written under a key: a view, or none, in place of a revision.
#[derive(Debug)]
struct Write {
    key: ViewKey,
    view: Option<(Signed, Bytes)>,
    expected: u64,
}

impl Publisher {
    /// A writer of the present's views.
    pub fn new(bus: Bus, present: Arc<Present>, metrics: Metrics, chance: Rng) -> Self {
        let (held, due) = (BTreeMap::new(), BTreeMap::new());
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let learn_every = LEARN_EVERY;
        Self {
            bus,
            present,
            metrics,
            chance,
            origin: None,
            knew_definitions: false,
            held,
            due,
            retry,
            learn_every,
        }
    }

    /// One that reads the bucket again after another time.
    pub fn learning_every(self, learn_every: Duration) -> Self {
        Self { learn_every, ..self }
    }

    /// Writes until `stop`, and then once more what is due.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut read_to, mut caught_up) = (self.present.read_to(), self.present.caught_up());
        if stop.run_until_cancelled(self.begin()).await.is_none() {
            return;
        }
        let mut learn_at = Instant::now() + self.learn_every;
        loop {
            let wait = async {
                // First: where a view is due at every turn, the wait is over before the time is.
                let is_time = Instant::now() >= learn_at;
                !is_time && timeout_at(learn_at, self.wait(&mut read_to, &mut caught_up)).await.is_ok()
            };
            match stop.run_until_cancelled(wait).await {
                None => break,
                // Not cancelled in the middle: what is under way would be unknown.
                Some(true) => self.write_due().await,
                Some(false) => {
                    if let Some(Err(error)) = stop.run_until_cancelled(self.learn()).await {
                        tracing::debug!(error = chain(&error), "cannot read the views again; trying later");
                    }
                    learn_at = Instant::now() + self.learn_every;
                }
            }
        }
        self.finish().await;
    }

    /// Waits until there is something true to say, and learns what the bucket says already.
    async fn begin(&mut self) {
        let mut caught_up = self.present.caught_up();
        // The present outlives this task, so the wait cannot end for want of a sender.
        let _ = caught_up.wait_for(|caught_up| *caught_up).await;
        // The fleet's view is there from the start, also of an empty fleet.
        self.due.insert(ViewKey::Fleet, Instant::now());
        loop {
            match self.learn().await {
                Ok(()) => return,
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.chance);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot read the views yet");
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    }

    /// Reads the bucket. What another life or another rollup wrote is due: it is either still so, or to be written over. So
    /// is what the bucket has no more: it was made anew, or restored without it.
    async fn learn(&mut self) -> Result<(), ReadError> {
        let (mut watch, mut seen) = (self.bus.view_watch(">").await?, BTreeSet::new());
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            for entry in batch {
                let Some(key) = ViewKey::parse(&entry.key) else { continue };
                if self.held.get(&key).is_none_or(|held| held.revision != entry.revision) {
                    self.held.insert(key.clone(), Held::read(Some(&entry)));
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

    /// Waits until a view is due. Cancel-safe.
    async fn wait(&mut self, read_to: &mut watch::Receiver<u64>, caught_up: &mut watch::Receiver<bool>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            read_to.mark_unchanged();
            let is_caught_up = *caught_up.borrow_and_update();
            self.take_changed();
            let next = self.due.values().min().copied().filter(|_| is_caught_up);
            if next.is_some_and(|next| next <= Instant::now()) {
                return;
            }
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // These end with an error only when the present is gone, and this task holds it.
                _ = read_to.changed() => {}
                _ = caught_up.changed() => {}
                () = timer => {}
            }
        }
    }

    /// Takes over which views may have changed, and when each may be written.
    fn take_changed(&mut self) {
        let look =
            |now: &mut Now| (now.origin, now.fleet.knows_definitions(), now.fleet.take_changed_views());
        let (origin, knows_definitions, changed) = self.present.take(look);
        let mut changed: BTreeSet<ViewKey> = changed;
        if self.origin.replace(origin) != Some(origin) {
            // Another LEDGER: whatever was written may be gone now.
            changed.extend(self.held.keys().cloned());
        }
        if !std::mem::replace(&mut self.knew_definitions, knows_definitions) && knows_definitions {
            // Only now can it be told which of them nobody defines any more.
            changed.extend(self.held.keys().filter(|key| matches!(key, ViewKey::Defined(_))).cloned());
        }
        let now = Instant::now();
        for key in changed {
            let written_at = self.held.get(&key).and_then(|held| held.written_at);
            let allowed = written_at.map_or(now, |at| now.max(at + WRITE_INTERVAL));
            self.due.entry(key).or_insert(allowed);
        }
        self.metrics.views_due.set(self.due.len() as i64);
    }

    /// Writes what is due now, look by look.
    async fn write_due(&mut self) {
        let now = Instant::now();
        let keys: Vec<ViewKey> =
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
        self.judge_doubtful().await;
        self.metrics.views_due.set(self.due.len() as i64);
    }

    /// Finds out of views that have read further for long whether LEDGER goes as far at all.
    async fn judge_doubtful(&mut self) {
        let now = Instant::now();
        let doubtful = |(key, held): (&ViewKey, &Held)| held.is_doubtful(AHEAD_ASK, now).then(|| key.clone());
        let keys: Vec<ViewKey> = self.held.iter().filter_map(doubtful).collect();
        if keys.is_empty() {
            return;
        }
        // Where LEDGER cannot be seen now, they are left alone until it can.
        let Ok(ledger) = self.bus.stream_state(LEDGER).await else { return };
        for key in keys {
            if let Some(held) = self.held.get_mut(&key) {
                held.judge(ledger.last_seq, now);
            }
        }
    }

    /// What has to be written of some views, all as of one moment. They are due no more, unless that moment is one at
    /// which nobody is to be told anything.
    fn look(&mut self, keys: &[ViewKey]) -> Vec<Write> {
        let show = |now: &Now| {
            let views = keys.iter().map(|key| (key.clone(), show(&now.fleet, key)));
            (now.fleet.as_of(), views.collect::<Vec<_>>())
        };
        let shown = self.present.look(|now| now.caught_up.then(|| show(now)));
        let Some((as_of, views)) = shown else { return Vec::new() };
        let (now, mut writes) = (Instant::now(), Vec::new());
        for (key, view) in views {
            self.due.remove(&key);
            let view = match view {
                Seen::Whole(view) => view.map(|write| write()),
                Seen::Unsigned(view) => {
                    let view = view.sign();
                    Some((view.digest, to_bytes(&*view).into()))
                }
                // Named as changed once it is counted.
                Seen::NotYet => continue,
            };
            let held = self.held.entry(key.clone()).or_insert(Held::NOTHING);
            if held.disputes(view.as_ref().map(|(digest, _)| *digest), as_of) {
                self.metrics.view(ViewResult::Disputed);
                tracing::error!(view = %key, ledger.seq = as_of.ledger_seq, "another rollup has read to the same fact and says something else: `muster verify` tells which is wrong");
            }
            match held.decide(view.as_ref().map(|(digest, _)| *digest), as_of, now) {
                Decision::Leave => self.metrics.view(ViewResult::Unchanged),
                Decision::Wait => _ = self.due.insert(key, now + WRITE_INTERVAL),
                Decision::Put | Decision::Delete => {
                    let view = view.map(|(digest, bytes)| (Signed { digest, as_of }, bytes));
                    writes.push(Write { key, view, expected: held.revision });
                }
            }
        }
        writes
    }

    /// Remembers what the bucket holds now, and makes due again what failed.
    fn settle(&mut self, results: Vec<(Write, Written)>) {
        let now = Instant::now();
        let mut failure = None;
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

    /// The end: the fold stands still, and the bucket shall say what it says. What cannot be written now is written by
    /// the next life.
    async fn finish(&mut self) {
        self.take_changed();
        if !self.present.look(|now| now.caught_up) {
            return;
        }
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.due.values().max().copied() else { return };
            if !self.bus.link().borrow().is_up() {
                break;
            }
            tokio::time::sleep_until(next).await;
            self.write_due().await;
        }
        if !self.due.is_empty() {
            tracing::warn!(
                views = self.due.len(),
                "views are left as they are; the next start brings them up to date"
            );
        }
    }
}

/// A view as it is seen at one look.
enum Seen {
    /// Its digest and, to be written when the fold goes on, its document; nothing where there is no such view.
    Whole(Option<Box<dyn FnOnce() -> (Digest, Bytes)>>),
    /// One whose digest takes so long that nobody shall wait for it.
    Unsigned(Unsigned),
    /// It cannot be told yet.
    NotYet,
}

fn show(fleet: &Fleet, key: &ViewKey) -> Seen {
    Seen::Whole(match key {
        ViewKey::Deployment(id) => fleet.deployment_view(id).map(|view| whole(view.digest, view)),
        ViewKey::Site(id) => fleet.site_view(id).map(|view| whole(view.tally.digest, view)),
        ViewKey::Fleet => {
            let view = fleet.fleet_view();
            Some(whole(view.tally.digest, view))
        }
        ViewKey::Group(label, value) => {
            fleet.group_view(label, value).map(|view| whole(view.tally.digest, view))
        }
        ViewKey::Defined(name) => match fleet.defined_view(name) {
            Shown::View(view) => return Seen::Unsigned(view),
            Shown::Absent => None,
            Shown::NotYet => return Seen::NotYet,
        },
    })
}

fn whole(digest: Digest, view: impl Document + 'static) -> Box<dyn FnOnce() -> (Digest, Bytes)> {
    Box::new(move || (digest, to_bytes(&view).into()))
}
