//! The device's database: one SQLite file, one writer, and what happens when the file or the disk is bad.
//!
//! ```text
//! <data-dir>/agent.lock                      one agent a directory, held while it lives, with its process id
//! <data-dir>/agent.db, -wal                  WAL, synchronous=FULL: what was committed survives power loss; made for
//!                                            this user alone, as the directory is
//! <data-dir>/agent.db.damaged                a mark: found damaged while in use, to be set aside at the next start
//! <data-dir>/agent.db.damaged-<time>[-wal]   set aside; never read again, never deleted
//! ```
//!
//! **Write.** All work goes through one connection, and by default one thread. It takes the jobs that wait, at most
//! [`JOBS_PER_COMMIT_MAX`], runs each in a savepoint of one transaction, commits once, and only then answers: several
//! waiting reports cost one fsync. Those who were answered together get a moment to come together again. Whoever has
//! gathered everything to be written already does it on its own thread ([`Db::run_here`]), if nobody else is at work: to
//! wake the thread and to be woken by it costs a good part of what a commit costs. A job that fails is undone alone. A
//! commit that fails (disk full, or no longer writable) undoes and fails all of them; the error names the file and what a
//! person can do; callers keep what they hold and try again.
//!
//! **Alone.** The file is locked for as long as the agent lives. A program that reads it meanwhile would keep the log from
//! being written back, which then grows until the disk is full; and to take and give back locks with every commit is a
//! twentieth of what a commit costs. To look at it, copy both files.
//!
//! **Open.** A file that is no database, or fails SQLite's `quick_check`, or was marked, is set aside and a new one
//! made. A file of a newer format or of another device is refused and left alone: those are mistakes of people.
//!
//! What the tables hold is [`crate::outbox`]'s and [`crate::store`]'s.

