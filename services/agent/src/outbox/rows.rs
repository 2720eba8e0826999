//! Writes rows, reads them for sending, marks them as sent, and summarises them.

use std::collections::{BTreeSet, HashMap};

use muster_contract::receipt::RefusedNumbers;
use muster_contract::{DeploymentId, Epoch, SeqRanges, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::delivery_table::{DeliveryState, QUEUED, SENT, runs};
use super::document::{Row, StoredBody};
use super::index::{Index, Tables};
use super::{delivery, values};
use crate::db::{Connection, SqlResult, SqlRow, corrupt, params};
use crate::record::DeploymentRecord;
use crate::report::Body;
use crate::store;

/// Reports stored in one transaction at most.
pub(crate) const REPORTS_PER_COMMIT_MAX: usize = 64;
/// Ranges of folded or dropped numbers that one row declares at most.
pub(crate) const RANGES_PER_ROW_MAX: usize = 256;
/// Bytes that a row counts beside its body and its ranges.
pub const ROW_BYTES: usize = 128;
/// Rows read at once at most.
pub const READ_ROWS_MAX: usize = 256;
/// Bytes read at once at most, unless one row alone has more.
pub const READ_BYTES_MAX: usize = 1024 * 1024;

const ROWS: &str =
    "SELECT seq, message_id, bytes, body, coalesced FROM outbox WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";

/// The change to a deployment record that is stored with a report.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordChange {
    /// Nothing.
    None,
    /// Stores the record that the report is about.
    Store(Box<DeploymentRecord>),
    /// Deletes the record: the deployment is removed.
    Remove(DeploymentId),
}

/// A report to store, with the change to its record.
#[derive(Debug, Clone, PartialEq)]
pub struct NewReport {
    /// The report.
    pub body: Body,
    /// The change in the same transaction.
    pub change: RecordChange,
}

/// Selects rows to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// The newest row of each deployment before all others; otherwise by number alone.
    pub newest_first: bool,
    /// Rows to leave out: they are under way.
    pub except: BTreeSet<u64>,
    /// With `newest_first`: of the others, only rows after this one, because all before it are in `except` or sent.
    pub after: u64,
    /// Rows at most; never above [`READ_ROWS_MAX`].
    pub rows: usize,
    /// Bytes at most, but for a single row; never above [`READ_BYTES_MAX`].
    pub bytes: usize,
}

/// Rows to send, with the epoch and head of the same transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The epoch of the numbers, if it is fixed.
    pub epoch: Option<Epoch>,
    /// Highest number assigned; 0 before the first.
    pub head: u64,
    /// The rows, in the requested order.
    pub rows: Vec<Row>,
    /// The hub reads compressed batches of reports, by its last receipt.
    pub hub_reads_batches: bool,
    /// The hub has the dictionary of reports, by its last receipt.
    pub hub_has_dictionary: bool,
}

/// The contents of the outbox in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The epoch, if it is fixed.
    pub epoch: Option<Epoch>,
    /// Highest number assigned; 0 before the first.
    pub head: u64,
    /// Rows that UPLINK has not confirmed.
    pub unsent: u64,
    /// When the oldest of those was observed.
    pub oldest_unsent_at: Option<Timestamp>,
    /// All rows.
    pub rows: u64,
    /// All bytes.
    pub bytes: u64,
    /// Reports that the hub refused, by its last receipt: they stay in the outbox.
    pub refused: Vec<RefusedNumbers>,
    /// The hub reads short heartbeats, by its last receipt.
    pub hub_compares: bool,
}

/// Writes reports under the next numbers, with their changes to records, and returns the last number. For a
/// report that a later one of the group supersedes, only the row is written.
pub(super) fn append(tables: &mut Tables<'_>, entries: &[NewReport]) -> SqlResult<u64> {
    let last: HashMap<_, _> =
        entries.iter().enumerate().map(|(at, entry)| (entry.body.deployment(), at)).collect();
    for (at, entry) in entries.iter().enumerate() {
        let deployment = entry.body.deployment();
        let newest = last.get(&deployment) == Some(&at);
        if newest {
            apply_change(tables.connection, entry)?;
        }
        write(tables, newest, &entry.body, &SeqRanges::new())?;
    }
    Ok(tables.index.head())
}

fn apply_change(connection: &Connection, entry: &NewReport) -> SqlResult<()> {
    match &entry.change {
        RecordChange::None => {}
        RecordChange::Store(record) => store::write_record(connection, record)?,
        RecordChange::Remove(deployment) => store::delete_record(connection, deployment)?,
    }
    match &entry.body {
        Body::Capabilities(body) => values::set_capabilities(connection, body),
        Body::Status(_) => Ok(()),
    }
}

