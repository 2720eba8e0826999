//! Tests two intakes that both take themselves for the owner of a partition, over one LEDGER without message ids: only the fence
//! (LEDGER refuses a fact that does not name the newest record) keeps a number from being stored twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const DEVICES: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    device: u8,
    seq: u64,
}

/// The next action of one of the two owners.
#[derive(Debug, Clone)]
enum Step {
    /// It takes the partition, reads LEDGER, and begins at the first report that is not acknowledged.
    Take,
    /// UPLINK delivers to it.
    Deliver(usize),
    /// LEDGER receives facts that it sent, and answers.
    Arrive(usize),
    /// It receives answers and acknowledges.
    Answer(usize),
    /// It dies; its sent facts may arrive at any time.
    Die,
    Pass(i64),
}

#[derive(Debug, Clone)]
struct SentFact {
    token: u64,
    fact: (LedgerSubject, Fact),
}

struct Owner {
    intake: IntakeState,
    token: Option<u64>,
    delivered: usize,
    /// Facts that LEDGER has not received, also of earlier lives.
    wire: VecDeque<(u64, SentFact)>,
    answers: VecDeque<bool>,
    life: u64,
}

struct World {
    uplink: Vec<Message>,
    acked: usize,
    ledger: Vec<(LedgerSubject, Fact)>,
    /// The newest record.
    fence: u64,
    owners: [Owner; 2],
    now: Timestamp,
}

impl Message {
    fn payload(self) -> Vec<u8> {
        // Each number has one content, and some reports must be rejected.
        let state = if self.seq % 5 == 2 { "exploded" } else { "installing" };
        with(status(1, self.seq, self.seq), "status", json!({ "state": state })).to_string().into_bytes()
    }
}

impl Owner {
    fn new(now: Timestamp) -> Self {
        let intake = IntakeState::new(Rules::default(), now);
        Self { intake, token: None, delivered: 0, wire: VecDeque::new(), answers: VecDeque::new(), life: 0 }
    }

    /// Facts sent before get no answer any more, and may still arrive.
    fn begin(&mut self, delivered: usize) {
        self.life += 1;
        self.answers.clear();
        self.delivered = delivered;
    }
}

impl World {
    fn new(uplink: Vec<Message>) -> Self {
        let now = at(1_000);
        let owners = [Owner::new(now), Owner::new(now)];
        Self { uplink, acked: 0, ledger: Vec::new(), fence: 0, owners, now }
    }

    fn step(&mut self, who: usize, step: &Step) {
        match *step {
            Step::Take => self.take(who),
            Step::Deliver(count) => (0..count).for_each(|_| self.deliver(who)),
            Step::Arrive(count) => (0..count).for_each(|_| self.arrive(who)),
            Step::Answer(count) => (0..count).for_each(|_| self.answer(who)),
            Step::Die => {
                self.owners[who].intake = IntakeState::new(Rules::default(), self.now);
                self.owners[who].token = None;
                self.owners[who].begin(self.acked);
            }
            Step::Pass(seconds) => {
                self.now = at(self.now.as_second() + seconds);
                if self.owners[who].token.is_some() {
                    self.owners[who].intake.tick(self.now, Watermarks::all(self.now));
                    self.send(who);
                }
            }
        }
    }

    fn take(&mut self, who: usize) {
        self.fence += 1;
        let owner = &mut self.owners[who];
        owner.token = Some(self.fence);
        owner.intake.rewind();
        owner.begin(self.acked);
        self.ledger.iter().for_each(|(subject, fact)| owner.intake.restore(subject, fact, self.now));
        owner.intake.resume_receiving(self.now);
    }

    fn deliver(&mut self, who: usize) {
        let owner = &mut self.owners[who];
        let Some(message) = self.uplink.get(owner.delivered).copied().filter(|_| owner.token.is_some())
        else {
            return;
        };
        owner.delivered += 1;
        let payload = message.payload();
        owner.intake.apply_report(IncomingReport {
            origin: origin(&format!("muster.report.0.plant.d{}", message.device)).unwrap(),
            parsed: Report::parse(&payload),
            payload: &payload,
            position: owner.delivered as u64,
            stored_at: self.now,
            now: self.now,
        });
        while let Some(rejection) = owner.intake.next_rejection() {
            owner.intake.apply_store_answer(rejection.ticket, Ok(()), self.now);
        }
        self.send(who);
    }

