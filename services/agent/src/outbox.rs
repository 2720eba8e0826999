//! The outbox: every change the hub has to hear of, in order, until the hub says that it has it.
//!
//! # Limits
//! - rows and bytes: [`Limits`], 100,000 rows and 64 MiB where nothing is said; a row counts its body, its declared
//!   ranges and [`ROW_BYTES`] for the rest
//! - one report: [`REPORT_BYTES_MAX`] (160 KiB) without, 256 KiB with everything that sending adds
//! - ranges declared by one row: [`RANGES_PER_ROW_MAX`] (512)
//! - rows removed in one transaction to make room: [`REMOVALS_PER_APPEND_MAX`] (1,024), more than one can add. So the
//!   rows hold at every commit; the bytes too, unless one large report has to push out more small ones than that
//! - covered rows kept: 10,000, and none older than 24 h
//! - rows read at once: [`READ_ROWS_MAX`] (256) or [`READ_BYTES_MAX`] (1 MiB), whichever is less, but one at least
//! - memory: about 90 bytes a row; 9 MiB where 100,000 wait
//!
//! # Format
//! ```text
//! outbox (seq, deployment?, newest, terminal, bytes, observed, message_id, coalesced?, body)      written once
//!   deployment   none for capabilities: they supersede each other like the reports of one deployment
//!   newest       0: a later row of this deployment was written and may be gone; 1: the newest, unless a later one is here
//!   terminal     nothing more happens by itself: not folded
//!   observed     milliseconds of the device's clock, as sent and covered
//!   message_id   UUIDv7; with `-<round>` behind it from the first repetition on, which the bus must not take for an echo
//!   coalesced    numbers this row declares as folded or dropped; changes only while no relay ever saw the row
//!   body         the report without epoch, seq, head, current, coalesced, as JSON; never changes
//! passage (first, last, state, round, sent?, covered?)      how far the rows of these numbers have come; none: queued
//!   state        queued ──ack──► sent ──receipt──► covered ──retention──► (gone)
//!                  ▲───────── asked for again ────────┘ (also from sent)
//!   round        how often they were asked for again
//! memory (name, value)   epoch, receipt, capabilities; when a new epoch and a declaration were last begun; head, but
//!                        only where the row that had it is gone: else it is the highest row
//! ```
//! This is all that is on disk: about two pages of the log for a report with its standing, and one for whatever the hub
//! says of any number of reports. What finds a row, and the counts, are in memory and made anew at each start: see
//! `tables`. Format 2 kept with each row how far it had come; its files are brought to this one when they are opened.
//!
//! # Write
//! [`Outbox::append`] writes standings, rows and numbers in one transaction. There is no other way to get a number: a
//! kill at any instruction leaves all three or none. Reports that come together are written together, each standing
//! once; whoever waits meanwhile shares the next commit ([`crate::db`]). Nobody is answered before it. The agent's one
//! writer gathers what waits itself, and does it with [`Outbox::append_here`].
//!
//! # Make room
//! Over a limit, rows go until it holds again, in this order: covered ones; the oldest superseded one that is not
//! terminal (installed, removed, failed are); the oldest superseded one; the oldest of all but the one just written.
//! A number that goes uncovered is declared by the next newer row of its deployment (or, if it is dropped rather than
//! folded, of any), provided that no relay ever saw that row and it has room; else by the row just written. What was
//! sent must not change: the hub would take the second copy for a fork. Where neither has room for single numbers any
//! more, the lowest row of all goes, and one range from 1 on says so.
//!
//! # Read
//! [`Outbox::read`]: queued rows by number, or first those that are the newest of their deployment, then the others. It
//! gives head and epoch of the same instant, which go out with each row.
//!
//! # Trim
//! [`Outbox::receive`] takes a receipt: rows it covers are kept for a while as covered; rows it misses are queued again
//! if they were sent at least [`RESEND_AGE`] ago, also covered ones (the hub was set back to a backup); numbers it
//! misses that nobody here has any more are declared in a new row, and the hub counts them as folded instead of
//! missing. A row sent and never mentioned by any receipt is queued again after [`SILENCE_AGE`], then twice that, and
//! so on; also if the clock was set back to before it was sent.
//!
//! # Recover
//! ```text
//! crash, power loss             what was answered is there; of what was not, all of a transaction or nothing
//! disk full, failing, read-only the error names file and remedy; nothing of it is kept, reading goes on, callers hold
//!                               what they have and try again: no number is lost or invented
//! log torn or eaten             everything before the damage is there (SQLite's checksums)
//! file eaten                    found at the start or when met: set aside, and a new one begins a new epoch. Pages have
//!                               no checksums: a flipped bit within a text that still reads as JSON is not found
//! old copy of the file          found by the next receipt: a new epoch
//! hub set back to a backup      found by the next receipt: sent again, as far back as covered rows are kept
//! ```
//!
//! # Epochs
//! A new database has none: [`Outbox::fix_epoch`] sets it before the first send, durably, as the wall clock's seconds,
//! but above the epoch of the hub's last receipt and at least 1: it rises although a clock may be wrong. An epoch that
//! is there stays, wherever the clock goes. A receipt that knows more of this epoch than was ever written here, or
//! knows a later one, means that this database is an old copy: everything the hub does not hold is numbered anew in a
//! new epoch, after the capabilities and before the standings it does not mention; at most once in
//! [`RENEWAL_INTERVAL`], or two devices of one name would chase each other.

