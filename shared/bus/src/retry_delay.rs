//! The delay between a reader's attempts to open its consumer again.

use std::time::Duration;

use fastrand::Rng;
use muster_contract::limits::RECONNECT_MAX;
use muster_service::backoff::FullJitter;
use muster_service::retry::RetryPolicy;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::link::Link;

/// Delays before another attempt. Each attempt costs the server a consumer, so the longest is not short.
pub(crate) const REOPEN: RetryPolicy =
    RetryPolicy { min: Duration::from_millis(250), max: Duration::from_secs(30) };

/// A session that lasted this long resets the delay: the next attempt follows at once.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// The delay between attempts of one reader. The first attempt after a successful read, or after a session of
/// [`STABLE_AFTER`], is not delayed.
#[derive(Debug)]
pub(crate) struct RetryDelay {
    delay: FullJitter,
    rng: Rng,
    failures: u32,
    last_attempt: Option<Instant>,
    /// When the next attempt may begin. It is kept over a cancelled wait, so that waiting again adds no delay.
    next_attempt: Option<Instant>,
}

impl RetryDelay {
    pub(crate) fn new() -> Self {
        Self {
            delay: FullJitter::new(REOPEN.min, REOPEN.max),
            rng: Rng::new(),
            failures: 0,
            last_attempt: None,
            next_attempt: None,
        }
    }

    /// Waits until an attempt may begin: for the delay, which grows with every failed attempt, then for the link.
    /// Cancel-safe.
    pub(crate) async fn before_attempt(&mut self, link: &watch::Receiver<Link>) {
        let at = self.next_attempt();
        tokio::time::sleep_until(at).await;
        // An error means that the bus is gone; the attempt will say so.
        let _ = link.clone().wait_for(|link| link.is_up()).await;
        self.failures = self.failures.saturating_add(1);
        self.last_attempt = Some(Instant::now());
        self.next_attempt = None;
    }

    fn next_attempt(&mut self) -> Instant {
        if let Some(at) = self.next_attempt {
            return at;
        }
        if self.last_attempt.is_some_and(|at| at.elapsed() > STABLE_AFTER) {
            self.reset();
        }
        let mut at = Instant::now();
        if self.failures > 0 {
            at += self.delay.next(&mut self.rng);
        }
        *self.next_attempt.insert(at)
    }

    /// Resets the delay; the reader calls it when it has read something.
    pub(crate) fn reset(&mut self) {
        if self.failures > 0 {
            self.failures = 0;
            self.delay.reset();
        }
    }
}

const _: () = {
    assert!(REOPEN.max.as_secs() <= RECONNECT_MAX.as_secs() && REOPEN.max.as_secs() < STABLE_AFTER.as_secs());
};
