//! The reports of an open session: reads rows, sends them, and handles answers.
//! [`send_queue`](crate::relay::send_queue) decides their order.

use std::time::Duration;

use muster_bus::PublishErrorKind;
use muster_contract::Epoch;
use tokio::time::Instant;

use super::{
    Allowance, AnswerOutcome, BATCH_ANSWERS, BATCH_PAUSE_MAX, Batch, COLLECT, Effect, OrderRule,
    OutgoingBatch, OutgoingReport, RelayCore, Row, SessionEnd, SessionPhase, Ticket, WINDOW_MIN,
};

impl RelayCore {
    /// Reads as much as fits and as the budget allows; nothing before the hub's last receipt was fetched. From that
    /// receipt the outbox learns whether it is an old copy, before it uses a number again.
    pub(super) fn read(&mut self, now: Instant) -> Option<Effect> {
        self.read_at = None;
        if !self.is_receipt_fetched && self.holds(OrderRule::ReceiptBeforeReports) {
            return None;
        }
        let mut request = self.queue.read_request()?;
        if self.is_collecting(now) {
            return None;
        }
        match self.budget.allowance(now) {
            Allowance::Bytes(bytes) => request.bytes = request.bytes.min(bytes),
            Allowance::NotBefore(due) => {
                self.queue.expect_backlog();
                self.read_at = Some(due);
                let ends = due > now + BATCH_PAUSE_MAX && std::mem::take(&mut self.is_in_batch);
                return ends.then_some(Effect::EndBatch);
            }
        }
        let was_read_ahead = std::mem::take(&mut self.is_read_ahead);
        self.await_answer(if was_read_ahead { Effect::TakeReadAhead } else { Effect::ReadRows(request) })
    }

    /// Whether more rows may come for the next message: then it waits, but not long.
    fn is_collecting(&mut self, now: Instant) -> bool {
        let until = if self.queue.may_collect() {
            Some(*self.collect_until.get_or_insert(now + COLLECT)).filter(|until| *until > now)
        } else {
            None
        };
        self.read_at = until;
        if until.is_none() {
            self.collect_until = None;
        }
        until.is_some()
    }

    /// Reads the next rows ahead, so that the window does not wait for the outbox. Not under a limit: there the
    /// window waits for the budget, which is known only when a row is sent.
    pub(super) fn read_ahead(&mut self) -> Option<Effect> {
        if !std::mem::take(&mut self.may_read_ahead) || !self.budget.is_unlimited() {
            return None;
        }
        let request = self.queue.read_ahead_request()?;
        self.is_read_ahead = true;
        Some(Effect::ReadAhead(request))
    }

    /// Takes rows; rows of another epoch end the session.
    pub(super) fn rows_read(&mut self, mut batch: Batch) {
        self.is_awaiting = false;
        let SessionPhase::Open(epoch) = self.phase else { return };
        if !self.holds(OrderRule::ReportsOfOneEpoch) {
            batch.epoch = Some(epoch);
        }
        self.head = batch.head;
        let Some(rows) = self.queue.accept(batch) else { return self.end(SessionEnd::Failed) };
        if rows.is_empty() {
            (self.is_backlog_long, self.ends_batch) = (false, true);
            return;
        }
        // Messages with many reports need no shared answers.
        let (window, packs) = (self.queue.window(), self.queue.packs());
        let shares_answers = self.is_backlog_long && !packs && window >= WINDOW_MIN;
        (self.batch, self.ends_batch) = (shares_answers.then_some(window / BATCH_ANSWERS), packs);
        (self.messages, self.may_read_ahead) = (self.queue.messages_of(rows).into_iter(), true);
    }

    /// Sends the rows of one message.
    pub(super) fn send(&mut self, epoch: Epoch, mut rows: Vec<Row>, now: Instant) -> Option<Effect> {
        let seq = rows.first()?.seq;
        let ticket = Ticket { session: self.session, seq, sent_at: now };
        if !self.holds(OrderRule::ConfirmedBeforeMarked) {
            self.queue.answered(seq, Ok(()), Duration::ZERO);
            self.marks.confirmed(&self.queue, now);
        }
        let (head, encoding) = (self.head, self.queue.encoding_of(&rows));
        if rows.len() > 1 {
            return Some(Effect::SendBatch(OutgoingBatch { epoch, head, rows, encoding }, ticket));
        }
        rows.pop().map(|row| Effect::SendReport(OutgoingReport { epoch, head, row, encoding }, ticket))
    }

    /// Whether the hub has the dictionary of reports, and so reads brief heartbeats.
    pub(crate) const fn hub_has_dictionary(&self) -> bool {
        self.queue.has_dictionary()
    }

    /// How many reports the message of a ticket has.
    pub(crate) fn reports_of(&self, ticket: &Ticket) -> usize {
        if ticket.session == self.session { self.queue.reports_of(ticket.seq) } else { 1 }
    }

    /// Takes an answer. An answer to an earlier session is ignored: its number may be another report's now.
    pub(super) fn answered(
        &mut self,
        ticket: Ticket,
        mut answer: Result<(), PublishErrorKind>,
        now: Instant,
    ) {
        if ticket.session != self.session || !matches!(self.phase, SessionPhase::Open(_)) {
            return;
        }
        let broken = match answer {
            Err(PublishErrorKind::Transient) => !self.holds(OrderRule::UnknownIsNotStored),
            Err(PublishErrorKind::SubjectFull) => !self.holds(OrderRule::RefusedIsNotStored),
            _ => false,
        };
        if broken {
            answer = Ok(());
        }
        if answer.is_ok() {
            self.full_pauses.reset();
        }
        let after = now.saturating_duration_since(ticket.sent_at);
        match self.queue.answered(ticket.seq, answer, after) {
            AnswerOutcome::Continue => {}
            AnswerOutcome::Pause => self.pause(now),
            AnswerOutcome::Restart => return self.end(SessionEnd::Failed),
        }
        self.marks.confirmed(&self.queue, now);
    }

    /// The device's share is full: sending pauses for a moment.
    fn pause(&mut self, now: Instant) {
        (self.is_read_ahead, self.ends_batch) = (false, true);
        self.resume_at = Some(now + self.full_pauses.next(&mut self.rng));
    }
}
