//! The tables of the outbox: what the file holds, and what memory keeps to find it by. The rules on them stand elsewhere.
//!
//! The file holds the rows and nothing to look them up with. An index in the file would cost a page of the log for
//! every report (seven of them cost more than the report), on flash that wears out. So `lookup` and `usage` are TEMP
//! tables, in memory, made anew from the rows at each opening; triggers keep them. Being tables of the same
//! transaction, they go back with it.

/// What is made at each opening.
pub(crate) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS memory (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    state INTEGER NOT NULL, round INTEGER NOT NULL, bytes INTEGER NOT NULL, observed INTEGER NOT NULL, sent INTEGER,
    covered INTEGER, message_id TEXT NOT NULL, coalesced TEXT, body TEXT NOT NULL);

CREATE TEMP TABLE lookup (
    seq INTEGER PRIMARY KEY, deployment TEXT, newest INTEGER NOT NULL, terminal INTEGER NOT NULL,
    state INTEGER NOT NULL, covered INTEGER);
INSERT INTO lookup SELECT seq, deployment, newest, terminal, state, covered FROM outbox;
CREATE INDEX temp.lookup_newest ON lookup (deployment) WHERE newest = 1;
CREATE INDEX temp.lookup_heads ON lookup (seq) WHERE state = 0 AND newest = 1;
CREATE INDEX temp.lookup_waiting ON lookup (seq) WHERE state = 0;
CREATE INDEX temp.lookup_waiting_of ON lookup (deployment, seq) WHERE state = 0;
CREATE INDEX temp.lookup_sent ON lookup (seq) WHERE state = 1;
CREATE INDEX temp.lookup_covered ON lookup (seq) WHERE state = 2;
CREATE INDEX temp.lookup_covered_at ON lookup (covered) WHERE state = 2;
CREATE INDEX temp.lookup_passing ON lookup (seq) WHERE state < 2 AND newest = 0 AND terminal = 0;

CREATE TEMP TABLE usage (head INTEGER NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO usage SELECT
    max(ifnull(max(seq), 0), ifnull((SELECT CAST(value AS INTEGER) FROM memory WHERE name = 'head'), 0)),
    count(*), ifnull(sum(bytes), 0) FROM outbox;

CREATE TEMP TRIGGER outbox_in AFTER INSERT ON main.outbox BEGIN
    INSERT INTO lookup VALUES (NEW.seq, NEW.deployment, NEW.newest, NEW.terminal, NEW.state, NEW.covered);
    UPDATE usage SET head = max(head, NEW.seq), rows = rows + 1, bytes = bytes + NEW.bytes; END;
CREATE TEMP TRIGGER outbox_out AFTER DELETE ON main.outbox BEGIN
    DELETE FROM lookup WHERE seq = OLD.seq;
    UPDATE usage SET rows = rows - 1, bytes = bytes - OLD.bytes; END;
CREATE TEMP TRIGGER outbox_moved AFTER UPDATE OF seq, newest, state, covered ON main.outbox BEGIN
    UPDATE lookup SET seq = NEW.seq, newest = NEW.newest, state = NEW.state, covered = NEW.covered
    WHERE seq = OLD.seq; END;
CREATE TEMP TRIGGER outbox_grown AFTER UPDATE OF bytes ON main.outbox BEGIN
    UPDATE usage SET bytes = bytes + NEW.bytes - OLD.bytes; END;
";

/// State of a row that a receipt covers. What waits for the relay is 0, what the bus holds is 1.
pub(super) const COVERED: i64 = 2;