mod document;
mod folding;
mod index;
mod memory;
mod passage;
mod receipts;
mod rows;
mod tables;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_contract::limits::{
    COVERED_ROWS_KEPT, DEPLOYMENTS_PER_DEVICE_MAX, MESSAGE_BYTES_MAX, OUTBOX_BYTES_DEFAULT,
    OUTBOX_ROWS_DEFAULT,
};
use muster_contract::receipt::Receipt;
use muster_contract::{DeploymentId, Epoch, Timestamp};
use tokio::sync::watch;

use self::index::{Index, Tables};
use crate::db::{Connection, Db, Error, SqlResult};
use crate::observe::REPORTS_PER_COMMIT_MAX;
use crate::standing::Standing;

/// Largest body of one report, without what sending adds.
pub const REPORT_BYTES_MAX: usize = 160 * 1024;
/// Ranges of folded or dropped numbers that one row declares at most.
pub const RANGES_PER_ROW_MAX: usize = 512;
/// Rows removed at most in one transaction to make room; what is too much after that goes with the next ones.
pub const REMOVALS_PER_APPEND_MAX: usize = 1_024;
/// What a row counts beside its body and its ranges.
pub const ROW_BYTES: usize = 128;
/// Rows read at once at most.
pub const READ_ROWS_MAX: usize = 256;
/// Bytes read at once at most, unless one row alone has more.
pub const READ_BYTES_MAX: usize = 1024 * 1024;
/// Age from which a sent row that a receipt misses is sent again: until then it may still be on its way.
pub const RESEND_AGE: Duration = Duration::from_secs(30);
/// Age from which a sent row that no receipt ever mentions is sent again; doubles with each repetition.
pub const SILENCE_AGE: Duration = Duration::from_secs(10 * 60);
/// Least time between two epochs that this device begins by itself. Two devices of one name chase each other at this
/// pace; and when the other one has stopped, this is how long it may take until this one is believed again.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(45);
/// Least time between two rows written only to declare numbers that nobody has any more.
pub const DECLARATION_INTERVAL: Duration = Duration::from_secs(60);

/// Longest text of one range, with its comma: two numbers of u64.
const RANGE_BYTES_MAX: usize = 44;
/// Longest text of what sending adds: epoch, seq, head, current and their names.
const ENVELOPE_BYTES_MAX: usize = 1_024;

const _: () = {
    assert!(
        REPORT_BYTES_MAX + RANGES_PER_ROW_MAX * RANGE_BYTES_MAX + ENVELOPE_BYTES_MAX <= MESSAGE_BYTES_MAX
    );
    assert!(READ_ROWS_MAX < COVERED_ROWS_KEPT);
    // What one transaction adds: a group of reports, or each standing and the capabilities once more.
    assert!(REPORTS_PER_COMMIT_MAX < REMOVALS_PER_APPEND_MAX);
    assert!(DEPLOYMENTS_PER_DEVICE_MAX + 2 < REMOVALS_PER_APPEND_MAX);
    assert!(RESEND_AGE.as_secs() < SILENCE_AGE.as_secs());
    // Whoever was doubled for a moment is heard again within a minute.
    assert!(RENEWAL_INTERVAL.as_secs() < 60);
};

pub use document::{Body, CapabilitiesBody, Kept, Letter, Row, StatusBody};
pub use rows::message_id as new_message_id;
/// Tables of this room.
pub(crate) use tables::{FROM_FORMAT_2, SCHEMA};

