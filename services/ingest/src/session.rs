//! The session of a partition as a state machine: inputs in ([`Input`]), effects out ([`Effect`]), one at a time.
//!
//! It decides the order of effects and does nothing else: no bus, no clock, no task. Its driver (`consume::driver` over the bus,
//! the simulation over a simulated one) hands in inputs ([`SessionCore::handle`]), asks for the next effect
//! ([`SessionCore::next_effect`]) and carries it out before it asks again. [`IntakeState`] has the rules of the partition's
//! devices; the driver passes it to every call.
//!
//! The process may end between any two effects, and so may the connection:
//!
//! | between | the streams hold | recovery |
//! |---|---|---|
//! | a delivery and the first publish | UPLINK: the report | UPLINK delivers it again |
//! | storing a rejected report and its answer | QUARANTINE: perhaps the payload; UPLINK: the report | UPLINK delivers it again, and QUARANTINE recognises its message id |
//! | that answer and the fact | QUARANTINE: the payload; UPLINK: the report | the same |
//! | two publishes, or a publish and its answer | LEDGER: perhaps the fact | the session is lost, see below |
//! | an answer and the acknowledgement | LEDGER: the fact; UPLINK: the report | the report comes again, a duplicate |
//! | the acknowledgement and its arrival | the same | the same |
//! | two reports of a batch, or the first and the last of their facts | UPLINK: the batch; LEDGER: some of its facts | the batch comes again; its known reports are duplicates |
//! | reading documents and evaluating | UPLINK: the report | UPLINK delivers it again |
//! | taking a receipt and sending it | DOWNLINK: an older one | a receipt is owed again, see below |
//! | a snapshot and the next fact | a snapshot below every unconfirmed fact | the next start reads on from there |
//!
//! After a lost session the next one reads LEDGER from [`SessionCore::read_after`] to its own record, and unacknowledged reports
//! come again. [`IntakeState::rewind`] owes receipts in flight again, and so does a standstill; a new process owes one to every
//! device that it hears.
//!
//! Another process may own the partition: then LEDGER refuses every fact, which loses the session. Receipts have no such fence:
//! after a standstill the owner is read before they are sent, and `verify` replaces a receipt that a former owner sent. LEDGER
//! may be another one over a new connection: no effect is carried out before LEDGER was checked there.

mod content;
mod evaluate;
mod facts;
mod io;
mod receipts;
mod receive;
mod rejections;

use std::collections::VecDeque;

use fastrand::Rng;
use muster_bus::Stored;
use muster_contract::report::Report;
use muster_contract::subjects::{Origin, origin};
use muster_contract::{LabelError, Timestamp};
use muster_domain::intake::{IncomingReport, IntakeState, Watermarks};

use self::content::MessageContent;
use self::evaluate::ReportQueue;
use self::facts::FactQueue;

pub(crate) use self::content::{report_bytes_max, reports_declared};
pub use self::io::{Conditions, Effect, FactAnswer, Input, OrderRule, ReportDelivery, SessionStart};
pub(crate) use self::io::{EvaluatedMessage, OldFacts};
use self::receipts::ReceiptQueue;
pub(crate) use self::receipts::STANDSTILL;
pub use self::receive::STALL;
pub(crate) use self::receive::TICK;
use self::receive::{ReceiveHealth, Received};
use crate::heartbeat_reader;
use crate::limits::{BATCH, FACTS_IN_FLIGHT};
use crate::metrics::PartitionMetrics;

/// Reports settled before the next acknowledgement, unless nothing else is in flight.
const ACK_EVERY: usize = 64;

const _: () = assert!(ACK_EVERY < FACTS_IN_FLIGHT);

/// The progress of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TickStep {
    Idle,
    PollHeartbeats,
    PassTime,
}

/// One session of a partition: from its subscriptions to the first fact with an unknown outcome, or to the end.
#[derive(Debug)]
pub struct SessionCore<D> {
    reports: ReportQueue<D>,
    facts: FactQueue,
    /// Messages whose reports are evaluated and not all settled, oldest first.
    evaluated: VecDeque<EvaluatedMessage<D>>,
    /// Settled reports of the oldest of them.
    settled_reports: usize,
    /// Settled messages without an effect so far, oldest first.
    settled: VecDeque<EvaluatedMessage<D>>,
    /// Settled messages that had their effect and are not acknowledged.
    unacknowledged: usize,
    receive: ReceiveHealth,
    receipts: ReceiptQueue,
    /// Rejected reports that QUARANTINE has yet to answer for.
    rejections: usize,
    tick: TickStep,
    is_snapshot_due: bool,
    /// The position through which the oldest part of LEDGER was handed in.
    old_through: u64,
    /// Positions in that part, each with the number of confirmed publications that re-asserts it.
    reasserting: VecDeque<(u64, u64)>,
    is_lost: bool,
    broken: Option<OrderRule>,
    metrics: PartitionMetrics,
    rng: Rng,
}

