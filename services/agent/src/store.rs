//! What the device remembers beside its outbox: the desired state it accepted, and the standing of each deployment.
//! The only place that knows how these two are kept.
//!
//! ```text
//! desired   one row: generation, the document's bytes as they came
//! standing  one row a deployment that is not gone: its JSON
//! ```
//!
//! A standing is written in the transaction of its report: see [`crate::outbox`].

use muster_contract::desired::DesiredState;
use muster_contract::{DeploymentId, Generation, decode};

use crate::db::{Connection, Db, Error, OptionalExtension, SqlResult, SqlRow, corrupt, params};
use crate::standing::Standing;

/// The tables of this room.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS desired (
    only INTEGER PRIMARY KEY CHECK (only = 1), generation INTEGER NOT NULL, document BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS standing (deployment TEXT PRIMARY KEY, document BLOB NOT NULL);
";

/// What was accepted last.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// Its generation: nothing up to it is accepted again.
    pub generation: Generation,
    /// The document; none where this agent can no longer read what an earlier one accepted.
    pub document: Option<DesiredState>,
}

/// The desired state accepted last, if any ever was.
///
/// # Errors
/// The database cannot be read.
pub async fn accepted(db: &Db) -> Result<Option<Accepted>, Error> {
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
                "the desired state kept here cannot be read by this agent: nothing changes until a newer one comes"
            );
        }
        Some(Accepted { generation: Generation::new(generation)?, document: document.ok() })
    }))
}

/// Keeps a desired state in place of the one before.
///
/// # Errors
/// Nothing was kept; the one before is still there.
pub async fn accept(db: &Db, generation: Generation, document: Vec<u8>) -> Result<(), Error> {
    db.run(move |connection| {
        let replace = "INSERT OR REPLACE INTO desired (only, generation, document) VALUES (1, ?1, ?2)";
        connection.prepare_cached(replace)?.execute(params![generation.get(), document]).map(drop)
    })
    .await
}

/// Every standing, ordered by deployment.
///
/// # Errors
/// The database cannot be read.
pub async fn standings(db: &Db) -> Result<Vec<Standing>, Error> {
    db.run(all_standings).await
}

pub(crate) fn all_standings(connection: &Connection) -> SqlResult<Vec<Standing>> {
    let mut statement = connection.prepare_cached("SELECT document FROM standing ORDER BY deployment")?;
    let mut rows = statement.query([])?;
    let mut standings = Vec::new();
    while let Some(row) = rows.next()? {
        let bytes: Vec<u8> = row.get(0)?;
        standings.push(serde_json::from_slice(&bytes).map_err(|error| corrupt("standing", &error))?);
    }
    Ok(standings)
}

pub(crate) fn put_standing(connection: &Connection, standing: &Standing) -> SqlResult<()> {
    let bytes = serde_json::to_vec(standing).map_err(|error| corrupt("standing", &error))?;
    // Not REPLACE: that takes the row out and puts it in again, and so writes more pages.
    let put = "INSERT INTO standing VALUES (?1, ?2) ON CONFLICT DO UPDATE SET document = excluded.document";
    connection.prepare_cached(put)?.execute(params![standing.id().as_str(), bytes]).map(drop)
}

pub(crate) fn forget_standing(connection: &Connection, deployment: &DeploymentId) -> SqlResult<()> {
    connection
        .prepare_cached("DELETE FROM standing WHERE deployment = ?1")?
        .execute([deployment.as_str()])
        .map(drop)
}
