//! Owns one partition: takes it, runs a session, and takes it again after the session was lost.
//!
//! A session lasts while this process owns the partition and every publication is confirmed. When the outcome of one is unknown,
//! or another process has taken the partition, the session ends. Once no other process answers for the partition, this process
//! takes it again and reads LEDGER, and the next session receives the unacknowledged reports again. There is no other recovery: a
//! hot standby is a process that waits to take the partition.

mod driver;
mod incident_log;
mod quarantine_handler;
mod rejected_store;
mod snapshot_saver;
mod standby;
mod timers;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Link, PublishError};
use muster_contract::DeviceKey;
use muster_domain::intake::IntakeState;
use muster_domain::trim::Quota;
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::driver::SessionDriver;
use self::incident_log::IncidentLog;
use self::standby::StandbyState;
pub use self::standby::TAKEN_WITHIN;
use crate::desired::{DesiredQueue, DocumentLoader};
use crate::error::PartitionError;
use crate::follow::LedgerFollower;
use crate::ledger_publisher::HighWater;
use crate::metrics::PartitionMetrics;
use crate::quarantine_alarm::QuarantineAlarm;
use crate::room::PartitionRoom;
use crate::session::Conditions;
use crate::snapshot::{LedgerOrigin, Snapshots};
use crate::trim::Trim;

/// Least upper bound of the delay before a partition is taken again.
const RECOVER_MIN: Duration = Duration::from_millis(100);
/// Greatest upper bound of the delay before a partition is taken again.
const RECOVER_MAX: Duration = Duration::from_secs(10);

/// The parts that all partitions of a process share.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// The bus.
    pub(crate) bus: Bus,
    /// The clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// How far LEDGER is known to reach.
    pub(crate) high_water: HighWater,
    /// The connection over which LEDGER was checked to reach that far.
    pub(crate) ledger_seen_over: watch::Receiver<Link>,
    /// The unique name of this process.
    pub(crate) name: Arc<str>,
    /// The quota of a device.
    pub(crate) quota: Quota,
    /// How long QUARANTINE holds a rejected report.
    pub(crate) quarantine_max_age: Duration,
    /// Reports that QUARANTINE is full.
    pub(crate) quarantine_alarm: QuarantineAlarm,
    /// Reads LEDGER for the partitions that this process does not own.
    pub(crate) follower: Arc<LedgerFollower>,
    /// The store of snapshots, if there is one, and the LEDGER that they are of.
    pub(crate) snapshots: Option<(Snapshots, LedgerOrigin)>,
}

impl Context {
    /// The conditions now; `presence_age` is the time since the reader of PRESENCE last received anything.
    fn conditions(&self, presence_age: Option<Duration>) -> Conditions {
        let now = self.clock.now();
        Conditions {
            now,
            link: *self.bus.link().borrow(),
            ledger_seen_over: *self.ledger_seen_over.borrow(),
            heartbeats_through: presence_age.and_then(|age| now.checked_sub(age).ok()),
        }
    }

    /// Whether LEDGER was checked over the present connection.
    fn sees_ledger(&self) -> bool {
        self.conditions(None).sees_ledger()
    }

