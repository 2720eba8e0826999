//! Ingest is stopped between every two of its steps, one after the other, and not by lot: a script of reports is run once to
//! count the steps, then once more for each of them, with everything that may have become of the facts under way. What
//! LEDGER holds in the end is what it holds where nothing happened.
//!
//! A step is over when: LEDGER was read, a report or a heartbeat taken in, a fact sent, stored, confirmed, an acknowledgement
//! about to be sent, sent, arrived, a receipt stored, UPLINK trimmed.

#![allow(clippy::print_stdout, reason = "the numbers of a run are for whoever runs it")]

use fastrand::Rng;
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::limits::UPLINK_SHARE;
use muster_contract::query::Output;
use serde_json::{Value, json};

use super::agenda::{MINUTE, Millis, SECOND, moment};
use super::device::{Ticket, Upward};
use super::ingest::{Doom, Duty};
use super::law::Lawful;
use super::profile::Profile;
use super::rollup::rebuilt;
use super::world::{Event, Sabotage, World};

/// Until when steps are taken: everything of the script is in, and UPLINK was trimmed of it.
const STEPS_END: Millis = 3 * MINUTE;
/// When a run ends: ingest is back however long it was away, and has caught up.
const END: Millis = 9 * MINUTE;

const _: () = assert!(STEPS_END + 3 * MINUTE < END && STEPS_END > 150 * SECOND);
/// Devices of the script.
const DEVICES: usize = 3;

/// Who stops ingest, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reaper {
    /// What it does.
    pub(crate) doom: Doom,
    /// How long ingest is away then.
    pub(crate) pause: Millis,
    /// Facts under way that arrive nonetheless; those behind them do not.
    arrive: usize,
    /// After which step.
    at: u64,
    steps: u64,
}

impl Reaper {
    /// A step is over: is it the last?
    pub(crate) fn comes(&mut self, now: Millis) -> bool {
        self.steps += u64::from(now < STEPS_END);
        now < STEPS_END && self.steps == self.at
    }

    /// Whether the next fact that was under way arrives.
    pub(crate) const fn lets_arrive(&mut self) -> bool {
        let lets = self.arrive > 0;
        self.arrive = self.arrive.saturating_sub(1);
        lets
    }
}

impl World {
    /// A step of ingest is over: does it end here?
    pub(crate) fn reaped(&mut self) -> bool {
        let now = self.agenda.now();
        self.reaper.as_mut().is_some_and(|reaper| reaper.comes(now))
    }

    /// The end that was meant.
    pub(crate) fn fell(&mut self, part: usize) {
        match self.reaper.map_or(Doom::Crash, |reaper| reaper.doom) {
            Doom::Cut if self.owners[part].session.is_some() => self.cut_owner(part),
            _ => self.kill_owner(part),
        }
    }
}

fn status(epoch: u64, seq: u64, head: u64, state: &str) -> Value {
    json!({
        "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": epoch, "seq": seq, "head": head,
        "observedAt": moment(0).to_string(), "deployment": "web", "generation": 1,
        "digest": Digest::of_bytes(b"web").to_string(), "status": {"state": state},
        "components": [{"name": "main", "state": state}], "current": seq == head,
    })
}

fn with(mut report: Value, field: &str, value: Value) -> Value {
    report[field] = value;
    report
}

fn capabilities(epoch: u64) -> Value {
    json!({
        "apiVersion": "muster/v1", "kind": "CapabilitiesReport", "epoch": epoch, "seq": 1, "head": 1,
        "observedAt": moment(0).to_string(), "properties": {}, "agentVersion": "1",
    })
}

