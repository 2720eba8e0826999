//! Faults and events from outside, each at random times: programs die, messages are lost and late, links break, devices die,
//! people decide, and commits come.

use fastrand::Rng;

use super::world::{Event, MINUTE, Millis, SECOND, World};

/// A fault, or an event from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    PublisherDies,
    PlannerDies,
    SecondPlanner,
    Losses,
    SlowHub,
    LinkBreaks,
    DeviceDies,
    LedgerStalls,
    ReaderRestarts,
    NewContent,
    NewPolicy,
    DeviceJoins,
    DeviceRetired,
    PersonDecides,
}

impl Fault {
    /// Every fault with the mean time between two of a kind, and its chance in tenths to be in a world.
    pub(crate) const ALL: [(Self, Millis, u8); 14] = [
        (Self::PublisherDies, 50 * SECOND, 6),
        (Self::PlannerDies, 30 * SECOND, 6),
        (Self::SecondPlanner, 60 * SECOND, 5),
        (Self::Losses, 40 * SECOND, 5),
        (Self::SlowHub, 60 * SECOND, 5),
        (Self::LinkBreaks, 20 * SECOND, 6),
        (Self::DeviceDies, 4 * MINUTE, 3),
        (Self::LedgerStalls, 60 * SECOND, 5),
        (Self::ReaderRestarts, 90 * SECOND, 4),
        (Self::NewContent, 60 * SECOND, 10),
        (Self::NewPolicy, 90 * SECOND, 10),
        (Self::DeviceJoins, 2 * MINUTE, 5),
        (Self::DeviceRetired, 3 * MINUTE, 4),
        (Self::PersonDecides, 20 * SECOND, 8),
    ];
}

/// The fault schedule of a world.
#[derive(Debug, Clone)]
pub(crate) struct FaultSchedule {
    /// The kinds, with the mean time between two.
    pub(crate) faults: Vec<(Fault, Millis)>,
    /// Time until it ends.
    pub(crate) length: Millis,
    is_over: bool,
    /// Until then one in this many messages is lost.
    losses: (Millis, u8),
    /// Until then the hub is slow.
    slow_until: Millis,
}

impl FaultSchedule {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let drawn = Fault::ALL.into_iter().filter(|(_, _, tenths)| rng.u8(0..10) < *tenths);
        let faults = drawn.map(|(fault, mean, _)| (fault, mean)).collect();
        let length = rng.i64(4 * MINUTE..12 * MINUTE);
        Self { faults, length, is_over: false, losses: (0, 1), slow_until: 0 }
    }

    /// No faults for a while.
    pub(crate) const fn none(length: Millis) -> Self {
        Self { faults: Vec::new(), length, is_over: false, losses: (0, 1), slow_until: 0 }
    }

    /// Ends it.
    pub(crate) const fn end(&mut self) {
        self.is_over = true;
        (self.losses, self.slow_until) = ((0, 1), 0);
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }
}

impl World {
    /// Whether a message is lost now.
    pub(crate) fn is_lost(&mut self) -> bool {
        let (until, one_in) = self.schedule.losses;
        until > self.now && self.rng.u8(0..one_in) == 0
    }

    /// Time that a message takes now.
    pub(crate) fn delay(&mut self) -> Millis {
        let is_slow = self.schedule.slow_until > self.now && self.rng.u8(0..3) == 0;
        self.rng_millis(if is_slow { 200..6 * SECOND } else { 1..25 })
    }

    pub(crate) fn strike(&mut self, fault: Fault, mean: Millis) {
        if self.schedule.is_over() {
            return;
        }
        *self.tally.faults.entry(fault).or_default() += 1;
        let next = self.rng_millis(mean / 4..2 * mean);
        self.after(next, Event::Strike(fault, mean));
        let (now, soon) = (self.now, self.rng_millis(200..20 * SECOND));
        match fault {
            Fault::PublisherDies => self.kill_publisher(soon / 4),
            Fault::PlannerDies => {
                let at = self.rng.usize(0..2);
                let restart = (at == 0).then_some(soon / 4);
                self.kill_planner(at, restart);
            }
            Fault::SecondPlanner => self.start_planner(1),
            Fault::Losses => self.schedule.losses = (now + soon, self.rng.u8(3..12)),
            Fault::SlowHub => self.schedule.slow_until = now + soon,
            Fault::LinkBreaks | Fault::DeviceDies if self.devices.is_empty() => {}
            Fault::LinkBreaks => {
                let at = self.rng.usize(..self.devices.len());
                self.devices[at].is_linked = false;
                let back = self.rng_millis(2 * SECOND..2 * MINUTE);
                self.after(back, Event::Link(at, true));
            }
            Fault::DeviceDies => {
                let at = self.rng.usize(..self.devices.len());
                self.devices[at].is_dead = true;
            }
            Fault::LedgerStalls => self.stall_ledger(soon),
            Fault::ReaderRestarts => self.restart_reader(),
            Fault::NewContent => self.commit(|repository, rng| repository.change_content(rng)),
            Fault::NewPolicy => self.commit(|repository, rng| repository.change_policy(rng)),
            Fault::DeviceJoins => self.commit(|repository, _| repository.join()),
            Fault::DeviceRetired => self.commit(|repository, rng| repository.retire(rng)),
            Fault::PersonDecides => self.person_decides(),
        }
    }
}
