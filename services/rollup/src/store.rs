//! Stores the snapshot: one SQLite file with a record for each device, the timeline, and the position in LEDGER at which they
//! are true.
//!
//! The file is a cache of LEDGER: if it does not fit, it is set aside and LEDGER is read again; it is never
//! repaired or trusted. Failures that reading again cannot fix (no right to write, no space, another process)
//! are errors that say what to do.

mod error;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::subjects::ViewKey;
use muster_contract::timeline::TimelinePoint;
use muster_contract::view::AsOf;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::fold::{DeviceRecord, Fleet, HearingState, Timeline};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;

pub use self::error::{Damage, StoreError};
pub(crate) use self::error::{is_damage, write_error};
use crate::restore;

/// Name of the file in the data directory.
pub(crate) const FILE: &str = "snapshot.db";
/// The suffix of a file that is set aside. There is at most one, for a person to examine.
const ASIDE: &str = ".set-aside";
/// SQLite's companion files.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];
/// Bytes of a page of a new file. A device's record of a few deployments takes one to two thousand, and SQLite puts what is
/// larger than a quarter of a page on pages of its own: with its usual 4,096 each record would have one or two.
const PAGE_BYTES: u32 = 16 * 1024;
/// How long to wait for another process to release the file, which may be ending.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// Marks the file as ours: "MUST" in ASCII. The format is that of the tables and of the records in them.
pub(crate) const KIND: Kind = Kind { application_id: 0x4d55_5354, format: 11 };

/// Records that are read, decoded and applied at once.
const PART_RECORDS: usize = 500;

const TABLES: &str = "
    CREATE TABLE snapshot (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        created_at TEXT NOT NULL,
        ledger_seq INTEGER NOT NULL,
        at TEXT NOT NULL,
        fleet_digest TEXT NOT NULL,
        hearing TEXT NOT NULL
    );
    CREATE TABLE device (key TEXT PRIMARY KEY, record TEXT NOT NULL, mark INTEGER NOT NULL) WITHOUT ROWID;
";

/// Added to a file that was written before there were timelines.
const TIMELINE_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS timeline (series TEXT PRIMARY KEY, points TEXT NOT NULL) WITHOUT ROWID;
";

/// The row of the table that has the position of the series in place of points.
const TIMELINE_POSITION: &str = "asOf";

/// Distinguishes our files from others, and their versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) application_id: i64,
    pub(crate) format: i64,
}

/// The open file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

/// The content of the data directory.
#[derive(Debug)]
pub enum StoredSnapshot {
    /// No snapshot yet.
    Nothing,
    /// A snapshot of the LEDGER created at this time.
    Snapshot {
        /// When that stream was created.
        created_at: Timestamp,
        /// The fold as it was.
        fleet: Box<Fleet>,
        /// How its counts had changed.
        timeline: Timeline,
    },
    /// A snapshot that does not hold; it lies aside now.
    SetAside {
        /// Why.
        damage: Damage,
        /// The path.
        to: PathBuf,
    },
}

/// The part of a fold that a snapshot has yet to hold.
#[derive(Debug, Clone)]
pub struct Changes {
    /// Nothing of what the store holds is true any more: it was another LEDGER.
    pub afresh: bool,
    /// When the LEDGER was created.
    pub created_at: Timestamp,
    /// The position up to which LEDGER was read.
    pub as_of: AsOf,
    /// Digest of the fleet's view there.
    pub fleet_digest: Digest,
    /// The hub's hearing state there.
    pub hearing: HearingState,
    /// The series of the timeline that changed, empty where one is gone, complete up to this second.
    pub timeline: (i64, Vec<(ViewKey, Vec<TimelinePoint>)>),
    /// Devices that changed, as they are there.
    pub records: Vec<DeviceRecord>,
}