/// What comes, and when: whatever a border has to tell apart.
fn script() -> Vec<(Millis, usize, Value)> {
    let poison = with(status(1, 3, 6, "installing"), "generation", json!("?"));
    let folded = with(status(1, 5, 6, "failed"), "coalesced", json!([[4, 4]]));
    let at_once = [
        (0, capabilities(1)),
        (0, status(1, 2, 6, "installing")),
        (1, status(1, 2, 3, "installed")),
        (0, poison.clone()),
        // Late, by one that is in.
        (1, status(1, 1, 3, "installing")),
        (0, folded.clone()),
        // Nobody can tell whose number it is.
        (2, json!({"seq": "none"})),
    ];
    let later = [
        // The same once more, and the same number with another content.
        (0, folded),
        (0, poison),
        (1, status(1, 2, 3, "failed")),
        (1, status(1, 3, 3, "failed")),
        (0, status(1, 6, 6, "installed")),
        (2, capabilities(1)),
    ];
    // A device has lost its memory and begins anew.
    let at_last = [(2, capabilities(5)), (2, status(5, 2, 2, "installed"))];
    let spaced = |from: Millis, apart: Millis, part: Vec<(usize, Value)>| {
        let nth = move |(at, (device, report))| (from + apart * at as Millis, device, report);
        part.into_iter().enumerate().map(nth)
    };
    spaced(3 * SECOND, 0, at_once.into())
        .chain(spaced(8 * SECOND, 300, later.into()))
        .chain(spaced(20 * SECOND, 40, at_last.into()))
        .collect()
}

fn profile() -> Profile {
    Profile {
        devices: DEVICES,
        sites: 1,
        partitions: 1,
        share: UPLINK_SHARE as usize,
        deployments: 1,
        storm: END,
        edits_every: END,
        outbox_rows: 100_000,
        latency: 20,
        tick: SECOND,
        failures: false,
        faults: Vec::new(),
    }
}

/// The script, over connections that are there, and hearts that beat.
fn begin(world: &mut World) {
    for (at, (when, device, report)) in script().into_iter().enumerate() {
        let number = report["epoch"].as_u64().zip(report["seq"].as_u64());
        let bytes = report.to_string().into_bytes().into();
        let answer_to = Ticket { attempt: 0, seq: 0, at: 0 };
        let report = Upward::Report { bytes, id: format!("{at}"), number, answer_to };
        world.agenda.at(when, Event::Up(device, 1, report));
    }
    for device in 0..DEVICES {
        world.devices[device].connection = Some(1);
        for when in (1..).map(|beat| beat * 20 * SECOND).take_while(|when| *when < END) {
            let (epoch, head) = [(1, 6), (1, 3), (if when > 20 * SECOND { 5 } else { 1 }, 2)][device];
            let beat = json!({
                "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": epoch, "head": head, "unsent": 0,
                "generation": 0, "agentVersion": "1",
            });
            let beat = Upward::Beat(beat.to_string().into_bytes().into());
            world.agenda.at(when + SECOND, Event::Up(device, 1, beat));
        }
    }
    world.agenda.at(0, Event::Duty(0, 0, 0, Duty::Start));
    world.agenda.at(30 * SECOND, Event::Trim);
}

fn run(reaper: Reaper, sabotage: Sabotage) -> (World, Lawful) {
    let mut world = World::of(Rng::with_seed(1), profile(), sabotage, false);
    world.reaper = Some(reaper);
    begin(&mut world);
    let mut lawful = Ok(());
    while let Some(event) = world.agenda.next() {
        lawful = world.happens(event);
        if lawful.is_err() || world.agenda.now() > END {
            break;
        }
    }
    (world, lawful)
}

/// What LEDGER holds of what devices said, what a reader of LEDGER knows of them, and what they were told. How often the hub
/// spoke of who is heard is left out: it depends on the time.
fn outcome(world: &World) -> Vec<String> {
    let mut facts: Vec<String> = world
        .hub
        .ledger
        .iter()
        .filter_map(|said| match &said.fact {
            Fact::Incident(fact) => Some(format!("{} {:?}", said.subject, fact.what)),
            Fact::Liveness(_) => None,
            fact => Some(format!("{} {}", said.subject, String::from_utf8(fact.to_bytes()).unwrap())),
        })
        .collect();
    facts.sort_unstable();
    let known = rebuilt(&world.hub);
    for device in &world.devices {
        let line = known.device_answer(&device.key, Output::All).map(|answer| answer.device);
        facts.push(line.map_or_else(String::new, |line| {
            format!(
                "{} {:?} {:?} {} {:?} {}",
                line.key, line.freshness, line.epoch, line.head, line.account, line.in_doubt
            )
        }));
    }
    let receipt = |bytes: &Option<std::rc::Rc<[u8]>>| {
        bytes.as_ref().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).unwrap_or_default()
    };
    facts.extend(world.hub.receipts.iter().map(receipt));
    let owner = &world.owners[0];
    facts.push(format!(
        "UPLINK: acknowledged {} of {}, {} left; at rest {}",
        world.hub.floors[0],
        world.hub.uplink_last(),
        world.hub.uplink.len(),
        owner.is_idle()
    ));
    facts
}

