//! Tests the intake against a model of UPLINK and LEDGER that fail in every way the real streams can: messages come again,
//! answers get lost, publications arrive or not whatever was answered, and the process dies.
//!
//! Invariants: no number is in LEDGER twice, no acknowledged report is lost, no receipt covers a number that is
//! not held, no number counts as quarantined whose payload is gone, the account adds up, and an intake restored from LEDGER
//! equals the one before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::quota::document;
use super::*;

mod stored;

const DEVICES: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    device: u8,
    epoch: u64,
    seq: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// UPLINK delivers so many messages.
    Deliver(usize),
    /// LEDGER stores and answers so many publications.
    Answer(usize),
    /// QUARANTINE answers for so many rejected reports, as far as it has room.
    Store(usize),
    /// QUARANTINE does not answer for one; perhaps it is stored.
    Unavailable { stored: bool },
    /// A person drops a rejected report.
    Drop,
    /// The oldest publication fails; those in flight that the mask selects arrive nonetheless, before LEDGER is read:
    /// later ones are refused, because the partition was taken again.
    Fail { arrived: u32 },
    /// The same, and the process dies.
    Crash { arrived: u32 },
    /// Time passes.
    Pass(i64),
    /// A device sends a heartbeat.
    LastHeartbeat(u8),
    /// A device gets a document with its reported deployments and one more.
    Desire(u8),
    /// Receipts are taken and their coverage is checked.
    ReceiptState,
}

impl Message {
    fn key(self) -> DeviceKey {
        device_key(self.device)
    }

    fn is_poison(self) -> bool {
        self.seq % 7 == 3
    }

    /// Every fifth report declares the two before it as coalesced.
    fn folded(self) -> Vec<(u64, u64)> {
        if self.seq.is_multiple_of(5) { vec![(self.seq - 2, self.seq - 1)] } else { vec![] }
    }

    fn payload(self) -> Vec<u8> {
        let state = if self.is_poison() { "unheard-of" } else { "installing" };
        let report = json!({
            "apiVersion": "muster/v1", "kind": "StatusReport",
            "epoch": self.epoch, "seq": self.seq, "head": self.seq + 1,
            "observedAt": "2026-01-01T00:00:00Z", "deployment": format!("d{}", self.seq % 2), "generation": 1,
            "digest": format!("sha256:{}", "0".repeat(64)), "status": {"state": state},
            "components": [{"name": "c", "state": "installing"}],
            "current": false, "coalesced": self.folded(),
        });
        report.to_string().into_bytes()
    }
}

fn device_key(device: u8) -> DeviceKey {
    format!("plant/d{device}").parse().unwrap()
}

/// A publication as LEDGER keeps it.
struct StoredFact {
    subject: LedgerSubject,
    fact: Fact,
}

impl StoredFact {
    fn of(publication: Publication) -> Self {
        let fact = parsed(&publication);
        Self { subject: publication.subject, fact }
    }
}

struct World {
    uplink: Vec<Message>,
    acked: usize,
    delivered: usize,
    intake: IntakeState,
    wire: VecDeque<StoredFact>,
    ledger: Vec<StoredFact>,
    /// Reports in flight to QUARANTINE.
    storing: VecDeque<Rejection>,
    /// The reports in QUARANTINE, by message id.
    quarantine: BTreeMap<String, (DeviceKey, RejectedReport)>,
    /// Reports of one device that it has room for.
    room: usize,
    /// When UPLINK stored each message.
    stored: BTreeMap<usize, Timestamp>,
    now: Timestamp,
    /// The newest document's.
    generation: u64,
}

impl World {
    fn new(uplink: Vec<Message>) -> Self {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        Self {
            uplink,
            acked: 0,
            delivered: 0,
            intake: IntakeState::new(Rules::default(), now),
            wire: VecDeque::new(),
            ledger: Vec::new(),
            storing: VecDeque::new(),
            quarantine: BTreeMap::new(),
            room: usize::MAX,
            stored: BTreeMap::new(),
            now,
            generation: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Deliver(count) => (0..count).for_each(|_| self.deliver()),
            Step::Answer(count) => (0..count).for_each(|_| self.answer()),
            Step::Store(count) => (0..count).for_each(|_| self.store()),
            Step::Unavailable { stored } => self.fail_to_store(stored),
            Step::Drop => self.drop_one(),
            Step::Fail { arrived } => {
                let from = self.ledger.len();
                self.lose(arrived);
                self.intake.rewind();
                self.read_ledger(from);
                self.intake.resume_receiving(self.now);
            }
            Step::Crash { arrived } => {
                self.lose(arrived);
                self.intake = IntakeState::new(Rules::default(), self.now);
                self.read_ledger(0);
            }
            Step::Pass(seconds) => {
                self.now = Timestamp::from_second(self.now.as_second() + seconds).unwrap();
                let caught_up = self.delivered == self.uplink.len();
                self.intake
                    .tick(self.now, Watermarks::all(if caught_up { self.now } else { Timestamp::MIN }));
            }
            Step::LastHeartbeat(device) => self.beat(device),
            Step::Desire(device) => self.apply_desired(device),
            Step::ReceiptState => self.check_receipts(),
        }
        self.send();
    }

