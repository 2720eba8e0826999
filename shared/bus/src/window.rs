//! Publishes many messages without waiting for each: many are under way, and their answers come in the order of sending.
//!
//! The window has its own inbox, in which the subject of every answer has its message's number. That costs a third less
//! than a waiting future for each message, and an answer that never comes leaves nothing behind.
//!
//! If the owner allows it and the stream supports it, the window sends a long run of messages as a
//! [`batch`](crate::batch), in which one answer confirms many messages. Otherwise it sends single messages.

mod batching;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use async_nats::{Message, Subject, Subscriber};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::batch::Batch;
use crate::bus::Bus;
use crate::link::{self, Link};
use crate::message::{Outgoing, Stored};
use crate::publish::{CONFIRM_TIMEOUT, Packed, PublishError, failed, pack, read};
use crate::replies::number;
use crate::wire::{ApiError, NoAnswer, Wire, ready};

/// The part of a full window that must be free before it sends again: one in this number.
const ROOM_PART: usize = 4;

/// The messages of one owner that are under way. Dropping it discards the answers, not the messages.
pub struct Window<T> {
    wire: Arc<Wire>,
    link: watch::Receiver<Link>,
    /// The link that every unanswered message was sent over.
    over: Link,
    inbox: String,
    answers: Option<Subscriber>,
    in_flight: usize,
    /// In the order of sending; the numbers of the messages are dense.
    entries: VecDeque<WindowEntry<T>>,
    /// The number of the first entry.
    first: u64,
    unanswered: usize,
    /// Entries at the front that have their answer.
    answered_front: usize,
    /// Messages that one answer may confirm, while the owner allows batches.
    flow: Option<usize>,
    batch: Option<Batch>,
    can_batch: bool,
    /// The answers to the messages of a batch are returned only after its end.
    acks_on_batch_end: bool,
}

struct WindowEntry<T> {
    tag: T,
    subject: Subject,
    deadline: Instant,
    answer: Option<Result<Stored, PublishError>>,
}

impl Bus {
    /// A window of at most `in_flight` unanswered messages.
    pub fn window<T>(&self, in_flight: usize) -> Window<T> {
        Window {
            wire: Arc::clone(&self.wire),
            link: self.wire.link.clone(),
            over: Link::Down,
            inbox: self.wire.client.new_inbox(),
            answers: None,
            in_flight: in_flight.max(1),
            entries: VecDeque::with_capacity(in_flight),
            first: 1,
            unanswered: 0,
            answered_front: 0,
            flow: None,
            batch: None,
            can_batch: true,
            acks_on_batch_end: false,
        }
    }
}

impl<T> Window<T> {
    /// A window that returns the answers to a batch only after its end. The answer to the last stored message of the batch
    /// then has its stream sequence.
    pub fn ack_on_batch_end(self) -> Self {
        Self { acks_on_batch_end: true, ..self }
    }

    /// Sends a message, and waits first while the window is full. A failure to send becomes the message's answer. When the
    /// link goes down, every unanswered message gets a transient error: whether it was stored is unknown.
    ///
    /// The window keeps answers, a small record each, until the owner reads them. Not cancel-safe: the message may be lost.
    pub async fn send(&mut self, message: Outgoing, tag: T) {
        if self.unanswered >= self.in_flight {
            self.wait_for_room().await;
        }
        match pack(message, self.wire.message_bytes_max) {
            Ok(packed) => self.send_packed(packed, tag).await,
            Err(error) => {
                // The message has a number in the window, and would have none in the batch.
                self.end_batch().await;
                self.push(Subject::from(error.subject.as_str()), tag, Some(Err(error)));
            }
        }
    }

    async fn send_packed(&mut self, packed: Packed, tag: T) {
        self.check_link();
        let (subject, number) = (packed.subject.clone(), self.next_number());
        let reply = self.reply(&subject, number);
        let first = self.batch.as_ref().filter(|batch| !batch.is_open).map(|_| packed.clone());
        let answer = match self.post(packed, reply).await {
            Ok(()) => None,
            Err(cause) => {
                self.end_batch().await;
                // A batch that is not open has no message under way, so no answer will end it.
                self.batch.take_if(|batch| !batch.is_open);
                Some(Err(failed(&subject, cause.into())))
            }
        };
        self.push(subject, tag, answer);
        if let Some(first) = first {
            self.open_batch(first, number).await;
        }
    }

    fn push(&mut self, subject: Subject, tag: T, answer: Option<Result<Stored, PublishError>>) {
        self.unanswered += usize::from(answer.is_none());
        self.entries.push_back(WindowEntry {
            tag,
            subject,
            deadline: Instant::now() + CONFIRM_TIMEOUT,
            answer,
        });
        self.count_answered_front();
    }

