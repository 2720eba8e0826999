//! Views into the bucket `views`: each view that changed is written, at most so often, and what is there last is the
//! final state. A view whose digest did not change is not written; one that is gone is deleted, also if an
//! earlier life left it behind.
//!
//! The writer watches the bucket ([`BucketWatch`]): it removes a key that is none of its views, and puts its own view in the
//! place of a value that it did not write, both at once, and reports the incident. Another rollup's views are left as they
//! are: they are right for the moment that they are of.
//!
//! A view says until when it may be believed, and is written again before that: see [`renew`].
//!
//! Views of deployments that no desired state names come last, with what is spare: see [`spare`].
//!
//! Nothing is written until LEDGER was read to its end: a view must not go back in time. What the bucket holds, what
//! follows from it, and writing it, are [`Held`]'s and [`Board`]'s.

mod inspect;
pub mod renew;
mod seen;
mod spare;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{
    Board, Bus, Decision, Held, IncidentReporter, LEARN_EVERY, Reader, Signed, WRITE_INTERVAL, Write,
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

use self::seen::{Seen, show};
use self::spare::{SpareViews, comes_first};
use crate::bucket::{BucketEvent, BucketWatch};
use crate::lag::LagState;
use crate::metrics::{Metrics, ViewResult};
use crate::present::{AHEAD_ASK, Now, Origin, Present};

/// Views built at one look at the present: the fold waits meanwhile.
const LOOK_MAX: usize = 64;
/// After writing more than one look holds, the rest: so many times as long as that took. Where thousands of views change all
/// the time, the bus has other things to carry, too. What becomes due meanwhile waits with the others.
const REST: u32 = 4;
/// The longest rest: after a start everything may be due at once.
const REST_MAX: Duration = Duration::from_secs(1);
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;

/// Time between two looks at views whose time ends.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// The bucket holds views, and what people have defined, which is not the rollup's.
const READER: Reader<ViewKey> = Reader { key: ViewKey::parse, holds: |_, entry| Held::read(Some(entry)) };

/// The writer of views.
#[derive(Debug)]
pub struct Publisher {
    board: Board<ViewKey>,
    present: Arc<Present>,
    metrics: Metrics,
    origin: Option<Origin>,
    /// Whether it was known which views are defined.
    knew_definitions: bool,
    learn_every: Duration,
    /// Nothing is written until then.
    rest_until: Instant,
    incidents: IncidentReporter,
    /// What is seen of the bucket.
    bucket: Option<mpsc::Receiver<BucketEvent>>,
    /// Of that, what is to be taken in.
    seen: Option<BucketEvent>,
    /// LEDGER's last sequence, as far as it was asked for.
    ledger_end: u64,
    learn_at: Instant,
    /// Due views that wait for those on the board.
    spare: SpareViews,
    /// Up to when views may be vouched for; they say no time where this is not known.
    lag: Option<Arc<LagState>>,
    /// When views are looked through whose time ends.
    renew_at: Instant,
    /// Due views that are written again also where they have not changed.
    renewing: BTreeSet<ViewKey>,
}

impl Publisher {
    /// A writer of the present's views.
    pub fn new(
        bus: Bus,
        present: Arc<Present>,
        metrics: Metrics,
        incidents: IncidentReporter,
        chance: Rng,
    ) -> Self {
        let board = Board::new(bus, chance);
        Self {
            board,
            present,
            metrics,
            origin: None,
            knew_definitions: false,
            learn_every: LEARN_EVERY,
            rest_until: Instant::now(),
            incidents,
            bucket: None,
            seen: None,
            ledger_end: 0,
            learn_at: Instant::now(),
            spare: SpareViews::new(Instant::now()),
            lag: None,
            renew_at: Instant::now(),
            renewing: BTreeSet::new(),
        }
    }

    /// One whose views say until when they may be believed.
    pub fn vouching(self, lag: Arc<LagState>) -> Self {
        Self { lag: Some(lag), ..self }
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
        let (watch, events) = BucketWatch::new(self.board.bus().clone(), Rng::new());
        let watching = tokio::spawn(watch.run(stop.clone()));
        self.bucket = Some(events);
        self.learn_at = Instant::now() + self.learn_every;
        loop {
            let wait = async {
                // First: where a view is due at every turn, the wait is over before the time is.
                let (is_time, learn_at) = (Instant::now() >= self.learn_at, self.learn_at);
                !is_time && timeout_at(learn_at, self.wait(&mut read_to, &mut caught_up)).await.is_ok()
            };
            match stop.run_until_cancelled(wait).await {
                None => break,
                // Not cancelled in the middle: what is under way would be unknown.
                Some(true) => match self.seen.take() {
                    Some(event) => self.inspect(event).await,
                    None => self.write_due().await,
                },
                Some(false) => {
                    if let Some(Err(error)) = stop.run_until_cancelled(self.board.learn(&READER)).await {
                        tracing::debug!(error = chain(&error), "cannot read the views again; trying later");
                    }
                    self.set_spare_aside(|_| true);
                    self.learn_at = Instant::now() + self.learn_every;
                }
            }
        }
        self.finish().await;
        watching.abort();
    }

