//! The border: what becomes of everything devices send, as values. It decides; whoever holds it does.
//!
//! ```text
//! report, heartbeat, tick ──► Border ──► Publication… ──► (LEDGER) ──► confirm ──► settled, receipts
//!                               ▲ rewind, restore ◄── (LEDGER read again, when an outcome is not known)
//! ```
//!
//! One border owns all state of its devices. Every publication counts as on its way from the moment it is made;
//! decisions rest on what LEDGER will hold once all of them have arrived, receipts and accounts on what it holds.
//! Publications are confirmed in the order in which they were made. When the fate of one is unknown, everything on
//! its way is forgotten ([`Border::rewind`]), LEDGER says what did arrive ([`Border::restore`]), and what was not
//! settled is taken in again.
//!
//! Reading order: this file (the shape), `admit` (reports), `quota` (deployments and epochs of a device), `refuse`
//! (quarantine), `sums` (too much of it), `unstorable` (what LEDGER will not take), `requeue` (a second look), `watch` (time), `reassert`, `receipts`, `snapshot`;
//! `pulse`; beneath them `device`, `memory`, `change` and `content`. No IO, no clock.

mod admit;
mod change;
mod content;
mod device;
mod ids;
mod memory;
mod pulse;
mod quota;
mod reassert;
mod receipts;
mod refuse;
mod requeue;
mod snapshot;
mod sums;
mod unstorable;
mod watch;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::Fact;
use muster_contract::limits::{DEADLINE_DEFAULT, LEASE, UNSOLICITED_DEFAULT};
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

pub use self::admit::{Arrival, Outcome};
use self::change::Change;
use self::device::Device;
pub use self::memory::{CLONES_KEPT, OPEN_KEPT, OVERDUE_KEPT, REFUSALS_KEPT, STANDINGS_KEPT};
use self::pulse::Pulse;
pub use self::quota::{SENT_KEPT, UNVERIFIED_MAX};
pub use self::refuse::Refused;
pub use self::requeue::{Because, Judged};
pub use self::snapshot::{SNAPSHOT_VERSION, SnapshotError};
use self::sums::Waiting;
pub use self::sums::{
    FACTS_PER_MINUTE, SUM_EVERY, SUM_FACTS_MAX, SUM_MESSAGES_MAX, UNSETTLED_MAX, refusal_facts_max,
};
use self::unstorable::KEPT_SHORT_MAX;
pub use self::unstorable::Unrecordable;
pub use self::watch::{ASK_AFTER, ASK_EVERY, BACKLOG_GRACE, GAP_AFTER, REPEAT_AFTER};
use crate::recent::Recent;

/// What is a matter of configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Silence after which a device is stale.
    pub lease: Duration,
    /// Time for a deployment that declares none itself.
    pub deadline_default: Duration,
    /// Deployments that a device without any desired document may report.
    pub unsolicited: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self { lease: LEASE, deadline_default: DEADLINE_DEFAULT, unsolicited: UNSOLICITED_DEFAULT }
    }
}

/// A fact to be published to LEDGER.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// Its subject.
    pub subject: LedgerSubject,
    /// The fact's `kind`.
    pub kind: &'static str,
    /// The fact, written: any reader of LEDGER can parse it.
    pub payload: Vec<u8>,
    /// Its id, by which whoever reads it knows it again: the same whenever the same is said. None for what is news whatever
    /// was said before: the newest word on a device's liveness.
    pub id: Option<String>,
}

