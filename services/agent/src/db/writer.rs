//! Owns the connection to the file, and runs the thread that collects the waiting jobs, commits once and answers all.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Connection, Error, JOBS_PER_COMMIT_MAX, RollbackCount, SqlError, SqlResult, code_of, is_damage,
    write_error,
};

/// The most yields, per commit, to callers that were answered together the last time.
const YIELDS_MAX: u32 = 256;
/// The most time for these yields: less than a commit takes. On a busy machine one yield may take longer.
const YIELDING_MAX: Duration = Duration::from_micros(200);

/// A job of the thread.
pub(super) enum Job {
    Work(Box<dyn Work>),
    Close(oneshot::Sender<()>),
}

/// Work in a transaction, and a caller that waits for its commit.
pub(super) trait Work: Send {
    fn perform(&mut self, connection: &Connection) -> Result<(), Arc<SqlError>>;
    fn answer(self: Box<Self>, path: &Arc<Path>, commit: Result<(), Arc<SqlError>>);
}

pub(super) struct WorkRequest<T, F> {
    pub(super) work: Option<F>,
    pub(super) outcome: Option<Result<T, Arc<SqlError>>>,
    pub(super) sender: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Work for WorkRequest<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> SqlResult<T> + Send,
{
    fn perform(&mut self, connection: &Connection) -> Result<(), Arc<SqlError>> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let outcome = work(connection).map_err(Arc::new);
        let end = outcome.as_ref().map(drop).map_err(Arc::clone);
        self.outcome = Some(outcome);
        end
    }

    fn answer(self: Box<Self>, path: &Arc<Path>, commit: Result<(), Arc<SqlError>>) {
        let answer = match (self.outcome, commit) {
            (Some(Err(error)), _) | (_, Err(error)) => Err(write_error(path, error)),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(Error::Closed),
        };
        // The caller may have given up; the work is done.
        _ = self.sender.send(answer);
    }
}

/// The open file.
pub(super) struct DatabaseFile {
    pub(super) connection: Connection,
    pub(super) path: Arc<Path>,
    pub(super) marker: PathBuf,
    pub(super) damaged: CancellationToken,
    pub(super) rollbacks: RollbackCount,
    pub(super) _lock: File,
}

impl DatabaseFile {
    /// Runs all work in one transaction, then answers.
    pub(super) fn commit(&mut self, works: Vec<Box<dyn Work>>) {
        if let Err(error) = commit_all(&mut self.connection, &self.path, &self.rollbacks, works)
            && is_damage(&error)
        {
            self.mark_damaged();
        }
    }

    /// Marks the file for the next start: damage that `quick_check` does not find must not be met again and again.
    fn mark_damaged(&self) {
        if let Err(error) = File::create(&self.marker) {
            tracing::error!(error = %error, db.marker = %self.marker.display(), "cannot mark the database as damaged");
        }
        self.damaged.cancel();
    }
}

/// The open file, shared by the thread and callers; `None` once it is closed.
#[derive(Clone)]
pub(super) struct SharedFile {
    store: Arc<Mutex<Option<DatabaseFile>>>,
    /// Jobs of the last commit.
    last_jobs: Arc<AtomicUsize>,
}

impl SharedFile {
    pub(super) fn new(store: DatabaseFile) -> Self {
        Self { store: Arc::new(Mutex::new(Some(store))), last_jobs: Arc::default() }
    }

    /// The file, if it is unlocked and no caller of a shared commit may send its next job.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Option<DatabaseFile>>> {
        if self.last_jobs.load(Ordering::Relaxed) > 1 {
            return None;
        }
        match self.store.try_lock() {
            Ok(store) => Some(store),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the file. A panicking job leaves a transaction behind; the next commit rolls it back.
    fn lock(&self) -> MutexGuard<'_, Option<DatabaseFile>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of the database.
pub(super) struct Writer {
    pub(super) file: SharedFile,
    pub(super) queue: mpsc::Receiver<Job>,
}

impl Writer {
    pub(super) fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let file = self.file.clone();
            let mut store = file.lock();
            let (works, closing) = self.collect(first);
            if let Some(store) = store.as_mut() {
                store.commit(works);
            }
            if let Some(done) = closing {
                *store = None;
                _ = done.send(());
                return;
            }
        }
    }

