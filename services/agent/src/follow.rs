//! Receives what the hub publishes for this device: desired states, which it checks, stores and hands to the
//! reconciler; receipts, which it applies to the outbox; and renewed tokens.
//!
//! ```text
//! live subscription ─┐   desired ─► decision ─► database ─► reconciler
//! direct get at every├─► receipt ─► outbox
//! connection, and    │   credential ─► identity
//! at every interval ─┘
//! ```
//!
//! Outside of the polling hours the follower neither reads nor accepts desired states; the one accepted last stays in
//! force. Receipts are accepted at any hour, because reports are sent at any hour.
//!
//! A desired state is accepted only if it is valid as a whole and its generation is greater than the stored one. It
//! is stored before it is applied. A rejected document changes nothing. Once two reads showed it, it is logged and reported to the
//! hub as a refusal, until a document is accepted.

mod credential;
pub mod decision;
pub mod refusal;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Delivery, Link, ReadError, Subscription};
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::receipt::{Receipt, RefusedNumbers};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Epoch, Generation, decode};
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::retry::{RetryPolicy, retry};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::decision::{Decision, decide};
use self::refusal::{CurrentRefusal, RejectedDocument};
use crate::db::{self, Db};
use crate::metrics::Metrics;
use crate::outbox::{Outbox, ReceiptOutcome};
use crate::reconcile::CurrentDesired;
use crate::schedule::SchedulePhase;
use crate::store::{self, AcceptedDesired};
use crate::token::CurrentToken;

/// Time between two reads of the stored documents while the hub may not notice that this device holds an older one.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// The same while the hub compares heartbeats with the desired state: a lost push is then noticed with the next heartbeat, and each
/// read costs an idle device kilobytes.
const POLL_INTERVAL_COMPARED: Duration = Duration::from_secs(6 * 60 * 60);
/// Least number of reads in the lifetime of the device's token: a read finds a renewed token whose push was lost.
const POLLS_PER_TOKEN: u32 = 20;
/// Least time between two reads that receipts cause. A device that refuses its desired state holds an older one for long.
const RECEIPT_READ_INTERVAL: Duration = Duration::from_secs(60);
/// Relative jitter of the time between two reads.
const READ_JITTER: f64 = 0.2;
/// Time over which the first reads of a fleet spread when its polling hours begin, unless it polls more often.
const OPENING_SPREAD: Duration = Duration::from_secs(60);
/// Bounds of the delay before another attempt to read.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(250), max: Duration::from_secs(5) };

const _: () = assert!(RETRY.max.as_secs() < OPENING_SPREAD.as_secs());
const _: () = assert!(POLL_INTERVAL.as_secs() < POLL_INTERVAL_COMPARED.as_secs());

/// How a desired state came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Pushed: DOWNLINK may hold a newer one by now.
    Pushed,
    /// Read from DOWNLINK: it is the last one that the replica which answered has.
    Stored,
}

/// Receives desired states, receipts and tokens.
pub(crate) struct Follower {
    /// The device.
    pub(crate) device: DeviceKey,
    /// The connection, while there is one.
    pub(crate) connected: watch::Receiver<Option<Bus>>,
    /// The phase of the schedule.
    pub(crate) phase: watch::Receiver<SchedulePhase>,
    /// Time between two reads of the stored documents, if it is set.
    pub(crate) poll: Option<Duration>,
    /// The database, which stores the accepted desired state.
    pub(crate) db: Db,
    /// The outbox, which applies receipts.
    pub(crate) outbox: Outbox,
    /// The wall clock, for the outbox.
    pub(crate) clock: Arc<dyn Clock>,
    /// Publishes the accepted desired state to the reconciler.
    pub(crate) desired: watch::Sender<CurrentDesired>,
    /// True once the hub's last receipt was fetched and stored, or there is none.
    pub(crate) receipt_fetched: watch::Sender<bool>,
    /// The metrics.
    pub(crate) metrics: Metrics,
    /// The random source for jitter.
    pub(crate) rng: fastrand::Rng,
    /// The desired state accepted last.
    pub(crate) accepted: Option<AcceptedDesired>,
    /// Publishes the refusal that stands to the relay and the status file.
    pub(crate) refused: watch::Sender<CurrentRefusal>,
    /// The document rejected last: it is refused after a second read, and logged once.
    pub(crate) rejected_document: Option<RejectedDocument>,
    /// Data directory of the device's identity, if it is stored there.
    pub(crate) identity: Option<PathBuf>,
    /// Digest of the JWT rejected last.
    pub(crate) rejected_credential: Option<Digest>,
    /// Reports that the hub refused, by its last receipt: logged when they change.
    pub(crate) refused_reports: Vec<RefusedNumbers>,
    /// The last read failed: logged once.
    pub(crate) has_read_failed: bool,
    /// Another device uses this one's name: logged once until the hub accepts something from this one again.
    pub(crate) is_identity_duplicate: bool,
    /// The term of the device's token: a short one is read more often.
    pub(crate) token: watch::Receiver<CurrentToken>,
    /// The hub compares heartbeats with the desired state, by its last receipt.
    pub(crate) hub_compares: bool,
    /// When a receipt last caused a read.
    pub(crate) receipt_read_at: Option<Instant>,
    /// When the stored documents are read although no interval ended: a new epoch may begin then, if the hub still knows more, or a
    /// pushed document was rejected.
    pub(crate) read_again_at: Option<Instant>,
}

