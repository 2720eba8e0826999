//! The corridor of one partition: take in what came, publish what follows from it, acknowledge what is confirmed.
//!
//! A session lasts while the partition is this process's and every publication is confirmed. When the fate of one is
//! unknown, or somebody else has come, the session ends; the partition is taken anew as soon as nobody else speaks for
//! it, LEDGER is read, and the next session takes in again what was not acknowledged. There is no other way back, and a
//! hot standby is nothing but a process that waits there.

mod facts;
mod hearing;
mod quarantine;
mod receipts;
mod saving;
mod session;
mod standby;
mod telling;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Link, PublishError};
use muster_contract::DeviceKey;
use muster_domain::border::Border;
use muster_domain::trim::Quota;
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::session::Session;
pub use self::standby::TAKEN_WITHIN;
use self::standby::Waiting;
use self::telling::Teller;
use crate::desired::{Documents, Wishes};
use crate::error::PartitionError;
use crate::follow::LedgerFollower;
use crate::metrics::PartitionMetrics;
use crate::outlet::HighWater;
use crate::room::PartitionRoom;
use crate::snapshot::{Origin, Snapshots};
use crate::trim::Trim;

/// Least and longest upper bound of the delay before a partition is taken again.
const RECOVER_MIN: Duration = Duration::from_millis(100);
/// See [`RECOVER_MIN`].
const RECOVER_MAX: Duration = Duration::from_secs(10);

/// What a partition stands on.
#[derive(Debug, Clone)]
pub struct Around {
    /// The bus.
    pub bus: Bus,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// How far LEDGER is known to reach.
    pub high_water: HighWater,
    /// Over which connection LEDGER was seen to reach that far.
    pub ledger_seen_over: watch::Receiver<Link>,
    /// The name of this process, unlike any other's.
    pub name: Arc<str>,
    /// What a device may send.
    pub quota: Quota,
    /// Reads LEDGER for the partitions that are not this process's.
    pub follower: Arc<LedgerFollower>,
    /// Where snapshots are kept, if anywhere, and of which LEDGER.
    pub snapshots: Option<(Snapshots, Origin)>,
}

impl Around {
    /// Whether LEDGER was seen over the connection that there is now. Over a new one it may be another, or an older one.
    fn sees_ledger(&self) -> bool {
        *self.bus.link().borrow() == *self.ledger_seen_over.borrow()
    }

    /// Waits until it was.
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

/// One partition and all state of its devices.
#[derive(Debug)]
pub struct Partition {
    number: u16,
    around: Around,
    border: Border,
    /// LEDGER has been read up to here.
    read_after: u64,
    waiting: Waiting,
    desired: Arc<Wishes>,
    documents: Documents,
    room: Arc<PartitionRoom>,
    metrics: PartitionMetrics,
    teller: Teller,
    trim: Arc<Trim>,
    ready: Option<Latch>,
    chance: Rng,
    retry: FullJitter,
}

/// How a session ended.
enum Ending {
    /// It was asked to stop, and everything taken in is settled.
    Stopped,
    /// The fate of a publication is unknown, or it was refused. LEDGER must be read after the position.
    Lost { cause: PublishError, read_after: u64 },
    /// Somebody else has taken the partition.
    Usurped { read_after: u64 },
}

impl Partition {
    /// A partition with what LEDGER holds of it up to `read_after`. `ready` is released when its reports can come, or
    /// another process takes care of them.
    pub fn new(
        number: u16,
        around: Around,
        (border, read_after): (Border, u64),
        (desired, read_to, room): (Arc<Wishes>, watch::Receiver<u64>, Arc<PartitionRoom>),
        metrics: PartitionMetrics,
        ready: Latch,
    ) -> Self {
        let trim = Arc::new(Trim::new(around.quota));
        let documents = Documents::new(around.bus.clone(), desired.clone(), read_to);
        Self {
            number,
            around,
            border,
            read_after,
            waiting: Waiting::default(),
            desired,
            documents,
            room,
            metrics,
            teller: Teller::default(),
            trim,
            ready: Some(ready),
            chance: Rng::new(),
            retry: FullJitter::new(RECOVER_MIN, RECOVER_MAX),
        }
    }

    /// Works until `stop`, then finishes what was taken in.
    ///
    /// # Errors
    /// LEDGER no longer holds what it must be asked for.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), PartitionError> {
        loop {
            // What was not acknowledged comes again to the next process.
            let Some(turn) = stop.run_until_cancelled(self.take_over()).await else { return Ok(()) };
            // Boxed: it would otherwise be part of every future that holds this one.
            let ending = Box::pin(Session::open(&mut self, turn?).run(&stop)).await;
            self.metrics.owned.set(0);
            self.room.end();
            let pause = match ending {
                Ending::Stopped => return Ok(()),
                Ending::Lost { cause, read_after } => self.lose(&cause, read_after),
                Ending::Usurped { read_after } => self.give_way(read_after),
            };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Hands every document of a device to the border; false where that cannot be made sure of.
    async fn learn_documents(&mut self, key: &DeviceKey) -> bool {
        self.metrics.all.document_lookups.inc();
        self.documents.learn(key, &mut self.border).await
    }

    /// Forgets what is under way: LEDGER will be asked what became of it.
    fn lose(&mut self, cause: &PublishError, read_after: u64) -> Duration {
        self.border.rewind();
        self.read_after = self.read_after.min(read_after);
        self.metrics.all.rewinds.inc();
        tracing::warn!(
            partition = self.number,
            error = chain(cause),
            ledger.seq = read_after,
            "a fact may or may not be in LEDGER; reading it again"
        );
        self.retry.next(&mut self.chance)
    }

    fn give_way(&mut self, read_after: u64) -> Duration {
        self.border.rewind();
        self.read_after = self.read_after.min(read_after);
        Duration::ZERO
    }
}
