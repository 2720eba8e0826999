//! Pipelined publishing: many messages under way, answers in the order of sending.
//!
//! The window has an inbox of its own in which every answer carries its message's number. That costs a third less
//! than one waiting future a message, and nothing is left behind by an answer that never comes.
//!
//! A long run of messages may go as a [`batch`](crate::batch), if its owner wishes so and the stream can: then one answer
//! stands for many messages. Where the stream cannot, nobody notices.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::batch::{Batch, Said};
use crate::bus::Bus;
use crate::link::{self, Link};
use crate::message::{Outgoing, Stored};
use crate::publish::{CONFIRM_TIMEOUT, Packed, PublishError, failed, is_subject_full, pack, read};
use crate::replies::number;
use crate::wire::{ApiError, NoAnswer, Wire, ready};

/// A full window waits until one part in so many is free.
const ROOM_PART: usize = 4;
/// How long messages of a batch wait for others to share an answer with. Then the batch is ended, and they have theirs.
const BATCH_PATIENCE: Duration = Duration::from_secs(2);

const _: () = assert!(2 * BATCH_PATIENCE.as_secs() < CONFIRM_TIMEOUT.as_secs());

/// Messages under way. One owner; dropping it forgets the answers, not the messages.
pub struct Window<T> {
    wire: Arc<Wire>,
    link: watch::Receiver<Link>,
    /// The link over which every unanswered message was sent.
    over: Link,
    inbox: String,
    answers: Option<Subscriber>,
    in_flight: usize,
    /// In the order of sending; the numbers of the messages are dense.
    entries: VecDeque<Entry<T>>,
    /// The number of the first entry.
    first: u64,
    unanswered: usize,
    /// Entries at the front that have their answer.
    answered_front: usize,
    /// Messages that shall share an answer, if any.
    flow: Option<usize>,
    batch: Option<Batch>,
    can_batch: bool,
    /// Answers to the messages of a batch wait for its end.
    is_told_whole: bool,
}

/// What is known of a message of a batch, but for the last one.
const STORED: Stored = Stored { sequence: 0, duplicate: false };
/// JetStream's code for a batch that is no more.
const NO_SUCH_BATCH: u64 = 10208;

fn batch_over() -> ApiError {
    let description = "its batch ended before it".to_owned();
    ApiError::Refused { code: NO_SUCH_BATCH, description }
}

struct Entry<T> {
    tag: T,
    subject: Subject,
    deadline: Instant,
    answer: Option<Result<Stored, PublishError>>,
}

impl Bus {
    /// A window of at most `in_flight` messages without an answer.
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
            is_told_whole: false,
        }
    }
}

impl<T> Window<T> {
    /// A window whose owner must know where its messages are: those of a batch are answered when it is over, and with its
    /// last one comes the place of the last that was stored.
    pub fn told_whole(self) -> Self {
        Self { is_told_whole: true, ..self }
    }

    /// From now on one answer may stand for `flow` messages, if the stream can do that: to be called while a long run of
    /// messages to one stream goes out. An answer comes when so many were sent, so `flow` must be well below what is sent
    /// ahead; and [`end_batch`](Self::end_batch) must be called when the run is over or pauses.
    pub async fn batch_by(&mut self, flow: usize) {
        if self.flow.is_some_and(|before| before > 2 * flow || flow > 2 * before) {
            self.end_batch().await;
        }
        self.flow = self.flow.or(Some(flow.max(1)));
    }

    /// Asks for what was sent as a batch to be answered, and goes on one by one.
    pub async fn end_batch(&mut self) {
        self.flow = None;
        self.close_batch().await;
    }

    /// Cancel-safe: the batch is closing once the end mark is on its way.
    async fn close_batch(&mut self) {
        let Some(batch) = self.batch.as_mut().filter(|batch| !batch.is_closing) else { return };
        let (subject, reply) = (batch.subject.clone(), batch.end());
        // An end mark that does not get through is made up for by the messages' own deadlines.
        tokio::select! {
            biased;
            _ = self.wire.post(subject, Some(reply), None, Bytes::new()) => {}
            () = link::lost(self.link.clone(), self.over) => {}
        }
        batch.is_closing = true;
    }

    /// False once a batch has failed for a reason that is not a message's own: it may do so again.
    pub const fn can_batch(&self) -> bool {
        self.can_batch
    }

