//! A token bucket, which limits an amount in time. The time is an argument; it must not run backwards, so callers
//! pass the time since some start and no wall clock.
//!
//! A bucket may go into debt by one withdrawal: an amount larger than the whole burst is allowed once, and paid back at
//! the sustained rate before the next one. So over any time t it gives at most `burst + rate × t` and one withdrawal more.

use std::time::Duration;

/// Parts of a token that the bucket counts: with a rate of tokens a second, one part a nanosecond and token of the rate.
const PARTS: i128 = 1_000_000_000;

/// A sustained rate and a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens a second.
    pub per_second: u64,
    /// Tokens in a full bucket.
    pub burst: u64,
}

/// The tokens that are left of a [`Rate`]. It begins full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    /// In parts of a token; below zero is debt.
    level: i128,
    /// The time of the level.
    at: Duration,
}

impl Rate {
    const fn capacity(self) -> i128 {
        self.burst as i128 * PARTS
    }
}

impl TokenBucket {
    /// A full bucket.
    pub(crate) const fn full(rate: Rate, now: Duration) -> Self {
        Self { level: rate.capacity(), at: now }
    }

    /// Whether a withdrawal may be made now.
    pub(crate) fn has_credit(&mut self, rate: Rate, now: Duration) -> bool {
        self.refill(rate, now);
        self.level >= PARTS
    }

    /// Withdraws an amount, into debt if necessary.
    pub(crate) fn withdraw(&mut self, amount: u64, rate: Rate, now: Duration) {
        self.refill(rate, now);
        self.level -= i128::from(amount) * PARTS;
    }

    /// Whether it is full: a full bucket need not be remembered.
    pub(crate) fn is_full(&mut self, rate: Rate, now: Duration) -> bool {
        self.refill(rate, now);
        self.level >= rate.capacity()
    }

    fn refill(&mut self, rate: Rate, now: Duration) {
        let elapsed = now.saturating_sub(self.at);
        let gained = i128::from(rate.per_second) * elapsed.as_nanos() as i128;
        self.level = (self.level + gained).min(rate.capacity());
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::{prop_assert, proptest};

    use super::*;

    const RATE: Rate = Rate { per_second: 50, burst: 100 };

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::full(RATE, at(0));
        for _ in 0..100 {
            assert!(bucket.has_credit(RATE, at(0)));
            bucket.withdraw(1, RATE, at(0));
        }
        // milliseconds, credit: a token is there every 20 ms
        for (now, credit) in [(0, false), (19, false), (20, true), (40, true)] {
            assert_eq!(bucket.has_credit(RATE, at(now)), credit, "{now} ms");
        }
        assert!(!bucket.is_full(RATE, at(1_999)) && bucket.is_full(RATE, at(2_000)));
    }

    #[test]
    fn an_amount_beyond_the_burst_is_given_once_and_paid_back_at_the_rate() {
        let mut bucket = TokenBucket::full(RATE, at(0));
        bucket.withdraw(200, RATE, at(0));
        assert!(!bucket.has_credit(RATE, at(2_000)), "the debt is paid, no token is there");
        assert!(bucket.has_credit(RATE, at(2_020)));
    }

    #[test]
    fn a_time_that_runs_backwards_gives_nothing_twice() {
        let mut bucket = TokenBucket::full(RATE, at(1_000));
        bucket.withdraw(100, RATE, at(1_000));
        assert!(!bucket.has_credit(RATE, at(0)) && !bucket.has_credit(RATE, at(1_019)));
        assert!(bucket.has_credit(RATE, at(1_020)));
    }

    proptest! {
        /// Between any two withdrawals, the burst, the rate and one withdrawal more bound what was given.
        #[test]
        fn no_time_gives_more_than_burst_and_rate(
            steps in vec((0_u64..500, 1_u64..30), 1..200),
            per_second in 1_u64..200,
            burst in 1_u64..300,
        ) {
            let rate = Rate { per_second, burst };
            let (mut bucket, mut now) = (TokenBucket::full(rate, at(0)), 0);
            let mut given: Vec<(u64, u64)> = Vec::new();
            for (pause, amount) in steps {
                now += pause;
                if bucket.has_credit(rate, at(now)) {
                    bucket.withdraw(amount, rate, at(now));
                    given.push((now, amount));
                }
            }
            for (nth, (from, _)) in given.iter().enumerate() {
                let mut sum = 0;
                for (to, amount) in &given[nth..] {
                    sum += amount;
                    prop_assert!((sum - amount) * 1_000 <= burst * 1_000 + per_second * (to - from));
                }
            }
        }

        /// A sender within the rate is never refused.
        #[test]
        fn a_device_within_its_rate_is_never_refused(
            per_second in 1_u64..200, burst in 2_u64..300, count in 1_u64..500,
        ) {
            let rate = Rate { per_second, burst };
            let mut bucket = TokenBucket::full(rate, at(0));
            for nth in 1..=count {
                let now = Duration::from_nanos(nth * 1_000_000_000_u64.div_ceil(per_second));
                prop_assert!(bucket.has_credit(rate, now));
                bucket.withdraw(1, rate, now);
            }
        }
    }
}
