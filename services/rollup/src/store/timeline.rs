//! Stores the timeline beside the snapshot: a row for each series.

use muster_contract::subjects::ViewKey;
use muster_contract::timeline::TimelinePoint;
use muster_domain::fold::Timeline;
use rusqlite::{Connection, Transaction, params};

use super::{Damage, as_text};

/// Added to a file that was written before there were timelines.
pub(super) const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS timeline (series TEXT PRIMARY KEY, points TEXT NOT NULL) WITHOUT ROWID;
";

/// A series that cannot be read is left out: it is shown, and nothing is derived from it.
pub(super) fn load(connection: &Connection) -> Result<Timeline, Damage> {
    let mut statement =
        connection.prepare("SELECT series, points FROM timeline").map_err(Damage::Unreadable)?;
    let rows =
        statement.query_map((), |row| <(String, String)>::try_from(row)).map_err(Damage::Unreadable)?;
    let rows: Vec<(String, String)> = rows.collect::<Result<_, _>>().map_err(Damage::Unreadable)?;
    let series = rows.into_iter().filter_map(|(series, points)| {
        let read = ViewKey::parse(&series).zip(serde_json::from_str(&points).ok());
        if read.is_none() {
            tracing::warn!(series, "cannot read a series of the timeline; it begins anew");
        }
        read
    });
    Ok(Timeline::restore(series))
}

/// Replaces the series that have changed, and removes the empty ones.
pub(super) fn write(
    transaction: &Transaction<'_>,
    series: &[(ViewKey, Vec<TimelinePoint>)],
) -> rusqlite::Result<()> {
    let mut replace =
        transaction.prepare_cached("INSERT OR REPLACE INTO timeline (series, points) VALUES (?1, ?2)")?;
    let mut remove = transaction.prepare_cached("DELETE FROM timeline WHERE series = ?1")?;
    for (key, points) in series {
        if points.is_empty() {
            remove.execute([key.to_string()])?;
        } else {
            replace.execute(params![key.to_string(), as_text(points)?])?;
        }
    }
    Ok(())
}
