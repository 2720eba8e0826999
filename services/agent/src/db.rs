//! The device's database: one SQLite file with one writer, and the handling of a damaged file and a full disk.
//!
//! ```text
//! <data-dir>/agent.lock                      locked by the agent while it runs; holds its process id
//! <data-dir>/agent.db, -wal                  WAL, synchronous=FULL: committed data survive a power loss; readable by
//!                                            this user only, as the directory is
//! <data-dir>/agent.db.damaged                a marker: found damaged while in use, to be moved aside at the next start
//! <data-dir>/agent.db.damaged-<time>[-wal]   moved aside; never read again, never deleted
//! ```
//!
//! **Write.** All work uses one connection, and by default one thread. The thread collects the waiting jobs, at most
//! [`JOBS_PER_COMMIT_MAX`], runs each in a savepoint of one transaction, commits once, and answers after the commit:
//! several waiting reports cost one fsync. Callers that were answered together get a moment to send their next jobs
//! together. A caller that has collected everything there is to write may do the work on its own thread
//! ([`Db::run_here`]) if no other job is running: to wake the thread and be woken by it costs a good part of a
//! commit. A failed job is rolled back alone. A failed commit (disk full, or no longer writable) rolls back and fails
//! all jobs; the error names the file and the remedy; callers keep their reports and try again.
//!
//! **Lock.** The agent locks the file while it runs. A second reader would prevent checkpoints of the WAL, which
//! would then grow until the disk is full; and a lock per commit costs a twentieth of the commit. To inspect the
//! file, copy it together with its WAL.
//!
//! **Open.** A file that is not a database, fails SQLite's `quick_check`, or is marked, is moved aside and replaced
//! by a new one. A file of a newer format or of another device is refused and left alone: those are operator errors.
//!
//! [`crate::outbox`] and [`crate::store`] define the contents of the tables.

