//! The tables of the outbox. Other modules hold the rules about them.
//!
//! The file holds the rows and their delivery states, and no index. An index in the file would cost a page of the WAL
//! per report (seven of them cost more than the report), on flash that wears out. For the same reason a row is
//! written once: its delivery state is stored for runs of rows, and the rows show which of them is the newest of its
//! deployment. The index is in memory: see [`index`](super::index). It does not consist of in-memory SQLite tables,
//! because maintaining four of those took as long as writing the report.

/// Creates the tables.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    bytes INTEGER NOT NULL, observed INTEGER NOT NULL, message_id TEXT NOT NULL, coalesced TEXT, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passage (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, state INTEGER NOT NULL, round INTEGER NOT NULL,
    sent INTEGER, covered INTEGER);
";
