//! Rows in and out: written, read for sending, marked as sent, counted.

use std::collections::HashMap;

use muster_contract::{DeploymentId, Epoch, SeqRanges, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::index::{Index, Tables};
use super::passage::{QUEUED, SENT, Stage};
use super::{
    Ask, Batch, Body, Effect, Entry, Kept, READ_BYTES_MAX, READ_ROWS_MAX, ROW_BYTES, Row, Summary, memory,
    passage,
};
use crate::db::{Connection, SqlResult, SqlRow, corrupt, params};
use crate::store;

const ROWS: &str =
    "SELECT seq, message_id, bytes, body, coalesced FROM outbox WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";

/// Writes reports under the next numbers, with what goes with them, and gives the last number. Of what a later one of
/// them supersedes, only the report is written.
pub(super) fn append(tables: &mut Tables<'_>, entries: &[Entry]) -> SqlResult<u64> {
    let last: HashMap<_, _> =
        entries.iter().enumerate().map(|(at, entry)| (entry.body.deployment(), at)).collect();
    for (at, entry) in entries.iter().enumerate() {
        let deployment = entry.body.deployment();
        let newest = last.get(&deployment) == Some(&at);
        if newest {
            bring_about(tables.connection, entry)?;
        }
        write(tables, newest, &entry.body, &SeqRanges::new())?;
    }
    Ok(tables.index.head())
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
pub(super) fn insert(tables: &mut Tables<'_>, body: &Body, coalesced: &SeqRanges) -> SqlResult<()> {
    write(tables, true, body, coalesced)
}

fn write(tables: &mut Tables<'_>, newest: bool, body: &Body, coalesced: &SeqRanges) -> SqlResult<()> {
    let text = Kept::of(body).map_err(|error| corrupt("outbox", &error))?;
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

/// Removes the rows with these numbers. What a removed row superseded does not become the newest of its deployment again.
pub(super) fn delete(tables: &mut Tables<'_>, first: u64, last: u64) -> SqlResult<()> {
    let gone: Vec<u64> = tables.index.within(first..=last).collect();
    let superseded: Vec<u64> = gone.into_iter().flat_map(|seq| tables.index.remove(seq)).collect();
    let delete = "DELETE FROM outbox WHERE seq BETWEEN ?1 AND ?2";
    tables.connection.prepare_cached(delete)?.execute([first, last])?;
    let mut note =
        tables.connection.prepare_cached("UPDATE outbox SET newest = 0 WHERE seq = ?1 AND newest = 1")?;
    superseded.into_iter().try_for_each(|seq| note.execute([seq]).map(drop))
}

/// The next rows to send.
pub(super) fn read(tables: &Tables<'_>, ask: &Ask) -> SqlResult<Batch> {
    let (epoch, head) = (memory::epoch(tables.connection)?, tables.index.head());
    let batch = Batch { epoch, head, rows: Vec::new() };
    let mut reading = Reading { tables, ask, batch, bytes: 0 };
    let waiting = passage::spans(tables.index, |state| state == QUEUED);
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
    tables: &'a Tables<'a>,
    ask: &'a Ask,
    batch: Batch,
    bytes: usize,
}

impl Reading<'_> {
    /// Takes the newest row of each deployment that waits; true when nothing more fits.
    fn heads(&mut self, waiting: &[(u64, u64)]) -> SqlResult<bool> {
        for seq in self.tables.index.newest() {
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
        let again = passage::runs(self.tables.connection, first, last)?;
        let mut select = self.tables.connection.prepare_cached(ROWS)?;
        let mut found = select.query([first, last])?;
        while let Some(row) = found.next()? {
            let seq: u64 = row.get(0)?;
            let newest = self.tables.index.is_newest(seq);
            let passed = self.ask.newest_first && newest != heads;
            if passed || self.ask.except.contains(&seq) {
                continue;
            }
            let round =
                again.iter().find(|run| run.last >= seq && run.first <= seq).map_or(0, |run| run.is.round);
            if !self.take(row_of(row, newest, round)?) {
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
    tables: &mut Tables<'_>,
    epoch: Epoch,
    seqs: &[u64],
    now: Timestamp,
) -> SqlResult<()> {
    if memory::epoch(tables.connection)? != Some(epoch) {
        return Ok(());
    }
    for (from, to) in joined(tables.index, seqs) {
        let sent = Stage { state: SENT, sent: Some(now.as_millisecond()), ..Stage::default() };
        passage::change(tables, from, to, |run| match run.is.state {
            QUEUED => Stage { round: run.is.round, covered: run.is.covered, ..sent },
            _ => run.is,
        })?;
    }
    Ok(())
}

/// Rows that follow each other as one range, also where numbers between them were folded: nobody has those any more.
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

/// What there is, in numbers.
pub(super) fn summary(tables: &Tables<'_>) -> SqlResult<Summary> {
    let Tables { connection, index } = tables;
    let oldest = passage::lowest(index, |state| state == QUEUED);
    let observed = |seq: u64| {
        let select = "SELECT observed FROM outbox WHERE seq = ?1";
        connection.prepare_cached(select)?.query_row([seq], |row| row.get(0))
    };
    let oldest: Option<i64> = oldest.map(observed).transpose()?;
    Ok(Summary {
        epoch: memory::epoch(connection)?,
        head: index.head(),
        unsent: index.count() - passage::count(index, |state| state != QUEUED),
        oldest_unsent_at: oldest.and_then(|at| Timestamp::from_millisecond(at).ok()),
        rows: index.count(),
        bytes: index.bytes(),
    })
}

/// What a row counts against the limits.
pub(super) fn bytes_of(body: &str, coalesced: Option<&str>) -> u32 {
    u32::try_from(body.len() + coalesced.map_or(0, str::len) + ROW_BYTES).unwrap_or(u32::MAX)
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

fn row_of(row: &SqlRow<'_>, newest: bool, round: u64) -> SqlResult<Row> {
    let (id, body): (String, String) = (row.get(1)?, row.get(3)?);
    let coalesced: Option<String> = row.get(4)?;
    Ok(Row {
        seq: row.get(0)?,
        newest,
        message_id: if round == 0 { id } else { format!("{id}-{round}") },
        bytes: row.get(2)?,
        body: Kept::found(body).map_err(|error| corrupt("outbox", &error))?,
        coalesced: coalesced.as_deref().map(from_text).transpose()?.unwrap_or_default(),
    })
}