    /// Puts every publication of the intake in flight.
    fn send(&mut self) {
        while let Some(publication) = self.intake.next_publication() {
            self.wire.push_back(StoredFact::of(publication));
        }
        while let Some(rejection) = self.intake.next_rejection() {
            self.storing.push_back(rejection);
        }
    }

    fn deliver(&mut self) {
        let Some(message) = self.uplink.get(self.delivered).copied() else { return };
        self.delivered += 1;
        let payload = message.payload();
        let key = message.key();
        let stored_at = *self.stored.entry(self.delivered).or_insert(self.now);
        self.intake.apply_report(IncomingReport {
            origin: origin(&format!("muster.report.0.{}.{}", key.site, key.device)).unwrap(),
            parsed: Report::parse(&payload),
            payload: &payload,
            position: self.delivered as u64,
            stored_at,
            now: self.now,
        });
        self.send();
        self.acknowledge_settled();
    }

    fn answer(&mut self) {
        let Some(publication) = self.wire.pop_front() else { return };
        self.ledger.push(publication);
        self.intake.confirm();
        self.remove_dropped();
        self.acknowledge_settled();
    }

    fn acknowledge_settled(&mut self) {
        self.acked += self.intake.drain_settled();
        assert!(self.acked <= self.delivered);
    }

    fn check_what_was_acknowledged_is_held(&self) {
        let held = self.held();
        for message in &self.uplink[..self.acked] {
            // If QUARANTINE had no room, the device keeps the report: no receipt covers it.
            let is_held = held.contains(message) || (message.is_poison() && self.room != usize::MAX);
            assert!(is_held, "{message:?} was acknowledged and is not held");
        }
    }

    /// Decides by the bits of the mask which facts in flight arrive.
    fn lose(&mut self, arrived: u32) {
        for (at, publication) in std::mem::take(&mut self.wire).into_iter().enumerate() {
            if arrived & 1u32.checked_shl(at as u32).unwrap_or(0) != 0 {
                self.ledger.push(publication);
            }
        }
        for (at, rejection) in std::mem::take(&mut self.storing).into_iter().enumerate() {
            if arrived & 1u32.checked_shl(at as u32).unwrap_or(0) != 0 {
                let _ = self.put_into_quarantine(&rejection);
            }
        }
        self.remove_dropped();
        self.delivered = self.acked;
    }

    fn read_ledger(&mut self, from: usize) {
        self.ledger[from..]
            .iter()
            .for_each(|stored| self.intake.restore(&stored.subject, &stored.fact, self.now));
    }

    fn apply_desired(&mut self, device: u8) {
        self.generation += 1;
        let ids = ["d0".to_owned(), "d1".to_owned(), format!("g{}", self.generation)];
        let (key, document) = (device_key(device), document(self.generation, &ids));
        self.intake.apply_desired(&key, &document, self.now);
        self.ledger.push(StoredFact { subject: LedgerSubject::Desired(key), fact: Fact::Desired(document) });
    }