/// All state of the devices of one partition.
#[derive(Debug)]
pub struct Border {
    rules: Rules,
    /// Place 0 stands for all senders without a valid name.
    devices: Vec<Device>,
    places: HashMap<DeviceKey, usize>,
    hearing_since: Timestamp,
    /// The newest word of what time it is.
    now: Timestamp,
    /// Made, not yet taken by whoever publishes.
    made: VecDeque<Publication>,
    /// Made, not yet confirmed.
    in_flight: VecDeque<UnderWay>,
    made_count: u64,
    confirmed_count: u64,
    /// For each message taken in and not settled, how many publications must be confirmed first; not known yet where
    /// the message waits for a sum.
    unsettled: VecDeque<u64>,
    summing: Waiting,
    /// Messages taken in and settled in this border's life.
    settled_count: u64,
    /// The message being taken in, counted from the first of this border's life.
    taking: Option<u64>,
    /// Messages of which LEDGER takes only a short record.
    kept_short: Recent<Digest, KEPT_SHORT_MAX>,
    /// A message in quarantine is being judged again, and this is why it stays there.
    judging_again: Option<String>,
    /// Desired documents cannot be read: deployments that no known document has are bounded by number alone.
    documents_unreadable: bool,
    receipts_due: BTreeSet<(Timestamp, usize)>,
    /// The partition's pulse; none while nobody owns it in this border's name.
    pulse: Option<Pulse>,
}

/// A publication on its way.
#[derive(Debug)]
struct UnderWay {
    place: usize,
    change: Change,
    /// The message that led to it; none where time did.
    cause: Option<u64>,
}

/// The place of senders without a valid name.
const NOBODY: usize = 0;

impl Border {
    /// A border that knows nothing, hearing since `now`.
    pub fn new(rules: Rules, now: Timestamp) -> Self {
        Self {
            rules,
            devices: vec![Device::default()],
            places: HashMap::new(),
            hearing_since: now,
            now,
            made: VecDeque::new(),
            in_flight: VecDeque::new(),
            made_count: 0,
            confirmed_count: 0,
            unsettled: VecDeque::new(),
            summing: Waiting::default(),
            settled_count: 0,
            taking: None,
            kept_short: Recent::default(),
            judging_again: None,
            documents_unreadable: false,
            receipts_due: BTreeSet::new(),
            pulse: None,
        }
    }

    /// Takes in a fact that LEDGER stored at `stored_at`. Only while nothing is on its way.
    pub fn restore(&mut self, subject: &LedgerSubject, fact: &Fact, stored_at: Timestamp) {
        if let (Fact::Desired(state), Some(key)) = (fact, subject.device()) {
            let place = self.place(key);
            return self.devices[place].learn_document(state, stored_at);
        }
        let deployment = match subject {
            LedgerSubject::Deadline(_, id) | LedgerSubject::Status(_, id) => Some(id),
            _ => None,
        };
        let Some(change) = Change::of(fact, deployment, stored_at) else { return };
        let place = subject.device().map_or(NOBODY, |key| self.place(key));
        self.devices[place].restore(&change);
    }

    /// Takes in what a device shall run. An older document than the one held changes nothing.
    pub fn desire(&mut self, key: &DeviceKey, state: &DesiredState, stored_at: Timestamp) {
        let place = self.place(key);
        self.devices[place].desire(state, stored_at, self.rules.deadline_default);
    }

