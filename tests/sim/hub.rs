//! The simulated bus: five streams with positions, message ids that are recognised for a while, a floor for each
//! partition, and a backup. It stores and answers; other modules decide whether its answers arrive.

use std::collections::BTreeMap;
use std::rc::Rc;

use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::subjects::LedgerSubject;

use super::agenda::{Millis, moment};
use super::quarantine::Quarantine;

/// A message with one report or several as UPLINK keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    /// Who sent it.
    pub(crate) device: usize,
    /// Its document.
    pub(crate) bytes: Rc<[u8]>,
    /// Epoch and number of each of its reports, unless it was damaged in flight.
    pub(crate) numbers: Vec<(u64, u64)>,
    /// The reports that a batch says it has; `None` for a single report.
    pub(crate) reports: Option<String>,
    /// When it was stored, by the hub's clock.
    pub(crate) at: Timestamp,
    /// The hostile device of the same partition sent it.
    pub(crate) invented: bool,
}

/// A heartbeat as PRESENCE keeps it.
#[derive(Debug, Clone)]
pub(crate) struct StoredHeartbeat {
    /// Its position.
    pub(crate) position: u64,
    /// Its document.
    pub(crate) bytes: Rc<[u8]>,
    /// When it was stored, by the hub's clock.
    pub(crate) at: Timestamp,
}

/// A fact as LEDGER keeps it; its position is its index in the list, from 1.
#[derive(Debug, Clone)]
pub(crate) struct StoredFact {
    /// Its subject.
    pub(crate) subject: LedgerSubject,
    /// The fact, serialised and parsed by the readers' own parser.
    pub(crate) fact: Fact,
    /// When it was stored, by the hub's clock.
    pub(crate) at: Timestamp,
    id: Option<String>,
}

impl StoredFact {
    /// A fact that was stored before the world began.
    pub(crate) const fn old(subject: LedgerSubject, fact: Fact, at: Timestamp) -> Self {
        Self { subject, fact, at, id: None }
    }
}

/// The answer to a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The stream stores it at this position.
    Stored(u64),
    /// It is not stored.
    Refused,
    /// It is not stored: UPLINK holds as much of this device as it may.
    ShareFull,
}

/// Acknowledgements at multiples of this position leave their reports to the next trim, as if the devices were over quota.
const HELD_PART: u64 = 4;

/// The content of a backup.
#[derive(Debug, Clone, Default)]
struct Backup {
    uplink: BTreeMap<u64, Stored>,
    floors: Vec<u64>,
    ledger: usize,
    quarantine: Quarantine,
}

/// The bus.
#[derive(Debug)]
pub(crate) struct Hub {
    /// Reports of one device that UPLINK holds at most.
    share: usize,
    /// The number of the present connection.
    pub(crate) connection: u64,
    /// Until when UPLINK refuses to store, and until when LEDGER and DOWNLINK do: each stream has a leader of its own.
    pub(crate) refuses_until: (Millis, Millis),
    /// The error of the hub's clock.
    pub(crate) clock: Millis,
    /// Reports by position.
    pub(crate) uplink: BTreeMap<u64, Stored>,
    uplink_last: u64,
    /// The position up to which each partition is acknowledged.
    pub(crate) floors: Vec<u64>,
    /// The last heartbeat of each device.
    pub(crate) presence: Vec<Option<StoredHeartbeat>>,
    presence_last: u64,
    /// Every desired state of each device, the newest last.
    pub(crate) desired: Vec<Vec<(Rc<[u8]>, Timestamp)>>,
    /// The last receipt of each device.
    pub(crate) receipts: Vec<Option<Rc<[u8]>>>,
    /// Facts.
    pub(crate) ledger: Vec<StoredFact>,
    /// Rejected reports.
    pub(crate) quarantine: Quarantine,
    /// The number of this LEDGER, which changes when it is restored from the backup.
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
            floors: vec![0; partitions],
            presence: vec![None; devices],
            presence_last: 0,
            desired: vec![Vec::new(); devices],
            receipts: vec![None; devices],
            ledger: Vec::new(),
            quarantine: Quarantine::new(share),
            origin: 1,
            backup: Backup {
                floors: vec![0; partitions],
                quarantine: Quarantine::new(share),
                ..Backup::default()
            },
        }
    }

    /// The time at the hub.
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

    /// Stores a report each time it arrives: reports have no message id.
    pub(crate) fn report(&mut self, now: Millis, mut stored: Stored) -> Answer {
        if now < self.refuses_until.0 {
            return Answer::Refused;
        }
        if self.uplink.values().filter(|other| other.device == stored.device).count() >= self.share {
            return Answer::ShareFull;
        }
        self.uplink_last += 1;
        stored.at = self.time(now);
        self.uplink.insert(self.uplink_last, stored);
        Answer::Stored(self.uplink_last)
    }

    /// Stores a heartbeat.
    pub(crate) fn beat(&mut self, now: Millis, device: usize, bytes: Rc<[u8]>) {
        self.presence_last += 1;
        let at = self.time(now);
        self.presence[device] = Some(StoredHeartbeat { position: self.presence_last, bytes, at });
    }

    /// Stores a fact.
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
        self.ledger.push(StoredFact { subject, fact, at, id });
        Answer::Stored(self.ledger.len() as u64)
    }

    /// Acknowledges the reports of a partition up to a position, and removes them at once; those of a device beyond its quota are
    /// removed later.
    pub(crate) fn acknowledge(&mut self, partition: usize, position: u64) {
        self.floors[partition] = self.floors[partition].max(position);
        if !position.is_multiple_of(HELD_PART) {
            self.trim_partition(partition);
        }
    }

    /// Removes the acknowledged reports.
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

    /// Restarts the server: PRESENCE, which is in memory, is lost.
    pub(crate) fn restart(&mut self) {
        self.connection += 1;
        self.presence.fill(None);
    }

    /// Makes a backup of the streams on disk.
    pub(crate) fn back_up(&mut self) {
        self.backup = Backup {
            uplink: self.uplink.clone(),
            floors: self.floors.clone(),
            ledger: self.ledger.len(),
            quarantine: self.quarantine.clone(),
        };
    }

    /// Restores the backup. The publisher publishes lost desired states again, so those stay.
    pub(crate) fn restore(&mut self) {
        self.restart();
        self.origin += 1;
        self.uplink = self.backup.uplink.clone();
        self.floors = self.backup.floors.clone();
        self.ledger.truncate(self.backup.ledger);
        self.quarantine = self.backup.quarantine.clone();
        self.receipts.fill(None);
    }

    /// A hash of LEDGER, by which two runs can be compared.
    pub(crate) fn fingerprint(&self) -> u64 {
        let text = self.ledger.iter().map(|said| format!("{}{}{:?}", said.subject, said.at, said.id));
        let mark = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.fold(0xcbf2_9ce4_8422_2325, |hash, line| line.bytes().fold(hash, mark))
    }
}
