//! The hub's streams: DOWNLINK with compare-and-set and its whole past, and LEDGER. It executes operations and loses none;
//! faults are the world's.

use std::collections::BTreeMap;

use bytes::Bytes;
use muster_bus::{ApiError, PublishError};
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::fact::Fact;
use muster_contract::rollout::{RolloutDecisions, RolloutRecord};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_publisher::downlink::{Message, OutgoingDocument, SubjectState};

use super::wire::StoreDecisions;

/// JetStream's code of a compare-and-set that failed.
const WRONG_LAST_SEQUENCE: u64 = 10_071;

/// A deployment and the path of its `rollout.yaml`.
pub(crate) type Subject = (DeploymentId, String);

/// The streams.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    sequence: u64,
    /// Every document of each device, oldest first.
    pub(crate) documents: BTreeMap<DeviceKey, Vec<(u64, DesiredState)>>,
    /// All documents in DOWNLINK's order.
    pub(crate) log: Vec<(u64, DeviceKey, DesiredState)>,
    /// The newest decisions of each subject.
    pub(crate) decisions: BTreeMap<Subject, (u64, RolloutDecisions)>,
    /// The messages of these, which are read much more often than they are written.
    messages: BTreeMap<Subject, Message>,
    /// LEDGER's facts; the first has the sequence 1.
    pub(crate) ledger: Vec<(Timestamp, LedgerSubject, Fact)>,
}

fn refused(subject: &str) -> PublishError {
    let description = "wrong last sequence".to_owned();
    PublishError::new(subject, ApiError::Refused { code: WRONG_LAST_SEQUENCE, description })
}

/// A document as DOWNLINK holds it.
pub(crate) fn message(key: &DeviceKey, (sequence, document): &(u64, DesiredState)) -> Message {
    let published_as = Some(format!("{}.{}.{}", key.site, key.device, document.generation));
    Message { sequence: *sequence, payload: decode::to_bytes(document).into(), published_as }
}

impl Hub {
    pub(crate) fn all_subjects(&self) -> BTreeMap<DeviceKey, SubjectState> {
        let subject = |(key, all): (&DeviceKey, &Vec<(u64, DesiredState)>)| {
            let last = all.last()?;
            let highest = Some(last.1.generation);
            Some((key.clone(), SubjectState { last: message(key, last), highest }))
        };
        self.documents.iter().filter_map(subject).collect()
    }

    pub(crate) fn copies(&self) -> Vec<(DeviceKey, Bytes)> {
        let newest: BTreeMap<_, _> = self
            .ledger
            .iter()
            .filter_map(|(_, subject, fact)| match (subject, fact) {
                (LedgerSubject::Desired(key), Fact::Desired(document)) => {
                    Some((key.clone(), decode::to_bytes(document).into()))
                }
                _ => None,
            })
            .collect();
        newest.into_iter().collect()
    }

    pub(crate) fn history(&self, key: &DeviceKey) -> Vec<Message> {
        self.documents.get(key).into_iter().flatten().map(|stored| message(key, stored)).collect()
    }

    pub(crate) fn last(&self, key: &DeviceKey) -> Option<Message> {
        self.documents.get(key)?.last().map(|stored| message(key, stored))
    }

    pub(crate) fn document(&self, key: &DeviceKey) -> Option<&DesiredState> {
        self.documents.get(key)?.last().map(|(_, document)| document)
    }

    pub(crate) fn all_decisions(&self) -> Vec<Message> {
        self.messages.values().cloned().collect()
    }

    pub(crate) fn decisions_of(&self, subject: &Subject) -> Option<Message> {
        self.messages.get(subject).cloned()
    }

    /// The decisions about a rollout.
    pub(crate) fn record(
        &self,
        subject: &Subject,
        digest: muster_contract::canonical::Digest,
    ) -> Option<&RolloutRecord> {
        self.decisions.get(subject)?.1.of(digest)
    }

    pub(crate) fn store_document(&mut self, outgoing: &OutgoingDocument) -> Result<u64, PublishError> {
        let all = self.documents.entry(outgoing.key.clone()).or_default();
        if all.last().map_or(0, |(sequence, _)| *sequence) != outgoing.expected_sequence {
            return Err(refused("muster.desired"));
        }
        self.sequence += 1;
        all.push((self.sequence, outgoing.document.clone()));
        self.log.push((self.sequence, outgoing.key.clone(), outgoing.document.clone()));
        Ok(self.sequence)
    }

    /// Stores decisions; without `is_checked`, whatever the newest message is.
    pub(crate) fn store_decisions(
        &mut self,
        store: &StoreDecisions,
        is_checked: bool,
    ) -> Result<u64, PublishError> {
        let subject = (store.decisions.deployment.clone(), store.path.clone());
        let newest = self.decisions.get(&subject).map_or(0, |(sequence, _)| *sequence);
        if is_checked && newest != store.expected {
            return Err(refused("muster.rollout"));
        }
        self.sequence += 1;
        let payload = decode::to_bytes(&store.decisions).into();
        let message = Message { sequence: self.sequence, payload, published_as: None };
        self.messages.insert(subject.clone(), message);
        self.decisions.insert(subject, (self.sequence, store.decisions.clone()));
        Ok(self.sequence)
    }

    /// How far DOWNLINK and LEDGER go.
    pub(crate) const fn version(&self) -> (u64, usize) {
        (self.sequence, self.ledger.len())
    }

    /// Appends a fact to LEDGER.
    pub(crate) fn append(&mut self, at: Timestamp, subject: LedgerSubject, fact: Fact) {
        self.ledger.push((at, subject, fact));
    }
}
