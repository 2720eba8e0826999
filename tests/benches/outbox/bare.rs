//! Bare SQLite: a table of reports and one of standings, two prepared statements, one transaction a group.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::disk;
use super::kept::DEPLOYMENTS;

pub(crate) struct Bare {
    connection: Connection,
    log: PathBuf,
    body: String,
    standing: String,
    next: u64,
}

impl Bare {
    /// Reports and standings of so many bytes, into a new file.
    pub(crate) fn open(path: &Path, row_bytes: usize, standing_bytes: usize) -> Self {
        let connection = Connection::open(path).unwrap();
        connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;").unwrap();
        let tables = "CREATE TABLE reports (seq INTEGER PRIMARY KEY, body TEXT NOT NULL);
                      CREATE TABLE standings (deployment INTEGER PRIMARY KEY, body TEXT NOT NULL);";
        connection.execute_batch(tables).unwrap();
        let text = |bytes: usize| "x".repeat(bytes);
        let (body, standing) = (text(row_bytes), text(standing_bytes));
        Self { connection, log: disk::log_of(path), body, standing, next: 1 }
    }

    /// Keeps so many groups of reports, each durably before the next.
    pub(crate) fn keep(&mut self, groups: usize, rows: usize) {
        for _ in 0..groups {
            let transaction = self.connection.unchecked_transaction().unwrap();
            let mut insert = transaction.prepare_cached("INSERT INTO reports VALUES (?1, ?2)").unwrap();
            let mut replace = transaction.prepare_cached("REPLACE INTO standings VALUES (?1, ?2)").unwrap();
            for nth in 0..rows as u64 {
                insert.execute(params![self.next, self.body]).unwrap();
                // If several reports come together, only the last standing of each deployment is written, as in the outbox.
                if nth + DEPLOYMENTS >= rows as u64 {
                    replace.execute(params![self.next % DEPLOYMENTS, self.standing]).unwrap();
                }
                self.next += 1;
            }
            drop((insert, replace));
            transaction.commit().unwrap();
        }
    }

    /// Pages of the log that one row costs.
    pub(crate) fn pages(&mut self, rows: usize) -> f64 {
        self.connection.execute_batch(disk::EMPTY_LOG).unwrap();
        self.keep(rows, 1);
        disk::pages(&self.log) / rows as f64
    }
}