impl Store {
    /// Opens the snapshot of a directory, or creates it.
    ///
    /// # Errors
    /// An obstacle that an operator must remove first.
    pub fn open(directory: &Path) -> Result<(Self, StoredSnapshot), StoreError> {
        let unusable = |source| StoreError::Directory { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(unusable)?;
        let path = directory.join(FILE);
        let existed = path.try_exists().map_err(unusable)?;
        if !existed {
            return Self::create(path).map(|store| (store, StoredSnapshot::Nothing));
        }
        match Self::open_existing(&path)? {
            Ok((store, found)) => Ok((store, found)),
            Err(damage) => {
                let (store, to) = Self::replace(path)?;
                Ok((store, StoredSnapshot::SetAside { damage, to }))
            }
        }
    }

    /// Sets the snapshot aside and begins an empty one. Returns the old one's path.
    ///
    /// # Errors
    /// An obstacle that an operator must remove first.
    pub fn set_aside(self) -> Result<(Self, PathBuf), StoreError> {
        let Self { connection, path } = self;
        connection.close().map_err(|(_, source)| write_error(&path, source))?;
        Self::replace(path)
    }

    /// Writes the changes to the snapshot, all or none.
    ///
    /// # Errors
    /// An obstacle that an operator must remove; the snapshot is unchanged.
    pub fn save(&mut self, changes: &Changes) -> Result<(), StoreError> {
        if changes.afresh && holds_devices(&self.connection) {
            let aside = copy_aside(&self.connection, &self.path)?;
            tracing::warn!(aside = %aside.display(), "LEDGER was created anew: set the old snapshot aside");
        }
        let saved = self
            .connection
            .transaction()
            .and_then(|transaction| write(&transaction, changes).and_then(|()| transaction.commit()));
        saved.map_err(|source| write_error(&self.path, source))
    }

    /// Passes every record of the snapshot to `take` as text, in no order, each verified.
    ///
    /// # Errors
    /// The snapshot cannot be read, a record is damaged, or `take` fails.
    pub(crate) fn each_record<E: From<Damage>>(
        &self,
        mut take: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let unreadable = |source| E::from(Damage::Unreadable(source));
        let mut statement =
            self.connection.prepare("SELECT key, record, mark FROM device").map_err(unreadable)?;
        let mut rows = statement.query(()).map_err(unreadable)?;
        while let Some(row) = rows.next().map_err(unreadable)? {
            let text = |at| row.get_ref(at).and_then(|value| Ok(value.as_str()?)).map_err(unreadable);
            let record = text(1)?;
            if row.get::<_, i64>(2).map_err(unreadable)? != mark_of(record) {
                return Err(Damage::Record { key: text(0)?.to_owned() }.into());
            }
            take(record)?;
        }
        Ok(())
    }

    /// The hub's hearing state as of the snapshot.
    ///
    /// # Errors
    /// The snapshot cannot be read.
    pub fn hearing(&self) -> Result<HearingState, Damage> {
        load_hearing(&self.connection)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn create(path: PathBuf) -> Result<Self, StoreError> {
        let connection = connect(&path).and_then(|connection| {
            KIND.mark(&connection)?;
            connection.execute_batch(TABLES)?;
            connection.execute_batch(TIMELINE_TABLE)?;
            Ok(connection)
        });
        match connection {
            Ok(connection) => Ok(Self { connection, path }),
            Err(source) => Err(write_error(&path, source)),
        }
    }

    /// The outer error cannot be helped by reading LEDGER again, the inner one can.
    fn open_existing(path: &Path) -> Result<Result<(Self, StoredSnapshot), Damage>, StoreError> {
        let opened = connect(path).map_err(Damage::Unreadable).and_then(|connection| {
            KIND.check(&connection)?;
            connection.execute_batch(TIMELINE_TABLE).map_err(Damage::Unreadable)?;
            let found = load(&connection)?;
            Ok((Self { connection, path: path.to_owned() }, found))
        });
        match opened {
            Err(Damage::Unreadable(source)) if !is_damage(&source) => Err(write_error(path, source)),
            opened => Ok(opened),
        }
    }

    fn replace(path: PathBuf) -> Result<(Self, PathBuf), StoreError> {
        let aside = rename_aside(&path)?;
        Ok((Self::create(path)?, aside))
    }
}

/// Renames a file, with what SQLite keeps beside it; gives its new place.
pub(crate) fn rename_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let aside = with_suffix(path, ASIDE);
    fs::rename(path, &aside).map_err(|source| StoreError::Directory { path: path.to_owned(), source })?;
    for companion in COMPANIONS {
        match fs::rename(with_suffix(path, companion), with_suffix(&aside, companion)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Directory { path: with_suffix(path, companion), source });
            }
            _ => {}
        }
    }
    Ok(aside)
}

