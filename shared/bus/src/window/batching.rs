//! The window's batches: when one begins and ends, and what its answers mean for the messages of the window.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use tokio::time::Instant;

use super::{Window, WindowEntry};
use crate::batch::BatchAnswer;
use crate::link;
use crate::message::Stored;
use crate::publish::{CONFIRM_TIMEOUT, Packed, PublishError, failed, is_subject_full};
use crate::wire::ApiError;

/// How long messages of a batch wait for further ones. Then the window ends the batch, so that the server answers.
const BATCH_WAIT: Duration = Duration::from_secs(2);
/// The confirmation of a stored message of a batch, except the last one.
const STORED: Stored = Stored { sequence: 0, duplicate: false };
/// JetStream's code for a batch that does not exist.
const NO_SUCH_BATCH: u64 = 10208;

const _: () = assert!(2 * BATCH_WAIT.as_secs() < CONFIRM_TIMEOUT.as_secs());

fn batch_over() -> ApiError {
    let description = "its batch ended before it".to_owned();
    ApiError::Refused { code: NO_SUCH_BATCH, description }
}

impl<T> Window<T> {
    /// Allows batches from now on, in which one answer confirms `flow` messages, if the stream supports them. Call it while
    /// a long run of messages goes to one stream, and [`end_batch`](Self::end_batch) when the run ends or pauses. The server
    /// answers after `flow` messages, so `flow` must be well below the size of the window.
    pub async fn batch_by(&mut self, flow: usize) {
        if self.flow.is_some_and(|before| before > 2 * flow || flow > 2 * before) {
            self.end_batch().await;
        }
        self.flow = self.flow.or(Some(flow.max(1)));
    }

    /// Ends the open batch, so that the server answers its messages, and sends single messages from now on.
    pub async fn end_batch(&mut self) {
        self.flow = None;
        self.close_batch().await;
    }

    /// Sends the end marker. Cancel-safe: the batch counts as closing only once the marker is on its way.
    pub(super) async fn close_batch(&mut self) {
        let Some(batch) = self.batch.as_mut().filter(|batch| !batch.is_closing) else { return };
        let (subject, reply) = (batch.subject.clone(), batch.end());
        // If the marker is lost, the deadlines of the messages end the wait.
        tokio::select! {
            biased;
            _ = self.wire.post(subject, Some(reply), None, Bytes::new()) => {}
            () = link::lost(self.link.clone(), self.over) => {}
        }
        batch.is_closing = true;
    }

    /// False once a batch has failed for a reason other than one of its messages: the next one may fail as well.
    pub const fn can_batch(&self) -> bool {
        self.can_batch
    }

    /// Waits until the server has answered the first message of a batch: a server without batches would refuse a whole
    /// window sent ahead. In that case the message is sent again as a single one.
    pub(super) async fn open_batch(&mut self, first: Packed, number: u64) {
        let is_waiting = |window: &Self| window.entry(number).is_some_and(|entry| entry.answer.is_none());
        while is_waiting(self) && self.batch.as_ref().is_some_and(|batch| !batch.is_open) {
            self.progress().await;
        }
        if is_waiting(self) && self.batch.is_none() {
            let (subject, reply) = (first.subject.clone(), Subject::from(format!("{}.{number}", self.inbox)));
            if let Err(cause) = self.post(first, reply).await {
                self.answer(number, Err(failed(&subject, cause.into())));
            }
        }
    }

    /// When to end the batch because the server answers the messages under way only then.
    pub(super) fn batch_deadline(&self) -> Option<Instant> {
        let batch = self.batch.as_ref()?;
        let oldest = self.entries.get(self.answered_front)?.deadline - CONFIRM_TIMEOUT;
        batch.is_short_of_an_answer(self.unanswered).then_some(oldest + BATCH_WAIT)
    }

    pub(super) fn apply_batch_answer(&mut self, answer: BatchAnswer) {
        let Some(batch) = &mut self.batch else { return };
        let (was_open, base, last) = (batch.is_open, batch.base(), batch.last());
        match answer {
            BatchAnswer::Nothing => {}
            BatchAnswer::Through(number) => {
                batch.is_open = true;
                self.answer_of_batch(base, number, |_| Ok(STORED));
            }
            BatchAnswer::Refused(number, cause) => {
                batch.full = is_subject_full(&cause).then(|| cause.clone());
                self.refuse(number, cause);
            }
            BatchAnswer::Ended(number, stored) => {
                let cause = batch.full.take().unwrap_or_else(batch_over);
                self.batch = None;
                self.answer_of_batch(base, number, |_| Ok(STORED));
                self.answer_of_batch(number, last, |entry| Err(failed(&entry.subject, cause.clone())));
                if number > base
                    && let Some(WindowEntry { answer: Some(Ok(answer)), .. }) = self.entry_mut(number)
                {
                    *answer = stored;
                }
            }
            BatchAnswer::Single(number, stored) => {
                (self.batch, self.can_batch) = (None, false);
                self.answer(number, Ok(stored));
            }
            // The stream supports batches, but the subject of the first message is full.
            BatchAnswer::Failed(number, cause) if is_subject_full(&cause) => {
                self.batch = None;
                self.refuse(number, cause.clone());
                self.answer_of_batch(base, last, |entry| Err(failed(&entry.subject, cause.clone())));
            }
            BatchAnswer::Failed(number, cause) => {
                (self.batch, self.can_batch) = (None, false);
                // Before the batch is open only its first message is under way; `open_batch` sends it again.
                if was_open {
                    self.refuse(number, cause);
                    self.answer_of_batch(base, last, |entry| Err(failed(&entry.subject, batch_over())));
                }
            }
        }
    }

    fn refuse(&mut self, number: u64, cause: ApiError) {
        if let Some(entry) = self.entry(number) {
            let refusal = failed(&entry.subject, cause);
            self.answer(number, Err(refusal));
        }
    }

    /// Records an answer to every unanswered message after number `base` up to `number`. Messages sent before the batch
    /// get their own answers.
    fn answer_of_batch(
        &mut self,
        base: u64,
        number: u64,
        answer: impl Fn(&WindowEntry<T>) -> Result<Stored, PublishError>,
    ) {
        let before = |number: u64| number.checked_sub(self.first).map_or(0, |index| index as usize + 1);
        let (from, through) = (before(base).max(self.answered_front), before(number));
        for entry in self.entries.iter_mut().take(through).skip(from) {
            if entry.answer.is_none() {
                entry.answer = Some(answer(entry));
                self.unanswered -= 1;
            }
        }
        self.count_answered_front();
    }

    /// True while the oldest message belongs to a batch whose end the owner waits for.
    pub(super) fn is_waiting_for_batch_end(&self) -> bool {
        self.acks_on_batch_end && self.batch.as_ref().is_some_and(|batch| self.first > batch.base())
    }
}
