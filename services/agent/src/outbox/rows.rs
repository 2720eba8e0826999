//! Rows in and out: written, read for sending, marked as sent, counted.

use muster_contract::{Epoch, SeqRanges, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{
    Ask, Batch, Body, Effect, Entry, READ_BYTES_MAX, READ_ROWS_MAX, ROW_BYTES, Row, Summary, memory,
};
use crate::db::{Connection, OptionalExtension, SqlResult, SqlRow, corrupt, params};
use crate::store;

/// The bus holds it. What waits for the relay is 0.
pub(super) const SENT: i64 = 1;
/// A receipt covers it.
pub(super) const COVERED: i64 = 2;

/// The tables of this room.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY, deployment TEXT, body TEXT NOT NULL, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    state INTEGER NOT NULL, message_id TEXT NOT NULL, round INTEGER NOT NULL, coalesced TEXT, bytes INTEGER NOT NULL,
    observed INTEGER NOT NULL, sent INTEGER, covered INTEGER);
CREATE INDEX IF NOT EXISTS outbox_newest ON outbox (deployment) WHERE newest = 1;
CREATE INDEX IF NOT EXISTS outbox_heads ON outbox (seq) WHERE state = 0 AND newest = 1;
CREATE INDEX IF NOT EXISTS outbox_waiting ON outbox (seq) WHERE state = 0;
CREATE INDEX IF NOT EXISTS outbox_sent ON outbox (sent) WHERE state = 1;
CREATE INDEX IF NOT EXISTS outbox_covered ON outbox (seq) WHERE state = 2;
CREATE INDEX IF NOT EXISTS outbox_passing ON outbox (seq) WHERE state < 2 AND newest = 0 AND terminal = 0;
CREATE INDEX IF NOT EXISTS outbox_open ON outbox (seq) WHERE state < 2;
CREATE INDEX IF NOT EXISTS outbox_of_deployment ON outbox (deployment, seq) WHERE state = 0;
CREATE TABLE IF NOT EXISTS usage (rows INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO usage SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM usage);
CREATE TRIGGER IF NOT EXISTS outbox_in AFTER INSERT ON outbox BEGIN
    UPDATE usage SET rows = rows + 1, bytes = bytes + NEW.bytes; END;
CREATE TRIGGER IF NOT EXISTS outbox_out AFTER DELETE ON outbox BEGIN
    UPDATE usage SET rows = rows - 1, bytes = bytes - OLD.bytes; END;
CREATE TRIGGER IF NOT EXISTS outbox_change AFTER UPDATE OF bytes ON outbox BEGIN
    UPDATE usage SET bytes = bytes + NEW.bytes - OLD.bytes; END;
";

// Each query names its index: SQLite's own choice depends on statistics that nobody gathers here.
const HEADS: &str = "INDEXED BY outbox_heads WHERE state = 0 AND newest = 1";
const BEHIND_HEADS: &str = "INDEXED BY outbox_waiting WHERE state = 0 AND newest = 0";
const WAITING: &str = "INDEXED BY outbox_waiting WHERE state = 0";
const COLUMNS: &str = "seq, newest, message_id, round, bytes, body, coalesced";

/// Writes a report under the next number, with what goes with it.
pub(super) fn append(connection: &Connection, entry: &Entry) -> SqlResult<u64> {
    match &entry.effect {
        Effect::None => {}
        Effect::Keep(standing) => store::put_standing(connection, standing)?,
        Effect::Forget(deployment) => store::forget_standing(connection, deployment)?,
    }
    if let Body::Capabilities(body) = &entry.body {
        memory::set_capabilities(connection, body)?;
    }
    insert(connection, &entry.body, &SeqRanges::new())
}

/// Writes a report under the next number, declaring `coalesced`.
pub(super) fn insert(connection: &Connection, body: &Body, coalesced: &SeqRanges) -> SqlResult<u64> {
    let seq = memory::next(connection)?;
    let deployment = body.deployment().map(|id| id.as_str());
    connection
        .prepare_cached("UPDATE outbox SET newest = 0 WHERE deployment IS ?1 AND newest = 1")?
        .execute([deployment])?;
    let text = to_text(body)?;
    let declared = declared(coalesced)?;
    let bytes = bytes_of(&text, declared.as_deref());
    let observed = body.observed_at();
    let insert = "INSERT INTO outbox (seq, deployment, body, newest, terminal, state, message_id, round, coalesced, \
                  bytes, observed) VALUES (?1, ?2, ?3, 1, ?4, 0, ?5, 0, ?6, ?7, ?8)";
    let (id, observed) = (message_id(observed), observed.as_millisecond());
    connection.prepare_cached(insert)?.execute(params![
        seq,
        deployment,
        text,
        body.is_terminal(),
        id,
        declared,
        bytes,
        observed
    ])?;
    Ok(seq)
}

/// The next rows to send.
pub(super) fn read(connection: &Connection, ask: &Ask) -> SqlResult<Batch> {
    let mut batch =
        Batch { epoch: memory::epoch(connection)?, head: memory::head(connection)?, rows: Vec::new() };
    let parts: &[&str] = if ask.newest_first { &[HEADS, BEHIND_HEADS] } else { &[WAITING] };
    for part in parts {
        let select = format!("SELECT {COLUMNS} FROM outbox {part} ORDER BY seq");
        let mut statement = connection.prepare_cached(&select)?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            if ask.except.contains(&row.get("seq")?) {
                continue;
            }
            let row = row_of(row)?;
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
    let update = "UPDATE outbox SET state = 1, sent = ?2 WHERE seq = ?1 AND state = 0";
    let mut statement = connection.prepare_cached(update)?;
    for seq in seqs {
        statement.execute(params![seq, now.as_millisecond()])?;
    }
    Ok(())
}

/// What there is, in numbers.
pub(super) fn summary(connection: &Connection) -> SqlResult<Summary> {
    let (rows, bytes) = connection
        .prepare_cached("SELECT rows, bytes FROM usage")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let unsent = connection
        .prepare_cached("SELECT count(*) FROM outbox INDEXED BY outbox_waiting WHERE state = 0")?
        .query_row([], |row| row.get(0))?;
    let oldest: Option<i64> = connection
        .prepare_cached(&format!("SELECT observed FROM outbox {WAITING} ORDER BY seq LIMIT 1"))?
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
        body: from_text(&body)?,
        coalesced: coalesced.as_deref().map(from_text).transpose()?.unwrap_or_default(),
    })
}
