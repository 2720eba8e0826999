//! A stream in memory that loses publishes and answers, and has other writers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{ApiError, NoAnswer, PublishError, ReadError, Trace};
use muster_contract::desired::DesiredState;
use muster_contract::rollout::RolloutDecisions;
use muster_contract::{DeploymentId, DeviceKey, decode};

use crate::downlink::{Downlink, Message, OutgoingDocument, SubjectState};
use crate::published::claimed_generation;

/// The result of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is stored and confirmed.
    None,
    /// The stream does not get it.
    Lost,
    /// It is stored, and the answer is lost.
    Unanswered,
    /// Another writer writes first.
    Overtaken,
}

/// A stream with compare-and-set. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Stream(pub(super) Arc<Mutex<Stored>>);

#[derive(Default)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) last: BTreeMap<DeviceKey, (u64, DesiredState)>,
    /// Every generation each device got, in order.
    pub(super) generations: BTreeMap<DeviceKey, Vec<u64>>,
    /// Every message each device got, as LEDGER has them as well.
    pub(super) history: BTreeMap<DeviceKey, Vec<Bytes>>,
    /// The sequence of garbage that is newer than the last document.
    pub(super) garbage: BTreeMap<DeviceKey, u64>,
    pub(super) faults: VecDeque<Fault>,
    /// The newest decisions about each deployment's rollouts.
    pub(super) decisions: BTreeMap<DeploymentId, (u64, RolloutDecisions)>,
    pub(super) reads_fail: usize,
    /// The number of reads of one device.
    pub(super) reads: usize,
    /// The duration of each of those reads.
    pub(super) read_takes: Duration,
}

impl Stored {
    pub(super) fn put(&mut self, key: &DeviceKey, document: DesiredState) -> u64 {
        self.sequence += 1;
        self.generations.entry(key.clone()).or_default().push(document.generation.get());
        self.history.entry(key.clone()).or_default().push(decode::to_bytes(&document).into());
        self.garbage.remove(key);
        self.last.insert(key.clone(), (self.sequence, document));
        self.sequence
    }

    /// Stores the last document of a device once more; its old and its new sequence.
    pub(super) fn republish(&mut self, key: &DeviceKey) -> (u64, u64) {
        self.sequence += 1;
        let (sequence, _) = self.last.get_mut(key).unwrap();
        (std::mem::replace(sequence, self.sequence), self.sequence)
    }

    pub(super) fn spoil(&mut self, key: &DeviceKey) {
        self.sequence += 1;
        self.garbage.insert(key.clone(), self.sequence);
    }

    fn message(&self, key: &DeviceKey) -> Option<Message> {
        let garbage = self.garbage.get(key).map(|at| Message {
            sequence: *at,
            payload: "garbage".into(),
            published_as: None,
        });
        garbage.or_else(|| self.last.get(key).map(|last| message(key, last)))
    }

    fn publish(&mut self, outgoing: &OutgoingDocument) -> Result<u64, PublishError> {
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        let refused = |cause| Err(PublishError::new("muster.desired", cause));
        let silence = ApiError::NoAnswer(NoAnswer::Disconnected);
        if fault == Fault::Lost {
            return refused(silence);
        }
        if fault == Fault::Overtaken {
            let mut theirs = outgoing.document.clone();
            theirs.deployments.clear();
            self.put(&outgoing.key, theirs);
        }
        let last = self.message(&outgoing.key).map_or(0, |message| message.sequence);
        if last != outgoing.expected_sequence {
            return refused(ApiError::Refused { code: 10071, description: "wrong last sequence".to_owned() });
        }
        let sequence = self.put(&outgoing.key, outgoing.document.clone());
        if fault == Fault::Unanswered { refused(silence) } else { Ok(sequence) }
    }

