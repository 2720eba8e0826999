//! The one task that publishes desired states, from commits and requests.
//!
//! It publishes due documents in rounds until none is due: a failed document stays due, and a document that another writer
//! replaced is read and planned again. Requests are answered between rounds. If the process dies during a commit, the next
//! one finds the rest by comparing Git with DOWNLINK.

mod change;
mod commit;
mod decide;
mod handle;
mod held;
mod order;
mod reading;
mod release;
mod rollback;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use muster_bus::{IncidentReporter, PublishError, PublishErrorKind, Trace};
use muster_contract::{DeviceKey, Timestamp};
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use muster_service::retry::RetryPolicy;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::decide::Decisions;
pub use self::handle::AnnouncerHandle;
use self::handle::Command;
use self::rollback::RefusedRollbacks;
use crate::device_table::{ChangeKey, DeviceTable};
use crate::downlink::{Downlink, OutgoingDocument};
pub use crate::foreign::StoredDocument;
use crate::metrics::Metrics;
use crate::plan::Draft;
use crate::problems::Problems;
use crate::published::PublishedState;
use crate::source::Fleet;
use crate::status::Status;

/// Documents of one round, which limits how long a request waits.
const ROUND: usize = 1024;
/// Devices read again at once after another writer was first.
const READS_AT_ONCE: usize = 64;
/// Delays after a failed round or read.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(200), max: Duration::from_secs(30) };

/// The state that the publisher's tasks share.
#[derive(Debug, Clone)]
pub struct Context {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The status.
    pub status: Arc<Status>,
    /// The metrics.
    pub metrics: Metrics,
    /// Reports foreign documents.
    pub incidents: IncidentReporter,
    /// Whether there is a Git source.
    pub git: bool,
}

/// The task that publishes desired states.
pub struct Announcer<D> {
    downlink: D,
    context: Context,
    rng: Rng,
    table: DeviceTable,
    decisions: Decisions,
    refused_rollbacks: RefusedRollbacks,
    commands: mpsc::Receiver<Command>,
    /// True once the published states are read; requests wait for it.
    known: watch::Sender<bool>,
    retry: FullJitter,
    retry_at: Instant,
    /// The trace that all documents of a commit share.
    commit_trace: Trace,
    /// Whether the last accepted commit is not completely published yet.
    commit_under_way: bool,
    /// Why some due documents are not published yet, as of the last round.
    publish_error: Option<String>,
    /// When a device's document was last published again because of its heartbeat alone.
    republished_at: BTreeMap<DeviceKey, Instant>,
    /// When a device's document was last replaced because it differs from the commit that it names.
    contradicted: BTreeMap<DeviceKey, Instant>,
    /// Left-over devices that were logged.
    logged_left_over: BTreeSet<DeviceKey>,
    /// Time since which each held change is known.
    held_since: BTreeMap<ChangeKey, Timestamp>,
}

impl<D: Downlink> Announcer<D> {
    /// An announcer with an empty table, and its handle.
    pub fn new(downlink: D, context: Context, mut rng: Rng) -> (Self, AnnouncerHandle) {
        let (announcer, commands, known) = AnnouncerHandle::new();
        let task = Self {
            downlink,
            context,
            commit_trace: Trace::random(&mut rng),
            rng,
            table: DeviceTable::default(),
            decisions: Decisions::default(),
            refused_rollbacks: RefusedRollbacks::new(),
            commands,
            known,
            retry: FullJitter::new(RETRY.min, RETRY.max),
            retry_at: Instant::now(),
            commit_under_way: false,
            publish_error: None,
            republished_at: BTreeMap::new(),
            contradicted: BTreeMap::new(),
            logged_left_over: BTreeSet::new(),
            held_since: BTreeMap::new(),
        };
        (task, announcer)
    }

