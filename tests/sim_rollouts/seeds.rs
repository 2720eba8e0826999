//! Runs seeds, shows what breaks in one, and proves that sabotage is found.

#![allow(clippy::print_stdout, reason = "the person who runs it reads the numbers")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;

use super::calm::{End, SAYS_WHY};
use super::fault_schedule::Fault;
use super::law::{self, Breach, Lawful};
use super::liveness::STANDS;
use super::releases::DEVICE_ORDER;
use super::world::{Millis, Sabotage, World};

/// Seeds of all parts together in `make test`, unless `SIM_SEEDS` says otherwise; `make laws` runs 5,000.
const SEEDS: u64 = 40;
/// Parts that run beside each other.
const PARTS: u64 = 2;
/// Seeds within which sabotage must be found.
const SABOTAGE_SEEDS: u64 = 600;

/// Seeds that show rare ends by the rules of today. They come first; others follow if they show them no more.
const RARE_ENDS: [u64; 6] = [4, 10, 61, 1, 11, 35];
/// The first seed that shows forced releases by the rules of today.
const FORCED_RELEASE: u64 = 24;

/// Runs a world on a runtime whose time stands still unless the world advances it.
pub(crate) fn run_world(world: &mut World) -> Lawful {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(tokio::task::unconstrained(world.run()))
}

fn run(seed: u64, sabotage: Sabotage, trace: bool) -> (World, Lawful) {
    let mut world = World::new(seed, sabotage, trace);
    let lawful = run_world(&mut world);
    (world, lawful)
}

/// The counts of all worlds.
#[derive(Default)]
struct Sum {
    seeds: u64,
    devices: u64,
    virtual_ms: Millis,
    events: u64,
    operations: u64,
    requests: u64,
    faults: BTreeMap<Fault, u64>,
    verbs: BTreeMap<&'static str, u64>,
    ends: BTreeMap<End, u64>,
    checks: law::Checks,
    violations: BTreeMap<&'static str, u64>,
}

fn add<K: Ord + Copy>(sum: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
    more.iter().for_each(|(key, count)| *sum.entry(*key).or_default() += count);
}

impl Sum {
    fn add(&mut self, world: &World, breach: Option<&Breach>) {
        let tally = &world.tally;
        self.seeds += 1;
        self.devices += world.devices.len() as u64;
        self.virtual_ms += world.now;
        self.events += tally.events;
        self.operations += tally.operations;
        self.requests += tally.requests;
        add(&mut self.faults, &tally.faults);
        add(&mut self.verbs, &tally.verbs);
        add(&mut self.ends, &tally.ends);
        let (checks, more) = (&mut self.checks, &world.law.checks);
        for (sum, more) in [
            (&mut checks.documents, more.documents),
            (&mut checks.releases, more.releases),
            (&mut checks.decisions, more.decisions),
            (&mut checks.recomputed, more.recomputed),
        ] {
            *sum += more;
        }
        breach.into_iter().for_each(|breach| *self.violations.entry(breach.law).or_default() += 1);
    }

