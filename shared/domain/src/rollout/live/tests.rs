//! A live rollout and the list of all its targets lead to the same judgement, after any sequence of facts, answers and times.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_contract::RequestedBy;
use muster_contract::fact::DeadlineKind;
use muster_contract::labels::Labels;
use muster_contract::rollout::{RolloutDecision, RolloutPhase, RolloutVerb, TargetsAnswer};
use muster_contract::status::TargetStatus;
use muster_contract::view::{Freshness, Standing};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::tests::line_of;
use super::super::{Lines, WaveState, progress};
use super::*;

const DEVICES: usize = 9;
const FILE: &str = "fleet/rollout.yaml";

fn policies() -> Vec<Value> {
    vec![
        json!({}),
        json!({ "waves": [{ "name": "a", "count": 2, "soak": "30s", "maxInFlight": 1 }, { "name": "b", "percent": "70%",
            "success": { "atLeast": "60%" }, "failure": { "atMost": "40%", "minimumSample": 3 } }], "retries": { "max": 2 } }),
        json!({ "waves": [{ "name": "a", "selector": { "ring": "one" }, "perMinute": 2, "order": "hash" },
            { "name": "b", "site": "s1", "offline": { "debt": { "after": "20s", "max": 2 } } }],
            "budget": { "groupBy": "ring", "maxUnavailable": 2 }, "deadlines": { "wave": "3m" } }),
        json!({ "waves": [{ "name": "a", "percent": "50%", "offline": { "fail": { "after": "40s" } },
            "success": { "atLeast": "50%", "evidence": "complete" }, "approval": "after" }], "onFailure": "rollback" }),
        json!({ "waves": [{ "name": "a", "percent": "80%", "success": { "atLeast": "50%" }, "failure": { "atMost": 1 } }],
            "deadlines": { "device": "40s", "neverStarted": "70s", "atEnd": "rollback" }, "retries": { "max": 2 } }),
        json!({ "waves": [{ "name": "a", "site": "nowhere" }, { "name": "b", "count": 2 }] }),
    ]
}

/// A target from the publisher and its line from the query service.
#[derive(Clone)]
struct Whole {
    target: RolloutTarget,
    line: Option<TargetStatus>,
}

