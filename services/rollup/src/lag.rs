//! Holds the rollup's lag behind LEDGER for every answer and view. The monitor writes it, the query service
//! adds it to its answers, and the view writer vouches for views only up to the last moment without lag.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::lag::{Lagging, RollupLag};
use tokio::time::Instant;

/// How long LEDGER may be silent before the rollup reports that it is cut off.
pub(crate) const CUT_OFF_AFTER: Duration = Duration::from_secs(5);
/// How long a position that LEDGER has reached may stay unread before the rollup says that it lags.
pub(crate) const LAG_AFTER: Duration = Duration::from_secs(5);
/// Facts that may be unread before the rollup says at once that it lags.
pub(crate) const LAG_FACTS_MAX: u64 = 10_000;

/// How long LEDGER must refuse facts about the hub's hearing before views lose their validity: one failed write is repeated first.
pub(crate) const UNRECORDED_FOR: Duration = Duration::from_secs(2);

/// The rollup's lag behind LEDGER, shared.
#[derive(Debug)]
pub struct LagState(Mutex<LagInner>);

#[derive(Debug)]
struct LagInner {
    /// When LEDGER last answered, and its time then; initially the start.
    answered: LagSample,
    /// LEDGER's end and when it was read, while the projection has not reached it.
    goal: Option<(LagSample, u64)>,
    /// Facts that are unread.
    unread: u64,
    /// Since when everything that LEDGER held was read no more.
    behind_since: Option<Timestamp>,
    /// Since when a fact about the hub's hearing could not be stored.
    unrecorded_since: Option<Timestamp>,
    /// The last moment at which nothing stood between.
    vouched: Option<LagSample>,
    /// When this process started.
    started: Instant,
}

/// A moment by the monotonic clock of this process and by the server's clock.
#[derive(Debug, Clone, Copy)]
struct LagSample {
    seen: Instant,
    at: Timestamp,
}

impl LagState {
    /// Creates the state before LEDGER's first answer, at this local time.
    pub fn new(now: Timestamp) -> Self {
        Self(Mutex::new(LagInner {
            answered: LagSample { seen: Instant::now(), at: now },
            goal: None,
            unread: 0,
            behind_since: None,
            unrecorded_since: None,
            vouched: None,
            started: Instant::now(),
        }))
    }

    /// Records that LEDGER ended with `last_seq` at `at`, and that it is read through a position.
    pub fn ledger(&self, at: Timestamp, last_seq: u64, read_through: u64) {
        let mut inner = self.inner();
        let now = LagSample { seen: Instant::now(), at };
        let before = std::mem::replace(&mut inner.answered, now).at;
        inner.unread = last_seq.saturating_sub(read_through);
        if inner.unread == 0 {
            (inner.goal, inner.behind_since) = (None, None);
        } else {
            inner.behind_since.get_or_insert(before);
            if inner.goal.is_none_or(|(_, goal)| read_through >= goal) {
                inner.goal = Some((now, last_seq));
            }
        }
        if inner.lag(now.seen).is_none() {
            inner.vouched = Some(now);
        }
    }

    /// Records whether LEDGER stores the facts about the hub's hearing.
    pub fn recorded(&self, is_recorded: bool) {
        let mut inner = self.inner();
        let at = inner.answered.at;
        if is_recorded {
            inner.unrecorded_since = None;
        } else {
            _ = inner.unrecorded_since.get_or_insert(at);
        }
    }

    /// The current lag.
    pub fn now(&self) -> RollupLag {
        self.inner().lag(Instant::now())
    }

    /// The last moment without lag, by the server's clock: the present where there is none.
    pub(crate) fn vouched_at(&self) -> Option<Timestamp> {
        let (inner, now) = (self.inner(), Instant::now());
        let vouched = inner.vouched?;
        let since = if inner.lag(now).is_none() { now.duration_since(vouched.seen) } else { Duration::ZERO };
        vouched.at.checked_add(since).ok()
    }

    /// Whether LEDGER has not stored a fact about the hub's hearing for [`UNRECORDED_FOR`]: freshness may be out of date.
    pub(crate) fn is_unrecorded(&self) -> bool {
        let inner = self.inner();
        let lasts = |since| Duration::try_from(inner.answered.at.duration_since(since)).unwrap_or_default();
        inner.unrecorded_since.is_some_and(|since| lasts(since) >= UNRECORDED_FOR)
    }

