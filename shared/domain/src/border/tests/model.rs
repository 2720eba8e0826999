//! The border against a model of UPLINK and LEDGER that fail in every way the real ones can: messages come again,
//! answers get lost, publications arrive or not whatever was answered, and the process dies.
//!
//! Whatever happens: no number is in LEDGER twice, nothing that was acknowledged is lost, no receipt covers what is
//! not held, the account adds up, and a border rebuilt from LEDGER knows what the one before it knew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::quota::document;
use super::*;

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
    /// The oldest publication fails; of those on their way the ones in the mask arrive nonetheless, before LEDGER is read:
    /// what arrives later is refused, because the partition was taken anew.
    Fail { arrived: u32 },
    /// The same, and the process dies.
    Crash { arrived: u32 },
    /// Time passes.
    Pass(i64),
    /// A device's heart beats.
    Beat(u8),
    /// A device gets a document with what it reports and with one deployment more.
    Desire(u8),
    /// Receipts are taken and their coverage is checked.
    Receipts,
}

impl Message {
    fn key(self) -> DeviceKey {
        device_key(self.device)
    }

    fn is_poison(self) -> bool {
        self.seq % 7 == 3
    }

    /// Every fifth report declares the two before it as folded.
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
struct Said {
    subject: LedgerSubject,
    fact: Fact,
}

impl Said {
    fn of(publication: Publication) -> Self {
        let fact = parsed(&publication);
        Self { subject: publication.subject, fact }
    }
}

struct World {
    uplink: Vec<Message>,
    acked: usize,
    delivered: usize,
    border: Border,
    wire: VecDeque<Said>,
    ledger: Vec<Said>,
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
            border: Border::new(Rules::default(), now),
            wire: VecDeque::new(),
            ledger: Vec::new(),
            stored: BTreeMap::new(),
            now,
            generation: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Deliver(count) => (0..count).for_each(|_| self.deliver()),
            Step::Answer(count) => (0..count).for_each(|_| self.answer()),
            Step::Fail { arrived } => {
                let from = self.ledger.len();
                self.lose(arrived);
                self.border.rewind();
                self.read_ledger(from);
                self.border.hearing_again(self.now);
            }
            Step::Crash { arrived } => {
                self.lose(arrived);
                self.border = Border::new(Rules::default(), self.now);
                self.read_ledger(0);
            }
            Step::Pass(seconds) => {
                self.now = Timestamp::from_second(self.now.as_second() + seconds).unwrap();
                let caught_up = self.delivered == self.uplink.len();
                self.border.tick(self.now, if caught_up { self.now } else { Timestamp::MIN });
            }
            Step::Beat(device) => self.beat(device),
            Step::Desire(device) => self.desire(device),
            Step::Receipts => self.check_receipts(),
        }
        while let Some(publication) = self.border.next_publication() {
            self.wire.push_back(Said::of(publication));
        }
    }

    fn deliver(&mut self) {
        let Some(message) = self.uplink.get(self.delivered).copied() else { return };
        self.delivered += 1;
        let payload = message.payload();
        let key = message.key();
        let stored_at = *self.stored.entry(self.delivered).or_insert(self.now);
        self.border.report(Arrival {
            origin: origin(&format!("muster.report.0.{}.{}", key.site, key.device)).unwrap(),
            parsed: Report::parse(&payload),
            payload: &payload,
            position: self.delivered as u64,
            stored_at,
            now: self.now,
        });
        while let Some(publication) = self.border.next_publication() {
            self.wire.push_back(Said::of(publication));
        }
        self.settle();
    }

    fn answer(&mut self) {
        let Some(publication) = self.wire.pop_front() else { return };
        self.ledger.push(publication);
        self.border.confirm();
        self.settle();
    }

    fn settle(&mut self) {
        self.acked += self.border.settled();
        assert!(self.acked <= self.delivered);
    }

    fn check_what_was_acknowledged_is_held(&self) {
        let held = self.held();
        for message in &self.uplink[..self.acked] {
            assert!(held.contains(message), "{message:?} was acknowledged and is not held");
        }
    }

    /// The fate of what is on the wire, by its bits.
    fn lose(&mut self, arrived: u32) {
        for (at, publication) in std::mem::take(&mut self.wire).into_iter().enumerate() {
            if arrived & 1u32.checked_shl(at as u32).unwrap_or(0) != 0 {
                self.ledger.push(publication);
            }
        }
        self.delivered = self.acked;
    }

    fn read_ledger(&mut self, from: usize) {
        self.ledger[from..].iter().for_each(|said| self.border.restore(&said.subject, &said.fact, self.now));
    }

    fn desire(&mut self, device: u8) {
        self.generation += 1;
        let ids = ["d0".to_owned(), "d1".to_owned(), format!("g{}", self.generation)];
        let (key, document) = (device_key(device), document(self.generation, &ids));
        self.border.desire(&key, &document, self.now);
        self.ledger.push(Said { subject: LedgerSubject::Desired(key), fact: Fact::Desired(document) });
    }

    fn beat(&mut self, device: u8) {
        let newest = self.uplink.iter().filter(|message| message.device == device).max();
        let Some(message) = newest else { return };
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": message.epoch, "head": message.seq + 1,
            "unsent": 0, "generation": 0, "agentVersion": "1",
        });
        let beat = serde_json::from_value(beat).unwrap();
        self.border.heartbeat(&message.key(), &beat, self.now, self.now);
    }

    /// Everything LEDGER holds, by number: as a fact, folded, or in quarantine (by number, or by its very bytes).
    fn held(&self) -> BTreeSet<Message> {
        let mut held = BTreeSet::new();
        for said in &self.ledger {
            let Some(key) = said.subject.device() else { continue };
            let device = key.device.as_str()[1..].parse().unwrap();
            let mut hold = |epoch: Epoch, seq: u64| {
                held.insert(Message { device, epoch: epoch.get(), seq });
            };
            match &said.fact {
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
        for (key, receipt) in self.border.take_receipts(self.now, 100) {
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
            self.step(&Step::Answer(usize::from(u8::MAX)));
            self.step(&Step::Pass(1_000));
        }
        self.step(&Step::Answer(usize::from(u8::MAX)));
    }

    fn check_no_number_is_there_twice(&self) {
        let mut seen: BTreeMap<(String, Epoch, Seq), usize> = BTreeMap::new();
        for said in &self.ledger {
            if let Fact::Status(fact) = &said.fact {
                let key = said.subject.device().unwrap().to_string();
                *seen.entry((key, fact.epoch, fact.seq)).or_default() += usize::from(!fact.reasserted);
            }
        }
        assert!(seen.values().all(|count| *count <= 1), "{seen:?}");
    }

    fn check_no_poison_is_there_twice(&self) {
        let mut seen = BTreeSet::new();
        for said in &self.ledger {
            // What is recognised beyond a few refusals is recognised by number alone. A sum that arrives after its messages
            // came again is one more word of the same numbers, which count once.
            if let Fact::Quarantine(fact) = &said.fact
                && fact.count_for_device <= REFUSALS_KEPT as u64
                && fact.others == 0
            {
                assert!(seen.insert((&fact.subject, &fact.payload_base64)), "{fact:?} is there twice");
            }
        }
    }

    fn check_accounts_add_up(&self) {
        for device in &self.border.devices {
            let cursor = &device.confirmed().cursor;
            let account = cursor.account(cursor.head());
            let parts = account.received + account.coalesced + account.quarantined;
            assert_eq!(parts + account.missing.count(), cursor.head(), "{:?}", device.key);
        }
    }

    /// A border that takes in a snapshot and some of LEDGER again knows what the one that wrote it knows.
    fn check_snapshot_is_the_same(&self, overlap: usize) {
        let mut other = Border::new(Rules::default(), self.now);
        other.restore_snapshot(&self.border.snapshot()).unwrap();
        for again in [0, overlap.min(self.ledger.len())] {
            let tail = &self.ledger[self.ledger.len() - again..];
            tail.iter().for_each(|said| other.restore(&said.subject, &said.fact, self.now));
            for device in self.border.devices.iter().filter(|device| device.key.is_some()) {
                let restored = &other.devices[other.places[device.key.as_ref().unwrap()]];
                let (one, other) = (device.confirmed(), restored.confirmed());
                let known = |memory: &memory::Memory| {
                    (memory.cursor.account(20), memory.cursor.receipt(0, 20), memory.gap.clone())
                };
                assert_eq!(known(one), known(other), "{:?} after {again} facts again", device.key);
                assert!(again > 0 || one == other, "{one:?} {other:?}");
                // The facts that come again here are stored now, their documents too.
                assert!(again > 0 || device.sent == restored.sent, "{:?} {:?}", device.sent, restored.sent);
            }
        }
    }

    fn check_rebuilt_is_the_same(&self) {
        let mut rebuilt = Border::new(Rules::default(), self.now);
        self.ledger.iter().for_each(|said| rebuilt.restore(&said.subject, &said.fact, self.now));
        for device in self.border.devices.iter().filter(|device| device.key.is_some()) {
            let key = device.key.as_ref().unwrap();
            let (one, other) = (device.confirmed(), rebuilt.devices[rebuilt.places[key]].confirmed());
            let told =
                |memory: &memory::Memory| memory.told.map(|told| (told.state, told.epoch, told.behind));
            assert_eq!(told(one), told(other), "{key}");
            assert_eq!(one.cursor.receipt(0, 20), other.cursor.receipt(0, 20), "{key}");
            // A fact that arrives late may overtake one whose number it declares as folded: then that number counts
            // as folded for whoever reads LEDGER, and as received for whoever published it.
            let good = |memory: &memory::Memory| {
                let account = memory.cursor.account(20);
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
        1 => any::<u32>().prop_map(|arrived| Step::Fail { arrived }),
        1 => any::<u32>().prop_map(|arrived| Step::Crash { arrived }),
        2 => (1i64..100).prop_map(Step::Pass),
        2 => (0..DEVICES).prop_map(Step::Beat),
        2 => (0..DEVICES).prop_map(Step::Desire),
        2 => Just(Step::Receipts),
    ]
}

proptest! {
    #[test]
    fn nothing_acknowledged_is_lost_and_no_number_is_in_ledger_twice(
        uplink in prop::collection::vec(message(), 1..60),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let uplink_length = uplink.len();
        let mut world = World::new(uplink);
        for step in &steps {
            world.step(step);
            world.check_no_number_is_there_twice();
            world.check_what_was_acknowledged_is_held();
        }
        world.settle_down();
        world.step(&Step::Receipts);
        prop_assert_eq!(world.acked, world.uplink.len());
        prop_assert_eq!((world.border.in_flight(), world.border.unsettled()), (0, 0));
        world.check_no_number_is_there_twice();
        world.check_what_was_acknowledged_is_held();
        world.check_no_poison_is_there_twice();
        world.check_accounts_add_up();
        world.check_rebuilt_is_the_same();
        world.check_snapshot_is_the_same(uplink_length);
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
            let cursor = world.border.devices[1].confirmed().cursor.clone();
            (cursor.head(), cursor.missing(20), cursor.account(cursor.head()).quarantined)
        };
        let ((one_head, one_missing, one_bad), (other_head, other_missing, other_bad)) = (run(one), run(other));
        prop_assert_eq!(one_head, other_head);
        prop_assert_eq!(one_missing, other_missing);
        prop_assert_eq!(one_bad, other_bad);
    }
}
