//! Wall-clock time: the only file of Muster's services that reads the clock of the machine.
//!
//! Rules take the time as an argument; a task that needs the time holds a [`Clock`]. Tokio's timers do the waiting.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};

/// Wall-clock time, UTC.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time now. It steps backwards when the machine's clock is set back, so it must not order anything.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// A clock that moves only when a test moves it. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<Mutex<Timestamp>>,
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.lock()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self { now: Arc::new(Mutex::new(now)) }
    }

    /// Moves the clock by a span, backwards if it is negative. Stops at the ends of representable time.
    pub fn advance(&self, by: SignedDuration) {
        let mut now = self.lock();
        let end = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
        *now = now.checked_add(by).unwrap_or(end);
    }

    /// Sets the clock to a time.
    pub fn set(&self, now: Timestamp) {
        *self.lock() = now;
    }

    /// A panic of another holder does not spoil the time: it is replaced as a whole.
    fn lock(&self) -> MutexGuard<'_, Timestamp> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_it_is_moved_and_for_every_clone() {
        let clock = ManualClock::at(Timestamp::UNIX_EPOCH);
        let other = clock.clone();
        clock.advance(SignedDuration::from_secs(90));
        assert_eq!(other.now().as_second(), 90);
        other.set(Timestamp::UNIX_EPOCH);
        assert_eq!(clock.now(), Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn a_manual_clock_stops_at_the_ends_of_time() {
        let clock = ManualClock::at(Timestamp::MAX);
        clock.advance(SignedDuration::from_secs(1));
        assert_eq!(clock.now(), Timestamp::MAX);
        clock.set(Timestamp::MIN);
        clock.advance(SignedDuration::from_secs(-1));
        assert_eq!(clock.now(), Timestamp::MIN);
    }
}
