//! The outbox: stores every report in order until the hub confirms it by a receipt.
//!
//! # Limits
//! - rows and bytes: [`Limits`], 100,000 rows and 64 MiB by default; a row counts its body, its declared ranges and
//!   [`ROW_BYTES`] for the rest
//! - one report: [`BODY_BYTES_MAX`] (60 KiB) as stored, 72 KiB as sent
//! - ranges declared by one row: [`RANGES_PER_ROW_MAX`] (256)
//! - rows evicted in one transaction: [`EVICTIONS_PER_COMMIT_MAX`] (1,024), more than one can add. So the row limit
//!   holds at every commit; the byte limit too, unless one large report has to evict more small ones than that
//! - covered rows kept: 10,000, and none older than 24 h
//! - rows read at once: [`READ_ROWS_MAX`] (256) or [`READ_BYTES_MAX`] (1 MiB), whichever is less, but at least one
//! - memory: about 90 bytes a row; 9 MiB for 100,000 rows
//!
//! # Format
//! ```text
//! outbox (seq, deployment?, newest, terminal, bytes, observed, message_id, coalesced?, body)      written once
//!   deployment   none for capabilities: they supersede each other like the reports of one deployment
//!   newest       0: a later row of this deployment was written and may be deleted; 1: the newest, unless a later one exists
//!   terminal     the state is final (installed, removed, failed): evicted after the others
//!   observed     milliseconds of the device's clock, as sent and covered
//!   message_id   UUIDv7: decides whether the report is traced; agents up to 0.1 sent it as well
//!   coalesced    numbers this row declares as folded or dropped; changes only while the row was never read for sending
//!   body         the report without epoch, seq, head, current, coalesced, as JSON; never changes
//! passage (first, last, state, round, sent?, covered?)      the delivery state of the rows with these numbers; none: queued
//!   state        queued ──ack──► sent ──receipt──► covered ──retention──► (deleted)
//!                  ▲────────── requeued ──────────────┘ (also from sent)
//!   round        how often they were requeued
//! memory (name, value)   epoch, receipt, capabilities; whether the hub reads batches, and has the dictionary; when a new epoch
//!                        and a declaration were last begun; head, but only if its row was deleted: otherwise it is the highest row
//! ```
//! Nothing else is on disk: about two pages of the WAL for a report with its record, and one for a receipt of any
//! number of reports. The indexes and counts are in memory and rebuilt at each start (see `tables`).
//!
//! # Write
//! [`Outbox::append`] writes records, rows and numbers in one transaction. There is no other way to assign a number:
//! a kill at any instruction leaves all three or none. Reports that arrive together are written together, each record
//! once; waiting callers share the next commit ([`crate::db`]), and are answered after it. The report writer collects
//! the waiting reports itself and stores them with [`Outbox::append_here`].
//!
//! # Evict
//! Over a limit, rows are evicted until it holds, in this order: covered rows; the oldest superseded row that is not
//! terminal; the oldest superseded row; the oldest row except the one just written. A number that is evicted
//! uncovered is declared by the next newer row of its deployment (or, if it is dropped rather than folded, of any),
//! provided that the row was never read for sending and has room; otherwise by the row just written. A sent report
//! must not change: the hub would take the second copy for a fork. If neither row has room for single numbers, the
//! lowest row is evicted and declared by one range that begins at 1.
//!
//! # Read
//! [`Outbox::read`] returns queued rows by number, or the newest of each deployment before the others. It returns
//! head and epoch of the same transaction, which are sent with each row.
//!
//! # Receipts
//! [`Outbox::receive`] applies a receipt: covered rows are kept for a while; rows that the hub misses are requeued if
//! they were sent at least [`RESEND_AGE`] ago, also covered ones (the hub was restored from a backup); numbers that
//! the hub misses and no row has any more are declared in a new row, and the hub counts them as folded instead of
//! missing. A sent row that no receipt mentions is requeued after [`UNMENTIONED_AGE`], then after twice that, and so
//! on; also if the clock was set back to before it was sent. Receipts also say whether the hub reads batches of reports
//! from this device. Once it no longer does, every sent row that the receipt does not cover is requeued, because it may
//! have been sent in a batch; a requeued row goes alone.
//!
//! # Recovery
//! ```text
//! hub refuses a report          its receipt names it as refused: the row stays, and is sent again when the hub asks for it,
//!                               or after [`UNMENTIONED_AGE`] and then ever more rarely
//! crash, power loss             committed transactions are whole; of another one nothing is stored
//! disk full, failing, read-only the error names file and remedy; nothing is stored, reading works, callers keep their
//!                               reports and try again: no number is lost or invented
//! WAL torn or damaged           everything before the damage is there (SQLite's checksums)
//! file damaged                  found at the start or when read: moved aside, and a new file begins a new epoch. Pages have
//!                               no checksums: a flipped bit in a text that is still JSON is not found
//! old copy of the file          found by the next receipt: a new epoch
//! hub restored from a backup    found by the next receipt: rows are sent again, as far back as covered rows are kept
//! ```
//!
//! # Epochs
//! A new database has no epoch. [`Outbox::fix_epoch`] sets it before the first report is sent, durably: the wall
//! clock's seconds, but above the epoch of the hub's last receipt and at least 1, so that it rises although a clock
//! may be wrong. A fixed epoch stays, wherever the clock goes. A receipt that covers a number of this epoch that was
//! never sent from here, or that names a later epoch, means that this database is an old copy: every report that the
//! hub does not hold gets a new number in a new epoch, after the capabilities and before the records that these
//! reports do not mention. This happens at most once in [`RENEWAL_INTERVAL`]: otherwise two devices with one name
//! would begin epochs in turn without end.

