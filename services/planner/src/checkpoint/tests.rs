//! A checkpoint and the messages after it lead to the state of the whole LEDGER, wherever the copy begins and whatever arrives
//! meanwhile. A file that does not fit is set aside, and a write that ends at any byte leaves the file before.

use std::time::Duration;

use muster_contract::DeploymentId;
use muster_contract::fact::Fact;
use muster_contract::limits::PARTITIONS;
use muster_contract::rollout::TargetsAnswer;
use muster_contract::subjects::LedgerSubject;
use muster_domain::fold::{DeviceRecord, Position, RecordPacker};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::ledger::{LedgerEvent, LedgerFact};
use crate::rollouts::{LISTED_FOR, Listing};

const DEVICES: usize = 4;
const EVERY: Duration = Duration::from_secs(60);
const INSTANCE: &str = "web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d";
const TIME: i64 = 1_790_000_000;

/// A message of LEDGER about one device or partition.
#[derive(Debug, Clone)]
enum Message {
    /// A document with the wanted content, with another one, or without the deployment.
    Desired(usize, Option<bool>),
    Report(usize, bool),
    Heard(usize, bool),
    Pulse(u16, bool),
    Hearing(u16, bool),
}

fn message() -> impl Strategy<Value = Message> {
    let device = || 0..DEVICES;
    prop_oneof![
        3 => (device(), any::<Option<bool>>()).prop_map(|(device, content)| Message::Desired(device, content)),
        4 => (device(), any::<bool>()).prop_map(|(device, is_installed)| Message::Report(device, is_installed)),
        3 => (device(), any::<bool>()).prop_map(|(device, is_fresh)| Message::Heard(device, is_fresh)),
        1 => (0..PARTITIONS, any::<bool>()).prop_map(|(partition, current)| Message::Pulse(partition, current)),
        1 => (0..PARTITIONS, any::<bool>()).prop_map(|(partition, is_heard)| Message::Hearing(partition, is_heard)),
    ]
}

fn second(at: u64) -> Timestamp {
    Timestamp::from_second(TIME + i64::try_from(at).unwrap()).unwrap()
}

fn content(is_wanted: bool) -> Digest {
    Digest::of_bytes(if is_wanted { b"new" } else { b"old" })
}

/// The messages as facts: the document generation and the report number of a device are the sequence of the message.
fn facts(messages: &[Message]) -> Vec<LedgerFact> {
    let mut last = [(1_u64, content(false)); DEVICES];
    let mut fact = |(at, message): (u64, &Message)| {
        let now = second(at).to_string();
        let (subject, fact): (String, Value) = match message {
            Message::Desired(device, has) => {
                let digest = has.map(content);
                last[*device] = (at, digest.unwrap_or(last[*device].1));
                let profile = json!({ "type": "process", "components": [{ "name": "main", "properties": { "command": "run" } }] });
                let entry = |digest: Digest| json!({ "id": "app", "name": "app", "applicationId": "app", "targetGeneration": at, "digest": digest, "profile": profile });
                let mut deployments: Vec<_> = digest.map(entry).into_iter().collect();
                // With every third document an instance of a plan.
                if at % 3 == 0 {
                    deployments.push(json!({ "id": INSTANCE, "name": "web", "applicationId": "muster-plan-web", "targetGeneration": at,
                        "digest": content(false), "profile": profile }));
                }
                let document = json!({ "generation": at, "issuedAt": now, "source": { "kind": "git", "revision": "c1" }, "deployments": deployments,
                    "apiVersion": "muster/v1", "kind": "DesiredState" });
                (format!("muster.desired.s1.d{device}"), document)
            }
            Message::Report(device, is_installed) => {
                let (state, (generation, digest)) =
                    (if *is_installed { "installed" } else { "pending" }, last[*device]);
                let status = json!({ "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": at, "head": at, "observedAt": now,
                    "deployment": "app", "generation": generation, "digest": digest, "status": { "state": state },
                    "components": [{ "name": "main", "state": state }], "current": true, "receivedAt": now, "reasserted": false });
                (format!("muster.status.s1.d{device}.app"), status)
            }
            Message::Heard(device, is_fresh) => {
                let state = if *is_fresh { "fresh" } else { "stale" };
                let liveness = json!({ "apiVersion": "muster/v1", "kind": "LivenessFact", "state": state, "epoch": 1, "lastHeardAt": now, "head": at });
                (format!("muster.liveness.s1.d{device}"), liveness)
            }
            Message::Pulse(partition, current) => {
                let pulse = json!({ "apiVersion": "muster/v1", "kind": "PulseFact", "owner": "a", "at": now, "leaseSeconds": 30, "current": current });
                (format!("muster.hub.{partition}"), pulse)
            }
            Message::Hearing(partition, is_heard) => {
                let state = if *is_heard { "resumed" } else { "stopped" };
                let hearing = json!({ "apiVersion": "muster/v1", "kind": "HearingFact", "state": state, "at": now, "since": now });
                (format!("muster.hearing.{partition}"), hearing)
            }
        };
        let subject = LedgerSubject::parse(&subject).unwrap();
        let fact = match message {
            // Its digests are invented, so it is not checked.
            Message::Desired(..) => Fact::Desired(serde_json::from_value(fact).unwrap()),
            _ => Fact::parse(&subject, fact.to_string().as_bytes()).unwrap(),
        };
        (Position { ledger_seq: at, stored_at: second(at) }, Some((subject, fact)))
    };
    (1..).zip(messages).map(&mut fact).collect()
}

