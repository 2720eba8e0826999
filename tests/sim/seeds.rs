//! Runs seeds, prints their numbers, and tells the story of one that fails. Also proves that the law sees errors: with each kind
//! of sabotage some seed fails.

#![allow(clippy::print_stdout, reason = "the person who starts a run reads its numbers")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fastrand::Rng;
use muster_agent::relay::core::OrderRule as RelayRule;
use muster_ingest::session::OrderRule;

use super::agenda::Millis;
use super::law::{Breach, Lawful};
use super::profile::{FLEET, Fault, LARGEST, Profile};
use super::world::{Sabotage, Tally, World};

/// Seeds of all parts together in `make test`, unless `SIM_SEEDS` says otherwise; `make laws` runs 5,000.
const SEEDS: u64 = 160;
/// Parts that run side by side.
const PARTS: u64 = 4;
/// Failing seeds that are listed before the story of the first one.
const FAILURES_MAX: usize = 20;
/// Worlds are counted by the devices they have at least.
const SIZES: [usize; 4] = [1, 4, FLEET, LARGEST];
/// The law about reports that a device marks as sent.
const MARKED: &str = "a device marks as sent what UPLINK has stored";
/// Seeds within which sabotage has to be found.
const SABOTAGE_SEEDS: u64 = 400;

