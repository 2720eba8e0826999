//! Chooses the rows to send next. Pure: it handles rows that were read, acknowledgements and reconnects, and returns the
//! rows to read and to send. It reads no clock.
//!
//! - After a (re)connect the newest report of each deployment is sent before any other, also one that is written
//!   while a backlog is being sent: rows that were read and not sent are dropped. Once everything is sent, reports
//!   are sent as they are written, so that a subscriber sees fast changes in their order; until more wait than fit
//!   into the window.
//! - At most [`SendLimits::rows`] rows and [`SendLimits::bytes`] bytes are under way; a single row may be larger. A
//!   congestion window limits slow links further: every fast answer makes it one row larger, every slow one smaller,
//!   and a failed session halves it, down to [`WINDOW_MIN`]. Rows that wait in a slow link would delay those that are written next, and time
//!   out in the end.
//! - A transient failure ends the session: whether the rows under way arrived is unknown, so the next session sends
//!   all of them again, in the right order. There is no other path for failures; a lost link takes it too.
//! - A row that UPLINK refuses because the device's share is full is sent again, in its order, after a short pause;
//!   the session and the link last. The first row after the pause is sent alone, so that a throttled device costs
//!   little, and the window grows from there by one row for each answer.
//! - A row that UPLINK rejects for good is logged, left in the outbox and skipped until the next connection. It is
//!   not declared as dropped, because it is not: the hub counts it as missing, so nobody takes an older report of its
//!   deployment for the newest. The bus does not connect to a hub with a smaller message size, so this is a
//!   misconfigured stream, and after a correction the row is sent.
//! - If the hub reads batches, the window counts messages, and `packing` decides which rows share one.

mod packing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_bus::PublishErrorKind;
use muster_bus::publish::CONFIRM_TIMEOUT;
use muster_contract::Epoch;
use muster_contract::limits::IN_FLIGHT_MAX;

use self::packing::Packing;
use crate::outbox::{Batch, READ_ROWS_MAX, ReadRequest, Row};

/// Bytes under way at most, except for a single row.
pub(crate) const IN_FLIGHT_BYTES_MAX: usize = 1024 * 1024;
/// Confirmed rows that may wait to be marked; with more, nothing is sent until they are.
pub(crate) const UNMARKED_MAX: usize = 10_000;
/// Confirmed rows that are marked together.
pub(crate) const ACKNOWLEDGED_MAX: usize = 2_048;

/// This part of the window is read at a time: to read for every single answer would cost more than it sends.
const READ_PART: usize = 4;

/// The congestion window of a new connection, in rows.
pub(crate) const WINDOW_START: usize = 32;
/// The smallest congestion window, in rows.
pub(crate) const WINDOW_MIN: usize = 8;
/// The congestion window after a pause: one row finds out whether there is room again.
pub(crate) const WINDOW_PROBE: usize = 1;
/// An answer within this time enlarges the congestion window.
pub(crate) const FAST_ANSWER: Duration = Duration::from_secs(1);
/// An answer that takes longer shrinks the congestion window.
pub(crate) const SLOW_ANSWER: Duration = Duration::from_secs(3);

const _: () = {
    assert!(ACKNOWLEDGED_MAX < UNMARKED_MAX);
    assert!(
        WINDOW_PROBE < WINDOW_MIN
            && READ_PART < WINDOW_MIN
            && WINDOW_MIN < WINDOW_START
            && WINDOW_START < IN_FLIGHT_MAX
    );
    assert!(
        FAST_ANSWER.as_millis() < SLOW_ANSWER.as_millis()
            && 2 * SLOW_ANSWER.as_secs() < CONFIRM_TIMEOUT.as_secs()
    );
};

/// The limits of what is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendLimits {
    /// Rows.
    pub(crate) rows: usize,
    /// Bytes.
    pub(crate) bytes: usize,
}

impl Default for SendLimits {
    fn default() -> Self {
        Self { rows: IN_FLIGHT_MAX, bytes: IN_FLIGHT_BYTES_MAX }
    }
}

/// The consequence of an answer for the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerOutcome {
    /// Go on.
    Continue,
    /// The device's share is full: nothing is read until [`SendQueue::resume`], after a short pause.
    Pause,
    /// The session is over.
    Restart,
}

/// The state of sending.
#[derive(Debug)]
pub(crate) struct SendQueue {
    limits: SendLimits,
    /// The congestion window: rows that may be under way now.
    window: usize,
    epoch: Option<Epoch>,
    /// Rows without an answer, with their bytes.
    under_way: BTreeMap<u64, usize>,
    /// The bytes of all of them: needed with every answer.
    under_way_bytes: usize,
    /// Confirmed rows that the outbox has not marked yet.
    acknowledged: BTreeSet<u64>,
    rejected: BTreeSet<u64>,
    /// All rows of the backlog up to this one were offered in this session and are tracked here.
    backlog_cursor: u64,
    /// Rows that were sent as the newest of their deployment and that the outbox has not marked yet.
    priority: BTreeSet<u64>,
    /// There may be rows to read.
    may_have_more: bool,
    /// More rows wait than fit, or it is not known how many.
    has_backlog: bool,
    /// The device's share was full at the last answer; nothing is sent meanwhile.
    is_paused: bool,
    /// Rows that share messages.
    packing: Packing,
}

