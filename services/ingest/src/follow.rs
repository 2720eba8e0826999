//! Reads LEDGER once for all partitions of this process that do not own their partition yet.
//!
//! One consumer without a subject filter serves all of them: the server looks for what matches a filter many times slower than
//! it sends everything. Whichever partition wants to catch up reads on for all; the facts of the others wait in queues until
//! they ask. A partition that lags behind by [`QUEUE_MAX`] facts, or comes back after it owned its partition, reads the part
//! that it missed by itself.
//!
//! This does not decide who owns a partition, and it reads nothing while every partition is owned by this process.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Replay, Start};
use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::border::Border;
use muster_service::error::chain;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::restore::{self, BATCH, PATIENCE, Span, is_pulse, partition, read_fact};

/// Facts of one partition that wait until it asks for them.
const QUEUE_MAX: usize = 50_000;
/// How long a partition that stands by waits for something to come. It asks again soon.
const PRESENT_WITHIN: Duration = Duration::from_millis(5);
/// Batches that are read for a partition that stands by: the others wait meanwhile.
const BATCHES_MAX: usize = 64;

/// The reader, shared by the partitions of a process.
#[derive(Debug)]
pub struct LedgerFollower {
    bus: Bus,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    replay: Option<Replay>,
    /// Everything up to here has been handed to the queues.
    position: u64,
    /// The partitions that follow, with what they have yet to take in.
    queues: BTreeMap<u16, Vec<Queued>>,
}

type Queued = (LedgerSubject, Fact, Timestamp);

impl LedgerFollower {
    /// A follower for partitions that know LEDGER up to a position.
    pub fn new(bus: Bus, partitions: impl Iterator<Item = u16>, position: u64) -> Self {
        let queues = partitions.map(|partition| (partition, Vec::new())).collect();
        Self { bus, inner: Mutex::new(Inner { replay: None, position, queues }) }
    }

    /// Brings the border of a partition on, and at least to `span.through`. Gives the position up to
    /// which the border knows LEDGER now.
    ///
    /// # Errors
    /// LEDGER cannot be read, or is another one now.
    pub async fn catch_up(&self, own: u16, border: &mut Border, span: Span) -> Result<u64, ReadError> {
        let mut inner = self.inner.lock().await;
        let end = self.read_on(&mut inner, own, border, span).await;
        if end.is_err() {
            // The others meet the same when they ask, or begin anew.
            *inner = Inner::default();
        }
        end
    }

    /// A partition is owned by this process now: it knows LEDGER by what it writes there itself.
    pub async fn leave(&self, own: u16) {
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
        border: &mut Border,
        span: Span,
    ) -> Result<u64, ReadError> {
        if inner.queues.is_empty() {
            inner.position = span.after;
        }
        if !inner.queues.contains_key(&own) {
            if span.after < inner.position {
                let missed = Span { after: span.after, through: inner.position };
                restore::tail(&self.bus, own, border, missed).await?;
            }
            inner.queues.insert(own, Vec::new());
        }
        if let Err(error) = self.fill(inner, own, span.through).await {
            let ReadError::Trimmed { .. } = error else { return Err(error) };
            // What comes next has aged out. It was confirmed long ago, so every border has it.
            tracing::info!(error = chain(&error), "reading LEDGER from the first fact it holds");
            (inner.replay, inner.position) = (None, 0);
            self.fill(inner, own, span.through).await?;
        }
        for (subject, fact, stored_at) in inner.queues.get_mut(&own).map(std::mem::take).unwrap_or_default() {
            border.restore(&subject, &fact, stored_at);
        }
        Ok(inner.position)
    }

    /// Reads what is there, and on up to `through`, into the queues.
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
            let patience = if is_awaited { PATIENCE } else { PRESENT_WITHIN };
            let batch = match timeout(patience, replay.next_batch(BATCH)).await {
                Ok(batch) => batch?,
                Err(_) if is_awaited => {
                    return Err(ReadError::TimedOut { what: stream::LEDGER.to_owned() });
                }
                Err(_) => return Ok(()),
            };
            batches += 1;
            batch.iter().for_each(|delivery| hand_out(&mut inner.queues, delivery));
            let last = batch.iter().rev().find(|delivery| !is_pulse(delivery));
            inner.position = last.map_or(inner.position, |last| last.stream_seq);
            // One that lags behind so far reads by itself when it asks. The one that asks now takes its queue at once.
            inner.queues.retain(|partition, queue| *partition == own || queue.len() <= QUEUE_MAX);
        }
        Ok(())
    }
}

/// Puts a fact into the queues of whom it concerns.
fn hand_out(queues: &mut BTreeMap<u16, Vec<Queued>>, delivery: &Delivery) {
    let wanted = |partition| queues.contains_key(&partition);
    let Some((subject, fact)) = read_fact(delivery, wanted) else { return };
    let queued = (subject, fact, delivery.stored_at);
    match partition(&queued.0) {
        Some(partition) => {
            queues.get_mut(&partition).into_iter().for_each(|queue| queue.push(queued.clone()));
        }
        // Nobody's: whichever partition meets the same again shall recognise it.
        None => queues.values_mut().for_each(|queue| queue.push(queued.clone())),
    }
}
