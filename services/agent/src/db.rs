//! The device's database: one SQLite file, one writer, and what happens when the file or the disk is bad.
//!
//! ```text
//! <data-dir>/agent.lock                      one agent a directory, held while it lives, with its process id
//! <data-dir>/agent.db, -wal, -shm            WAL, synchronous=FULL: what was committed survives power loss
//! <data-dir>/agent.db.damaged                a mark: found damaged while in use, to be set aside at the next start
//! <data-dir>/agent.db.damaged-<time>[-wal]   set aside; never read again, never deleted
//! ```
//!
//! **Write.** All work goes through one thread. It takes the jobs that wait, at most [`JOBS_PER_COMMIT_MAX`], runs each
//! in a savepoint of one transaction, commits once, and only then answers: several waiting reports cost one fsync. A
//! job that fails is undone alone. A commit that fails (disk full) undoes and fails all of them; callers keep what
//! they hold and try again.
//!
//! **Open.** A file that is no database, or fails SQLite's `quick_check`, or was marked, is set aside and a new one
//! made. A file of a newer format or of another device is refused and left alone: those are mistakes of people.
//!
//! What the tables hold is [`crate::outbox`]'s and [`crate::store`]'s.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::{DeviceKey, Timestamp};
use rusqlite::ErrorCode;
pub(crate) use rusqlite::{Connection, OptionalExtension, Result as SqlResult, Row as SqlRow, params};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Jobs that share a commit at most.
pub const JOBS_PER_COMMIT_MAX: usize = 64;
/// Jobs that wait at most; who brings more waits.
pub const JOBS_WAITING_MAX: usize = 256;
/// How long another reader of the file (a person with `sqlite3`) may hold it up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Layout of the tables; rises with every change of it.
const FORMAT: i64 = 1;
const FILE: &str = "agent.db";
const LOCK: &str = "agent.lock";
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
    #[error("cannot open {}: is the disk full, or the file not this user's?", path.display())]
    Open {
        /// The file.
        path: PathBuf,
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
    #[error("cannot write to the database; is the disk full?")]
    Write(#[source] Arc<rusqlite::Error>),
    /// The file was found damaged while in use.
    #[error("the database is damaged; it is set aside when the agent starts again")]
    Damaged(#[source] Arc<rusqlite::Error>),
    /// The database was closed.
    #[error("the database is closed")]
    Closed,
}

/// The open database. Clones share it; it closes when the last one is gone, or by [`Db::close`].
#[derive(Debug, Clone)]
pub struct Db {
    jobs: mpsc::Sender<Job>,
    damaged: CancellationToken,
}

impl Db {
    /// Opens the database of `device` in `dir`, making both if need be, with the tables of `schema`. `now` names a
    /// file that must be set aside. Blocks.
    ///
    /// # Errors
    /// Whatever keeps an agent from starting, said so that a person can act on it.
    pub fn open(dir: &Path, device: &DeviceKey, schema: &str, now: Timestamp) -> Result<Self, Error> {
        let lock = lock(dir)?;
        let path = dir.join(FILE);
        if marker(&path).exists() {
            set_aside(&path, now)?;
        }
        let connection = match connect(&path, schema) {
            Err(Error::Damaged(_)) => {
                set_aside(&path, now)?;
                connect(&path, schema)
            }
            other => other,
        }?;
        claim(&connection, dir, device)?;
        let (jobs, queue) = mpsc::channel(JOBS_WAITING_MAX);
        let damaged = CancellationToken::new();
        let writer =
            Writer { connection, queue, marker: marker(&path), damaged: damaged.clone(), _lock: lock };
        std::thread::Builder::new()
            .name("database".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| Error::Directory { dir: dir.to_owned(), source })?;
        Ok(Self { jobs, damaged })
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
        let request = Request { work: Some(work), outcome: None, sender };
        self.jobs.send(Job::Work(Box::new(request))).await.map_err(|_| Error::Closed)?;
        receiver.await.map_err(|_| Error::Closed)?
    }

    /// Finishes what waits, then closes the file and gives the directory free. Work brought later is refused.
    pub async fn close(&self) {
        let (sender, receiver) = oneshot::channel();
        if self.jobs.send(Job::Close(sender)).await.is_ok() {
            // An answer and its absence mean the same: the writer is gone.
            _ = receiver.await;
        }
    }

    /// Waits until the file is found damaged.
    pub async fn damaged(&self) {
        self.damaged.cancelled().await;
    }
}

enum Job {
    Work(Box<dyn Work>),
    Close(oneshot::Sender<()>),
}

/// Something to do in a transaction, and somebody who waits for it to be durable.
trait Work: Send {
    fn perform(&mut self, connection: &Connection) -> Result<(), Arc<rusqlite::Error>>;
    fn answer(self: Box<Self>, commit: Result<(), Arc<rusqlite::Error>>);
}

struct Request<T, F> {
    work: Option<F>,
    outcome: Option<Result<T, Arc<rusqlite::Error>>>,
    sender: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Work for Request<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> rusqlite::Result<T> + Send,
{
    fn perform(&mut self, connection: &Connection) -> Result<(), Arc<rusqlite::Error>> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let outcome = work(connection).map_err(Arc::new);
        let end = outcome.as_ref().map(drop).map_err(Arc::clone);
        self.outcome = Some(outcome);
        end
    }

    fn answer(self: Box<Self>, commit: Result<(), Arc<rusqlite::Error>>) {
        let answer = match (self.outcome, commit) {
            (Some(Err(error)), _) | (_, Err(error)) => Err(explain(error)),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(Error::Closed),
        };
        // Whoever asked may have given up; what was done is done.
        _ = self.sender.send(answer);
    }
}

struct Writer {
    connection: Connection,
    queue: mpsc::Receiver<Job>,
    marker: PathBuf,
    damaged: CancellationToken,
    _lock: File,
}

impl Writer {
    fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let (works, closing) = self.gather(first);
            self.commit(works);
            if let Some(done) = closing {
                drop(self);
                _ = done.send(());
                return;
            }
        }
    }

    /// What waits now, up to a request to close.
    fn gather(&mut self, first: Job) -> (Vec<Box<dyn Work>>, Option<oneshot::Sender<()>>) {
        let mut works = Vec::new();
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Close(done) => return (works, Some(done)),
                Job::Work(work) => works.push(work),
            }
            next = if works.len() < JOBS_PER_COMMIT_MAX { self.queue.try_recv().ok() } else { None };
        }
        (works, None)
    }

    /// Does all of it in one transaction, then answers.
    fn commit(&mut self, mut works: Vec<Box<dyn Work>>) {
        let end = transact(&mut self.connection, &mut works).map_err(Arc::new);
        if let Err(error) = &end
            && is_damage(error)
        {
            self.mark_damaged();
        }
        for work in works {
            work.answer(end.clone());
        }
    }

    /// Leaves a mark for the next start: damage that `quick_check` does not see must not be met again and again.
    fn mark_damaged(&self) {
        if let Err(error) = File::create(&self.marker) {
            tracing::error!(error = %error, db.marker = %self.marker.display(), "cannot mark the database as damaged");
        }
        self.damaged.cancel();
    }
}