mod files;
mod schema;
mod writer;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_contract::{DeviceKey, Timestamp};
use rusqlite::ErrorCode;
use rusqlite::config::DbConfig;
pub(crate) use rusqlite::{
    Connection, Error as SqlError, OptionalExtension, Result as SqlResult, Row as SqlRow, params,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::files::{lock, make_private, marker, set_aside};
pub(crate) use self::schema::Migration;
pub use self::schema::Schema;
use self::schema::{FORMAT, NO_FORMAT};
use self::writer::{DatabaseFile, Job, SharedFile, WorkRequest, Writer, commit_all};

/// Jobs per commit at most.
pub(crate) const JOBS_PER_COMMIT_MAX: usize = 64;
/// Waiting jobs at most; further callers wait.
pub(crate) const JOBS_WAITING_MAX: usize = 256;
/// How long another reader of the file (a person with `sqlite3`) may block it.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Cached prepared statements: more than all modules have together.
const STATEMENTS_KEPT: usize = 64;
const FILE: &str = "agent.db";
const LOCK: &str = "agent.lock";
/// The name of an in-memory database in errors.
const MEMORY: &str = ":memory:";
const PRAGMAS: &str = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA journal_size_limit=16777216; \
                       PRAGMA temp_store=MEMORY;";

const _: () = assert!(JOBS_PER_COMMIT_MAX <= JOBS_WAITING_MAX);

/// The error of opening or using the database.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data directory cannot be used at all.
    #[error(
        "cannot use the data directory {}: it must exist or be creatable, and be writable by this user, on a disk with room",
        dir.display()
    )]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another agent uses the directory.
    #[error("another agent{holder} uses the data directory {}; stop it or choose another --data-dir", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// ` (process N)` if the lock file says so.
        holder: String,
    },
    /// The file belongs to another device.
    #[error(
        "the data directory {} belongs to {found}, not to {wanted}: to move a device, enrol it again; choose another --data-dir",
        dir.display()
    )]
    OtherDevice {
        /// The directory.
        dir: PathBuf,
        /// The device in the file.
        found: String,
        /// The device of this agent.
        wanted: DeviceKey,
    },
    /// A newer agent wrote the file.
    #[error("{} has format {found}; this agent knows up to {FORMAT}: run the newer agent again", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// The file has an older format, and no migration begins there.
    #[error(
        "{} has format {found}, which no release wrote; this agent reads formats {oldest} to {FORMAT}: empty its outbox with the \
         agent that wrote it, then move the file away",
        path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The oldest format that can be read.
        oldest: i64,
    },
    /// The file cannot be opened, although it is not damaged (permissions, disk full).
    #[error("cannot open {}: {remedy}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The remedy.
        remedy: &'static str,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
    /// A damaged file cannot be moved aside.
    #[error(
        "cannot move the damaged database {} aside: make its directory writable for this user, or move the file away",
        path.display()
    )]
    SetAside {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Work could not be committed. None of it was stored.
    #[error("cannot write to {}: {remedy}", path.display())]
    Write {
        /// The file.
        path: Arc<Path>,
        /// The remedy.
        remedy: &'static str,
        /// SQLite's error.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The file was found damaged while in use.
    #[error("{} is damaged: restart the agent, which moves it aside", path.display())]
    Damaged {
        /// The file.
        path: Arc<Path>,
        /// SQLite's error.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The database was closed.
    #[error("the database is closed")]
    Closed,
}

/// The open database. Clones share it; it closes with the last clone, or by [`Db::close`].
#[derive(Clone)]
pub struct Db {
    executor: Executor,
    damaged: CancellationToken,
    rollbacks: RollbackCount,
}

/// Counts transactions that were rolled back as a whole. After each, in-memory copies of the tables may be wrong. A
/// job that is rolled back alone is not counted: only that job can have had its changes in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct RollbackCount(Arc<AtomicU64>);

impl RollbackCount {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The executor of jobs.
#[derive(Clone)]
enum Executor {
    /// On the database's thread, or on a caller's if the file is free.
    Thread(mpsc::Sender<Job>, SharedFile),
    /// On the caller's thread, at once: there is no disk to wait for.
    Caller(Arc<Mutex<Connection>>),
}

impl Db {
    /// Opens the database of `device` in `dir`, with the tables of `schema`. Creates what is missing. `now` names a file
    /// that is moved aside. Blocks.
    ///
    /// # Errors
    /// Every reason that keeps an agent from starting, with its remedy.
    pub fn open(dir: &Path, device: &DeviceKey, schema: &Schema, now: Timestamp) -> Result<Self, Error> {
        Self::start(OpenedFile::new(dir, device, schema, now)?)
    }

    /// The same, with a change to the connection before its first use.
    #[cfg(test)]
    pub(crate) fn open_with(
        dir: &Path,
        device: &DeviceKey,
        schema: &Schema,
        now: Timestamp,
        prepare: impl FnOnce(&mut Connection),
    ) -> Result<Self, Error> {
        let mut opened = OpenedFile::new(dir, device, schema, now)?;
        prepare(&mut opened.connection);
        Self::start(opened)
    }

    fn start(OpenedFile { path, lock, connection }: OpenedFile) -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel(JOBS_WAITING_MAX);
        let damaged = CancellationToken::new();
        let (marker, dir) = (marker(&path), path.clone());
        let rollbacks = RollbackCount::default();
        let store = DatabaseFile {
            connection,
            path: path.into(),
            marker,
            damaged: damaged.clone(),
            rollbacks: rollbacks.clone(),
            _lock: lock,
        };
        let file = SharedFile::new(store);
        let writer = Writer { file: file.clone(), queue };
        std::thread::Builder::new()
            .name("database".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| Error::Directory { dir, source })?;
        Ok(Self { executor: Executor::Thread(jobs, file), damaged, rollbacks })
    }

    /// A database in memory that lives as long as its clones, for simulated devices: every job is done, in the same
    /// transactions as in a file, before the returned future can wait.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn in_memory(tables: &str) -> Result<Self, Error> {
        let path = Path::new(MEMORY);
        let failed = |source| Error::Open { path: path.to_owned(), remedy: remedy(&source), source };
        let connection = Connection::open_in_memory().map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        connection.execute_batch(tables).map_err(failed)?;
        let executor = Executor::Caller(Arc::new(Mutex::new(connection)));
        Ok(Self { executor, damaged: CancellationToken::new(), rollbacks: RollbackCount::default() })
    }

    /// Runs `work` on the database and returns after the commit.
    ///
    /// # Errors
    /// [`Error::Write`], [`Error::Damaged`] or [`Error::Closed`]; nothing was stored.
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(WorkRequest { work: Some(work), outcome: None, sender });
        match &self.executor {
            Executor::Thread(jobs, _) => jobs.send(Job::Work(work)).await.map_err(|_| Error::Closed)?,
            Executor::Caller(connection) => {
                // A panicking job leaves a transaction behind; the next commit rolls it back.
                let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                // The result is in the answer.
                _ = commit_all(&mut connection, &Path::new(MEMORY).into(), &self.rollbacks, vec![work]);
            }
        }
        receiver.await.map_err(|_| Error::Closed)?
    }

    /// The same on the caller's thread, if the async runtime permits blocking and no other job is running; otherwise
    /// [`Db::run`]. For a task that has nothing else to do meanwhile and has collected everything there is to write.
    ///
    /// # Errors
    /// The same as [`Db::run`].
    pub(crate) async fn run_here<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        match self.try_here(work) {
            Ok(outcome) => outcome,
            Err(work) => self.run(work).await,
        }
    }

    /// Runs the work on this thread, or gives it back.
    fn try_here<T, F>(&self, work: F) -> Result<Result<T, Error>, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let free = match &self.executor {
            Executor::Thread(_, file) if can_block() => file.try_lock(),
            _ => None,
        };
        let Some(mut store) = free else { return Err(work) };
        let (sender, mut receiver) = oneshot::channel();
        let work = Box::new(WorkRequest { work: Some(work), outcome: None, sender });
        if let Some(store) = store.as_mut() {
            tokio::task::block_in_place(|| store.commit(vec![work]));
        }
        Ok(receiver.try_recv().unwrap_or(Err(Error::Closed)))
    }

    /// Finishes the waiting jobs, then closes the file and unlocks the directory. Later work fails with
    /// [`Error::Closed`].
    pub async fn close(&self) {
        let Executor::Thread(jobs, _) = &self.executor else { return };
        let (sender, receiver) = oneshot::channel();
        if jobs.send(Job::Close(sender)).await.is_ok() {
            // An answer and its absence mean the same: the thread has ended.
            _ = receiver.await;
        }
    }

    /// The count of rollbacks. A job that reads it sees every earlier one.
    pub(crate) fn rollbacks(&self) -> RollbackCount {
        self.rollbacks.clone()
    }

    /// Completes when the file is found damaged.
    pub async fn damaged(&self) {
        self.damaged.cancelled().await;
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").finish_non_exhaustive()
    }
}

