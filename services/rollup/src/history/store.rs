//! Stores checkpoints on disk: whole folds as of some facts of LEDGER, compressed, in one SQLite file.
//!
//! Each checkpoint is written in one transaction, from the snapshot on disk or from a rebuilt fold. The live
//! fold takes no part.
//!
//! A checkpoint is verified before use: its parts carry checksums, and the records must reproduce the fleet
//! view's digest. A checkpoint that fails is dropped and an older one is used. All checkpoints together may be
//! lost at any time.

pub(super) mod error;

use std::fs;
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::view::AsOf;
use muster_domain::fold::{Fleet, HearingState};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use self::error::LoadError;
use super::checkpoint_retention::{Mark, Room, surplus};
use super::gaps::HeldMarks;
use super::pack::{Packed, unpack};
use crate::restore;
use crate::store::{Damage, Kind, StoreError, as_text, connect, copy_aside, rename_aside, write_error};

/// Name of the file in the data directory.
const FILE: &str = "history.db";
/// Marks the file as ours: "MUSH" in ASCII. The format is that of the tables and of the records in them.
pub(crate) const KIND: Kind = Kind { application_id: 0x4d55_5348, format: 7 };
const TABLES: &str = "
    CREATE TABLE ledger (only INTEGER PRIMARY KEY CHECK (only = 1), created_at TEXT NOT NULL);
    CREATE TABLE checkpoint (
        ledger_seq INTEGER PRIMARY KEY,
        at TEXT NOT NULL,
        fleet_digest TEXT NOT NULL,
        devices INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        hearing TEXT NOT NULL
    );
    CREATE TABLE part (ledger_seq INTEGER NOT NULL, packed BLOB NOT NULL);
    CREATE INDEX part_of ON part (ledger_seq);
";
/// The position up to which retention has removed checkpoints, of which LEDGER, and for which room. Files of
/// earlier versions lack this table: it is created at the first write, because a full disk must not prevent
/// opening a file.
const THINNING: &str = "
    CREATE TABLE IF NOT EXISTS thinning (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        created_at TEXT NOT NULL,
        ledger_seq INTEGER NOT NULL,
        count INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    );
";

/// The open file.
#[derive(Debug)]
pub struct Checkpoints {
    connection: Connection,
    path: PathBuf,
    room: Room,
    marks: Vec<Mark>,
    thinned_to: u64,
}

