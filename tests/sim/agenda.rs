//! Virtual time: what happens next, and when. Events of one moment happen in the order in which they were noted. It
//! knows nothing of what the events mean.

use std::collections::BTreeMap;

use muster_contract::Timestamp;

/// Milliseconds of virtual time since the beginning.
pub(crate) type Millis = i64;

/// A second.
pub(crate) const SECOND: Millis = 1_000;
/// A minute.
pub(crate) const MINUTE: Millis = 60 * SECOND;

/// The beginning of every simulation: 2026-01-01, in seconds of Unix time.
const BEGINNING: i64 = 1_767_225_600;

/// A moment as the documents write it.
pub(crate) fn moment(at: Millis) -> Timestamp {
    Timestamp::from_millisecond(BEGINNING * SECOND + at).unwrap()
}

/// Everything that will happen.
#[derive(Debug)]
pub(crate) struct Agenda<E> {
    now: Millis,
    noted: u64,
    queue: BTreeMap<(Millis, u64), E>,
}

impl<E> Agenda<E> {
    /// Nothing yet, at time zero.
    pub(crate) const fn new() -> Self {
        Self { now: 0, noted: 0, queue: BTreeMap::new() }
    }

    /// The current time.
    pub(crate) const fn now(&self) -> Millis {
        self.now
    }

    /// Something will happen at a moment, or now if that is over.
    pub(crate) fn at(&mut self, at: Millis, event: E) {
        self.noted += 1;
        self.queue.insert((at.max(self.now), self.noted), event);
    }

    /// Something will happen after a while.
    pub(crate) fn after(&mut self, delay: Millis, event: E) {
        self.at(self.now + delay, event);
    }

    /// The next event; time goes on to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let ((at, _), event) = self.queue.pop_first()?;
        self.now = at;
        Some(event)
    }
}
