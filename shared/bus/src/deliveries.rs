//! The deliveries of one partition of UPLINK, acknowledged up to a point.

use std::sync::Arc;

use crate::bus::Bus;
use crate::message::Delivery;
use crate::read::ReadError;

/// How far a partition's consumer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionFloor {
    /// The partition.
    pub partition: u16,
    /// Every message of it up to this stream sequence is acknowledged.
    pub stream_seq: u64,
    /// Messages of it that wait, delivered or not.
    pub pending: u64,
}

/// The deliveries of one partition, in stream order from the first one not acknowledged.
#[derive(Debug)]
pub struct Deliveries {}

#[derive(Debug, Clone)]
pub(crate) struct AckHandle(#[allow(dead_code)] Arc<()>);

impl Deliveries {
    /// The next messages, at least one and at most `max`. Waits for the first, never for the others. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        let _ = max;
        std::future::pending().await
    }
}

impl Delivery {
    /// Acknowledges this and every earlier message of its partition. At most once: a lost acknowledgement leads to
    /// redelivery. Without effect on messages of [`Bus::last`], [`Bus::subscribe`] and [`Bus::replay`].
    pub async fn ack_all(&self) {}
}

impl Bus {
    /// The deliveries of a partition. One reader a partition; opening rewinds to the first message not acknowledged.
    pub async fn partition(&self, partition: u16) -> Result<Deliveries, ReadError> {
        let _ = partition;
        std::future::pending().await
    }

    /// How far every partition has come.
    pub async fn partition_floors(&self) -> Result<Vec<PartitionFloor>, ReadError> {
        std::future::pending().await
    }

    /// Removes UPLINK's messages below a sequence; the number removed.
    pub async fn trim_uplink(&self, below_seq: u64) -> Result<u64, ReadError> {
        let _ = below_seq;
        std::future::pending().await
    }
}
