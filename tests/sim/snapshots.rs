//! Ingest's snapshots: an owner saves its devices and starts from them. The law: a snapshot and the tail of LEDGER give the state
//! that all of LEDGER gives.

use std::collections::BTreeMap;

use muster_contract::DeviceKey;
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_domain::intake::IntakeState;
use serde_json::Value;

use super::hostile::rogue_of;
use super::law::{Lawful, must};
use super::world::World;

/// The state of a partition as a process has saved it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The LEDGER that it is of.
    origin: u64,
    position: u64,
    text: Vec<u8>,
}

impl Snapshot {
    /// A snapshot of the facts up to a position.
    pub(crate) const fn new(origin: u64, position: u64, text: Vec<u8>) -> Self {
        Self { origin, position, text }
    }
}

/// A border's state of each device, without the times at which ingest published: ingest takes its own clock for them, and a
/// reader of LEDGER takes LEDGER's.
fn state_of(intake: &IntakeState) -> BTreeMap<String, Value> {
    let text = String::from_utf8(intake.snapshot()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|mut line| {
            let mut memory = line["memory"].take();
            for standings in ["standings", "overdue"] {
                let each = memory[standings].as_object_mut().into_iter().flat_map(|map| map.values_mut());
                each.for_each(|standing| _ = standing.as_object_mut().and_then(|it| it.remove("said_at")));
            }
            memory["told"].as_object_mut().and_then(|told| told.remove("said_at"));
            memory["desired_refusal"].as_object_mut().and_then(|refusal| refusal.remove("published_at"));
            // That a clock is right again is no fact.
            memory["clock_off"].take();
            memory["nature"].get_mut(1).map(Value::take);
            let open = memory["open"].as_array_mut().into_iter().flatten();
            open.for_each(|message| message[1] = Value::Null);
            (line["key"].to_string(), memory)
        })
        .collect()
}

impl World {
    /// LEDGER into a border: the facts of this partition and those of nobody.
    pub(crate) fn read_ledger(&self, part: usize, intake: &mut IntakeState, after: u64) {
        let from = usize::try_from(after).unwrap().min(self.hub.ledger.len());
        for said in &self.hub.ledger[from..] {
            let own = said.subject.device().and_then(|key| self.names.get(key));
            let own = own.map(|device| self.hub.partition(*device));
            let own = own.or(said.subject.device().and_then(rogue_of));
            if own.is_none_or(|owner| owner == part) {
                intake.restore(&said.subject, &said.fact, said.at);
            }
        }
        self.high_water.reached(self.hub.ledger.len() as u64);
    }

    /// Restores the snapshot, if there is one of this LEDGER; returns the position after which LEDGER is to be read.
    pub(crate) fn restore_snapshot(&mut self, part: usize, intake: &mut IntakeState) -> u64 {
        let end = self.hub.ledger.len() as u64;
        let snapshot = self.owners[part].snapshot.as_ref();
        let fits = |snapshot: &&Snapshot| snapshot.origin == self.hub.origin && snapshot.position <= end;
        let Some(snapshot) = snapshot.filter(fits) else { return 0 };
        intake.restore_snapshot(&snapshot.text).unwrap();
        self.tally.snapshot_starts += 1;
        snapshot.position
    }

    /// A snapshot and the tail of LEDGER say of every device what all of LEDGER says.
    pub(crate) fn check_restored(&mut self, part: usize, intake: &IntakeState) -> Lawful {
        let mut whole = IntakeState::new(self.rules(), self.hub.time(self.agenda.now()));
        self.read_ledger(part, &mut whole, 0);
        self.tally.checks += 1;
        let (seen, mut wanted) = (state_of(intake), state_of(&whole));
        self.forget_deadlines(&seen, &mut wanted);
        // A snapshot leaves out devices that have only a desired state.
        let same =
            |(key, memory): (&String, &Value)| seen.get(key).map_or(is_empty(memory), |it| it == memory);
        let differs = wanted.iter().find(|line| !same(*line));
        must(differs.is_none(), "ingest's snapshot and the tail are all of LEDGER", || {
            let (key, wanted) = differs.unwrap();
            let fields = wanted.as_object().unwrap().keys();
            let seen = seen.get(key).cloned().unwrap_or_default();
            let other = fields.filter(|field| seen[field.as_str()] != wanted[field.as_str()]);
            let other = other.map(|field| format!("{field}: {}, LEDGER: {}", seen[field], wanted[field]));
            format!("{key}: {}", other.collect::<Vec<_>>().join("; "))
        })
    }

    /// Removes deadlines of deployments that a later document of their device left out: an owner forgets them with that document.
    fn forget_deadlines(&self, seen: &BTreeMap<String, Value>, wanted: &mut BTreeMap<String, Value>) {
        for (key, memory) in wanted {
            let device = serde_json::from_str::<DeviceKey>(key).ok().and_then(|key| self.names.get(&key));
            let Some(device) = device else { continue };
            let documents = &self.hub.desired[*device];
            let is_left_out = |id: &String| {
                let lists = |bytes: &[u8]| {
                    let document: DesiredState = decode::parse(bytes).unwrap();
                    document.deployments.iter().any(|entry| entry.id.as_str() == *id)
                };
                let are_listed = documents.iter().map(|(bytes, _)| lists(bytes));
                are_listed.skip_while(|is_listed| !is_listed).any(|is_listed| !is_listed)
            };
            let known = seen.get(key).map(|memory| memory["overdue"].clone()).unwrap_or_default();
            if let Some(overdue) = memory["overdue"].as_object_mut() {
                overdue.retain(|id, _| known.get(id).is_some() || !is_left_out(id));
            }
        }
    }

    /// Saves what is known of the devices; the process may end before it is written.
    pub(crate) fn save_snapshot(&mut self, part: usize, position: u64) {
        let owner = &mut self.owners[part];
        let text = owner.intake.snapshot();
        owner.snapshot = Some(Snapshot::new(owner.origin, position, text));
    }
}

/// True if every field is null, zero, false or empty.
fn is_empty(memory: &Value) -> bool {
    match memory {
        Value::Array(values) => values.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
        value => *value == Value::Null || *value == 0 || *value == false,
    }
}
