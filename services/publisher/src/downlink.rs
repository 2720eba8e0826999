//! DOWNLINK as the publisher uses it: read every device's documents once, read one again, publish with
//! compare-and-set; and the copies of them that LEDGER keeps, for when DOWNLINK has lost something. Nothing is decided
//! here; [`Downlink`] is a trait so that the announcer can be held against a
//! stream that fails at will.

use std::collections::BTreeMap;
use std::future::Future;

use bytes::Bytes;
use muster_bus::event::attributes;
use muster_bus::{Bus, Delivery, Outgoing, PublishError, ReadError, Replay, Start, Trace};
use muster_contract::decode::{self, Document};
use muster_contract::desired::DesiredState;
use muster_contract::headers::{CE_ID, CE_SOURCE};
use muster_contract::subjects::{LedgerSubject, desired, stream};
use muster_contract::{DeviceKey, Generation};

use crate::foreign::name;
use crate::held::claimed;

/// Documents under way at once: enough to fill the link, few enough to be confirmed within a second.
const IN_FLIGHT: usize = 256;
/// Documents read at once.
const BATCH: usize = 1000;
/// The documents of all devices.
const EVERYBODY: &str = "muster.desired.>";
/// Who publishes, as CloudEvents ask.
pub(crate) const EVENT_SOURCE: &str = "muster-publisher";

/// The last message of a device's subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its sequence.
    pub sequence: u64,
    /// The document, if it is one.
    pub payload: Bytes,
    /// The name that a publisher gave it, if one says so.
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

/// What DOWNLINK holds of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The newest message.
    pub last: Message,
    /// The highest generation that any of its messages claims.
    pub highest: Option<Generation>,
}

/// A document on its way.
#[derive(Debug, Clone)]
pub struct Letter {
    /// For whom.
    pub key: DeviceKey,
    /// What it says.
    pub document: DesiredState,
    /// Sequence of the message it follows, 0 for none.
    pub expected_sequence: u64,
    /// The trace it belongs to.
    pub trace: Trace,
}

/// The stream of documents to devices.
pub trait Downlink: Send + Sync + 'static {
    /// What it holds of every device.
    fn everybody(&self) -> impl Future<Output = Result<BTreeMap<DeviceKey, Subject>, ReadError>> + Send;

    /// The newest copy of every device's documents that LEDGER keeps, if it claims a generation above `known`.
    fn copies(
        &self,
        known: &BTreeMap<DeviceKey, Subject>,
    ) -> impl Future<Output = Result<Vec<(DeviceKey, Bytes)>, ReadError>> + Send;

    /// Every message of one device that it or LEDGER still has, oldest first in each.
    fn history(&self, key: &DeviceKey) -> impl Future<Output = Result<Vec<Bytes>, ReadError>> + Send;

    /// The last message of one device.
    fn last(&self, key: &DeviceKey) -> impl Future<Output = Result<Option<Message>, ReadError>> + Send;

    /// Whether a device ever made itself known to the hub.
    fn reported(&self, key: &DeviceKey) -> impl Future<Output = Result<bool, ReadError>> + Send;

    /// Publishes documents of different devices; for each, in their order, the sequence it got or why not.
    fn publish(&self, letters: Vec<Letter>) -> impl Future<Output = Vec<Result<u64, PublishError>>> + Send;
}

impl Downlink for Bus {
    async fn everybody(&self) -> Result<BTreeMap<DeviceKey, Subject>, ReadError> {
        let mut subjects: BTreeMap<DeviceKey, Subject> = BTreeMap::new();
        let mut replay = self.replay(stream::DOWNLINK, &[EVERYBODY], Start::First).await?;
        while_waiting(&mut replay, |delivery| {
            let Some((key, last)) = addressed(delivery) else { return };
            let before = subjects.get(&key).and_then(|subject| subject.highest);
            let highest = before.max(claimed(&last.payload));
            subjects.insert(key, Subject { last, highest });
        })
        .await?;
        Ok(subjects)
    }

    async fn copies(
        &self,
        known: &BTreeMap<DeviceKey, Subject>,
    ) -> Result<Vec<(DeviceKey, Bytes)>, ReadError> {
        let mut copies = Vec::new();
        let mut replay = self.replay(stream::LEDGER, &[EVERYBODY], Start::LastPerSubject).await?;
        while_waiting(&mut replay, |delivery| {
            let Some((key, Message { payload, .. })) = addressed(delivery) else { return };
            let subject = known.get(&key);
            if subject.is_none() || claimed(&payload) > subject.and_then(|subject| subject.highest) {
                copies.push((key, payload));
            }
        })
        .await?;
        Ok(copies)
    }

    async fn history(&self, key: &DeviceKey) -> Result<Vec<Bytes>, ReadError> {
        let mut messages = Vec::new();
        for stream in [stream::DOWNLINK, stream::LEDGER] {
            let mut replay = self.replay(stream, &[&desired(key)], Start::First).await?;
            while_waiting(&mut replay, |delivery| messages.push(delivery.payload)).await?;
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

    async fn publish(&self, letters: Vec<Letter>) -> Vec<Result<u64, PublishError>> {
        let mut answers = Vec::with_capacity(letters.len());
        let mut window = self.window(IN_FLIGHT);
        for letter in letters {
            window.send(letter.outgoing(), ()).await;
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

/// Reads what is there now.
async fn while_waiting(replay: &mut Replay, mut take: impl FnMut(Delivery)) -> Result<(), ReadError> {
    while let Some(batch) = replay.next_present(BATCH).await? {
        batch.into_iter().for_each(&mut take);
    }
    Ok(())
}

/// A message with the device it is for. Somebody else's name cannot be a subject of the stream.
fn addressed(delivery: Delivery) -> Option<(DeviceKey, Message)> {
    match LedgerSubject::parse(&delivery.subject) {
        Some(LedgerSubject::Desired(key)) => Some((key, delivery.into())),
        _ => {
            tracing::warn!(
                subject = delivery.subject,
                "a subject of desired states that names no device is left alone"
            );
            None
        }
    }
}

impl Letter {
    fn outgoing(&self) -> Outgoing {
        let Self { key, document, expected_sequence, trace } = self;
        let id = name(key, document.generation);
        Outgoing {
            headers: attributes(EVENT_SOURCE, DesiredState::KIND, &id, *trace),
            expected_stream: Some(stream::DOWNLINK),
            expected_last_subject_sequence: Some(*expected_sequence),
            ..Outgoing::new(desired(key), decode::to_bytes(document))
        }
    }
}
