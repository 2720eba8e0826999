//! Decides how long the writer of views rests after it has written many at once: where thousands of views change all the time, the
//! bus has other traffic too.
//!
//! The rest is a multiple of the time that so many writes usually take, and not of the time that they took: a server that stalls for
//! 50 ms once would otherwise delay every view by four times as much again. A server that stays slow becomes the usual one. The
//! module is pure: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::LOOK_MAX;

/// The rest as a multiple of the usual time of the writes before it.
const FACTOR: u32 = 4;
/// The longest rest: after a start everything may be due at once.
const REST_MAX: Duration = Duration::from_secs(1);
/// The usual time of a write grows by one part in so many with each turn.
const GROWTH: u32 = 8;
/// The least time of a write. Writes that fail at once take less, and say nothing about the usual time.
const EACH_MIN: Duration = Duration::from_micros(10);

/// When the writer may write again, and the usual time of a write.
#[derive(Debug)]
pub(super) struct Rest {
    until: Instant,
    /// The usual time of one write among many at once; none before the first turn of many.
    usual: Option<Duration>,
}

impl Rest {
    /// No rest at first.
    pub(super) const fn new(now: Instant) -> Self {
        Self { until: now, usual: None }
    }

    /// When the next turn may begin. Views that become due before wait with the others.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// Begins the rest after a turn that sent so many writes in such a time. After a few there is none.
    pub(super) fn begin(&mut self, writes: usize, took: Duration, now: Instant) {
        if writes <= LOOK_MAX {
            return;
        }
        let writes = u32::try_from(writes).unwrap_or(u32::MAX);
        let each = (took / writes).max(EACH_MIN);
        let usual = self.usual.map_or(each, |usual| each.min(usual + usual / GROWTH));
        self.usual = Some(usual);
        self.until = now + usual.saturating_mul(writes).saturating_mul(FACTOR).min(REST_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = LOOK_MAX + 36;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn many_views_are_followed_by_a_rest_of_up_to_a_second() {
        let now = Instant::now();
        let mut rest = Rest::new(now);
        rest.begin(LOOK_MAX, ms(100), now);
        assert_eq!(rest.until(), now);
        rest.begin(MANY, ms(100), now);
        assert_eq!(rest.until(), now + ms(400));
        rest.begin(100_000, ms(100_000), now);
        assert_eq!(rest.until(), now + REST_MAX, "nobody waits for long after a start");
    }

    #[test]
    fn a_stall_is_no_reason_to_rest_longer_but_a_slow_server_is() {
        let now = Instant::now();
        let mut rest = Rest::new(now);
        rest.begin(MANY, ms(8), now);
        rest.begin(MANY, ms(200), now);
        assert_eq!(rest.until(), now + ms(36), "the usual time has grown by an eighth");
        let turns = (0..100).take_while(|_| {
            rest.begin(MANY, ms(200), now);
            rest.until() < now + ms(800)
        });
        assert!((20..40).contains(&turns.count()), "{rest:?}");
        rest.begin(MANY, ms(8), now);
        assert_eq!(rest.until(), now + ms(32), "a fast turn makes it fast at once");
        rest.begin(MANY, Duration::ZERO, now);
        assert_eq!(rest.until(), now + 4 * EACH_MIN * 100);
    }
}
