//! Ends ingest, or cuts its connection, between every two of its steps, for every number of facts and payloads under way
//! that may still arrive ([`ends`](super::ends)). LEDGER must hold in the end what it holds in a run without an end.
//!
//! A step is every effect of the session, before it is carried out and after the last of a turn. Steps outside the session
//! are: LEDGER was read, LEDGER stored a fact, QUARANTINE stored a payload, an acknowledgement arrived, UPLINK was trimmed.

use fastrand::Rng;
use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, QuarantineFact};
use muster_contract::query::Output;
use muster_ingest::session::OrderRule;
use serde_json::{Value, json};

use super::agenda::{MINUTE, Millis, SECOND, moment};
use super::batches::compressed;
use super::device::Upward;
use super::ends::{PlannedEnd, Script};
use super::ingest::{EndKind, OwnerEvent};
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

const SCRIPT: Script = Script { steps_end: STEPS_END, end: END, prepare, planned_end, outcome };

impl World {
    /// Counts a step of ingest; true if ingest ends after it.
    pub(crate) fn ends_now(&mut self) -> bool {
        let now = self.agenda.now();
        self.planned_end.as_mut().is_some_and(|planned_end| planned_end.count_step(now))
    }

    /// How ingest ends.
    pub(crate) fn owner_end(&self) -> EndKind {
        self.planned_end.map_or(EndKind::Crash, |planned_end| planned_end.end_kind)
    }

    /// Ends the owner of a partition as planned.
    pub(crate) fn end_owner(&mut self, part: usize) {
        match self.owner_end() {
            EndKind::Cut if self.owners[part].session.is_some() => self.cut_owner(part),
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

/// The reports 2 to 5 of a device in one message.
fn batch() -> Value {
    let element = |seq: u64, state: &str| {
        let mut element = status(1, seq, 5, state);
        let fields = element.as_object_mut().unwrap();
        ["apiVersion", "epoch", "seq", "head"].into_iter().for_each(|key| _ = fields.remove(key));
        element
    };
    let mut reports =
        [element(2, "installed"), element(3, "failed"), element(4, "failed"), element(5, "installed")];
    reports[2]["generation"] = json!("?");
    json!({
        "apiVersion": "muster/v1", "kind": "ReportBatch", "epoch": 1, "head": 5, "seqs": [[2, 5]], "reports": reports,
    })
}

/// The reports with their times: every case that a border distinguishes.
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
        // One known report, a new one, one that cannot be parsed, and another new one.
        (1, batch()),
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
    Profile::scripted(DEVICES, END)
}

/// The world of the script: every device is connected and sends heartbeats.
fn prepare(sabotage: Sabotage) -> World {
    let mut world = World::of(Rng::with_seed(1), profile(), sabotage, false);
    for (when, device, report) in script() {
        let text = report.to_string().into_bytes();
        let (numbers, reports, bytes) = match report["reports"].as_array() {
            Some(reports) => {
                let numbers = (1..).map(|seq| (1, seq)).skip(1).take(reports.len()).collect();
                (numbers, Some(reports.len().to_string()), compressed(&text))
            }
            None => (report["epoch"].as_u64().zip(report["seq"].as_u64()).into_iter().collect(), None, text),
        };
        let report = Upward::Report { bytes: bytes.into(), numbers, reports, answer_to: None };
        world.agenda.at(when, Event::Up(device, 1, report));
    }
    for device in 0..DEVICES {
        world.devices[device].connection = Some(1);
        for when in (1..).map(|beat| beat * 20 * SECOND).take_while(|when| *when < END) {
            let (epoch, head) = [(1, 6), (1, 5), (if when > 20 * SECOND { 5 } else { 1 }, 2)][device];
            // One device refuses its desired state, and for longer than ingest is away.
            let refused = (device == 1 && when >= 40 * SECOND).then(|| {
                json!({"generation": 1, "code": "invalid", "message": "no", "since": moment(0).to_string()})
            });
            let beat = json!({
                "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": epoch, "head": head, "unsent": 0,
                "generation": 0, "agentVersion": "1", "refused": refused,
            });
            let beat = Upward::Beat(beat.to_string().into_bytes().into());
            world.agenda.at(when + SECOND, Event::Up(device, 1, beat));
        }
    }
    world.agenda.at(0, Event::Owner(0, 0, 0, OwnerEvent::Start));
    world.agenda.at(30 * SECOND, Event::Trim);
    world
}

const fn planned_end(world: &mut World) -> &mut Option<PlannedEnd> {
    &mut world.planned_end
}

/// The facts of device reports in LEDGER, the devices as a reader of LEDGER knows them, and their receipts. Facts of liveness and
/// pulse are left out: their number depends on the time.
fn outcome(world: &World) -> Vec<String> {
    let mut facts: Vec<String> = world
        .hub
        .ledger
        .iter()
        .filter_map(|said| match &said.fact {
            Fact::Incident(fact) => Some(format!("{} {:?}", said.subject, fact.what)),
            Fact::Liveness(_) | Fact::Pulse(_) | Fact::Hearing(_) => None,
            // Which of two rejected reports is counted first depends on when QUARANTINE answers.
            Fact::Quarantine(fact) => {
                let fact = Fact::Quarantine(QuarantineFact { count_for_device: 0, ..fact.clone() });
                Some(format!("{} {}", said.subject, String::from_utf8(fact.to_bytes()).unwrap()))
            }
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
        owner.session.is_some() && owner.intake.unsettled() == 0
    ));
    facts
}

#[test]
fn a_kill_between_any_two_steps_of_ingest_changes_nothing_in_ledger() {
    SCRIPT.assert_same_outcome(EndKind::Crash, SECOND);
}

#[test]
fn a_kill_between_two_steps_changes_nothing_beyond_the_duplicate_window() {
    SCRIPT.assert_same_outcome(EndKind::Crash, 3 * MINUTE);
}

#[test]
fn a_lost_connection_between_any_two_steps_changes_nothing_in_ledger() {
    SCRIPT.assert_same_outcome(EndKind::Cut, SECOND);
}

#[test]
fn an_ingest_that_errs_is_found_by_some_kill() {
    let found = |end_kind, pause, sabotage, laws: &[&str]| {
        let (wrong, _) = SCRIPT.every_end(end_kind, pause, sabotage);
        let is_named = |wrong: &String| laws.iter().any(|law| wrong.contains(law));
        assert!(wrong.as_ref().is_some_and(is_named), "{sabotage:?}: {wrong:?}");
    };
    let (acknowledged, told) =
        ("what ingest acknowledges is in LEDGER", "a receipt covers what LEDGER holds");
    let hasty = Sabotage::Breaks(OrderRule::ConfirmedBeforeAcknowledged);
    found(EndKind::Crash, SECOND, hasty, &[acknowledged]);
    let credulous = Sabotage::Breaks(OrderRule::UnknownIsNotStored);
    found(EndKind::Cut, SECOND, credulous, &[acknowledged, told]);
    let blind = Sabotage::Breaks(OrderRule::StoredBeforeAccounted);
    found(EndKind::Crash, SECOND, blind, &["a number is quarantined only if its payload is kept"]);
    found(EndKind::Crash, 3 * MINUTE, Sabotage::RemembersNothing, &["a number is in LEDGER at most once"]);
}