fn targets() -> TargetsAnswer {
    let target = |at: usize| json!({ "site": "s1", "device": format!("d{at}"), "rollout": "rollout.yaml", "wanted": content(true) });
    let waves = json!([{ "name": "first", "count": 2, "soak": "5s" }, { "name": "most", "percent": "90%" }]);
    let answer = json!({
        "revision": "c1",
        "rollouts": { "rollout.yaml": { "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves } },
        "targets": (0..DEVICES).map(target).collect::<Vec<_>>(),
    });
    serde_json::from_value(answer).unwrap()
}

fn deployment() -> DeploymentId {
    "app".parse().unwrap()
}

/// The state of a planner.
#[derive(Default)]
struct State {
    evidence: Evidence,
    rollouts: TrackedRollouts,
}

impl State {
    fn listed() -> Self {
        let mut state = Self::default();
        state.list();
        state
    }

    /// Lists the targets.
    fn list(&mut self) {
        let mut listing = Listing::new(deployment(), Instant::now());
        listing.add(targets(), &mut self.rollouts, &self.evidence).unwrap();
        self.rollouts.insert(listing, Instant::now());
    }

    fn restored(checkpoints: &Checkpoints) -> (Self, LedgerMark) {
        let checkpoint = checkpoints.restore().unwrap();
        let mark = checkpoint.mark();
        let (evidence, rollouts) = checkpoint.into_state(Instant::now());
        (Self { evidence, rollouts }, mark)
    }

    fn follow(&mut self, facts: &[LedgerFact]) {
        let changed = self.evidence.apply(LedgerEvent::Facts(facts.to_vec()));
        self.rollouts.observe(&changed, &self.evidence);
        // LEDGER's end and its time: a second for each message.
        let last_seq = self.evidence.ledger_seq();
        let end = LedgerEvent::End { last_seq, at: second(last_seq), asked_at: Instant::now() };
        self.evidence.apply(end);
    }

    /// Whether the listed targets are known, and a rollout is due, once the publisher has answered at LEDGER's time.
    fn answered(&mut self, ledger_time: Option<Timestamp>) -> (bool, bool) {
        let now = Instant::now();
        let is_known = self.rollouts.set_head(&deployment(), &targets(), now, ledger_time);
        (is_known, self.rollouts.has_due(now))
    }

    /// Everything that decisions rest on.
    fn seen(&mut self, at: Timestamp) -> Value {
        let (is_known, has_due) = self.answered(self.evidence.ledger_time(Instant::now()));
        let Self { evidence, rollouts } = self;
        let id = deployment();
        let line = |key: &muster_contract::DeviceKey| Some(evidence.target_line(&id, key));
        let states: Vec<_> = rollouts
            .all()
            .map(|rollout| {
                let state = serde_json::to_value(rollout.live.judge(&line, at)).unwrap();
                (state, rollout.live.listed_targets().map(|target| format!("{target:?}")).collect::<Vec<_>>())
            })
            .collect();
        let (fleet, projection) = evidence.parts();
        let mut records: Vec<_> = fleet.records().collect();
        records.sort_by(|one, other| one.key().cmp(other.key()));
        json!({ "isKnown": is_known, "hasDue": has_due, "states": states, "records": records, "projection": projection,
            "hearing": fleet.hearing_state(), "asOf": fleet.as_of() })
    }
}

/// A file of a planner that has folded these facts, written at its end.
fn finished(folder: &TempDir, facts: &[LedgerFact]) -> Checkpoints {
    let mut state = State::listed();
    state.follow(facts);
    written(folder, &mut state)
}

/// A file with a state.
fn written(folder: &TempDir, state: &mut State) -> Checkpoints {
    let checkpoints = Checkpoints::open(folder.path(), EVERY).unwrap();
    let mut checkpointer = Checkpointer::new(checkpoints.clone(), 0, Instant::now());
    checkpointer.opened(second(0));
    checkpointer.finish(&mut state.evidence, &state.rollouts);
    checkpoints
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_checkpoint_and_the_later_messages_are_the_whole_ledger(
        messages in prop::collection::vec(message(), 1..40), cut in any::<prop::sample::Index>(), at_once in 1..4_usize,
    ) {
        let facts = facts(&messages);
        let (first, rest) = facts.split_at(cut.index(facts.len()) + 1);
        let mut whole = State::listed();
        whole.follow(&facts);

        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path(), EVERY).unwrap();
        let mut writing = State::listed();
        let mut checkpointer = Checkpointer::new(checkpoints.clone(), 0, Instant::now()).copying(1);
        checkpointer.opened(second(0));
        writing.follow(first);
        // Facts arrive between the steps of the copy.
        let (mut rest, later) = (rest.chunks(at_once), Instant::now() + Duration::from_secs(3600));
        loop {
            checkpointer.step(&mut writing.evidence, &writing.rollouts, later);
            match rest.next() {
                Some(facts) => writing.follow(facts),
                None if checkpointer.is_copying() => std::thread::yield_now(),
                None => break,
            }
        }
        let pulses_alone = writing.evidence.ledger_seq() == 0 || !folder.path().join(FILE).exists();
        if !pulses_alone {
            let (mut restored, mark) = State::restored(&checkpoints);
            prop_assert!(!restored.rollouts.has_due(Instant::now()), "decisions are not known yet");
            let position = usize::try_from(mark.position).unwrap();
            restored.follow(&facts[position..]);
            let now = second(60);
            prop_assert_eq!(restored.seen(now), whole.seen(now));
        }
    }
}

fn some_facts() -> Vec<LedgerFact> {
    let of = |device| {
        [Message::Desired(device, Some(true)), Message::Heard(device, true), Message::Report(device, true)]
    };
    facts(&[of(0), of(1), of(2)].concat())
}

#[test]
fn a_checkpoint_that_does_not_fit_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = finished(&folder, &some_facts());
    let (path, aside) = (checkpoints.path(), checkpoints.path().with_extension("set-aside"));
    let whole = fs::read(&path).unwrap();
    assert_eq!(checkpoints.restore().unwrap().mark.position, 9);
    let header = String::from_utf8(whole.split(|byte| *byte == b'\n').next().unwrap().to_vec()).unwrap();
    let with_header = |header: String| {
        [header.into_bytes(), whole[whole.iter().position(|byte| *byte == b'\n').unwrap()..].to_vec()]
            .concat()
    };
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for bytes in [
        flipped,
        with_header(header.replace(&format!("\"format\":{FORMAT}"), "\"format\":0")),
        with_header(header.replace(&format!("\"records\":{RECORD_FORMAT}"), "\"records\":0")),
        with_header("{}".to_owned()),
        Vec::new(),
    ] {
        fs::write(&path, bytes).unwrap();
        assert!(checkpoints.restore().is_none());
        assert!(!path.exists() && aside.exists());
        fs::remove_file(&aside).unwrap();
    }
    assert!(checkpoints.restore().is_none() && !aside.exists(), "a missing file is no damage");
}