impl<D: ReportDelivery> SessionCore<D> {
    /// A session with nothing in flight.
    pub fn new(intake: &mut IntakeState, start: SessionStart, metrics: PartitionMetrics, rng: Rng) -> Self {
        let SessionStart { now, link, high_water, read_through, reasserted_through } = start;
        intake.resume_receiving(now);
        Self {
            reports: ReportQueue::default(),
            facts: FactQueue::new(high_water, read_through),
            evaluated: VecDeque::with_capacity(BATCH),
            settled_reports: 0,
            settled: VecDeque::new(),
            unacknowledged: 0,
            receive: ReceiveHealth::new(link, now),
            receipts: ReceiptQueue::new(now),
            rejections: 0,
            tick: TickStep::Idle,
            is_snapshot_due: false,
            old_through: reasserted_through,
            reasserting: VecDeque::new(),
            is_lost: false,
            broken: None,
            metrics,
            rng,
        }
    }

    /// Breaks a rule from now on, so that a test can show that the simulation notices.
    #[doc(hidden)]
    pub const fn break_rule(&mut self, rule: OrderRule) {
        self.broken = Some(rule);
    }

    fn holds(&self, rule: OrderRule) -> bool {
        self.broken != Some(rule)
    }

    /// Applies an input; the next effects follow from it. A lost session ignores inputs: an answer to a later fact would move the
    /// position from which LEDGER is read behind the fact with the unknown outcome.
    pub fn handle(&mut self, intake: &mut IntakeState, input: Input<D>, now: Timestamp) {
        if self.is_lost {
            return;
        }
        // After a step of the clock the recorded times must be limited before a heartbeat is compared with them.
        if self.receive.has_stalled(now) {
            intake.resume_receiving(now);
        }
        match input {
            Input::Reports(reports, complete_through) => self.reports.push(reports, complete_through),
            Input::DocumentsRead(key, are_known) => self.reports.documents_read(key, are_known),
            Input::Heartbeats(beats) => beats.iter().for_each(|beat| self.heartbeat(intake, beat, now)),
            Input::FactAnswer(answer) => self.fact_answered(intake, answer, now),
            Input::RejectionAnswer(ticket, answer) => self.rejection_answered(intake, ticket, answer, now),
            Input::ReceiptAnswer(key, is_stored) => self.receipts.answered(intake, &key, is_stored),
            Input::Tick => self.tick = TickStep::PollHeartbeats,
            Input::ReceiptsDue => self.receipts.is_due = true,
            Input::OwnerRead(is_ours) => self.receipts.owner_read(intake, is_ours, now),
            Input::SnapshotDue => self.is_snapshot_due = true,
            Input::Aged(facts) => {
                facts.iter().for_each(|(subject, fact)| _ = intake.reassert_if_old(subject, fact, now));
            }
            Input::OldFacts(old) => self.reassert(intake, &old, now),
            Input::Stop => intake.publish_batches(),
        }
    }

    /// The next effect; `None` until the next input.
    pub fn next_effect(&mut self, intake: &mut IntakeState, conditions: &Conditions) -> Option<Effect<D>> {
        let may_write = conditions.sees_ledger() || !self.holds(OrderRule::LedgerBeforeEffects);
        if self.is_lost || !may_write {
            return None;
        }
        if !self.reports.is_empty() {
            if let Some(key) = self.evaluate(intake, conditions.now) {
                return Some(Effect::ReadDocuments(key));
            }
            if self.reports.is_reading() {
                return None;
            }
        }
        if let Some(at) = self.reports.complete_through.take_if(|_| self.reports.reports.is_empty()) {
            self.receive.set_complete_through(at);
        }
        self.pass_time(intake, conditions)
            .or_else(|| self.store_rejected(intake, conditions.now))
            .or_else(|| self.publish(intake))
            .or_else(|| self.acknowledge_settled(intake))
            .or_else(|| self.reasserted(intake))
            .or_else(|| self.send_receipt(intake, conditions.now))
            .or_else(|| std::mem::take(&mut self.is_snapshot_due).then(|| self.snapshot()))
    }

