//! Stores the accepted desired state and the record of each deployment. No other module knows their tables.
//!
//! ```text
//! desired   one row: the generation and the document's bytes as received
//! refused   at most one row: the refusal of a desired state that stands, as JSON
//! standing  one row per deployment that is not removed: its record as JSON
//! ```
//!
//! A record is written in the transaction of its report ([`crate::outbox`]).

use muster_contract::desired::DesiredState;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::{DeploymentId, Generation, decode};

use crate::db::{Connection, Db, Error, OptionalExtension, SqlResult, SqlRow, corrupt, params};
use crate::record::DeploymentRecord;

/// The tables of this module.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS desired (
    only INTEGER PRIMARY KEY CHECK (only = 1), generation INTEGER NOT NULL, document BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS refused (only INTEGER PRIMARY KEY CHECK (only = 1), document BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS standing (deployment TEXT PRIMARY KEY, document BLOB NOT NULL);
";

/// The desired state accepted last.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptedDesired {
    /// Its generation: only a greater one is accepted.
    pub generation: Generation,
    /// The document; `None` if this agent cannot read what an earlier one accepted.
    pub document: Option<DesiredState>,
}

/// The desired state accepted last, if there is one.
///
/// # Errors
/// The database cannot be read.
pub async fn accepted(db: &Db) -> Result<Option<AcceptedDesired>, Error> {
    let row: Option<(u64, Vec<u8>)> = db
        .run(|connection| {
            let columns = |row: &SqlRow<'_>| Ok((row.get(0)?, row.get(1)?));
            connection.query_row("SELECT generation, document FROM desired", [], columns).optional()
        })
        .await?;
    Ok(row.and_then(|(generation, bytes)| {
        let document = decode::parse(&bytes);
        if let Err(refusal) = &document {
            tracing::error!(
                reason = %refusal, desired.generation = generation,
                "cannot read the stored desired state: nothing changes until a newer one comes"
            );
        }
        Some(AcceptedDesired { generation: Generation::new(generation)?, document: document.ok() })
    }))
}

/// The refusal of a desired state that stands, if there is one.
///
/// # Errors
/// The database cannot be read.
pub async fn refusal(db: &Db) -> Result<Option<DesiredRefusal>, Error> {
    db.run(|connection| {
        let read = |row: &SqlRow<'_>| row.get::<_, Vec<u8>>(0);
        let bytes = connection.query_row("SELECT document FROM refused", [], read).optional()?;
        let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes);
        bytes.map(parse).transpose().map_err(|error| corrupt("refused", &error))
    })
    .await
}

/// Replaces the stored refusal; `None` removes it.
///
/// # Errors
/// Nothing was stored.
pub async fn refuse(db: &Db, refusal: Option<DesiredRefusal>) -> Result<(), Error> {
    db.run(move |connection| {
        let Some(refusal) = refusal else {
            return connection.prepare_cached("DELETE FROM refused")?.execute([]).map(drop);
        };
        let bytes = serde_json::to_vec(&refusal).map_err(|error| corrupt("refused", &error))?;
        let replace = "INSERT OR REPLACE INTO refused (only, document) VALUES (1, ?1)";
        connection.prepare_cached(replace)?.execute(params![bytes]).map(drop)
    })
    .await
}

/// Replaces the stored desired state, and removes the refusal.
///
/// # Errors
/// Nothing was stored; the one before is still there.
pub async fn accept(db: &Db, generation: Generation, document: Vec<u8>) -> Result<(), Error> {
    db.run(move |connection| {
        let replace = "INSERT OR REPLACE INTO desired (only, generation, document) VALUES (1, ?1, ?2)";
        connection.prepare_cached(replace)?.execute(params![generation.get(), document])?;
        connection.prepare_cached("DELETE FROM refused")?.execute([]).map(drop)
    })
    .await
}

/// All records, ordered by deployment.
///
/// # Errors
/// The database cannot be read.
pub async fn records(db: &Db) -> Result<Vec<DeploymentRecord>, Error> {
    db.run(all_records).await
}

pub(crate) fn all_records(connection: &Connection) -> SqlResult<Vec<DeploymentRecord>> {
    let mut statement = connection.prepare_cached("SELECT document FROM standing ORDER BY deployment")?;
    let mut rows = statement.query([])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let bytes: Vec<u8> = row.get(0)?;
        records.push(serde_json::from_slice(&bytes).map_err(|error| corrupt("standing", &error))?);
    }
    Ok(records)
}

pub(crate) fn write_record(connection: &Connection, record: &DeploymentRecord) -> SqlResult<()> {
    let bytes = serde_json::to_vec(record).map_err(|error| corrupt("standing", &error))?;
    // Not REPLACE: that deletes the row and inserts it again, which writes more pages.
    let put = "INSERT INTO standing VALUES (?1, ?2) ON CONFLICT DO UPDATE SET document = excluded.document";
    connection.prepare_cached(put)?.execute(params![record.id().as_str(), bytes]).map(drop)
}

pub(crate) fn delete_record(connection: &Connection, deployment: &DeploymentId) -> SqlResult<()> {
    connection
        .prepare_cached("DELETE FROM standing WHERE deployment = ?1")?
        .execute([deployment.as_str()])
        .map(drop)
}
