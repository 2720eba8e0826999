//! Reads the heartbeats of one partition from PRESENCE: the newest of every device, then each as it comes.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, LastReceived, Replay, Start};
use muster_contract::DeviceKey;
use muster_contract::decode;
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{self, origin, stream};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;

/// Heartbeats read at once.
const BATCH: usize = 512;
/// Least upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Greatest upper bound of the delay before another attempt to read.
const RETRY_MAX: Duration = Duration::from_secs(10);

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
    retry: FullJitter,
    rng: Rng,
}

impl HeartbeatReader {
    /// A reader that records in `last_received` when it received anything: while PRESENCE cannot be read, the silence of a device
    /// proves nothing.
    pub(crate) fn new(bus: Bus, partition: u16, last_received: LastReceived, rng: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        Self { bus, partition, replay: None, last_received, retry, rng }
    }

    /// The next heartbeats, at least one. After an error it reads the newest of each device again: a repeated heartbeat changes
    /// nothing.
    pub(crate) async fn next(mut self) -> (Self, Vec<Delivery>) {
        loop {
            let read = match &mut self.replay {
                Some(replay) => replay.next_batch(BATCH).await.map(Some),
                None => self.open().await.map(|mut replay| {
                    replay.record_received(self.last_received.clone(), SERVER_HEARTBEAT);
                    self.replay = Some(replay);
                    None
                }),
            };
            match read {
                Ok(None) => {}
                Ok(Some(batch)) => {
                    self.retry.reset();
                    return (self, batch);
                }
                Err(error) => {
                    self.replay = None;
                    self.last_received.clear();
                    let retry_in = self.retry.next(&mut self.rng);
                    tracing::warn!(
                        partition = self.partition,
                        error = chain(&error),
                        ?retry_in,
                        "cannot read heartbeats"
                    );
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    }

    async fn open(&self) -> Result<Replay, muster_bus::ReadError> {
        let filter = subjects::presence_partition(self.partition);
        self.bus.replay(stream::PRESENCE, &[&filter], Start::LastPerSubject).await
    }
}

/// The sender of a heartbeat, and the heartbeat if it can be parsed. `None` if the sender's name is no identifier.
pub(crate) fn parse(subject: &str, payload: &[u8]) -> Option<(DeviceKey, Option<Heartbeat>)> {
    let key = origin(subject)?.device.ok()?;
    match decode::parse::<Heartbeat>(payload) {
        Ok(beat) => Some((key, Some(beat))),
        Err(refusal) => {
            tracing::debug!(device.site = %key.site, device.id = %key.device, %refusal, "cannot parse a heartbeat");
            Some((key, None))
        }
    }
}