    /// Lets time pass, unless the hub does not receive.
    fn pass_time(&mut self, intake: &mut IntakeState, conditions: &Conditions) -> Option<Effect<D>> {
        match self.tick {
            TickStep::Idle => return None,
            TickStep::PollHeartbeats if self.holds(OrderRule::HeartbeatsBeforeTime) => {
                self.tick = TickStep::PassTime;
                return Some(Effect::PollHeartbeats);
            }
            TickStep::PollHeartbeats | TickStep::PassTime => self.tick = TickStep::Idle,
        }
        let received = if self.holds(OrderRule::ReceivedBeforeTime) {
            self.receive.check(conditions)
        } else {
            Received::Through(Watermarks::all(conditions.now))
        };
        match received {
            Received::Nothing => {}
            Received::Stalled => intake.resume_receiving(conditions.now),
            Received::Through(watermarks) => {
                intake.tick(conditions.now, watermarks);
                self.metrics.devices.set(i64::try_from(intake.devices()).unwrap_or(i64::MAX));
            }
        }
        None
    }

    fn heartbeat(&mut self, intake: &mut IntakeState, delivery: &D, now: Timestamp) {
        match heartbeat_reader::parse(delivery.subject(), delivery.payload()) {
            Some((key, Some(beat))) => {
                self.metrics.all.heartbeats.inc();
                intake.apply_heartbeat(&key, &beat, delivery.stored_at(), now);
            }
            Some((key, None)) => {
                self.metrics.all.heartbeats_refused.inc();
                intake.record_contact(&key, delivery.stored_at(), now);
            }
            None => _ = self.metrics.all.heartbeats_refused.inc(),
        }
    }

    /// Publishes the waiting facts: many of them as a run.
    fn publish(&mut self, intake: &mut IntakeState) -> Option<Effect<D>> {
        self.facts.collect(intake, None, &mut self.rng);
        self.facts.next_effect(self.broken)
    }

    fn fact_answered(&mut self, intake: &mut IntakeState, answer: FactAnswer, now: Timestamp) {
        match answer {
            FactAnswer::Stored(stored) => {
                if let Some(kind) = self.facts.confirmed(stored) {
                    intake.confirm();
                    self.metrics.all.fact(kind, 1);
                }
            }
            FactAnswer::Unstorable(answer) => self.replace_unstorable(intake, &answer, now),
            FactAnswer::Unknown if !self.holds(OrderRule::UnknownIsNotStored) => {
                self.facts.confirmed(Stored { sequence: 0, duplicate: true });
                intake.confirm();
            }
            FactAnswer::Unknown => self.is_lost = true,
        }
    }

    /// Replaces the oldest fact, which LEDGER will never store. The report that it followed from is settled by the replacement.
    fn replace_unstorable(&mut self, intake: &mut IntakeState, answer: &str, now: Timestamp) {
        self.metrics.all.unstorable.inc();
        self.facts.refused();
        let cause = intake.cause_of_oldest().and_then(|at| self.evaluated_report(at));
        let content = cause.map(|(delivery, at)| (delivery, MessageContent::of(delivery), at));
        let cause =
            content.as_ref().map(|(delivery, content, at)| incoming_report(*delivery, content, *at, now));
        if intake.replace_unstorable(answer, cause).is_err() {
            self.is_lost = true;
        }
    }

    /// An unsettled report, counted from the oldest: its message and its position there.
    fn evaluated_report(&self, at: usize) -> Option<(&D, usize)> {
        let mut at = at + self.settled_reports;
        for EvaluatedMessage { delivery, reports, .. } in &self.evaluated {
            if at < *reports {
                return Some((delivery, at));
            }
            at -= reports;
        }
        None
    }

