//! Runs a script once to count the steps of a process, then once more for every step after which the process may end and for
//! every number of messages under way that may still arrive. Every run must have the outcome of the one without an end.

#![allow(clippy::print_stdout, reason = "a run prints how many ends it tried")]

use super::agenda::Millis;
use super::ingest::EndKind;
use super::law::Lawful;
use super::world::{Sabotage, World};

/// A script with this number of steps or fewer would test little.
const STEPS_MIN: u64 = 60;

/// A process ends after one of its steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlannedEnd {
    /// How the process ends.
    pub(crate) end_kind: EndKind,
    /// How long the process, or its connection, is away then.
    pub(crate) pause: Millis,
    /// Messages under way that arrive nonetheless; those behind them do not.
    arrive: usize,
    /// The step after which the process ends; 0 for none.
    at: u64,
    steps: u64,
    steps_end: Millis,
}

impl PlannedEnd {
    /// Counts a step; true if the process ends after it.
    pub(crate) fn count_step(&mut self, now: Millis) -> bool {
        self.steps += u64::from(now < self.steps_end);
        now < self.steps_end && self.steps == self.at
    }

    /// Whether the next message that was under way arrives.
    pub(crate) const fn delivers_next(&mut self) -> bool {
        let lets = self.arrive > 0;
        self.arrive = self.arrive.saturating_sub(1);
        lets
    }
}

/// A script, and what is compared between its runs.
#[derive(Debug)]
pub(crate) struct Script {
    /// Steps are counted until this time.
    pub(crate) steps_end: Millis,
    /// When a run ends.
    pub(crate) end: Millis,
    /// Makes a world whose agenda holds the script.
    pub(crate) prepare: fn(Sabotage) -> World,
    /// The planned end of the process under test.
    pub(crate) planned_end: fn(&mut World) -> &mut Option<PlannedEnd>,
    /// The outcome of a run, without the parts that depend on time.
    pub(crate) outcome: fn(&World) -> Vec<String>,
}

impl Script {
    fn run(&self, planned_end: PlannedEnd, sabotage: Sabotage) -> (World, Lawful) {
        let mut world = (self.prepare)(sabotage);
        *(self.planned_end)(&mut world) = Some(planned_end);
        let mut lawful = Ok(());
        while let Some(event) = world.agenda.next() {
            lawful = world.happens(event);
            if lawful.is_err() || world.agenda.now() > self.end {
                break;
            }
        }
        (world, lawful)
    }

    /// An end that never happens; it only counts the steps.
    const fn no_end(&self, end_kind: EndKind, pause: Millis) -> PlannedEnd {
        PlannedEnd { end_kind, pause, arrive: 0, at: 0, steps: 0, steps_end: self.steps_end }
    }

    /// The world after a run in which the process does not end.
    pub(crate) fn without_end(&self, end_kind: EndKind, pause: Millis) -> World {
        let (world, lawful) = self.run(self.no_end(end_kind, pause), Sabotage::None);
        lawful.unwrap();
        world
    }

    /// Runs the script for every end; returns what was wrong, and the number of runs.
    pub(crate) fn every_end(
        &self,
        end_kind: EndKind,
        pause: Millis,
        sabotage: Sabotage,
    ) -> (Option<String>, u64) {
        let mut without_end = self.without_end(end_kind, pause);
        let (wanted, steps) =
            ((self.outcome)(&without_end), (self.planned_end)(&mut without_end).unwrap().steps);
        assert!(steps > STEPS_MIN, "{steps} steps: {wanted:#?}");
        let mut runs = 0;
        for at in 1..=steps {
            for arrive in 0.. {
                let (mut world, lawful) =
                    self.run(PlannedEnd { arrive, at, ..self.no_end(end_kind, pause) }, sabotage);
                runs += 1;
                let what = format!(
                    "{end_kind:?} for {pause} ms after step {at} of {steps}, {arrive} messages arrive: "
                );
                if let Err(breach) = lawful {
                    let wrong = format!("{what}it does not hold that {}: {}", breach.law, breach.seen);
                    return (Some(wrong), runs);
                }
                let seen = (self.outcome)(&world);
                if seen != wanted {
                    return (Some(format!("{what}{}", difference(&seen, &wanted))), runs);
                }
                // Fewer were under way than may arrive: a higher number changes nothing.
                if (self.planned_end)(&mut world).unwrap().arrive > 0 {
                    break;
                }
            }
        }
        (None, runs)
    }

    /// Fails unless every end has the outcome of the run without one.
    pub(crate) fn assert_same_outcome(&self, end_kind: EndKind, pause: Millis) {
        let (wrong, runs) = self.every_end(end_kind, pause, Sabotage::None);
        println!("{end_kind:?} for {pause} ms between every two steps: {runs} runs");
        assert!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    }
}

/// The lines that only one of the two outcomes has.
fn difference(seen: &[String], wanted: &[String]) -> String {
    let count = |lines: &[String], line: &String| lines.iter().filter(|other| *other == line).count();
    let more = |ones: &[String], others: &[String]| {
        let more = ones.iter().filter(|line| count(ones, line) > count(others, line));
        more.map(|line| format!("\n  {line}")).collect::<String>()
    };
    format!("in excess:{}\nlacking:{}", more(seen, wanted), more(wanted, seen))
}