impl Checkpoints {
    /// Opens the checkpoints of one LEDGER. A file of another LEDGER, or one that cannot be read, is set aside.
    ///
    /// # Errors
    /// An obstacle that an operator must remove first.
    pub fn open(directory: &Path, created_at: Timestamp, room: Room) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        let unusable = |source| StoreError::Directory { path: directory.to_owned(), source };
        if path.try_exists().map_err(unusable)? {
            match Self::open_existing(&path, created_at, room) {
                Ok(checkpoints) => return Ok(checkpoints),
                Err(Damage::Unreadable(source)) if !crate::store::is_damage(&source) => {
                    return Err(write_error(&path, source));
                }
                Err(damage) => {
                    let aside = rename_aside(&path)?;
                    let reason = muster_service::error::chain(&damage);
                    tracing::warn!(reason, aside = %aside.display(), "set the checkpoints aside");
                }
            }
        }
        Self::create(path, created_at, room)
    }

    fn create(path: PathBuf, created_at: Timestamp, room: Room) -> Result<Self, StoreError> {
        let made = connect(&path).and_then(|connection| {
            KIND.mark(&connection)?;
            connection.execute_batch(TABLES)?;
            connection.execute("INSERT INTO ledger VALUES (1, ?1)", [created_at.to_string()])?;
            Ok(connection)
        });
        match made {
            Ok(connection) => Ok(Self { connection, path, room, marks: Vec::new(), thinned_to: 0 }),
            Err(source) => Err(write_error(&path, source)),
        }
    }

    fn open_existing(path: &Path, created_at: Timestamp, room: Room) -> Result<Self, Damage> {
        let connection = connect(path).map_err(Damage::Unreadable)?;
        KIND.check(&connection)?;
        let of = connection.query_row("SELECT created_at FROM ledger", (), |row| row.get::<_, String>(0));
        let of: Timestamp = of.map_err(Damage::Unreadable)?.parse().map_err(|_| Damage::Counts)?;
        if of != created_at {
            return Err(Damage::OtherLedger { of, now: created_at });
        }
        let marks = marks(&connection)?;
        let thinned_to = thinned_to(&connection, room).map_err(Damage::Unreadable)?;
        Ok(Self { connection, path: path.to_owned(), room, marks, thinned_to })
    }

    /// The marks of the checkpoints in ascending order, and the room for more.
    pub fn held(&self) -> HeldMarks<'_> {
        HeldMarks { marks: &self.marks, thinned_to: self.thinned_to, room: self.room }
    }

    /// The marks of the checkpoints in ascending order.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Makes a checkpoint and drops those there is no room for, all or none. Those at or after it are of a past
    /// that never was: LEDGER was set back.
    ///
    /// # Errors
    /// The file cannot be written; everything is as it was then.
    pub fn keep(&mut self, packed: &Packed, as_of: AsOf, digest: Digest) -> Result<Mark, StoreError> {
        let failed = |source| write_error(&self.path, source);
        let transaction = self.connection.transaction().map_err(failed)?;
        let mut marks = self.marks.clone();
        for gone in marks.extract_if(.., |held| held.as_of.ledger_seq >= as_of.ledger_seq) {
            drop_checkpoint(&transaction, gone.as_of.ledger_seq).map_err(failed)?;
        }
        let mark = write_checkpoint(&transaction, packed, as_of, digest).map_err(failed)?;
        marks.push(mark);
        let mut thinned_to = self.thinned_to;
        for gone in surplus(&marks, self.room) {
            drop_checkpoint(&transaction, gone).map_err(failed)?;
            marks.retain(|held| held.as_of.ledger_seq != gone);
            thinned_to = thinned_to.max(gone);
        }
        if thinned_to > self.thinned_to {
            write_thinned(&transaction, thinned_to, self.room).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        (self.marks, self.thinned_to) = (marks, thinned_to);
        Ok(mark)
    }

    /// Inserts a checkpoint between others. None if another would have to be removed, and then none is ever
    /// inserted up to there; none also if its place is gone or taken.
    ///
    /// # Errors
    /// The file cannot be written; it is unchanged.
    pub fn fill(&mut self, packed: &Packed, as_of: AsOf, digest: Digest) -> Result<Option<Mark>, StoreError> {
        let seq = as_of.ledger_seq;
        let at = self.marks.partition_point(|held| held.as_of.ledger_seq < seq);
        if seq <= self.thinned_to || self.marks.get(at).is_none_or(|held| held.as_of.ledger_seq == seq) {
            // It was removed by retention meanwhile, its successor is gone, or it exists already.
            return Ok(None);
        }
        let mut marks = self.marks.clone();
        marks.insert(at, Mark { as_of, devices: packed.devices, bytes: packed.bytes });
        let fits = surplus(&marks, self.room).is_empty();
        let thinned_to = if fits { self.thinned_to } else { self.thinned_to.max(seq) };
        let written = self.connection.transaction().and_then(|transaction| {
            let mark = fits.then(|| write_checkpoint(&transaction, packed, as_of, digest)).transpose()?;
            if !fits {
                write_thinned(&transaction, thinned_to, self.room)?;
            }
            transaction.commit().map(|()| mark)
        });
        let mark = written.map_err(|source| write_error(&self.path, source))?;
        self.thinned_to = thinned_to;
        if fits {
            self.marks = marks;
        }
        Ok(mark)
    }

    /// The fold as it was at a checkpoint.
    ///
    /// # Errors
    /// Why the checkpoint is of no use.
    pub fn load(&self, mark: Mark) -> Result<Fleet, LoadError> {
        let seq = mark.as_of.ledger_seq.cast_signed();
        let select = "SELECT fleet_digest, hearing FROM checkpoint WHERE ledger_seq = ?1";
        let row: Option<(String, String)> = self
            .connection
            .query_row(select, [seq], |row| row.try_into())
            .optional()
            .map_err(LoadError::Unreadable)?;
        let (digest, hearing) = row.ok_or(LoadError::Counts)?;
        let hearing = serde_json::from_str(&hearing).map_err(LoadError::Record)?;
        let mut statement = self
            .connection
            .prepare("SELECT packed FROM part WHERE ledger_seq = ?1")
            .map_err(LoadError::Unreadable)?;
        let parts =
            statement.query_map([seq], |row| row.get::<_, Vec<u8>>(0)).map_err(LoadError::Unreadable)?;
        let parts = parts.map(|part| part.map_err(LoadError::Unreadable));
        let fleet = restore::fleet(mark.as_of, hearing, parts, |part| unpack(&part), LoadError::Counts)?;
        if fleet.devices_known() as u64 != mark.devices
            || fleet.fleet_view().tally.digest.to_string() != digest
        {
            return Err(LoadError::Counts);
        }
        Ok(fleet)
    }

    /// Drops a checkpoint.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remove(&mut self, ledger_seq: u64) -> Result<(), StoreError> {
        let removed = self.connection.transaction().and_then(|transaction| {
            drop_checkpoint(&transaction, ledger_seq)?;
            transaction.commit()
        });
        removed.map_err(|source| write_error(&self.path, source))?;
        self.marks.retain(|mark| mark.as_of.ledger_seq != ledger_seq);
        Ok(())
    }

    /// Drops all checkpoints after copying the file aside: LEDGER is another one from now on, or the same with
    /// another past.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn start_over(&mut self, created_at: Timestamp) -> Result<(), StoreError> {
        if !self.marks.is_empty() {
            let aside = copy_aside(&self.connection, &self.path)?;
            tracing::warn!(aside = %aside.display(), "LEDGER was created anew: set the old checkpoints aside");
        }
        let cleared = self.connection.transaction().and_then(|transaction| {
            transaction.execute_batch("DELETE FROM part; DELETE FROM checkpoint;")?;
            transaction.execute("UPDATE ledger SET created_at = ?1", [created_at.to_string()])?;
            transaction.commit()
        });
        cleared.map_err(|source| write_error(&self.path, source))?;
        self.marks.clear();
        self.thinned_to = 0;
        Ok(())
    }
}

