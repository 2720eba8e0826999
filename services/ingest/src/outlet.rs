//! The way into LEDGER: facts under way, and the position from which LEDGER must be read again if the fate of one is
//! unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_bus::{Bus, Outgoing, PublishError, Stored, Window};
use muster_contract::decode::Document;
use muster_contract::fact::PulseFact;
use muster_contract::limits::MESSAGE_BYTES_MAX;

use crate::ownership::Claim;

/// Facts of one partition under way at once. All partitions together stay below what a stream of the oldest supported
/// server takes in at once (10,000 messages), and pipelining gains little beyond.
pub const FACTS_IN_FLIGHT: usize = 128;

const _: () = assert!(FACTS_IN_FLIGHT * (muster_contract::limits::PARTITIONS as usize) < 10_000);

/// Facts that are sent one after the other and share confirmations. Fewer are confirmed one by one, and sooner.
const RUN_MIN: usize = 64;
/// Facts of a run with one confirmation.
const RUN_ANSWER: usize = FACTS_IN_FLIGHT / 4;
/// Bytes of the largest fact of a run: far from what LEDGER refuses.
const RUN_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 16;

const _: () = assert!(RUN_ANSWER < RUN_MIN && RUN_MIN < FACTS_IN_FLIGHT);

/// The highest position in LEDGER that any partition of this process knows to be reached.
#[derive(Debug, Clone, Default)]
pub struct HighWater(Arc<AtomicU64>);

/// Facts of one partition under way.
#[derive(Debug)]
pub struct Outlet {
    window: Window<&'static str>,
    claim: Claim,
    high_water: HighWater,
    /// Everything of this partition up to here is confirmed.
    settled_to: u64,
}

impl HighWater {
    /// Notes a position.
    pub fn reached(&self, position: u64) {
        self.0.fetch_max(position, Ordering::AcqRel);
    }

    /// The position.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Outlet {
    /// An outlet with nothing under way, for the owner of a partition.
    pub fn new(bus: &Bus, claim: Claim, high_water: HighWater) -> Self {
        let settled_to = high_water.now();
        Self { window: bus.window(FACTS_IN_FLIGHT).told_whole(), claim, high_water, settled_to }
    }

    /// Sends a fact of a kind, waiting while too many are under way.
    pub async fn send(&mut self, letter: Outgoing, kind: &'static str) {
        if letter.payload.len() > RUN_BYTES_MAX {
            // Were it too large for LEDGER, the rest of the run would be refused with it.
            self.end_run().await;
        }
        if self.window.is_empty() {
            // Nothing of this partition is under way, so nothing of it can be stored below what others have reached.
            self.settled_to = self.high_water.now();
        }
        self.window.send(self.claim.stamp(letter), kind).await;
    }

    /// Sends what follows as a run, where it is long enough to share confirmations, up to a fact that is very large. Not to a
    /// replicated LEDGER: there it is not known to be quicker, and what a server says of batches while leaders change is
    /// young.
    pub async fn begin_run(&mut self, letters: usize) {
        if letters >= RUN_MIN && !self.claim.is_of_many_lanes() {
            self.window.batch_by(RUN_ANSWER).await;
        }
    }

    /// The run is over: has the rest of it confirmed.
    pub async fn end_run(&mut self) {
        self.window.end_batch().await;
    }

    /// The next confirmation in the order of sending, as the fact's kind; `None` when nothing is under way. Cancel-safe.
    pub async fn confirmation(&mut self) -> Option<Result<&'static str, PublishError>> {
        let answer = self.window.next().await;
        answer.map(|answer| self.note(answer))
    }

    /// The next confirmation if it is there.
    pub fn try_confirmation(&mut self) -> Option<Result<&'static str, PublishError>> {
        let answer = self.window.try_next();
        answer.map(|answer| self.note(answer))
    }

    /// Facts under way.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// True when nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// The position after which LEDGER must be read to learn what became of the facts under way, once the partition
    /// has been taken anew: until then more of them may arrive.
    pub const fn read_after(&self) -> u64 {
        self.settled_to
    }

    /// LEDGER holds no fact of this partition up to here that is not confirmed.
    pub fn confirmed_to(&self) -> u64 {
        // What is sent from now on is stored behind what anybody has reached.
        if self.window.is_empty() { self.high_water.now() } else { self.settled_to }
    }

    fn note(
        &mut self,
        (kind, answer): (&'static str, Result<Stored, PublishError>),
    ) -> Result<&'static str, PublishError> {
        let stored = answer?;
        // One that was stored before has its first position, which says nothing of those sent before this one. Of a run only
        // the highest is told, with its last fact: none of its facts is confirmed before.
        // A pulse is soon gone, and no place to remember.
        if !stored.duplicate && kind != PulseFact::KIND {
            self.high_water.reached(stored.sequence);
            self.settled_to = self.settled_to.max(stored.sequence);
        }
        Ok(kind)
    }
}