    /// Sends a message, waiting while the window is full. A failure to send is this message's answer. When the link
    /// goes down, every message without an answer gets a transient error: whether it was stored is unknown.
    ///
    /// Answers wait here until taken, a small record each. Not cancel-safe: the message may be gone.
    pub async fn send(&mut self, message: Outgoing, tag: T) {
        if self.unanswered >= self.in_flight {
            self.make_room().await;
        }
        match pack(message) {
            Ok(packed) => self.send_packed(packed, tag).await,
            Err(error) => {
                // It has a number here and would have none in the batch.
                self.end_batch().await;
                self.enter(Subject::from(error.subject.as_str()), tag, Some(Err(error)));
            }
        }
    }

    async fn send_packed(&mut self, packed: Packed, tag: T) {
        self.note_link();
        let (subject, number) = (packed.subject.clone(), self.next_number());
        let reply = self.reply(&subject, number);
        let first = self.batch.as_ref().filter(|batch| !batch.is_open).map(|_| packed.clone());
        let answer = match self.post(packed, reply).await {
            Ok(()) => None,
            Err(cause) => {
                self.end_batch().await;
                // Nothing of one that has not begun is under way, so nothing will be said of it.
                self.batch.take_if(|batch| !batch.is_open);
                Some(Err(failed(&subject, cause.into())))
            }
        };
        self.enter(subject, tag, answer);
        if let Some(first) = first {
            self.open_batch(first, number).await;
        }
    }

    fn enter(&mut self, subject: Subject, tag: T, answer: Option<Result<Stored, PublishError>>) {
        self.unanswered += usize::from(answer.is_none());
        self.entries.push_back(Entry { tag, subject, deadline: Instant::now() + CONFIRM_TIMEOUT, answer });
        self.count_answered_front();
    }