mod place;
mod writer;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_contract::{DeviceKey, Timestamp};
use rusqlite::ErrorCode;
pub(crate) use rusqlite::{
    Connection, Error as SqlError, OptionalExtension, Result as SqlResult, Row as SqlRow, params,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::place::{lock, make_private, marker, set_aside};
use self::writer::{Desk, Job, Request, Store, Writer, carry_out};

/// Jobs that share a commit at most.
pub const JOBS_PER_COMMIT_MAX: usize = 64;
/// Jobs that wait at most; who brings more waits.
pub const JOBS_WAITING_MAX: usize = 256;
/// How long another reader of the file (a person with `sqlite3`) may hold it up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Prepared statements kept: more than all rooms have together.
const STATEMENTS_KEPT: usize = 64;
/// Layout of the tables; rises with every change of it.
const FORMAT: i64 = 3;
/// How a file of an older format is brought to this one: (of which format, what is done).
const MIGRATIONS: [(i64, &str); 1] = [(2, crate::outbox::FROM_FORMAT_2)];
const FILE: &str = "agent.db";
const LOCK: &str = "agent.lock";
/// What a database in memory is called in errors.
const MEMORY: &str = ":memory:";
const PRAGMAS: &str = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA journal_size_limit=16777216; \
                       PRAGMA temp_store=MEMORY;";

const _: () = assert!(JOBS_PER_COMMIT_MAX <= JOBS_WAITING_MAX);

/// What went wrong with the database.
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
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Another agent works there.
    #[error("another agent{holder} uses the data directory {}; stop it or choose another --data-dir", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// ` (process N)` where the lock says so.
        holder: String,
    },
    /// The file belongs to another device.
    #[error(
        "the data directory {} belongs to {found}, not to {wanted}: moving a device is a new enrolment; choose another --data-dir",
        dir.display()
    )]
    OtherDevice {
        /// The directory.
        dir: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asked for it.
        wanted: DeviceKey,
    },
    /// The file was written by a newer agent.
    #[error("{} has format {found}; this agent knows up to {FORMAT}: run the newer agent again", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// The file cannot be opened, for a reason that is no damage (no rights, disk full).
    #[error("cannot open {}: {remedy}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What a person can do.
        remedy: &'static str,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
    /// A damaged file cannot be moved out of the way.
    #[error("cannot set the damaged database {} aside", path.display())]
    SetAside {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// Work could not be made durable. Nothing of it was kept.
    #[error("cannot write to {}: {remedy}", path.display())]
    Write {
        /// The file.
        path: Arc<Path>,
        /// What a person can do.
        remedy: &'static str,
        /// What SQLite says.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The file was found damaged while in use.
    #[error("{} is damaged: it is set aside when the agent starts again", path.display())]
    Damaged {
        /// The file.
        path: Arc<Path>,
        /// What SQLite says.
        #[source]
        source: Arc<rusqlite::Error>,
    },
    /// The database was closed.
    #[error("the database is closed")]
    Closed,
}

/// The open database. Clones share it; it closes when the last one is gone, or by [`Db::close`].
#[derive(Clone)]
pub struct Db {
    worker: Worker,
    damaged: CancellationToken,
    undone: Undone,
}

/// How many transactions were undone as a whole. What somebody has in memory of the tables may be otherwise after each. A
/// job that is undone alone is not counted: nobody but that job can have had its changes in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Undone(Arc<AtomicU64>);

impl Undone {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who does the work.
#[derive(Clone)]
enum Worker {
    /// A thread, or a caller that finds the file free.
    Thread(mpsc::Sender<Job>, Desk),
    /// Whoever brings the work, at once: nobody waits for a disk.
    Caller(Arc<Mutex<Connection>>),
}

impl Db {
    /// Opens the database of `device` in `dir`, making both if need be, with the tables of `schema`. `now` names a
    /// file that must be set aside. Blocks.
    ///
    /// # Errors
    /// Whatever keeps an agent from starting, said so that a person can act on it.
    pub fn open(dir: &Path, device: &DeviceKey, schema: &str, now: Timestamp) -> Result<Self, Error> {
        Self::start(Opened::new(dir, device, schema, now)?)
    }

    /// The same, with something done to the connection before anybody uses it.
    #[cfg(test)]
    pub(crate) fn open_with(
        dir: &Path,
        device: &DeviceKey,
        schema: &str,
        now: Timestamp,
        prepare: impl FnOnce(&mut Connection),
    ) -> Result<Self, Error> {
        let mut opened = Opened::new(dir, device, schema, now)?;
        prepare(&mut opened.connection);
        Self::start(opened)
    }

    fn start(Opened { path, lock, connection }: Opened) -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel(JOBS_WAITING_MAX);
        let damaged = CancellationToken::new();
        let (marker, dir) = (marker(&path), path.clone());
        let undone = Undone::default();
        let store = Store {
            connection,
            path: path.into(),
            marker,
            damaged: damaged.clone(),
            undone: undone.clone(),
            _lock: lock,
        };
        let desk = Desk::new(store);
        let writer = Writer { desk: desk.clone(), queue };
        std::thread::Builder::new()
            .name("database".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| Error::Directory { dir, source })?;
        Ok(Self { worker: Worker::Thread(jobs, desk), damaged, undone })
    }

    /// A database that is in memory only and lives as long as its clones, for devices that are simulated in virtual
    /// time: every job is done, in the transactions of a real one, before anything can be waited for.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn in_memory(schema: &str) -> Result<Self, Error> {
        let path = Path::new(MEMORY);
        let failed = |source| Error::Open { path: path.to_owned(), remedy: remedy(&source), source };
        let connection = Connection::open_in_memory().map_err(failed)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        connection.execute_batch(schema).map_err(failed)?;
        let worker = Worker::Caller(Arc::new(Mutex::new(connection)));
        Ok(Self { worker, damaged: CancellationToken::new(), undone: Undone::default() })
    }

    /// Runs `work` on the database and waits until what it did is durable.
    ///
    /// # Errors
    /// Nothing of it was kept: [`Error::Write`], [`Error::Damaged`] or [`Error::Closed`].
    pub async fn run<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(Request { work: Some(work), outcome: None, sender });
        match &self.worker {
            Worker::Thread(jobs, _) => jobs.send(Job::Work(work)).await.map_err(|_| Error::Closed)?,
            Worker::Caller(connection) => {
                // Whoever panicked left a transaction behind, and that is undone.
                let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                // The answer says whether it went well.
                _ = carry_out(&mut connection, &Path::new(MEMORY).into(), &self.undone, vec![work]);
            }
        }
        receiver.await.map_err(|_| Error::Closed)?
    }

    /// The same, on the thread of the caller, if the runtime can spare it and nobody else is at work: for a task that
    /// has nothing else to do meanwhile and has gathered all there is to write. Else as [`Db::run`].
    ///
    /// # Errors
    /// Those of [`Db::run`].
    pub async fn run_here<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        match self.here(work) {
            Ok(outcome) => outcome,
            Err(work) => self.run(work).await,
        }
    }

    /// Gives the work back where it cannot be done here.
    fn here<T, F>(&self, work: F) -> Result<Result<T, Error>, F>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let free = match &self.worker {
            Worker::Thread(_, desk) if can_block() => desk.free(),
            _ => None,
        };
        let Some(mut store) = free else { return Err(work) };
        let (sender, mut receiver) = oneshot::channel();
        let work = Box::new(Request { work: Some(work), outcome: None, sender });
        if let Some(store) = store.as_mut() {
            tokio::task::block_in_place(|| store.commit(vec![work]));
        }
        Ok(receiver.try_recv().unwrap_or(Err(Error::Closed)))
    }

    /// Finishes what waits, then closes the file and gives the directory free. Work brought later is refused.
    pub async fn close(&self) {
        let Worker::Thread(jobs, _) = &self.worker else { return };
        let (sender, receiver) = oneshot::channel();
        if jobs.send(Job::Close(sender)).await.is_ok() {
            // An answer and its absence mean the same: the writer is gone.
            _ = receiver.await;
        }
    }

    /// How many transactions were undone so far. Asked by a job, which is told of all before it.
    pub(crate) fn undone(&self) -> Undone {
        self.undone.clone()
    }

    /// Waits until the file is found damaged.
    pub async fn damaged(&self) {
        self.damaged.cancelled().await;
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").finish_non_exhaustive()
    }
}

