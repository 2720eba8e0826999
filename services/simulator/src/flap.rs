//! When links break and how: a schedule drawn from a profile and a seed, so that a run can be repeated. The schedule
//! is pure; [`follow`] turns a link by it.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::link::{Fault, Link, Profile, Setting};

/// The schedule of one link.
#[derive(Debug)]
pub struct Flapping {
    profile: Profile,
    rng: fastrand::Rng,
    is_well: bool,
}

/// What a link is like for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// What goes wrong; nothing if none.
    pub fault: Option<Fault>,
    /// What the link does.
    pub setting: Setting,
    /// For how long.
    pub lasts: Duration,
}

impl Flapping {
    /// A schedule that a profile, a seed and the link's number determine.
    pub fn new(profile: Profile, seed: u64, link: usize) -> Self {
        let mixed = seed ^ (link as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { profile, rng: fastrand::Rng::with_seed(mixed), is_well: false }
    }

    /// The next turn. A link begins well, and is well in every other turn.
    pub fn turn(&mut self) -> Turn {
        self.is_well = !self.is_well;
        let bounds = if self.is_well { &self.profile.well_ms } else { &self.profile.broken_ms };
        let lasts = Duration::from_millis(self.rng.u64(bounds.clone()));
        let fault = if self.is_well { None } else { self.draw() };
        let setting = fault.map_or(self.well(), |fault| fault.setting(self.profile.shape));
        Turn { fault, setting, lasts }
    }

    /// What the link does while nothing is wrong with it.
    pub fn well(&self) -> Setting {
        Setting { shape: self.profile.shape, ..Setting::default() }
    }

    fn draw(&mut self) -> Option<Fault> {
        let faults = self.profile.faults;
        let total: u32 = faults.iter().map(|(_, weight)| weight).sum();
        let mut at = (total > 0).then(|| self.rng.u32(0..total))?;
        let drawn = faults.iter().find(|(_, weight)| match at.checked_sub(*weight) {
            Some(left) => {
                at = left;
                false
            }
            None => true,
        });
        drawn.map(|(fault, _)| *fault)
    }
}

/// Turns a link by its schedule until `calm`; then it is well. `told` hears of every fault as it begins.
pub async fn follow(
    link: &Link,
    mut flapping: Flapping,
    calm: &CancellationToken,
    mut told: impl FnMut(Fault, Duration),
) {
    loop {
        let Turn { fault, setting, lasts } = flapping.turn();
        link.turn(setting);
        if let Some(fault) = fault {
            told(fault, lasts);
        }
        if calm.run_until_cancelled(sleep(lasts)).await.is_none() {
            link.turn(flapping.well());
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_links_differ() {
        let draw = |seed, link| {
            let mut flapping = Flapping::new(Profile::FLAKY, seed, link);
            (0..20).map(|_| flapping.turn()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }

    #[test]
    fn well_and_broken_take_turns_within_their_bounds() {
        for profile in Profile::ALL {
            let mut flapping = Flapping::new(profile.clone(), 1, 0);
            for turn in 0..100 {
                let bounds = if turn % 2 == 0 { &profile.well_ms } else { &profile.broken_ms };
                let Turn { fault, lasts, .. } = flapping.turn();
                assert_eq!(fault.is_none(), turn % 2 == 0 || profile.faults.is_empty());
                assert!(bounds.contains(&(lasts.as_millis() as u64)), "{fault:?} for {lasts:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_follows_its_schedule_until_calm_and_is_well_then() {
        let link = Link::open("127.0.0.1:1").await.unwrap();
        let calm = CancellationToken::new();
        let mut faults = Vec::new();
        let told = |fault, _| {
            faults.push(fault);
            if faults.len() == 10 {
                calm.cancel();
            }
        };
        follow(&link, Flapping::new(Profile::FLAKY, 1, 0), &calm, told).await;
        let mut again = Flapping::new(Profile::FLAKY, 1, 0);
        let expected: Vec<_> = (0..20).filter_map(|_| again.turn().fault).collect();
        assert_eq!(faults, expected);
        assert_eq!(link.setting(), Setting::default());
    }

    #[test]
    fn everything_that_may_go_wrong_does_in_the_end_and_nothing_else() {
        for profile in Profile::ALL {
            let mut flapping = Flapping::new(profile.clone(), 1, 0);
            let seen: BTreeSet<Fault> = (0..1000).filter_map(|_| flapping.turn().fault).collect();
            assert_eq!(seen, profile.faults.iter().map(|(fault, _)| *fault).collect(), "{}", profile.name);
        }
    }
}
