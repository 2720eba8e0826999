//! Arbitrary ledgers of small fleets: devices that lose their memory, reports that coalesce others, claims that
//! are not true.

#![allow(dead_code, reason = "each law uses its part of the ledgers")]

use std::collections::BTreeMap;

use muster_contract::State;
use muster_contract::desired_refusal::{DesiredRefusal, DesiredRefusalCode};
use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use muster_contract::fact::{DeadlineKind, Fact, IncidentKind, Liveness};
use muster_contract::partition::partition_of;
use muster_contract::{Epoch, Generation, Seq, SeqRanges, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::ledger::{Entry, Ledger, Said, Tried, stored_at};

const DEVICES: [&str; 4] = ["north/a", "north/b", "south/a", "south/b"];
pub(crate) const DEPLOYMENTS: [&str; 3] = ["web", "db", "log"];
const COMPONENTS: [&str; 2] = ["main", "side"];
const VERSIONS: [&str; 2] = ["0.1.0", "0.2.0"];
const CODES: [&str; 3] = ["Exit1", "", "DiskFull"];

/// One thing that happens to a device, with dice for its details.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    device: usize,
    kind: u8,
    dice: [u8; 6],
}

/// The history of a device so far.
#[derive(Debug, Default)]
struct Life {
    generation: u64,
    targets: BTreeMap<&'static str, u64>,
    epoch: u64,
    seq: u64,
    /// Its messages in quarantine: number, those they stand for, and when they came.
    held: Vec<Message>,
}

/// A message in quarantine: its number, the numbers it stands for, and when it came.
type Message = (Option<(u64, u64)>, SeqRanges, Timestamp);

/// A ledger in the order in which things happened.
pub(crate) fn ledgers() -> impl Strategy<Value = Ledger> {
    let one = (0..DEVICES.len(), 0u8..16, any::<[u8; 6]>());
    vec(one.prop_map(|(device, kind, dice)| Move { device, kind, dice }), 1..70)
        .prop_map(|moves| play(&moves))
}

/// A ledger in which the hub stops to listen now and then, and listens again: partitions of the devices, and one of nobody.
pub(crate) fn ledgers_of_a_deaf_hub() -> impl Strategy<Value = Ledger> {
    let word = (any::<prop::sample::Index>(), 0..=DEVICES.len(), 0u8..8, 0u64..3);
    (ledgers(), vec(word, 0..12)).prop_map(|(mut ledger, words)| {
        for (place, whose, kind, since) in words {
            let at = place.index(ledger.entries.len() + 1);
            let device = DEVICES.get(whose).map_or_else(nobody_of, |name| (*name).to_owned());
            let mut said = Ledger::default();
            match kind {
                0..4 => said.stopped(&device, stored_at(since)),
                4..7 => said.resumed(&device),
                _ => said.pulse(&device, since == 0),
            };
            ledger.entries.insert(at, said.entries.remove(0));
        }
        ledger
    })
}

/// A device of a partition that none of the others is in. It is in no ledger.
fn nobody_of() -> String {
    let taken = DEVICES.map(|name| partition_of(&name.parse().unwrap()));
    let names = (0..).map(|number: u32| format!("east/{number}"));
    let mut free = names.filter(|name| !taken.contains(&partition_of(&name.parse().unwrap())));
    free.next().unwrap()
}

/// A ledger, and the same facts in another order, some of them twice. Only what is ordered by nature keeps its order:
/// liveness facts, incidents and messages without a number, which also come once.
pub(crate) fn shuffled_ledgers() -> impl Strategy<Value = (Ledger, Ledger)> {
    (ledgers(), vec((any::<u32>(), any::<u32>(), any::<bool>()), 70)).prop_map(|(ledger, dice)| {
        let mut keyed: Vec<(u32, Entry)> = Vec::new();
        for (entry, (key, other, twice)) in ledger.entries.iter().zip(dice) {
            keyed.push((key, entry.clone()));
            if twice && !is_ordered(entry) {
                keyed.push((other, entry.clone()));
            }
        }
        keyed.sort_by_key(|(key, _)| *key);
        let mut in_order = ledger.entries.iter().filter(|entry| is_ordered(entry));
        let entries = keyed
            .into_iter()
            .map(|(_, entry)| if is_ordered(&entry) { in_order.next().unwrap().clone() } else { entry });
        let shuffled = Ledger { entries: entries.collect() };
        (ledger, shuffled)
    })
}

fn is_ordered(entry: &Entry) -> bool {
    match &entry.fact {
        Fact::Liveness(_) | Fact::Incident(_) | Fact::Hearing(_) => true,
        Fact::Quarantine(fact) => fact.seq.is_none(),
        Fact::Verdict(fact) => fact.seq.is_none(),
        _ => false,
    }
}

fn play(moves: &[Move]) -> Ledger {
    let mut ledger = Ledger::default();
    let mut lives: [Life; DEVICES.len()] = Default::default();
    for step in moves {
        lives[step.device].make(step, &mut ledger);
    }
    ledger
}