/// One transaction for all; whoever fails is undone alone, unless the file itself is damaged.
fn transact(connection: &mut Connection, works: &mut [Box<dyn Work>]) -> rusqlite::Result<()> {
    let mut transaction = connection.transaction()?;
    for work in works {
        let savepoint = transaction.savepoint()?;
        match work.perform(&savepoint) {
            Ok(()) => savepoint.commit()?,
            // A full disk may undo the whole transaction. What ran after that would be kept, and yet be answered with
            // the failure of the commit.
            Err(error) if is_damage(&error) || savepoint.is_autocommit() => {
                return Err(rusqlite::Error::SqliteFailure(code_of(&error), None));
            }
            // A savepoint that is dropped is rolled back.
            Err(_) => {}
        }
    }
    transaction.commit()
}

fn lock(dir: &Path) -> Result<File, Error> {
    let unusable = |source| Error::Directory { dir: dir.to_owned(), source };
    std::fs::create_dir_all(dir).map_err(unusable)?;
    let mut options = File::options();
    let path = dir.join(LOCK);
    let mut file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // Only for the message: a lock that cannot be read is held all the same.
            _ = file.read_to_string(&mut holder);
            let holder =
                holder.trim().parse::<u32>().map(|pid| format!(" (process {pid})")).unwrap_or_default();
            return Err(Error::InUse { dir: dir.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(unusable)?;
    Ok(file)
}

/// Opens the file, checks it and sees to its tables.
fn connect(path: &Path, schema: &str) -> Result<Connection, Error> {
    let failed = |source: rusqlite::Error| {
        if is_damage(&source) {
            Error::Damaged(Arc::new(source))
        } else {
            Error::Open { path: path.to_owned(), source }
        }
    };
    let connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
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
    let tables = format!(
        "BEGIN; {schema} CREATE TABLE IF NOT EXISTS owner (device TEXT NOT NULL); PRAGMA user_version={FORMAT}; COMMIT;"
    );
    connection.execute_batch(&tables).map_err(failed)?;
    Ok(connection)
}

/// Writes the device into a new database; refuses another device's.
fn claim(connection: &Connection, dir: &Path, device: &DeviceKey) -> Result<(), Error> {
    let failed = |source| Error::Open { path: dir.join(FILE), source };
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

fn marker(path: &Path) -> PathBuf {
    suffixed(path, ".damaged")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Moves the file and its companions to a name of their own. The mark goes last: until then a crash repeats this.
fn set_aside(path: &Path, now: Timestamp) -> Result<(), Error> {
    let failed = |source| Error::SetAside { path: path.to_owned(), source };
    let stamp = now.strftime("%Y%m%dT%H%M%SZ");
    let names = (0..).map(|attempt| match attempt {
        0 => suffixed(path, &format!(".damaged-{stamp}")),
        more => suffixed(path, &format!(".damaged-{stamp}-{more}")),
    });
    // An endless supply of names: one of them is free.
    let Some(aside) = names.into_iter().find(|name| !name.exists()) else { return Ok(()) };
    for companion in ["-wal", "-shm", ""] {
        match std::fs::rename(suffixed(path, companion), suffixed(&aside, companion)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    tracing::error!(
        db.path = %path.display(), db.aside = %aside.display(),
        "the database is damaged: it was set aside, a new one begins a new epoch"
    );
    match std::fs::remove_file(marker(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

fn explain(error: Arc<rusqlite::Error>) -> Error {
    if is_damage(&error) { Error::Damaged(error) } else { Error::Write(error) }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// What a table holds is not what this program writes: the same as any other damage.
pub(crate) fn corrupt(table: &str, error: &dyn std::error::Error) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(format!("table {table}: {error}")))
}

fn code_of(error: &rusqlite::Error) -> rusqlite::ffi::Error {
    let generic = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ERROR);
    error.sqlite_error().copied().unwrap_or(generic)
}

#[cfg(test)]
mod tests;
