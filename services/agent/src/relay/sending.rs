//! What to send next: pure. It is told what was read, what was answered and what the link does; it says what to read
//! and what to send. It asks no clock and speaks to nobody.
//!
//! - After a (re)connect the newest report of each deployment goes before any other, also one that was written while a
//!   backlog is under way: what was read but not sent is given back. Once everything is sent, reports go as they come, so
//!   that a subscriber sees a quick change in its order; until so many wait that they no longer fit into the window.
//! - At most [`Window::rows`] rows and [`Window::bytes`] bytes are under way; a single row may be larger. On a link that
//!   takes long to answer it is less: every quick answer makes the window one row wider, every slow one narrower, and a
//!   failed attempt halves it. What waits in a thin link would delay what is written next, and time out in the end.
//! - A transient failure ends the attempt: nothing is known of what was under way, so all of it is sent again, in the
//!   right order, by the next attempt. That is the one failure path; a lost link takes it too.
//! - A row that is refused because the device's share of UPLINK is full goes again, in its order, after a short pause; the
//!   attempt and the link last. Then one row goes first, so that a device that is throttled costs little, and the window
//!   grows from there.
//! - A row that the bus refuses for good is parked: logged, left in the outbox and passed over until the next connection.
//!   It is not declared as gone, because it is not: the hub counts it as missing, and so nobody takes an older report of
//!   that deployment for the truth. The bus refuses such hubs at the door (message size), so this is a
//!   misconfigured stream, and mending it brings the row in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_bus::PublishErrorKind;
use muster_bus::publish::CONFIRM_TIMEOUT;
use muster_contract::Epoch;
use muster_contract::limits::IN_FLIGHT_MAX;

use crate::outbox::{Ask, Batch, Row};

/// Bytes under way at most, but for a single row.
pub const IN_FLIGHT_BYTES_MAX: usize = 1024 * 1024;
/// Acknowledged rows that may wait to be noted; with more, nothing is sent until they are.
pub const UNNOTED_MAX: usize = 10_000;
/// Acknowledged rows that are noted together.
pub const ACKNOWLEDGED_MAX: usize = 2_048;

/// One part in so many of the window is read at a time: to read for every single answer would cost more than it sends.
const READ_PART: usize = 4;

/// Rows under way while nobody knows yet what the link carries.
pub const WIDTH_START: usize = 32;
/// Rows under way at least, on any link.
pub const WIDTH_MIN: usize = 8;
/// Rows under way at first after a pause: whether there is room again is asked with one.
pub const WIDTH_PROBE: usize = 1;
/// An answer within this time: the link may carry more.
pub const QUICK: Duration = Duration::from_secs(1);
/// An answer that took longer: too much waits in the link.
pub const SLOW: Duration = Duration::from_secs(3);

const _: () = {
    assert!(ACKNOWLEDGED_MAX < UNNOTED_MAX);
    assert!(
        WIDTH_PROBE < WIDTH_MIN
            && READ_PART < WIDTH_MIN
            && WIDTH_MIN < WIDTH_START
            && WIDTH_START < IN_FLIGHT_MAX
    );
    assert!(QUICK.as_millis() < SLOW.as_millis() && 2 * SLOW.as_secs() < CONFIRM_TIMEOUT.as_secs());
};

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
    /// The device's share is full: nothing is read until [`Sending::resume`], after a short pause.
    Pause,
    /// The attempt is over.
    Restart,
}

/// The state of sending.
#[derive(Debug)]
pub struct Sending {
    window: Window,
    /// Rows that may be under way now, of those that the window allows.
    width: usize,
    epoch: Option<Epoch>,
    /// Rows without an answer, with their bytes.
    under_way: BTreeMap<u64, usize>,
    /// The bytes of all of them: it is asked for with every answer.
    under_way_bytes: usize,
    /// Rows with a good answer that the outbox does not know of yet.
    acknowledged: BTreeSet<u64>,
    parked: BTreeSet<u64>,
    /// Of the backlog, everything up to this row was offered in this attempt and is accounted for here.
    passed: u64,
    /// Rows that went as the newest of their deployment, and that the outbox does not know to be sent.
    heads: BTreeSet<u64>,
    /// There may be something to read.
    more: bool,
    /// More waits than fits, or nobody knows how much.
    behind: bool,
    /// The device's share was full at the last answer; nothing is sent meanwhile.
    is_paused: bool,
}

impl Sending {
    /// Nothing sent yet.
    pub fn new(window: Window) -> Self {
        Self {
            window,
            width: WIDTH_START.min(window.rows),
            epoch: None,
            under_way: BTreeMap::new(),
            under_way_bytes: 0,
            acknowledged: BTreeSet::new(),
            parked: BTreeSet::new(),
            passed: 0,
            heads: BTreeSet::new(),
            more: true,
            behind: true,
            is_paused: false,
        }
    }

    /// A new attempt: nothing is under way any more. In another epoch nothing of the one before counts.
    pub fn begin(&mut self, epoch: Epoch) {
        if self.epoch.replace(epoch) != Some(epoch) {
            self.acknowledged.clear();
            self.parked.clear();
        }
        self.under_way.clear();
        self.under_way_bytes = 0;
        // Any of them may be one.
        self.heads.clone_from(&self.acknowledged);
        self.passed = 0;
        self.more = true;
        self.behind = true;
        self.is_paused = false;
    }

    /// A new connection: what was refused may be taken now, and the link may be another.
    pub fn reconnected(&mut self) {
        self.parked.clear();
        self.width = WIDTH_START.min(self.window.rows);
    }

