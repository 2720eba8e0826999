//! How fast readers that lost their footing try again.

use std::time::Duration;

use fastrand::Rng;
use muster_contract::limits::RECONNECT_MAX;
use muster_service::backoff::FullJitter;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::link::Link;

/// Shortest upper bound of the delay before another attempt.
pub(crate) const HEAL_MIN: Duration = Duration::from_millis(250);
/// Longest delay before another attempt. Each attempt costs the server a consumer, so this is not short.
pub(crate) const HEAL_MAX: Duration = Duration::from_secs(30);

/// A life that lasted this long was a good one: the next attempt comes at once.
const GOOD_LIFE: Duration = Duration::from_secs(60);

/// The pause between attempts of one reader. The first one after something was read, or after a long quiet life, comes
/// at once.
#[derive(Debug)]
pub(crate) struct Pause {
    delay: FullJitter,
    chance: Rng,
    failures: u32,
    last_attempt: Option<Instant>,
    /// When the next attempt may come, if it is waited for: whoever stops waiting and comes again waits no longer.
    next_attempt: Option<Instant>,
}

impl Pause {
    pub(crate) fn new() -> Self {
        Self {
            delay: FullJitter::new(HEAL_MIN, HEAL_MAX),
            chance: Rng::new(),
            failures: 0,
            last_attempt: None,
            next_attempt: None,
        }
    }

    /// Waits before an attempt: for the link, and longer after every attempt that went wrong. Cancel-safe.
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
        if self.last_attempt.is_some_and(|at| at.elapsed() > GOOD_LIFE) {
            self.reset();
        }
        let mut at = Instant::now();
        if self.failures > 0 {
            at += self.delay.next(&mut self.chance);
        }
        *self.next_attempt.insert(at)
    }

    /// To be called when something was read.
    pub(crate) fn reset(&mut self) {
        if self.failures > 0 {
            self.failures = 0;
            self.delay.reset();
        }
    }
}

const _: () = {
    assert!(HEAL_MIN.as_millis() < HEAL_MAX.as_millis());
    assert!(HEAL_MAX.as_secs() <= RECONNECT_MAX.as_secs() && HEAL_MAX.as_secs() < GOOD_LIFE.as_secs());
};
