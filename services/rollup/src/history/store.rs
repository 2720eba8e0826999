//! Checkpoints on disk: whole folds as of some facts of LEDGER, in one SQLite file, compressed, each made in one
//! transaction from the snapshot as it lies on disk. The live fold has no part in it.
//!
//! A checkpoint is never believed for being there: its parts carry checksums, and what is read of it must give the view
//! that was true. One that does not is dropped, and an older one taken; all of them together may be lost at any time.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::view::AsOf;
use muster_domain::fold::{DeviceRecord, Fleet};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::thinning::{Mark, Room, surplus};
use crate::restore;
use crate::store::{Damage, Kind, Store, StoreError, connect, put_aside, write_error};

/// Name of the file in the data directory.
const FILE: &str = "history.db";
/// Marks the file as ours: "MUSH" in ASCII. The format is that of the tables and of the records in them.
const KIND: Kind = Kind { application_id: 0x4d55_5348, format: 1 };
/// Records compressed together: enough to repeat themselves, few enough to be read by several threads at once.
const PART_RECORDS: usize = 2_000;
/// Bytes of one part, unpacked, beyond which no further record is put into it.
const PART_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of one part, unpacked: what has more is damaged, and a record that large is not kept.
const PART_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// How hard parts are compressed. Records repeat themselves so much that more effort hardly pays.
const LEVEL: i32 = 1;

const _: () = assert!(2 * PART_BYTES as u64 <= PART_BYTES_MAX);

const TABLES: &str = "
    CREATE TABLE ledger (only INTEGER PRIMARY KEY CHECK (only = 1), created_at TEXT NOT NULL);
    CREATE TABLE checkpoint (
        ledger_seq INTEGER PRIMARY KEY,
        at TEXT NOT NULL,
        fleet_digest TEXT NOT NULL,
        devices INTEGER NOT NULL,
        bytes INTEGER NOT NULL
    );
    CREATE TABLE part (ledger_seq INTEGER NOT NULL, packed BLOB NOT NULL);
    CREATE INDEX part_of ON part (ledger_seq);
";

/// The open file.
#[derive(Debug)]
pub struct Checkpoints {
    connection: Connection,
    path: PathBuf,
    room: Room,
    marks: Vec<Mark>,
}

/// Why a checkpoint is not made.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The snapshot that it is made from does not hold.
    #[error("the snapshot cannot be copied")]
    Snapshot(#[from] Damage),
    /// It cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be packed.
    #[error("cannot pack records")]
    Pack(#[source] io::Error),
}

/// Why a checkpoint is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// SQLite cannot read it.
    #[error("it cannot be read")]
    Unreadable(#[source] rusqlite::Error),
    /// A part cannot be unpacked.
    #[error("a part of it is damaged")]
    Part(#[source] io::Error),
    /// A record is none.
    #[error("a record of it is damaged")]
    Record(#[source] serde_json::Error),
    /// It does not give the view that was true.
    #[error("its records do not add up to what they were")]
    Counts,
}

impl LoadError {
    /// True where the checkpoint itself is wrong, and will be so for ever. A disk that cannot be read now, and memory that
    /// is short, say nothing of it.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Unreadable(error) => crate::store::is_damage(error),
            Self::Part(error) => {
                // The unpacker names it in words only.
                let is_short =
                    error.kind() == io::ErrorKind::OutOfMemory || error.to_string().contains("memory");
                !is_short
            }
            Self::Record(_) | Self::Counts => true,
        }
    }
}

impl Checkpoints {
    /// Opens the checkpoints of one LEDGER. Those of another, and a file that cannot be read, are set aside.
    ///
    /// # Errors
    /// What a person has to mend first.
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
                    let aside = put_aside(&path)?;
                    let reason = muster_service::error::chain(&damage);
                    tracing::warn!(reason, aside = %aside.display(), "the checkpoints are set aside");
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
            Ok(connection) => Ok(Self { connection, path, room, marks: Vec::new() }),
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
        Ok(Self { connection, path: path.to_owned(), room, marks })
    }

    /// What there is, in ascending order.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Makes a checkpoint of a snapshot and drops those there is no room for, all or none. Those at or after it are of a past
    /// that never was: LEDGER was set back.
    ///
    /// # Errors
    /// The snapshot does not hold, or the file cannot be written; everything is as it was then.
    pub fn keep(&mut self, snapshot: &Store, as_of: AsOf, digest: Digest) -> Result<Mark, KeepError> {
        let failed = |source| KeepError::from(write_error(&self.path, source));
        let transaction = self.connection.transaction().map_err(failed)?;
        let mut marks = self.marks.clone();
        for gone in marks.extract_if(.., |held| held.as_of.ledger_seq >= as_of.ledger_seq) {
            drop_checkpoint(&transaction, gone.as_of.ledger_seq).map_err(failed)?;
        }
        let mut packer = Packer {
            transaction: &transaction,
            path: &self.path,
            as_of,
            lines: String::new(),
            waiting: 0,
            devices: 0,
            bytes: 0,
        };
        snapshot.each_record(|record| packer.take(record))?;
        packer.pack()?;
        let mark = Mark { as_of, devices: packer.devices, bytes: packer.bytes };
        write_mark(&transaction, mark, digest).map_err(failed)?;
        marks.push(mark);
        for gone in surplus(&marks, self.room) {
            drop_checkpoint(&transaction, gone).map_err(failed)?;
            marks.retain(|held| held.as_of.ledger_seq != gone);
        }
        transaction.commit().map_err(failed)?;
        self.marks = marks;
        Ok(mark)
    }

    /// The fold as it was at a checkpoint.
    ///
    /// # Errors
    /// Why the checkpoint is of no use.
    pub fn load(&self, mark: Mark) -> Result<Fleet, LoadError> {
        let seq = mark.as_of.ledger_seq.cast_signed();
        let digest: Option<String> = self
            .connection
            .query_row("SELECT fleet_digest FROM checkpoint WHERE ledger_seq = ?1", [seq], |row| row.get(0))
            .optional()
            .map_err(LoadError::Unreadable)?;
        let mut statement = self
            .connection
            .prepare("SELECT packed FROM part WHERE ledger_seq = ?1")
            .map_err(LoadError::Unreadable)?;
        let parts =
            statement.query_map([seq], |row| row.get::<_, Vec<u8>>(0)).map_err(LoadError::Unreadable)?;
        let parts = parts.map(|part| part.map_err(LoadError::Unreadable));
        let fleet = restore::fleet(mark.as_of, parts, |part| unpack(&part), LoadError::Counts)?;
        if fleet.devices_known() as u64 != mark.devices
            || Some(fleet.fleet_view().tally.digest.to_string()) != digest
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

    /// Drops everything: it is another LEDGER from now on, or the same one with another past.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin_anew(&mut self, created_at: Timestamp) -> Result<(), StoreError> {
        let cleared = self.connection.transaction().and_then(|transaction| {
            transaction.execute_batch("DELETE FROM part; DELETE FROM checkpoint;")?;
            transaction.execute("UPDATE ledger SET created_at = ?1", [created_at.to_string()])?;
            transaction.commit()
        });
        cleared.map_err(|source| write_error(&self.path, source))?;
        self.marks.clear();
        Ok(())
    }
}

