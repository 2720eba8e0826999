//! The relay as a state machine: it takes inputs ([`Input`]) and returns effects ([`Effect`]), one at a time. It
//! sends reports from the outbox to UPLINK, and heartbeats, in sessions: a session begins over a connection and lasts
//! until the connection ends, something fails, or a new epoch begins.
//!
//! It owns the order of effects and does nothing itself: no bus, no outbox, no clock, no task. Its driver
//! (`relay::driver` over the bus, the simulation over a simulated one) hands in inputs ([`RelayCore::handle`]), asks
//! for the next effect ([`RelayCore::next_effect`]), carries it out before it asks again, and asks anew at
//! [`RelayCore::deadline`]. `send_queue` chooses the next reports, and [`budget`](super::budget)
//! limits their bytes.
//!
//! The process may end between any two effects, and so may the connection:
//!
//! | between | outbox and UPLINK hold | recovery |
//! |---|---|---|
//! | the status and the epoch | no epoch, nothing sent | the next session asks for the receipt and fixes it |
//! | the epoch and the first message | the epoch | it stays |
//! | the epoch and the receipt | rows, queued; UPLINK: perhaps others of their numbers | the outbox begins a new epoch |
//! | the status and its heartbeat | PRESENCE: an older one | the next session begins with a heartbeat |
//! | reading a row and sending it | the row, queued | it is read again |
//! | sending it and the answer | the row, queued; UPLINK: perhaps the report | it is sent again under its message id |
//! | the same for a batch | its rows, queued; UPLINK: perhaps all of them | they are sent again, perhaps in other batches |
//! | the answer and the mark | the row, queued; UPLINK: the report | the same, a duplicate |
//! | the mark and a receipt | the row, sent | a receipt covers it or misses it, or it is requeued in time |
//! | two marks | the rows of the first, sent | the others are sent again, duplicates |
//!
//! Two sets of rows outlive a session: confirmed rows that are not marked yet, and rows that UPLINK refuses for good.
//! A full share of UPLINK pauses sending and does not end the session.

mod closing;
mod io;
mod marks;
mod reports;

use std::time::Duration;
use std::vec::IntoIter;

use fastrand::Rng;
use muster_bus::Link;
use muster_contract::Epoch;
use muster_contract::limits::{HEARTBEAT_JITTER, IN_FLIGHT_MAX};
use muster_contract::presence::Heartbeat;
use muster_contract::version::ApiVersion;
use muster_service::backoff::FullJitter;
use tokio::time::Instant;

pub use self::io::{DeviceStatus, Effect, Input, OrderRule, OutgoingBatch, OutgoingReport, Ticket};
use self::marks::{MARK_RETRY, Marks};
use super::budget::{Allowance, Budget};
use super::send_queue::{AnswerOutcome, SendLimits, SendQueue, WINDOW_MIN};
use crate::outbox::{Batch, Row};

/// Bounds of the delay before the next session over the same connection.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// A session that lasts this long went well: the delay after it is the shortest again.
const GOOD_SESSION: Duration = Duration::from_secs(10);
/// Time between two rounds of maintenance of the outbox.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Time to send the remaining reports when the agent stops.
const FLUSH: Duration = Duration::from_secs(3);

/// Rows from which a backlog is long: then its rows are sent in batches that share answers.
const BATCH_ROWS_MIN: u64 = 500;
/// Answers per window of batched rows: a full window must never wait for rows that are not sent yet.
const BATCH_ANSWERS: usize = 4;
/// A batch that pauses longer is ended, because the server forgets one that is silent for ten seconds.
const BATCH_PAUSE_MAX: Duration = Duration::from_secs(3);
/// How long rows are collected for the next message while one is under way.
const COLLECT: Duration = Duration::from_millis(25);
/// Bounds of the pause while the device's share of UPLINK is full. Ingest makes room within tens of milliseconds; for a
/// device beyond its quota, at the quota's rate.
const FULL_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

const _: () =
    assert!(BATCH_ANSWERS >= 2 && WINDOW_MIN >= BATCH_ANSWERS && BATCH_ROWS_MIN > IN_FLIGHT_MAX as u64);
const _: () =
    assert!(RETRY.0.as_millis() < GOOD_SESSION.as_millis() && GOOD_SESSION.as_secs() < RETRY.1.as_secs());