    fn beat(&mut self, device: u8) {
        let newest = self.uplink.iter().filter(|message| message.device == device).max();
        let Some(message) = newest else { return };
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": message.epoch, "head": message.seq + 1,
            "unsent": 0, "generation": 0, "agentVersion": "1",
        });
        let beat = serde_json::from_value(beat).unwrap();
        self.intake.apply_heartbeat(&message.key(), &beat, self.now, self.now);
    }

    /// Every number in LEDGER: as a fact, coalesced, or in quarantine (by number, or by its bytes).
    fn held(&self) -> BTreeSet<Message> {
        let mut held = BTreeSet::new();
        for stored in &self.ledger {
            let Some(key) = stored.subject.device() else { continue };
            let device = key.device.as_str()[1..].parse().unwrap();
            let mut hold = |epoch: Epoch, seq: u64| {
                held.insert(Message { device, epoch: epoch.get(), seq });
            };
            match &stored.fact {
                Fact::Status(fact) => {
                    hold(fact.epoch, fact.seq.get());
                    let folded = fact.coalesced.iter().flat_map(|(from, to)| from..=to);
                    folded.for_each(|seq| hold(fact.epoch, seq));
                }
                Fact::Quarantine(fact) => {
                    if let Some((epoch, seqs)) = fact.numbers() {
                        seqs.iter().flat_map(|(from, to)| from..=to).for_each(|seq| hold(epoch, seq));
                    }
                }
                _ => {}
            }
        }
        held
    }

    fn check_receipts(&mut self) {
        let held = self.held();
        for (key, receipt) in self.intake.drain_due_receipts(self.now, 100) {
            let device = key.device.as_str()[1..].parse().unwrap();
            let epoch = receipt.epoch.get();
            for seq in (1..=receipt.through).filter(|seq| receipt.covers(*seq)) {
                let number = Message { device, epoch, seq };
                assert!(held.contains(&number), "a receipt covers {number:?}, which is not held");
            }
        }
    }

    fn settle_down(&mut self) {
        for _ in 0..3 {
            self.step(&Step::Deliver(usize::from(u8::MAX)));
            self.step(&Step::Store(usize::from(u8::MAX)));
            self.step(&Step::Answer(usize::from(u8::MAX)));
            self.step(&Step::Pass(1_000));
        }
        self.step(&Step::Answer(usize::from(u8::MAX)));
    }

    fn check_no_number_is_there_twice(&self) {
        let mut seen: BTreeMap<(String, Epoch, Seq), usize> = BTreeMap::new();
        for stored in &self.ledger {
            if let Fact::Status(fact) = &stored.fact {
                let key = stored.subject.device().unwrap().to_string();
                *seen.entry((key, fact.epoch, fact.seq)).or_default() += usize::from(!fact.reasserted);
            }
        }
        assert!(seen.values().all(|count| *count <= 1), "{seen:?}");
    }

    fn check_no_poison_is_there_twice(&self) {
        let mut seen = BTreeSet::new();
        for stored in &self.ledger {
            // Beyond a few payloads a message is recognised by its number only. A batch that arrives after its messages
            // came again repeats the same numbers, which count once.
            if let Fact::Quarantine(fact) = &stored.fact
                && fact.count_for_device <= REJECTED_PAYLOADS_KEPT as u64
                && fact.others == 0
            {
                assert!(seen.insert((&fact.subject, &fact.payload_base64)), "{fact:?} is there twice");
            }
        }
    }

    fn check_accounts_add_up(&self) {
        for device in &self.intake.devices {
            let head = device.confirmed().account.head();
            let account = device.confirmed().account.at_head(head);
            let parts = account.received + account.coalesced + account.quarantined;
            assert_eq!(parts + account.missing.count(), head, "{:?}", device.key);
        }
    }

    /// An intake that is restored from a snapshot and from some facts again equals the one that wrote the snapshot.
    fn check_snapshot_is_the_same(&self, overlap: usize) {
        let mut other = IntakeState::new(Rules::default(), self.now);
        other.restore_snapshot(&self.intake.snapshot()).unwrap();
        for again in [0, overlap.min(self.ledger.len())] {
            let tail = &self.ledger[self.ledger.len() - again..];
            tail.iter().for_each(|stored| other.restore(&stored.subject, &stored.fact, self.now));
            for device in self.intake.devices.iter().filter(|device| device.key.is_some()) {
                let restored = &other.devices[other.indexes[device.key.as_ref().unwrap()]];
                let (one, other) = (device.confirmed(), restored.confirmed());
                let known = |state: &DeviceLedgerState| {
                    (state.account.at_head(20), state.account.receipt(0, 20), state.gap.clone())
                };
                assert_eq!(known(one), known(other), "{:?} after {again} facts again", device.key);
                assert!(again > 0 || one == other, "{one:?} {other:?}");
                // The facts that come again here are stored now, their documents too.
                assert!(again > 0 || device.sent == restored.sent, "{:?} {:?}", device.sent, restored.sent);
            }
        }
    }

    fn check_rebuilt_is_the_same(&self) {
        let mut rebuilt = IntakeState::new(Rules::default(), self.now);
        self.ledger.iter().for_each(|stored| rebuilt.restore(&stored.subject, &stored.fact, self.now));
        for device in self.intake.devices.iter().filter(|device| device.key.is_some()) {
            let key = device.key.as_ref().unwrap();
            let (one, other) = (device.confirmed(), rebuilt.devices[rebuilt.indexes[key]].confirmed());
            let told = |state: &DeviceLedgerState| {
                state.last_published.map(|told| (told.state, told.epoch, told.has_missing))
            };
            assert_eq!(told(one), told(other), "{key}");
            assert_eq!(one.account.receipt(0, 20), other.account.receipt(0, 20), "{key}");
            // A fact that arrives late may overtake one whose number it declares as coalesced: then that number counts
            // as coalesced for a reader of LEDGER, and as received for its publisher.
            let good = |state: &DeviceLedgerState| {
                let account = state.account.at_head(20);
                (account.received + account.coalesced, account.quarantined, account.missing)
            };
            assert_eq!(good(one), good(other), "{key}");
            assert_eq!(one.gap, other.gap, "{key}");
        }
    }
}