/// Writes a report under the next number, declaring `coalesced`.
pub(super) fn insert(tables: &mut Tables<'_>, body: &Body, coalesced: &SeqRanges) -> SqlResult<()> {
    write(tables, true, body, coalesced)
}

fn write(tables: &mut Tables<'_>, newest: bool, body: &Body, coalesced: &SeqRanges) -> SqlResult<()> {
    let text = StoredBody::of(body).map_err(|error| corrupt("outbox", &error))?;
    let (text, declared) = (text.as_str(), declared(coalesced)?);
    let (seq, bytes) = (tables.index.head() + 1, bytes_of(text, declared.as_deref()));
    let (deployment, terminal) = (body.deployment().map(DeploymentId::as_str), body.is_terminal());
    let insert = "INSERT INTO outbox (seq, deployment, newest, terminal, bytes, observed, message_id, coalesced, body) \
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    tables.connection.prepare_cached(insert)?.execute(params![
        seq,
        deployment,
        newest,
        terminal,
        bytes,
        body.observed_at().as_millisecond(),
        message_id(body.observed_at()),
        declared,
        text
    ])?;
    tables.index.insert(seq, deployment, newest, terminal, bytes);
    Ok(())
}

/// Deletes the rows with these numbers. A row that a deleted row superseded does not become the newest of its
/// deployment again.
pub(super) fn delete(tables: &mut Tables<'_>, first: u64, last: u64) -> SqlResult<()> {
    let gone: Vec<u64> = tables.index.within(first..=last).collect();
    let superseded: Vec<u64> = gone.into_iter().flat_map(|seq| tables.index.remove(seq)).collect();
    let delete = "DELETE FROM outbox WHERE seq BETWEEN ?1 AND ?2";
    tables.connection.prepare_cached(delete)?.execute([first, last])?;
    let mut supersede =
        tables.connection.prepare_cached("UPDATE outbox SET newest = 0 WHERE seq = ?1 AND newest = 1")?;
    superseded.into_iter().try_for_each(|seq| supersede.execute([seq]).map(drop))
}

/// The next rows to send.
pub(super) fn read(tables: &Tables<'_>, request: &ReadRequest) -> SqlResult<Batch> {
    let (epoch, head) = (values::epoch(tables.connection)?, tables.index.head());
    let hub_reads_batches = values::hub_reads_batches(tables.connection)?;
    let hub_has_dictionary = values::hub_has_dictionary(tables.connection)?;
    let batch = Batch { epoch, head, rows: Vec::new(), hub_reads_batches, hub_has_dictionary };
    let mut reader = BatchReader { tables, request, batch, bytes: 0 };
    let waiting = delivery::spans(tables.index, |state| state == QUEUED);
    let mut is_full = request.newest_first && reader.read_newest(&waiting)?;
    // After the newest rows, all the others follow from number 0 on.
    let after = if request.newest_first { request.after } else { 0 };
    for (first, last) in waiting {
        if is_full {
            break;
        }
        is_full = last > after && reader.read_range(first.max(after + 1), last)?;
    }
    Ok(reader.batch)
}

/// A batch that is being read.
struct BatchReader<'a> {
    tables: &'a Tables<'a>,
    request: &'a ReadRequest,
    batch: Batch,
    bytes: usize,
}