mod delivery;
mod delivery_table;
mod document;
mod encoding;
mod eviction;
mod index;
mod receipts;
mod rows;
mod tables;
mod values;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use muster_contract::limits::{COVERED_ROWS_KEPT, DEPLOYMENTS_PER_DEVICE_MAX, REPORT_BYTES_MAX};
use muster_contract::receipt::Receipt;
use muster_contract::{Epoch, Timestamp};
use tokio::sync::watch;

use self::index::{Index, Tables};
use crate::db::{Connection, Db, Error, SqlResult};
use crate::report::{BODY_BYTES_MAX, CapabilitiesBody};

/// Longest text of one range, with its comma: two u64 numbers.
const RANGE_BYTES_MAX: usize = 44;
/// Longest text that sending adds: epoch, seq, head, current and their names.
const ENVELOPE_BYTES_MAX: usize = 1_024;

const _: () = {
    assert!(BODY_BYTES_MAX + RANGES_PER_ROW_MAX * RANGE_BYTES_MAX + ENVELOPE_BYTES_MAX <= REPORT_BYTES_MAX);
    assert!(READ_ROWS_MAX < COVERED_ROWS_KEPT);
    // One transaction adds a group of reports, or each record and the capabilities once more.
    assert!(REPORTS_PER_COMMIT_MAX < EVICTIONS_PER_COMMIT_MAX);
    assert!(DEPLOYMENTS_PER_DEVICE_MAX + 2 < EVICTIONS_PER_COMMIT_MAX);
    assert!(RESEND_AGE.as_secs() < UNMENTIONED_AGE.as_secs());
    // After a duplicate has stopped, the hub accepts this device within a minute.
    assert!(RENEWAL_INTERVAL.as_secs() < 60);
};

#[cfg(test)]
pub(crate) use document::StoredBody;
pub use document::{Row, pack_rows};
pub use encoding::{Encoded, Encoding};
pub(crate) use eviction::EVICTIONS_PER_COMMIT_MAX;
pub use eviction::Limits;
pub(crate) use receipts::RESEND_AGE;
pub use receipts::{RENEWAL_INTERVAL, ReceiptOutcome, UNMENTIONED_AGE};
pub use rows::{
    Batch, NewReport, READ_BYTES_MAX, READ_ROWS_MAX, ROW_BYTES, ReadRequest, RecordChange, Summary,
    message_id,
};
pub(crate) use rows::{RANGES_PER_ROW_MAX, REPORTS_PER_COMMIT_MAX};
/// The tables of this module.
pub(crate) use tables::SCHEMA;

/// A change of the outbox, for the relay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxChange {
    /// Highest number assigned.
    pub head: u64,
    /// Incremented whenever there may be more to send.
    pub revision: u64,
}

/// The outbox of a device. Clones share it; no other module writes to its tables.
#[derive(Debug, Clone)]
pub struct Outbox {
    db: Db,
    limits: Limits,
    /// Highest number that was ever read for sending, also by an earlier process. Never falls, not even with a new epoch:
    /// that only costs some folding. Used by jobs of the database alone, which run one at a time.
    max_exposed: Arc<AtomicU64>,
    changes: watch::Sender<OutboxChange>,
    /// The index, with the count of rollbacks at which it was correct. Also used by jobs of the database alone.
    index: Arc<Mutex<Option<(u64, Index)>>>,
}

