//! The rules of the views in Python (`schemas/examples/reduce.py`) and ours say the same of any ledger, digest for
//! digest: of the reducer vectors, of ledgers drawn by lot, and of one that a whole system wrote. And the vectors define
//! the views: whichever rule is left out, one of them finds it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use fastrand::Rng;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::fact::{
    Account, DeadlineFact, DeadlineKind, DeviceFact, Fact, HearingFact, Liveness, LivenessFact,
    QuarantineFact, StatusFact,
};
use muster_contract::partition::partition_of;
use muster_contract::quarantine::{QuarantineDecision, QuarantineVerdict};
use muster_contract::retry::{LastError, Retry};
use muster_contract::state::{ComponentStatus, StatusError};
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_contract::view::Standing;
use muster_contract::{DeviceKey, Epoch, Generation, Seq, SeqRanges, State, Timestamp};
use muster_domain::fold::{Fleet, Position};
use muster_simulator::repository::{write_devices, write_release};
use muster_tests::python::interpreter;
use muster_tests::schemas::{self, example};
use muster_tests::system::{Entry, System, agent_name};
use serde_json::{Value, json};

const LEDGERS: u64 = 400;
const FACTS: usize = 60;
const DEVICES: [&str; 4] = ["plant7/press-4", "plant7/press-5", "plant8/oven-1", "plant8/oven-2"];
const DEPLOYMENTS: [&str; 3] = ["db", "tap", "web"];

#[test]
fn the_reducer_vectors_hold_in_python() {
    agree(&vectors());
}

/// `sabotage.py` has the list.
#[test]
fn whoever_leaves_out_a_rule_of_the_views_fails_a_vector() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_reduce/sabotage.py");
    said_well(Command::new(interpreter()).arg(script).arg(reducer()).args(vectors()));
}

#[test]
fn what_the_fold_in_python_writes_down_is_all_that_it_needs_to_go_on() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_reduce/resumed.py");
    said_well(
        Command::new(interpreter()).arg(script).arg(schemas::folder().join("examples")).args(vectors()),
    );
}

fn vectors() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(schemas::folder().join("vectors")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty(), "schemas/vectors holds no vector");
    files
}

fn reducer() -> PathBuf {
    schemas::folder().join("examples/reduce.py")
}

#[test]
fn both_say_the_same_of_ledgers_drawn_by_lot() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..LEDGERS)
        .map(|seed| {
            let file = dir.path().join(format!("{seed}.json"));
            std::fs::write(&file, vector(&drawn(seed)).to_string()).unwrap();
            file
        })
        .collect();
    agree(&files);
}

/// Facts carry no attributes of CloudEvents: `cloudevents.py` derives them.
#[test]
fn the_attributes_of_an_event_follow_from_its_fact_and_position() {
    let script = schemas::folder().join("examples/cloudevents.py");
    let output = Command::new(interpreter()).arg(script).args(vectors()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!events.is_empty());
    for event in events {
        let subject = LedgerSubject::parse(event["subject"].as_str().unwrap()).unwrap();
        let fact = Fact::parse(&subject, event["data"].to_string().as_bytes()).unwrap();
        assert_eq!(event["type"], format!("muster.v1.{}", fact.kind()), "{event}");
        let (id, source) = (event["id"].as_str().unwrap(), event["source"].as_str().unwrap());
        match &fact {
            Fact::Status(fact) => assert!(id.ends_with(&format!(".{}.{}", fact.epoch, fact.seq)), "{event}"),
            Fact::Desired(_) => assert_eq!(source, "muster-publisher"),
            Fact::Hearing(_) => assert_eq!(source, "muster-rollup"),
            _ => assert!(source == "muster-ingest" && !id.is_empty(), "{event}"),
        }
    }
}

#[tokio::test]
async fn both_say_the_same_of_a_ledger_that_a_whole_system_wrote() {
    let mut system = System::start().await;
    let devices: Vec<DeviceKey> = DEVICES[..2].iter().map(|key| key.parse().unwrap()).collect();
    write_release(&system.repository, &["plant7".to_owned()], 1).unwrap();
    write_devices(&system.repository, &devices).unwrap();
    system.repository.commit("a release").await.unwrap();
    let hub = system.address();
    system.start_agent(&devices[0], hub, &[]);
    let device = &devices[0];
    system
        .eventually("the device has reported something to an end", async || {
            let answer = system.hub.device(device).await.map_err(|error| error.to_string())?;
            let installed = answer.deployments.iter().any(|line| line.standing == Standing::Installed);
            if installed { Ok(()) } else { Err(json!(answer).to_string()) }
        })
        .await;
    system.terminate(&agent_name(device)).await;
    let ledger = system.ledger().await;
    let file = system.dir().join("ledger.json");
    std::fs::write(&file, vector(&ledger).to_string()).unwrap();
    agree(&[file]);
}

