//! Queues facts for LEDGER: their order, and the position from which LEDGER must be read again if the outcome of one is unknown.
//! It sends nothing itself.

use std::collections::VecDeque;

use fastrand::Rng;
use muster_bus::{Stored, Trace};
use muster_contract::decode::Document;
use muster_contract::fact::PulseFact;
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_domain::intake::{IntakeState, Publication};

use super::io::{Effect, OrderRule};
use crate::ledger_publisher::HighWater;
use crate::limits::{BATCH, FACTS_IN_FLIGHT, RUN_ANSWER};
use crate::message::is_always_traced;

/// Facts that are sent one after the other and share confirmations. Fewer are confirmed one by one, and sooner.
const RUN_MIN: usize = 64;
/// Bytes of the largest fact of a run: far from what LEDGER refuses.
const RUN_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 16;

const _: () = assert!(RUN_ANSWER < RUN_MIN && RUN_MIN < FACTS_IN_FLIGHT);

/// How the waiting facts are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// No fact was sent since the last poll of answers.
    Idle,
    OneByOne,
    Run,
}

/// Facts of one partition that wait or are in flight.
#[derive(Debug)]
pub(super) struct FactQueue {
    waiting: VecDeque<(Publication, Option<Trace>)>,
    /// The facts in flight, in the order of sending.
    in_flight: VecDeque<InFlight>,
    sending: Sending,
    high_water: HighWater,
    /// Everything of this partition up to here is confirmed.
    confirmed_through: u64,
    /// Up to here LEDGER holds nothing of this partition that the intake does not know: it was read, or LEDGER stored a fact of this
    /// session behind it, so that no other process owned the partition.
    owned_through: u64,
}

/// A fact in flight.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    kind: &'static str,
    /// The highest known position when it was sent: LEDGER stores it behind that.
    behind: u64,
}

impl FactQueue {
    pub(super) fn new(high_water: HighWater, read_through: u64) -> Self {
        let confirmed_through = high_water.now();
        Self {
            waiting: VecDeque::with_capacity(BATCH),
            in_flight: VecDeque::with_capacity(FACTS_IN_FLIGHT),
            sending: Sending::Idle,
            high_water,
            confirmed_through,
            owned_through: read_through,
        }
    }

    /// Queues the publications of the intake, under the trace of their cause if that is sampled. If the cause has no trace, one fact
    /// in [`TRACE_ONE_IN`](muster_bus::event::TRACE_ONE_IN) begins one. Incidents, quarantined messages and verdicts always have
    /// one.
    pub(super) fn collect(&mut self, intake: &mut IntakeState, cause: Option<Trace>, rng: &mut Rng) {
        let mut sampled = cause.filter(|trace| trace.is_sampled());
        while let Some(publication) = intake.next_publication() {
            if sampled.is_none() && is_always_traced(&publication.fact) {
                sampled = Some(cause.map_or_else(|| Trace::random(rng), Trace::into_sampled));
            }
            let begun = || if cause.is_none() { Trace::sample(rng) } else { None };
            self.waiting.push_back((publication, sampled.or_else(begun)));
        }
    }

    /// The next effect that sends waiting facts: as a run if there are enough to share confirmations, up to the first very large
    /// fact. After the last fact, the answers that have arrived are polled.
    pub(super) fn next_effect<D>(&mut self, broken: Option<OrderRule>) -> Option<Effect<D>> {
        let Some((next, _)) = self.waiting.front() else { return self.end() };
        match self.sending {
            Sending::Idle if self.waiting.len() >= RUN_MIN => {
                self.sending = Sending::Run;
                return Some(Effect::BeginRun);
            }
            Sending::Idle => self.sending = Sending::OneByOne,
            // If it is too large for LEDGER, LEDGER refuses the rest of the run with it.
            Sending::Run if next.payload.len() > RUN_BYTES_MAX => {
                self.sending = Sending::OneByOne;
                return Some(Effect::EndRun);
            }
            Sending::OneByOne | Sending::Run => {}
        }
        if self.in_flight.is_empty() || broken == Some(OrderRule::ReadAgainFromOldest) {
            // No fact of this partition is in flight, so LEDGER stores the next one behind every known position.
            self.confirmed_through = self.high_water.now();
        }
        let (publication, trace) = self.waiting.pop_front()?;
        self.in_flight.push_back(InFlight { kind: publication.fact.kind(), behind: self.high_water.now() });
        Some(Effect::Publish(publication, trace))
    }

    fn end<D>(&mut self) -> Option<Effect<D>> {
        match self.sending {
            Sending::Idle => None,
            Sending::Run => {
                self.sending = Sending::OneByOne;
                Some(Effect::EndRun)
            }
            Sending::OneByOne => {
                self.sending = Sending::Idle;
                Some(Effect::PollAnswers)
            }
        }
    }

    /// Removes the oldest fact in flight, which LEDGER has stored; returns its kind.
    pub(super) fn confirmed(&mut self, stored: Stored) -> Option<&'static str> {
        let InFlight { kind, behind } = self.in_flight.pop_front()?;
        if !stored.duplicate {
            self.owned_through = self.owned_through.max(behind);
        }
        // A duplicate has its first position, which proves nothing about the facts sent before it. A run has one position, that
        // of its last fact: none of its facts is confirmed earlier. LEDGER soon removes a pulse, and its position with it.
        if !stored.duplicate && kind != PulseFact::KIND {
            self.high_water.reached(stored.sequence);
            self.confirmed_through = self.confirmed_through.max(stored.sequence);
            self.owned_through = self.owned_through.max(stored.sequence);
        }
        Some(kind)
    }

    /// Removes the oldest fact in flight, which LEDGER will never store.
    pub(super) fn refused(&mut self) {
        self.in_flight.pop_front();
    }

    /// Facts that are not confirmed.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    /// Whether every fact is confirmed.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// The position after which LEDGER must be read again: see [`SessionCore::read_after`](super::SessionCore::read_after).
    pub(super) const fn read_after(&self) -> u64 {
        self.confirmed_through
    }

    /// The position up to which the confirmed state of this partition contains all of LEDGER. The highest known position may be
    /// above it: the process may have lost this partition, without knowing it yet, and learned the position from another one.
    pub(super) const fn snapshot_position(&self) -> u64 {
        self.owned_through
    }

    /// The highest position that LEDGER is known to have reached.
    pub(super) fn reached(&self) -> u64 {
        self.high_water.now()
    }
}