    /// Records that a desired document with these deployments was sent to a device at a moment.
    pub fn sent<'a>(
        &mut self,
        key: &DeviceKey,
        deployments: impl Iterator<Item = &'a DeploymentId>,
        stored_at: Timestamp,
    ) {
        let place = self.place(key);
        self.devices[place].sent.record(deployments, stored_at);
    }

    /// Takes in a heartbeat stored at `stored_at`.
    pub fn heartbeat(&mut self, key: &DeviceKey, beat: &Heartbeat, stored_at: Timestamp, now: Timestamp) {
        let place = self.place(key);
        if !self.devices[place].believes(beat.epoch) {
            return self.hear(key, stored_at, now);
        }
        self.now = now;
        let stored_at = stored_at.min(now);
        let device = &mut self.devices[place];
        device.heard.hear(stored_at);
        let before = device.top();
        let newest = device.heard.beat(beat, stored_at);
        let first = newest && device.receipts.sent_at.is_none() && device.top() > 0;
        // A number in quarantine may have waited for a good document to speak of it.
        if first || device.top() > before {
            self.owe_receipt(place);
        }
        self.listen_to_beat(place, stored_at, now);
    }

    /// Something of the device was stored that tells no more than that it is there.
    pub fn hear(&mut self, key: &DeviceKey, stored_at: Timestamp, now: Timestamp) {
        self.now = now;
        let stored_at = stored_at.min(now);
        let place = self.place(key);
        self.devices[place].heard.hear(stored_at);
        self.listen(place, stored_at, now);
    }

    /// The hub hears again after it was deaf: leases of fresh devices count from now.
    ///
    /// Also after a step of the hub's clock: moments that are yet to come by the new time are taken for the present,
    /// else a device would stay fresh, and a receipt owed, until the clock has come that far again.
    pub fn hearing_again(&mut self, now: Timestamp) {
        self.hearing_since = now;
        self.now = now;
        self.receipts_due.clear();
        self.pulse.iter_mut().for_each(|pulse| pulse.not_after(now));
        for (place, device) in self.devices.iter_mut().enumerate() {
            device.lack = None;
            device.not_after(now);
            self.receipts_due.extend(device.receipts.due_at.map(|due_at| (due_at, place)));
        }
    }

    /// The next publication to be sent.
    pub fn next_publication(&mut self) -> Option<Publication> {
        self.made.pop_front()
    }

    /// The oldest publication on its way is in LEDGER.
    pub fn confirm(&mut self) {
        let Some(UnderWay { place, change, .. }) = self.in_flight.pop_front() else { return };
        self.confirmed_count += 1;
        self.devices[place].arrived(&change);
        if matches!(change, Change::Received { .. } | Change::Quarantined { .. }) {
            self.owe_receipt(place);
        }
    }

    /// How many of the oldest unsettled messages are settled now: everything they led to is in LEDGER, and so is
    /// everything of the messages before them.
    pub fn settled(&mut self) -> usize {
        let mut count = 0;
        while self.unsettled.front().is_some_and(|needs| *needs <= self.confirmed_count) {
            self.unsettled.pop_front();
            count += 1;
        }
        self.settled_count += count as u64;
        count
    }

    /// The fate of everything on its way is unknown: it is forgotten, and so is every message that is not settled. Receipts
    /// on their way are owed again.
    pub fn rewind(&mut self) {
        self.made.clear();
        self.unsettled.clear();
        self.forget_sums();
        self.made_count = self.confirmed_count;
        self.receipts_in_doubt();
        self.pulse.iter_mut().for_each(Pulse::is_due_again);
        for UnderWay { place, change, .. } in self.in_flight.drain(..) {
            let device = &mut self.devices[place];
            device.rewind();
            device.retell |= matches!(change, Change::Liveness { .. });
        }
    }

    /// How many publications were made in this border's life.
    pub const fn made(&self) -> u64 {
        self.made_count
    }

    /// How many of them are in LEDGER. After [`Border::rewind`] those that were under way are neither.
    pub const fn arrived(&self) -> u64 {
        self.confirmed_count
    }

    /// Publications that are not confirmed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Messages that are not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Devices known.
    pub fn devices(&self) -> usize {
        self.places.len()
    }

    fn place(&mut self, key: &DeviceKey) -> usize {
        if let Some(place) = self.places.get(key) {
            return *place;
        }
        self.devices.push(Device::of(key.clone()));
        let place = self.devices.len() - 1;
        self.places.insert(key.clone(), place);
        place
    }

    /// Makes a publication: from now on it counts as on its way.
    fn publish(&mut self, place: usize, subject: LedgerSubject, fact: &Fact, id: Option<String>) {
        self.publish_written(place, subject, fact, fact.to_bytes(), id);
    }

    fn publish_written(
        &mut self,
        place: usize,
        subject: LedgerSubject,
        fact: &Fact,
        payload: Vec<u8>,
        id: Option<String>,
    ) {
        let deployment = match &subject {
            LedgerSubject::Deadline(_, id) => Some(id),
            _ => None,
        };
        let Some(change) = Change::of(fact, deployment, self.now) else { return };
        self.devices[place].send(&change);
        self.in_flight.push_back(UnderWay { place, change, cause: self.taking });
        self.made_count += 1;
        self.made.push_back(Publication { subject, kind: fact.kind(), payload, id });
    }
}

#[cfg(test)]
mod tests;