impl BatchReader<'_> {
    /// Reads the newest queued row of each deployment; true when nothing more fits.
    fn read_newest(&mut self, waiting: &[(u64, u64)]) -> SqlResult<bool> {
        for seq in self.tables.index.newest() {
            let waits = waiting.iter().any(|(first, last)| (*first..=*last).contains(&seq));
            if waits && !self.request.except.contains(&seq) && self.rows(seq, seq, true)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads queued rows in order; true when nothing more fits.
    fn read_range(&mut self, first: u64, last: u64) -> SqlResult<bool> {
        self.rows(first, last, false)
    }

    /// Reads rows of `first..=last`, all of which are queued; true when nothing more fits.
    fn rows(&mut self, first: u64, last: u64, newest_only: bool) -> SqlResult<bool> {
        let known_runs = runs(self.tables.connection, first, last)?;
        let mut select = self.tables.connection.prepare_cached(ROWS)?;
        let mut found = select.query([first, last])?;
        while let Some(row) = found.next()? {
            let seq: u64 = row.get(0)?;
            let newest = self.tables.index.is_newest(seq);
            let is_other = self.request.newest_first && newest != newest_only;
            if is_other || self.request.except.contains(&seq) {
                continue;
            }
            let round = known_runs
                .iter()
                .find(|run| run.last >= seq && run.first <= seq)
                .map_or(0, |run| run.value.round);
            if !self.push_row(row_of(row, newest, round)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds a row; false if it does not fit.
    fn push_row(&mut self, row: Row) -> bool {
        let fits = self.batch.rows.len() < self.request.rows.min(READ_ROWS_MAX)
            && (self.batch.rows.is_empty()
                || self.bytes + row.bytes <= self.request.bytes.min(READ_BYTES_MAX));
        if fits {
            self.bytes += row.bytes;
            self.batch.rows.push(row);
        }
        fits
    }
}

/// Marks these rows as sent, if the epoch is still the same.
pub(super) fn mark_sent(
    tables: &mut Tables<'_>,
    epoch: Epoch,
    seqs: &[u64],
    now: Timestamp,
) -> SqlResult<()> {
    if values::epoch(tables.connection)? != Some(epoch) {
        return Ok(());
    }
    for (from, to) in joined(tables.index, seqs) {
        let sent =
            DeliveryState { state: SENT, sent: Some(now.as_millisecond()), ..DeliveryState::default() };
        delivery::change(tables, from, to, |run| match run.value.state {
            QUEUED => DeliveryState { round: run.value.round, covered: run.value.covered, ..sent },
            _ => run.value,
        })?;
    }
    Ok(())
}

/// Merges rows that follow each other into one range, also if the numbers between them were folded: no row has those.
fn joined(index: &Index, seqs: &[u64]) -> Vec<(u64, u64)> {
    let mut ranges = SeqRanges::new();
    seqs.iter().for_each(|seq| _ = ranges.insert(*seq));
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in ranges.iter() {
        let previous = index.before(from);
        match joined.last_mut() {
            Some((_, last)) if previous.is_none_or(|previous| previous <= *last) => *last = to,
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// The contents of the outbox in numbers.
pub(super) fn summary(tables: &Tables<'_>) -> SqlResult<Summary> {
    let Tables { connection, index } = tables;
    let oldest = delivery::lowest(index, |state| state == QUEUED);
    let observed = |seq: u64| {
        let select = "SELECT observed FROM outbox WHERE seq = ?1";
        connection.prepare_cached(select)?.query_row([seq], |row| row.get(0))
    };
    let oldest: Option<i64> = oldest.map(observed).transpose()?;
    let epoch = values::epoch(connection)?;
    Ok(Summary {
        epoch,
        head: index.head(),
        unsent: index.count() - delivery::count(index, |state| state != QUEUED),
        oldest_unsent_at: oldest.and_then(|at| Timestamp::from_millisecond(at).ok()),
        rows: index.count(),
        bytes: index.bytes(),
        refused: index.refused(epoch).to_vec(),
        hub_compares: values::hub_compares(connection)?,
    })
}

/// Bytes that a row counts against the limits.
pub(super) fn bytes_of(body: &str, coalesced: Option<&str>) -> u32 {
    u32::try_from(body.len() + coalesced.map_or(0, str::len) + ROW_BYTES).unwrap_or(u32::MAX)
}

/// A new message id (UUIDv7). Its random part cannot be guessed.
pub fn message_id(at: Timestamp) -> String {
    let seconds = u64::try_from(at.as_second()).unwrap_or_default();
    let nanos = u32::try_from(at.subsec_nanosecond()).unwrap_or_default();
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos)).to_string()
}

/// Ranges as the table stores them: NULL instead of an empty list.
pub(super) fn declared(ranges: &SeqRanges) -> SqlResult<Option<String>> {
    if ranges.is_empty() { Ok(None) } else { to_text(ranges).map(Some) }
}

pub(super) fn to_text<T: Serialize>(value: &T) -> SqlResult<String> {
    serde_json::to_string(value).map_err(|error| corrupt("outbox", &error))
}

pub(super) fn from_text<T: DeserializeOwned>(text: &str) -> SqlResult<T> {
    serde_json::from_str(text).map_err(|error| corrupt("outbox", &error))
}

fn row_of(row: &SqlRow<'_>, newest: bool, round: u64) -> SqlResult<Row> {
    let body: String = row.get(3)?;
    let coalesced: Option<String> = row.get(4)?;
    Ok(Row {
        seq: row.get(0)?,
        newest,
        is_repeated: round > 0,
        message_id: row.get(1)?,
        bytes: row.get(2)?,
        body: StoredBody::from_table(body).map_err(|error| corrupt("outbox", &error))?,
        coalesced: coalesced.as_deref().map(from_text).transpose()?.unwrap_or_default(),
    })
}
