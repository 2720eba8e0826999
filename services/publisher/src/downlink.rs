//! Reads and writes DOWNLINK: reads the documents of all devices or of one and the decisions about rollouts, and publishes
//! with compare-and-set. It also reads LEDGER's copies, for documents that DOWNLINK has lost. It decides nothing;
//! [`Downlink`] is a trait so that tests can run the announcer on a stream that fails on purpose.

use std::collections::BTreeMap;
use std::future::Future;

use bytes::Bytes;
use muster_bus::event::attributes;
use muster_bus::{Bus, Delivery, Outgoing, PublishError, ReadError, Replay, Start, Trace};
use muster_contract::decode::{self, Document};
use muster_contract::desired::DesiredState;
use muster_contract::headers::{CE_ID, CE_SOURCE};
use muster_contract::rollout::RolloutDecisions;
use muster_contract::subjects::{LedgerSubject, ROLLOUTS, desired, rollout, stream};
use muster_contract::{DeploymentId, DeviceKey, Generation};

use crate::published::claimed_generation;

/// Documents under way at once: enough to fill the link, and few enough to be confirmed within a second.
const IN_FLIGHT: usize = 256;
/// Documents read at once.
const BATCH: usize = 1000;
/// The subjects of all devices.
const ALL_SUBJECTS: &str = "muster.desired.>";
/// The `ce-source` of the publisher's documents.
pub(crate) const EVENT_SOURCE: &str = "muster-publisher";

/// The event id of a publisher's document.
pub(crate) fn event_id(key: &DeviceKey, generation: Generation) -> String {
    format!("{}.{}.{generation}", key.site, key.device)
}

/// The last message of a device's subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its sequence.
    pub sequence: u64,
    /// The payload, which should be a document.
    pub payload: Bytes,
    /// The event id, if the headers are a publisher's.
    pub published_as: Option<String>,
}

impl From<Delivery> for Message {
    fn from(delivery: Delivery) -> Self {
        let Delivery { payload, stream_seq: sequence, headers, .. } = delivery;
        let is_publishers = headers.get(CE_SOURCE) == Some(EVENT_SOURCE);
        let published_as = headers.get(CE_ID).filter(|_| is_publishers).map(str::to_owned);
        Self { sequence, payload, published_as }
    }
}

/// The messages of one device in DOWNLINK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectState {
    /// The newest message.
    pub last: Message,
    /// The highest generation that any of its messages claims.
    pub highest: Option<Generation>,
}

/// A document to publish.
#[derive(Debug, Clone)]
pub struct OutgoingDocument {
    /// The device.
    pub key: DeviceKey,
    /// The document.
    pub document: DesiredState,
    /// Sequence of the message that it follows, 0 for none.
    pub expected_sequence: u64,
    /// Its trace.
    pub trace: Trace,
}

/// The stream of desired states.
pub trait Downlink: Send + Sync + 'static {
    /// The state of every device's subject.
    fn all_subjects(
        &self,
    ) -> impl Future<Output = Result<BTreeMap<DeviceKey, SubjectState>, ReadError>> + Send;

    /// LEDGER's newest copy for every device, if it claims a generation above that in `known`.
    fn copies(
        &self,
        known: &BTreeMap<DeviceKey, SubjectState>,
    ) -> impl Future<Output = Result<Vec<(DeviceKey, Bytes)>, ReadError>> + Send;

    /// All messages of one device that DOWNLINK or LEDGER has, oldest first in each.
    fn history(&self, key: &DeviceKey) -> impl Future<Output = Result<Vec<Message>, ReadError>> + Send;

    /// The last message of one device.
    fn last(&self, key: &DeviceKey) -> impl Future<Output = Result<Option<Message>, ReadError>> + Send;

    /// Whether LEDGER has a liveness fact of the device.
    fn reported(&self, key: &DeviceKey) -> impl Future<Output = Result<bool, ReadError>> + Send;

    /// The newest messages of decisions about rollouts.
    fn all_decisions(&self) -> impl Future<Output = Result<Vec<Message>, ReadError>> + Send;

    /// The newest decisions about a deployment's rollouts under the `rollout.yaml` at a path.
    fn decisions(
        &self,
        deployment: &DeploymentId,
        path: &str,
    ) -> impl Future<Output = Result<Option<Message>, ReadError>> + Send;

    /// Stores decisions about rollouts under a `rollout.yaml` behind the message with the sequence `expected`, 0 for none;
    /// returns their sequence.
    fn store_decisions(
        &self,
        path: &str,
        decisions: &RolloutDecisions,
        expected: u64,
        trace: Trace,
    ) -> impl Future<Output = Result<u64, PublishError>> + Send;

    /// Publishes documents of different devices; returns the sequence or the error of each, in the same order.
    fn publish(
        &self,
        documents: Vec<OutgoingDocument>,
    ) -> impl Future<Output = Vec<Result<u64, PublishError>>> + Send;
}

