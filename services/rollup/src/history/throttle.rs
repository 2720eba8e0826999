//! Throttles background work beside the live fold: after each step it rests as long as the step took, and nine
//! times as long while many facts arrive.
//!
//! A busy projection needs the CPU, and the server needs time to deliver. This module does no IO.

use std::time::Duration;

use tokio::time::Instant;

/// The least rest: shorter ones are added up. Also where there is none, a question that came meanwhile is next.
const REST_MIN: Duration = Duration::from_millis(10);
/// The longest rest: a step that mostly waited for LEDGER did little work.
const REST_MAX: Duration = Duration::from_secs(3);
/// Interval at which the rate of facts is measured.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Facts a second that count as many. A backfill at a tenth of the time reads about as many.
const MANY: u64 = 10_000;
/// Rest for each moment of work, while few facts come in and while many do.
const RESTS: [u32; 2] = [1, 9];

const _: () = assert!(REST_MIN.as_millis() < REST_MAX.as_millis());

/// When to rest.
#[derive(Debug)]
pub struct Throttle {
    looked_at: Instant,
    /// Up to where the live fold had read then; not known before the first step.
    read_to: Option<u64>,
    rests: u32,
    /// Rest for steps that were too short for one.
    owed: Duration,
}

impl Throttle {
    /// Nothing is known yet.
    pub const fn since(now: Instant) -> Self {
        Self { looked_at: now, read_to: None, rests: RESTS[0], owed: Duration::ZERO }
    }

    /// The rest after a step that took so long, when the live fold has read so far.
    pub fn after(&mut self, took: Duration, read_to: u64, now: Instant) -> Duration {
        self.measure(read_to, now);
        self.owed += took * self.rests;
        if self.owed < REST_MIN { Duration::ZERO } else { std::mem::take(&mut self.owed).min(REST_MAX) }
    }

    fn measure(&mut self, read_to: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.looked_at);
        if let Some(before) = self.read_to
            && passed >= LOOK_EVERY
        {
            // A LEDGER that was set back has brought nothing.
            let facts = u128::from(read_to.saturating_sub(before));
            self.rests = RESTS[usize::from(facts * 1_000 > u128::from(MANY) * passed.as_millis())];
        }
        if self.read_to.is_none() || passed >= LOOK_EVERY {
            (self.looked_at, self.read_to) = (now, Some(read_to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    #[test]
    fn a_step_is_followed_by_an_equal_rest_or_a_ninefold_one_under_load() {
        let begun = Instant::now();
        let mut throttle = Throttle::since(begun);
        let mut after =
            |millis: u64, read_to| throttle.after(STEP, read_to, begun + Duration::from_millis(millis));
        assert_eq!(after(0, 1_000_000), STEP, "how fast facts come in is not known yet");
        assert_eq!(after(50, 1_900_000), STEP, "nor so soon");
        assert_eq!(after(200, 2_000_000), 9 * STEP);
        assert_eq!(after(250, 2_000_000), 9 * STEP, "until the next look");
        assert_eq!(after(1_200, 2_010_000), STEP, "ten thousand a second are not many");
        assert_eq!(after(2_200, 2_020_011), 9 * STEP);
        assert_eq!(after(2_400, 7), STEP, "what is set back brings nothing");
        let long = throttle.after(10 * REST_MAX, 8, begun + Duration::from_secs(60));
        assert_eq!(long, REST_MAX);
    }

    #[test]
    fn rests_that_are_too_short_are_added_up() {
        let begun = Instant::now();
        let mut throttle = Throttle::since(begun);
        let short = REST_MIN / 4;
        let rests: Vec<Duration> = (0..8).map(|_| throttle.after(short, 1, begun)).collect();
        let zero = Duration::ZERO;
        assert_eq!(rests, [zero, zero, zero, REST_MIN, zero, zero, zero, REST_MIN]);
    }
}
