//! Reads the deliveries of one partition of UPLINK, which are acknowledged up to a position.
//!
//! An acknowledgement covers every earlier message of the partition. So a message that the server delivered and that
//! never arrived (a reader killed, a link cut) would be covered by the acknowledgement of a later one, and be lost.
//! Therefore every consumer session begins at the first unacknowledged message, a gap in the consumer's count of
//! deliveries ends it, and an acknowledgement of an earlier session has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::jetstream::consumer::{Config as Consumer, DeliverPolicy};
use muster_contract::limits::{PARTITIONS, UPLINK_SHARE};
use muster_contract::subjects::report_partition;
use muster_contract::subjects::stream::UPLINK;
use muster_service::error::chain;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ack::{AckHandle, UplinkPurger, purge};
use crate::bus::Bus;
use crate::converge::create_consumer;
use crate::link::Link;
use crate::message::Delivery;
use crate::pull::{BATCH, Pull, PullError, PullSettings, PulledMessage};
use crate::read_error::ReadError;
use crate::retry_delay::RetryDelay;
use crate::topology::{ACK_PENDING_MAX, partition_consumer, partition_consumer_name};
use crate::wire::{ApiError, Wire};

const CONSUMER_NOT_FOUND: u64 = 10014;

/// Messages of a partition that may stay unacknowledged while the server still delivers more: besides them, as many as are
/// requested ahead may be on their way.
pub const UNACKNOWLEDGED_MAX: usize = ACK_PENDING_MAX as usize - 2 * BATCH;

/// The deliveries of one partition, in stream order from the first unacknowledged message.
#[derive(Debug)]
pub struct Deliveries {
    wire: Arc<Wire>,
    partition: u16,
    /// The number of the session whose acknowledgements count.
    current_session: Arc<AtomicU64>,
    pull: Option<Pull>,
    /// The link that this session uses.
    over: Link,
    /// The acknowledged sequence, between the removal of the consumer and its creation.
    resume_after: Option<u64>,
    /// The last sequence returned in this session.
    handed_out: u64,
    retry_delay: RetryDelay,
}

/// How far a partition's consumer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionFloor {
    /// The partition.
    pub partition: u16,
    /// Every message of the partition up to this stream sequence is acknowledged.
    pub stream_seq: u64,
    /// Messages of the partition that are not acknowledged, delivered or not.
    pub pending: u64,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    name: String,
    delivered: Sequences,
    ack_floor: Sequences,
    num_ack_pending: u64,
    num_pending: u64,
    num_waiting: u64,
}

#[derive(Deserialize)]
struct Sequences {
    consumer_seq: u64,
    stream_seq: u64,
}

#[derive(Deserialize)]
struct ConsumerList {
    consumers: Vec<ConsumerInfo>,
}

impl Bus {
    /// The deliveries of a partition, from the first unacknowledged message. A partition must have only one reader: two
    /// would end each other's sessions in turn.
    pub async fn partition(&self, partition: u16) -> Result<Deliveries, ReadError> {
        let mut deliveries = Deliveries {
            wire: Arc::clone(&self.wire),
            partition,
            current_session: Arc::new(AtomicU64::new(0)),
            pull: None,
            over: Link::Down,
            resume_after: None,
            handed_out: 0,
            retry_delay: RetryDelay::new(),
        };
        deliveries.open().await?;
        Ok(deliveries)
    }

    /// How far the consumer of every partition has come; partitions without a consumer are omitted.
    pub async fn partition_floors(&self) -> Result<Vec<PartitionFloor>, ReadError> {
        // Read first, so that a partition without pending messages is known to be done up to this sequence.
        let last_seq = self.stream_state(UPLINK).await?.last_seq;
        let list: ConsumerList = self
            .wire
            .api(&format!("CONSUMER.LIST.{UPLINK}"), &json!({ "offset": 0 }))
            .await
            .map_err(|error| ReadError::of("consumers of UPLINK", error))?;
        let infos = list.consumers;
        let floor = |partition| {
            let name = partition_consumer_name(partition);
            infos.iter().find(|info| info.name == name).map(|info| info.floor(partition, last_seq))
        };
        Ok((0..PARTITIONS).filter_map(floor).collect())
    }

    /// Removes the messages that a partition's consumer has acknowledged; the number of removed messages.
    ///
    /// # Errors
    /// The server refused, or its answer was lost.
    pub async fn trim_partition(&self, partition: u16) -> Result<u64, ReadError> {
        let subject = format!("CONSUMER.INFO.{UPLINK}.{}", partition_consumer_name(partition));
        let info = self.wire.api::<ConsumerInfo>(&subject, &json!({})).await;
        let floor = info.map_err(|error| ReadError::of("UPLINK to trim it", error))?.ack_floor.stream_seq;
        if floor == 0 {
            return Ok(0);
        }
        purge(&self.wire, &report_partition(partition), floor).await
    }
}

impl ConsumerInfo {
    /// True if no delivery is unacknowledged and no pull request waits. A waiting request may be that of a dead reader: the
    /// next message would go there.
    const fn is_untouched(&self) -> bool {
        self.num_ack_pending == 0 && self.num_waiting == 0
    }

    fn floor(&self, partition: u16, last_seq: u64) -> PartitionFloor {
        let pending = self.num_pending + self.num_ack_pending;
        let stream_seq = if pending == 0 { last_seq } else { self.ack_floor.stream_seq };
        PartitionFloor { partition, stream_seq, pending }
    }
}

