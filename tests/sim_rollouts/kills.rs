//! Kills a program at each of its writes in turn: the write is never sent, arrives at once, or arrives after the successor has written.
//! A fixed script of commits in waves, without faults, must end every time, as if nothing had happened. The script of a
//! [`Plot::Gated`] rollout has checks and approvals as well.

use super::fault_schedule::FaultSchedule;
use super::law::{Lawful, NO_LOST_DECISION};
use super::members::entry;
use super::repository::Repository;
use super::seeds::run_world;
use super::wire::{Operation, Process};
use super::world::{Event, Millis, SECOND, Sabotage, World};

/// Time after which a killed process starts again.
const RESTART_AFTER: Millis = 3 * SECOND;

/// Time until each commit of a script, and until its end.
const PARTS: [Millis; 3] = [80 * SECOND, 160 * SECOND, 260 * SECOND];
/// The same with checks, and with persons who look every now and then.
const GATED_PARTS: [Millis; 2] = [150 * SECOND, 210 * SECOND];

/// When the write arrives at which a process was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    Never,
    AtOnce,
    /// After the next process has read and written.
    Late,
}

impl Arrival {
    pub(crate) const fn delay(self) -> Option<Millis> {
        match self {
            Self::Never => None,
            Self::AtOnce => Some(20),
            Self::Late => Some(3 * RESTART_AFTER),
        }
    }
}

/// A kill at a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedKill {
    is_planner: bool,
    /// Writes until then.
    left: u64,
    arrival: Arrival,
    is_done: bool,
}

impl World {
    /// Kills a process as it sends this operation, if that is planned; when the operation still arrives.
    pub(crate) fn planned_kill(&mut self, process: Process, operation: &Operation) -> Option<Arrival> {
        let mut planned = self.planned_kill?;
        let is_planner = matches!(process, Process::Planner(..));
        let is_person = matches!(process, Process::Person(_));
        if planned.is_done || is_person || is_planner != planned.is_planner || !operation.is_write() {
            return None;
        }
        planned.is_done = planned.left == 0;
        planned.left = planned.left.saturating_sub(1);
        self.planned_kill = Some(planned);
        if !planned.is_done {
            return None;
        }
        if is_planner {
            self.kill_planner(0, Some(RESTART_AFTER));
        } else {
            self.kill_publisher(RESTART_AFTER);
        }
        Some(planned.arrival)
    }
}

/// A script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plot {
    /// A canary and the rest; the third content fails on the canary.
    Plain,
    /// A canary with a check and an approval of its evidence, and an approval before the rest; the second content fails its check.
    Gated,
}

impl Plot {
    const fn waves(self) -> &'static str {
        match self {
            Self::Plain => {
                "  - {name: canary, count: 1, soak: 5s}\n  - {name: most, percent: 80%, maxInFlight: 2}\n"
            }
            Self::Gated => {
                "  - {name: canary, count: 1, approval: after, checks: [{request: muster.check.smoke, interval: 2s, count: 2}]}\n  \
                 - {name: most, percent: 80%, maxInFlight: 2, approval: before}\n"
            }
        }
    }

    /// The commits after the first one, each with its time, and the end.
    const fn commits(self) -> (&'static [(Millis, &'static str)], Millis) {
        match self {
            Self::Plain => (&[(PARTS[0], "v1-good"), (PARTS[1], "v2-bad")], PARTS[2]),
            Self::Gated => (&[(GATED_PARTS[0], "v1-good")], GATED_PARTS[1]),
        }
    }
}

impl World {
    /// Five devices under a policy, without faults.
    fn scripted(plot: Plot, sabotage: Sabotage) -> Self {
        let mut rng = fastrand::Rng::with_seed(7);
        let repository = Repository::scripted(plot.waves());
        let (commits, end) = plot.commits();
        let mut world = Self::of(rng.fork(), repository, FaultSchedule::none(end), (sabotage, true));
        world.checks.is_scripted = true;
        if plot == Plot::Gated {
            world.after(SECOND, Event::People);
        }
        for (at, command) in commits {
            world.after(*at, Event::Script(command));
        }
        world.after(end, Event::Calm);
        world
    }

    /// A commit of the script.
    pub(crate) fn script(&mut self, command: &str) {
        self.commit(|repository, _| repository.set_content("app", command));
    }