#[test]
fn both_leave_the_same_out_where_a_view_would_grow_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("crowded.json");
    let vector = vector(&crowded());
    assert_eq!(vector["views"]["deployment.web"]["omitted"], json!({ "components": 144, "errors": 20 }));
    std::fs::write(&file, vector.to_string()).unwrap();
    agree(&[file]);
}

/// A ledger excerpt with the views that our own fold makes of it.
fn vector(ledger: &[Entry]) -> Value {
    let mut fleet = Fleet::default();
    let mut keys = BTreeSet::from([ViewKey::Fleet]);
    for Entry { seq, stored_at, subject, fact } in ledger {
        fleet.apply(Position { ledger_seq: *seq, stored_at: *stored_at }, subject, fact.clone());
        keys.extend(fleet.drain_changed_views());
    }
    let view = |key: &ViewKey| match key {
        ViewKey::Deployment(id) => fleet.deployment_view(id).map(|view| json!(view)),
        ViewKey::Site(site) => fleet.site_view(site).map(|view| json!(view)),
        ViewKey::Fleet => Some(json!(fleet.fleet_view())),
        ViewKey::Group(label, value) => fleet.group_view(label, value).map(|view| json!(view)),
        ViewKey::Defined(_) => None,
    };
    let views: BTreeMap<_, _> = keys.iter().filter_map(|key| Some((key.to_string(), view(key)?))).collect();
    let entries: Vec<_> = ledger
        .iter()
        .map(|entry| {
            json!({
                "seq": entry.seq,
                "storedAt": entry.stored_at,
                "subject": entry.subject.to_string(),
                "fact": as_json(&entry.fact),
            })
        })
        .collect();
    json!({ "ledger": entries, "views": views })
}

fn as_json(fact: &Fact) -> Value {
    match fact {
        Fact::Desired(fact) => json!(fact),
        Fact::Status(fact) => json!(fact),
        Fact::Device(fact) => json!(fact),
        Fact::Liveness(fact) => json!(fact),
        Fact::Deadline(fact) => json!(fact),
        Fact::Incident(fact) => json!(fact),
        Fact::Quarantine(fact) => json!(fact),
        Fact::Verdict(fact) => json!(fact),
        Fact::Ownership(record) => json!(record),
        Fact::Pulse(pulse) => json!(pulse),
        Fact::Hearing(fact) => json!(fact),
    }
}

#[track_caller]
fn agree(files: &[PathBuf]) {
    said_well(Command::new(interpreter()).arg(reducer()).args(files));
}

