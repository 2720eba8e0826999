//! Rows in and out: written, read for sending, marked as sent, counted.

use std::collections::HashMap;

use muster_contract::{DeploymentId, Epoch, SeqRanges, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::passage::{QUEUED, SENT, Stage};
use super::{
    Ask, Batch, Body, Effect, Entry, Kept, READ_BYTES_MAX, READ_ROWS_MAX, ROW_BYTES, Row, Summary, memory,
    passage,
};
use crate::db::{Connection, SqlResult, SqlRow, corrupt, params};
use crate::store;

const HEADS: &str = "SELECT seq FROM newest ORDER BY seq";
const ROWS: &str = "SELECT seq, \
                    EXISTS (SELECT 1 FROM newest WHERE deployment = ifnull(outbox.deployment, '') AND seq = outbox.seq), \
                    message_id, bytes, body, coalesced FROM outbox WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";

/// Writes reports under the next numbers, with what goes with them, and gives the last number. Of what a later one of
/// them supersedes, only the report is written.
pub(super) fn append(connection: &Connection, entries: &[Entry]) -> SqlResult<u64> {
    let last: HashMap<_, _> =
        entries.iter().enumerate().map(|(at, entry)| (entry.body.deployment(), at)).collect();
    let mut seq = memory::head(connection)?;
    for (at, entry) in entries.iter().enumerate() {
        let deployment = entry.body.deployment();
        let newest = last.get(&deployment) == Some(&at);
        if newest {
            bring_about(connection, entry)?;
        }
        seq += 1;
        write(connection, seq, newest, &entry.body, &SeqRanges::new())?;
    }
    Ok(seq)
}

fn bring_about(connection: &Connection, entry: &Entry) -> SqlResult<()> {
    match &entry.effect {
        Effect::None => {}
        Effect::Keep(standing) => store::put_standing(connection, standing)?,
        Effect::Forget(deployment) => store::forget_standing(connection, deployment)?,
    }
    match &entry.body {
        Body::Capabilities(body) => memory::set_capabilities(connection, body),
        Body::Status(_) => Ok(()),
    }
}

/// Writes a report under the next number, declaring `coalesced`.
pub(super) fn insert(connection: &Connection, body: &Body, coalesced: &SeqRanges) -> SqlResult<u64> {
    let seq = memory::head(connection)? + 1;
    write(connection, seq, true, body, coalesced)?;
    Ok(seq)
}

fn write(
    connection: &Connection,
    seq: u64,
    newest: bool,
    body: &Body,
    coalesced: &SeqRanges,
) -> SqlResult<()> {
    let text = Kept::of(body).map_err(|error| corrupt("outbox", &error))?;
    let (text, declared) = (text.as_str(), declared(coalesced)?);
    let insert = "INSERT INTO outbox (seq, deployment, newest, terminal, bytes, observed, message_id, coalesced, body) \
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    connection
        .prepare_cached(insert)?
        .execute(params![
            seq,
            body.deployment().map(DeploymentId::as_str),
            newest,
            body.is_terminal(),
            bytes_of(text, declared.as_deref()),
            body.observed_at().as_millisecond(),
            message_id(body.observed_at()),
            declared,
            text
        ])
        .map(drop)
}

/// The next rows to send.
pub(super) fn read(connection: &Connection, ask: &Ask) -> SqlResult<Batch> {
    let batch =
        Batch { epoch: memory::epoch(connection)?, head: memory::head(connection)?, rows: Vec::new() };
    let mut reading = Reading { connection, ask, batch, bytes: 0 };
    let waiting = passage::spans(connection, |state| state == QUEUED)?;
    let mut is_full = ask.newest_first && reading.heads(&waiting)?;
    // The newest went first; behind number 0 are all of them.
    let after = if ask.newest_first { ask.after } else { 0 };
    for (first, last) in waiting {
        if is_full {
            break;
        }
        is_full = last > after && reading.line(first.max(after + 1), last)?;
    }
    Ok(reading.batch)
}

/// A batch that is being read.
struct Reading<'a> {
    connection: &'a Connection,
    ask: &'a Ask,
    batch: Batch,
    bytes: usize,
}

