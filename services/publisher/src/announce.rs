//! The one task that writes desired state: commits and requests in, documents out.
//!
//! It publishes what the roster says is due, in rounds, until nothing is: whatever failed is due still, whatever
//! another writer changed is read again and planned anew. Requests are answered between rounds. A process that dies
//! halfway through a commit leaves the rest due, and the next one finds it by comparing Git with DOWNLINK.

mod change;
mod desk;
mod reading;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use muster_bus::{IncidentReporter, PublishError, PublishErrorKind, Trace};
use muster_contract::DeviceKey;
use muster_contract::query::{HeldBack, Problem, SomeDevices};
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::desk::Desk;
use self::desk::Order;
use crate::downlink::{Downlink, Letter};
use crate::held::Held;
use crate::metrics::{CommitResult, Metrics};
use crate::plan::Draft;
use crate::problems::Problems;
use crate::roster::{NAMED_MAX, Roster};
use crate::source::Fleet;
use crate::status::Status;

/// Documents of one round: requests wait no longer than it takes to publish so many.
const ROUND: usize = 1024;
/// Devices read again at once where another writer was first.
const READS_AT_ONCE: usize = 64;
/// Least and longest upper bound of the delay after a round, or a reading, that failed.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// What the parts of the publisher share.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// What is said to who asks.
    pub status: Arc<Status>,
    /// What is counted.
    pub metrics: Metrics,
    /// Where foreign documents are reported.
    pub incidents: IncidentReporter,
    /// Whether there is a Git source.
    pub git: bool,
}

/// The announcer.
pub struct Announcer<D> {
    downlink: D,
    around: Surroundings,
    chance: Rng,
    roster: Roster,
    orders: mpsc::Receiver<Order>,
    /// Tells requests that what is published is known.
    known: watch::Sender<bool>,
    retry: FullJitter,
    retry_at: Instant,
    /// The trace that all documents of a commit share.
    commit_trace: Trace,
    /// Whether a commit was taken that is not published whole yet.
    commit_under_way: bool,
    /// Why some of what is due is not published yet, as of the last round.
    trouble: Option<String>,
    /// When a device's word alone had its document published again.
    said_again: BTreeMap<DeviceKey, Instant>,
    /// When a document was last replaced because it says something else of the commit that it names.
    contradicted: BTreeMap<DeviceKey, Instant>,
    /// Devices without a folder that the log has named.
    told_left_over: BTreeSet<DeviceKey>,
}