fn run(seed: u64, sabotage: Sabotage, trace: bool) -> (World, Lawful) {
    let mut world = World::new(seed, sabotage, trace);
    let lawful = world.run();
    (world, lawful)
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// Runs a share of the seeds.
fn part(part: u64) {
    if let Some(seed) = setting("SIM_SEED") {
        if part == 0 {
            replay(seed);
        }
        return;
    }
    let parts = setting("SIM_PARTS").unwrap_or(PARTS);
    let seeds = setting("SIM_SEEDS").unwrap_or(SEEDS);
    let (mut sum, mut largest, mut failed) = (Sum::default(), Sum::default(), Vec::new());
    let (begun, mut largest_took) = (Instant::now(), Duration::ZERO);
    for seed in (0..seeds).filter(|seed| seed % parts == part) {
        let began = Instant::now();
        let (world, lawful) = run(seed, Sabotage::None, false);
        sum.add(&world, lawful.as_ref().err());
        if world.profile.devices == LARGEST {
            largest.add(&world, lawful.as_ref().err());
            largest_took += began.elapsed();
        }
        failed.extend(lawful.err().map(|breach| (seed, breach.law)));
        if failed.len() >= FAILURES_MAX {
            break;
        }
    }
    println!("{} seconds: {}", begun.elapsed().as_secs(), sum.said());
    if largest.seeds > 0 {
        println!("worlds of {LARGEST} devices alone, {} seconds: {}", largest_took.as_secs(), largest.said());
    }
    if let Some((seed, _)) = failed.first() {
        failed.iter().for_each(|(seed, law)| println!("seed {seed}: it does not hold that {law}"));
        tell(*seed);
    }
    let missing = largest.missing_storms();
    assert!(largest.seeds == 0 || missing.is_empty(), "no world of {LARGEST} devices had {missing:?}");
}

/// Runs a failing seed again to tell what happened: it happens again, exactly so.
fn tell(seed: u64) -> ! {
    let (world, lawful) = run(seed, Sabotage::None, true);
    let breach = lawful.expect_err("a seed makes the same world every time");
    panic!(
        "seed {seed}, event {}: it does not hold that {}\n{}\n\nthe last events:\n{}\n\nthe world: {:?}\nagain, with \
         everything that happened: SIM_SEED={seed} cargo nextest run -p muster-tests --test sim --no-capture first",
        world.tally.events,
        breach.law,
        breach.seen,
        world.story(false),
        world.profile
    );
}

fn replay(seed: u64) {
    let (world, lawful) = run(seed, Sabotage::None, true);
    println!("{}\n{:?}", world.story(true), world.profile);
    if let Err(breach) = lawful {
        panic!(
            "seed {seed}, event {}: it does not hold that {}\n{}",
            world.tally.events, breach.law, breach.seen
        );
    }
    let mut sum = Sum::default();
    sum.add(&world, None);
    println!("{}", sum.said());
}

/// The tallies of many worlds, summed.
#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    /// Worlds by the devices they have at least.
    sizes: BTreeMap<usize, u64>,
    virtual_ms: Millis,
    tally: Tally,
    /// Violations by law.
    violations: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, world: &World, breach: Option<&Breach>) {
        let tally = &world.tally;
        self.seeds += 1;
        let least = SIZES.into_iter().rfind(|least| world.profile.devices >= *least);
        *self.sizes.entry(least.unwrap_or_default()).or_default() += 1;
        breach.into_iter().for_each(|breach| *self.violations.entry(breach.law).or_default() += 1);
        self.virtual_ms += tally.virtual_ms;
        let sum = &mut self.tally;
        for (sum, more) in [
            (&mut sum.events, tally.events),
            (&mut sum.effects, tally.effects),
            (&mut sum.relay_effects, tally.relay_effects),
            (&mut sum.devices, tally.devices),
            (&mut sum.sent, tally.sent),
            (&mut sum.share_full, tally.share_full),
            (&mut sum.batches, tally.batches),
            (&mut sum.no_room, tally.no_room),
            (&mut sum.reports, tally.reports),
            (&mut sum.history, tally.history),
            (&mut sum.snapshot_folds, tally.snapshot_folds),
            (&mut sum.rewinds, tally.rewinds),
            (&mut sum.snapshot_starts, tally.snapshot_starts),
            (&mut sum.retried, tally.retried),
            (&mut sum.crash_loops, tally.crash_loops),
            (&mut sum.deadlines, tally.deadlines),
            (&mut sum.folds, tally.folds),
            (&mut sum.view_checks, tally.view_checks),
            (&mut sum.checks, tally.checks),
        ] {
            *sum += more;
        }
        add(&mut sum.outcomes, &tally.outcomes);
        add(&mut sum.hearing, &tally.hearing);
        add(&mut sum.faults, &tally.faults);
    }

    /// Consequences of storms that these worlds did not have: a fault that leads to nothing proves nothing.
    fn missing_storms(&self) -> Vec<&'static str> {
        let tally = &self.tally;
        let stopped = tally.hearing.get("Stopped").copied().unwrap_or_default();
        let counts = [
            ("a retry", tally.retried),
            ("a crash loop", tally.crash_loops),
            ("a passed deadline", tally.deadlines),
            ("a partition that nobody listens to", stopped),
            ("a full QUARANTINE", tally.no_room),
            ("a long LEDGER", tally.history),
        ];
        counts.into_iter().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect()
    }

    fn said(&self) -> String {
        let tally = &self.tally;
        let mut text = format!(
            "{} seeds, {:.1} virtual hours, {} devices, {} events; effects: {} of ingest's session, {} of relays\n",
            self.seeds,
            self.virtual_ms as f64 / 3_600_000.0,
            tally.devices,
            tally.events,
            tally.effects,
            tally.relay_effects,
        );
        _ = writeln!(text, "worlds by least number of devices: {:?}", self.sizes);
        _ = writeln!(
            text,
            "{} reports sent, some of them in {} batches, {} in LEDGER, {} refused because a share was full, {} by a full QUARANTINE; by outcome: {:?}",
            tally.sent, tally.batches, tally.reports, tally.share_full, tally.no_room, tally.outcomes
        );
        _ = writeln!(
            text,
            "LEDGER held {} facts at the beginning; {} rollups started from a snapshot of a part of them",
            tally.history, tally.snapshot_folds
        );
        _ = writeln!(
            text,
            "LEDGER read again {} times, ingest started from a snapshot {} times; partitions said to be heard: {:?}",
            tally.rewinds, tally.snapshot_starts, tally.hearing
        );
        _ = writeln!(
            text,
            "{} reports in LEDGER list retries, {} of them a crash loop; {} deadlines have passed",
            tally.retried, tally.crash_loops, tally.deadlines
        );
        _ = writeln!(text, "{} faults by kind: {:?}", tally.faults.values().sum::<u64>(), tally.faults);
        _ = write!(
            text,
            "checks: {} of site and fleet views, {} of every device of a fleet, {} others; {} violations {:?}",
            tally.view_checks,
            tally.folds,
            tally.checks,
            self.violations.values().sum::<u64>(),
            self.violations
        );
        text
    }
}

fn add<K: Ord + Clone>(sum: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
    more.iter().for_each(|(key, count)| *sum.entry(key.clone()).or_default() += count);
}

#[test]
fn nothing_is_lost_or_doubled_and_every_view_is_honest_first() {
    part(0);
}

#[test]
fn nothing_is_lost_or_doubled_and_every_view_is_honest_second() {
    part(1);
}

#[test]
fn nothing_is_lost_or_doubled_and_every_view_is_honest_third() {
    part(2);
}

#[test]
fn nothing_is_lost_or_doubled_and_every_view_is_honest_fourth() {
    part(3);
}

#[test]
fn a_quarter_of_the_worlds_are_fleets_and_one_has_400_devices() {
    let devices: Vec<_> = (0..SEEDS).map(|seed| Profile::draw(&mut Rng::with_seed(seed)).devices).collect();
    let count = |least| devices.iter().filter(|devices| **devices >= least).count() as u64;
    assert!(4 * count(FLEET) >= SEEDS, "{} of {SEEDS} worlds have {FLEET} devices", count(FLEET));
    assert!(count(LARGEST) >= 1 && LARGEST == 400, "{} have {LARGEST}", count(LARGEST));
}

