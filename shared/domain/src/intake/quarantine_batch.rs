//! The rate limit of one device's quarantine facts, and the messages that wait in batches because of it.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::{Epoch, Seq, SeqRanges, Timestamp};

use super::limits::{BATCH_EPOCHS_MAX, BATCH_PIECES_MAX, FACTS_PER_MINUTE, MINUTE};
use super::message::MessageSample;
use crate::lease::elapsed;

/// The batches of one device that sends rejected messages faster than each may have a fact.
#[derive(Debug, Clone, Default)]
pub(super) struct QuarantineBatches {
    /// When the counted minute began, and the facts in it.
    minute: Option<(Timestamp, u32)>,
    /// By the epoch of the numbers; `None` for messages without one.
    pub(super) open: BTreeMap<Option<Epoch>, QuarantineBatch>,
}

/// Messages that share a fact.
#[derive(Debug, Clone)]
pub(super) struct QuarantineBatch {
    pub(super) count: u64,
    pub(super) numbers: SeqRanges,
    /// Messages whose payload is stored nowhere.
    pub(super) not_kept: u64,
    pub(super) last: MessageSample,
    pub(super) last_seq: Option<Seq>,
}

/// The batches of a partition that wait to be published.
#[derive(Debug, Default)]
pub(super) struct PendingBatches {
    /// The devices that have batches.
    pub(super) indexes: BTreeSet<usize>,
    pub(super) since: Option<Timestamp>,
    pub(super) messages: usize,
    /// A batch has as many numbers as it can hold.
    pub(super) is_full: bool,
}

impl QuarantineBatches {
    /// Counts a fact of a single message; false if the device has had as many as it may in this minute.
    pub(super) fn try_take_fact(&mut self, now: Timestamp) -> bool {
        let is_current = |(since, _): &(Timestamp, u32)| *since <= now && elapsed(*since, now) < MINUTE;
        let (since, count) = self.minute.filter(is_current).unwrap_or((now, 0));
        let is_free = count < FACTS_PER_MINUTE;
        self.minute = Some((since, count + u32::from(is_free)));
        is_free
    }

    /// Adds a message to the batch of its epoch; true if that batch is full then. A number of one epoch too many is left out.
    pub(super) fn add(&mut self, last: MessageSample, number: Option<(Epoch, Seq)>, not_kept: u64) -> bool {
        let has_room = |epoch| self.open.contains_key(&Some(epoch)) || self.open.len() < BATCH_EPOCHS_MAX;
        let number = number.filter(|(epoch, _)| has_room(*epoch));
        let last_seq = number.map(|(_, seq)| seq);
        let batch = self.open.entry(number.map(|(epoch, _)| epoch)).or_insert_with(|| QuarantineBatch {
            count: 0,
            numbers: SeqRanges::new(),
            not_kept: 0,
            last_seq,
            last: last.clone(),
        });
        batch.count += 1;
        batch.not_kept += not_kept;
        (batch.last, batch.last_seq) = (last, last_seq);
        number.iter().for_each(|(_, seq)| _ = batch.numbers.insert(seq.get()));
        batch.numbers.len() >= BATCH_PIECES_MAX
    }

    pub(super) fn contains(&self, epoch: Epoch, seq: Seq) -> bool {
        self.open.get(&Some(epoch)).is_some_and(|batch| batch.numbers.contains(seq.get()))
    }
}
