//! The deliveries of one partition of UPLINK, acknowledged up to a point.
//!
//! An acknowledgement covers every earlier message of the partition. So a message that the server delivered and that
//! never arrived (a reader killed, a link cut) would be covered by the acknowledgement of a later one, and be lost.
//! Therefore every life begins at the first message not acknowledged, a hole in the consumer's count of deliveries
//! ends it, and an acknowledgement of an earlier life has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::Subject;
use async_nats::jetstream::consumer::{Config as Consumer, DeliverPolicy};
use bytes::Bytes;
use muster_contract::limits::PARTITIONS;
use muster_contract::subjects::report_partition;
use muster_contract::subjects::stream::UPLINK;
use muster_service::error::chain;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::converge::create_consumer;
use crate::heal::Pause;
use crate::link::Link;
use crate::message::Delivery;
use crate::pull::{BATCH, Broken, Pull, Pulled};
use crate::read::ReadError;
use crate::topology::{ACK_PENDING_MAX, partition_consumer, partition_consumer_name};
use crate::wire::{ApiError, Wire};

const CONSUMER_NOT_FOUND: u64 = 10014;

/// Messages of a partition that may stay unacknowledged while more are still delivered: beside them, as many as are asked
/// for ahead may be on their way.
pub const UNACKNOWLEDGED_MAX: usize = ACK_PENDING_MAX as usize - 2 * BATCH;

/// The deliveries of one partition, in stream order from the first one not acknowledged.
#[derive(Debug)]
pub struct Deliveries {
    wire: Arc<Wire>,
    partition: u16,
    /// The life whose acknowledgements count.
    current_life: Arc<AtomicU64>,
    pull: Option<Pull>,
    /// The link over which this life goes.
    over: Link,
    /// Where to begin if the consumer is missing: known between its removal and its return.
    resume_after: Option<u64>,
    /// The last sequence handed out in this life.
    handed_out: u64,
    pause: Pause,
}

/// Where an acknowledgement goes, while its life lasts.
#[derive(Debug, Clone)]
pub(crate) struct AckHandle {
    life: UplinkPurger,
    reply: Subject,
}

/// Removes acknowledged messages of a partition from UPLINK, while the deliveries last that they came with: positions mean
/// something else in a stream that was made anew.
#[derive(Debug, Clone)]
pub struct UplinkPurger {
    wire: Arc<Wire>,
    partition: u16,
    over: Link,
    current_life: Arc<AtomicU64>,
    life: u64,
}

/// How far a partition's consumer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionFloor {
    /// The partition.
    pub partition: u16,
    /// Every message of the partition up to this stream sequence is acknowledged.
    pub stream_seq: u64,
    /// Messages of the partition that are not: delivered or still waiting.
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

#[derive(Deserialize)]
struct Purged {
    purged: u64,
}

impl Bus {
    /// The deliveries of a partition, from the first message not acknowledged. One reader a partition: two would take
    /// turns in making each other begin again.
    pub async fn partition(&self, partition: u16) -> Result<Deliveries, ReadError> {
        let mut deliveries = Deliveries {
            wire: Arc::clone(&self.wire),
            partition,
            current_life: Arc::new(AtomicU64::new(0)),
            pull: None,
            over: Link::Down,
            resume_after: None,
            handed_out: 0,
            pause: Pause::new(),
        };
        deliveries.open().await?;
        Ok(deliveries)
    }

