//! A token bucket: the time at which bytes have passed a link of a given rate. Pure; time is an argument.
//!
//! It keeps the instant at which it will be full again. Bytes move it later by their cost, and they have passed once it is
//! no more than the burst away.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

/// How much of its rate a bucket holds: bytes of this long may pass at once.
pub(super) const BURST: Duration = Duration::from_millis(50);

/// The bucket of one direction of a link.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: Option<NonZeroU64>,
    full_at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(super) const fn new(rate: Option<NonZeroU64>, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// Another rate: what was owed at the old one is forgiven.
    pub(super) fn set_rate(&mut self, rate: Option<NonZeroU64>, now: Instant) {
        if self.rate != rate {
            *self = Self::new(rate, now);
        }
    }

    /// When `bytes` that come now are through.
    pub(super) fn reserve(&mut self, bytes: usize, now: Instant) -> Instant {
        let Some(rate) = self.rate else { return now };
        let cost = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
        self.full_at = self.full_at.max(now) + cost;
        self.full_at.checked_sub(BURST).unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Option<NonZeroU64> = NonZeroU64::new(1000);

    #[tokio::test(start_paused = true)]
    async fn bytes_beyond_the_burst_wait_for_their_turn() {
        let now = Instant::now();
        let mut bucket = Bucket::new(RATE, now);
        assert_eq!(bucket.reserve(50, now), now, "the burst passes at once");
        assert_eq!(bucket.reserve(1000, now), now + Duration::from_secs(1));
        assert_eq!(bucket.reserve(500, now), now + Duration::from_millis(1500), "after what came before");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_bucket_saves_no_more_than_the_burst() {
        let now = Instant::now();
        let mut bucket = Bucket::new(RATE, now);
        let later = now + Duration::from_secs(3600);
        assert_eq!(bucket.reserve(1050, later), later + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_forgives_what_was_owed() {
        let now = Instant::now();
        let mut bucket = Bucket::new(RATE, now);
        bucket.reserve(1_000_000, now);
        bucket.set_rate(None, now);
        assert_eq!(bucket.reserve(1_000_000, now), now);
    }

    /// Over any span, no more passes than the rate allows, plus one burst.
    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_for_any_arrivals() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let begin = Instant::now();
            let mut bucket = Bucket::new(RATE, begin);
            let (mut now, mut passed) = (begin, 0);
            for _ in 0..100 {
                now += Duration::from_millis(rng.u64(0..40));
                let bytes = rng.usize(1..200);
                passed += bytes;
                let through = bucket.reserve(bytes, now);
                let allowed = (through - begin + BURST).as_secs_f64() * 1000.0;
                assert!(passed as f64 <= allowed + 1e-3, "{passed} bytes by {:?}", through - begin);
            }
        }
    }
}