impl SendQueue {
    /// Nothing sent yet.
    pub(crate) fn new(limits: SendLimits) -> Self {
        Self {
            limits,
            window: WINDOW_START.min(limits.rows),
            epoch: None,
            under_way: BTreeMap::new(),
            under_way_bytes: 0,
            acknowledged: BTreeSet::new(),
            rejected: BTreeSet::new(),
            backlog_cursor: 0,
            priority: BTreeSet::new(),
            may_have_more: true,
            has_backlog: true,
            is_paused: false,
            packing: Packing::default(),
        }
    }

    /// Begins a session: nothing is under way any more. In another epoch nothing of the one before counts.
    pub(crate) fn start_session(&mut self, epoch: Epoch) {
        if self.epoch.replace(epoch) != Some(epoch) {
            self.acknowledged.clear();
            self.rejected.clear();
            self.packing = Packing::default();
        }
        self.packing.reset();
        self.under_way.clear();
        self.under_way_bytes = 0;
        // Any of them may have been the newest of its deployment.
        self.priority.clone_from(&self.acknowledged);
        self.backlog_cursor = 0;
        self.may_have_more = true;
        self.has_backlog = true;
        self.is_paused = false;
    }

    /// A new connection: rejected rows may be accepted now, and the speed of the link is unknown.
    pub(crate) fn reconnected(&mut self) {
        self.rejected.clear();
        self.window = WINDOW_START.min(self.limits.rows);
    }

    /// The outbox has changed: rows that were skipped may be queued again.
    pub(crate) fn outbox_changed(&mut self) {
        self.backlog_cursor = 0;
        self.may_have_more = true;
    }

    /// Rows wait although they would fit: newer rows are sent before them.
    pub(crate) fn expect_backlog(&mut self) {
        self.has_backlog = true;
    }

    /// The rows to read, if there is room and may be rows.
    pub(crate) fn read_request(&self) -> Option<ReadRequest> {
        let messages = self.window.saturating_sub(self.messages());
        let bytes = self.bytes().saturating_sub(self.under_way_bytes);
        // A message for what little fits would be a small one.
        let bytes_min = if self.packing.is_on { self.bytes().div_ceil(READ_PART) } else { 1 };
        let room =
            self.under_way.is_empty() || (messages >= self.window.div_ceil(READ_PART) && bytes >= bytes_min);
        (room && self.may_read()).then(|| self.request(self.rows_of(messages), bytes))
    }

    /// The rows to read ahead while there is no room. Newer rows are sent before these, so the result is dropped at
    /// [`outbox_changed`](Self::outbox_changed).
    pub(crate) fn read_ahead_request(&self) -> Option<ReadRequest> {
        let ahead = self.has_backlog && !self.under_way.is_empty() && self.may_read();
        let messages = self.window.div_ceil(READ_PART);
        ahead.then(|| self.request(self.rows_of(messages), self.bytes().div_ceil(READ_PART)))
    }

    /// Rows to read for so many messages.
    const fn rows_of(&self, messages: usize) -> usize {
        if self.packing.is_on { READ_ROWS_MAX } else { messages }
    }

    /// Messages under way.
    fn messages(&self) -> usize {
        self.under_way.len().saturating_sub(self.packing.rows_saved)
    }

    fn may_read(&self) -> bool {
        self.may_have_more && !self.is_paused && self.acknowledged.len() < UNMARKED_MAX
    }

    fn request(&self, rows: usize, bytes: usize) -> ReadRequest {
        ReadRequest {
            newest_first: self.has_backlog,
            except: self.except(),
            after: self.backlog_cursor,
            rows,
            bytes,
        }
    }

    /// Rows that must not be read again. While a backlog is being sent these are few: rows up to the cursor need no
    /// mention.
    fn except(&self) -> BTreeSet<u64> {
        let from = if self.has_backlog { self.backlog_cursor.saturating_add(1) } else { 0 };
        let under_way = self.under_way.range(from..).map(|(seq, _)| seq);
        let acknowledged = self.acknowledged.range(from..);
        under_way.chain(acknowledged).chain(&self.priority).chain(&self.rejected).copied().collect()
    }

