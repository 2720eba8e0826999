//! DOWNLINK as the publisher uses it: read every device's last document once, read one again, publish with
//! compare-and-set. Nothing is decided here; [`Downlink`] is a trait so that the announcer can be held against a
//! stream that fails at will.

use std::future::Future;

use bytes::Bytes;
use muster_bus::event::attributes;
use muster_bus::{Bus, Delivery, Outgoing, PublishError, ReadError, Start, Trace};
use muster_contract::DeviceKey;
use muster_contract::decode::{self, Document};
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{LedgerSubject, desired, stream};

/// Documents under way at once: enough to fill the link, few enough to be confirmed within a second.
const IN_FLIGHT: usize = 256;
/// Documents read at once.
const BATCH: usize = 1000;
/// The documents of all devices.
const EVERYBODY: &str = "muster.desired.>";
const EVENT_SOURCE: &str = "muster-publisher";

/// The last message of a device's subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its sequence.
    pub sequence: u64,
    /// The document, if it is one.
    pub payload: Bytes,
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
    /// The last message of every device.
    fn everybody(&self) -> impl Future<Output = Result<Vec<(DeviceKey, Message)>, ReadError>> + Send;

    /// The last message of one device.
    fn last(&self, key: &DeviceKey) -> impl Future<Output = Result<Option<Message>, ReadError>> + Send;

    /// Publishes documents of different devices; for each, in their order, the sequence it got or why not.
    fn publish(&self, letters: Vec<Letter>) -> impl Future<Output = Vec<Result<u64, PublishError>>> + Send;
}

impl Downlink for Bus {
    async fn everybody(&self) -> Result<Vec<(DeviceKey, Message)>, ReadError> {
        let mut replay = self.replay(stream::DOWNLINK, &[EVERYBODY], Start::LastPerSubject).await?;
        let mut messages = Vec::new();
        let mut more = replay.waiting() > 0;
        while more {
            let batch = replay.next_batch(BATCH).await?;
            more = batch.last().is_none_or(|last| last.pending > 0);
            messages.extend(batch.into_iter().filter_map(addressed));
        }
        Ok(messages)
    }

    async fn last(&self, key: &DeviceKey) -> Result<Option<Message>, ReadError> {
        let last = Self::last(self, stream::DOWNLINK, &desired(key)).await?;
        Ok(last.map(|last| Message { sequence: last.stream_seq, payload: last.payload }))
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

/// A message with the device it is for. Somebody else's name cannot be a subject of the stream.
fn addressed(delivery: Delivery) -> Option<(DeviceKey, Message)> {
    match LedgerSubject::parse(&delivery.subject) {
        Some(LedgerSubject::Desired(key)) => {
            Some((key, Message { sequence: delivery.stream_seq, payload: delivery.payload }))
        }
        _ => {
            tracing::warn!(
                subject = delivery.subject,
                "a subject of DOWNLINK that names no device is left alone"
            );
            None
        }
    }
}

impl Letter {
    fn outgoing(&self) -> Outgoing {
        let Self { key, document, expected_sequence, trace } = self;
        let id = format!("{}.{}.{}", key.site, key.device, document.generation);
        Outgoing {
            headers: attributes(EVENT_SOURCE, DesiredState::KIND, &id, *trace),
            expected_stream: Some(stream::DOWNLINK),
            expected_last_subject_sequence: Some(*expected_sequence),
            ..Outgoing::new(desired(key), decode::to_bytes(document))
        }
    }
}