    /// Waits until LEDGER was checked over the connection that exists then.
    async fn ledger_seen(&mut self) {
        let mut link = self.bus.link();
        while !self.sees_ledger() {
            // An error means that the process ends.
            let changed = tokio::select! {
                changed = link.changed() => changed,
                changed = self.ledger_seen_over.changed() => changed,
            };
            if changed.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// The parts from which a partition is made.
pub(crate) struct PartitionStart {
    pub(crate) number: u16,
    pub(crate) context: Context,
    /// The state of its devices by LEDGER up to `read_after`.
    pub(crate) intake: IntakeState,
    pub(crate) read_after: u64,
    /// Documents and receipts of DOWNLINK that it has yet to apply.
    pub(crate) desired: Arc<DesiredQueue>,
    /// The sequence of DOWNLINK up to which every document was queued.
    pub(crate) documents_read: watch::Receiver<u64>,
    pub(crate) room: Arc<PartitionRoom>,
    pub(crate) metrics: PartitionMetrics,
    /// Released when the partition's reports can come, or another process owns the partition.
    pub(crate) ready: Latch,
}

/// One partition and all state of its devices.
#[derive(Debug)]
pub(crate) struct Partition {
    number: u16,
    context: Context,
    intake: IntakeState,
    /// The sequence up to which LEDGER was read.
    read_after: u64,
    standby: StandbyState,
    desired: Arc<DesiredQueue>,
    documents: DocumentLoader,
    room: Arc<PartitionRoom>,
    metrics: PartitionMetrics,
    incident_log: IncidentLog,
    trim: Arc<Trim>,
    ready: Option<Latch>,
    rng: Rng,
    retry: FullJitter,
}

/// The end of a session.
enum SessionEnd {
    /// The process stops, and every received report is settled.
    Stopped,
    /// The outcome of a publication is unknown, or it was refused. LEDGER must be read after the position.
    Lost { cause: PublishError, read_after: u64 },
    /// Another process has taken the partition.
    LeaseLost { read_after: u64 },
}

impl Partition {
    /// A partition that this process does not own yet.
    pub(crate) fn new(start: PartitionStart) -> Self {
        let PartitionStart {
            number,
            context,
            intake,
            read_after,
            desired,
            documents_read,
            room,
            metrics,
            ready,
        } = start;
        let trim = Arc::new(Trim::new(context.quota));
        let documents = DocumentLoader::new(context.bus.clone(), desired.clone(), documents_read);
        Self {
            number,
            context,
            intake,
            read_after,
            standby: StandbyState::default(),
            desired,
            documents,
            room,
            metrics,
            incident_log: IncidentLog::default(),
            trim,
            ready: Some(ready),
            rng: Rng::new(),
            retry: FullJitter::new(RECOVER_MIN, RECOVER_MAX),
        }
    }

    /// Works until `stop`, then settles the received reports.
    ///
    /// # Errors
    /// LEDGER cannot be read any more from where this partition must read it.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), PartitionError> {
        loop {
            // The next process receives the unacknowledged reports again.
            let Some(lease) = stop.run_until_cancelled(self.take_over()).await else { return Ok(()) };
            // Boxed, because every future that holds this one would contain it otherwise.
            let end = Box::pin(SessionDriver::open(&mut self, lease?).run(&stop)).await;
            self.metrics.owned.set(0);
            self.room.end();
            let pause = match end {
                SessionEnd::Stopped => return Ok(()),
                SessionEnd::Lost { cause, read_after } => self.recover(&cause, read_after),
                SessionEnd::LeaseLost { read_after } => self.yield_partition(read_after),
            };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Applies every document of a device to the intake; false if they cannot be read.
    async fn load_documents(&mut self, key: &DeviceKey) -> bool {
        self.metrics.all.document_lookups.inc();
        self.documents.load(key, &mut self.intake).await
    }

    /// Forgets the facts in flight, whose outcome LEDGER will show; returns the delay before the partition is taken again.
    fn recover(&mut self, cause: &PublishError, read_after: u64) -> Duration {
        self.intake.rewind();
        self.read_after = self.read_after.min(read_after);
        self.metrics.all.rewinds.inc();
        tracing::warn!(
            partition = self.number,
            error = chain(cause),
            ledger.seq = read_after,
            "cannot tell whether LEDGER stored a fact; reading LEDGER again"
        );
        self.retry.next(&mut self.rng)
    }

    /// Forgets the facts in flight: the partition has another owner, so the standby begins at once.
    fn yield_partition(&mut self, read_after: u64) -> Duration {
        self.intake.rewind();
        self.read_after = self.read_after.min(read_after);
        Duration::ZERO
    }
}