const _: () = assert!(MARK_RETRY.as_millis() < FLUSH.as_millis());

/// The reason for the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    /// The connection is another one, or gone.
    LinkLost,
    /// Something failed; the next session begins after a delay.
    Failed,
    /// The agent stops, and every report that could be sent was.
    Stopped,
}

/// The progress of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionPhase {
    /// No session.
    Closed,
    /// A session begins; whether the epoch is fixed is not known yet.
    Opening,
    /// The epoch is to be fixed: at once, or after the receipt was fetched.
    WithoutEpoch { needs_receipt: bool },
    /// Reports are sent.
    Open(Epoch),
    /// Confirmed rows are marked; then the session is over.
    Closing(SessionEnd, Option<Epoch>),
    /// The agent stops.
    Stopped,
}

/// The relay of a device, from its start to its stop.
#[derive(Debug)]
pub struct RelayCore {
    heartbeat_interval: Duration,
    queue: SendQueue,
    budget: Budget,
    rng: Rng,
    broken_rule: Option<OrderRule>,
    link: Link,
    is_new_link: bool,
    is_receipt_fetched: bool,
    is_stopping: bool,
    /// Rows may be sent in batches. Not tried again over a connection on which a batch failed.
    may_batch: bool,
    retry_delays: FullJitter,
    retry_at: Option<Instant>,

    phase: SessionPhase,
    session: u64,
    started_at: Option<Instant>,
    /// The driver has yet to hand in the answer to the last effect.
    is_awaiting: bool,
    /// The heartbeat to be sent.
    heartbeat: Option<Heartbeat>,
    /// The last marks of this session were requested.
    is_last_mark_requested: bool,
    /// The last heartbeat before the agent stops was requested.
    is_last_heartbeat_requested: bool,
    /// The first heartbeat of this session was composed, or skipped because the device is retired.
    is_first_heartbeat_done: bool,
    next_heartbeat: Option<Instant>,
    next_maintenance: Option<Instant>,
    /// Rows that were read and not sent, by message, and the head at that time.
    messages: IntoIter<Vec<Row>>,
    head: u64,
    /// Rows were sent, and the next ones may be read ahead.
    may_read_ahead: bool,
    /// Rows are read ahead.
    is_read_ahead: bool,
    /// A long backlog is being sent.
    is_backlog_long: bool,
    /// The batch to begin: the number of its reports that share an answer.
    batch: Option<usize>,
    is_in_batch: bool,
    ends_batch: bool,
    /// When the budget allows the next report, or the next message has waited long enough for more rows.
    read_at: Option<Instant>,
    /// Until when rows are collected for the next message.
    collect_until: Option<Instant>,
    full_pauses: FullJitter,
    /// When sending continues after the share was full.
    resume_at: Option<Instant>,
    marks: Marks,
    flush_until: Option<Instant>,
}

impl RelayCore {
    /// A relay without a connection, with the time between two heartbeats.
    pub fn new(heartbeat_interval: Duration, budget: Budget, rng: Rng) -> Self {
        Self {
            heartbeat_interval,
            queue: SendQueue::new(SendLimits::default()),
            budget,
            rng,
            broken_rule: None,
            link: Link::Down,
            is_new_link: false,
            is_receipt_fetched: false,
            is_stopping: false,
            may_batch: true,
            retry_delays: FullJitter::new(RETRY.0, RETRY.1),
            retry_at: None,
            phase: SessionPhase::Closed,
            session: 0,
            started_at: None,
            is_awaiting: false,
            heartbeat: None,
            is_last_mark_requested: false,
            is_last_heartbeat_requested: false,
            is_first_heartbeat_done: false,
            next_heartbeat: None,
            next_maintenance: None,
            messages: Vec::new().into_iter(),
            head: 0,
            may_read_ahead: false,
            is_read_ahead: false,
            is_backlog_long: false,
            batch: None,
            is_in_batch: false,
            ends_batch: false,
            read_at: None,
            collect_until: None,
            full_pauses: FullJitter::new(FULL_PAUSE.0, FULL_PAUSE.1),
            resume_at: None,
            marks: Marks::default(),
            flush_until: None,
        }
    }