    /// The waiting jobs, up to a request to close.
    fn collect(&mut self, first: Job) -> (Vec<Box<dyn Work>>, Option<oneshot::Sender<()>>) {
        let mut works = Vec::new();
        let mut next = Some(first);
        let mut budget = YieldBudget::new();
        while let Some(job) = next {
            match job {
                Job::Close(done) => return (works, Some(done)),
                Job::Work(work) => works.push(work),
            }
            next = if works.len() < JOBS_PER_COMMIT_MAX {
                self.next_job(works.len(), &mut budget)
            } else {
                None
            };
        }
        self.file.last_jobs.store(works.len(), Ordering::Relaxed);
        (works, None)
    }

    /// The next job, if there is one. Callers that were answered together send their next jobs one after another: the
    /// first must not get a commit of its own.
    fn next_job(&mut self, gathered: usize, budget: &mut YieldBudget) -> Option<Job> {
        let expected = self.file.last_jobs.load(Ordering::Relaxed);
        loop {
            match self.queue.try_recv() {
                Ok(job) => return Some(job),
                Err(_) if gathered >= expected || !budget.holds() => return None,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// The remaining yields of the thread.
struct YieldBudget {
    yields: u32,
    until: Option<Instant>,
}

impl YieldBudget {
    const fn new() -> Self {
        Self { yields: YIELDS_MAX, until: None }
    }

    /// Whether it may yield once more; the time begins at the first call.
    fn holds(&mut self) -> bool {
        let now = Instant::now();
        self.yields = self.yields.saturating_sub(1);
        self.yields > 0 && now < *self.until.get_or_insert(now + YIELDING_MAX)
    }
}

/// Counts a rollback when it is dropped, unless the transaction was committed; also when a job panics.
struct RollbackGuard<'a>(Option<&'a RollbackCount>);

impl RollbackGuard<'_> {
    fn ended(mut self, well: bool) {
        self.0 = self.0.filter(|_| !well);
    }
}

impl Drop for RollbackGuard<'_> {
    fn drop(&mut self) {
        if let Some(rollbacks) = self.0 {
            rollbacks.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs all work in one transaction, then answers.
pub(super) fn commit_all(
    connection: &mut Connection,
    path: &Arc<Path>,
    rollbacks: &RollbackCount,
    mut works: Vec<Box<dyn Work>>,
) -> Result<(), Arc<SqlError>> {
    let guard = RollbackGuard(Some(rollbacks));
    let end = transact(connection, &mut works).map_err(Arc::new);
    guard.ended(end.is_ok());
    for work in works {
        work.answer(path, end.clone());
    }
    end
}

/// One transaction for all; a failing job is rolled back alone, unless the file is damaged.
fn transact(connection: &mut Connection, works: &mut [Box<dyn Work>]) -> SqlResult<()> {
    if !connection.is_autocommit() {
        // A rollback failed earlier: it must not block everything after it.
        connection.execute_batch("ROLLBACK")?;
    }
    let mut transaction = connection.transaction()?;
    if let [only] = works {
        // No other job could be kept: the transaction is its savepoint.
        return match only.perform(&transaction) {
            Ok(()) => transaction.commit(),
            Err(error) => Err(SqlError::SqliteFailure(code_of(&error), None)),
        };
    }
    for work in works {
        let savepoint = transaction.savepoint()?;
        match work.perform(&savepoint) {
            Ok(()) => savepoint.commit()?,
            // A full disk may roll back the whole transaction. Jobs after that would be committed, and yet be
            // answered with the failure of the commit.
            Err(error) if is_damage(&error) || savepoint.is_autocommit() => {
                return Err(SqlError::SqliteFailure(code_of(&error), None));
            }
            // A savepoint that is dropped is rolled back.
            Err(_) => {}
        }
    }
    transaction.commit()
}