    /// The content of each device, and the verbs of all decisions.
    fn published(&self) -> String {
        let digest = |key| entry(self.hub.document(key), &"app".parse().unwrap()).map(|entry| entry.digest);
        let contents: Vec<_> = self.hub.documents.keys().map(|key| (key.to_string(), digest(key))).collect();
        let records = self.hub.decisions.values().flat_map(|(_, all)| &all.rollouts);
        let verbs: Vec<_> = records
            .map(|record| (record.digest, record.decisions.iter().map(|one| one.verb).collect::<Vec<_>>()))
            .collect();
        format!("{contents:?} {verbs:?}")
    }
}

/// Runs a script.
fn script(plot: Plot, planned: Option<PlannedKill>, sabotage: Sabotage) -> (World, Lawful) {
    let mut world = World::scripted(plot, sabotage);
    world.planned_kill = planned;
    let lawful = run_world(&mut world);
    (world, lawful)
}

/// Kills at each write until the script has no further one.
fn every_kill(plot: Plot, is_planner: bool, arrival: Arrival) -> u64 {
    let (calm, lawful) = script(plot, None, Sabotage::None);
    if let Err(breach) = lawful {
        panic!("not killed: it does not hold that {}: {}\n{}", breach.law, breach.seen, calm.story(false));
    }
    let wanted = calm.published();
    let has = |verb| calm.tally.verbs.contains_key(verb);
    let gated = ["check", "ready", "approve"].map(has);
    assert_eq!(gated, [plot == Plot::Gated; 3], "{:?}", calm.tally.verbs);
    for left in 0.. {
        let planned = PlannedKill { is_planner, left, arrival, is_done: false };
        let (world, lawful) = script(plot, Some(planned), Sabotage::None);
        if let Err(breach) = lawful {
            panic!(
                "killed at write {left}: it does not hold that {}: {}\n{}",
                breach.law,
                breach.seen,
                world.story(false)
            );
        }
        assert_eq!(world.published(), wanted, "killed at write {left}");
        if !world.planned_kill.unwrap().is_done {
            return left;
        }
    }
    0
}

#[test]
fn a_planner_that_is_killed_before_any_write_loses_nothing() {
    assert!(every_kill(Plot::Plain, true, Arrival::Never) > 10);
}

#[test]
fn a_planner_that_is_killed_after_any_write_repeats_nothing() {
    assert!(every_kill(Plot::Plain, true, Arrival::AtOnce) > 10);
}

#[test]
fn a_publisher_that_is_killed_before_any_write_loses_nothing() {
    assert!(every_kill(Plot::Plain, false, Arrival::Never) > 10);
}

#[test]
fn a_publisher_that_is_killed_after_any_write_repeats_nothing() {
    assert!(every_kill(Plot::Plain, false, Arrival::AtOnce) > 10);
}

#[test]
fn a_write_that_arrives_after_the_next_publishers_changes_nothing() {
    assert!(every_kill(Plot::Plain, false, Arrival::Late) > 10);
}

#[test]
fn a_gated_rollout_loses_nothing_when_its_planner_is_killed_early() {
    assert!(every_kill(Plot::Gated, true, Arrival::Never) > 10);
}

#[test]
fn a_gated_rollout_repeats_nothing_when_its_planner_is_killed_late() {
    assert!(every_kill(Plot::Gated, true, Arrival::AtOnce) > 10);
}

#[test]
fn a_gated_rollout_loses_nothing_when_its_publisher_is_killed() {
    assert!(every_kill(Plot::Gated, false, Arrival::Never) > 10);
    assert!(every_kill(Plot::Gated, false, Arrival::Late) > 10);
}

#[test]
fn a_downlink_without_compare_and_set_is_found() {
    for left in 0.. {
        let planned = PlannedKill { is_planner: false, left, arrival: Arrival::Late, is_done: false };
        let (world, lawful) = script(Plot::Plain, Some(planned), Sabotage::StoresUnchecked);
        if lawful.is_err_and(|breach| breach.law == NO_LOST_DECISION) {
            return;
        }
        assert!(world.planned_kill.unwrap().is_done, "no decision was lost after any of {left} writes");
    }
}