    /// Settles the messages whose reports all have their facts confirmed, one effect each; acknowledges the newest of them, which
    /// covers all before it.
    fn acknowledge_settled(&mut self, intake: &mut IntakeState) -> Option<Effect<D>> {
        let is_hasty = !self.holds(OrderRule::ConfirmedBeforeAcknowledged);
        self.settled_reports += intake.drain_settled();
        while let Some(EvaluatedMessage { reports, .. }) = self.evaluated.front()
            && (is_hasty || self.settled_reports >= self.must_be_settled(*reports))
        {
            self.settled_reports = self.settled_reports.saturating_sub(*reports);
            self.settled.extend(self.evaluated.pop_front());
        }
        if self.settled.len() > 1 {
            self.unacknowledged += 1;
            return self.settled.pop_front().map(Effect::Settle);
        }
        let is_due = is_hasty || self.facts.is_empty() || self.unacknowledged + 1 >= ACK_EVERY;
        let newest = self.settled.pop_front_if(|_| is_due)?;
        self.unacknowledged = 0;
        Some(Effect::Acknowledge(newest))
    }

    /// The reports of a message that must be settled before it is.
    fn must_be_settled(&self, reports: usize) -> usize {
        if self.holds(OrderRule::WholeBatchBeforeAcknowledged) { reports } else { reports.min(1) }
    }

    /// Re-asserts the facts of the oldest part of a nearly full LEDGER that still hold.
    fn reassert(&mut self, intake: &mut IntakeState, old: &OldFacts, now: Timestamp) {
        let through = self.old_through;
        // An earlier session got the facts before these: they are handed in again.
        if old.after > through {
            return;
        }
        for (position, subject, fact) in old.facts.iter().filter(|(position, ..)| *position > through) {
            intake.reassert_early(subject, fact, *position, now);
        }
        self.old_through = through.max(old.through);
        self.reasserting.push_back((old.through, intake.published()));
    }

    fn reasserted(&mut self, intake: &IntakeState) -> Option<Effect<D>> {
        let (through, _) = self.reasserting.pop_front_if(|(_, made)| *made <= intake.confirmed())?;
        Some(Effect::Reasserted(through))
    }

    /// Sends a receipt that is due.
    fn send_receipt(&mut self, intake: &mut IntakeState, now: Timestamp) -> Option<Effect<D>> {
        let asks_owner = self.holds(OrderRule::OwnerBeforeReceipts);
        if std::mem::take(&mut self.receipts.is_due)
            && self.receive.is_up()
            && self.receipts.collect_due(intake, now, asks_owner)
        {
            return Some(Effect::ReadOwner);
        }
        self.receipts.next(intake, now).map(|(key, receipt)| Effect::SendReceipt(key, receipt))
    }

    fn snapshot(&self) -> Effect<D> {
        let is_ordered = self.holds(OrderRule::ConfirmedBeforeSnapshot);
        Effect::SaveSnapshot(if is_ordered { self.facts.snapshot_position() } else { self.facts.reached() })
    }

    /// Whether the session is over because the outcome of a fact is unknown.
    pub const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Reports that are not evaluated yet.
    pub(crate) fn reports_to_evaluate(&self) -> usize {
        self.reports.len()
    }

    /// Whether further reports may be handed in: none wait to be evaluated.
    pub(crate) fn is_ready_for_reports(&self) -> bool {
        self.reports.is_empty()
    }

    /// Facts that LEDGER has yet to confirm.
    pub fn facts_unconfirmed(&self) -> usize {
        self.facts.len()
    }

    /// Receipts that DOWNLINK has yet to confirm.
    pub(crate) fn receipts_unconfirmed(&self) -> usize {
        self.receipts.unconfirmed()
    }

    /// The position after which LEDGER must be read to learn the outcome of the facts in flight, once the partition is taken
    /// again: until then more of them may arrive.
    pub const fn read_after(&self) -> u64 {
        self.facts.read_after()
    }
}

/// One report of a delivery.
fn incoming_report<'a, D: ReportDelivery>(
    delivery: &D,
    content: &'a MessageContent<'_>,
    at: usize,
    now: Timestamp,
) -> IncomingReport<'a> {
    let payload = content.report(at);
    let parsed = match content {
        MessageContent::Refused(_, refusal) => Err(refusal.clone()),
        MessageContent::Single(_) | MessageContent::Batch(_) => Report::parse(payload),
    };
    IncomingReport {
        origin: origin(delivery.subject()).unwrap_or_else(|| unknown_origin(delivery.subject())),
        parsed,
        payload,
        position: delivery.position(),
        stored_at: delivery.stored_at(),
        now,
    }
}

/// The origin of a subject that UPLINK cannot have by the contract: it names no sender.
fn unknown_origin(subject: &str) -> Origin {
    Origin {
        device: Err(LabelError { what: "subject of a report", text: subject.to_owned() }),
        subject: subject.to_owned(),
    }
}

#[cfg(test)]
mod tests;