    /// For how long there has been a lag; zero while there is none. Until LEDGER was first read to its end, since the start.
    pub fn duration(&self) -> Duration {
        let (inner, now) = (self.inner(), Instant::now());
        let since = inner.vouched.map_or(inner.started, |vouched| vouched.seen);
        let is_current = inner.vouched.is_some() && inner.lag(now).is_none();
        if is_current { Duration::ZERO } else { now.duration_since(since) }
    }

    /// The present by the server's clock, as far as it is known.
    pub(crate) fn server_time(&self) -> Timestamp {
        let LagSample { seen, at } = self.inner().answered;
        at.checked_add(Instant::now().duration_since(seen)).unwrap_or(at)
    }

    /// The value is consistent at any moment, so a panic elsewhere leaves no partial update.
    fn inner(&self) -> MutexGuard<'_, LagInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LagInner {
    fn lag(&self, now: Instant) -> RollupLag {
        let is_late = self.goal.is_some_and(|(goal, _)| now.duration_since(goal.seen) > LAG_AFTER);
        let since = self.behind_since.filter(|_| is_late || self.unread > LAG_FACTS_MAX);
        let is_cut_off = now.duration_since(self.answered.seen) > CUT_OFF_AFTER;
        RollupLag {
            lagging: since.map(|since| Lagging { facts: self.unread, since }),
            cut_off_since: is_cut_off.then_some(self.answered.at),
            unrecorded_since: self.unrecorded_since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_that_stays_unread_is_a_lag_and_a_busy_ledger_is_none() {
        let lag = LagState::new(at(0));
        let step = Duration::from_secs(1);
        for second in 1..60 {
            tokio::time::advance(step).await;
            lag.ledger(at(second), 100 * second as u64, 100 * second as u64 - 50);
            assert!(lag.now().is_none(), "it reads on, second {second}");
        }
        lag.ledger(at(60), 6_000, 6_000);
        for second in 61..=67 {
            tokio::time::advance(step).await;
            lag.ledger(at(second), 6_001, 6_000);
        }
        assert_eq!(lag.now().lagging, Some(Lagging { facts: 1, since: at(60) }));
        assert_eq!(lag.vouched_at(), Some(at(66)), "not beyond the last moment at which it was right");
        lag.ledger(at(68), 6_001, 6_001);
        assert!(lag.now().is_none());
        lag.ledger(at(69), 6_001 + LAG_FACTS_MAX + 1, 6_001);
        assert_eq!(lag.now().lagging, Some(Lagging { facts: LAG_FACTS_MAX + 1, since: at(68) }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_ledger_cuts_off_and_refused_writes_are_reported() {
        let lag = LagState::new(at(0));
        assert_eq!(lag.vouched_at(), None, "nothing is known yet");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((lag.duration(), lag.server_time()), (Duration::from_secs(2), at(2)));
        lag.ledger(at(10), 5, 5);
        assert_eq!((lag.duration(), lag.server_time()), (Duration::ZERO, at(10)));
        tokio::time::advance(CUT_OFF_AFTER).await;
        assert_eq!(lag.vouched_at(), Some(at(15)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(lag.now().cut_off_since, Some(at(10)));
        assert_eq!(lag.vouched_at(), Some(at(10)));
        assert_eq!((lag.duration(), lag.server_time()), (Duration::from_secs(6), at(16)));
        lag.ledger(at(20), 5, 5);
        lag.recorded(false);
        assert!(!lag.is_unrecorded(), "the write is repeated first");
        lag.ledger(at(21), 5, 5);
        lag.recorded(true);
        lag.ledger(at(20), 5, 5);
        lag.recorded(false);
        lag.ledger(at(30), 5, 5);
        lag.recorded(false);
        assert!(lag.is_unrecorded());
        assert_eq!(lag.now(), RollupLag { unrecorded_since: Some(at(20)), ..RollupLag::default() });
        assert_eq!(lag.vouched_at(), Some(at(20)));
        lag.recorded(true);
        assert!(lag.now().is_none());
    }
}