/// Names another LEDGER in the databases of a directory, by its time of creation. Files that are not of this format stay as
/// they are, to be set aside when they are opened.
///
/// # Errors
/// A database cannot be written.
pub(crate) fn name_ledger(directory: &Path, created_at: Timestamp) -> Result<(), StoreError> {
    let databases = [(FILE, KIND, "ledger"), (crate::store::FILE, crate::store::KIND, "snapshot")];
    for (name, kind, table) in databases {
        let path = directory.join(name);
        if !path.is_file() {
            continue;
        }
        let named = connect(&path).and_then(|connection| match kind.check(&connection) {
            Ok(()) => {
                let update = format!("UPDATE {table} SET created_at = ?1");
                connection.execute(&update, [created_at.to_string()]).map(drop)
            }
            Err(_) => Ok(()),
        });
        match named {
            Err(source) if !crate::store::is_damage(&source) => return Err(write_error(&path, source)),
            _ => {}
        }
    }
    Ok(())
}

/// Sets the checkpoints of a directory aside, if there are any, and returns their new path.
///
/// # Errors
/// An obstacle that an operator must remove first.
pub fn set_aside(directory: &Path) -> Result<Option<PathBuf>, StoreError> {
    let path = directory.join(FILE);
    if fs::exists(&path).map_err(|source| StoreError::Directory { path: path.clone(), source })? {
        rename_aside(&path).map(Some)
    } else {
        Ok(None)
    }
}