    fn send(&mut self, who: usize) {
        let owner = &mut self.owners[who];
        while let Some(publication) = owner.intake.next_publication() {
            let fact = parsed(&publication);
            let fact = SentFact { token: owner.token.unwrap(), fact: (publication.subject, fact) };
            owner.wire.push_back((owner.life, fact));
        }
        self.acknowledge_settled(who);
    }

    /// LEDGER stores a fact only if it names the newest record.
    fn arrive(&mut self, who: usize) {
        let Some((life, fact)) = self.owners[who].wire.pop_front() else { return };
        let stored = fact.token == self.fence;
        if stored {
            self.ledger.push(fact.fact);
        }
        if life == self.owners[who].life {
            self.owners[who].answers.push_back(stored);
        }
    }

    fn answer(&mut self, who: usize) {
        match self.owners[who].answers.pop_front() {
            Some(true) => self.owners[who].intake.confirm(),
            // LEDGER refused the fact: it stands by until it takes the partition again.
            Some(false) => {
                self.owners[who].intake.rewind();
                self.owners[who].token = None;
                let acked = self.acked;
                self.owners[who].begin(acked);
            }
            None => {}
        }
        self.acknowledge_settled(who);
    }

    /// UPLINK accepts an acknowledgement of either owner.
    fn acknowledge_settled(&mut self, who: usize) {
        let owner = &mut self.owners[who];
        owner.intake.drain_settled();
        let settled = owner.delivered - owner.intake.unsettled();
        self.acked = self.acked.max(settled);
    }

    fn check(&self) {
        let mut seen: BTreeMap<(String, u64), usize> = BTreeMap::new();
        let mut held = BTreeSet::new();
        for (subject, fact) in &self.ledger {
            let Some(key) = subject.device() else { continue };
            let seqs = match fact {
                Fact::Status(fact) => SeqRanges::span(fact.seq.get(), fact.seq.get()),
                Fact::Quarantine(fact) => fact.numbers().unwrap().1,
                _ => continue,
            };
            for seq in seqs.iter().flat_map(|(from, to)| from..=to) {
                *seen.entry((key.to_string(), seq)).or_default() += 1;
                held.insert((key.device.to_string(), seq));
            }
        }
        assert!(seen.values().all(|count| *count == 1), "there twice: {seen:?}");
        for message in &self.uplink[..self.acked] {
            let number = (format!("d{}", message.device), message.seq);
            assert!(held.contains(&number), "{message:?} was acknowledged and is not held");
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Take),
        6 => (1usize..8).prop_map(Step::Deliver),
        6 => (1usize..8).prop_map(Step::Arrive),
        6 => (1usize..8).prop_map(Step::Answer),
        1 => Just(Step::Die),
        1 => (1i64..200).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn two_owners_by_mistake_put_nothing_into_ledger_twice_and_lose_nothing(
        uplink in prop::collection::vec(
            (0..DEVICES, 1u64..=12).prop_map(|(device, seq)| Message { device, seq }), 1..40),
        steps in prop::collection::vec((0usize..2, step()), 1..120),
    ) {
        let mut world = World::new(uplink);
        for (who, step) in &steps {
            world.step(*who, step);
            world.check();
        }
// In the end one of them owns it, while facts of the other still arrive.
        world.step(0, &Step::Take);
        world.step(1, &Step::Arrive(1_000));
        for step in [Step::Deliver(1_000), Step::Arrive(1_000), Step::Answer(1_000)] {
            world.step(0, &step);
        }
// Facts of its earlier lives arrived first and were refused without an answer. Rejected messages may wait in batches.
        let summed = Step::Pass(BATCH_EVERY.as_secs() as i64);
        for step in [Step::Arrive(1_000), Step::Answer(1_000), summed, Step::Arrive(1_000), Step::Answer(1_000)] {
            world.step(0, &step);
        }
        world.check();
        prop_assert_eq!(world.acked, world.uplink.len());
    }
}