    fn next_number(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Where the answer to the next message goes; begins a batch if there shall be one.
    fn reply(&mut self, subject: &Subject, number: u64) -> Subject {
        if let (Some(flow), None, true) = (self.flow, &self.batch, self.can_batch) {
            self.batch = Some(Batch::new(subject.clone(), &self.inbox, flow, number - 1));
        }
        match self.batch.as_mut().filter(|batch| !batch.is_closing) {
            Some(batch) => batch.reply(),
            None => Subject::from(format!("{}.{number}", self.inbox)),
        }
    }

    /// Waits until the server has answered the first message of a batch: sent ahead, a whole window would be refused where
    /// there are no batches. There the message goes again, by itself.
    async fn open_batch(&mut self, first: Packed, number: u64) {
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

    /// The next answer in the order of sending, waiting for it; `None` when every answer has been taken. Cancel-safe.
    pub async fn next(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        while !self.entries.is_empty() && (self.answered_front == 0 || self.is_held()) {
            self.progress().await;
        }
        self.pop()
    }

    /// The next answer in the order of sending if it is there.
    pub fn try_next(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        if self.answered_front == 0 || self.is_held() {
            self.take_ready();
        }
        self.pop()
    }

    /// Messages whose answer has not been taken.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when every answer has been taken.
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

    /// Waits until a part of the window is free: to be woken for every single answer costs a third of the speed.
    async fn make_room(&mut self) {
        let enough = self.in_flight - self.in_flight.div_ceil(ROOM_PART);
        while self.unanswered > enough {
            self.progress().await;
        }
    }

    /// Waits until something is known of a message: an answer, the end of the link, or that its time is up.
    async fn progress(&mut self) {
        // Where every message has its answer, the end of the batch is waited for.
        let oldest =
            self.entries.get(self.answered_front).or(self.entries.back()).map(|entry| entry.deadline);
        let pause = self.batch_pause();
        let (Some(answers), Some(oldest)) = (&mut self.answers, oldest) else {
            // Nothing was ever sent, and no end of a batch will come.
            self.batch = None;
            return;
        };
        tokio::select! {
            biased;
            answer = answers.next() => match answer {
                Some(answer) => {
                    self.wire.silence.broken();
                    self.settle(&answer);
                }
                None => self.give_up(NoAnswer::Disconnected, |_| true),
            },
            _ = self.link.changed() => self.note_link(),
            () = tokio::time::sleep_until(pause.unwrap_or(oldest)), if pause.is_some() => self.close_batch().await,
            () = tokio::time::sleep_until(oldest) => {
                let now = Instant::now();
                self.wire.silence.unanswered(oldest - CONFIRM_TIMEOUT);
                self.can_batch &= self.batch.is_none();
                self.give_up(NoAnswer::TimedOut(CONFIRM_TIMEOUT), |entry| entry.deadline <= now);
            }
        }
        self.take_ready();
    }

    /// When the batch is to be ended because nothing more will be said of what was sent of it.
    fn batch_pause(&self) -> Option<Instant> {
        let batch = self.batch.as_ref()?;
        let oldest = self.entries.get(self.answered_front)?.deadline - CONFIRM_TIMEOUT;
        batch.is_short_of_an_answer(self.unanswered).then_some(oldest + BATCH_PATIENCE)
    }

    /// Takes what has arrived, without waiting.
    fn take_ready(&mut self) {
        while let Some(answer) = self.answers.as_mut().and_then(ready) {
            self.settle(&answer);
        }
        self.note_link();
    }

    /// When the link is another than the one the messages went over, their answers will not come.
    fn note_link(&mut self) {
        let now = *self.link.borrow_and_update();
        if now != self.over {
            self.over = now;
            self.give_up(NoAnswer::Disconnected, |_| true);
        }
    }

    fn settle(&mut self, answer: &Message) {
        if let Some(batch) = self.batch.as_ref().filter(|batch| batch.owns(&answer.subject)) {
            let said = batch.read(answer);
            return self.settle_batch(said);
        }
        // An answer that comes after the entry was given up changes nothing: the owner may have acted on it.
        let Some(number) = number(&answer.subject) else { return };
        let Some(entry) = self.entry(number).filter(|entry| entry.answer.is_none()) else { return };
        let answer = read(answer).map_err(|cause| failed(&entry.subject, cause));
        self.answer(number, answer);
    }

    fn settle_batch(&mut self, said: Said) {
        let Some(batch) = &mut self.batch else { return };
        let (was_open, base, last) = (batch.is_open, batch.base(), batch.last());
        match said {
            Said::Nothing => {}
            Said::Through(number) => {
                batch.is_open = true;
                self.answer_of_batch(base, number, |_| Ok(STORED));
            }
            Said::Refused(number, cause) => {
                batch.full = is_subject_full(&cause).then(|| cause.clone());
                self.refuse(number, cause);
            }
            Said::Ended(number, stored) => {
                let cause = batch.full.take().unwrap_or_else(batch_over);
                self.batch = None;
                self.answer_of_batch(base, number, |_| Ok(STORED));
                self.answer_of_batch(number, last, |entry| Err(failed(&entry.subject, cause.clone())));
                if number > base {
                    self.tell(number, stored);
                }
            }
            Said::Single(number, stored) => {
                (self.batch, self.can_batch) = (None, false);
                self.answer(number, Ok(stored));
            }
            // The stream takes batches, but none of this subject now: so it is said of a first message.
            Said::Failed(number, cause) if is_subject_full(&cause) => {
                self.batch = None;
                self.refuse(number, cause.clone());
                self.answer_of_batch(base, last, |entry| Err(failed(&entry.subject, cause.clone())));
            }
            Said::Failed(number, cause) => {
                (self.batch, self.can_batch) = (None, false);
                // Before the batch was open only its first message is under way: it goes again by itself.
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

    fn entry(&self, number: u64) -> Option<&Entry<T>> {
        self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry<T>> {
        self.entries.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Notes the answer to one message, unless it has one.
    fn answer(&mut self, number: u64, answer: Result<Stored, PublishError>) {
        if let Some(entry) = self.entry_mut(number).filter(|entry| entry.answer.is_none()) {
            entry.answer = Some(answer);
            self.unanswered -= 1;
            self.count_answered_front();
        }
    }

    /// Notes an answer to every message of a batch up to this one that has none; `base` is the one before them. Those that
    /// were sent by themselves before have answers of their own.
    fn answer_of_batch(
        &mut self,
        base: u64,
        number: u64,
        answer: impl Fn(&Entry<T>) -> Result<Stored, PublishError>,
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

    /// A message that is stored has this place.
    fn tell(&mut self, number: u64, place: Stored) {
        if let Some(Entry { answer: Some(Ok(stored)), .. }) = self.entry_mut(number) {
            *stored = place;
        }
    }

    /// True while the oldest message is of a batch that is to be over first.
    fn is_held(&self) -> bool {
        self.is_told_whole && self.batch.as_ref().is_some_and(|batch| self.first > batch.base())
    }

    fn give_up(&mut self, cause: NoAnswer, which: impl Fn(&Entry<T>) -> bool) {
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
        self.entries.front().filter(|_| !self.is_held())?.answer.as_ref()?;
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