/// How much may wait for the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rows: OUTBOX_ROWS_DEFAULT as u64, bytes: OUTBOX_BYTES_DEFAULT as u64 }
    }
}

/// What is written together with a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The standing it tells of.
    Keep(Box<Standing>),
    /// The deployment is gone: its standing is forgotten.
    Forget(DeploymentId),
}

/// A report to keep, and what goes with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The report.
    pub body: Body,
    /// What else the same transaction does.
    pub effect: Effect,
}

/// Which rows to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// The newest of each deployment before all others; else by number alone.
    pub newest_first: bool,
    /// Not these: they are under way.
    pub except: BTreeSet<u64>,
    /// With the newest first: of the others, only those behind this one, because all before it are in `except` or sent.
    pub after: u64,
    /// Rows at most; never above [`READ_ROWS_MAX`].
    pub rows: usize,
    /// Bytes at most, but for a single row; never above [`READ_BYTES_MAX`].
    pub bytes: usize,
}

/// Rows to send, and what was true when they were read.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The epoch the numbers belong to, if it is fixed.
    pub epoch: Option<Epoch>,
    /// Highest number ever given; 0 before the first.
    pub head: u64,
    /// In the order asked for.
    pub rows: Vec<Row>,
}

/// What the outbox holds, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The epoch, if it is fixed.
    pub epoch: Option<Epoch>,
    /// Highest number ever given; 0 before the first.
    pub head: u64,
    /// Rows that no publish acknowledgement covers yet.
    pub unsent: u64,
    /// When the oldest of those was seen.
    pub oldest_unsent_at: Option<Timestamp>,
    /// All rows.
    pub rows: u64,
    /// All bytes.
    pub bytes: u64,
}

/// What a receipt did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// It was taken in; `requeued` rows are to be sent again.
    Taken {
        /// How many.
        requeued: u64,
    },
    /// It speaks of another epoch, or of none that is fixed yet.
    OtherEpoch,
    /// The hub knows more than this database: a new epoch has begun, everything waiting has a new number.
    Renewed(Epoch),
    /// The hub knows more than this database, again: most likely two devices use one name. Nothing was done.
    Chased {
        /// When the same receipt will be answered with a new epoch.
        again_in: Duration,
    },
}

/// What changes of the outbox a relay wants to hear of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct News {
    /// Highest number ever given.
    pub head: u64,
    /// Rises whenever there may be more to send.
    pub wake: u64,
}

/// The outbox of a device. Clones share it; nobody else writes to its tables.
#[derive(Debug, Clone)]
pub struct Outbox {
    db: Db,
    limits: Limits,
    /// Highest number that a relay may have seen, in this life of the agent or an earlier one. Never falls, not even
    /// with a new epoch: that only costs some folding. Touched by jobs of the database alone, one after another.
    frozen: Arc<AtomicU64>,
    news: watch::Sender<News>,
    /// What finds a row, and how much had been undone when it was true. Likewise touched by jobs of the database alone.
    index: Arc<Mutex<Option<(u64, Index)>>>,
}