impl Life {
    fn make(&mut self, step: &Move, ledger: &mut Ledger) {
        let device = DEVICES[step.device];
        let [a, b, c, ..] = step.dice;
        let deployment = DEPLOYMENTS[usize::from(a) % DEPLOYMENTS.len()];
        self.epoch = self.epoch.max(1);
        match step.kind {
            0..=1 => self.publish(device, a, b, ledger),
            2 if a < 40 => {
                self.generation += 1;
                self.targets.clear();
                ledger.retired(device, self.generation);
            }
            3 if a < 60 => {
                self.epoch += 1 + u64::from(b % 2);
                self.seq = 0;
            }
            4 => self.liveness(device, Liveness::Fresh, (a, b), ledger),
            5 => self.liveness(device, Liveness::Stale, (a, b), ledger),
            6 => {
                ledger.deadline(device, deployment, u64::from(b % 6) + 1, DeadlineKind::Stuck);
            }
            7 => {
                let number = (c % 4 > 0).then(|| {
                    (self.epoch + u64::from(c % 2), self.seq + u64::from(b % 3) + u64::from(b == 0))
                });
                let number = number.filter(|(_, seq)| *seq > 0);
                let before = number.filter(|(_, seq)| *seq > 1 && b % 4 == 1);
                let others = before.map_or_else(SeqRanges::new, |(_, seq)| {
                    SeqRanges::span(seq.saturating_sub(2).max(1), seq - 1)
                });
                self.held.push((number, others.clone(), ledger.next_at()));
                ledger.quarantine_sum(device, number, others);
            }
            8 if a >= 80 && !self.held.is_empty() => {
                let (number, others, received_at) = self.held[usize::from(b) % self.held.len()].clone();
                ledger.dropped_sum(device, number, others, received_at);
            }
            8 if a < 10 => {
                let generation = Generation::new(u64::from(b) % 4 + 1);
                let code = [DesiredRefusalCode::Older, DesiredRefusalCode::Invalid][usize::from(b) % 2];
                let since = stored_at(u64::from(a));
                let refusal = DesiredRefusal { generation, code, message: "no".to_owned(), since };
                ledger.incident(device, IncidentKind::DesiredRefused(refusal));
            }
            8 if a < 20 => {
                let refused_since = stored_at(0);
                ledger.incident(device, IncidentKind::DesiredAccepted { generation: 1, refused_since });
            }
            8 if a < 80 => {
                let (epoch, seq) = (Epoch::new(self.epoch).unwrap(), Seq::new(self.seq + 1).unwrap());
                ledger.incident(device, IncidentKind::Clone { known_epoch: epoch, epoch, seq });
            }
            9 if a < 80 => {
                self.seq += 1;
                let version = VERSIONS[usize::from(b) % VERSIONS.len()];
                ledger.capabilities_of_agent(device, self.epoch, self.seq, version);
            }
            _ => self.report(device, deployment, step.dice, ledger),
        }
    }

    fn publish(&mut self, device: &str, a: u8, b: u8, ledger: &mut Ledger) {
        self.generation += 1;
        for (at, id) in DEPLOYMENTS.iter().enumerate() {
            match (a >> (2 * at)) & 3 {
                0 => drop(self.targets.remove(id)),
                1 => drop(self.targets.insert(id, self.generation)),
                _ if b & (1 << at) != 0 => drop(self.targets.entry(id).or_insert(self.generation)),
                _ => {}
            }
        }
        let targets: Vec<(&str, u64)> = self.targets.iter().map(|(id, at)| (*id, *at)).collect();
        let labels = [("region", b >> 3), ("ring", b >> 5)];
        let labels = labels.map(|(label, die)| (label, ["", "one", "two", "one"][usize::from(die) % 4]));
        let labels: Vec<(&str, &str)> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        ledger.labelled(device, self.generation, &targets, &labels);
    }

    fn liveness(&self, device: &str, state: Liveness, (a, b): (u8, u8), ledger: &mut Ledger) {
        let beat_at = (a % 2 == 0).then(|| ledger.next_at());
        let head = self.seq + u64::from(b.is_multiple_of(4));
        ledger.heard(device, state, self.epoch, head, None, beat_at, a % 5 > 0);
    }

    fn report(&mut self, device: &str, deployment: &str, dice: [u8; 6], ledger: &mut Ledger) {
        let [_, b, c, d, e, f] = dice;
        self.seq += 1 + u64::from(b.is_multiple_of(8));
        let below = self.seq - 1;
        let folded = (below > 1 && b.is_multiple_of(5)).then(|| (below - u64::from(c % 2), below));
        let state = |die: u8| State::ALL[usize::from(die) % State::ALL.len()];
        let components = [(COMPONENTS[0], state(d)), (COMPONENTS[1], state(e))];
        let code = |die: u8| CODES[usize::from(die) % CODES.len()];
        let broken = components.iter().filter(|(_, state)| *state == State::Failed && c % 3 > 0);
        let errors: Vec<_> = broken.map(|(name, _)| (*name, code(f), *name)).collect();
        let tried = |component, die: u8| Tried {
            component,
            attempt: u32::from(die) + 1,
            code: code(die),
            message: "it ended",
            crash_loop: die.is_multiple_of(3),
        };
        let whole = (e % 2 > 0).then_some(COMPONENTS[1]);
        let retries = [tried(Some(COMPONENTS[0]), c), tried(whole, d)];
        let said = Said {
            epoch: self.epoch,
            seq: self.seq,
            head: self.seq + u64::from(c.is_multiple_of(4)),
            generation: (u64::from(e) % self.generation.max(1)) + 1,
            components: &components[..usize::from(f % 3).min(2)],
            errors: &errors,
            error: (f.is_multiple_of(7)).then_some((code(c), COMPONENTS[usize::from(c) % 2], "all broke")),
            current: c.is_multiple_of(2),
            coalesced: folded.as_slice(),
            reasserted: false,
            retries: &retries[..usize::from(b % 3)],
            // Some before, some after what passed its deadline.
            first_attempt_at: (d % 3 > 0).then_some(u64::from(d) / 4),
            evidence: EvidenceSource {
                origin: Provenance::ALL[usize::from(e / 7 % 3)],
                fidelity: Fidelity::ALL[usize::from(f / 5 % 3)],
            },
        };
        ledger.status(device, deployment, &said);
    }
}