#[test]
fn a_checkpoint_that_another_task_has_written_is_not_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let facts = some_facts();
    let before = finished(&folder, &facts[..6]).restore().unwrap().mark();
    let checkpoints = finished(&folder, &facts);
    checkpoints.set_aside(before, "LEDGER is another one");
    let now = checkpoints.restore().unwrap().mark();
    assert_eq!((before.position, now.position), (6, 9));
    checkpoints.set_aside(now, "LEDGER is another one");
    assert!(checkpoints.restore().is_none());
    assert!(checkpoints.path().with_extension("set-aside").exists());
}

#[test]
fn a_restored_list_is_judged_only_if_it_was_copied_a_short_time_ago() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = finished(&folder, &some_facts());
    let copied_at = second(9);
    let after = |time: Duration| Some(copied_at.checked_add(time).unwrap());
    let late = LISTED_FOR + Duration::from_secs(30);
    for too_late in [None, after(late), Some(copied_at.checked_sub(late).unwrap())] {
        let (mut restored, _) = State::restored(&checkpoints);
        assert_eq!(restored.answered(too_late), (false, false), "{too_late:?}");
        assert_eq!(restored.answered(too_late), (false, false), "also with the next answer");
        restored.list();
        assert_eq!(restored.answered(too_late), (true, true), "it is listed again");
    }
    let (mut restored, _) = State::restored(&checkpoints);
    assert_eq!(restored.answered(after(LISTED_FOR / 2)), (true, true), "the list is young");
}

