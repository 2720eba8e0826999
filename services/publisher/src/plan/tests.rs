//! The planner against random histories of commits and requests, each stored as a server with compare-and-set would.

use std::collections::BTreeMap;

use muster_contract::desired::SourceKind;
use muster_contract::limits::REQUESTER_NAME_CHARS_MAX;
use muster_contract::{DeviceKey, Document as _, RequestedBy, decode};
use proptest::prelude::*;

use super::*;
use crate::compose::{self, Git};
use crate::content::Interner;
use crate::content::tests::{content, request};
use crate::source::Fleet;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const DEVICES: [&str; 3] = ["a/one", "a/two", "b/three"];
const IDS: [&str; 3] = ["log", "web", "db"];

#[derive(Debug, Clone)]
enum Act {
    /// A commit: for each device, whether it is there and the command of each id.
    Commit(Vec<Option<Vec<Option<u8>>>>),
    Apply(usize, usize, u8),
    Remove(usize, Option<usize>),
    Retire(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let device = prop::option::weighted(0.8, prop::collection::vec(prop::option::of(0..3u8), IDS.len()));
    let act = prop_oneof![
        4 => prop::collection::vec(device, DEVICES.len()).prop_map(Act::Commit),
        2 => (0..DEVICES.len(), 0..IDS.len(), 0..3u8).prop_map(|(key, id, command)| Act::Apply(key, id, command)),
        2 => (0..DEVICES.len(), prop::option::of(0..IDS.len())).prop_map(|(key, id)| Act::Remove(key, id)),
        1 => (0..DEVICES.len()).prop_map(Act::Retire),
    ];
    prop::collection::vec(act, 1..40)
}

fn key(at: usize) -> DeviceKey {
    DEVICES[at].parse().unwrap()
}

fn fleet(devices: &[Option<Vec<Option<u8>>>], revision: usize) -> Fleet {
    let contents = |commands: &Vec<Option<u8>>| {
        let said = commands.iter().zip(IDS).filter_map(|(command, id)| Some((id, (*command)?)));
        let mut contents: Vec<_> = said.map(|(id, command)| content(id, &command.to_string())).collect();
        contents.sort_by(|one, other| one.id().cmp(other.id()));
        contents
    };
    let present =
        devices.iter().enumerate().filter_map(|(at, device)| Some((key(at), contents(device.as_ref()?))));
    Fleet { revision: format!("commit-{revision}"), devices: present.collect(), ..Fleet::default() }
}

/// A server that holds the last document of each device, as bytes.
#[derive(Default)]
struct Server {
    sequence: u64,
    documents: BTreeMap<DeviceKey, (u64, Vec<u8>)>,
}

impl Server {
    fn store(&mut self, key: &DeviceKey, draft: &Draft) -> u64 {
        let last = self.documents.get(key).map_or(0, |(sequence, _)| *sequence);
        assert_eq!(draft.expected_sequence, last, "planned on something else than what is there");
        let state = draft.document(NOW, None);
        state.check().unwrap();
        self.sequence += 1;
        self.documents.insert(key.clone(), (self.sequence, decode::to_bytes(&state)));
        self.sequence
    }

    /// The published states that a publisher reads at its start.
    fn recover(&self) -> BTreeMap<DeviceKey, PublishedState> {
        let mut interner = Interner::default();
        let mut read = |(sequence, bytes): &(u64, Vec<u8>)| {
            let (held, refusal) = PublishedState::read(*sequence, bytes, &mut interner);
            assert_eq!(refusal, None);
            held
        };
        self.documents.iter().map(|(key, document)| (key.clone(), read(document))).collect()
    }
}

/// A publisher and its server.
#[derive(Default)]
struct World {
    server: Server,
    held: BTreeMap<DeviceKey, PublishedState>,
    fleet: Option<Fleet>,
}

impl World {
    fn act(&mut self, at: usize, act: &Act) {
        let request = request(&format!("request-{at}"));
        let (device, wanted) = match act {
            Act::Commit(devices) => return self.commit(fleet(devices, at)),
            Act::Apply(device, id, command) => {
                let new = Content::clone(&content(IDS[*id], &format!("api-{command}")));
                (*device, compose::apply(&key(*device), self.git(), &self.one(*device), &[new], &request))
            }
            Act::Remove(device, id) => {
                let id = id.map(|id| IDS[id].parse().unwrap());
                (
                    *device,
                    compose::remove(&key(*device), self.git(), &self.one(*device), id.as_ref(), &request),
                )
            }
            Act::Retire(device) => {
                (*device, compose::retire(&key(*device), self.git(), &self.one(*device), true, &request))
            }
        };
        if let Ok(wanted) = wanted {
            self.publish(&key(device), &wanted);
        }
    }

    fn git(&self) -> Git<'_> {
        self.fleet.as_ref().map_or(Git::Unknown, Git::Known)
    }

    fn one(&self, device: usize) -> PublishedState {
        self.held.get(&key(device)).cloned().unwrap_or_default()
    }

    fn commit(&mut self, fleet: Fleet) {
        for key in compose::changes(&fleet, &self.held).unwrap().due {
            let held = self.held.get(&key).cloned().unwrap_or_default();
            let wanted = compose::commit(&key, &fleet, &held).unwrap();
            assert!(self.publish(&key, &wanted), "{key} was said to change and did not");
        }
        assert!(compose::changes(&fleet, &self.held).unwrap().due.is_empty(), "a second plan is not empty");
        self.fleet = Some(fleet);
    }

