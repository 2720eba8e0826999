//! The fold: facts of LEDGER in, in their order, and all devices as they are then. It can be written down and read again, so
//! that nobody has to read LEDGER from its beginning twice.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_contract::DeviceKey;
use muster_contract::fact::{Fact, Hearing, HearingFact};
use muster_contract::partition::partition_of;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::AsOf;
use serde::{Deserialize, Serialize};

use crate::device::Device;

/// All devices as of a fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    /// The last fact that was taken in.
    pub as_of: AsOf,
    /// Partitions that the hub does not listen to, and since when.
    pub(crate) unheard: BTreeMap<u16, Timestamp>,
    #[serde(with = "listed")]
    pub(crate) devices: BTreeMap<DeviceKey, Device>,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            as_of: AsOf { ledger_seq: 0, at: Timestamp::UNIX_EPOCH },
            unheard: BTreeMap::new(),
            devices: BTreeMap::new(),
        }
    }
}

impl Fleet {
    /// Takes in the next message of LEDGER. What is about no device, and what cannot be read, only moves the place. A pulse
    /// does not even that: LEDGER keeps it for a short time only, and a place is a message that stays.
    pub fn apply(&mut self, as_of: AsOf, subject: &str, payload: &[u8]) {
        let subject = LedgerSubject::parse(subject);
        if matches!(subject, Some(LedgerSubject::Hub(_))) {
            return;
        }
        self.as_of = as_of;
        let Some(subject) = subject else { return };
        let Ok(fact) = Fact::parse(&subject, payload) else { return };
        if let (LedgerSubject::Hearing(partition), Fact::Hearing(fact)) = (&subject, &fact) {
            self.take_hearing(*partition, fact);
        }
        let Some(key) = subject.device() else { return };
        let unheard = self.unheard.contains_key(&partition_of(key));
        let device = self.devices.entry(key.clone()).or_insert_with(|| Device::new(unheard));
        match (&subject, fact) {
            (_, Fact::Desired(fact)) => device.take_desired(fact),
            (LedgerSubject::Status(_, id), Fact::Status(fact)) => device.take_status(id, fact),
            (_, Fact::Device(fact)) => device.take_report(fact.epoch, fact.seq, fact.head, &fact.coalesced),
            (_, Fact::Liveness(fact)) => device.take_liveness(&fact),
            (LedgerSubject::Deadline(_, id), Fact::Deadline(fact)) => device.take_deadline(id, &fact),
            (_, Fact::Quarantine(fact)) => device.take_quarantine(&fact),
            (_, Fact::Verdict(fact)) => device.take_verdict(&fact),
            _ => {}
        }
    }

    /// The newest word on a partition holds.
    fn take_hearing(&mut self, partition: u16, fact: &HearingFact) {
        match fact.state {
            Hearing::Stopped => _ = self.unheard.insert(partition, fact.since),
            Hearing::Resumed => _ = self.unheard.remove(&partition),
        }
        let unheard = self.unheard.contains_key(&partition);
        let here = self.devices.iter_mut().filter(|(key, _)| partition_of(key) == partition);
        here.for_each(|(_, device)| device.unheard = unheard);
    }
}

/// A device's key is no text, so devices are written as a list.
mod listed {
    use super::{BTreeMap, Deserialize, Device, DeviceKey, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        devices: &BTreeMap<DeviceKey, Device>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        devices.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<DeviceKey, Device>, D::Error> {
        Vec::deserialize(deserializer).map(|devices| devices.into_iter().collect())
    }
}
