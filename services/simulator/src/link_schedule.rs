//! The fault schedule of a link, drawn from a profile and a seed, so that a run can be repeated. The schedule is pure;
//! [`follow`] sets a link by it.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::link::{Fault, Link, Profile, Setting};

/// The schedule of one link.
#[derive(Debug)]
pub struct LinkSchedule {
    profile: Profile,
    rng: fastrand::Rng,
    is_well: bool,
}

/// One phase of the schedule of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// The fault; `None` for a phase without one.
    pub fault: Option<Fault>,
    /// The setting of the link.
    pub setting: Setting,
    /// For how long.
    pub lasts: Duration,
}

impl LinkSchedule {
    /// A schedule that a profile, a seed and the link's number determine.
    pub fn new(profile: Profile, seed: u64, link: usize) -> Self {
        let mixed = seed ^ (link as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { profile, rng: fastrand::Rng::with_seed(mixed), is_well: false }
    }

    /// The next turn. A link begins well, and is well in every other turn.
    pub fn next_phase(&mut self) -> Phase {
        self.is_well = !self.is_well;
        let bounds = if self.is_well { &self.profile.well_ms } else { &self.profile.broken_ms };
        let lasts = Duration::from_millis(self.rng.u64(bounds.clone()));
        let fault = if self.is_well { None } else { self.draw() };
        let setting = fault.map_or(self.well(), |fault| fault.setting(self.profile.shape));
        Phase { fault, setting, lasts }
    }

    /// The setting of the link without a fault.
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

/// Sets a link by its schedule until `stop`, and then to its setting without a fault. Calls `on_fault` at the start of
/// each fault.
pub async fn follow(
    link: &Link,
    mut schedule: LinkSchedule,
    stop: &CancellationToken,
    mut on_fault: impl FnMut(Fault, Duration),
) {
    loop {
        let Phase { fault, setting, lasts } = schedule.next_phase();
        link.apply_setting(setting);
        if let Some(fault) = fault {
            on_fault(fault, lasts);
        }
        if stop.run_until_cancelled(sleep(lasts)).await.is_none() {
            link.apply_setting(schedule.well());
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
            let mut schedule = LinkSchedule::new(Profile::FLAKY, seed, link);
            (0..20).map(|_| schedule.next_phase()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }

    #[test]
    fn well_and_broken_take_turns_within_their_bounds() {
        for profile in Profile::ALL {
            let mut schedule = LinkSchedule::new(profile.clone(), 1, 0);
            for turn in 0..100 {
                let bounds = if turn % 2 == 0 { &profile.well_ms } else { &profile.broken_ms };
                let Phase { fault, lasts, .. } = schedule.next_phase();
                assert_eq!(fault.is_none(), turn % 2 == 0 || profile.faults.is_empty());
                assert!(bounds.contains(&(lasts.as_millis() as u64)), "{fault:?} for {lasts:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_follows_its_schedule_until_stopped_and_is_open_then() {
        let link = Link::open("127.0.0.1:1").await.unwrap();
        let stop = CancellationToken::new();
        let mut faults = Vec::new();
        let on_fault = |fault, _| {
            faults.push(fault);
            if faults.len() == 10 {
                stop.cancel();
            }
        };
        follow(&link, LinkSchedule::new(Profile::FLAKY, 1, 0), &stop, on_fault).await;
        let mut again = LinkSchedule::new(Profile::FLAKY, 1, 0);
        let expected: Vec<_> = (0..20).filter_map(|_| again.next_phase().fault).collect();
        assert_eq!(faults, expected);
        assert_eq!(link.setting(), Setting::default());
    }

    #[test]
    fn everything_that_may_go_wrong_does_in_the_end_and_nothing_else() {
        for profile in Profile::ALL {
            let mut schedule = LinkSchedule::new(profile.clone(), 1, 0);
            let seen: BTreeSet<Fault> = (0..1000).filter_map(|_| schedule.next_phase().fault).collect();
            assert_eq!(seen, profile.faults.iter().map(|(fault, _)| *fault).collect(), "{}", profile.name);
        }
    }
}