    /// Breaks a rule from now on, to show that a test would notice.
    #[doc(hidden)]
    pub const fn break_rule(&mut self, rule: OrderRule) {
        self.broken_rule = Some(rule);
    }

    fn holds(&self, rule: OrderRule) -> bool {
        self.broken_rule != Some(rule)
    }

    /// Takes an input. [`RelayCore::next_effect`] returns the effects that follow from it.
    pub fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Link(link) => self.link_changed(link),
            Input::ReceiptFetched => self.is_receipt_fetched = true,
            Input::OutboxChanged => {
                // Rows that were read ahead may no longer be the next ones.
                self.is_read_ahead = false;
                self.queue.outbox_changed();
            }
            Input::StateChanged => self.next_heartbeat = self.next_heartbeat.map(|_| now),
            Input::Status(status) => self.status_read(status, now),
            Input::EpochFixed(epoch) => self.open(epoch, now),
            Input::Rows(batch) => self.rows_read(batch),
            Input::StorageFailed => {
                self.is_awaiting = false;
                self.end(SessionEnd::Failed);
            }
            Input::Written(bytes) => self.budget.charge(bytes, now),
            Input::Answer(ticket, answer) => self.answered(ticket, answer, now),
            Input::Marked(is_stored) => self.marks.marked(&mut self.queue, is_stored, now),
            Input::BatchFailed => self.may_batch = false,
            Input::Stop => self.stop(now),
        }
    }

    /// The next effect; none before the next input or the deadline.
    pub fn next_effect(&mut self, now: Instant) -> Option<Effect> {
        if self.is_awaiting {
            return None;
        }
        match self.phase {
            SessionPhase::Closed => self.start_session(now),
            SessionPhase::Opening => self.await_answer(Effect::ReadStatus),
            SessionPhase::WithoutEpoch { needs_receipt } => self.fix_epoch(needs_receipt),
            SessionPhase::Open(epoch) => self.next_in_session(epoch, now),
            SessionPhase::Closing(end, epoch) => self.close(end, epoch, now),
            SessionPhase::Stopped => None,
        }
    }

    /// When to ask for an effect although no input came.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            SessionPhase::Closed => self.retry_at.filter(|_| self.link.is_up()),
            SessionPhase::Open(_) => {
                let (beat, maintenance, mark) =
                    (self.next_heartbeat, self.next_maintenance, self.marks.due_at());
                let all = [beat, maintenance, mark, self.read_at, self.resume_at, self.flush_until];
                all.into_iter().flatten().min()
            }
            _ => None,
        }
    }

    /// There is a session: opening, open or closing.
    pub const fn is_in_session(&self) -> bool {
        !matches!(self.phase, SessionPhase::Closed | SessionPhase::Stopped)
    }

    /// The hub's last receipt was fetched and stored, or there is none.
    pub(crate) const fn is_receipt_fetched(&self) -> bool {
        self.is_receipt_fetched
    }

    /// The agent stops and every report that could be sent was.
    pub fn has_stopped(&self) -> bool {
        self.phase == SessionPhase::Stopped
    }

    fn await_answer(&mut self, effect: Effect) -> Option<Effect> {
        self.is_awaiting = true;
        Some(effect)
    }

    /// Begins a session, if there is a connection and the delay is over.
    fn start_session(&mut self, now: Instant) -> Option<Effect> {
        if !self.link.is_up() || self.retry_at.is_some_and(|at| at > now) {
            return None;
        }
        if std::mem::take(&mut self.is_new_link) {
            self.queue.reconnected();
            self.may_batch = true;
        }
        (self.session, self.started_at, self.retry_at) = (self.session + 1, Some(now), None);
        self.phase = SessionPhase::Opening;
        self.await_answer(Effect::ReadStatus)
    }

    fn fix_epoch(&mut self, needs_receipt: bool) -> Option<Effect> {
        if needs_receipt && !self.is_receipt_fetched && self.holds(OrderRule::ReceiptBeforeReports) {
            return None;
        }
        self.await_answer(Effect::FixEpoch)
    }

    fn status_read(&mut self, status: DeviceStatus, now: Instant) {
        self.is_awaiting = false;
        match self.phase {
            SessionPhase::Opening => {
                self.phase = SessionPhase::WithoutEpoch { needs_receipt: status.summary.epoch.is_none() };
                if self.is_stopping {
                    self.stop(now);
                }
            }
            SessionPhase::Open(epoch) | SessionPhase::Closing(SessionEnd::Stopped, Some(epoch)) => {
                self.compose_heartbeat(epoch, status, now);
            }
            _ => {}
        }
    }

    /// Opens the session: the epoch is fixed, and nothing is under way.
    fn open(&mut self, epoch: Epoch, now: Instant) {
        self.is_awaiting = false;
        // The session may have ended meanwhile.
        if !matches!(self.phase, SessionPhase::WithoutEpoch { .. }) {
            return;
        }
        self.phase = SessionPhase::Open(epoch);
        self.queue.start_session(epoch);
        self.full_pauses.reset();
        (self.heartbeat, self.is_first_heartbeat_done) = (None, false);
        let is_first = self.holds(OrderRule::HeartbeatBeforeReports);
        self.next_heartbeat = Some(if is_first { now } else { now + self.heartbeat_interval });
        self.next_maintenance = Some(now);
        (self.messages, self.may_read_ahead, self.is_read_ahead) = (Vec::new().into_iter(), false, false);
        (self.is_backlog_long, self.batch, self.is_in_batch, self.ends_batch) = (false, None, false, false);
        (self.read_at, self.resume_at, self.collect_until) = (None, None, None);
        self.marks = Marks::default();
        self.flush_until = self.is_stopping.then(|| self.flush_end(now));
    }

    /// Composes the heartbeat that is due.
    fn compose_heartbeat(&mut self, epoch: Epoch, status: DeviceStatus, now: Instant) {
        let spread = HEARTBEAT_JITTER * (2.0 * self.rng.f64() - 1.0);
        self.next_heartbeat = Some(now + self.heartbeat_interval.mul_f64(1.0 + spread));
        let DeviceStatus { summary, generation, is_retired, is_storing, refused, token } = status;
        if !std::mem::replace(&mut self.is_first_heartbeat_done, true) {
            self.is_backlog_long = self.may_batch && summary.unsent >= BATCH_ROWS_MIN;
        }
        self.heartbeat = (!is_retired).then(|| Heartbeat {
            api_version: ApiVersion::V1,
            kind: Default::default(),
            epoch,
            head: summary.head,
            unsent: summary.unsent.min(summary.head),
            oldest_unsent_at: summary.oldest_unsent_at,
            generation,
            agent_version: muster_service::VERSION.to_owned(),
            storing: is_storing,
            refused,
            token,
            // The agent sends every change.
            lease_ms: None,
        });
    }

    /// The next effect of an open session: rows that were read come first, then everything that is due, then more rows.
    fn next_in_session(&mut self, epoch: Epoch, now: Instant) -> Option<Effect> {
        if let Some(flow) = self.batch.take() {
            self.is_in_batch = true;
            return Some(Effect::BeginBatch(flow));
        }
        if let Some(rows) = self.messages.next() {
            return self.send(epoch, rows, now);
        }
        if std::mem::take(&mut self.ends_batch) && std::mem::take(&mut self.is_in_batch) {
            return Some(Effect::EndBatch);
        }
        if let Some(effect) = self.read_ahead() {
            return Some(effect);
        }
        if let Some(heartbeat) = self.heartbeat.take() {
            return Some(Effect::SendHeartbeat(heartbeat));
        }
        if is_due(self.next_heartbeat, now) {
            return self.await_answer(Effect::ReadStatus);
        }
        if is_due(self.next_maintenance, now) {
            self.next_maintenance = Some(now + MAINTENANCE_INTERVAL);
            return Some(Effect::MaintainOutbox);
        }
        if self.resume_at.take_if(|at| *at <= now).is_some() {
            self.queue.resume();
        }
        let next = self.marks.next_effect(&self.queue, now).or_else(|| self.read(now));
        if next.is_none() && self.flush_until.is_some_and(|until| until <= now || self.queue.is_idle()) {
            self.end(SessionEnd::Stopped);
            return self.close(SessionEnd::Stopped, Some(epoch), now);
        }
        next
    }
}

fn is_due(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| at <= now)
}

#[cfg(test)]
mod tests;