/// Runs the script for every step at which ingest may end and everything that may become of what is under way then; what
/// was wrong, and how many runs there were.
fn every_end(doom: Doom, pause: Millis, sabotage: Sabotage) -> (Option<String>, u64) {
    let whole = Reaper { doom, pause, arrive: 0, at: 0, steps: 0 };
    let (unharmed, lawful) = run(whole, Sabotage::None);
    lawful.unwrap();
    let (wanted, steps) = (outcome(&unharmed), unharmed.reaper.unwrap().steps);
    assert!(steps > 60, "{steps} steps: {wanted:#?}");
    let mut runs = 0;
    for at in 1..=steps {
        for arrive in 0.. {
            let (world, lawful) = run(Reaper { arrive, at, ..whole }, sabotage);
            runs += 1;
            let seen = outcome(&world);
            let what = format!("{doom:?} for {pause} ms after step {at} of {steps}, {arrive} facts arrive: ");
            if let Err(breach) = lawful {
                return (Some(format!("{what}it does not hold that {}: {}", breach.law, breach.seen)), runs);
            }
            if seen != wanted {
                return (Some(format!("{what}{}", difference(&seen, &wanted))), runs);
            }
            // More than were under way: nothing else can become of them.
            if world.reaper.unwrap().arrive > 0 {
                break;
            }
        }
    }
    (None, runs)
}

/// What is there and should not be, and what is not there and should be.
fn difference(seen: &[String], wanted: &[String]) -> String {
    let count = |lines: &[String], line: &String| lines.iter().filter(|other| *other == line).count();
    let more = |ones: &[String], others: &[String]| {
        let more = ones.iter().filter(|line| count(ones, line) > count(others, line));
        more.map(|line| format!("\n  {line}")).collect::<String>()
    };
    format!("in excess:{}\nlacking:{}", more(seen, wanted), more(wanted, seen))
}

fn nothing_changes(doom: Doom, pause: Millis) {
    let (wrong, runs) = every_end(doom, pause, Sabotage::None);
    println!("{doom:?} for {pause} ms between every two steps: {runs} runs");
    assert!(wrong.is_none(), "{}", wrong.unwrap_or_default());
}

#[test]
fn a_kill_between_any_two_steps_of_ingest_changes_nothing_in_ledger() {
    nothing_changes(Doom::Crash, SECOND);
}

#[test]
fn a_kill_between_any_two_steps_changes_nothing_also_when_the_duplicate_window_is_over_before_it_is_back() {
    nothing_changes(Doom::Crash, 3 * MINUTE);
}

#[test]
fn a_lost_connection_between_any_two_steps_of_ingest_changes_nothing_in_ledger() {
    nothing_changes(Doom::Cut, SECOND);
}

#[test]
fn an_ingest_that_errs_is_found_by_some_kill() {
    let found = |doom, pause, sabotage, law: &str| {
        let (wrong, _) = every_end(doom, pause, sabotage);
        assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(law)), "{sabotage:?}: {wrong:?}");
    };
    found(Doom::Crash, SECOND, Sabotage::AcksFirst, "what ingest acknowledges is in LEDGER");
    found(Doom::Crash, 3 * MINUTE, Sabotage::RemembersNothing, "a number is in LEDGER at most once");
    found(Doom::Cut, SECOND, Sabotage::TakesSilenceForConsent, "what ingest acknowledges is in LEDGER");
}