#[test]
fn a_copy_of_a_restored_list_is_no_younger_than_the_list() {
    let (folder, later) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let checkpoints = finished(&folder, &some_facts());
    let (mut restored, _) = State::restored(&checkpoints);
    // LEDGER is read to its end a long time later, and the publisher has not answered yet.
    let time = second(9).checked_add(LISTED_FOR * 2).unwrap();
    let end = LedgerEvent::End { last_seq: 9, at: time, asked_at: Instant::now() };
    restored.evidence.apply(end);
    let (mut restored, _) = State::restored(&written(&later, &mut restored));
    assert_eq!(restored.answered(Some(time)), (false, false));
}

#[test]
fn a_list_that_was_out_of_date_is_so_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::listed();
    state.follow(&some_facts());
    state.rollouts.outdate(&deployment());
    let (mut restored, _) = State::restored(&written(&folder, &mut state));
    let (is_known, _) = restored.answered(Some(second(10)));
    assert!(!is_known, "it is listed again");
}

#[test]
fn a_copy_that_is_given_up_has_ended_before_another_begins() {
    let (facts, later) = (some_facts(), Instant::now() + EVERY * 2);
    for steps in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(folder.path(), EVERY).unwrap();
        let mut state = State::listed();
        state.follow(&facts[..6]);
        let mut checkpointer = Checkpointer::new(checkpoints.clone(), 0, Instant::now()).copying(1);
        checkpointer.opened(second(0));
        for _ in 0..steps {
            checkpointer.step(&mut state.evidence, &state.rollouts, later);
        }
        if steps % 2 == 0 {
            checkpointer.restarted();
        }
        checkpointer.opened(second(0));
        assert!(!checkpointer.is_copying());
        // The thread of a copy holds the folder until it ends.
        assert_eq!(Arc::strong_count(&checkpoints.folder), 2, "after {steps} steps");
        checkpointer.step(&mut state.evidence, &state.rollouts, later + EVERY);
        state.follow(&facts[6..]);
        checkpointer.finish(&mut state.evidence, &state.rollouts);
        assert_eq!(Arc::strong_count(&checkpoints.folder), 1, "after {steps} steps");
        assert_eq!(checkpoints.restore().unwrap().mark.position, 9);
        assert!(!checkpoints.path().with_extension("new").exists());
    }
}

#[test]
fn a_planner_that_dies_at_any_byte_of_a_write_leaves_the_file_before() {
    let folder = tempfile::tempdir().unwrap();
    let facts = some_facts();
    let checkpoints = finished(&folder, &facts[..6]);
    let later = tempfile::tempdir().unwrap();
    let next = fs::read(finished(&later, &facts).path()).unwrap();
    for end in 0..=next.len() {
        fs::write(checkpoints.path().with_extension("new"), &next[..end]).unwrap();
        assert_eq!(checkpoints.restore().unwrap().mark.position, 6, "{end} bytes were written");
    }
    // A file that was cut after its name was changed, by a disk that lies about a sync.
    for end in 0..next.len() {
        fs::write(checkpoints.path(), &next[..end]).unwrap();
        assert!(checkpoints.restore().is_none(), "{end} bytes are left");
    }
}

#[test]
fn the_records_of_devices_have_the_format_of_the_rollups_snapshots() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rollup/records");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (names, prefix) = (names.collect::<Vec<_>>(), format!("snapshot-{RECORD_FORMAT}-"));
    assert!(
        names.iter().all(|name| name.starts_with(&prefix)),
        "raise RECORD_FORMAT with the format of {names:?}"
    );
}

#[test]
fn the_packed_form_of_a_record_is_that_of_the_golden_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read_to_string(folder.join(format!("records/packed-{FORMAT}.json"))).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(folder.join("../rollup/records")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let mut packer = RecordPacker::default();
    let packed = names.iter().map(|name| {
        let record: DeviceRecord = serde_json::from_slice(&fs::read(name).unwrap()).unwrap();
        serde_json::to_string(&packer.pack(record)).unwrap() + "\n"
    });
    assert_eq!(packed.collect::<String>(), golden, "raise FORMAT, and name the file after it");
}
