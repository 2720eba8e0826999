//! The bus as its clients see it: four streams with positions, message ids that are known for a while, a floor for each
//! partition, and a backup. It stores and answers; what becomes of answers on their way is others' affair.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::limits::DEVICE_DUPLICATE_WINDOW;
use muster_contract::subjects::LedgerSubject;

use super::agenda::{Millis, moment};

/// A report as UPLINK keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Who sent it.
    pub(crate) device: usize,
    /// What it says.
    pub(crate) bytes: Rc<[u8]>,
    /// Its epoch and number, unless it was spoilt on its way.
    pub(crate) number: Option<(u64, u64)>,
    /// When it was stored, by the hub's clock.
    pub(crate) at: Timestamp,
    /// It is the hostile device's of the same partition.
    pub(crate) invented: bool,
}

/// A heartbeat as PRESENCE keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    /// Its position.
    pub(crate) position: u64,
    /// What it says.
    pub(crate) bytes: Rc<[u8]>,
    /// When it was stored, by the hub's clock.
    pub(crate) at: Timestamp,
}

/// A fact as LEDGER keeps it; its position is its place in the list, from 1.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    /// Its subject.
    pub(crate) subject: LedgerSubject,
    /// What it says: written and read again by the readers' own parser.
    pub(crate) fact: Fact,
    /// When it was stored, by the hub's clock.
    pub(crate) at: Timestamp,
    id: Option<String>,
}

/// What a publish is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is stored, under this position; it may have been before.
    Stored(u64),
    /// It is not.
    Refused,
    /// It is not: UPLINK holds as much of this device as it may.
    ShareFull,
}

/// One in so many acknowledgements leaves what it covers to the next trim: as if its devices were beyond their quota.
const HELD_PART: u64 = 4;

/// What a backup holds.
#[derive(Debug, Clone, Default)]
struct Backup {
    uplink: BTreeMap<u64, Stored>,
    floors: Vec<u64>,
    ledger: usize,
}

/// Message ids and when they came.
#[derive(Debug, Default)]
struct Ids(HashMap<String, (u64, Millis)>);

impl Ids {
    fn known(&self, id: &str, now: Millis) -> Option<u64> {
        let (position, at) = self.0.get(id)?;
        (now - at <= DEVICE_DUPLICATE_WINDOW.as_millis() as Millis).then_some(*position)
    }

    fn note(&mut self, id: &str, position: u64, now: Millis) {
        self.0.insert(id.to_owned(), (position, now));
    }
}

/// The bus.
#[derive(Debug)]
pub(crate) struct Hub {
    /// Reports of one device that UPLINK holds at most.
    share: usize,
    /// Every connection counts from here; another number is another connection.
    pub(crate) connection: u64,
    /// Until when UPLINK refuses to store, and until when LEDGER and DOWNLINK do: each stream has a leader of its own.
    pub(crate) refuses_until: (Millis, Millis),
    /// How far the hub's clock is off.
    pub(crate) clock: Millis,
    /// Reports by position.
    pub(crate) uplink: BTreeMap<u64, Stored>,
    uplink_last: u64,
    uplink_ids: Ids,
    /// Up to where each partition is acknowledged.
    pub(crate) floors: Vec<u64>,
    /// The last heartbeat of each device.
    pub(crate) presence: Vec<Option<Pulse>>,
    presence_last: u64,
    /// Every desired state of each device, the newest last.
    pub(crate) desired: Vec<Vec<(Rc<[u8]>, Timestamp)>>,
    /// The last receipt of each device.
    pub(crate) receipts: Vec<Option<Rc<[u8]>>>,
    /// Facts.
    pub(crate) ledger: Vec<Said>,
    /// Which LEDGER this is: another one after it was set back.
    pub(crate) origin: u64,
    backup: Backup,
}

impl Hub {
    /// An empty bus for so many devices and partitions, with a share of UPLINK for each device.
    pub(crate) fn new(devices: usize, partitions: usize, share: usize) -> Self {
        Self {
            share,
            connection: 1,
            refuses_until: (0, 0),
            clock: 0,
            uplink: BTreeMap::new(),
            uplink_last: 0,
            uplink_ids: Ids::default(),
            floors: vec![0; partitions],
            presence: vec![None; devices],
            presence_last: 0,
            desired: vec![Vec::new(); devices],
            receipts: vec![None; devices],
            ledger: Vec::new(),
            origin: 1,
            backup: Backup { floors: vec![0; partitions], ..Backup::default() },
        }
    }

