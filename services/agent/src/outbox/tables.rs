//! The tables of the outbox: what the file holds, and what memory keeps to find it by. The rules on them stand elsewhere.
//!
//! The file holds the rows, how far they have come, and nothing to look them up with. An index in the file would cost a
//! page of the log for every report (seven of them cost more than the report), on flash that wears out. For the same
//! reason a row is written once: what becomes of it is kept for runs of rows, and which row is the newest of its
//! deployment follows from the rows. So `lookup`, `newest`, `stretch` and `usage` are TEMP tables, in memory, made anew at
//! each opening; triggers and [`passage`](super::passage) keep them. Being tables of the same transaction, they go back with it.

/// What is made at each opening. The deployment of capabilities is '' in memory.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    bytes INTEGER NOT NULL, observed INTEGER NOT NULL, message_id TEXT NOT NULL, coalesced TEXT, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passage (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, state INTEGER NOT NULL, round INTEGER NOT NULL,
    sent INTEGER, covered INTEGER);

CREATE TEMP TABLE lookup (seq INTEGER PRIMARY KEY, deployment TEXT NOT NULL, terminal INTEGER NOT NULL);
INSERT INTO lookup SELECT seq, ifnull(deployment, ''), terminal FROM outbox;
CREATE INDEX temp.lookup_of ON lookup (deployment, seq);
CREATE INDEX temp.lookup_passing ON lookup (seq) WHERE terminal = 0;
CREATE TEMP TABLE newest (deployment TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO newest SELECT ifnull(deployment, ''), max(seq) FROM outbox WHERE newest = 1 GROUP BY deployment;

CREATE TEMP TABLE stretch (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, state INTEGER NOT NULL);
INSERT INTO stretch SELECT min(first), max(last), state FROM (
    SELECT first, last, state, sum(begins) OVER (ORDER BY first) AS nth FROM (
        SELECT first, last, state, ifnull(
            first > 1 + lag(last) OVER (ORDER BY first) OR state <> lag(state) OVER (ORDER BY first), 1) AS begins
        FROM passage WHERE state > 0))
    GROUP BY nth;

CREATE TEMP TABLE usage (head INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO usage SELECT
    max(ifnull(max(seq), 0), ifnull((SELECT CAST(value AS INTEGER) FROM memory WHERE name = 'head'), 0)),
    count(*), ifnull(sum(bytes), 0) FROM outbox;

CREATE TEMP TRIGGER outbox_in AFTER INSERT ON main.outbox BEGIN
    INSERT INTO lookup VALUES (NEW.seq, ifnull(NEW.deployment, ''), NEW.terminal);
    INSERT INTO newest SELECT ifnull(NEW.deployment, ''), NEW.seq WHERE NEW.newest = 1
        ON CONFLICT DO UPDATE SET seq = excluded.seq;
    UPDATE usage SET head = max(head, NEW.seq), rows = rows + 1, bytes = bytes + NEW.bytes; END;
CREATE TEMP TRIGGER outbox_out AFTER DELETE ON main.outbox BEGIN
    UPDATE outbox SET newest = 0 WHERE newest = 1 AND seq IN (
        SELECT older.seq FROM newest JOIN lookup AS older ON older.deployment = newest.deployment
        WHERE newest.deployment = ifnull(OLD.deployment, '') AND newest.seq = OLD.seq AND older.seq < OLD.seq);
    DELETE FROM newest WHERE deployment = ifnull(OLD.deployment, '') AND seq = OLD.seq;
    DELETE FROM lookup WHERE seq = OLD.seq;
    UPDATE usage SET rows = rows - 1, bytes = bytes - OLD.bytes; END;
CREATE TEMP TRIGGER outbox_moved AFTER UPDATE OF seq ON main.outbox BEGIN
    UPDATE lookup SET seq = NEW.seq WHERE seq = OLD.seq;
    UPDATE newest SET seq = NEW.seq WHERE deployment = ifnull(OLD.deployment, '') AND seq = OLD.seq; END;
CREATE TEMP TRIGGER outbox_grown AFTER UPDATE OF bytes ON main.outbox BEGIN
    UPDATE usage SET bytes = bytes + NEW.bytes - OLD.bytes; END;
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