    fn publish(&mut self, key: &DeviceKey, wanted: &DesiredDevice) -> bool {
        let before = self.held.get(key).cloned().unwrap_or_default();
        let Some(draft) = draft(&before, wanted) else { return false };
        rises(&before, &draft);
        let sequence = self.server.store(key, &draft);
        // The test's documents are of this time.
        let after = PublishedState { issued_at: Some(NOW), ..draft.stored(sequence) };
        assert!(plan_again(&after, wanted).is_none(), "the same again is not nothing");
        self.held.insert(key.clone(), after);
        true
    }
}

fn plan_again(held: &PublishedState, wanted: &DesiredDevice) -> Option<Draft> {
    draft(held, wanted)
}

/// The generation rises by one; a target generation stays exactly where its digest does.
fn rises(before: &PublishedState, draft: &Draft) {
    assert_eq!(draft.generation.get(), before.generation.map_or(0, Generation::get) + 1);
    let old = before.document.iter().flat_map(|document| &document.entries);
    let old: HashMap<_, _> = old.map(|entry| (entry.content.id().clone(), entry)).collect();
    for entry in &draft.document.entries {
        match old.get(entry.content.id()).filter(|old| old.content.digest() == entry.content.digest()) {
            Some(old) => assert_eq!(entry.target, old.target, "an unchanged deployment got a new target"),
            None => assert_eq!(entry.target, draft.generation, "a changed deployment kept its target"),
        }
    }
}

proptest! {
    #[test]
    fn any_history_keeps_the_rules_and_survives_a_restart_at_any_point(acts in acts()) {
        let mut world = World::default();
        for (at, act) in acts.iter().enumerate() {
            world.act(at, act);
            prop_assert_eq!(&world.server.recover(), &world.held);
        }
    }
}

fn wanted(contents: &[Arc<Content>]) -> DesiredDevice {
    let source = Source::new(SourceKind::Git, "c".to_owned());
    DesiredDevice { retired: false, source, labels: Arc::default(), contents: contents.to_vec() }
}

fn step(held: &PublishedState, contents: &[Arc<Content>]) -> PublishedState {
    draft(held, &wanted(contents)).unwrap().stored(held.sequence + 1)
}

#[test]
fn going_back_is_a_new_generation_with_a_new_target() {
    let (one, two) = (content("web", "one"), content("web", "two"));
    let first = step(&PublishedState::default(), std::slice::from_ref(&one));
    let second = step(&first, &[two]);
    let back = step(&second, &[one]);
    assert_eq!(back.generation, Generation::new(3));
    assert_eq!(back.document.unwrap().entries[0].target.get(), 3);
}

#[test]
fn another_commit_with_the_same_content_changes_nothing() {
    let first = step(&PublishedState::default(), &[content("web", "one")]);
    let mut later = wanted(&[content("web", "one")]);
    later.source.revision = "d".to_owned();
    assert_eq!(draft(&first, &later), None);
}

#[test]
fn a_device_without_deployments_has_a_document_that_says_so() {
    let empty = draft(&PublishedState::default(), &wanted(&[])).unwrap();
    assert_eq!((empty.generation.get(), empty.expected_sequence), (1, 0));
    assert!(empty.document(NOW, None).deployments.is_empty());
    assert_eq!(draft(&empty.stored(1), &wanted(&[])), None);
}

#[test]
fn an_unreadable_document_is_replaced_above_its_generation() {
    let unreadable =
        PublishedState { sequence: 9, generation: Generation::new(7), ..PublishedState::default() };
    let next = draft(&unreadable, &wanted(&[])).unwrap();
    assert_eq!((next.generation.get(), next.expected_sequence), (8, 9));
}

#[test]
fn limits_are_checked_before_anything_is_published() {
    let many: Vec<_> = (0..=DEPLOYMENTS_PER_DEVICE_MAX).map(|at| content(&format!("d{at}"), "run")).collect();
    assert_eq!(wanted(&many).check(), Err(LimitExceeded::Deployments(129)));
    assert_eq!(wanted(&many[1..]).check(), Ok(()));
    let long = content("web", &"x".repeat(MESSAGE_BYTES_MAX));
    assert!(matches!(wanted(&[long]).check(), Err(LimitExceeded::Bytes(_))));
}

#[test]
fn a_document_within_the_limit_fits_into_a_message() {
    let mut contents = vec![content("web", "run")];
    while wanted(&contents).check().is_ok() && contents.len() < DEPLOYMENTS_PER_DEVICE_MAX {
        contents.push(content(&format!("d{}", contents.len()), &"y".repeat(2_000)));
    }
    contents.pop();
    let held = PublishedState { generation: Generation::new(u64::MAX - 1), ..PublishedState::default() };
    let mut wanted = wanted(&contents);
    wanted.source.revision = "c".repeat(64);
    let name = "\"".repeat(REQUESTER_NAME_CHARS_MAX);
    wanted.source.requested_by = Some(RequestedBy::new(&"U".repeat(56), &name, Some("subscriber")));
    let state = draft(&held, &wanted).unwrap().document(Timestamp::MAX, None);
    let bytes = decode::to_bytes(&state).len();
    assert!(bytes <= MESSAGE_BYTES_MAX && bytes > MESSAGE_BYTES_MAX / 2, "{bytes}");
}
