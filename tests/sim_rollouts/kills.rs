//! Kills a program at each of its writes in turn: the write is never sent, arrives at once, or arrives after the successor has written.
//! A fixed script of a commit in waves, without faults, must end every time, as if nothing had happened.

use super::fault_schedule::FaultSchedule;
use super::law::{Lawful, NO_LOST_DECISION};
use super::members::entry;
use super::repository::Repository;
use super::seeds::run_world;
use super::wire::{Operation, Process};
use super::world::{Event, Millis, SECOND, Sabotage, World};

/// Time after which a killed process starts again.
const RESTART_AFTER: Millis = 3 * SECOND;

/// Length of the script.
const LENGTH: Millis = 260 * SECOND;

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

impl World {
    /// Five devices under a policy, without faults.
    fn scripted(sabotage: Sabotage) -> Self {
        let mut rng = fastrand::Rng::with_seed(7);
        let repository = Repository::scripted();
        Self::of(rng.fork(), repository, FaultSchedule::none(LENGTH), (sabotage, true))
    }

    /// A commit of the script.
    pub(crate) fn script(&mut self, step: u8) {
        let command = ["v1-good", "v2-bad"][usize::from(step)];
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

/// The script: five devices, a canary and the rest, one good content and then a bad one, which is rolled back.
fn script(planned: Option<PlannedKill>, sabotage: Sabotage) -> (World, Lawful) {
    let mut world = World::scripted(sabotage);
    world.planned_kill = planned;
    world.after(80 * SECOND, Event::Script(0));
    world.after(160 * SECOND, Event::Script(1));
    world.after(LENGTH, Event::Calm);
    let lawful = run_world(&mut world);
    (world, lawful)
}

/// Kills at each write until the script has no further one.
fn every_kill(is_planner: bool, arrival: Arrival) -> u64 {
    let (calm, lawful) = script(None, Sabotage::None);
    lawful.unwrap();
    let wanted = calm.published();
    for left in 0.. {
        let planned = PlannedKill { is_planner, left, arrival, is_done: false };
        let (world, lawful) = script(Some(planned), Sabotage::None);
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
    assert!(every_kill(true, Arrival::Never) > 10);
}

#[test]
fn a_planner_that_is_killed_after_any_write_repeats_nothing() {
    assert!(every_kill(true, Arrival::AtOnce) > 10);
}

#[test]
fn a_publisher_that_is_killed_before_any_write_loses_nothing() {
    assert!(every_kill(false, Arrival::Never) > 10);
}

#[test]
fn a_publisher_that_is_killed_after_any_write_repeats_nothing() {
    assert!(every_kill(false, Arrival::AtOnce) > 10);
}

#[test]
fn a_write_that_arrives_after_the_next_publishers_changes_nothing() {
    assert!(every_kill(false, Arrival::Late) > 10);
}

#[test]
fn a_downlink_without_compare_and_set_is_found() {
    for left in 0.. {
        let planned = PlannedKill { is_planner: false, left, arrival: Arrival::Late, is_done: false };
        let (world, lawful) = script(Some(planned), Sabotage::StoresUnchecked);
        if lawful.is_err_and(|breach| breach.law == NO_LOST_DECISION) {
            return;
        }
        assert!(world.planned_kill.unwrap().is_done, "no decision was lost after any of {left} writes");
    }
}