/// One change of the world.
#[derive(Debug, Clone)]
enum Change {
    /// A document gives a device the content, or another one.
    Document {
        device: usize,
        is_wanted: bool,
    },
    /// The publisher has answered, and the document comes later.
    Answer {
        device: usize,
    },
    Report {
        device: usize,
        standing: Standing,
        known: bool,
    },
    Heard {
        device: usize,
        freshness: Freshness,
    },
    /// A deadline of the hub has passed.
    Missed {
        device: usize,
        deadline: DeadlineKind,
    },
    Decide(RolloutVerb, Option<&'static str>),
    /// A rollout that it comes after has not succeeded, or all have.
    Waits(bool),
    Later(i64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let device = || 0..DEVICES;
    let standing = prop::sample::select(vec![
        Standing::Installed,
        Standing::Failed,
        Standing::Installing,
        Standing::Pending,
    ]);
    let freshness = prop::sample::select(vec![Freshness::Fresh, Freshness::Stale, Freshness::Never]);
    let decision = prop::sample::select(vec![
        (RolloutVerb::Begin, Some("a")),
        (RolloutVerb::Begin, Some("b")),
        (RolloutVerb::Ready, Some("a")),
        (RolloutVerb::Approve, Some("a")),
        (RolloutVerb::Pause, None),
        (RolloutVerb::Resume, None),
        (RolloutVerb::Abort, None),
        (RolloutVerb::Rollback, None),
        (RolloutVerb::Retry, None),
    ]);
    let one = prop_oneof![
        4 => (device(), any::<bool>()).prop_map(|(device, is_wanted)| Change::Document { device, is_wanted }),
        2 => device().prop_map(|device| Change::Answer { device }),
        5 => (device(), standing, prop::bool::weighted(0.8))
            .prop_map(|(device, standing, known)| Change::Report { device, standing, known }),
        4 => (device(), freshness).prop_map(|(device, freshness)| Change::Heard { device, freshness }),
        2 => (device(), prop::sample::select(vec![DeadlineKind::Stuck, DeadlineKind::NeverStarted]))
            .prop_map(|(device, deadline)| Change::Missed { device, deadline }),
        3 => decision.prop_map(|(verb, wave)| Change::Decide(verb, wave)),
        1 => any::<bool>().prop_map(Change::Waits),
        4 => (0_i64..50).prop_map(Change::Later),
    ];
    prop::collection::vec(one, 1..60)
}

/// The world, as a whole list and as a live rollout.
struct World {
    whole: Vec<Whole>,
    record: RolloutRecord,
    waits_for: Vec<WaitsFor>,
    policy: Rollout,
    live: LiveRollout,
    now: Timestamp,
    generation: u64,
}

fn digest(content: &str) -> Digest {
    Digest::of_bytes(content.as_bytes())
}

impl World {
    fn new(policy: &Value) -> Self {
        let mut document = json!({ "apiVersion": "muster/v1", "kind": "Rollout" });
        document.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
        let policy: Rollout = serde_json::from_value(document).unwrap();
        let target = |at: usize| -> RolloutTarget {
            let ring = ["one", "two"][at % 2];
            let target = json!({ "site": format!("s{}", at / 4), "device": format!("d{at}"), "labels": { "ring": ring }, "rollout": FILE,
                "wanted": digest("v2"), "published": digest("v1"), "targetGeneration": 1 });
            serde_json::from_value(target).unwrap()
        };
        let whole: Vec<_> = (0..DEVICES).map(|at| Whole { target: target(at), line: None }).collect();
        let listed = |one: &Whole| LiveTarget {
            device: Arc::new(TargetDevice { key: one.target.key.clone(), labels: one.target.labels.clone() }),
            content: Content { is_wanted: false, generation: Generation::new(1), at: None },
            is_refused: false,
        };
        let id = RolloutId { deployment: "web".parse().unwrap(), digest: digest("v2") };
        let targets = whole.iter().map(listed).collect();
        let live = LiveRollout::new(id, FILE.to_owned(), "c1".to_owned(), policy.clone(), targets);
        let record = RolloutRecord::new(digest("v2"), FILE.to_owned());
        let waits_for = Vec::new();
        Self { whole, record, waits_for, policy, live, now: Timestamp::UNIX_EPOCH, generation: 1 }
    }

    fn apply(&mut self, change: &Change) {
        match *change {
            Change::Document { device, is_wanted } => self.document(device, is_wanted),
            Change::Answer { device } => {
                let target = &mut self.whole[device].target;
                if target.published != target.wanted {
                    (target.published, target.published_at) = (target.wanted, Some(self.now));
                    // The line is about the generation before.
                    target.target_generation = None;
                    self.live.set_answer(device, true, self.now);
                }
            }
            Change::Report { device, standing, known } => {
                if let Some(line) = &mut self.whole[device].line {
                    (line.standing, line.known, line.changed_at) = (standing, known, Some(self.now));
                }
            }
            Change::Heard { device, freshness } => {
                let now = self.now;
                if let Some(line) = &mut self.whole[device].line {
                    line.freshness = freshness;
                    line.last_heard_at = (freshness != Freshness::Never).then_some(now);
                }
            }
            Change::Missed { device, deadline } => {
                let now = self.now;
                if let Some(line) = &mut self.whole[device].line {
                    let fact = json!({ "apiVersion": "muster/v1", "kind": "DeadlineFact", "generation": 1, "deadline": deadline,
                        "since": now, "limitSeconds": 1 });
                    line.deadline = Some(serde_json::from_value(fact).unwrap());
                }
            }
            Change::Decide(verb, wave) => self.decide(verb, wave),
            Change::Waits(waits) => {
                let one = || WaitsFor { deployment: "green".parse().unwrap(), phase: RolloutPhase::Paused };
                self.waits_for = waits.then(one).into_iter().collect();
                self.live.set_waits_for(self.waits_for.clone());
            }
            Change::Later(seconds) => {
                self.now = self.now.checked_add(Duration::from_secs(seconds.unsigned_abs())).unwrap();
            }
        }
        if let Change::Document { device, .. }
        | Change::Answer { device }
        | Change::Report { device, .. }
        | Change::Heard { device, .. }
        | Change::Missed { device, .. } = *change
        {
            self.live.observe(device, self.whole[device].line.as_ref().map(Line::from).as_ref());
        }
    }

    /// A device gets a document, and LEDGER copies it.
    fn document(&mut self, device: usize, is_wanted: bool) {
        self.generation += 1;
        let generation = Generation::new(self.generation).unwrap();
        let Whole { target, line } = &mut self.whole[device];
        let content = if is_wanted { digest("v2") } else { digest("v1") };
        (target.published, target.published_at) = (Some(content), Some(self.now));
        target.target_generation = Some(generation);
        let line = line.get_or_insert_with(|| line_of(&target.key, &json!({})));
        (line.target_generation, line.standing, line.changed_at) =
            (Some(generation), Standing::Waiting, Some(self.now));
        line.deadline = None;
        let content = Content { is_wanted, generation: Some(generation), at: Some(self.now) };
        self.live.set_content(device, content, generation);
    }

    fn decide(&mut self, verb: RolloutVerb, wave: Option<&str>) {
        let requested_by = Some(RequestedBy::new("U1", "ann", None));
        let wave = wave.map(|wave| wave.parse().unwrap());
        let decision = RolloutDecision { wave, requested_by, ..RolloutDecision::new(verb, self.now) };
        // A decision that is not possible changes nothing.
        let _ = self.record.decide(decision, &self.policy.approvals);
        self.live.set_record(Some(self.record.clone()));
    }

    fn whole(&self) -> RolloutProgress {
        let answer = TargetsAnswer {
            revision: "c1".to_owned(),
            rollouts: [(FILE.to_owned(), self.policy.clone())].into(),
            targets: self.whole.iter().map(|one| one.target.clone()).collect(),
            decisions: vec![self.record.clone()],
            waits_for: [(FILE.to_owned(), self.waits_for.clone())].into(),
            next: None,
        };
        let lines = self.whole.iter().filter_map(|one| Some((one.target.key.clone(), one.line.clone()?)));
        let lines = Lines { ledger_seq: 7, of_devices: lines.collect(), ..Lines::default() };
        progress(&"web".parse().unwrap(), answer, &lines, self.now).remove(0)
    }
}

/// A state without the members of its waves, which a live rollout does not list.
fn counts(state: &RolloutState) -> RolloutState {
    let wave = |wave: &WaveState| WaveState { members: Vec::new(), ..wave.clone() };
    RolloutState { waves: state.waves.iter().map(wave).collect(), step: state.step.clone() }
}

proptest! {
    #[test]
    fn a_live_rollout_is_judged_as_its_whole_list_is(policy in 0..5_usize, changes in changes()) {
        let mut world = World::new(&policies()[policy]);
        for change in changes {
            world.apply(&change);
            let whole = world.whole();
            let lines: Vec<_> = world.whole.iter().map(|one| one.line.clone()).collect();
            let keys: Vec<_> = world.whole.iter().map(|one| one.target.key.clone()).collect();
            let line = |key: &DeviceKey| lines[keys.iter().position(|one| one == key)?].as_ref().map(Line::from);
            let state = world.live.judge(&line, world.now).clone();
            prop_assert_eq!(counts(&state), counts(&whole.state), "after {:?}", change);
            let live = world.live.progress(&line, 7);
            // Only a whole list names the devices that a rollback has not reached.
            prop_assert_eq!(live.why(), RolloutProgress { unreached: Vec::new(), ..whole.clone() }.why());
            for at in 0..state.waves.len() {
                prop_assert_eq!(live.evidence(at), whole.evidence(at));
                prop_assert_eq!(live.begin(at), whole.begin(at));
            }
        }
    }
}

/// A rollout in one wave of [`RELEASE_DEVICES_MAX`] targets and five more.
fn large() -> LiveRollout {
    let wave = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": [{ "name": "all", "percent": "100%" }] });
    let policy: Rollout = serde_json::from_value(wave).unwrap();
    let target = |at: usize| LiveTarget {
        device: Arc::new(TargetDevice { key: format!("s/d{at:04}").parse().unwrap(), labels: Labels::new() }),
        content: Content { is_wanted: false, generation: Generation::new(1), at: None },
        is_refused: false,
    };
    let id = RolloutId { deployment: "web".parse().unwrap(), digest: digest("v2") };
    let targets = (0..RELEASE_DEVICES_MAX + 5).map(target).collect();
    LiveRollout::new(id, FILE.to_owned(), "c1".to_owned(), policy, targets)
}

/// Answers that targets have the content, and judges the rollout.
fn answer(live: &mut LiveRollout, targets: std::ops::Range<usize>) {
    for at in targets {
        live.set_answer(at, true, Timestamp::UNIX_EPOCH);
        live.observe(at, None);
    }
    live.judge(&|_| None, Timestamp::UNIX_EPOCH);
}

#[test]
fn a_large_wave_names_as_many_targets_as_one_release_and_counts_all() {
    let mut live = large();
    live.judge(&|_| None, Timestamp::UNIX_EPOCH);
    let progress = live.progress(&|_| None, 7);
    assert_eq!((progress.targets.len(), progress.unnamed), (RELEASE_DEVICES_MAX, 5));
    assert_eq!(progress.why(), "next: release to 1005 devices of wave all");
    answer(&mut live, 0..RELEASE_DEVICES_MAX);
    let progress = live.progress(&|_| None, 8);
    assert_eq!((progress.targets.len(), progress.unnamed), (5, 0), "the others are next");
}

#[test]
fn a_large_rollback_names_refused_targets_last() {
    let mut live = large();
    let mut record = RolloutRecord::new(digest("v2"), FILE.to_owned());
    let back = RolloutDecision::new(RolloutVerb::Rollback, Timestamp::UNIX_EPOCH);
    record.decide(back, &live.policy().approvals).unwrap();
    live.set_record(Some(record));
    (0..RELEASE_DEVICES_MAX).for_each(|at| live.set_refused_by_answer(at, true));
    answer(&mut live, 0..RELEASE_DEVICES_MAX + 5);
    let named = live.progress(&|_| None, 9).targets;
    let last = live.key(RELEASE_DEVICES_MAX + 4).unwrap();
    assert!(named.iter().any(|target| target.key == *last), "it does not wait for refused ones");
}

#[test]
fn a_device_that_has_begun_keeps_an_aborted_content_if_it_reports_pending() {
    let mut world = World::new(&policies()[0]);
    for device in 0..DEVICES {
        world.apply(&Change::Document { device, is_wanted: true });
    }
    world.apply(&Change::Decide(RolloutVerb::Abort, None));
    let taken_back = |world: &mut World| match &world.live.judge(&|_| None, world.now).step {
        Step::RollBack { targets } => targets.iter().copied().collect::<BTreeSet<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(taken_back(&mut world), (0..DEVICES).collect());
    for standing in [Standing::Installing, Standing::Pending, Standing::Installed] {
        world.apply(&Change::Report { device: 0, standing, known: true });
        assert_eq!(taken_back(&mut world), (1..DEVICES).collect(), "{standing:?}");
    }
}

#[test]
fn a_rollout_wakes_at_the_end_of_its_next_soak_time_or_deadline() {
    let mut world = World::new(&policies()[1]);
    for device in 0..DEVICES {
        world.document(device, true);
        world.apply(&Change::Report { device, standing: Standing::Installed, known: true });
    }
    world.live.judge(&|_| None, world.now);
    let wakes_at = world.live.wakes_at().unwrap();
    assert_eq!(wakes_at.duration_since(world.now).as_secs(), 30);
    world.apply(&Change::Later(30));
    world.live.judge(&|_| None, world.now);
    assert_eq!(world.live.wakes_at(), None, "nothing more becomes of it by time alone");
}

#[test]
fn a_clock_set_back_again_and_again_leaves_one_soak_time_a_target() {
    let mut world = World::new(&policies()[1]);
    for device in 0..DEVICES {
        world.document(device, true);
        world.apply(&Change::Report { device, standing: Standing::Installed, known: true });
    }
    world.live.judge(&|_| None, world.now);
    let before = world.live.soaks.len();
    let earlier = |seconds: i64| world.now - Duration::from_secs(seconds as u64);
    for seconds in 1..50 {
        world.live.judge(&|_| None, earlier(seconds));
        assert!(world.live.soaks.len() <= before, "each row has one end at most");
    }
}