    /// The outbox has changed: rows may wait again that were passed.
    pub fn news(&mut self) {
        self.passed = 0;
        self.more = true;
    }

    /// Something waits although it would fit: what is written meanwhile goes before it.
    pub fn held_back(&mut self) {
        self.behind = true;
    }

    /// What to read, if there is room and may be something.
    pub fn ask(&self) -> Option<Ask> {
        let rows = self.width.saturating_sub(self.under_way.len());
        let bytes = self.bytes().saturating_sub(self.under_way_bytes);
        let room = self.under_way.is_empty() || (rows >= self.width.div_ceil(READ_PART) && bytes > 0);
        (room && self.may_read()).then(|| self.ask_for(rows, bytes))
    }

    /// What to read while there is no room, so that it is here when there is: what a full window sends next. Whatever the
    /// outbox tells meanwhile goes before it, so it is thrown away at [`news`](Self::news).
    pub fn ask_ahead(&self) -> Option<Ask> {
        let ahead = self.behind && !self.under_way.is_empty() && self.may_read();
        ahead.then(|| self.ask_for(self.width.div_ceil(READ_PART), self.bytes().div_ceil(READ_PART)))
    }

    fn may_read(&self) -> bool {
        self.more && !self.is_paused && self.acknowledged.len() < UNNOTED_MAX
    }

    fn ask_for(&self, rows: usize, bytes: usize) -> Ask {
        Ask { newest_first: self.behind, except: self.except(), after: self.passed, rows, bytes }
    }

    /// What must not be read again. While a backlog drains these are few: what was passed needs no mention.
    fn except(&self) -> BTreeSet<u64> {
        let from = if self.behind { self.passed.saturating_add(1) } else { 0 };
        let under_way = self.under_way.range(from..).map(|(seq, _)| seq);
        let acknowledged = self.acknowledged.range(from..);
        under_way.chain(acknowledged).chain(&self.heads).chain(&self.parked).copied().collect()
    }

    /// Takes what was read and says what to send, in order. `None` if the numbers mean something else now: then the
    /// attempt is over.
    pub fn offer(&mut self, batch: Batch) -> Option<Vec<Row>> {
        if batch.epoch != self.epoch {
            return None;
        }
        self.more = !batch.rows.is_empty();
        self.behind &= self.more;
        let mut send = Vec::with_capacity(batch.rows.len());
        for row in batch.rows {
            let room = self.under_way.len() < self.width && self.under_way_bytes + row.bytes <= self.bytes();
            if !room && !self.under_way.is_empty() {
                break;
            }
            self.under_way_bytes += row.bytes;
            if row.newest {
                self.heads.insert(row.seq);
            } else {
                self.passed = self.passed.max(row.seq);
            }
            let before = self.under_way.insert(row.seq, row.bytes);
            self.under_way_bytes -= before.unwrap_or_default();
            send.push(row);
        }
        self.behind |= self.under_way.len() >= self.width || self.under_way_bytes >= self.bytes();
        Some(send)
    }

    /// Takes the answer to a row, which came so long after it was sent.
    pub fn answered(&mut self, seq: u64, answer: Result<(), PublishErrorKind>, after: Duration) -> Next {
        let Some(bytes) = self.under_way.remove(&seq) else { return Next::Continue };
        self.under_way_bytes -= bytes;
        match answer {
            Ok(()) => {
                self.acknowledged.insert(seq);
                self.widen(after);
            }
            Err(PublishErrorKind::Permanent) => _ = self.parked.insert(seq),
            Err(PublishErrorKind::SubjectFull) => return self.pause(seq),
            // A device expects no last sequence; whoever says it was wrong is a proxy in trouble.
            Err(PublishErrorKind::Transient | PublishErrorKind::Conflict) => {
                self.narrow(self.width / 2);
                return Next::Restart;
            }
        }
        Next::Continue
    }

    /// A row was refused because the share is full. It goes again, and so do others that are refused with it.
    fn pause(&mut self, seq: u64) -> Next {
        self.heads.remove(&seq);
        self.passed = self.passed.min(seq.saturating_sub(1));
        (self.more, self.behind) = (true, true);
        self.width = WIDTH_PROBE;
        if std::mem::replace(&mut self.is_paused, true) { Next::Continue } else { Next::Pause }
    }

    /// The pause is over.
    pub const fn resume(&mut self) {
        self.is_paused = false;
    }

    fn widen(&mut self, after: Duration) {
        if after <= QUICK {
            self.width = (self.width + 1).min(self.window.rows);
        } else if after > SLOW {
            self.narrow(self.width - 1);
        }
    }

    fn narrow(&mut self, to: usize) {
        self.width = to.max(WIDTH_MIN.min(self.window.rows));
    }

    /// Rows that may be under way now.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Bytes that may be under way now: the window's, in the proportion of its rows.
    fn bytes(&self) -> usize {
        self.window.bytes * self.width / self.window.rows
    }

    /// Rows to be noted as sent, with the epoch of their numbers.
    pub fn acknowledged(&self) -> Option<(Epoch, Vec<u64>)> {
        let epoch = self.epoch.filter(|_| !self.acknowledged.is_empty())?;
        Some((epoch, self.acknowledged.iter().copied().collect()))
    }

    /// The outbox has noted them.
    pub fn noted(&mut self, seqs: &[u64]) {
        for seq in seqs {
            self.acknowledged.remove(seq);
            self.heads.remove(seq);
        }
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