    fn words(&self) -> String {
        format!(
            "{} seeds, {:.1} virtual hours, {} devices, {} events, {} operations, {} requests\n\
             {} faults by kind: {:?}\ndecisions by verb: {:?}\nrollouts by end: {:?}\nchecks: {:?}\n{} violations {:?}",
            self.seeds,
            self.virtual_ms as f64 / 3_600_000.0,
            self.devices,
            self.events,
            self.operations,
            self.requests,
            self.faults.values().sum::<u64>(),
            self.faults,
            self.verbs,
            self.ends,
            self.checks,
            self.violations.values().sum::<u64>(),
            self.violations
        )
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs a part of the seeds, and fails with the first ones that break a law.
fn part(part: u64) {
    if let Some(seed) = number("SIM_SEED") {
        if part == 0 {
            one(seed);
        }
        return;
    }
    let parts = number("SIM_PARTS").unwrap_or(PARTS);
    let (mut sum, mut failures) = (Sum::default(), Vec::new());
    for seed in (0..number("SIM_SEEDS").unwrap_or(SEEDS)).filter(|seed| seed % parts == part) {
        let (world, lawful) = run(seed, Sabotage::None, false);
        sum.add(&world, lawful.as_ref().err());
        if let Err(breach) = lawful {
            failures.push(format!("seed {seed}: it does not hold that {}\n  {}", breach.law, breach.seen));
        }
    }
    println!("{}", sum.words());
    let more = failures.len().saturating_sub(5);
    failures.truncate(5);
    assert!(
        failures.is_empty(),
        "{}\n{more} further ones; replay one: SIM_SEED=N cargo nextest run -p muster-tests --test sim_rollouts --no-capture first",
        failures.join("\n")
    );
}

/// Runs one seed, and prints everything that happens in it.
fn one(seed: u64) {
    let (world, lawful) = run(seed, Sabotage::None, true);
    println!("{}", world.story(true));
    println!("{:?}\n{:?}", world.tally, world.law.checks);
    if let Err(breach) = lawful {
        panic!("seed {seed}: it does not hold that {}\n{}", breach.law, breach.seen);
    }
}

#[test]
fn a_rollout_keeps_its_rules_under_every_fault_first() {
    part(0);
}

#[test]
fn a_rollout_keeps_its_rules_under_every_fault_second() {
    part(1);
}

#[test]
fn a_seed_makes_the_same_world_every_time() {
    for seed in 0..4 {
        let marks = [(); 2].map(|()| {
            let world = run(seed, Sabotage::None, false).0;
            (world.tally.fingerprint, world.tally.events, world.now)
        });
        assert_eq!(marks[0], marks[1], "seed {seed}");
    }
}

#[test]
fn every_fault_and_end_is_in_some_seed() {
    let mut never: BTreeSet<_> = Fault::ALL.into_iter().map(|(fault, ..)| fault).collect();
    let mut ends = BTreeSet::from([
        End::Succeeded,
        End::Stopped,
        End::Aborted,
        End::RolledBack,
        End::WaitsForDevice,
        End::WaitsForRollout,
        End::WaitsForCheck,
    ]);
    for seed in RARE_ENDS.into_iter().chain(0..SABOTAGE_SEEDS) {
        let tally = run(seed, Sabotage::None, false).0.tally;
        never.retain(|fault| !tally.faults.contains_key(fault));
        ends.retain(|end| !tally.ends.contains_key(end));
        if never.is_empty() && ends.is_empty() {
            return;
        }
    }
    panic!("{never:?} and {ends:?} never happened in {SABOTAGE_SEEDS} seeds");
}

/// Runs seeds until the sabotage is seen to break one of some laws.
#[track_caller]
fn seen(sabotage: Sabotage, laws: &[&str]) {
    seen_from(0, sabotage, laws);
}

/// The same from a seed on.
#[track_caller]
fn seen_from(first: u64, sabotage: Sabotage, laws: &[&str]) {
    let mut others = Vec::new();
    for seed in first..first + SABOTAGE_SEEDS {
        match run(seed, sabotage, false).1 {
            Ok(()) => {}
            Err(breach) if laws.contains(&breach.law) => {
                println!("{sabotage:?}, seed {seed}: it does not hold that {}\n{}", breach.law, breach.seen);
                return;
            }
            Err(breach) => others.push((seed, breach.law)),
        }
    }
    panic!("{sabotage:?} does not break {laws:?} within {SABOTAGE_SEEDS} seeds, but {others:?}");
}

#[test]
fn a_ledger_that_hears_everybody_is_found() {
    seen(Sabotage::HearsEverybody, &[law::KNOWN_EVIDENCE]);
}

#[test]
fn a_planner_that_forces_its_releases_is_found() {
    seen_from(FORCED_RELEASE, Sabotage::ForcesReleases, &[law::NOTHING_WHEN_HELD]);
}

#[test]
fn a_planner_that_skips_the_begin_is_found() {
    seen(Sabotage::SkipsBegin, &[law::BEGUN_FIRST]);
}

#[test]
fn a_planner_that_invents_evidence_is_found() {
    seen(Sabotage::InventsEvidence, &[law::KNOWN_EVIDENCE]);
}

#[test]
fn a_planner_that_releases_to_all_is_found() {
    seen(Sabotage::ReleasesAll, &[law::BEGUN_FIRST, law::IN_FLIGHT, law::BUDGET]);
}

#[test]
fn a_planner_that_forgets_the_commit_it_judged_is_found() {
    seen(Sabotage::ForgetsCommit, &[law::JUDGED_COMMIT, law::BEGUN_FIRST]);
}

#[test]
fn a_planner_that_swallows_failures_is_found() {
    seen(Sabotage::SwallowsFailures, &[SAYS_WHY, STANDS]);
}

#[test]
fn a_planner_that_reverses_the_order_of_a_wave_is_found() {
    seen(Sabotage::ReversesOrder, &[DEVICE_ORDER]);
}

#[test]
fn a_planner_that_passes_all_checks_is_found() {
    seen(Sabotage::PassesChecks, &[law::CHECKED]);
}

#[test]
fn a_planner_that_overlooks_windows_is_found() {
    seen(Sabotage::OverlooksWindows, &[law::WINDOW]);
}

#[test]
fn a_planner_that_overlooks_rates_is_found() {
    seen(Sabotage::OverlooksRates, &[law::RATE]);
}
