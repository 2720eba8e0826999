//! Reads LEDGER once for all partitions of this process that do not own their partition yet.
//!
//! One consumer without a subject filter serves all of them, because a server searches for filtered messages many times slower
//! than it sends all of them. The partition that catches up reads on for all; the facts of the others wait in queues until those
//! catch up. A partition that lags by [`QUEUE_MAX`] facts, or that was owned by this process in between, reads the missed part by
//! itself.
//!
//! This does not decide who owns a partition, and it reads nothing while this process owns all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Replay, Start};
use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::intake::IntakeState;
use muster_service::error::chain;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::restore::{self, BATCH, FACT_WITHIN, Span, is_pulse, partition, read_fact};

/// Facts of one partition that wait until it catches up.
const QUEUE_MAX: usize = 50_000;
/// How long a partition that stands by waits for new facts. It catches up again soon.
const NEW_FACTS_WITHIN: Duration = Duration::from_millis(5);
/// Batches that are read for a partition that stands by while the others wait.
const BATCHES_MAX: usize = 64;

/// The reader, shared by the partitions of a process.
#[derive(Debug)]
pub(crate) struct LedgerFollower {
    bus: Bus,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    replay: Option<Replay>,
    /// The sequence up to which every fact was queued.
    position: u64,
    /// The partitions that follow, with the facts that they have yet to apply.
    queues: BTreeMap<u16, Vec<Queued>>,
}

type Queued = (LedgerSubject, Fact, Timestamp);

impl LedgerFollower {
    /// A follower for partitions that know LEDGER up to a position.
    pub(crate) fn new(bus: Bus, partitions: impl Iterator<Item = u16>, position: u64) -> Self {
        let queues = partitions.map(|partition| (partition, Vec::new())).collect();
        Self { bus, inner: Mutex::new(Inner { replay: None, position, queues }) }
    }

    /// Applies the newest facts to the intake of a partition, at least those up to `span.through`. Returns the sequence up to
    /// which the intake knows LEDGER now.
    ///
    /// # Errors
    /// LEDGER cannot be read, or is another one now.
    pub(crate) async fn catch_up(
        &self,
        own: u16,
        intake: &mut IntakeState,
        span: Span,
    ) -> Result<u64, ReadError> {
        let mut inner = self.inner.lock().await;
        let end = self.read_on(&mut inner, own, intake, span).await;
        if end.is_err() {
            // The other partitions begin anew when they catch up.
            *inner = Inner::default();
        }
        end
    }

    /// Stops following for a partition that this process owns now: only it writes the facts of the partition.
    pub(crate) async fn stop_following(&self, own: u16) {
        let mut inner = self.inner.lock().await;
        inner.queues.remove(&own);
        if inner.queues.is_empty() {
            inner.replay = None;
        }
    }

    async fn read_on(
        &self,
        inner: &mut Inner,
        own: u16,
        intake: &mut IntakeState,
        span: Span,
    ) -> Result<u64, ReadError> {
        if inner.queues.is_empty() {
            inner.position = span.after;
        }
        if !inner.queues.contains_key(&own) {
            if span.after < inner.position {
                let missed = Span { after: span.after, through: inner.position };
                restore::tail(&self.bus, own, intake, missed).await?;
            }
            inner.queues.insert(own, Vec::new());
        }
        if let Err(error) = self.fill(inner, own, span.through).await {
            let ReadError::Trimmed { .. } = error else { return Err(error) };
            // The next facts have aged out. They were confirmed long ago, so every intake has them.
            tracing::info!(error = chain(&error), "reading LEDGER from the first fact it holds");
            (inner.replay, inner.position) = (None, 0);
            self.fill(inner, own, span.through).await?;
        }
        for (subject, fact, stored_at) in inner.queues.get_mut(&own).map(std::mem::take).unwrap_or_default() {
            intake.restore(&subject, &fact, stored_at);
        }
        Ok(inner.position)
    }

    /// Reads the available facts, and all up to `through`, into the queues.
    async fn fill(&self, inner: &mut Inner, own: u16, through: u64) -> Result<(), ReadError> {
        let replay = match &mut inner.replay {
            Some(replay) => replay,
            None => {
                let start = Start::After(inner.position);
                inner.replay.insert(self.bus.replay(stream::LEDGER, &[], start).await?)
            }
        };
        let mut batches = 0;
        while inner.position < through || batches < BATCHES_MAX {
            let is_awaited = inner.position < through;
            if !is_awaited && through > 0 {
                return Ok(());
            }
            let within = if is_awaited { FACT_WITHIN } else { NEW_FACTS_WITHIN };
            let batch = match timeout(within, replay.next_batch(BATCH)).await {
                Ok(batch) => batch?,
                Err(_) if is_awaited => {
                    return Err(ReadError::TimedOut { what: stream::LEDGER.to_owned() });
                }
                Err(_) => return Ok(()),
            };
            batches += 1;
            batch.iter().for_each(|delivery| enqueue(&mut inner.queues, delivery));
            let last = batch.iter().rev().find(|delivery| !is_pulse(delivery));
            inner.position = last.map_or(inner.position, |last| last.stream_seq);
            // A partition that lags so far reads by itself later. The partition that catches up now empties its queue at once.
            inner.queues.retain(|partition, queue| *partition == own || queue.len() <= QUEUE_MAX);
        }
        Ok(())
    }
}

/// Adds a fact to the queues of the partitions that it concerns.
fn enqueue(queues: &mut BTreeMap<u16, Vec<Queued>>, delivery: &Delivery) {
    let wanted = |partition| queues.contains_key(&partition);
    let Some((subject, fact)) = read_fact(delivery, wanted) else { return };
    let queued = (subject, fact, delivery.stored_at);
    match partition(&queued.0) {
        Some(partition) => {
            queues.get_mut(&partition).into_iter().for_each(|queue| queue.push(queued.clone()));
        }
        // It is about a sender without a valid name: every partition must recognise the same message.
        None => queues.values_mut().for_each(|queue| queue.push(queued.clone())),
    }
}