    fn next_number(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The reply subject of the next message; begins a batch if the owner allows one.
    fn reply(&mut self, subject: &Subject, number: u64) -> Subject {
        if let (Some(flow), None, true) = (self.flow, &self.batch, self.can_batch) {
            self.batch = Some(Batch::new(subject.clone(), &self.inbox, flow, number - 1));
        }
        match self.batch.as_mut().filter(|batch| !batch.is_closing) {
            Some(batch) => batch.reply(),
            None => Subject::from(format!("{}.{number}", self.inbox)),
        }
    }

    /// Waits for the next answer in the order of sending; `None` when all answers are read. Cancel-safe.
    pub async fn next(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        while !self.entries.is_empty() && (self.answered_front == 0 || self.is_waiting_for_batch_end()) {
            self.progress().await;
        }
        self.pop()
    }

    /// The next answer in the order of sending if it has arrived.
    pub fn try_next(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        if self.answered_front == 0 || self.is_waiting_for_batch_end() {
            self.read_ready();
        }
        self.pop()
    }

    /// Number of messages whose answer has not been read.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when all answers are read.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    async fn post(&mut self, packed: Packed, reply: Subject) -> Result<(), NoAnswer> {
        if !self.over.is_up() {
            return Err(NoAnswer::Disconnected);
        }
        self.listen().await?;
        let Packed { subject, headers, payload } = packed;
        tokio::select! {
            biased;
            posted = self.wire.post(subject, Some(reply), headers, payload) => posted,
            () = link::lost(self.link.clone(), self.over) => Err(NoAnswer::Disconnected),
        }
    }

    async fn listen(&mut self) -> Result<(), NoAnswer> {
        if self.answers.is_none() {
            let subscribed = self.wire.client.subscribe(format!("{}.>", self.inbox)).await;
            self.answers = Some(subscribed.map_err(|_| NoAnswer::Disconnected)?);
        }
        Ok(())
    }

    /// Waits until a part of the window is free: waking for every single answer costs a third of the speed.
    async fn wait_for_room(&mut self) {
        let enough = self.in_flight - self.in_flight.div_ceil(ROOM_PART);
        while self.unanswered > enough {
            self.progress().await;
        }
    }

    /// Waits for an answer, the end of the link, or the deadline of a message.
    async fn progress(&mut self) {
        // If every message has its answer, this waits for the end of the batch.
        let oldest =
            self.entries.get(self.answered_front).or(self.entries.back()).map(|entry| entry.deadline);
        let pause = self.batch_deadline();
        let (Some(answers), Some(oldest)) = (&mut self.answers, oldest) else {
            // No message was sent, so no answer will end the batch.
            self.batch = None;
            return;
        };
        tokio::select! {
            biased;
            answer = answers.next() => match answer {
                Some(answer) => {
                    self.wire.silence.answered();
                    self.apply_answer(&answer);
                }
                None => self.fail(NoAnswer::Disconnected, |_| true),
            },
            _ = self.link.changed() => self.check_link(),
            () = tokio::time::sleep_until(pause.unwrap_or(oldest)), if pause.is_some() => self.close_batch().await,
            () = tokio::time::sleep_until(oldest) => {
                let now = Instant::now();
                self.wire.silence.count_unanswered(oldest - CONFIRM_TIMEOUT);
                self.can_batch &= self.batch.is_none();
                self.fail(NoAnswer::TimedOut(CONFIRM_TIMEOUT), |entry| entry.deadline <= now);
            }
        }
        self.read_ready();
    }

    /// Reads the answers that have arrived, without waiting.
    fn read_ready(&mut self) {
        while let Some(answer) = self.answers.as_mut().and_then(ready) {
            self.apply_answer(&answer);
        }
        self.check_link();
    }

    /// Fails all unanswered messages if the link is no longer the one that they were sent over.
    fn check_link(&mut self) {
        let now = *self.link.borrow_and_update();
        if now != self.over {
            self.over = now;
            self.fail(NoAnswer::Disconnected, |_| true);
        }
    }

    fn apply_answer(&mut self, answer: &Message) {
        if let Some(batch) = self.batch.as_ref().filter(|batch| batch.owns(&answer.subject)) {
            let said = batch.read(answer);
            return self.apply_batch_answer(said);
        }
        // An answer after the message has failed changes nothing: the owner may have acted on the failure.
        let Some(number) = number(&answer.subject) else { return };
        let Some(entry) = self.entry(number).filter(|entry| entry.answer.is_none()) else { return };
        let answer = read(answer).map_err(|cause| failed(&entry.subject, cause));
        self.answer(number, answer);
    }

    fn entry(&self, number: u64) -> Option<&WindowEntry<T>> {
        self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut WindowEntry<T>> {
        self.entries.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Records the answer to one message, unless it has one.
    fn answer(&mut self, number: u64, answer: Result<Stored, PublishError>) {
        if let Some(entry) = self.entry_mut(number).filter(|entry| entry.answer.is_none()) {
            entry.answer = Some(answer);
            self.unanswered -= 1;
            self.count_answered_front();
        }
    }

    fn fail(&mut self, cause: NoAnswer, which: impl Fn(&WindowEntry<T>) -> bool) {
        self.batch = None;
        for entry in
            self.entries.iter_mut().filter(|entry| entry.answer.is_none()).filter(|entry| which(entry))
        {
            entry.answer = Some(Err(failed(&entry.subject, ApiError::NoAnswer(cause))));
            self.unanswered -= 1;
        }
        self.count_answered_front();
    }

    fn count_answered_front(&mut self) {
        while self.entries.get(self.answered_front).is_some_and(|entry| entry.answer.is_some()) {
            self.answered_front += 1;
        }
    }

    fn pop(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        self.entries.front().filter(|_| !self.is_waiting_for_batch_end())?.answer.as_ref()?;
        let entry = self.entries.pop_front()?;
        self.first += 1;
        self.answered_front -= 1;
        Some((entry.tag, entry.answer?))
    }
}

impl<T> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("len", &self.entries.len())
            .field("unanswered", &self.unanswered)
            .finish()
    }
}