    /// What time it is at the hub.
    pub(crate) fn time(&self, now: Millis) -> Timestamp {
        moment(now + self.clock)
    }

    /// The partition of a device.
    pub(crate) const fn partition(&self, device: usize) -> usize {
        device % self.floors.len()
    }

    /// The last position given in UPLINK.
    pub(crate) const fn uplink_last(&self) -> u64 {
        self.uplink_last
    }

    /// Takes a report in.
    pub(crate) fn report(&mut self, now: Millis, id: &str, mut stored: Stored) -> Answer {
        if now < self.refuses_until.0 {
            return Answer::Refused;
        }
        if let Some(position) = self.uplink_ids.known(id, now) {
            return Answer::Stored(position);
        }
        if self.uplink.values().filter(|other| other.device == stored.device).count() >= self.share {
            return Answer::ShareFull;
        }
        self.uplink_last += 1;
        stored.at = self.time(now);
        self.uplink_ids.note(id, self.uplink_last, now);
        self.uplink.insert(self.uplink_last, stored);
        Answer::Stored(self.uplink_last)
    }

    /// Takes a heartbeat in.
    pub(crate) fn beat(&mut self, now: Millis, device: usize, bytes: Rc<[u8]>) {
        self.presence_last += 1;
        let at = self.time(now);
        self.presence[device] = Some(Pulse { position: self.presence_last, bytes, at });
    }

    /// Takes a fact in.
    pub(crate) fn fact(
        &mut self,
        now: Millis,
        subject: LedgerSubject,
        payload: &[u8],
        id: Option<String>,
    ) -> Answer {
        if now < self.refuses_until.1 {
            return Answer::Refused;
        }
        let fact = Fact::parse(&subject, payload).expect("ingest publishes what readers can read");
        let at = self.time(now);
        self.ledger.push(Said { subject, fact, at, id });
        Answer::Stored(self.ledger.len() as u64)
    }

    /// Acknowledges everything of a partition up to a position, which is removed at once; of a device beyond its quota it is
    /// removed later.
    pub(crate) fn acknowledge(&mut self, partition: usize, position: u64) {
        self.floors[partition] = self.floors[partition].max(position);
        if !position.is_multiple_of(HELD_PART) {
            self.trim_partition(partition);
        }
    }

    /// Removes everything that is acknowledged.
    pub(crate) fn trim(&mut self) {
        (0..self.floors.len()).for_each(|partition| self.trim_partition(partition));
    }

    fn trim_partition(&mut self, partition: usize) {
        let floor = self.floors[partition];
        let is_of = |stored: &Stored| self.partition(stored.device) == partition;
        let gone: Vec<_> =
            self.uplink.range(..=floor).filter(|(_, stored)| is_of(stored)).map(|(at, _)| *at).collect();
        gone.iter().for_each(|at| _ = self.uplink.remove(at));
    }

    /// It stops and starts again: what is in memory only is gone.
    pub(crate) fn restart(&mut self) {
        self.connection += 1;
        self.presence.fill(None);
    }

    /// Makes a backup of what is on disk.
    pub(crate) fn back_up(&mut self) {
        self.backup =
            Backup { uplink: self.uplink.clone(), floors: self.floors.clone(), ledger: self.ledger.len() };
    }

    /// Goes back to the backup. Its publisher publishes again what is lost of desired states, so those stay.
    pub(crate) fn restore(&mut self) {
        self.restart();
        self.origin += 1;
        self.uplink = self.backup.uplink.clone();
        self.floors = self.backup.floors.clone();
        self.ledger.truncate(self.backup.ledger);
        let uplink = &self.uplink;
        self.uplink_ids.0.retain(|_, (position, _)| uplink.contains_key(position));
        self.receipts.fill(None);
    }

    /// A mark of everything LEDGER holds, by which two runs can be compared.
    pub(crate) fn fingerprint(&self) -> u64 {
        let text = self.ledger.iter().map(|said| format!("{}{}{:?}", said.subject, said.at, said.id));
        let mark = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.fold(0xcbf2_9ce4_8422_2325, |hash, line| line.bytes().fold(hash, mark))
    }
}
