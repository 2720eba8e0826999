//! A session of ingest with its positions in the simulated streams: its deliveries, and the answers to its facts.

use std::collections::VecDeque;
use std::rc::Rc;

use muster_bus::{Stored, Trace};
use muster_contract::Timestamp;
use muster_ingest::session::{FactAnswer, ReportDelivery, SessionCore};

use super::agenda::Millis;

/// A message as the hub delivers it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) payload: Rc<[u8]>,
    pub(crate) position: u64,
    pub(crate) stored_at: Timestamp,
    /// The headers that are set, with their values.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl ReportDelivery for Message {
    fn subject(&self) -> &str {
        &self.subject
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn stored_at(&self) -> Timestamp {
        self.stored_at
    }

    fn trace(&self) -> Option<Trace> {
        None
    }
}

/// A session and its positions in the streams.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) core: SessionCore<Message>,
    /// The last report delivered.
    pub(crate) delivered: u64,
    /// The last heartbeat delivered.
    pub(crate) beat: u64,
    /// Facts sent.
    pub(crate) sent: u64,
    /// Facts whose answers were handed in.
    pub(crate) answered: u64,
    /// Answers in the order of sending, as far as they came.
    pub(crate) answers: VecDeque<Option<FactAnswer>>,
    /// Facts of a run that is being sent: from this one on.
    pub(crate) run_from: Option<u64>,
    /// Runs by their first and last fact. Their answers are handed in together.
    pub(crate) runs: VecDeque<(u64, u64)>,
    /// The hub is asked whether more waits.
    pub(crate) is_asking: bool,
    /// When the hub began to receive without interruption, in true time, and the time of the last check: the law's own account.
    pub(crate) receiving_since: Millis,
    pub(crate) checked_at: (Timestamp, u64),
}

impl Session {
    pub(crate) const fn new(core: SessionCore<Message>, delivered: u64, now: Millis) -> Self {
        Self {
            core,
            delivered,
            beat: 0,
            sent: 0,
            answered: 0,
            answers: VecDeque::new(),
            run_from: None,
            runs: VecDeque::new(),
            is_asking: false,
            receiving_since: now,
            checked_at: (Timestamp::MIN, 0),
        }
    }

    /// Marks the answers to the facts in flight as unknown.
    pub(crate) fn give_up(&mut self) {
        for answer in self.answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = Some(FactAnswer::Unknown);
        }
    }

    /// The next answer that can be handed in: of a run, once all of it is answered.
    pub(crate) fn next_answer(&mut self) -> Option<FactAnswer> {
        let place = self.answered + 1;
        let run = self.runs.front().copied().filter(|(from, to)| (*from..=*to).contains(&place));
        let last = run.map_or(place, |(_, to)| to);
        let count = usize::try_from(last - self.answered).unwrap();
        let known = self.answers.iter().take(count).take_while(|answer| answer.is_some()).count();
        if known < count && !matches!(self.answers.front(), Some(Some(FactAnswer::Unknown))) {
            return None;
        }
        let answer = self.answers.pop_front().flatten()?;
        self.answered = place;
        if place == last {
            self.runs.pop_front_if(|_| run.is_some());
            return Some(answer);
        }
        // Only the last answer of a run has a position.
        Some(match answer {
            FactAnswer::Stored(_) => FactAnswer::Stored(Stored { sequence: 0, duplicate: false }),
            other => other,
        })
    }
}