    fn store_decisions(&mut self, decisions: &RolloutDecisions, expected: u64) -> Result<u64, PublishError> {
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        let refused = |cause| Err(PublishError::new("muster.rollout", cause));
        let silence = ApiError::NoAnswer(NoAnswer::Disconnected);
        let id = decisions.deployment.clone();
        if fault == Fault::Lost {
            return refused(silence);
        }
        if fault == Fault::Overtaken {
            self.sequence += 1;
            self.decisions.insert(id.clone(), (self.sequence, RolloutDecisions::new(id.clone())));
        }
        if self.decisions.get(&id).map_or(0, |(sequence, _)| *sequence) != expected {
            return refused(ApiError::Refused { code: 10071, description: "wrong last sequence".to_owned() });
        }
        self.sequence += 1;
        self.decisions.insert(id, (self.sequence, decisions.clone()));
        if fault == Fault::Unanswered { refused(silence) } else { Ok(self.sequence) }
    }

    fn read(&mut self) -> Result<(), ReadError> {
        if self.reads_fail == 0 {
            return Ok(());
        }
        self.reads_fail -= 1;
        Err(ReadError::TimedOut { what: "DOWNLINK".to_owned() })
    }
}

fn message(key: &DeviceKey, (sequence, document): &(u64, DesiredState)) -> Message {
    let published_as = Some(crate::downlink::event_id(key, document.generation));
    Message { sequence: *sequence, payload: decode::to_bytes(document).into(), published_as }
}

fn decisions_message((sequence, decisions): &(u64, RolloutDecisions)) -> Message {
    Message { sequence: *sequence, payload: decode::to_bytes(decisions).into(), published_as: None }
}

impl Downlink for Stream {
    async fn all_subjects(&self) -> Result<BTreeMap<DeviceKey, SubjectState>, ReadError> {
        let mut stored = self.0.lock().unwrap();
        stored.read()?;
        let subject = |key: &DeviceKey| {
            let last = stored.message(key).unwrap();
            SubjectState { highest: claimed_generation(&last.payload), last }
        };
        Ok(stored.last.keys().map(|key| (key.clone(), subject(key))).collect())
    }

    async fn copies(
        &self,
        _: &BTreeMap<DeviceKey, SubjectState>,
    ) -> Result<Vec<(DeviceKey, Bytes)>, ReadError> {
        let stored = self.0.lock().unwrap();
        let newest = |(key, all): (&DeviceKey, &Vec<Bytes>)| Some((key.clone(), all.last()?.clone()));
        Ok(stored.history.iter().filter_map(newest).collect())
    }

    async fn all_decisions(&self) -> Result<BTreeMap<DeploymentId, Message>, ReadError> {
        let stored = self.0.lock().unwrap();
        Ok(stored.decisions.iter().map(|(id, last)| (id.clone(), decisions_message(last))).collect())
    }

    async fn decisions(&self, deployment: &DeploymentId) -> Result<Option<Message>, ReadError> {
        Ok(self.0.lock().unwrap().decisions.get(deployment).map(decisions_message))
    }

    async fn store_decisions(
        &self,
        decisions: &RolloutDecisions,
        expected: u64,
        _: Trace,
    ) -> Result<u64, PublishError> {
        self.0.lock().unwrap().store_decisions(decisions, expected)
    }

    async fn history(&self, key: &DeviceKey) -> Result<Vec<Bytes>, ReadError> {
        Ok(self.0.lock().unwrap().history.get(key).cloned().unwrap_or_default())
    }

    async fn last(&self, key: &DeviceKey) -> Result<Option<Message>, ReadError> {
        let takes = self.0.lock().unwrap().read_takes;
        tokio::time::sleep(takes).await;
        let mut stored = self.0.lock().unwrap();
        stored.reads += 1;
        stored.read()?;
        Ok(stored.message(key))
    }

    async fn reported(&self, _: &DeviceKey) -> Result<bool, ReadError> {
        Ok(false)
    }

    async fn publish(&self, documents: Vec<OutgoingDocument>) -> Vec<Result<u64, PublishError>> {
        let mut stored = self.0.lock().unwrap();
        documents.iter().map(|outgoing| stored.publish(outgoing)).collect()
    }
}