/// An open file without a writer.
struct OpenedFile {
    path: PathBuf,
    lock: File,
    connection: Connection,
}

impl OpenedFile {
    fn new(dir: &Path, device: &DeviceKey, schema: &Schema, now: Timestamp) -> Result<Self, Error> {
        let lock = lock(dir)?;
        let path = dir.join(FILE);
        if marker(&path).exists() {
            set_aside(&path, now)?;
        }
        let connection = match connect(&path, schema) {
            Err(Error::Damaged { .. }) => {
                set_aside(&path, now)?;
                connect(&path, schema)
            }
            other => other,
        }?;
        check_owner(&connection, dir, device)?;
        Ok(Self { path, lock, connection })
    }
}

/// Opens the file, checks it, and creates or migrates its tables.
fn connect(path: &Path, schema: &Schema) -> Result<Connection, Error> {
    let failed = |source: rusqlite::Error| {
        if is_damage(&source) {
            Error::Damaged { path: path.into(), source: Arc::new(source) }
        } else {
            Error::Open { path: path.to_owned(), remedy: remedy(&source), source }
        }
    };
    make_private(path);
    let connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    // Without QPSG, SQLite prepares some statements again when their bound values change: one of them at every receipt.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failed)?;
    // Set before the first read: then SQLite keeps the WAL index in private memory.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
    let verdict: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(failed(rusqlite::Error::SqliteFailure(code, Some(verdict))));
    }
    let format: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    if format > FORMAT {
        return Err(Error::Newer { path: path.to_owned(), found: format });
    }
    let oldest = schema.oldest_format();
    if format != NO_FORMAT && format < oldest {
        return Err(Error::Older { path: path.to_owned(), found: format, oldest });
    }
    connection.execute_batch(PRAGMAS).map_err(failed)?;
    let migrations = schema.migrations_of(format);
    let Schema { tables, .. } = schema;
    let tables = format!(
        "BEGIN; {migrations} {tables} CREATE TABLE IF NOT EXISTS owner (device TEXT NOT NULL); PRAGMA user_version={FORMAT}; COMMIT;"
    );
    connection.execute_batch(&tables).map_err(failed)?;
    Ok(connection)
}

/// Writes the device into a new database; refuses another device's database.
fn check_owner(connection: &Connection, dir: &Path, device: &DeviceKey) -> Result<(), Error> {
    let failed = |source| Error::Open { path: dir.join(FILE), remedy: remedy(&source), source };
    let owner: Option<String> =
        connection.query_row("SELECT device FROM owner", [], |row| row.get(0)).optional().map_err(failed)?;
    match owner {
        Some(found) if found == device.to_string() => Ok(()),
        Some(found) => Err(Error::OtherDevice { dir: dir.to_owned(), found, wanted: device.clone() }),
        None => connection
            .execute("INSERT INTO owner VALUES (?1)", [device.to_string()])
            .map(drop)
            .map_err(failed),
    }
}

/// Whether a task may block its thread: the others continue on other threads.
fn can_block() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

fn write_error(path: &Arc<Path>, source: Arc<rusqlite::Error>) -> Error {
    let path = Arc::clone(path);
    if is_damage(&source) {
        Error::Damaged { path, source }
    } else {
        Error::Write { path, remedy: remedy(&source), source }
    }
}

/// The remedy for a failure that is not damage.
fn remedy(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full; free some space on it",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            "it is read-only for this user; mount its disk writable, and make the agent's user the owner of file and directory"
        }
        Some(ErrorCode::SystemIoFailure) => "the disk failed or is full; see the system's log",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program has the file open; end it"
        }
        _ => "the disk is not the cause; report this error with its cause",
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// The error of a table with contents that this program does not write: it is handled as damage.
pub(crate) fn corrupt(table: &str, error: &dyn std::error::Error) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(format!("table {table}: {error}")))
}

/// Handles a value that cannot be read as damage, although SQLite did not complain.
pub(crate) fn unreadable(table: &str, error: rusqlite::Error) -> rusqlite::Error {
    if error.sqlite_error_code().is_some() { error } else { corrupt(table, &error) }
}

fn code_of(error: &rusqlite::Error) -> rusqlite::ffi::Error {
    let generic = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ERROR);
    error.sqlite_error().copied().unwrap_or(generic)
}

#[cfg(test)]
mod tests;