impl Reading<'_> {
    /// Takes the newest row of each deployment that waits; true when nothing more fits.
    fn heads(&mut self, waiting: &[(u64, u64)]) -> SqlResult<bool> {
        let mut select = self.connection.prepare_cached(HEADS)?;
        let mut found = select.query([])?;
        while let Some(row) = found.next()? {
            let seq: u64 = row.get(0)?;
            let waits = waiting.iter().any(|(first, last)| (*first..=*last).contains(&seq));
            if waits && !self.ask.except.contains(&seq) && self.rows(seq, seq, true)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes rows in line; true when nothing more fits.
    fn line(&mut self, first: u64, last: u64) -> SqlResult<bool> {
        self.rows(first, last, false)
    }

    /// Takes rows of `first..=last`, all of which wait; true when nothing more fits.
    fn rows(&mut self, first: u64, last: u64, heads: bool) -> SqlResult<bool> {
        let again = passage::runs(self.connection, first, last)?;
        let mut select = self.connection.prepare_cached(ROWS)?;
        let mut found = select.query([first, last])?;
        while let Some(row) = found.next()? {
            let (seq, newest): (u64, bool) = (row.get(0)?, row.get(1)?);
            let passed = self.ask.newest_first && newest != heads;
            if passed || self.ask.except.contains(&seq) {
                continue;
            }
            let round =
                again.iter().find(|run| run.last >= seq && run.first <= seq).map_or(0, |run| run.is.round);
            if !self.take(row_of(row, round)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// False when the row does not fit.
    fn take(&mut self, row: Row) -> bool {
        let fits = self.batch.rows.len() < self.ask.rows.min(READ_ROWS_MAX)
            && (self.batch.rows.is_empty() || self.bytes + row.bytes <= self.ask.bytes.min(READ_BYTES_MAX));
        if fits {
            self.bytes += row.bytes;
            self.batch.rows.push(row);
        }
        fits
    }
}

/// Notes that the bus holds these rows, if their numbers still mean the same.
pub(super) fn mark_sent(
    connection: &Connection,
    epoch: Epoch,
    seqs: &[u64],
    now: Timestamp,
) -> SqlResult<()> {
    if memory::epoch(connection)? != Some(epoch) {
        return Ok(());
    }
    for (from, to) in joined(connection, seqs)? {
        let sent = Stage { state: SENT, sent: Some(now.as_millisecond()), ..Stage::default() };
        passage::change(connection, from, to, |run| match run.is.state {
            QUEUED => Stage { round: run.is.round, covered: run.is.covered, ..sent },
            _ => run.is,
        })?;
    }
    Ok(())
}

/// Rows that follow each other as one range, also where numbers between them were folded: nobody has those any more.
fn joined(connection: &Connection, seqs: &[u64]) -> SqlResult<Vec<(u64, u64)>> {
    let mut ranges = SeqRanges::new();
    seqs.iter().for_each(|seq| _ = ranges.insert(*seq));
    let mut before = connection.prepare_cached("SELECT max(seq) FROM lookup WHERE seq < ?1")?;
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in ranges.iter() {
        let previous: Option<u64> = before.query_row([from], |row| row.get(0))?;
        match joined.last_mut() {
            Some((_, last)) if previous.is_none_or(|previous| previous <= *last) => *last = to,
            _ => joined.push((from, to)),
        }
    }
    Ok(joined)
}

/// What there is, in numbers.
pub(super) fn summary(connection: &Connection) -> SqlResult<Summary> {
    let (rows, bytes): (u64, u64) = connection
        .prepare_cached("SELECT rows, bytes FROM usage")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let passed = passage::count(connection, |state| state != QUEUED)?;
    let oldest = passage::lowest(connection, |state| state == QUEUED)?;
    let observed = |seq: u64| {
        let select = "SELECT observed FROM outbox WHERE seq = ?1";
        connection.prepare_cached(select)?.query_row([seq], |row| row.get(0))
    };
    let oldest: Option<i64> = oldest.map(observed).transpose()?;
    Ok(Summary {
        epoch: memory::epoch(connection)?,
        head: memory::head(connection)?,
        unsent: rows - passed,
        oldest_unsent_at: oldest.and_then(|at| Timestamp::from_millisecond(at).ok()),
        rows,
        bytes,
    })
}

/// What a row counts against the limits.
pub(super) fn bytes_of(body: &str, coalesced: Option<&str>) -> usize {
    body.len() + coalesced.map_or(0, str::len) + ROW_BYTES
}

/// A new message id (UUIDv7). Its random part is what nobody else can know.
pub fn message_id(at: Timestamp) -> String {
    let seconds = u64::try_from(at.as_second()).unwrap_or_default();
    let nanos = u32::try_from(at.subsec_nanosecond()).unwrap_or_default();
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos)).to_string()
}

/// Ranges as the table keeps them: none instead of an empty list.
pub(super) fn declared(ranges: &SeqRanges) -> SqlResult<Option<String>> {
    if ranges.is_empty() { Ok(None) } else { to_text(ranges).map(Some) }
}

pub(super) fn to_text<T: Serialize>(value: &T) -> SqlResult<String> {
    serde_json::to_string(value).map_err(|error| corrupt("outbox", &error))
}

pub(super) fn from_text<T: DeserializeOwned>(text: &str) -> SqlResult<T> {
    serde_json::from_str(text).map_err(|error| corrupt("outbox", &error))
}

fn row_of(row: &SqlRow<'_>, round: u64) -> SqlResult<Row> {
    let (id, body): (String, String) = (row.get(2)?, row.get(4)?);
    let coalesced: Option<String> = row.get(5)?;
    Ok(Row {
        seq: row.get(0)?,
        newest: row.get(1)?,
        message_id: if round == 0 { id } else { format!("{id}-{round}") },
        bytes: row.get(3)?,
        body: Kept::found(body).map_err(|error| corrupt("outbox", &error))?,
        coalesced: coalesced.as_deref().map(from_text).transpose()?.unwrap_or_default(),
    })
}