    /// Takes the rows that were read and returns those to send, in order. `None` if their epoch is another: then the
    /// session is over.
    pub(crate) fn accept(&mut self, batch: Batch) -> Option<Vec<Row>> {
        if batch.epoch != self.epoch {
            return None;
        }
        self.may_have_more = !batch.rows.is_empty();
        self.has_backlog &= self.may_have_more;
        self.packing.is_on = batch.hub_reads_batches;
        self.packing.has_dictionary = batch.hub_has_dictionary;
        let is_full_read = self.packing.is_on && batch.rows.len() >= READ_ROWS_MAX;
        let mut send = Vec::with_capacity(batch.rows.len());
        let (before, mut alone) = (self.messages(), 0);
        for row in batch.rows {
            let messages = if self.packing.is_on { before + alone } else { self.under_way.len() };
            let room = messages < self.window && self.under_way_bytes + row.bytes <= self.bytes();
            if !room && !self.under_way.is_empty() {
                break;
            }
            self.under_way_bytes += row.bytes;
            alone += usize::from(self.packing.goes_alone(&row));
            if row.newest {
                self.priority.insert(row.seq);
            } else {
                self.backlog_cursor = self.backlog_cursor.max(row.seq);
            }
            let before = self.under_way.insert(row.seq, row.bytes);
            self.under_way_bytes -= before.unwrap_or_default();
            send.push(row);
        }
        let is_full = before + alone >= self.window || self.under_way_bytes >= self.bytes() || is_full_read;
        self.has_backlog |= is_full;
        Some(send)
    }

    /// Takes the answer to the message of a row and the time since it was sent.
    pub(crate) fn answered(
        &mut self,
        seq: u64,
        answer: Result<(), PublishErrorKind>,
        after: Duration,
    ) -> AnswerOutcome {
        let seqs = self.packing.remove_message(seq);
        let bytes: Vec<_> = seqs.iter().filter_map(|seq| self.under_way.remove(seq)).collect();
        if bytes.is_empty() {
            return AnswerOutcome::Continue;
        }
        self.under_way_bytes -= bytes.into_iter().sum::<usize>();
        match answer {
            Ok(()) => {
                self.acknowledged.extend(seqs);
                self.adapt(after);
            }
            // The message is at fault, which does not say that any of its reports is.
            Err(PublishErrorKind::Permanent) if seqs.len() > 1 => {
                self.send_again(&seqs);
                self.packing.send_alone(seqs);
            }
            Err(PublishErrorKind::Permanent) => self.rejected.extend(seqs),
            Err(PublishErrorKind::SubjectFull) => return self.pause(&seqs),
            // A device expects no last sequence; an answer that says so is as good as none.
            Err(PublishErrorKind::Transient | PublishErrorKind::Conflict) => {
                self.shrink(self.window / 2);
                return AnswerOutcome::Restart;
            }
        }
        AnswerOutcome::Continue
    }

    /// Rows are not stored: they are read and sent again, in their order.
    fn send_again(&mut self, seqs: &[u64]) {
        for seq in seqs {
            self.priority.remove(seq);
            self.backlog_cursor = self.backlog_cursor.min(seq.saturating_sub(1));
        }
        (self.may_have_more, self.has_backlog) = (true, true);
    }

    /// Rows were refused because the share is full. They are sent again, and so are others that are refused with them.
    fn pause(&mut self, seqs: &[u64]) -> AnswerOutcome {
        self.send_again(seqs);
        self.window = WINDOW_PROBE;
        if std::mem::replace(&mut self.is_paused, true) {
            AnswerOutcome::Continue
        } else {
            AnswerOutcome::Pause
        }
    }

    /// The pause is over.
    pub(crate) const fn resume(&mut self) {
        self.is_paused = false;
    }

    fn adapt(&mut self, after: Duration) {
        // After a pause the window is smaller than a slow link needs: a slow answer then shows room as well.
        if after <= FAST_ANSWER || self.window < WINDOW_MIN {
            self.window = (self.window + 1).min(self.limits.rows);
        } else if after > SLOW_ANSWER {
            self.shrink(self.window - 1);
        }
    }

    /// Shrinks the window, but not below its minimum. A window that a pause made smaller stays as it is.
    fn shrink(&mut self, to: usize) {
        self.window = to.max(WINDOW_MIN).min(self.window);
    }

    /// The congestion window: rows that may be under way now.
    pub(crate) const fn window(&self) -> usize {
        self.window
    }

    /// Bytes of rows that may be under way now: those of the limits, in the proportion of the window.
    fn bytes(&self) -> usize {
        self.limits.bytes * self.packing.ratio() * self.window / self.limits.rows
    }

    /// Whether confirmed rows wait to be marked.
    pub(crate) fn has_acknowledged(&self) -> bool {
        !self.acknowledged.is_empty()
    }

    /// Confirmed rows to be marked as sent, with the epoch of their numbers.
    pub(crate) fn acknowledged(&self) -> Option<(Epoch, Vec<u64>)> {
        let epoch = self.epoch.filter(|_| !self.acknowledged.is_empty())?;
        Some((epoch, self.acknowledged.iter().copied().collect()))
    }

    /// The outbox has marked these rows.
    pub(crate) fn marked(&mut self, seqs: &[u64]) {
        for seq in seqs {
            self.acknowledged.remove(seq);
            self.priority.remove(seq);
            self.packing.forget(*seq);
        }
    }

    /// Whether enough rows wait to be marked.
    pub(crate) fn should_mark(&self) -> bool {
        self.acknowledged.len() >= ACKNOWLEDGED_MAX
    }

    /// Whether all rows that can be sent were sent and answered.
    pub(crate) fn is_idle(&self) -> bool {
        !self.may_have_more && self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests;
