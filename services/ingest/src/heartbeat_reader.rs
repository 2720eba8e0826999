//! Reads the heartbeats of one partition from PRESENCE: the newest of every device, then each as it comes.

use std::time::Duration;

use futures_util::FutureExt;
use muster_bus::{Bus, Delivery, LastReceived, ReadError, Replay, Start};
use muster_contract::DeviceKey;
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{self, origin, stream};
use muster_service::retry::retry_with;

use crate::limits::READ_RETRY;

/// Heartbeats read at once.
const BATCH: usize = 512;

/// Time between two heartbeats of the server for a reader of PRESENCE. No lease ends after the last of them, so in a quiet
/// partition a stale fact comes up to this much later.
const SERVER_HEARTBEAT: Duration = Duration::from_secs(1);

/// Reads the heartbeats of one partition.
#[derive(Debug)]
pub(crate) struct HeartbeatReader {
    bus: Bus,
    partition: u16,
    replay: Option<Replay>,
    last_received: LastReceived,
}

impl HeartbeatReader {
    /// A reader that records in `last_received` when it received anything: while PRESENCE cannot be read, the silence of a device
    /// proves nothing.
    pub(crate) const fn new(bus: Bus, partition: u16, last_received: LastReceived) -> Self {
        Self { bus, partition, replay: None, last_received }
    }

    /// The next heartbeats, at least one. After an error it reads the newest of each device again: a repeated heartbeat changes
    /// nothing.
    pub(crate) async fn next(mut self) -> (Self, Vec<Delivery>) {
        let failure = format!("cannot read heartbeats of partition {}", self.partition);
        let batch = retry_with(READ_RETRY, failure, &mut self, |reader, _| reader.read().boxed()).await;
        (self, batch)
    }

    async fn read(&mut self) -> Result<Vec<Delivery>, ReadError> {
        let batch = self.try_read().await;
        if batch.is_err() {
            self.replay = None;
            self.last_received.clear();
        }
        batch
    }

    async fn try_read(&mut self) -> Result<Vec<Delivery>, ReadError> {
        let replay = match self.replay.take() {
            Some(replay) => replay,
            None => self.open().await?,
        };
        self.replay.insert(replay).next_batch(BATCH).await
    }

    async fn open(&self) -> Result<Replay, ReadError> {
        let filter = subjects::presence_partition(self.partition);
        let mut replay = self.bus.replay(stream::PRESENCE, &[&filter], Start::LastPerSubject).await?;
        replay.record_received(self.last_received.clone(), SERVER_HEARTBEAT);
        Ok(replay)
    }
}

/// The sender of a heartbeat, and the heartbeat if it can be parsed. `None` if the sender's name is no identifier.
pub(crate) fn parse(subject: &str, payload: &[u8]) -> Option<(DeviceKey, Option<Heartbeat>)> {
    let key = origin(subject)?.device.ok()?;
    match Heartbeat::parse(payload) {
        Ok(beat) => Some((key, Some(beat))),
        Err(refusal) => {
            tracing::debug!(device.site = %key.site, device.id = %key.device, %refusal, "cannot parse a heartbeat");
            Some((key, None))
        }
    }
}
