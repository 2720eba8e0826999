//! Pipelined publishing: many messages under way, answers in the order of sending.
//!
//! The window has an inbox of its own in which every answer carries its message's number. That costs a third less
//! than one waiting future a message, and nothing is left behind by an answer that never comes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use async_nats::{Message, Subject, Subscriber};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bus::Bus;
use crate::link::{self, Link};
use crate::message::{Outgoing, Stored};
use crate::publish::{CONFIRM_TIMEOUT, Packed, PublishError, failed, pack, read};
use crate::replies::number;
use crate::wire::{ApiError, NoAnswer, Wire, ready};

/// A full window waits until one part in so many is free.
const ROOM_PART: usize = 4;

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
        }
    }
}

impl<T> Window<T> {
    /// Sends a message, waiting while the window is full. A failure to send is this message's answer. When the link
    /// goes down, every message without an answer gets a transient error: whether it was stored is unknown.
    ///
    /// Answers wait here until taken, a small record each. Not cancel-safe: the message may be gone.
    pub async fn send(&mut self, message: Outgoing, tag: T) {
        if self.unanswered >= self.in_flight {
            self.make_room().await;
        }
        let (subject, sent) = match pack(message) {
            Ok(packed) => {
                let subject = packed.subject.clone();
                let posted = self.post(packed).await;
                (subject.clone(), posted.map_err(|cause| failed(&subject, cause.into())))
            }
            Err(error) => (Subject::from(error.subject.as_str()), Err(error)),
        };
        let answer = sent.err().map(Err);
        self.unanswered += usize::from(answer.is_none());
        self.entries.push_back(Entry { tag, subject, deadline: Instant::now() + CONFIRM_TIMEOUT, answer });
        self.count_answered_front();
    }

    /// The next answer in the order of sending, waiting for it; `None` when every answer has been taken. Cancel-safe.
    pub async fn next(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        while !self.entries.is_empty() && self.answered_front == 0 {
            self.progress().await;
        }
        self.pop()
    }

    /// The next answer in the order of sending if it is there.
    pub fn try_next(&mut self) -> Option<(T, Result<Stored, PublishError>)> {
        if self.answered_front == 0 {
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

    async fn post(&mut self, packed: Packed) -> Result<(), NoAnswer> {
        self.note_link();
        if !self.over.is_up() {
            return Err(NoAnswer::Disconnected);
        }
        self.listen().await?;
        let reply = Subject::from(format!("{}.{}", self.inbox, self.first + self.entries.len() as u64));
        let Packed { subject, headers, payload } = packed;
        tokio::select! {
            biased;
            posted = self.wire.post(subject, Some(reply), headers, payload) => posted,
            () = link::lost(self.link.clone(), self.over) => Err(NoAnswer::Disconnected),
        }
    }

    async fn listen(&mut self) -> Result<(), NoAnswer> {
        if self.answers.is_none() {
            let subscribed = self.wire.client.subscribe(format!("{}.*", self.inbox)).await;
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
        let oldest = self.entries.get(self.answered_front).map(|entry| entry.deadline);
        let (Some(answers), Some(oldest)) = (&mut self.answers, oldest) else {
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
            () = tokio::time::sleep_until(oldest) => {
                let now = Instant::now();
                self.wire.silence.unanswered(oldest - CONFIRM_TIMEOUT);
                self.give_up(NoAnswer::TimedOut(CONFIRM_TIMEOUT), |entry| entry.deadline <= now);
            }
        }
        self.take_ready();
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
        let index = number(&answer.subject).and_then(|number| number.checked_sub(self.first));
        let Some(entry) = index.and_then(|index| self.entries.get_mut(index as usize)) else {
            return;
        };
        // An answer that comes after the entry was given up changes nothing: the owner may have acted on it.
        if entry.answer.is_none() {
            entry.answer = Some(read(answer).map_err(|cause| failed(&entry.subject, cause)));
            self.unanswered -= 1;
            self.count_answered_front();
        }
    }

    fn give_up(&mut self, cause: NoAnswer, which: impl Fn(&Entry<T>) -> bool) {
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
        self.entries.front()?.answer.as_ref()?;
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