    /// Reads DOWNLINK, releases `recovered`, then executes commands and publishes until `stop`. A round under way is
    /// finished.
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
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(command).await,
                    None => return,
                },
                () = tokio::time::sleep_until(self.retry_at), if self.table.due() > 0 => self.round().await,
            }
        }
    }

    async fn execute(&mut self, command: Command) {
        match command {
            Command::Commit(fleet, answer) => {
                // The poller may be gone; the commit is accepted all the same.
                let _ = answer.send(self.accept_commit(fleet).await);
            }
            Command::Unseen(answer) => {
                // The requester may be gone.
                let _ = answer.send(self.table.unseen());
            }
            Command::Follows(revision, older) => {
                if self.table.revision() == Some(revision.as_str()) {
                    self.follows(&older);
                }
            }
            Command::Resume(fleet, older, answer) => {
                let _ = answer.send(self.accept(fleet, |table, fleet| table.resume(fleet, &older)));
            }
            Command::LastPublished(answer) => {
                // The requester may be gone.
                let _ = answer.send(self.table.last_published().map(str::to_owned));
            }
            Command::Heard(beats) => {
                let before = self.open_counts();
                self.compare_generations(beats).await;
                self.report_if_changed(before);
            }
            Command::Verify(documents, is_new) => {
                let before = self.open_counts();
                self.verify(&documents, is_new);
                self.report_if_changed(before);
            }
            Command::Listed(devices) => {
                let before = self.open_counts();
                self.listed(&devices).await;
                self.report_if_changed(before);
            }
            Command::RecentlyStored(devices) => {
                let before = self.open_counts();
                self.recently_stored(devices).await;
                self.report_if_changed(before);
            }
            Command::InLedger(copies) => self.in_ledger(copies),
            Command::LedgerRestarted => self.ledger_restarted(),
            Command::Renewed(key, before, now) => self.table.renewed(&key, before, now),
            Command::Release(release, answer) => {
                let done = self.release(&release).await;
                self.report_if_applied();
                // The requester may be gone; the release stands.
                let _ = answer.send(done);
            }
            Command::Targets(query, answer) => {
                let page = self.targets(&query).await;
                // The requester may be gone.
                let _ = answer.send(page);
            }
            Command::Decide(decide, answer) => {
                let done = self.decide(&decide).await;
                // The requester may be gone; the decision stands.
                let _ = answer.send(done);
            }
            Command::Change(request, answer) => {
                let before = self.open_counts();
                let done = self.change(&request).await;
                self.report_if_changed(before);
                // The requester may be gone; the change stands.
                let _ = answer.send(done);
            }
        }
    }

    /// Accepts a commit, and ends the rollouts that it supersedes.
    async fn accept_commit(&mut self, fleet: Fleet) -> Result<(), Problems> {
        self.accept(fleet, DeviceTable::accept)?;
        self.supersede().await;
        Ok(())
    }

    /// Publishes some of the due documents.
    async fn round(&mut self) {
        let drafts = self.table.next(ROUND);
        let trace = self.commit_trace;
        let documents = drafts.iter().map(|(key, draft)| self.outgoing(key, draft, trace)).collect();
        let answers = self.downlink.publish(documents).await;
        let (mut failed, mut overtaken) = (None, Vec::new());
        for ((key, draft), answer) in drafts.into_iter().zip(answers) {
            match answer {
                Ok(sequence) => self.stored(&key, draft, sequence),
                Err(error) if error.kind == PublishErrorKind::Conflict => overtaken.push((key, draft, error)),
                Err(error) => failed = Some(chain(&error)),
            }
        }
        let unsettled = self.read_overtaken(overtaken).await;
        self.pause(unsettled.or(failed));
        self.report_if_applied();
    }

    /// Reads the subjects of documents that conflicted with another writer's; returns the error if some must be tried again
    /// later.
    async fn read_overtaken(&mut self, overtaken: Vec<(DeviceKey, Draft, PublishError)>) -> Option<String> {
        let mut failed = None;
        for some in overtaken.chunks(READS_AT_ONCE) {
            let reads: Vec<_> = some.iter().map(|(key, ..)| self.downlink.last(key)).collect();
            let messages = join_all(reads).await;
            for ((key, draft, error), message) in some.iter().zip(messages) {
                let before = self.table.held(key);
                let taken = match message {
                    Ok(message) => self.apply_message(key, message).await,
                    Err(error) => Err(error),
                };
                match taken {
                    // The replica that answered lags behind: another plan would conflict again.
                    Ok(()) if self.table.held(key).sequence == draft.expected_sequence => {
                        failed = Some(chain(error));
                    }
                    Ok(()) => self.count(key, &before, draft),
                    Err(error) => failed = Some(chain(&error)),
                }
            }
        }
        failed
    }

    /// Counts a conflict with another writer. A re-asserted document, and this document stored without an answer, are not
    /// another writer's.
    fn count(&self, key: &DeviceKey, before: &PublishedState, draft: &Draft) {
        let held = self.table.held(key);
        if draft.matches(&held) || held.is_current && held.document == before.document {
            return;
        }
        self.context.metrics.conflicts.inc();
        tracing::info!(device.site = %key.site, device.id = %key.device, "another writer was first; planning again");
    }

    fn pause(&mut self, failed: Option<String>) {
        self.retry_at = Instant::now();
        if let Some(error) = &failed {
            let retry_in = self.retry.next(&mut self.rng);
            self.retry_at += retry_in;
            tracing::warn!(
                due = self.table.due(),
                error,
                ?retry_in,
                "cannot publish some desired states yet"
            );
        } else {
            self.retry.reset();
        }
        let left = |error| format!("{} desired states are not published yet: {error}", self.table.due());
        self.publish_error = failed.map(left);
        self.report_status();
    }

    fn stored(&mut self, key: &DeviceKey, draft: Draft, sequence: u64) {
        let generation = draft.generation;
        tracing::debug!(device.site = %key.site, device.id = %key.device, %generation, sequence, "published a desired state");
        self.table.stored(key, draft, sequence, self.context.clock.now());
        self.context.status.published(1);
        self.context.metrics.documents.inc();
    }

    fn outgoing(&mut self, key: &DeviceKey, draft: &Draft, trace: Trace) -> OutgoingDocument {
        OutgoingDocument {
            key: key.clone(),
            document: draft.document(self.context.clock.now(), self.table.retry_delays(key)),
            expected_sequence: draft.expected_sequence,
            trace: trace.sibling(&mut self.rng),
        }
    }

    /// The numbers of due documents, and of documents of a commit that is unknown here.
    fn open_counts(&self) -> (usize, usize) {
        (self.table.due(), self.table.guarded())
    }

    /// Reports the status if those numbers differ from `before`.
    fn report_if_changed(&mut self, before: (usize, usize)) {
        if self.open_counts() != before {
            self.report_status();
        }
        self.report_if_applied();
    }

    /// The status text if another publisher knows newer commits.
    fn behind(&self) -> Option<String> {
        let guarded = self.table.guarded();
        (guarded > 0).then(|| {
            format!(
                "{guarded} desired states are of a commit that another publisher has published and this one does not know; \
                 they stay until this publisher reads a good commit that is newer; a refused commit is named beside"
            )
        })
    }

    fn report_status(&mut self) {
        self.table.follow_ledger();
        // `held_changes` reads every governed device, so it is left out while a large commit is being published.
        let held = (self.table.due() < ROUND).then(|| self.rollouts_status());
        let summary = self.table.summary();
        let publish_error =
            self.publish_error.clone().filter(|_| self.table.due() > 0).or_else(|| self.behind());
        let applied = self.table.applied().map(|revision| (revision, self.table.applied_through()));
        let held_back = self.table.held_back();
        let count = held_back.as_ref().map_or(0, |held| held.devices.count);
        self.context.metrics.held_back.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.context.status.update(&summary, applied, publish_error, held);
        self.context.status.set_held_back(held_back);
        self.context.metrics.devices.set(i64::try_from(summary.devices).unwrap_or(i64::MAX));
        self.context.metrics.due.set(i64::try_from(self.table.due()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests;