/// Copies an open file aside, in the place of an earlier one there; gives the place of the copy.
pub(crate) fn copy_aside(connection: &Connection, path: &Path) -> Result<PathBuf, StoreError> {
    let aside = with_suffix(path, ASIDE);
    for old in COMPANIONS.iter().map(|companion| with_suffix(&aside, companion)).chain([aside.clone()]) {
        match fs::remove_file(&old) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Directory { path: old, source });
            }
            _ => {}
        }
    }
    let name = aside.to_string_lossy();
    connection.execute("VACUUM INTO ?1", [name.as_ref()]).map_err(|source| write_error(&aside, source))?;
    Ok(aside)
}

/// Whether a snapshot is worth keeping: one without any device is not.
fn holds_devices(connection: &Connection) -> bool {
    let any = "SELECT EXISTS (SELECT 1 FROM device)";
    connection.query_row(any, (), |row| row.get::<_, bool>(0)).unwrap_or(false)
}

/// Opens a file for this process alone. NORMAL is enough: after a power cut the snapshot is an older one, but whole.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_WAIT)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    // A file that is there keeps the pages that it has.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // Takes the lock, and keeps it.
    connection.execute_batch("BEGIN IMMEDIATE; COMMIT;")?;
    Ok(connection)
}

impl Kind {
    /// Marks a file that was just made.
    pub(crate) fn mark(self, connection: &Connection) -> rusqlite::Result<()> {
        connection.pragma_update(None, "application_id", self.application_id)?;
        connection.pragma_update(None, "user_version", self.format)
    }

    /// Refuses a file of another kind.
    pub(crate) fn check(self, connection: &Connection) -> Result<(), Damage> {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        if number("application_id").map_err(Damage::Unreadable)? != self.application_id {
            return Err(Damage::Stranger);
        }
        match number("user_version").map_err(Damage::Unreadable)? {
            found if found == self.format => Ok(()),
            found => Err(Damage::Format { found, read: self.format }),
        }
    }
}

fn load(connection: &Connection) -> Result<StoredSnapshot, Damage> {
    let Some((created_at, as_of, digest)) = load_position(connection)? else {
        return Ok(StoredSnapshot::Nothing);
    };
    let fleet = load_fleet(connection, as_of, load_hearing(connection)?)?;
    if fleet.fleet_view().tally.digest != digest {
        return Err(Damage::Counts);
    }
    let timeline = load_timeline(connection, &position_text(created_at, as_of))?;
    Ok(StoredSnapshot::Snapshot { created_at, fleet: Box::new(fleet), timeline })
}

fn load_position(connection: &Connection) -> Result<Option<(Timestamp, AsOf, Digest)>, Damage> {
    type Row = (String, i64, String, String);
    let row: Option<Row> = connection
        .query_row("SELECT created_at, ledger_seq, at, fleet_digest FROM snapshot", (), |row| row.try_into())
        .optional()
        .map_err(Damage::Unreadable)?;
    let Some((created_at, ledger_seq, at, digest)) = row else { return Ok(None) };
    let understood = || {
        let as_of = AsOf { ledger_seq: ledger_seq.cast_unsigned(), at: at.parse().ok()? };
        Some((created_at.parse().ok()?, as_of, digest.parse().ok()?))
    };
    understood().map(Some).ok_or(Damage::Counts)
}

/// A position in a LEDGER, to be compared.
fn position_text(created_at: Timestamp, as_of: AsOf) -> String {
    format!("{created_at} {}", as_of.ledger_seq)
}

fn load_hearing(connection: &Connection) -> Result<HearingState, Damage> {
    let text: String = connection
        .query_row("SELECT hearing FROM snapshot", (), |row| row.get(0))
        .map_err(Damage::Unreadable)?;
    serde_json::from_str(&text).map_err(|_| Damage::Counts)
}

