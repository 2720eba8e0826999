//! The delay before the next attempt: exponential growth with full jitter, without an end.
//!
//! The `backoff` crate computes the growth; only this file uses it. Two of its defaults are turned off: it gives up after
//! fifteen minutes (a device may be cut off for weeks), and it draws from the middle of the interval (devices that were cut
//! off together would reconnect together). This file neither sleeps nor retries: callers do.

use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};
use fastrand::Rng;

/// Factor by which the upper bound of the delay grows with each attempt.
const GROWTH: f64 = 2.0;
/// Least upper bound of a delay: zero would not grow, and the caller would loop without a pause.
const BOUND_MIN: Duration = Duration::from_millis(1);

/// Delays drawn uniformly from zero to an upper bound that doubles with each attempt.
#[derive(Debug, Clone)]
pub struct FullJitter {
    bound: ExponentialBackoff,
}

impl FullJitter {
    /// Delays whose upper bound grows from `min` to `max` and stays there.
    ///
    /// A `min` above `max` counts as `max`, and a bound below a millisecond as a millisecond.
    pub fn new(min: Duration, max: Duration) -> Self {
        let max = max.max(BOUND_MIN);
        let bound = ExponentialBackoffBuilder::new()
            .with_initial_interval(min.clamp(BOUND_MIN, max))
            .with_max_interval(max)
            .with_multiplier(GROWTH)
            .with_randomization_factor(0.0)
            .with_max_elapsed_time(None)
            .build();
        Self { bound }
    }

    /// The delay before the next attempt; the next call draws from twice the range.
    pub fn next(&mut self, rng: &mut Rng) -> Duration {
        let bound = self.bound.current_interval.min(self.bound.max_interval);
        // This call only makes the bound grow: without randomisation it returns the bound read above.
        let _ = self.bound.next_backoff();
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(rng.u64(0..=nanos))
    }

    /// Starts again from the least delay. Callers call it after a successful attempt.
    pub fn reset(&mut self) {
        self.bound.reset();
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert, proptest};

    use super::*;

    /// The largest of many delays drawn at the same attempt: close to that attempt's bound.
    fn largest(attempt: usize, jitter: &FullJitter, rng: &mut Rng) -> Duration {
        let draw = |rng: &mut Rng| {
            let mut jitter = jitter.clone();
            (0..attempt).for_each(|_| _ = jitter.next(rng));
            jitter.next(rng)
        };
        (0..2_000).map(|_| draw(rng)).max().unwrap_or_default()
    }

    #[test]
    fn the_bound_doubles_to_the_maximum_and_stays() {
        let mut rng = Rng::with_seed(7);
        let jitter = FullJitter::new(Duration::from_secs(1), Duration::from_secs(10));
        for (attempt, bound) in [1.0, 2.0, 4.0, 8.0, 10.0, 10.0].into_iter().enumerate() {
            let seen = largest(attempt, &jitter, &mut rng).as_secs_f64();
            assert!(seen <= bound && seen > 0.98 * bound, "attempt {attempt}: {seen} of {bound}");
        }
    }

    #[test]
    fn delays_fill_the_whole_range_evenly() {
        let mut rng = Rng::with_seed(11);
        let mut quarters = [0u32; 4];
        for _ in 0..8_000 {
            let mut jitter = FullJitter::new(Duration::from_secs(4), Duration::from_secs(4));
            quarters[jitter.next(&mut rng).as_secs().min(3) as usize] += 1;
        }
        assert!(quarters.iter().all(|n| (1_850..=2_150).contains(n)), "{quarters:?}");
    }

    #[test]
    fn a_reset_starts_again_from_the_least_delay() {
        let mut rng = Rng::with_seed(3);
        let mut jitter = FullJitter::new(Duration::from_secs(1), Duration::from_secs(60));
        (0..20).for_each(|_| _ = jitter.next(&mut rng));
        jitter.reset();
        assert!(largest(0, &jitter, &mut rng) <= Duration::from_secs(1));
    }

    #[test]
    fn an_outage_of_weeks_is_no_reason_to_give_up() {
        let jitter = FullJitter::new(Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(jitter.bound.max_elapsed_time, None);
    }

    proptest! {
        #[test]
        fn no_delay_leaves_its_bounds(min in 0u64..5_000, max in 0u64..100_000, seed: u64, attempts in 1usize..40) {
            let mut rng = Rng::with_seed(seed);
            let max = Duration::from_millis(max);
            let mut jitter = FullJitter::new(Duration::from_millis(min), max);
            for _ in 0..attempts {
                prop_assert!(jitter.next(&mut rng) <= max.max(BOUND_MIN));
            }
        }
    }
}
