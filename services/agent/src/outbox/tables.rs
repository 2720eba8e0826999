//! The tables of the outbox: what the file holds. The rules on them stand elsewhere.
//!
//! The file holds the rows, how far they have come, and nothing to look them up with. An index in the file would cost a
//! page of the log for every report (seven of them cost more than the report), on flash that wears out. For the same
//! reason a row is written once: what becomes of it is kept for runs of rows, and which row is the newest of its
//! deployment follows from the rows. What finds a row is in memory: see [`index`](super::index). It is none of SQLite's
//! tables, because to keep four of those took as long as to write the report.

/// What is made at each opening.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    bytes INTEGER NOT NULL, observed INTEGER NOT NULL, message_id TEXT NOT NULL, coalesced TEXT, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passage (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, state INTEGER NOT NULL, round INTEGER NOT NULL,
    sent INTEGER, covered INTEGER);
";

/// Up to format 2 every row said itself how far it had come, and whether it was the newest; a standing was written where
/// one above a kilobyte spills into pages of its own.
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