/// A series that cannot be read is left out: it is shown, and nothing is derived from it.
///
/// A version without timelines may have written the snapshot since: then the series are of another position, and are removed.
fn load_timeline(connection: &Connection, position: &str) -> Result<Timeline, Damage> {
    let stored: Option<String> = connection
        .query_row("SELECT points FROM timeline WHERE series = ?1", [TIMELINE_POSITION], |row| row.get(0))
        .optional()
        .map_err(Damage::Unreadable)?;
    if stored.as_deref() != Some(position) {
        connection.execute("DELETE FROM timeline", ()).map_err(Damage::Unreadable)?;
        return Ok(Timeline::default());
    }
    let mut statement = connection
        .prepare("SELECT series, points FROM timeline WHERE series <> 'asOf'")
        .map_err(Damage::Unreadable)?;
    let rows =
        statement.query_map((), |row| <(String, String)>::try_from(row)).map_err(Damage::Unreadable)?;
    let rows: Vec<(String, String)> = rows.collect::<Result<_, _>>().map_err(Damage::Unreadable)?;
    let series = rows.into_iter().filter_map(|(series, points)| {
        let read = ViewKey::parse(&series).zip(serde_json::from_str(&points).ok());
        if read.is_none() {
            tracing::warn!(series, "cannot read a series of the timeline; it begins anew");
        }
        read
    });
    Ok(Timeline::restore(series))
}

/// Replaces the series that have changed, and removes the empty ones.
fn write_timeline(transaction: &Transaction<'_>, changes: &Changes) -> rusqlite::Result<()> {
    let mut replace =
        transaction.prepare_cached("INSERT OR REPLACE INTO timeline (series, points) VALUES (?1, ?2)")?;
    let mut remove = transaction.prepare_cached("DELETE FROM timeline WHERE series = ?1")?;
    replace.execute(params![TIMELINE_POSITION, position_text(changes.created_at, changes.as_of)])?;
    for (key, points) in &changes.timeline.1 {
        if points.is_empty() {
            remove.execute([key.to_string()])?;
        } else {
            replace.execute(params![key.to_string(), as_text(points)?])?;
        }
    }
    Ok(())
}

fn load_fleet(connection: &Connection, as_of: AsOf, hearing: HearingState) -> Result<Fleet, Damage> {
    let mut statement =
        connection.prepare("SELECT key, record, mark FROM device").map_err(Damage::Unreadable)?;
    let mut rows =
        statement.query_map((), |row| <(String, String, i64)>::try_from(row)).map_err(Damage::Unreadable)?;
    let part = || {
        let part: rusqlite::Result<Vec<_>> = rows.by_ref().take(PART_RECORDS).collect();
        part.map_err(Damage::Unreadable).map(|part| (!part.is_empty()).then_some(part)).transpose()
    };
    let understand_all = |part: Vec<_>| part.into_iter().map(understand).collect();
    restore::fleet(as_of, hearing, std::iter::from_fn(part), understand_all, Damage::Counts)
}

fn understand((key, record, mark): (String, String, i64)) -> Result<DeviceRecord, Damage> {
    let whole = (mark_of(&record) == mark).then(|| serde_json::from_str::<DeviceRecord>(&record).ok());
    match whole.flatten() {
        Some(record) if record.key().to_string() == key => Ok(record),
        _ => Err(Damage::Record { key }),
    }
}

fn write(transaction: &Transaction<'_>, changes: &Changes) -> rusqlite::Result<()> {
    if changes.afresh {
        transaction.execute_batch("DELETE FROM device; DELETE FROM timeline;")?;
    }
    write_timeline(transaction, changes)?;
    let mut device = transaction
        .prepare_cached("INSERT OR REPLACE INTO device (key, record, mark) VALUES (?1, ?2, ?3)")?;
    for record in &changes.records {
        let key: &DeviceKey = record.key();
        let text = as_text(record)?;
        device.execute(params![key.to_string(), text, mark_of(&text)])?;
    }
    transaction.execute(
        "INSERT OR REPLACE INTO snapshot (only, created_at, ledger_seq, at, fleet_digest, hearing)
            VALUES (1, ?1, ?2, ?3, ?4, ?5)",
        params![
            changes.created_at.to_string(),
            changes.as_of.ledger_seq.cast_signed(),
            changes.as_of.at.to_string(),
            changes.fleet_digest.to_string(),
            as_text(&changes.hearing)?,
        ],
    )?;
    Ok(())
}

/// A value as the text of a column.
pub(crate) fn as_text(value: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// The first eight bytes of a text's digest: enough to notice that a disk has changed it.
fn mark_of(text: &str) -> i64 {
    let digest = Digest::of_bytes(text.as_bytes());
    digest.as_bytes().iter().take(8).fold(0, |mark, byte| (mark << 8) | i64::from(*byte))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod format;
#[cfg(test)]
pub(crate) mod tests;
