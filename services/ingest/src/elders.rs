//! The old end of LEDGER, read at leisure: facts of one partition that LEDGER will forget before long.
//!
//! Facts are written meanwhile, so the reader has no subject filter: the server searches for what matches a filter many
//! times slower than it sends everything. A reader is opened only where something is old at all, and not by all partitions
//! at once.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, ReadError, Replay, Start};
use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::time::{sleep, timeout};

/// Messages read at once.
const BATCH: usize = 256;
/// Pause after each of those: at most 2,560 a second are read, many times what a large fleet says, and a small part of
/// what a server can give.
const PACE: Duration = Duration::from_millis(100);
/// Pause before the first look, and between two when nothing is old enough. LEDGER keeps facts for ten days more.
const LOOK_EVERY: Duration = Duration::from_secs(60 * 60);
/// The first look of a process waits until those who have something new to say have said it.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Time between the looks of two partitions of one process.
const LOOKS_APART: Duration = Duration::from_millis(500);
/// How long nothing may come before nothing more is there.
const END: Duration = Duration::from_secs(5);

const _: () = assert!(LOOK_EVERY.as_secs() * 24 < REASSERT_AFTER.as_secs());

/// A fact that is old.
pub type Elder = (LedgerSubject, Fact);

/// The old facts of a partition, each once in the life of this value.
pub struct Elders {
    bus: Bus,
    clock: Arc<dyn Clock>,
    partition: u16,
    replay: Option<Replay>,
    /// Everything up to here has been handed out.
    position: u64,
    first: bool,
}

impl Elders {
    /// The old facts of a partition.
    pub fn new(bus: Bus, clock: Arc<dyn Clock>, partition: u16) -> Self {
        Self { bus, clock, partition, replay: None, position: 0, first: true }
    }

    /// Some that are old enough, in LEDGER's order.
    pub async fn next(mut self) -> (Self, Vec<Elder>) {
        loop {
            sleep(self.pause()).await;
            match self.read().await {
                Ok(elders) if elders.is_empty() => {}
                Ok(elders) => return (self, elders),
                Err(error) => {
                    tracing::debug!(
                        partition = self.partition,
                        error = chain(&error),
                        "cannot read old facts"
                    );
                    self.replay = None;
                    // What LEDGER forgot is no longer there to be read; what it holds is read once more.
                    self.position = if error.is_transient() { self.position } else { 0 };
                }
            }
        }
    }

    fn pause(&mut self) -> Duration {
        match (std::mem::take(&mut self.first), &self.replay) {
            (true, _) => FIRST_LOOK + LOOKS_APART * u32::from(self.partition),
            (false, Some(_)) => PACE,
            (false, None) => LOOK_EVERY,
        }
    }

    async fn read(&mut self) -> Result<Vec<Elder>, ReadError> {
        let replay = match &mut self.replay {
            Some(replay) => replay,
            None => {
                let ledger = self.bus.stream_state(stream::LEDGER).await?;
                if ledger.messages == 0 || !is_old(ledger.first_at, self.clock.now()) {
                    return Ok(Vec::new());
                }
                let start = Start::After(self.position);
                self.replay.insert(self.bus.replay(stream::LEDGER, &[], start).await?)
            }
        };
        let Ok(batch) = timeout(END, replay.next_batch(BATCH)).await else {
            self.replay = None;
            return Ok(Vec::new());
        };
        let now = self.clock.now();
        let mut elders = Vec::new();
        for delivery in batch? {
            if !is_old(delivery.stored_at, now) {
                self.replay = None;
                break;
            }
            let subject = LedgerSubject::parse(&delivery.subject).filter(grows_old);
            let Some(subject) = subject else { continue };
            self.position = delivery.stream_seq;
            if subject.device().is_none_or(|key| partition_of(key) != self.partition) {
                continue;
            }
            // What cannot be read was told of when LEDGER was restored.
            elders.extend(Fact::parse(&subject, &delivery.payload).ok().map(|fact| (subject, fact)));
        }
        Ok(elders)
    }
}

/// Liveness has its own rhythm, incidents are history, and of a pulse LEDGER keeps the newest alone.
const fn grows_old(subject: &LedgerSubject) -> bool {
    use LedgerSubject::{Deadline, Device, Quarantine, Status};
    matches!(subject, Status(..) | Device(_) | Deadline(..) | Quarantine(_))
}

fn is_old(stored_at: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(stored_at)).is_ok_and(|age| age >= REASSERT_AFTER)
}
