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

/// Up to format 2 every row had its delivery state and a flag for the newest; a record above a kilobyte was stored in
/// overflow pages.
pub(crate) const FROM_FORMAT_2: &str = "
CREATE TABLE passage (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, state INTEGER NOT NULL, round INTEGER NOT NULL,
    sent INTEGER, covered INTEGER);
INSERT INTO passage SELECT min(seq), max(seq), state, round, sent, covered FROM (
    SELECT seq, state, round, sent, covered,
        seq - row_number() OVER (PARTITION BY state, round, sent, covered ORDER BY seq) AS nth
    FROM outbox WHERE state > 0 OR round > 0)
    GROUP BY state, round, sent, covered, nth;
CREATE TABLE outbox_3 (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    bytes INTEGER NOT NULL, observed INTEGER NOT NULL, message_id TEXT NOT NULL, coalesced TEXT, body TEXT NOT NULL);
INSERT INTO outbox_3
    SELECT seq, deployment, newest, terminal, bytes, observed, message_id, coalesced, body FROM outbox ORDER BY seq;
DROP TABLE outbox;
ALTER TABLE outbox_3 RENAME TO outbox;
CREATE TABLE standing_3 (deployment TEXT PRIMARY KEY, document BLOB NOT NULL);
INSERT INTO standing_3 SELECT deployment, document FROM standing ORDER BY deployment;
DROP TABLE standing;
ALTER TABLE standing_3 RENAME TO standing;
";
