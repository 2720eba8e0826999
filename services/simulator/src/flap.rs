//! When links break: a schedule drawn from a seed, so that a run can be repeated. Pure: it asks no clock.

use std::time::Duration;

use crate::link::Condition;

/// Shortest and longest time a link is well between two faults.
pub const WELL_MS: std::ops::Range<u64> = 3_000..12_000;
/// Shortest and longest time a link is broken.
pub const BROKEN_MS: std::ops::Range<u64> = 800..5_000;
/// One fault in so many is a stall instead of a cut.
pub const STALL_ONE_IN: u32 = 4;

/// The schedule of one link.
#[derive(Debug)]
pub struct Flapping {
    rng: fastrand::Rng,
    well: bool,
}

impl Flapping {
    /// A schedule that a seed and the link's number determine.
    pub fn new(seed: u64, link: usize) -> Self {
        let mixed = seed ^ (link as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { rng: fastrand::Rng::with_seed(mixed), well: false }
    }

    /// The next condition and how long it lasts. A link begins well.
    pub fn turn(&mut self) -> (Condition, Duration) {
        self.well = !self.well;
        if self.well {
            return (Condition::Open, Duration::from_millis(self.rng.u64(WELL_MS)));
        }
        let stall = self.rng.u32(0..STALL_ONE_IN) == 0;
        let condition = if stall { Condition::Stalled } else { Condition::Cut };
        (condition, Duration::from_millis(self.rng.u64(BROKEN_MS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_links_differ() {
        let draw = |seed, link| {
            let mut flapping = Flapping::new(seed, link);
            (0..20).map(|_| flapping.turn()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }

    #[test]
    fn well_and_broken_take_turns_within_their_bounds() {
        let mut flapping = Flapping::new(1, 0);
        for turn in 0..100 {
            let (condition, lasts) = flapping.turn();
            let bounds = if turn % 2 == 0 { WELL_MS } else { BROKEN_MS };
            assert_eq!(condition == Condition::Open, turn % 2 == 0);
            assert!(bounds.contains(&(lasts.as_millis() as u64)), "{condition:?} for {lasts:?}");
        }
    }
}