    /// Waits until there is something true to say, and learns what the bucket says already.
    async fn begin(&mut self) {
        let mut caught_up = self.present.caught_up();
        // The present outlives this task, so the wait cannot end for want of a sender.
        let _ = caught_up.wait_for(|caught_up| *caught_up).await;
        // The fleet's view is there from the start, also of an empty fleet.
        self.board.due.insert(ViewKey::Fleet, Instant::now());
        self.board.learn_at_last(&READER).await;
        self.set_spare_aside(|_| true);
    }

    /// Waits until a view is due, or something of the bucket was seen. Cancel-safe.
    async fn wait(&mut self, read_to: &mut watch::Receiver<u64>, caught_up: &mut watch::Receiver<bool>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            read_to.mark_unchanged();
            let is_caught_up = *caught_up.borrow_and_update();
            self.take_changed();
            self.renew();
            let first = self.board.due.values().min().map(|next| self.rest_until.max(*next));
            let next = first.into_iter().chain(self.spare.next()).min().filter(|_| is_caught_up);
            let renew_at = self.renew_at;
            if next.is_some_and(|next| next <= Instant::now()) {
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
                // These end with an error only when the present is gone, and this task holds it.
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

    /// Makes due the views whose time ends, once a second, while nothing stands between this rollup and LEDGER.
    fn renew(&mut self) {
        let now = Instant::now();
        if now < self.renew_at {
            return;
        }
        self.renew_at = now + RENEW_EVERY;
        let Some(lag) = self.lag.as_ref().filter(|lag| lag.now().is_none()) else { return };
        let Some(vouched_at) = lag.vouched_at() else { return };
        for key in renew::due(&self.board.held, vouched_at) {
            self.board.due.entry(key.clone()).or_insert(now);
            self.renewing.insert(key);
        }
    }

    /// Takes over which views may have changed, and when each may be written.
    fn take_changed(&mut self) {
        let look =
            |now: &mut Now| (now.origin, now.fleet.knows_definitions(), now.fleet.take_changed_views());
        let (origin, knows_definitions, changed) = self.present.take(look);
        let mut changed: BTreeSet<ViewKey> = changed;
        if changed.is_empty() && self.origin == Some(origin) && self.knew_definitions == knows_definitions {
            return;
        }
        if self.origin.replace(origin) != Some(origin) {
            // Another LEDGER: whatever was written may be gone now.
            changed.extend(self.board.held.keys().cloned());
        }
        if !std::mem::replace(&mut self.knew_definitions, knows_definitions) && knows_definitions {
            // Only now can it be told which of them nobody defines any more.
            changed.extend(self.board.held.keys().filter(|key| matches!(key, ViewKey::Defined(_))).cloned());
        }
        self.board.changed(changed.iter().cloned());
        self.set_spare_aside(|key| changed.contains(key));
        self.count_due();
    }

    /// Has those of the due views wait that do not come first, of all that are `asked` about; one that has waited and comes
    /// first now waits no more.
    fn set_spare_aside(&mut self, asked: impl Fn(&ViewKey) -> bool) {
        let (due, spare) = (&mut self.board.due, &mut self.spare);
        self.present.look(|now| {
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
        self.metrics.views_due.set((self.board.due.len() + self.spare.len()) as i64);
    }

    /// Writes what is due now, look by look, and then a turn of what is spare.
    async fn write_due(&mut self) {
        let begun = Instant::now();
        let due = if self.rest_until <= begun { self.board.due_now() } else { Vec::new() };
        for look in due.chunks(LOOK_MAX) {
            self.write_look(look).await;
        }
        if !due.is_empty() {
            self.rest_until = Instant::now() + rest(due.len(), begun.elapsed());
        }
        self.write_spare().await;
        self.judge_doubtful().await;
        self.count_due();
    }

    /// Writes a turn of the views that wait for the others.
    async fn write_spare(&mut self) {
        let begun = Instant::now();
        let turn = self.spare.take_turn(begun);
        if turn.is_empty() {
            return;
        }
        self.board.due.extend(turn.iter().map(|key| (key.clone(), begun)));
        self.write_look(&turn).await;
        let again = turn.iter().map(|key| self.board.due.get(key).copied());
        // Where all of them are due again, the bus takes nothing now.
        let retry_at = again.min().flatten();
        self.spare.rest(begun.elapsed(), Instant::now(), retry_at);
        // Those that are due again wait again.
        let turn = BTreeSet::from_iter(turn);
        self.set_spare_aside(|key| turn.contains(key));
    }

    async fn write_look(&mut self, keys: &[ViewKey]) {
        let (writes, metrics) = (self.look(keys), &self.metrics);
        self.board.write(writes, |fate| metrics.view(fate.into())).await;
    }

    /// Finds out of views that have read further for long whether LEDGER goes as far at all.
    async fn judge_doubtful(&mut self) {
        let now = Instant::now();
        let doubtful = |(key, held): (&ViewKey, &Held)| held.is_doubtful(AHEAD_ASK, now).then(|| key.clone());
        let keys: Vec<ViewKey> = self.board.held.iter().filter_map(doubtful).collect();
        if keys.is_empty() {
            return;
        }
        // Where LEDGER cannot be seen now, they are left alone until it can.
        let Ok(ledger) = self.board.bus().stream_state(LEDGER).await else { return };
        for key in keys {
            if let Some(held) = self.board.held.get_mut(&key) {
                held.judge(ledger.last_seq, now);
            }
        }
    }

    /// What has to be written of some views, all as of one moment. They are due no more, unless that moment is one at
    /// which nobody is to be told anything.
    fn look(&mut self, keys: &[ViewKey]) -> Vec<Write<ViewKey>> {
        let show = |now: &Now| {
            let views = keys.iter().map(|key| (key.clone(), show(&now.fleet, key)));
            (now.fleet.as_of(), views.collect::<Vec<_>>())
        };
        let shown = self.present.look(|now| now.caught_up.then(|| show(now)));
        let Some((as_of, views)) = shown else { return Vec::new() };
        let (now, mut writes) = (Instant::now(), Vec::new());
        let vouched_at = self.lag.as_ref().and_then(|lag| lag.vouched_at());
        let validity = renew::validity(self.board.held.len());
        // Whole seconds: every language reads them.
        let valid_until = vouched_at.and_then(|at| at.checked_add(validity).ok());
        let valid_until = valid_until.and_then(|until| Timestamp::from_second(until.as_second()).ok());
        for (key, view) in views {
            self.board.due.remove(&key);
            let is_renewed = self.renewing.remove(&key) && valid_until.is_some();
            let view = match view {
                Seen::Whole(view) => view.map(|write| write()),
                Seen::Unsigned(view) => {
                    let view = view.sign();
                    Some((view.digest, to_bytes(&*view).into()))
                }
                // Named as changed once it is counted.
                Seen::NotYet => continue,
            };
            let held = self.board.held(&key);
            if held.disputes(view.as_ref().map(|(digest, _)| *digest), as_of) {
                held.suspect.get_or_insert(ForeignView::Contradicts);
                self.metrics.view(ViewResult::Disputed);
                tracing::error!(view = %key, ledger.seq = as_of.ledger_seq, "another rollup has read to the same fact and says something else: `muster verify` tells which is wrong");
            }
            let is_ahead = held.read_to() > Some(as_of.ledger_seq);
            match held.decide(view.as_ref().map(|(digest, _)| *digest), as_of, now) {
                Decision::Leave if is_renewed && view.is_some() && !is_ahead => {
                    held.suspect = None;
                    self.metrics.renewals.inc();
                    writes.push(write(key, view, held.revision, (as_of, valid_until)));
                }
                Decision::Leave => {
                    held.suspect = None;
                    self.metrics.view(ViewResult::Unchanged);
                }
                Decision::Wait => _ = self.board.due.insert(key, now + WRITE_INTERVAL),
                decision @ (Decision::Put | Decision::Delete) => {
                    let expected = held.revision;
                    self.report_replaced(&key, decision == Decision::Put);
                    writes.push(write(key, view, expected, (as_of, valid_until)));
                }
            }
        }
        writes
    }

    /// The end: the fold stands still, and the bucket shall say what it says. What cannot be written now is written by
    /// the next life.
    async fn finish(&mut self) {
        self.take_changed();
        if !self.present.look(|now| now.caught_up) {
            return;
        }
        self.board.due.append(&mut self.spare.take_all());
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.board.due.values().max().copied() else { return };
            if !self.board.bus().link().borrow().is_up() {
                break;
            }
            tokio::time::sleep_until(next).await;
            self.rest_until = Instant::now();
            self.write_due().await;
        }
        if !self.board.due.is_empty() {
            tracing::warn!(
                views = self.board.due.len(),
                "views are left as they are; the next start brings them up to date"
            );
        }
    }
}

/// A view as it is written in place of a revision, or its deletion.
fn write(
    key: ViewKey,
    view: Option<(Digest, Bytes)>,
    expected: u64,
    (as_of, valid_until): (AsOf, Option<Timestamp>),
) -> Write<ViewKey> {
    let view = view.map(|(digest, bytes)| {
        let bytes = valid_until.map_or(bytes.clone(), |until| valid_to(&bytes, until).into());
        (Signed { digest, as_of, valid_until }, bytes)
    });
    Write { key, view, expected, read_to: as_of.ledger_seq }
}

/// The rest after writing so many views that took so long. After a few there is none.
fn rest(views: usize, took: Duration) -> Duration {
    if views > LOOK_MAX { (took * REST).min(REST_MAX) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_writing_many_views_there_is_a_rest_of_four_times_that_and_a_second_at_most_and_none_after_a_few()
    {
        let took = Duration::from_millis(100);
        assert_eq!(rest(LOOK_MAX, took), Duration::ZERO);
        assert_eq!(rest(LOOK_MAX + 1, took), 4 * took);
        assert_eq!(rest(100_000, 100 * took), REST_MAX, "nobody waits for long after a start");
    }
}
