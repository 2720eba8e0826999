//! A device's database seen from outside: what its outbox holds, a copy of all of it, and a disk without room. The
//! simulator looks; it never writes what an agent has to write.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use muster_agent::db::Db;
use muster_agent::report::Body;
use muster_contract::SeqRanges;

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
    Db::in_memory(&muster_agent::app::schema().tables).unwrap()
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

/// The content of a database, as the statements that make it again.
#[derive(Debug, Clone)]
pub(crate) struct Image(String);

impl Image {
    /// Everything a database holds on disk.
    pub(crate) fn of(db: &Db) -> Self {
        let script = now(db.run(|connection| {
            let mut script = String::new();
            let mut tables =
                connection.prepare("SELECT name, sql FROM main.sqlite_master WHERE type = 'table'")?;
            let tables = tables.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            for (table, sql) in tables.collect::<Result<Vec<(String, String)>, _>>()? {
                script += &format!("{sql};\n");
                let all = connection.prepare(&format!("SELECT * FROM {table}"))?;
                let columns = all.column_names().collect::<Vec<_>>().join("), quote(");
                let mut rows =
                    connection.prepare(&format!("SELECT concat_ws(', ', quote({columns})) FROM {table}"))?;
                for row in rows.query_map([], |row| row.get::<_, String>(0))? {
                    script += &format!("INSERT INTO {table} VALUES ({});\n", row?);
                }
            }
            Ok(script)
        }));
        Self(script.unwrap())
    }

    /// A new database with it, opened as an agent opens its own.
    pub(crate) fn restore(&self) -> Db {
        Db::in_memory(&format!("{}{}", self.0, muster_agent::app::schema().tables)).unwrap()
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
