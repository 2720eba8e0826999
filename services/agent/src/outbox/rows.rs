//! Rows in and out: written, read for sending, marked as sent, counted.

use std::collections::{HashMap, HashSet};

use muster_contract::{DeploymentId, Epoch, SeqRanges, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{
    Ask, Batch, Body, Effect, Entry, Kept, READ_BYTES_MAX, READ_ROWS_MAX, ROW_BYTES, Row, Summary, memory,
};
use crate::db::{Connection, OptionalExtension, SqlResult, SqlRow, corrupt, params};
use crate::store;

// Each query names its index: SQLite's own choice depends on statistics that nobody gathers here.
const HEADS: &str = "lookup INDEXED BY lookup_heads WHERE state = 0 AND newest = 1";
const BEHIND_HEADS: &str = "lookup INDEXED BY lookup_waiting WHERE state = 0 AND newest = 0";
const IN_LINE: &str = "lookup INDEXED BY lookup_waiting WHERE state = 0";
const ROW: &str = "SELECT seq, newest, message_id, round, bytes, body, coalesced FROM outbox WHERE seq = ?1";

/// Writes reports under the next numbers, with what goes with them, and gives the last number. Of what a later one of
/// them supersedes, only the report is written.
pub(super) fn append(connection: &Connection, entries: &[Entry]) -> SqlResult<u64> {
    let last: HashMap<_, _> =
        entries.iter().enumerate().map(|(at, entry)| (entry.body.deployment(), at)).collect();
    let mut begun = HashSet::new();
    let mut seq = memory::head(connection)?;
    for (at, entry) in entries.iter().enumerate() {
        let deployment = entry.body.deployment();
        let newest = last.get(&deployment) == Some(&at);
        if newest {
            bring_about(connection, entry)?;
        }
        if begun.insert(deployment) {
            supersede(connection, deployment)?;
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
    supersede(connection, body.deployment())?;
    write(connection, seq, true, body, coalesced)?;
    Ok(seq)
}

/// Whatever was the newest of a deployment is so no longer.
fn supersede(connection: &Connection, deployment: Option<&DeploymentId>) -> SqlResult<()> {
    let update = "UPDATE outbox SET newest = 0 WHERE seq IN (SELECT seq FROM lookup INDEXED BY lookup_newest \
                  WHERE deployment IS ?1 AND newest = 1)";
    connection.prepare_cached(update)?.execute([deployment.map(DeploymentId::as_str)]).map(drop)
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
    let insert = "INSERT INTO outbox (seq, deployment, newest, terminal, state, round, bytes, observed, message_id, \
                  coalesced, body) VALUES (?1, ?2, ?3, ?4, 0, 0, ?5, ?6, ?7, ?8, ?9)";
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
    let mut batch =
        Batch { epoch: memory::epoch(connection)?, head: memory::head(connection)?, rows: Vec::new() };
    // Behind number 0 are all of them.
    let parts: &[(&str, u64)] =
        if ask.newest_first { &[(HEADS, 0), (BEHIND_HEADS, ask.after)] } else { &[(IN_LINE, 0)] };
    for (part, after) in parts {
        let select = format!("SELECT seq FROM {part} AND seq > ?1 ORDER BY seq");
        let mut line = connection.prepare_cached(&select)?;
        let mut found = line.query([after])?;
        let mut whole = connection.prepare_cached(ROW)?;
        while let Some(row) = found.next()? {
            let seq: u64 = row.get(0)?;
            if ask.except.contains(&seq) {
                continue;
            }
            let row = whole.query_row([seq], row_of)?;
            if !fits(ask, &batch, &row) {
                return Ok(batch);
            }
            batch.rows.push(row);
        }
    }
    Ok(batch)
}

fn fits(ask: &Ask, batch: &Batch, row: &Row) -> bool {
    let bytes: usize = batch.rows.iter().map(|row| row.bytes).sum();
    batch.rows.len() < ask.rows.min(READ_ROWS_MAX)
        && (batch.rows.is_empty() || bytes + row.bytes <= ask.bytes.min(READ_BYTES_MAX))
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
    let mut runs = SeqRanges::new();
    seqs.iter().for_each(|seq| _ = runs.insert(*seq));
    // A backlog is sent in order: a few runs instead of thousands of statements.
    let update = "UPDATE outbox SET state = 1, sent = ?3 WHERE seq BETWEEN ?1 AND ?2 AND state = 0";
    let mut statement = connection.prepare_cached(update)?;
    for (from, to) in runs.iter() {
        statement.execute(params![from, to, now.as_millisecond()])?;
    }
    Ok(())
}

/// What there is, in numbers.
pub(super) fn summary(connection: &Connection) -> SqlResult<Summary> {
    let (rows, bytes) = connection
        .prepare_cached("SELECT rows, bytes FROM usage")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let unsent = connection
        .prepare_cached(&format!("SELECT count(*) FROM {IN_LINE}"))?
        .query_row([], |row| row.get(0))?;
    let oldest: Option<i64> = connection
        .prepare_cached(&format!("SELECT observed FROM outbox WHERE seq = (SELECT min(seq) FROM {IN_LINE})"))?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(Summary {
        epoch: memory::epoch(connection)?,
        head: memory::head(connection)?,
        unsent,
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

fn row_of(row: &SqlRow<'_>) -> SqlResult<Row> {
    let (id, round): (String, u64) = (row.get("message_id")?, row.get("round")?);
    let (body, coalesced): (String, Option<String>) = (row.get("body")?, row.get("coalesced")?);
    Ok(Row {
        seq: row.get("seq")?,
        newest: row.get("newest")?,
        message_id: if round == 0 { id } else { format!("{id}-{round}") },
        bytes: row.get("bytes")?,
        body: Kept::found(body).map_err(|error| corrupt("outbox", &error))?,
        coalesced: coalesced.as_deref().map(from_text).transpose()?.unwrap_or_default(),
    })
}