#[test]
fn a_seed_makes_the_same_world_every_time() {
    for seed in 0..5 {
        let marks = [(); 2].map(|()| {
            let tally = run(seed, Sabotage::None, false).0.tally;
            (tally.fingerprint, tally.events, tally.virtual_ms)
        });
        assert_eq!(marks[0], marks[1], "seed {seed}");
    }
}

/// Runs seeds until the sabotage is seen to break a law.
#[track_caller]
fn seen(sabotage: Sabotage, law: &str) {
    seen_by_any(sabotage, &[law]);
}

/// Runs seeds until the sabotage is seen to break one of some laws.
#[track_caller]
fn seen_by_any(sabotage: Sabotage, laws: &[&str]) {
    seen_in(0, SABOTAGE_SEEDS, sabotage, laws, |_| true);
}

/// Runs seeds until the sabotage is seen to break a law. `first` is a seed that has shown it: running all seeds before it takes a
/// minute.
#[track_caller]
fn seen_from(first: u64, sabotage: Sabotage, law: &str) {
    seen_in(first, SABOTAGE_SEEDS, sabotage, &[law], |_| true);
}

/// Runs those of the seeds below `end` that have certain worlds, from `first` on and then those before it, until the sabotage is
/// seen to break one of some laws.
#[track_caller]
fn seen_in(first: u64, end: u64, sabotage: Sabotage, laws: &[&str], is_meant: impl Fn(&Profile) -> bool) {
    let mut others = Vec::new();
    // Small worlds show it as well, and sooner.
    let is_meant = |seed: &u64| {
        let profile = Profile::draw(&mut Rng::with_seed(*seed));
        profile.devices < FLEET && is_meant(&profile)
    };
    for seed in (first..end).chain(0..first).filter(is_meant) {
        match run(seed, sabotage, false).1 {
            Ok(()) => {}
            Err(breach) if laws.contains(&breach.law) => {
                let law = breach.law;
                println!("{sabotage:?}, seed {seed}: it does not hold that {law}\n{}", breach.seen);
                return;
            }
            Err(breach) => others.push((seed, breach.law)),
        }
    }
    panic!("{sabotage:?} does not break {laws:?} in the seeds below {end}, but {others:?}");
}

#[test]
fn an_ingest_that_acknowledges_first_is_seen() {
    seen(Sabotage::Breaks(OrderRule::ConfirmedBeforeAcknowledged), "what ingest acknowledges is in LEDGER");
}

#[test]
fn an_ingest_that_acknowledges_a_batch_for_its_first_report_is_seen() {
    let rule = OrderRule::WholeBatchBeforeAcknowledged;
    seen(Sabotage::Breaks(rule), "what ingest acknowledges is in LEDGER");
}

#[test]
fn an_ingest_that_takes_silence_for_consent_is_seen() {
    seen(Sabotage::Breaks(OrderRule::UnknownIsNotStored), "what ingest acknowledges is in LEDGER");
}

#[test]
fn a_session_that_reads_ledger_again_from_too_late_is_seen() {
    seen(Sabotage::Breaks(OrderRule::ReadAgainFromOldest), "a number is in LEDGER at most once");
}

#[test]
fn a_session_that_writes_before_it_sees_ledger_is_seen() {
    seen_from(158, Sabotage::Breaks(OrderRule::LedgerBeforeEffects), "what ingest acknowledges is in LEDGER");
}

#[test]
fn a_session_that_sends_receipts_of_a_lost_partition_is_seen() {
    let stalls = |profile: &Profile| {
        let is_meant = |(fault, _): &(Fault, Millis)| matches!(fault, Fault::IngestStall | Fault::IngestCut);
        profile.faults.iter().any(is_meant)
    };
    let sabotage = Sabotage::Breaks(OrderRule::OwnerBeforeReceipts);
    seen_in(401, 4 * SABOTAGE_SEEDS, sabotage, &["a receipt takes nothing back"], stalls);
}

#[test]
fn a_session_that_lets_time_pass_unheard_is_seen() {
    seen_from(
        131,
        Sabotage::Breaks(OrderRule::ReceivedBeforeTime),
        "a device is taken for a clone only if its past comes after its present",
    );
}

#[test]
fn a_session_that_lets_time_pass_before_heartbeats_is_seen() {
    seen(Sabotage::Breaks(OrderRule::HeartbeatsBeforeTime), "a device whose heart beats is not stale");
}

#[test]
fn a_snapshot_of_what_is_not_confirmed_is_seen() {
    seen(
        Sabotage::Breaks(OrderRule::ConfirmedBeforeSnapshot),
        "ingest's snapshot and the tail are all of LEDGER",
    );
}

#[test]
fn an_ingest_that_remembers_nothing_is_seen() {
    seen(Sabotage::RemembersNothing, "a number is in LEDGER at most once");
}