/// Their names, and how many more there are.
fn names(devices: &SomeDevices) -> String {
    let named: Vec<_> = devices.first.iter().map(ToString::to_string).collect();
    match devices.count - named.len() as u64 {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

impl<D: Downlink> Announcer<D> {
    /// An announcer that holds nothing yet, and the way to it.
    pub fn new(downlink: D, around: Surroundings, mut chance: Rng) -> (Self, Desk) {
        let (desk, orders, known) = Desk::new();
        let announcer = Self {
            downlink,
            around,
            commit_trace: Trace::begin(&mut chance),
            chance,
            roster: Roster::default(),
            orders,
            known,
            retry: FullJitter::new(RETRY_MIN, RETRY_MAX),
            retry_at: Instant::now(),
            commit_under_way: false,
            trouble: None,
            said_again: BTreeMap::new(),
            contradicted: BTreeMap::new(),
            told_left_over: BTreeSet::new(),
        };
        (announcer, desk)
    }

    /// Reads what DOWNLINK holds, releases `recovered`, then works until `stop`. A round under way is finished.
    pub async fn run(mut self, recovered: Latch, stop: CancellationToken) {
        if stop.run_until_cancelled(self.recover()).await.is_none() {
            return;
        }
        recovered.release();
        self.known.send_replace(true);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
                () = tokio::time::sleep_until(self.retry_at), if self.roster.due() > 0 => self.round().await,
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        match order {
            Order::Commit(fleet, answer) => {
                // The poller may have left; the commit stands.
                let _ = answer.send(self.accept(fleet, Roster::accept));
            }
            Order::Unseen(answer) => {
                // Who asked may have left.
                let _ = answer.send(self.roster.unseen());
            }
            Order::Follows(revision, older) => {
                if self.roster.revision() == Some(revision.as_str()) {
                    self.follows(&older);
                }
            }
            Order::Resume(fleet, answer) => {
                let _ = answer.send(self.accept(fleet, Roster::resume));
            }
            Order::LastPublished(answer) => {
                // Who asked may have left.
                let _ = answer.send(self.roster.last_published().map(str::to_owned));
            }
            Order::Heard(beats) => {
                let before = self.open();
                self.heard(beats).await;
                self.tell_if_other_than(before);
            }
            Order::Verify(documents, is_new) => {
                let before = self.open();
                self.verify(&documents, is_new);
                self.tell_if_other_than(before);
            }
            Order::Listed(devices) => {
                let before = self.open();
                self.listed(&devices).await;
                self.tell_if_other_than(before);
            }
            Order::StoredLately(devices) => {
                let before = self.open();
                self.stored_lately(devices).await;
                self.tell_if_other_than(before);
            }
            Order::InLedger(copies) => self.in_ledger(copies),
            Order::LedgerAnew => self.ledger_anew(),
            Order::Renewed(key, before, now) => self.roster.renewed(&key, before, now),
            Order::Change(request, answer) => {
                let before = self.open();
                let done = self.change(&request).await;
                self.tell_if_other_than(before);
                // Who asked may have left; the change stands.
                let _ = answer.send(done);
            }
        }
    }

    fn accept(
        &mut self,
        fleet: Fleet,
        take: fn(&mut Roster, Fleet) -> Result<usize, Problems>,
    ) -> Result<(), Problems> {
        let (revision, devices) = (fleet.revision.clone(), fleet.devices.len());
        let returning = SomeDevices::of(self.roster.brought_back(&fleet), NAMED_MAX);
        let due = take(&mut self.roster, fleet)?;
        if !returning.is_empty() {
            let devices = names(&returning);
            tracing::warn!(commit.id = revision, devices, "folders in Git bring retired devices back");
        }
        self.warn_of_held_back();
        self.commit_trace = Trace::begin(&mut self.chance);
        if due == 0 && self.roster.ahead() == 0 {
            self.applied(&revision);
            return Ok(());
        }
        tracing::info!(commit.id = revision, devices, due, "publishing a commit");
        self.commit_under_way = true;
        self.retry.reset();
        self.retry_at = Instant::now();
        self.tell();
        Ok(())
    }

    fn warn_of_held_back(&self) {
        let Some(HeldBack { revision, devices, problems }) = self.roster.held_back() else { return };
        for Problem { file, line, field, rule } in problems {
            tracing::warn!(commit.id = revision, file, line, field, rule, "a commit breaks a rule");
        }
        tracing::warn!(
            commit.id = revision,
            devices = names(&devices),
            "these devices keep what they have, because they cannot use what the commit says of them"
        );
    }

    /// The commit that was taken last came after all of `older`.
    fn follows(&mut self, older: &BTreeSet<String>) {
        let devices = self.roster.follows(older);
        if devices > 0 {
            tracing::info!(
                devices,
                "what another publisher had published is of a commit before the one known here"
            );
            self.retry_at = Instant::now();
            self.tell();
            self.conclude();
        }
    }

    /// Publishes some of what is due.
    async fn round(&mut self) {
        let drafts = self.roster.next(ROUND);
        let trace = self.commit_trace;
        let letters = drafts.iter().map(|(key, draft)| self.letter(key, draft, trace)).collect();
        let answers = self.downlink.publish(letters).await;
        let (mut failed, mut overtaken) = (None, Vec::new());
        for ((key, draft), answer) in drafts.into_iter().zip(answers) {
            match answer {
                Ok(sequence) => self.stored(&key, draft, sequence),
                Err(error) if error.kind == PublishErrorKind::Conflict => overtaken.push((key, draft, error)),
                Err(error) => failed = Some(chain(&error)),
            }
        }
        let unsettled = self.settle(overtaken).await;
        self.pause(unsettled.or(failed));
        self.conclude();
    }

    /// Says that a commit is published, once it is: the last document may have gone out with a request.
    fn conclude(&mut self) {
        if self.commit_under_way
            && let Some(revision) = self.roster.applied().map(str::to_owned)
        {
            self.applied(&revision);
        }
    }

    /// Deals with documents that were not stored because their subjects hold something else than they follow; gives what is
    /// to be told if some have to be tried again later.
    async fn settle(&mut self, overtaken: Vec<(DeviceKey, Draft, PublishError)>) -> Option<String> {
        let mut failed = None;
        for some in overtaken.chunks(READS_AT_ONCE) {
            let reads: Vec<_> = some.iter().map(|(key, ..)| self.downlink.last(key)).collect();
            let messages = join_all(reads).await;
            for ((key, draft, error), message) in some.iter().zip(messages) {
                let before = self.roster.held(key);
                let taken = match message {
                    Ok(message) => self.take_in(key, message).await,
                    Err(error) => Err(error),
                };
                match taken {
                    // A replica that lags behind: planning on the same again would find the same conflict.
                    Ok(()) if self.roster.held(key).sequence == draft.expected_sequence => {
                        failed = Some(chain(error));
                    }
                    Ok(()) => self.count(key, &before, draft),
                    Err(error) => failed = Some(chain(&error)),
                }
            }
        }
        failed
    }

    /// Counts a document that was not stored because of another writer. What was merely said again, or is this very
    /// document whose answer was lost, is nobody else's.
    fn count(&self, key: &DeviceKey, before: &Held, draft: &Draft) {
        let held = self.roster.held(key);
        if draft.is_what(&held) || held.stands && held.document == before.document {
            return;
        }
        self.around.metrics.conflicts.inc();
        tracing::info!(device.site = %key.site, device.id = %key.device, "another writer was first; planning anew");
    }

    fn pause(&mut self, failed: Option<String>) {
        self.retry_at = Instant::now();
        if let Some(error) = &failed {
            let retry_in = self.retry.next(&mut self.chance);
            self.retry_at += retry_in;
            tracing::warn!(
                due = self.roster.due(),
                error,
                ?retry_in,
                "some desired states are not published yet"
            );
        } else {
            self.retry.reset();
        }
        let left = |error| format!("{} desired states are not published yet: {error}", self.roster.due());
        self.trouble = failed.map(left);
        self.tell();
    }

    fn applied(&mut self, revision: &str) {
        self.commit_under_way = false;
        tracing::info!(commit.id = revision, devices = self.roster.devices(), "the commit is published");
        self.around.metrics.commit(CommitResult::Applied, 1);
        self.tell();
        self.tell_of_left_over();
    }

    /// Once for each device, and again after a start.
    fn tell_of_left_over(&mut self) {
        let left: BTreeSet<_> = self.roster.left_over().cloned().collect();
        let new = SomeDevices::of(left.difference(&self.told_left_over), NAMED_MAX);
        self.told_left_over = left;
        if !new.is_empty() {
            tracing::warn!(
                devices = names(&new),
                "Git has no folder for these any more, and they have nothing to run: `muster retire SITE/DEVICE` \
                 takes them out of the fleet, a folder brings them back"
            );
        }
    }

    fn stored(&mut self, key: &DeviceKey, draft: Draft, sequence: u64) {
        let generation = draft.generation;
        tracing::debug!(device.site = %key.site, device.id = %key.device, %generation, sequence, "published");
        self.roster.stored(key, draft, sequence);
        self.around.status.published(1);
        self.around.metrics.documents.inc();
    }

    fn letter(&mut self, key: &DeviceKey, draft: &Draft, trace: Trace) -> Letter {
        Letter {
            key: key.clone(),
            document: draft.document(self.around.clock.now()),
            expected_sequence: draft.expected_sequence,
            trace: trace.sibling(&mut self.chance),
        }
    }

    /// Documents that are due, and that are of a commit not seen here.
    fn open(&self) -> (usize, usize) {
        (self.roster.due(), self.roster.ahead())
    }

    /// What was read may leave less to do, or more.
    fn tell_if_other_than(&mut self, before: (usize, usize)) {
        if self.open() != before {
            self.tell();
        }
        self.conclude();
    }

    /// What is said where another publisher knows more of Git.
    fn behind(&self) -> Option<String> {
        let ahead = self.roster.ahead();
        (ahead > 0).then(|| {
            format!(
                "{ahead} desired states are of a commit that another publisher has published and this one has not seen; they \
                 stay as they are until a good commit comes here that follows it; one that was refused is named beside"
            )
        })
    }

    fn tell(&mut self) {
        self.roster.follow_ledger();
        let census = self.roster.census();
        let trouble = self.trouble.clone().filter(|_| self.roster.due() > 0).or_else(|| self.behind());
        let applied = self.roster.applied().map(|revision| (revision, self.roster.applied_through()));
        let held_back = self.roster.held_back();
        let count = held_back.as_ref().map_or(0, |held| held.devices.count);
        self.around.metrics.held_back.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.around.status.stands(&census, applied, trouble);
        self.around.status.holds_back(held_back);
        self.around.metrics.devices.set(i64::try_from(census.devices).unwrap_or(i64::MAX));
        self.around.metrics.due.set(i64::try_from(self.roster.due()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests;
