//! Decides which rows share a message, if the hub reads batches. Pure.
//!
//! - A row that is read alone while nothing else is under way is sent at once, alone. While a message is under way, rows
//!   are collected for a moment ([`SendQueue::may_collect`]); a backlog is read in full batches.
//! - The newest rows of the deployments share a message, the rows of the backlog share others.
//! - A row that is sent again because the hub misses it, or whose batch was refused, goes alone and not compressed: so a
//!   message that the hub cannot read costs each of its rows one message more, once.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::limits::{BATCH_REPORTS_MAX, BATCH_TEXT_BYTES_MAX};

use super::SendQueue;
use crate::outbox::{Encoding, Row};

/// How many times smaller rows are as sent, at least: a backlog repeats itself, and is compressed.
const RATIO: usize = 8;
/// Bytes of the rows of one message. As single reports they are larger by the fields of the envelope.
const BYTES_MAX: usize = BATCH_TEXT_BYTES_MAX * 3 / 4;

/// The messages under way with several rows.
#[derive(Debug, Default)]
pub(super) struct Packing {
    /// The hub reads batches.
    pub(super) is_on: bool,
    /// The hub has the dictionary of reports.
    pub(super) has_dictionary: bool,
    /// The numbers of the rows of each message, by that of its first one.
    messages: BTreeMap<u64, Vec<u64>>,
    /// By how many the messages under way are fewer than the rows.
    pub(super) rows_saved: usize,
    /// Rows whose batch was refused.
    alone: BTreeSet<u64>,
}

impl Packing {
    /// Nothing is under way any more.
    pub(super) fn reset(&mut self) {
        self.messages.clear();
        self.rows_saved = 0;
    }

    /// How many times smaller the bytes of rows are as sent.
    pub(super) const fn ratio(&self) -> usize {
        if self.is_on { RATIO } else { 1 }
    }

    pub(super) fn goes_alone(&self, row: &Row) -> bool {
        !self.is_on || row.is_repeated || self.alone.contains(&row.seq)
    }

    /// Sends rows one by one from now on.
    pub(super) fn send_alone(&mut self, seqs: Vec<u64>) {
        self.alone.extend(seqs);
    }

    /// The outbox has marked a row.
    pub(super) fn forget(&mut self, seq: u64) {
        self.alone.remove(&seq);
    }

    /// The numbers of the rows in the message of a row. It is not under way any more.
    pub(super) fn remove_message(&mut self, first: u64) -> Vec<u64> {
        match self.messages.remove(&first) {
            Some(seqs) => {
                self.rows_saved -= seqs.len() - 1;
                seqs
            }
            None => vec![first],
        }
    }

    /// How many reports the message of a row has.
    pub(super) fn reports_of(&self, first: u64) -> usize {
        self.messages.get(&first).map_or(1, Vec::len)
    }

    fn add(&mut self, rows: &[Row]) {
        if let [first, _, ..] = rows {
            self.rows_saved += rows.len() - 1;
            self.messages.insert(first.seq, rows.iter().map(|row| row.seq).collect());
        }
    }
}

impl SendQueue {
    /// The rows of each message, in the order of sending.
    pub(crate) fn messages_of(&mut self, rows: Vec<Row>) -> Vec<Vec<Row>> {
        let mut messages: Vec<Vec<Row>> = Vec::new();
        let mut bytes = 0;
        let mut is_open = false;
        for row in rows {
            let is_alone = self.packing.goes_alone(&row);
            bytes += row.bytes;
            let open = messages.last_mut().filter(|message| {
                is_open
                    && !is_alone
                    && message.len() < BATCH_REPORTS_MAX
                    && bytes <= BYTES_MAX
                    && message.iter().all(|other| other.newest == row.newest)
            });
            if let Some(message) = open {
                message.push(row);
            } else {
                (bytes, is_open) = (row.bytes, !is_alone);
                messages.push(vec![row]);
            }
        }
        messages.iter().for_each(|rows| self.packing.add(rows));
        messages
    }

    /// The encoding of the message of these rows.
    pub(crate) fn encoding_of(&self, rows: &[Row]) -> Encoding {
        match rows {
            [row] if self.packing.goes_alone(row) => Encoding::Plain,
            _ if self.packing.has_dictionary => Encoding::Reports1,
            [_] => Encoding::Plain,
            _ => Encoding::Zstd,
        }
    }

    /// Whether the hub has the dictionary of reports.
    pub(crate) const fn has_dictionary(&self) -> bool {
        self.packing.has_dictionary
    }

    /// How many reports the message of a row under way has.
    pub(crate) fn reports_of(&self, first: u64) -> usize {
        self.packing.reports_of(first)
    }

    /// Whether rows are collected for a moment before the next message: one is under way, and few wait.
    pub(crate) fn may_collect(&self) -> bool {
        self.packing.is_on && !self.has_backlog && !self.under_way.is_empty()
    }

    /// Whether the hub reads batches.
    pub(crate) const fn packs(&self) -> bool {
        self.packing.is_on
    }
}
