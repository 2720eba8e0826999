//! Replaces a publication that LEDGER will never store: the server refuses it for its content, not for its time.
//!
//! LEDGER stored no part of it, and nothing else is held up. A report is quarantined instead, with the server's answer as the
//! reason, or stays in quarantine if it was requeued; the record of a quarantined message repeats less of its payload. A fact
//! that follows from no message (liveness, an incident) counts as published: publishing it again at every tick would fail again.

use muster_contract::canonical::Digest;
use muster_contract::limits::QUARANTINE_EXCERPT_BYTES_MAX;

use super::change::Change;
use super::limits::EXCERPT_BYTES_MIN;
use super::message::{IncomingMessage, IncomingReport, Outcome};
use super::reject_reason::RejectReason;
use super::state::{InFlight, IntakeState};

/// LEDGER does not even store a record with a short excerpt: a person has to change the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "LEDGER cannot store even a short record of the message; allow larger messages (max_msg_size of the stream)"
)]
pub struct Unrecordable;

impl IntakeState {
    /// The unsettled message from which the oldest publication in flight follows, counted from the oldest; `None` if the
    /// publication follows from the passing of time.
    pub fn cause_of_oldest(&self) -> Option<usize> {
        let cause = self.in_flight.front()?.cause?;
        usize::try_from(cause.checked_sub(self.settled_count)?).ok()
    }

    /// Replaces the oldest publication in flight, which LEDGER will never store. `answer` is the server's, `cause` the message
    /// that led to the publication.
    ///
    /// # Errors
    /// It was the record of a rejected message with a short excerpt. Then nothing has changed.
    pub fn replace_unstorable(
        &mut self,
        answer: &str,
        cause: Option<IncomingReport<'_>>,
    ) -> Result<(), Unrecordable> {
        let Some(oldest) = self.in_flight.front() else { return Ok(()) };
        let is_record = matches!(oldest.change, Change::Quarantined { .. });
        if let Some(cause) = cause.as_ref().filter(|_| is_record) {
            let payload = Digest::of_bytes(cause.payload);
            if self.recorded_short.contains(&payload) {
                return Err(Unrecordable);
            }
            self.recorded_short.push(payload);
        }
        let position = self.cause_of_oldest();
        let Some(InFlight { index, change, cause: message }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        self.confirmed_count += 1;
        let left = self.in_flight.iter().filter(|other| other.index == index).map(|other| &other.change);
        self.devices[index].drop_oldest(left);
        self.current_message = message;
        let outcome = self.replace(index, &change, answer, cause);
        // The replacement must be confirmed before the message, and so every message behind it, is settled.
        let settled_by = self.settlement_of(outcome);
        self.current_message = None;
        if let Some(condition) = position.and_then(|position| self.unsettled.get_mut(position)) {
            *condition = settled_by.max(*condition);
        }
        self.publish_verdicts();
        Ok(())
    }

    fn replace(
        &mut self,
        index: usize,
        change: &Change,
        answer: &str,
        cause: Option<IncomingReport<'_>>,
    ) -> Outcome {
        match (change, cause) {
            (Change::Received { epoch, seq, .. }, Some(report)) => {
                let IncomingReport { origin, payload, position, stored_at, .. } = report;
                let message = IncomingMessage { subject: origin.subject, payload, position, stored_at };
                let reason = RejectReason::Unstorable { answer: answer.to_owned() };
                self.reject(index, &message, reason, Some((*epoch, *seq)))
            }
            (Change::Quarantined { .. }, Some(report)) => self.process(report),
            // A requeued report: QUARANTINE keeps it.
            (Change::Received { epoch, seq, .. }, None)
                if self.verdicts.refuse(self.devices[index].key.as_ref(), (*epoch, *seq), answer) =>
            {
                Outcome::Repeated
            }
            (change, _) => {
                self.devices[index].amend(|state| state.apply(change));
                Outcome::Repeated
            }
        }
    }

    /// Bytes of a rejected message that its fact repeats.
    pub(super) fn excerpt_bytes_max(&self, payload: &[u8]) -> usize {
        let is_short = self.recorded_short.contains(&Digest::of_bytes(payload));
        if is_short { EXCERPT_BYTES_MIN } else { QUARANTINE_EXCERPT_BYTES_MAX }
    }
}