    /// How far every partition has come, as far as their consumers exist.
    pub async fn partition_floors(&self) -> Result<Vec<PartitionFloor>, ReadError> {
        // First, so that a partition with nothing left is known to be done up to here.
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

    /// Removes what a partition's consumer has acknowledged, as the server knows it; returns how many.
    ///
    /// # Errors
    /// The server did not do it, or nobody knows.
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

/// Removes UPLINK's messages of a subject, or of a pattern of subjects, up to a sequence; returns how many.
async fn purge(wire: &Wire, subject: &str, through: u64) -> Result<u64, ReadError> {
    let request = json!({ "filter": subject, "seq": through + 1 });
    let purged = wire.api::<Purged>(&format!("STREAM.PURGE.{UPLINK}"), &request).await;
    purged.map(|done| done.purged).map_err(|error| ReadError::of("UPLINK to trim it", error))
}

impl UplinkPurger {
    /// Removes the partition's messages up to a sequence; returns how many, or nothing once the deliveries are over.
    ///
    /// # Errors
    /// The server did not do it, or nobody knows.
    pub async fn purge_partition(&self, through: u64) -> Result<Option<u64>, ReadError> {
        self.purge_subject(&report_partition(self.partition), through).await
    }

    /// Removes the messages of one stored subject up to a sequence; returns how many, or nothing once the deliveries are
    /// over.
    ///
    /// # Errors
    /// The server did not do it, or nobody knows.
    pub async fn purge_subject(&self, subject: &str, through: u64) -> Result<Option<u64>, ReadError> {
        if !self.is_current() {
            return Ok(None);
        }
        purge(&self.wire, subject, through).await.map(Some)
    }

    /// True while the deliveries last.
    pub fn is_current(&self) -> bool {
        self.is_begun() && self.wire.link_now() == self.over
    }

    /// True if both belong to the same deliveries.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current_life, &other.current_life) && self.life == other.life
    }

    /// True while no later life of the deliveries has begun.
    fn is_begun(&self) -> bool {
        self.current_life.load(Ordering::Acquire) == self.life
    }
}

impl ConsumerInfo {
    /// True if nothing is on its way to anyone. A request that waits may be that of a reader who died without the
    /// server's knowledge: it would swallow what comes next.
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
    /// Within a life every message comes once, in stream order. After a lost link, a lost message or a lost consumer a
    /// new life begins, which repeats what was not acknowledged. Waits out what may pass. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        loop {
            let Some(pull) = &mut self.pull else {
                self.heal().await?;
                continue;
            };
            match pull.next_batch(max).await {
                Ok(batch) => {
                    self.pause.reset();
                    let batch = self.fresh(batch);
                    if !batch.is_empty() {
                        return Ok(batch);
                    }
                }
                Err(broken) => {
                    tell(self.partition, &broken);
                    self.pull = None;
                }
            }
        }
    }

    /// Leaves out what the server repeats because it was not acknowledged in time: the owner has it.
    fn fresh(&mut self, batch: Vec<Pulled>) -> Vec<Delivery> {
        let life = UplinkPurger {
            wire: Arc::clone(&self.wire),
            partition: self.partition,
            over: self.over,
            current_life: Arc::clone(&self.current_life),
            life: self.current_life.load(Ordering::Acquire),
        };
        let mut fresh = Vec::with_capacity(batch.len());
        for Pulled { mut delivery, reply } in batch {
            if delivery.stream_seq > self.handed_out {
                self.handed_out = delivery.stream_seq;
                delivery.ack = Some(AckHandle { life: life.clone(), reply });
                fresh.push(delivery);
            }
        }
        fresh
    }

    async fn heal(&mut self) -> Result<(), ReadError> {
        loop {
            self.pause.before_attempt(&self.wire.link).await;
            match self.open().await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(
                        partition = self.partition,
                        cause = chain(&error),
                        "cannot read; trying again"
                    );
                }
                end => return end,
            }
        }
    }

    async fn open(&mut self) -> Result<(), ReadError> {
        // From here on no acknowledgement of the life before may reach the consumer.
        self.current_life.fetch_add(1, Ordering::AcqRel);
        self.over = self.wire.link_now();
        let what = format!("partition {} of UPLINK", self.partition);
        let expected = self.rewind().await.map_err(|error| ReadError::of(&what, error))?;
        let name = partition_consumer_name(self.partition);
        let pull = Pull::open(Arc::clone(&self.wire), UPLINK, &name, expected, BATCH).await;
        self.pull = Some(pull.map_err(|error| ReadError::of(&what, error.into()))?);
        self.handed_out = 0;
        Ok(())
    }

    /// Makes the consumer deliver again from the first message not acknowledged. The number of its next delivery.
    ///
    /// The consumer is removed and returns with another start: the only way that every supported server knows (2.14
    /// could reset it). A process that dies in between leaves none; the next one then begins at the first message that
    /// UPLINK holds, and its account finds the repetitions.
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

fn tell(partition: u16, broken: &Broken) {
    match broken {
        Broken::Ended(_) | Broken::Gap { .. } => tracing::warn!(
            partition,
            %broken,
            "beginning again at what is not acknowledged; if this goes on, another process reads the same partition"
        ),
        _ => tracing::info!(partition, %broken, "beginning again at what is not acknowledged"),
    }
}

impl Delivery {
    /// What removes acknowledged messages of these deliveries; none on messages of [`Bus::last`], [`Bus::subscribe`] and
    /// [`Bus::replay`].
    pub fn purger(&self) -> Option<&UplinkPurger> {
        self.ack.as_ref().map(|handle| &handle.life)
    }

    /// Acknowledges this and every earlier message of its partition. At most once: a lost acknowledgement leads to
    /// redelivery. Without effect once a new life has begun, and on messages of [`Bus::last`], [`Bus::subscribe`] and
    /// [`Bus::replay`].
    pub async fn ack_all(&self) {
        let Some(AckHandle { life, reply }) = &self.ack else { return };
        if life.is_begun() && life.wire.link_now().is_up() {
            // Lost with the link, which ends the life anyway.
            let _ = life.wire.post(reply.clone(), None, None, Bytes::from_static(b"+ACK")).await;
        }
    }
}
