//! A device's database seen from outside: what its outbox holds, a copy of all of it, and a disk without room. The
//! simulator looks; it never writes what an agent has to write.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use muster_agent::db::Db;
use muster_agent::outbox::Body;
use muster_contract::SeqRanges;
use rusqlite::types::Value;

/// Tables of a device, as they are copied. `usage` is kept by triggers.
const TABLES: [(&str, usize); 4] = [("memory", 2), ("outbox", 13), ("desired", 3), ("standing", 2)];
/// Pages that no database of a simulated device reaches.
const PAGES_AMPLE: u32 = 1_000_000;

/// A future that needs nobody else to come to its end.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("an outbox in memory never waits"),
    }
}

/// A new database.
pub(crate) fn fresh() -> Db {
    Db::in_memory(&muster_agent::app::schema()).unwrap()
}

/// The numbers that the rows of an outbox have or declare.
pub(crate) fn numbers(db: &Db) -> SeqRanges {
    let rows = now(db.run(|connection| {
        let mut statement = connection.prepare_cached("SELECT seq, coalesced FROM outbox")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<Result<Vec<(u64, Option<String>)>, _>>()
    }));
    let mut held = SeqRanges::new();
    for (seq, declared) in rows.unwrap() {
        held.insert(seq);
        if let Some(declared) = declared {
            held.extend(&serde_json::from_str(&declared).unwrap());
        }
    }
    held
}

/// The reports of an outbox above a number, with theirs.
pub(crate) fn bodies_above(db: &Db, seq: u64) -> Vec<(u64, Body)> {
    let rows = now(db.run(move |connection| {
        let mut statement =
            connection.prepare_cached("SELECT seq, body FROM outbox WHERE seq > ?1 ORDER BY seq")?;
        let rows = statement.query_map([seq], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<Result<Vec<(u64, String)>, _>>()
    }));
    rows.unwrap().into_iter().map(|(seq, body)| (seq, serde_json::from_str(&body).unwrap())).collect()
}

/// What a database holds, to be put into another one later.
#[derive(Debug, Clone)]
pub(crate) struct Image(Vec<Vec<Vec<Value>>>);

impl Image {
    /// Everything a database holds.
    pub(crate) fn of(db: &Db) -> Self {
        let image = now(db.run(|connection| {
            TABLES
                .iter()
                .map(|(table, columns)| {
                    let mut statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
                    let rows =
                        statement.query_map([], |row| (0..*columns).map(|at| row.get(at)).collect())?;
                    rows.collect()
                })
                .collect()
        }));
        Self(image.unwrap())
    }

    /// A new database with it.
    pub(crate) fn restore(self) -> Db {
        let db = fresh();
        let filled = now(db.run(move |connection| {
            for ((table, columns), rows) in TABLES.iter().zip(self.0) {
                let marks = vec!["?"; *columns].join(",");
                let mut insert = connection.prepare(&format!("INSERT INTO {table} VALUES ({marks})"))?;
                for row in rows {
                    insert.execute(rusqlite::params_from_iter(row))?;
                }
            }
            Ok(())
        }));
        filled.unwrap();
        db
    }
}

/// Leaves a database no room to grow, or all it wants.
pub(crate) fn set_full(db: &Db, full: bool) {
    let pages = if full { 1 } else { PAGES_AMPLE };
    let set = now(db.run(move |connection| {
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
    }));
    set.unwrap();
}