impl Follower {
    /// Receives until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            // The connection supervisor outlives its followers.
            while let Some(bus) = self.next_bus().await {
                let mut connected = self.connected.clone();
                tokio::select! {
                    () = self.follow_bus(&bus) => {}
                    _ = connected.changed() => {}
                }
            }
        })
        .await;
    }

    async fn next_bus(&mut self) -> Option<Bus> {
        self.connected.wait_for(Option::is_some).await.ok()?;
        self.connected.borrow_and_update().clone()
    }

    /// Receives over one bus until it closes.
    async fn follow_bus(&mut self, bus: &Bus) {
        let mut link = bus.link();
        let mut subscription = self.subscribe(bus).await;
        while let Ok(over) = link.wait_for(|link| link.is_up()).await.map(|up| *up) {
            let mut lost = link.clone();
            tokio::select! {
                () = self.follow_link(bus, &mut subscription) => return,
                _ = lost.wait_for(|now: &Link| *now != over) => {}
            }
        }
    }

    async fn subscribe(&self, bus: &Bus) -> Subscription {
        let subject = subjects::live(&self.device);
        retry(RETRY, "cannot subscribe to desired states", |_| bus.subscribe(&subject)).await
    }

    /// Reads the stored documents, then handles pushed ones, and reads again at every interval. Ends only with the bus.
    async fn follow_link(&mut self, bus: &Bus, subscription: &mut Subscription) {
        let mut delays = FullJitter::new(RETRY.min, RETRY.max);
        let mut next_read = Instant::now();
        loop {
            tokio::select! {
                biased;
                message = subscription.next() => match message {
                    Some(message) => {
                        self.handle(message).await;
                        next_read = self.read_again_at.take().map_or(next_read, |at| at.min(next_read));
                    }
                    None => return,
                },
                Ok(()) = self.phase.changed() => {
                    let spread = OPENING_SPREAD.min(self.poll_interval()).mul_f64(self.rng.f64());
                    next_read = next_read.min(Instant::now() + spread);
                }
                () = sleep_until(next_read) => {
                    let delay = match self.read_stored(bus).await {
                        Ok(()) => self.next_delay(&mut delays),
                        Err(error) => self.after_failure(&error, &mut delays),
                    };
                    next_read = Instant::now() + delay;
                    next_read = self.read_again_at.take().map_or(next_read, |at| at.min(next_read));
                }
            }
        }
    }

    /// Reads the documents stored for this device.
    async fn read_stored(&mut self, bus: &Bus) -> Result<(), ReadError> {
        // The receipt comes first: the epoch of a new database waits for it.
        let receipt = bus.last(stream::DOWNLINK, &subjects::receipt(&self.device)).await?;
        let is_stored = match receipt {
            Some(message) => self.receipt(&message.payload, Origin::Stored).await,
            None => true,
        };
        if is_stored {
            self.receipt_fetched.send_replace(true);
        }
        if self.may_poll() {
            self.handle_stored_desired(bus).await?;
        }
        self.read_credential(bus).await;
        Ok(())
    }

    async fn handle_stored_desired(&mut self, bus: &Bus) -> Result<(), ReadError> {
        let subject = subjects::desired(&self.device);
        if let Some(message) = bus.last(stream::DOWNLINK, &subject).await? {
            self.desired(message.payload, Origin::Stored).await;
        }
        Ok(())
    }

    fn may_poll(&self) -> bool {
        *self.phase.borrow() == SchedulePhase::Open
    }

    fn next_delay(&mut self, delays: &mut FullJitter) -> Duration {
        delays.reset();
        if std::mem::take(&mut self.has_read_failed) {
            tracing::info!("can read desired states again");
        }
        self.poll_interval().mul_f64(1.0 + READ_JITTER * (2.0 * self.rng.f64() - 1.0))
    }

    fn poll_interval(&self) -> Duration {
        let lifetime = (*self.token.borrow()).map(|token| token.ends_at.duration_since(token.issued_at));
        let lifetime =
            lifetime.and_then(|lifetime| Duration::try_from(lifetime).ok()).unwrap_or(Duration::MAX);
        let compared = POLL_INTERVAL_COMPARED.min(lifetime / POLLS_PER_TOKEN).max(POLL_INTERVAL);
        self.poll.unwrap_or(if self.hub_compares { compared } else { POLL_INTERVAL })
    }

    fn after_failure(&mut self, error: &ReadError, delays: &mut FullJitter) -> Duration {
        if !std::mem::replace(&mut self.has_read_failed, true) {
            tracing::warn!(
                error = chain(error),
                "cannot read the desired state; the one accepted last stays in force, and the agent tries again"
            );
        }
        delays.next(&mut self.rng)
    }

    /// Handles a message of any kind.
    async fn handle(&mut self, message: Delivery) {
        if message.subject == subjects::desired(&self.device) {
            // Outside of the polling hours it stays in DOWNLINK, where the next read finds it.
            if self.may_poll() {
                self.desired(message.payload, Origin::Pushed).await;
            }
        } else if message.subject == subjects::receipt(&self.device) {
            _ = self.receipt(&message.payload, Origin::Pushed).await;
        } else if message.subject == subjects::credential(&self.device) {
            self.credential(message.payload).await;
        } else {
            tracing::debug!(nats.subject = message.subject, "ignored a message of an unknown kind");
        }
    }

    async fn desired(&mut self, payload: Bytes, origin: Origin) {
        match decide(self.accepted.as_ref(), &payload) {
            Decision::Unchanged if origin == Origin::Stored => self.end_refusal().await,
            Decision::Unchanged => {}
            Decision::Accept(document) => self.accept(*document, payload).await,
            Decision::Reject(reason) if origin == Origin::Stored => self.reject(&reason, &payload).await,
            // A push may be overtaken by a read: only reads of DOWNLINK show whether the document holds.
            Decision::Reject(_) => self.read_again_at = Some(Instant::now()),
        }
    }

    async fn accept(&mut self, document: DesiredState, payload: Bytes) {
        let generation = document.generation;
        if let Err(error) = store::accept(&self.db, generation, payload.to_vec()).await {
            self.metrics.storage_failed();
            return tracing::error!(
                error = chain(&error),
                desired.generation = generation.get(),
                "cannot store a desired state, so it is not applied; the one accepted last stays in force"
            );
        }
        tracing::info!(
            desired.generation = generation.get(),
            desired.revision = document.source.revision,
            deployments.count = document.deployments.len(),
            "accepted a desired state"
        );
        if document.retired {
            tracing::warn!("this device is retired: removing all deployments and sending no more heartbeats");
        }
        self.metrics.set_generation(generation.get());
        self.accepted = Some(AcceptedDesired { generation, document: Some(document.clone()) });
        self.desired.send_replace(Some(Arc::new(document)));
        self.end_refusal().await;
    }

    async fn reject(&mut self, reason: &decision::RejectReason, payload: &[u8]) {
        if !self.confirm_rejection(Digest::of_bytes(payload)) {
            return;
        }
        self.metrics.rejected_document();
        let kept = self.accepted.as_ref().map(|accepted| accepted.generation).map_or(0, Generation::get);
        tracing::error!(
            reason = chain(reason),
            accepted.generation = kept,
            "rejected a desired state; the one accepted last stays in force"
        );
        self.refuse(reason, payload).await;
    }

    /// Applies a receipt; false if the outbox could not store it.
    async fn receipt(&mut self, payload: &[u8], origin: Origin) -> bool {
        let receipt: Receipt = match decode::parse(payload) {
            Ok(receipt) => receipt,
            Err(refusal) => {
                tracing::warn!(reason = chain(&refusal), "ignored a receipt");
                return true;
            }
        };
        self.hub_compares = receipt.generation.is_some();
        if origin == Origin::Pushed {
            self.read_if_behind(receipt.generation);
        }
        let (epoch, refused) = (receipt.epoch, receipt.refused.clone());
        match self.outbox.receive(receipt, self.clock.now()).await {
            Ok(outcome) => {
                self.receipt_applied(outcome);
                // A receipt of another epoch refuses other reports than those with these numbers here.
                if matches!(outcome, ReceiptOutcome::Applied { .. }) && self.refused_reports != refused {
                    log_refused_reports(epoch, &refused);
                    self.refused_reports = refused;
                }
                true
            }
            Err(error) => {
                log_not_received(&error);
                false
            }
        }
    }

    /// Reads the desired state at once if the hub knows a newer one than this device holds: its push was lost.
    fn read_if_behind(&mut self, newest: Option<u64>) {
        let held = self.accepted.as_ref().map_or(0, |accepted| accepted.generation.get());
        let now = Instant::now();
        let is_recent = self.receipt_read_at.is_some_and(|at| now - at < RECEIPT_READ_INTERVAL);
        if newest.is_some_and(|newest| newest > held) && !is_recent && self.may_poll() {
            self.receipt_read_at = Some(now);
            self.read_again_at = Some(now);
        }
    }

    fn receipt_applied(&mut self, received: ReceiptOutcome) {
        let duplicate =
            if let ReceiptOutcome::DuplicateIdentity { retry_in } = received { Some(retry_in) } else { None };
        // The hub sends no further receipt by itself: without another read this device would not notice that the
        // other is gone.
        self.read_again_at = duplicate.map(|retry_in| Instant::now() + retry_in).or(self.read_again_at);
        if duplicate.is_none() || !std::mem::replace(&mut self.is_identity_duplicate, true) {
            log_received(received);
        }
        self.is_identity_duplicate &= duplicate.is_some()
            || matches!(received, ReceiptOutcome::OtherEpoch | ReceiptOutcome::Renewed(_));
    }
}