impl Outbox {
    /// The outbox in a database with this module's tables. Opened once per database; other users clone it.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn open(db: Db, limits: Limits) -> Result<Self, Error> {
        let changes = watch::Sender::new(OutboxChange::default());
        let outbox = Self { db, limits, max_exposed: Arc::default(), changes, index: Arc::default() };
        let head = outbox.db.run(outbox.job(|tables| Ok(tables.index.head()))).await?;
        outbox.max_exposed.store(head, Ordering::Relaxed);
        outbox.changes.send_replace(OutboxChange { head, revision: 0 });
        Ok(outbox)
    }

    /// A job with the index. The index is kept only if the job succeeds, and reused only if nothing was rolled back
    /// since: otherwise it is rebuilt.
    fn job<T>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> SqlResult<T> + Send + 'static,
    ) -> impl FnOnce(&Connection) -> SqlResult<T> + Send + 'static {
        let (cache, rollbacks) = (Arc::clone(&self.index), self.db.rollbacks());
        move |connection| {
            // A panicking job had taken the index out.
            let mut cached = cache.lock().unwrap_or_else(PoisonError::into_inner);
            let rollbacks = rollbacks.count();
            // An outdated index is dropped before another is built: there is memory for one.
            let current = cached.take().filter(|(as_of, _)| *as_of == rollbacks);
            let mut index = match current {
                Some((_, index)) => index,
                None => Index::of(connection)?,
            };
            let done = work(&mut Tables { connection, index: &mut index })?;
            *cached = Some((rollbacks, index));
            Ok(done)
        }
    }

    /// Stores reports, in order, with their changes to records: all or none.
    ///
    /// # Errors
    /// Nothing was stored; append the same reports again.
    pub async fn append(&self, entries: Arc<Vec<NewReport>>) -> Result<(), Error> {
        let head = self.db.run(self.appending(entries)).await?;
        self.notify(Some(head));
        Ok(())
    }

    /// The same on the caller's thread if the database is free, for a task that has collected all waiting reports.
    ///
    /// # Errors
    /// Nothing was stored; append the same reports again.
    pub async fn append_here(&self, entries: Arc<Vec<NewReport>>) -> Result<(), Error> {
        let head = self.db.run_here(self.appending(entries)).await?;
        self.notify(Some(head));
        Ok(())
    }

    fn appending(
        &self,
        entries: Arc<Vec<NewReport>>,
    ) -> impl FnOnce(&Connection) -> SqlResult<u64> + Send + 'static {
        let (limits, max_exposed) = (self.limits, Arc::clone(&self.max_exposed));
        self.job(move |tables| {
            let head = rows::append(tables, &entries)?;
            if !entries.is_empty() {
                eviction::evict(tables, limits, max_exposed.load(Ordering::Relaxed), head)?;
            }
            Ok(head)
        })
    }

    /// The next rows to send.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn read(&self, request: ReadRequest) -> Result<Batch, Error> {
        let max_exposed = Arc::clone(&self.max_exposed);
        let read = self.job(move |tables| {
            let batch = rows::read(tables, &request)?;
            let highest = batch.rows.iter().map(|row| row.seq).max().unwrap_or_default();
            max_exposed.fetch_max(highest, Ordering::Relaxed);
            Ok(batch)
        });
        self.db.run(read).await
    }

    /// Marks these rows of this epoch as sent: UPLINK holds them.
    ///
    /// # Errors
    /// Nothing was marked; the rows are sent again at some time, which is harmless.
    pub async fn mark_sent(&self, epoch: Epoch, seqs: Vec<u64>, now: Timestamp) -> Result<(), Error> {
        self.db.run(self.job(move |tables| rows::mark_sent(tables, epoch, &seqs, now))).await
    }

    /// Applies a receipt.
    ///
    /// # Errors
    /// Nothing of it was applied.
    pub async fn receive(&self, receipt: Receipt, now: Timestamp) -> Result<ReceiptOutcome, Error> {
        let (limits, max_exposed) = (self.limits, Arc::clone(&self.max_exposed));
        let receive = self.job(move |tables| {
            let before = tables.index.head();
            let max_exposed = max_exposed.load(Ordering::Relaxed);
            let received = receipts::receive(tables, &receipt, max_exposed, now)?;
            let head = tables.index.head();
            if head > before || matches!(received, ReceiptOutcome::Renewed(_)) {
                eviction::evict(tables, limits, max_exposed, head)?;
            }
            Ok((received, head))
        });
        let (received, head) = self.db.run(receive).await?;
        self.notify(Some(head));
        Ok(received)
    }

    /// Requeues rows that were sent long ago and that no receipt mentions, and deletes expired covered rows. To be called
    /// periodically.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn maintain(&self, now: Timestamp) -> Result<(), Error> {
        let requeued = self.db.run(self.job(move |tables| receipts::maintain(tables, now))).await?;
        if requeued > 0 {
            tracing::warn!(outbox.rows = requeued, "no receipt mentions these reports: sending them again");
            self.notify(None);
        }
        Ok(())
    }

    /// The epoch; fixed now if it was not: the wall clock's seconds, but above every epoch that the hub ever mentioned.
    ///
    /// # Errors
    /// It could not be stored, so nothing may be sent.
    pub async fn fix_epoch(&self, now: Timestamp) -> Result<Epoch, Error> {
        self.db.run(move |connection| values::fix_epoch(connection, now)).await
    }

    /// The capabilities reported last.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn capabilities(&self) -> Result<Option<CapabilitiesBody>, Error> {
        self.db.run(values::capabilities).await
    }

    /// The contents of the outbox in numbers.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn summary(&self) -> Result<Summary, Error> {
        self.db.run(self.job(|tables| rows::summary(tables))).await
    }

    /// Publishes when there may be more to send.
    pub fn changes(&self) -> watch::Receiver<OutboxChange> {
        self.changes.subscribe()
    }

    fn notify(&self, head: Option<u64>) {
        self.changes.send_modify(|changes| {
            changes.head = head.unwrap_or(changes.head);
            changes.revision += 1;
        });
    }
}

#[cfg(test)]
mod tests;