fn message() -> impl Strategy<Value = Message> {
    (0..DEVICES, 1u64..=2, 1u64..=12).prop_map(|(device, epoch, seq)| Message { device, epoch, seq })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..8).prop_map(Step::Deliver),
        6 => (1usize..8).prop_map(Step::Answer),
        4 => (1usize..8).prop_map(Step::Store),
        1 => any::<bool>().prop_map(|stored| Step::Unavailable { stored }),
        1 => Just(Step::Drop),
        1 => any::<u32>().prop_map(|arrived| Step::Fail { arrived }),
        1 => any::<u32>().prop_map(|arrived| Step::Crash { arrived }),
        2 => (1i64..100).prop_map(Step::Pass),
        2 => (0..DEVICES).prop_map(Step::LastHeartbeat),
        2 => (0..DEVICES).prop_map(Step::Desire),
        2 => Just(Step::ReceiptState),
    ]
}

proptest! {
    #[test]
    fn nothing_acknowledged_is_lost_and_no_number_is_in_ledger_twice(
        uplink in prop::collection::vec(message(), 1..60),
        room in 1usize..4,
        steps in prop::collection::vec(step(), 1..80),
    ) {
                let mut world = World::new(uplink);
        world.room = room;
        for step in &steps {
            world.step(step);
            world.check_no_number_is_there_twice();
            world.check_what_was_acknowledged_is_held();
            world.check_quarantined_payloads_are_kept();
        }
        world.room = usize::MAX;
// The device keeps the reports that no receipt covers, and QUARANTINE has room again.
        world.step(&Step::Pass(FULL_PAUSE.as_secs() as i64));
        world.settle_down();
        world.send_again();
        world.settle_down();
        world.check_quarantined_payloads_are_kept();
        world.step(&Step::ReceiptState);
        prop_assert_eq!(world.acked, world.uplink.len());
        prop_assert_eq!((world.intake.in_flight(), world.intake.unsettled()), (0, 0));
        world.check_no_number_is_there_twice();
        world.check_what_was_acknowledged_is_held();
        world.check_no_poison_is_there_twice();
        world.check_accounts_add_up();
        world.check_rebuilt_is_the_same();
        world.check_snapshot_is_the_same(world.uplink.len());
    }

    #[test]
    fn the_account_of_an_epoch_is_blind_to_order_and_repetition(
        (one, other) in prop::collection::vec((0..1u8, 1u64..=1, 1u64..=12), 1..40).prop_flat_map(|list| {
            let doubled: Vec<_> = list.iter().chain(&list).copied().collect();
            (Just(list).prop_shuffle(), Just(doubled).prop_shuffle())
        }),
    ) {
        let run = |list: Vec<(u8, u64, u64)>| {
            let uplink = list.into_iter().map(|(device, epoch, seq)| Message { device, epoch, seq }).collect();
            let mut world = World::new(uplink);
            world.settle_down();
            let account = world.intake.devices[1].confirmed().account.clone();
            (account.head(), account.missing(20), account.at_head(account.head()).quarantined)
        };
        let ((one_head, one_missing, one_bad), (other_head, other_missing, other_bad)) = (run(one), run(other));
        prop_assert_eq!(one_head, other_head);
        prop_assert_eq!(one_missing, other_missing);
        prop_assert_eq!(one_bad, other_bad);
    }
}
