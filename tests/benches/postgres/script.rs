//! The work of PostgreSQL: one row for each standing, counts by a trigger on whole statements, and the work of a round as a
//! script for psql. Reports come by COPY, a batch in one transaction, which is the fastest way.

use std::fmt::Write as _;

use fastrand::Rng;
use muster_bus::event::Trace;
use muster_tests::ledger::{self, DEPLOYMENTS, DEVICES_PER_SITE};

/// Reports of one transaction.
pub(crate) const BATCH: usize = 1000;

/// The data that the database keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Standings and counts.
    Current,
    /// Every report as well.
    History,
    /// Every report with what its message carries: an id, who says what, and a trace.
    Messages,
}

/// Makes the tables, empty.
pub(crate) fn tables(keeping: Keeping) -> String {
    let history = match keeping {
        Keeping::Current => "",
        Keeping::History => HISTORY,
        Keeping::Messages => MESSAGES,
    };
    format!("{TABLES}{history}")
}

const TABLES: &str = "
    DROP TABLE IF EXISTS standing, counts, history CASCADE;
    DROP FUNCTION IF EXISTS count_new, count_changed;
    CREATE TABLE standing (
        site text, device text, deployment text, epoch bigint NOT NULL, seq bigint NOT NULL, state text NOT NULL,
        body text NOT NULL, PRIMARY KEY (site, device, deployment)
    );
    CREATE INDEX standing_of ON standing (deployment, state);
    CREATE TABLE counts (deployment text, state text, standings bigint NOT NULL, PRIMARY KEY (deployment, state));
    CREATE FUNCTION count_new() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO counts SELECT deployment, state, count(*) FROM new_rows GROUP BY 1, 2
            ON CONFLICT (deployment, state) DO UPDATE SET standings = counts.standings + excluded.standings;
        RETURN NULL;
    END $$;
    CREATE FUNCTION count_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO counts SELECT deployment, state, sum(change) FROM (
                SELECT deployment, state, 1 AS change FROM new_rows
                UNION ALL SELECT deployment, state, -1 FROM old_rows
            ) AS changes GROUP BY 1, 2 HAVING sum(change) <> 0
            ON CONFLICT (deployment, state) DO UPDATE SET standings = counts.standings + excluded.standings;
        RETURN NULL;
    END $$;
    CREATE TRIGGER counted_new AFTER INSERT ON standing
        REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_new();
    CREATE TRIGGER counted_changed AFTER UPDATE ON standing
        REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_changed();
";

const HISTORY: &str = "
    CREATE TABLE history (
        place bigserial PRIMARY KEY, received_at timestamptz NOT NULL DEFAULT now(),
        site text NOT NULL, device text NOT NULL, deployment text NOT NULL, body text NOT NULL
    );
";

const MESSAGES: &str = "
    CREATE TABLE history (
        place bigserial PRIMARY KEY, received_at timestamptz NOT NULL DEFAULT now(),
        site text NOT NULL, device text NOT NULL, deployment text NOT NULL, body text NOT NULL,
        message_id text NOT NULL, source text NOT NULL, type text NOT NULL, trace text NOT NULL
    );
";

const INCOMING: &str = "CREATE TEMP TABLE batch (
    site text, device text, deployment text, epoch bigint, seq bigint, state text, body text,
    message_id text, source text, type text, trace text
) ON COMMIT DELETE ROWS;
";

const UPSERT: &str =
    "INSERT INTO standing SELECT site, device, deployment, epoch, seq, state, body FROM batch
    ON CONFLICT (site, device, deployment) DO UPDATE
    SET epoch = excluded.epoch, seq = excluded.seq, state = excluded.state, body = excluded.body
    WHERE (standing.epoch, standing.seq) < (excluded.epoch, excluded.seq);
";

const KEEP: &str = "INSERT INTO history (site, device, deployment, body) SELECT site, device, deployment, body FROM batch;\n";

const KEEP_MESSAGES: &str =
    "INSERT INTO history (site, device, deployment, body, message_id, source, type, trace)
    SELECT site, device, deployment, body, message_id, source, type, trace FROM batch;
";

/// The clean-up of a filled database before it is measured.
pub(crate) const SETTLE: &str = "VACUUM ANALYZE; CHECKPOINT;";

/// How many standings count as installed, if the counts say what the rows say.
pub(crate) const INSTALLED: &str = "SELECT sum(standings) FROM counts WHERE state = 'installed'
    HAVING sum(standings) = (SELECT count(*) FROM standing WHERE state = 'installed')";

/// The script of a round in which every device reports each of its deployments.
pub(crate) fn round(devices: usize, round: u64, keeping: Keeping) -> String {
    let mut script = INCOMING.to_owned();
    let rows: Vec<String> = (0..devices).flat_map(|device| rows(device, round, keeping)).collect();
    for batch in rows.chunks(BATCH) {
        script.push_str("BEGIN;\nCOPY batch (site, device, deployment, epoch, seq, state, body");
        script.push_str(if keeping == Keeping::Messages { ", message_id, source, type, trace" } else { "" });
        script.push_str(") FROM STDIN;\n");
        batch.iter().for_each(|row| script.push_str(row));
        script.push_str("\\.\n");
        script.push_str(UPSERT);
        script.push_str(match keeping {
            Keeping::Current => "",
            Keeping::History => KEEP,
            Keeping::Messages => KEEP_MESSAGES,
        });
        script.push_str("COMMIT;\n");
    }
    script
}

/// A line for COPY of each report. Nothing in it has to be escaped.
fn rows(device: usize, round: u64, keeping: Keeping) -> [String; DEPLOYMENTS.len()] {
    let mut chance = Rng::new();
    let state = if round.is_multiple_of(2) { "installed" } else { "installing" };
    let mut place = 0;
    ledger::reports(device, round).map(|(_, body)| {
        let (seq, id) = ((round - 1) * DEPLOYMENTS.len() as u64 + place as u64 + 1, DEPLOYMENTS[place]);
        place += 1;
        let mut row = String::new();
        // Writing into a string does not fail.
        let site = device / DEVICES_PER_SITE;
        let _ = write!(row, "site-{site}\tdevice-{device}\t{id}\t1\t{seq}\t{state}\t{body}");
        if keeping == Keeping::Messages {
            let (name, trace) = (format!("site-{site}.device-{device}"), Trace::random(&mut chance));
            let _ = write!(row, "\t{name}.1.{seq}\tmuster-ingest\tmuster.v1.StatusFact\t{trace}");
        }
        row.push('\n');
        row
    })
}