#[test]
fn an_ingest_that_takes_quiet_for_empty_is_seen() {
    seen_from(
        374,
        Sabotage::TakesQuietForEmpty,
        "a device is taken for a clone only if its past comes after its present",
    );
}

#[test]
fn an_ingest_that_never_doubts_is_seen() {
    seen(Sabotage::NeverDoubts, "a silent device is not fresh");
}

#[test]
fn a_relay_that_marks_before_uplink_confirms_is_seen() {
    seen(Sabotage::RelayBreaks(RelayRule::ConfirmedBeforeMarked), MARKED);
}

#[test]
fn a_relay_that_takes_no_answer_for_stored_is_seen() {
    seen(Sabotage::RelayBreaks(RelayRule::UnknownIsNotStored), MARKED);
}

#[test]
fn a_relay_that_takes_a_full_share_for_stored_is_seen() {
    seen(Sabotage::RelayBreaks(RelayRule::RefusedIsNotStored), MARKED);
}

#[test]
fn a_relay_that_sends_before_the_receipt_is_seen() {
    let law = "an epoch is fixed and a report goes after the hub's receipt";
    seen(Sabotage::RelayBreaks(RelayRule::ReceiptBeforeReports), law);
}

#[test]
fn a_relay_that_mixes_epochs_is_seen() {
    let law = "a report goes under the epoch of its number";
    seen(Sabotage::RelayBreaks(RelayRule::ReportsOfOneEpoch), law);
}

#[test]
fn a_relay_that_begins_with_reports_is_seen() {
    let law = "a connection begins with a heartbeat";
    seen(Sabotage::RelayBreaks(RelayRule::HeartbeatBeforeReports), law);
}

#[test]
fn a_device_that_forgets_too_early_is_seen() {
    seen(Sabotage::ForgetsOnAnswer, "what a device has forgotten is in LEDGER");
}

#[test]
fn a_device_that_counts_each_attempt_as_the_first_is_seen() {
    seen(Sabotage::CountsEachAttemptAnew, "a retry is in every report until a success has held");
}

#[test]
fn retries_crash_loops_and_deadlines_occur_in_some_seed() {
    let mut sum = Sum::default();
    for seed in 0..SABOTAGE_SEEDS {
        sum.add(&run(seed, Sabotage::None, false).0, None);
        let Tally { retried, crash_loops, deadlines, .. } = sum.tally;
        if retried > 0 && crash_loops > 0 && deadlines > 0 {
            return;
        }
    }
    panic!("{}", sum.said());
}

#[test]
fn a_device_that_obeys_the_old_is_seen() {
    seen(Sabotage::ObeysTheOld, "a device accepts only what is newer");
}

#[test]
fn a_loose_snapshot_is_seen() {
    seen_by_any(
        Sabotage::SnapshotsLoosely,
        &["missing is what LEDGER lacks", "a site's view counts its devices as LEDGER says"],
    );
}

#[test]
fn an_ingest_that_accounts_before_quarantine_has_stored_is_found() {
    seen(
        Sabotage::Breaks(OrderRule::StoredBeforeAccounted),
        "a number is quarantined only if its payload is kept",
    );
}

#[test]
fn a_full_quarantine_leaves_reports_with_devices_of_some_seed() {
    let refused = (0..SABOTAGE_SEEDS).any(|seed| run(seed, Sabotage::None, false).0.tally.no_room > 0);
    assert!(refused, "QUARANTINE always had room");
}

#[test]
fn a_full_share_of_uplink_delays_devices_of_some_seed() {
    let refused = (0..SABOTAGE_SEEDS).any(|seed| run(seed, Sabotage::None, false).0.tally.share_full > 0);
    assert!(refused, "no share was ever full");
}

#[test]
fn an_ingest_that_judges_before_it_knows_the_documents_is_seen() {
    seen(
        Sabotage::Breaks(OrderRule::DocumentsBeforeRefusal),
        "no honest device is refused for what its reports speak of",
    );
}

#[test]
fn an_ingest_without_a_quota_of_deployments_is_seen() {
    seen(
        Sabotage::LetsDevicesInvent,
        "a device without a document speaks of no more deployments than its quota",
    );
}

/// Every fault occurs in some seed: a fault that never happens proves nothing.
#[test]
fn every_fault_occurs_in_some_seed() {
    let mut never: BTreeSet<_> = Fault::ALL.into_iter().map(|(fault, _)| fault).collect();
    for seed in 0..SABOTAGE_SEEDS {
        let struck = run(seed, Sabotage::None, false).0.tally.faults;
        never.retain(|fault| !struck.contains_key(fault));
        if never.is_empty() {
            return;
        }
    }
    panic!("{never:?} never struck in {SABOTAGE_SEEDS} seeds");
}