impl Deliveries {
    /// The next messages, at least one and at most `max`. Waits for the first, never for the others.
    ///
    /// Within a session every message comes once, in stream order. After a lost link, a lost message or a lost consumer a
    /// new session begins, which repeats what was not acknowledged. Temporary failures are retried. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        loop {
            let Some(pull) = &mut self.pull else {
                self.reopen().await?;
                continue;
            };
            match pull.next_batch(max).await {
                Ok(batch) => {
                    self.retry_delay.reset();
                    let batch = self.without_repeats(batch);
                    if !batch.is_empty() {
                        return Ok(batch);
                    }
                }
                Err(broken) => {
                    log_error(self.partition, &broken);
                    self.pull = None;
                }
            }
        }
    }

    /// The batch without messages that the server repeats because they were not acknowledged in time: the owner has them.
    fn without_repeats(&mut self, batch: Vec<PulledMessage>) -> Vec<Delivery> {
        let session = UplinkPurger {
            wire: Arc::clone(&self.wire),
            partition: self.partition,
            over: self.over,
            current_session: Arc::clone(&self.current_session),
            session: self.current_session.load(Ordering::Acquire),
        };
        let mut fresh = Vec::with_capacity(batch.len());
        for PulledMessage { mut delivery, reply } in batch {
            if delivery.stream_seq > self.handed_out {
                self.handed_out = delivery.stream_seq;
                delivery.ack = Some(AckHandle { session: session.clone(), reply });
                fresh.push(delivery);
            }
        }
        fresh
    }

    async fn reopen(&mut self) -> Result<(), ReadError> {
        loop {
            self.retry_delay.before_attempt(&self.wire.link).await;
            match self.open().await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(
                        partition = self.partition,
                        cause = chain(&error),
                        "cannot read a partition; trying again"
                    );
                }
                end => return end,
            }
        }
    }

    async fn open(&mut self) -> Result<(), ReadError> {
        // From here on no acknowledgement of the earlier session may reach the consumer.
        self.current_session.fetch_add(1, Ordering::AcqRel);
        self.over = self.wire.link_now();
        let what = format!("partition {} of UPLINK", self.partition);
        let expected = self.rewind().await.map_err(|error| ReadError::of(&what, error))?;
        let name = partition_consumer_name(self.partition);
        let pull =
            Pull::open(Arc::clone(&self.wire), UPLINK, &name, expected, PullSettings::new(BATCH)).await;
        self.pull = Some(pull.map_err(|error| ReadError::of(&what, error.into()))?);
        self.handed_out = 0;
        Ok(())
    }

    /// Makes the consumer deliver from the first unacknowledged message; the number of its next delivery.
    ///
    /// It deletes the consumer and creates it with another start, the only way that every supported server offers (2.14
    /// could reset it). A process that dies in between leaves no consumer; the next one then begins at the first message
    /// that UPLINK holds, and the account of each device recognises the repetitions.
    async fn rewind(&mut self) -> Result<u64, ApiError> {
        let name = partition_consumer_name(self.partition);
        match self.wire.api::<ConsumerInfo>(&format!("CONSUMER.INFO.{UPLINK}.{name}"), &json!({})).await {
            Ok(info) if info.is_untouched() => {
                self.resume_after = None;
                return Ok(info.delivered.consumer_seq + 1);
            }
            Ok(info) => {
                self.resume_after = Some(info.ack_floor.stream_seq);
                self.wire.api::<Value>(&format!("CONSUMER.DELETE.{UPLINK}.{name}"), &json!({})).await?;
            }
            Err(error) if error.is(CONSUMER_NOT_FOUND) => {}
            Err(error) => return Err(error),
        }
        create_consumer::<Value>(&self.wire, UPLINK, &self.consumer()).await?;
        self.resume_after = None;
        Ok(1)
    }

    fn consumer(&self) -> Consumer {
        let deliver_policy = match self.resume_after {
            Some(seq) => DeliverPolicy::ByStartSequence { start_sequence: seq + 1 },
            None => DeliverPolicy::All,
        };
        Consumer { deliver_policy, ..partition_consumer(self.partition) }
    }
}

fn log_error(partition: u16, broken: &PullError) {
    match broken {
        PullError::Ended(_) | PullError::Gap { .. } => tracing::warn!(
            partition,
            %broken,
            "reading again from the first unacknowledged message; if this repeats, another process reads the same partition"
        ),
        _ => tracing::info!(partition, %broken, "reading again from the first unacknowledged message"),
    }
}

impl Delivery {
    /// Removes acknowledged messages of its session; `None` on messages of [`Bus::last`], [`Bus::subscribe`] and
    /// [`Bus::replay`].
    pub fn purger(&self) -> Option<&UplinkPurger> {
        self.ack.as_ref().map(|handle| &handle.session)
    }

    /// Acknowledges this and every earlier message of its partition. At most once: a lost acknowledgement leads to
    /// redelivery. Without effect once a new session has begun, and on messages of [`Bus::last`], [`Bus::subscribe`] and
    /// [`Bus::replay`].
    pub async fn ack_all(&self) {
        if let Some(ack) = &self.ack {
            ack.ack_all().await;
        }
    }
}

const _: () = {
    // Messages requested ahead must fit into the limit of unacknowledged ones.
    assert!((2 * BATCH as i64) < ACK_PENDING_MAX);
    // A device that fills its share delays another device's report by at most one batch.
    assert!(UPLINK_SHARE as usize <= BATCH);
};
