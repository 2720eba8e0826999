//! Bare SQLite: one table of numbers and texts, one prepared INSERT, one transaction a group.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::disk;

pub(crate) struct Bare {
    connection: Connection,
    log: PathBuf,
    body: String,
    next: u64,
}

impl Bare {
    /// Rows of so many bytes, into a new file.
    pub(crate) fn open(path: &Path, row_bytes: usize) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;").unwrap();
        connection
            .execute_batch("CREATE TABLE reports (seq INTEGER PRIMARY KEY, body TEXT NOT NULL)")
            .unwrap();
        Self { connection, log: disk::log_of(path), body: "x".repeat(row_bytes), next: 1 }
    }

    /// Keeps so many groups of rows, each durably before the next.
    pub(crate) fn keep(&mut self, groups: usize, rows: usize) {
        for _ in 0..groups {
            let transaction = (rows > 1).then(|| self.connection.unchecked_transaction().unwrap());
            let mut insert = self.connection.prepare_cached("INSERT INTO reports VALUES (?1, ?2)").unwrap();
            for _ in 0..rows {
                insert.execute(params![self.next, self.body]).unwrap();
                self.next += 1;
            }
            drop(insert);
            if let Some(transaction) = transaction {
                transaction.commit().unwrap();
            }
        }
    }

    /// Pages of the log that one row costs.
    pub(crate) fn pages(&mut self, rows: usize) -> f64 {
        self.connection.execute_batch(disk::EMPTY_LOG).unwrap();
        self.keep(rows, 1);
        disk::pages(&self.log) / rows as f64
    }
}