impl Downlink for Bus {
    async fn all_subjects(&self) -> Result<BTreeMap<DeviceKey, SubjectState>, ReadError> {
        let mut subjects: BTreeMap<DeviceKey, SubjectState> = BTreeMap::new();
        let mut replay = self.replay(stream::DOWNLINK, &[ALL_SUBJECTS], Start::First).await?;
        read_current(&mut replay, |delivery| {
            let Some((key, last)) = addressed(delivery) else { return };
            let before = subjects.get(&key).and_then(|subject| subject.highest);
            let highest = before.max(claimed_generation(&last.payload));
            subjects.insert(key, SubjectState { last, highest });
        })
        .await?;
        Ok(subjects)
    }

    async fn copies(
        &self,
        known: &BTreeMap<DeviceKey, SubjectState>,
    ) -> Result<Vec<(DeviceKey, Bytes)>, ReadError> {
        let mut copies = Vec::new();
        let mut replay = self.replay(stream::LEDGER, &[ALL_SUBJECTS], Start::LastPerSubject).await?;
        read_current(&mut replay, |delivery| {
            let Some((key, Message { payload, .. })) = addressed(delivery) else { return };
            let subject = known.get(&key);
            if subject.is_none() || claimed_generation(&payload) > subject.and_then(|subject| subject.highest)
            {
                copies.push((key, payload));
            }
        })
        .await?;
        Ok(copies)
    }

    async fn history(&self, key: &DeviceKey) -> Result<Vec<Message>, ReadError> {
        let mut messages = Vec::new();
        for stream in [stream::DOWNLINK, stream::LEDGER] {
            let mut replay = self.replay(stream, &[&desired(key)], Start::First).await?;
            read_current(&mut replay, |delivery| messages.push(delivery.into())).await?;
        }
        Ok(messages)
    }

    async fn last(&self, key: &DeviceKey) -> Result<Option<Message>, ReadError> {
        let last = Self::last(self, stream::DOWNLINK, &desired(key)).await?;
        Ok(last.map(Message::from))
    }

    async fn reported(&self, key: &DeviceKey) -> Result<bool, ReadError> {
        let liveness = LedgerSubject::Liveness(key.clone()).to_string();
        Ok(Self::last(self, stream::LEDGER, &liveness).await?.is_some())
    }

    async fn all_decisions(&self) -> Result<Vec<Message>, ReadError> {
        let mut newest = Vec::new();
        let mut replay = self.replay(stream::DOWNLINK, &[ROLLOUTS], Start::LastPerSubject).await?;
        read_current(&mut replay, |delivery| newest.push(delivery.into())).await?;
        Ok(newest)
    }

    async fn decisions(&self, deployment: &DeploymentId, path: &str) -> Result<Option<Message>, ReadError> {
        let last = Self::last(self, stream::DOWNLINK, &rollout(deployment, path)).await?;
        Ok(last.map(Message::from))
    }

    async fn store_decisions(
        &self,
        path: &str,
        decisions: &RolloutDecisions,
        expected: u64,
        trace: Trace,
    ) -> Result<u64, PublishError> {
        let subject = rollout(&decisions.deployment, path);
        let id = format!("{subject}.{expected}");
        let outgoing = Outgoing {
            headers: attributes(EVENT_SOURCE, RolloutDecisions::KIND, &id, trace),
            expected_stream: Some(stream::DOWNLINK),
            expected_last_subject_sequence: Some(expected),
            ..Outgoing::new(subject, decode::to_bytes(decisions))
        };
        Ok(Self::publish(self, outgoing).await?.sequence)
    }

    async fn publish(&self, documents: Vec<OutgoingDocument>) -> Vec<Result<u64, PublishError>> {
        let mut answers = Vec::with_capacity(documents.len());
        let mut window = self.window(IN_FLIGHT);
        for outgoing in documents {
            window.send(outgoing.outgoing(), ()).await;
            while let Some(((), answer)) = window.try_next() {
                answers.push(answer.map(|stored| stored.sequence));
            }
        }
        while let Some(((), answer)) = window.next().await {
            answers.push(answer.map(|stored| stored.sequence));
        }
        answers
    }
}

/// Reads the current messages.
async fn read_current(replay: &mut Replay, mut take: impl FnMut(Delivery)) -> Result<(), ReadError> {
    while let Some(batch) = replay.next_present(BATCH).await? {
        batch.into_iter().for_each(&mut take);
    }
    Ok(())
}

/// A message with its device; `None`, with a warning, if the subject names none.
fn addressed(delivery: Delivery) -> Option<(DeviceKey, Message)> {
    match LedgerSubject::parse(&delivery.subject) {
        Some(LedgerSubject::Desired(key)) => Some((key, delivery.into())),
        _ => {
            tracing::warn!(
                subject = delivery.subject,
                "ignored a subject of desired states that names no device"
            );
            None
        }
    }
}

impl OutgoingDocument {
    fn outgoing(&self) -> Outgoing {
        let Self { key, document, expected_sequence, trace } = self;
        let id = event_id(key, document.generation);
        Outgoing {
            headers: attributes(EVENT_SOURCE, DesiredState::KIND, &id, *trace),
            expected_stream: Some(stream::DOWNLINK),
            expected_last_subject_sequence: Some(*expected_sequence),
            ..Outgoing::new(desired(key), decode::to_bytes(document))
        }
    }
}
