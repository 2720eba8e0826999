//! What to send next: pure. It is told what was read, what was answered and what the link does; it says what to read
//! and what to send. It asks no clock and speaks to nobody.
//!
//! - After a (re)connect the newest report of each deployment goes before any other, also one that was written while a
//!   backlog is under way: what was read but not sent is given back. Once everything is sent, reports go as they come, so
//!   that a subscriber sees a quick change in its order; until so many wait that they no longer fit into the window.
//! - At most [`Window::rows`] rows and [`Window::bytes`] bytes are under way; a single row may be larger.
//! - A transient failure ends the attempt: nothing is known of what was under way, so all of it is sent again, in the
//!   right order, by the next attempt. That is the one failure path; a lost link takes it too.
//! - A row that the bus refuses for good is parked: logged, left in the outbox and passed over until the next connection.
//!   It is not declared as gone, because it is not: the hub counts it as missing, and so nobody takes an older report of
//!   that deployment for the truth. The bus refuses such hubs at the door (message size), so this is a
//!   misconfigured stream, and mending it brings the row in.

use std::collections::{BTreeMap, BTreeSet};

use muster_bus::PublishErrorKind;
use muster_contract::Epoch;
use muster_contract::limits::IN_FLIGHT_MAX;

use crate::outbox::{Ask, Batch, Row};

/// Bytes under way at most, but for a single row.
pub const IN_FLIGHT_BYTES_MAX: usize = 1024 * 1024;
/// Acknowledged rows that may wait to be noted; with more, nothing is sent until they are.
pub const UNNOTED_MAX: usize = 10_000;
/// Acknowledged rows that are noted together.
pub const ACKNOWLEDGED_MAX: usize = 256;

const _: () = assert!(ACKNOWLEDGED_MAX < UNNOTED_MAX);

/// How much may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Rows.
    pub rows: usize,
    /// Bytes.
    pub bytes: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { rows: IN_FLIGHT_MAX, bytes: IN_FLIGHT_BYTES_MAX }
    }
}

/// What an answer means for the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Continue,
    /// The attempt is over.
    Restart,
}

/// The state of sending.
#[derive(Debug)]
pub struct Sending {
    window: Window,
    epoch: Option<Epoch>,
    /// Rows without an answer, with their bytes.
    under_way: BTreeMap<u64, usize>,
    /// Rows with a good answer that the outbox does not know of yet.
    acknowledged: BTreeSet<u64>,
    parked: BTreeSet<u64>,
    /// There may be something to read.
    more: bool,
    /// More waits than fits, or nobody knows how much.
    behind: bool,
}

impl Sending {
    /// Nothing sent yet.
    pub fn new(window: Window) -> Self {
        let (under_way, acknowledged, parked) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { window, epoch: None, under_way, acknowledged, parked, more: true, behind: true }
    }

    /// A new attempt: nothing is under way any more. In another epoch nothing of the one before counts.
    pub fn begin(&mut self, epoch: Epoch) {
        self.under_way.clear();
        self.more = true;
        self.behind = true;
        if self.epoch.replace(epoch) != Some(epoch) {
            self.acknowledged.clear();
            self.parked.clear();
        }
    }

    /// A new connection: what was refused may be taken now.
    pub fn reconnected(&mut self) {
        self.parked.clear();
    }

    /// The outbox has changed.
    pub fn news(&mut self) {
        self.more = true;
    }

    /// What to read, if there is room and may be something.
    pub fn ask(&self) -> Option<Ask> {
        let rows = self.window.rows.saturating_sub(self.under_way.len());
        let bytes = self.window.bytes.saturating_sub(self.under_way.values().sum());
        // Reading for every single answer would cost more than it sends: a quarter of the window at a time.
        let unnoted = self.acknowledged.len() >= UNNOTED_MAX;
        let room = self.under_way.is_empty() || (rows >= self.window.rows.div_ceil(4) && bytes > 0);
        (self.more && room && !unnoted).then(|| {
            let except = self.under_way.keys().chain(&self.acknowledged).chain(&self.parked);
            Ask { newest_first: self.behind, except: except.copied().collect(), rows, bytes }
        })
    }

    /// Takes what was read and says what to send, in order. `None` if the numbers mean something else now: then the
    /// attempt is over.
    pub fn offer(&mut self, batch: Batch) -> Option<Vec<Row>> {
        if batch.epoch != self.epoch {
            return None;
        }
        self.more = !batch.rows.is_empty();
        self.behind &= self.more;
        let mut bytes: usize = self.under_way.values().sum();
        let mut send = Vec::with_capacity(batch.rows.len());
        for row in batch.rows {
            let room = self.under_way.len() < self.window.rows && bytes + row.bytes <= self.window.bytes;
            if !room && !self.under_way.is_empty() {
                break;
            }
            bytes += row.bytes;
            self.under_way.insert(row.seq, row.bytes);
            send.push(row);
        }
        self.behind |= self.under_way.len() >= self.window.rows || bytes >= self.window.bytes;
        Some(send)
    }

    /// Takes the answer to a row.
    pub fn answered(&mut self, seq: u64, answer: Result<(), PublishErrorKind>) -> Next {
        if self.under_way.remove(&seq).is_none() {
            return Next::Continue;
        }
        match answer {
            Ok(()) => _ = self.acknowledged.insert(seq),
            Err(PublishErrorKind::Permanent) => _ = self.parked.insert(seq),
            // A device expects no last sequence; whoever says it was wrong is a proxy in trouble.
            Err(PublishErrorKind::Transient | PublishErrorKind::Conflict) => return Next::Restart,
        }
        Next::Continue
    }

    /// Rows to be noted as sent, with the epoch of their numbers.
    pub fn acknowledged(&self) -> Option<(Epoch, Vec<u64>)> {
        let epoch = self.epoch.filter(|_| !self.acknowledged.is_empty())?;
        Some((epoch, self.acknowledged.iter().copied().collect()))
    }

    /// The outbox has noted them.
    pub fn noted(&mut self, seqs: &[u64]) {
        seqs.iter().for_each(|seq| _ = self.acknowledged.remove(seq));
    }

    /// True when enough rows wait to be noted.
    pub fn should_note(&self) -> bool {
        self.acknowledged.len() >= ACKNOWLEDGED_MAX
    }

    /// True when all that can be sent has been, and answered.
    pub fn is_idle(&self) -> bool {
        !self.more && self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests;