/// Puts the checkpoints of a directory aside, if there are any; gives their place.
///
/// # Errors
/// What a person has to mend first.
pub fn set_aside(directory: &Path) -> Result<Option<PathBuf>, StoreError> {
    let path = directory.join(FILE);
    if fs::exists(&path).map_err(|source| StoreError::Directory { path: path.clone(), source })? {
        put_aside(&path).map(Some)
    } else {
        Ok(None)
    }
}

/// Packs records into parts.
struct Packer<'a> {
    transaction: &'a Transaction<'a>,
    path: &'a Path,
    as_of: AsOf,
    lines: String,
    waiting: usize,
    devices: u64,
    bytes: u64,
}

impl Packer<'_> {
    fn take(&mut self, record: &str) -> Result<(), KeepError> {
        if record.len() as u64 >= PART_BYTES_MAX {
            let words = format!("one record has {} bytes; {PART_BYTES_MAX} can be read", record.len());
            return Err(KeepError::Pack(io::Error::other(words)));
        }
        if self.lines.len() + record.len() > PART_BYTES {
            self.pack()?;
        }
        self.lines.push_str(record);
        self.lines.push('\n');
        self.waiting += 1;
        self.devices += 1;
        if self.waiting == PART_RECORDS { self.pack() } else { Ok(()) }
    }

    fn pack(&mut self) -> Result<(), KeepError> {
        if self.waiting == 0 {
            return Ok(());
        }
        let packed = packed(self.lines.as_bytes()).map_err(KeepError::Pack)?;
        self.transaction
            .prepare_cached("INSERT INTO part (ledger_seq, packed) VALUES (?1, ?2)")
            .and_then(|mut insert| insert.execute(params![self.as_of.ledger_seq.cast_signed(), packed]))
            .map_err(|source| write_error(self.path, source))?;
        self.bytes += packed.len() as u64;
        self.lines.clear();
        self.waiting = 0;
        Ok(())
    }
}

/// Compressed, with a checksum.
fn packed(lines: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(lines)
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

fn write_mark(transaction: &Transaction<'_>, mark: Mark, digest: Digest) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO checkpoint (ledger_seq, at, fleet_digest, devices, bytes) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            mark.as_of.ledger_seq.cast_signed(),
            mark.as_of.at.to_string(),
            digest.to_string(),
            mark.devices.cast_signed(),
            mark.bytes.cast_signed(),
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

fn unpack(part: &[u8]) -> Result<Vec<DeviceRecord>, LoadError> {
    let mut lines = Vec::new();
    let unpacked = zstd::stream::read::Decoder::with_buffer(part)
        .and_then(|decoder| decoder.take(PART_BYTES_MAX).read_to_end(&mut lines));
    unpacked.map_err(LoadError::Part)?;
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(LoadError::Record)).collect()
}

#[cfg(test)]
pub(crate) mod tests;