fn marks(connection: &Connection) -> Result<Vec<Mark>, Damage> {
    type Row = (i64, String, i64, i64);
    let mut statement = connection
        .prepare("SELECT ledger_seq, at, devices, bytes FROM checkpoint ORDER BY ledger_seq")
        .map_err(Damage::Unreadable)?;
    let rows = statement.query_map((), |row| Row::try_from(row)).map_err(Damage::Unreadable)?;
    rows.map(|row| {
        let (ledger_seq, at, devices, bytes) = row.map_err(Damage::Unreadable)?;
        let at = at.parse().map_err(|_| Damage::Counts)?;
        let as_of = AsOf { ledger_seq: ledger_seq.cast_unsigned(), at };
        Ok(Mark { as_of, devices: devices.cast_unsigned(), bytes: bytes.cast_unsigned() })
    })
    .collect()
}

/// The position up to which retention has removed checkpoints of this LEDGER; none if there is more room now
/// than then.
fn thinned_to(connection: &Connection, room: Room) -> rusqlite::Result<u64> {
    let is_there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'thinning'";
    if connection.query_row(is_there, (), |row| row.get::<_, u64>(0))? == 0 {
        return Ok(0);
    }
    let of_this = "SELECT ledger_seq, count, bytes FROM thinning JOIN ledger USING (created_at)";
    let row: Option<(u64, u64, u64)> = connection.query_row(of_this, (), |row| row.try_into()).optional()?;
    let (count_now, bytes_now) = stored(room);
    let for_want = row.filter(|(_, count, bytes)| count_now <= *count && bytes_now <= *bytes);
    Ok(for_want.map_or(0, |(ledger_seq, ..)| ledger_seq))
}

fn write_thinned(transaction: &Transaction<'_>, ledger_seq: u64, room: Room) -> rusqlite::Result<()> {
    let (count, bytes) = stored(room);
    transaction.execute_batch(THINNING)?;
    let write = "INSERT OR REPLACE INTO thinning (only, created_at, ledger_seq, count, bytes)
        SELECT 1, created_at, ?1, ?2, ?3 FROM ledger";
    transaction.execute(write, [ledger_seq, count, bytes])?;
    Ok(())
}

/// The room as stored: SQLite's integers are smaller than ours.
fn stored(room: Room) -> (u64, u64) {
    (room.count as u64, room.bytes.min(i64::MAX.cast_unsigned()))
}

fn write_checkpoint(
    transaction: &Transaction<'_>,
    packed: &Packed,
    as_of: AsOf,
    digest: Digest,
) -> rusqlite::Result<Mark> {
    let seq = as_of.ledger_seq.cast_signed();
    let mut insert = transaction.prepare_cached("INSERT INTO part (ledger_seq, packed) VALUES (?1, ?2)")?;
    for part in &packed.parts {
        insert.execute(params![seq, part])?;
    }
    let mark = Mark { as_of, devices: packed.devices, bytes: packed.bytes };
    write_mark(transaction, mark, digest, &packed.hearing)?;
    Ok(mark)
}

fn write_mark(
    transaction: &Transaction<'_>,
    mark: Mark,
    digest: Digest,
    hearing: &HearingState,
) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO checkpoint (ledger_seq, at, fleet_digest, devices, bytes, hearing)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            mark.as_of.ledger_seq.cast_signed(),
            mark.as_of.at.to_string(),
            digest.to_string(),
            mark.devices.cast_signed(),
            mark.bytes.cast_signed(),
            as_text(hearing)?,
        ],
    )?;
    Ok(())
}

fn drop_checkpoint(transaction: &Transaction<'_>, ledger_seq: u64) -> rusqlite::Result<()> {
    let seq = ledger_seq.cast_signed();
    transaction.execute("DELETE FROM part WHERE ledger_seq = ?1", [seq])?;
    transaction.execute("DELETE FROM checkpoint WHERE ledger_seq = ?1", [seq])?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