fn log_refused_reports(epoch: Epoch, refused: &[RefusedNumbers]) {
    if refused.is_empty() {
        return tracing::info!("the hub no longer refuses any report");
    }
    for RefusedNumbers { ranges, reason } in refused {
        tracing::warn!(
            device.epoch = epoch.get(),
            report.seqs = %ranges,
            reason,
            "kept reports that the hub refused; the outbox sends them again when the hub asks for them"
        );
    }
}

fn log_received(received: ReceiptOutcome) {
    match received {
        ReceiptOutcome::Applied { requeued: 0 } | ReceiptOutcome::OtherEpoch => {}
        ReceiptOutcome::Applied { requeued } => {
            tracing::warn!(outbox.rows = requeued, "the hub asked for reports again: sending them");
        }
        ReceiptOutcome::Renewed(epoch) => tracing::error!(
            device.epoch = epoch.get(),
            "the hub knows more than this database, which must be an old copy: beginning a new epoch and reporting \
             everything again that the hub may lack"
        ),
        ReceiptOutcome::DuplicateIdentity { retry_in } => tracing::error!(
            retry.seconds = retry_in.as_secs_f64(),
            "another agent uses the name of this device, and the hub accepts nothing from this one until a new epoch: stop \
             the other agent"
        ),
    }
}

fn log_not_received(error: &db::Error) {
    tracing::warn!(error = chain(error), "cannot store a receipt; the next one repeats it");
}

#[cfg(test)]
mod tests;