impl Outbox {
    /// The outbox in a database that was opened with this room's tables. Opened once for a database; whoever else needs it
    /// has a clone.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn open(db: Db, limits: Limits) -> Result<Self, Error> {
        let news = watch::Sender::new(News::default());
        let outbox = Self { db, limits, frozen: Arc::default(), news, index: Arc::default() };
        let head = outbox.db.run(outbox.job(|tables| Ok(tables.index.head()))).await?;
        outbox.frozen.store(head, Ordering::Relaxed);
        outbox.news.send_replace(News { head, wake: 0 });
        Ok(outbox)
    }

    /// Work of the database with what finds a row. That is put back only when the work has gone well, and believed only as
    /// long as nothing was undone since: else it is made anew.
    fn job<T>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> SqlResult<T> + Send + 'static,
    ) -> impl FnOnce(&Connection) -> SqlResult<T> + Send + 'static {
        let (kept, undone) = (Arc::clone(&self.index), self.db.undone());
        move |connection| {
            // Whoever panicked had taken it out.
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let undone = undone.count();
            // What is not believed is gone before another is made: there is room for one.
            let believed = kept.take().filter(|(as_of, _)| *as_of == undone);
            let mut index = match believed {
                Some((_, index)) => index,
                None => Index::of(connection)?,
            };
            let done = work(&mut Tables { connection, index: &mut index })?;
            *kept = Some((undone, index));
            Ok(done)
        }
    }

    /// Keeps reports, in order, with what goes with them: all or none.
    ///
    /// # Errors
    /// None was kept; give them again.
    pub async fn append(&self, entries: Arc<Vec<Entry>>) -> Result<(), Error> {
        let head = self.db.run(self.appending(entries)).await?;
        self.wake(Some(head));
        Ok(())
    }

    /// The same for a task that has gathered all reports that wait: on its own thread, if the database is free.
    ///
    /// # Errors
    /// None was kept; give them again.
    pub async fn append_here(&self, entries: Arc<Vec<Entry>>) -> Result<(), Error> {
        let head = self.db.run_here(self.appending(entries)).await?;
        self.wake(Some(head));
        Ok(())
    }

    fn appending(
        &self,
        entries: Arc<Vec<Entry>>,
    ) -> impl FnOnce(&Connection) -> SqlResult<u64> + Send + 'static {
        let (limits, frozen) = (self.limits, Arc::clone(&self.frozen));
        self.job(move |tables| {
            let head = rows::append(tables, &entries)?;
            if !entries.is_empty() {
                folding::make_room(tables, limits, frozen.load(Ordering::Relaxed), head)?;
            }
            Ok(head)
        })
    }

    /// The next rows to send.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn read(&self, ask: Ask) -> Result<Batch, Error> {
        let frozen = Arc::clone(&self.frozen);
        let read = self.job(move |tables| {
            let batch = rows::read(tables, &ask)?;
            let highest = batch.rows.iter().map(|row| row.seq).max().unwrap_or_default();
            frozen.fetch_max(highest, Ordering::Relaxed);
            Ok(batch)
        });
        self.db.run(read).await
    }

    /// Notes that the bus holds these rows of this epoch.
    ///
    /// # Errors
    /// Nothing was noted; without it they are sent again one day, which does no harm.
    pub async fn mark_sent(&self, epoch: Epoch, seqs: Vec<u64>, now: Timestamp) -> Result<(), Error> {
        self.db.run(self.job(move |tables| rows::mark_sent(tables, epoch, &seqs, now))).await
    }

    /// Takes a receipt.
    ///
    /// # Errors
    /// Nothing of it was taken.
    pub async fn receive(&self, receipt: Receipt, now: Timestamp) -> Result<Received, Error> {
        let (limits, frozen) = (self.limits, Arc::clone(&self.frozen));
        let receive = self.job(move |tables| {
            let before = tables.index.head();
            let received = receipts::receive(tables, &receipt, now)?;
            let head = tables.index.head();
            if head > before || matches!(received, Received::Renewed(_)) {
                folding::make_room(tables, limits, frozen.load(Ordering::Relaxed), head)?;
            }
            Ok((received, head))
        });
        let (received, head) = self.db.run(receive).await?;
        self.wake(Some(head));
        Ok(received)
    }

    /// Queues again what was sent long ago and never mentioned by a receipt, and forgets covered rows whose time is
    /// over. To be called now and then.
    ///
    /// # Errors
    /// Nothing was done.
    pub async fn tidy(&self, now: Timestamp) -> Result<(), Error> {
        let requeued = self.db.run(self.job(move |tables| receipts::tidy(tables, now))).await?;
        if requeued > 0 {
            tracing::warn!(
                outbox.rows = requeued,
                "the hub has never confirmed these reports: sending them again"
            );
            self.wake(None);
        }
        Ok(())
    }

    /// The epoch, fixed now if it was not: the wall clock's seconds, but above every epoch the hub ever mentioned.
    ///
    /// # Errors
    /// It could not be made durable, so nothing may be sent.
    pub async fn fix_epoch(&self, now: Timestamp) -> Result<Epoch, Error> {
        self.db.run(move |connection| memory::fix_epoch(connection, now)).await
    }

    /// The capabilities reported last.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn capabilities(&self) -> Result<Option<CapabilitiesBody>, Error> {
        self.db.run(memory::capabilities).await
    }

    /// What it holds, in numbers.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn summary(&self) -> Result<Summary, Error> {
        self.db.run(self.job(|tables| rows::summary(tables))).await
    }

    /// Tells when there may be more to send.
    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    fn wake(&self, head: Option<u64>) {
        self.news.send_modify(|news| {
            news.head = head.unwrap_or(news.head);
            news.wake += 1;
        });
    }
}

#[cfg(test)]
mod tests;