/// Runs a script that says what is wrong, and ends well where nothing is.
#[track_caller]
fn said_well(script: &mut Command) {
    let output = script.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn drawn(seed: u64) -> Vec<Entry> {
    let mut rng = Rng::with_seed(seed);
    (1..=FACTS as u64)
        .map(|number| {
            let (subject, fact) = lot(&mut rng, seed);
            let stored_at = Timestamp::from_second(1_787_392_800 + number as i64).unwrap();
            Entry { seq: 2 * number, stored_at, subject, fact }
        })
        .collect()
}

/// Two devices that fail with more components and error codes than a view lists.
fn crowded() -> Vec<Entry> {
    let mut ledger = Vec::new();
    for (at, device) in DEVICES[..2].iter().enumerate() {
        let key: DeviceKey = device.parse().unwrap();
        let mut wanted: DesiredState = example("DesiredState.two-deployments");
        wanted.deployments[0].id = "web".parse().unwrap();
        let mut failed: StatusFact = example("StatusFact.as-it-came");
        failed.status.state = State::Failed;
        let part = |number: usize| ComponentStatus {
            name: format!("part-{at}-{number:03}").parse().unwrap(),
            state: State::Failed,
            error: (number < 30).then(|| StatusError::new(format!("E{at}-{number}"), "", "it ended")),
        };
        failed.components = (0..200).map(part).collect();
        let subject = LedgerSubject::Status(key.clone(), "web".parse().unwrap());
        for (subject, fact) in
            [(LedgerSubject::Desired(key), Fact::Desired(wanted)), (subject, Fact::Status(failed))]
        {
            let seq = ledger.len() as u64 + 1;
            ledger.push(Entry { seq, stored_at: Timestamp::UNIX_EPOCH, subject, fact });
        }
    }
    ledger
}

fn lot(rng: &mut Rng, seed: u64) -> (LedgerSubject, Fact) {
    let device = rng.usize(..DEVICES.len());
    let key: DeviceKey = DEVICES[device].parse().unwrap();
    let deployment = DEPLOYMENTS[rng.usize(..DEPLOYMENTS.len())].parse().unwrap();
    match rng.u32(..25) {
        0..4 => (LedgerSubject::Desired(key), Fact::Desired(desired(rng, seed + device as u64 * LEDGERS))),
        4..12 => (LedgerSubject::Status(key, deployment), Fact::Status(status(rng))),
        12 => (LedgerSubject::Device(key), Fact::Device(capabilities(rng))),
        13..16 => (LedgerSubject::Liveness(key), Fact::Liveness(liveness(rng))),
        16 => (LedgerSubject::Deadline(key, deployment), Fact::Deadline(deadline(rng))),
        17 => (LedgerSubject::Incident(Some(key)), Fact::Incident(example("Incident.gap"))),
        18..20 => (LedgerSubject::Quarantine(Some(key)), Fact::Quarantine(quarantine(rng))),
        20 => (LedgerSubject::Verdict(Some(key)), Fact::Verdict(verdict(rng))),
        21 => (LedgerSubject::Quarantine(None), Fact::Quarantine(quarantine(rng))),
        22 => (LedgerSubject::Hub(partition_of(&key)), Fact::Pulse(example("PulseFact.hears-well"))),
        _ => (LedgerSubject::Hearing(partition_of(&key)), Fact::Hearing(hearing(rng))),
    }
}

fn hearing(rng: &mut Rng) -> HearingFact {
    let name = ["HearingFact.stopped", "HearingFact.resumed"][rng.usize(..2)];
    let since = Timestamp::from_second(rng.i64(0..3)).unwrap();
    HearingFact { since, ..example(name) }
}

/// A desired state of a device, one of those that its plan has: every generation has one document for ever, and what
/// comes back after it was left out is a new target.
fn desired(rng: &mut Rng, plan: u64) -> DesiredState {
    let wanted = generation(rng);
    let mut plan = Rng::with_seed(plan);
    let mut desired: DesiredState = example("DesiredState.two-deployments");
    let entry = desired.deployments.swap_remove(0);
    desired.deployments.clear();
    for number in 1..=wanted.get() {
        desired.generation = Generation::new(number).unwrap();
        desired.retired = plan.u32(..8) == 0;
        let value = |plan: &mut Rng| ["one", "two"][plan.usize(..2)].parse().unwrap();
        let labels =
            ["region", "ring"].map(|label| maybe(&mut plan, |plan| (label.parse().unwrap(), value(plan))));
        desired.labels = labels.into_iter().flatten().collect();
        for id in DEPLOYMENTS {
            let (stays, changes) = (plan.bool() && !desired.retired, plan.bool());
            let held = desired.deployments.iter().position(|entry| entry.id.as_str() == id);
            match (held, stays) {
                (Some(at), false) => drop(desired.deployments.remove(at)),
                (Some(at), true) if changes => {
                    desired.deployments[at].target_generation = desired.generation;
                }
                (None, true) => {
                    let (id, target_generation) = (id.parse().unwrap(), desired.generation);
                    desired.deployments.push(DesiredDeployment { id, target_generation, ..entry.clone() });
                }
                _ => {}
            }
        }
    }
    desired
}

fn status(rng: &mut Rng) -> StatusFact {
    let mut fact: StatusFact = example("StatusFact.as-it-came");
    fact.epoch = epoch(rng);
    fact.seq = Seq::new(rng.u64(1..9)).unwrap();
    fact.head = fact.seq.max(Seq::new(rng.u64(1..9)).unwrap());
    fact.current = rng.bool();
    fact.generation = generation(rng);
    fact.status.state = state(rng);
    fact.status.error = maybe(rng, error);
    fact.status.reason = maybe(rng, words);
    fact.components =
        ["broker", "dashboard"].iter().filter_map(|name| maybe(rng, |rng| component(rng, name))).collect();
    fact.retries =
        [Some("broker"), None].into_iter().filter_map(|of| maybe(rng, |rng| retry(rng, of))).collect();
    fact.first_attempt_at = maybe(rng, instant);
    if fact.seq.get() > 3 && rng.bool() {
        fact.coalesced = SeqRanges::span(rng.u64(1..3), 3);
    }
    fact
}

fn retry(rng: &mut Rng, component: Option<&str>) -> Retry {
    let StatusError { code, message, .. } = error(rng);
    Retry {
        component: component.map(|name| name.parse().unwrap()),
        attempt: rng.u32(1..9),
        since: instant(rng),
        last_error: LastError { code, message, at: instant(rng) },
        crash_loop: rng.u32(..3) == 0,
    }
}

fn component(rng: &mut Rng, name: &str) -> ComponentStatus {
    ComponentStatus { name: name.parse().unwrap(), state: state(rng), error: maybe(rng, error) }
}

fn error(rng: &mut Rng) -> StatusError {
    let code = ["", "EXITED", "ImagePull", &"ü".repeat(100)][rng.usize(..4)].to_owned();
    let source = ["", "broker", "dashboard", "line-dashboard"][rng.usize(..4)].to_owned();
    // An error of empty texts is none, and none is what our writers write.
    StatusError { code, source, message: words(rng) }
}

fn words(rng: &mut Rng) -> String {
    ["it ended", "ein \"Fehler\"\n\u{1}\t\u{7f}", &"långt fel ".repeat(80)][rng.usize(..3)].to_owned()
}

fn capabilities(rng: &mut Rng) -> DeviceFact {
    let mut fact: DeviceFact = example("DeviceFact.as-it-came");
    fact.epoch = epoch(rng);
    fact.seq = Seq::new(rng.u64(1..9)).unwrap();
    fact.head = fact.seq.max(Seq::new(rng.u64(1..9)).unwrap());
    fact
}

fn liveness(rng: &mut Rng) -> LivenessFact {
    let mut fact: LivenessFact = example("LivenessFact.fresh");
    fact.state = if rng.bool() { Liveness::Fresh } else { Liveness::Stale };
    fact.epoch = epoch(rng);
    fact.head = rng.u64(..9);
    fact.beat_at = maybe(rng, instant);
    fact.storing = rng.u32(..4) > 0;
    fact.account = maybe(rng, |rng| {
        let missing = if fact.head > 2 && rng.bool() {
            SeqRanges::span(2, rng.u64(2..=fact.head))
        } else {
            SeqRanges::new()
        };
        let (coalesced, quarantined) = (rng.u64(..3), rng.u64(..3));
        Account { received: fact.head, coalesced, quarantined, missing }
    });
    fact
}

fn deadline(rng: &mut Rng) -> DeadlineFact {
    DeadlineFact {
        generation: generation(rng),
        deadline: DeadlineKind::Stuck,
        since: instant(rng),
        ..example("DeadlineFact.stuck")
    }
}

fn quarantine(rng: &mut Rng) -> QuarantineFact {
    let mut fact: QuarantineFact = example("QuarantineFact.with-a-number");
    fact.epoch = maybe(rng, |rng| Epoch::new(rng.u64(1..10)).unwrap());
    fact.seq = maybe(rng, |rng| Seq::new(rng.u64(1..12)).unwrap());
    fact.received_at = instant(rng);
    let others = maybe(rng, |rng| SeqRanges::span(rng.u64(1..12), rng.u64(1..15))).unwrap_or_default();
    (fact.others, fact.other_seqs) = (others.count(), others);
    fact
}

fn verdict(rng: &mut Rng) -> QuarantineVerdict {
    let mut fact: QuarantineVerdict = example("QuarantineVerdict.dropped");
    fact.verdict = [
        QuarantineDecision::Dropped,
        QuarantineDecision::Dropped,
        QuarantineDecision::LetIn,
        QuarantineDecision::Expired,
    ][rng.usize(..4)];
    let held = quarantine(rng);
    (fact.epoch, fact.seq, fact.received_at) = (held.epoch, held.seq, Some(held.received_at));
    fact
}

/// One of few, with and without a fraction.
fn instant(rng: &mut Rng) -> Timestamp {
    Timestamp::from_millisecond(1_787_392_800_000 + 500 * rng.i64(0..8)).unwrap()
}

fn epoch(rng: &mut Rng) -> Epoch {
    Epoch::new([1, 1, 2, 2, 2, 3][rng.usize(..6)]).unwrap()
}

fn generation(rng: &mut Rng) -> Generation {
    Generation::new(rng.u64(1..6)).unwrap()
}

fn state(rng: &mut Rng) -> State {
    State::ALL[rng.usize(..State::ALL.len())]
}

fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.bool().then(|| make(rng))
}