/// A file that nobody works with yet.
struct Opened {
    path: PathBuf,
    lock: File,
    connection: Connection,
}

impl Opened {
    fn new(dir: &Path, device: &DeviceKey, schema: &str, now: Timestamp) -> Result<Self, Error> {
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
        claim(&connection, dir, device)?;
        Ok(Self { path, lock, connection })
    }
}

/// Opens the file, checks it and sees to its tables.
fn connect(path: &Path, schema: &str) -> Result<Connection, Error> {
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
    // Before the file is looked at: from then on the log's index is in memory of our own.
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
    connection.execute_batch(PRAGMAS).map_err(failed)?;
    // A new file has format 0.
    let migrations: String =
        MIGRATIONS.iter().filter(|(of, _)| (1..=*of).contains(&format)).map(|(_, change)| *change).collect();
    let tables = format!(
        "BEGIN; {migrations} {schema} CREATE TABLE IF NOT EXISTS owner (device TEXT NOT NULL); PRAGMA user_version={FORMAT}; COMMIT;"
    );
    connection.execute_batch(&tables).map_err(failed)?;
    Ok(connection)
}

/// Writes the device into a new database; refuses another device's.
fn claim(connection: &Connection, dir: &Path, device: &DeviceKey) -> Result<(), Error> {
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

/// True where a task may keep its thread for as long as a disk takes: the others go on elsewhere.
fn can_block() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

fn explain(path: &Arc<Path>, source: Arc<rusqlite::Error>) -> Error {
    let path = Arc::clone(path);
    match is_damage(&source) {
        true => Error::Damaged { path, source },
        false => Error::Write { path, remedy: remedy(&source), source },
    }
}

/// What a person can do about a failure that is no damage.
fn remedy(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk is full; free some space on it",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            "it is read-only for this user; mount its disk writable, and see that file and directory belong to the user \
             the agent runs as"
        }
        Some(ErrorCode::SystemIoFailure) => {
            "the disk failed or is full; see what the system's log says of it"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program holds it; end whatever has the file open beside the agent"
        }
        _ => "this is no fault of the disk; see the cause and report it",
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// What a table holds is not what this program writes: the same as any other damage.
pub(crate) fn corrupt(table: &str, error: &dyn std::error::Error) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(format!("table {table}: {error}")))
}

/// What cannot be read as what this program writes is damage, too, although SQLite had nothing against it.
pub(crate) fn unreadable(table: &str, error: rusqlite::Error) -> rusqlite::Error {
    if error.sqlite_error_code().is_some() { error } else { corrupt(table, &error) }
}

fn code_of(error: &rusqlite::Error) -> rusqlite::ffi::Error {
    let generic = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ERROR);
    error.sqlite_error().copied().unwrap_or(generic)
}

#[cfg(test)]
mod tests;
