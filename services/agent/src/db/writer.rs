//! The one connection that touches the file, and the thread that takes what waits, commits once, and answers all.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Connection, Error, JOBS_PER_COMMIT_MAX, SqlError, SqlResult, Undone, code_of, explain, is_damage,
};

/// How often, and for how long, the thread gives way at most, in all of one commit, to those who were answered together
/// the last time: less time than a commit takes. On a busy machine a single turn may take longer than all of that.
const YIELDS_MAX: u32 = 256;
/// See [`YIELDS_MAX`].
const YIELDING_MAX: Duration = Duration::from_micros(200);

/// What the thread is asked.
pub(super) enum Job {
    Work(Box<dyn Work>),
    Close(oneshot::Sender<()>),
}

/// Something to do in a transaction, and somebody who waits for it to be durable.
pub(super) trait Work: Send {
    fn perform(&mut self, connection: &Connection) -> Result<(), Arc<SqlError>>;
    fn answer(self: Box<Self>, path: &Arc<Path>, commit: Result<(), Arc<SqlError>>);
}

pub(super) struct Request<T, F> {
    pub(super) work: Option<F>,
    pub(super) outcome: Option<Result<T, Arc<SqlError>>>,
    pub(super) sender: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Work for Request<T, F>
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
            (Some(Err(error)), _) | (_, Err(error)) => Err(explain(path, error)),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(Error::Closed),
        };
        // Whoever asked may have given up; what was done is done.
        _ = self.sender.send(answer);
    }
}

/// The open file.
pub(super) struct Store {
    pub(super) connection: Connection,
    pub(super) path: Arc<Path>,
    pub(super) marker: PathBuf,
    pub(super) damaged: CancellationToken,
    pub(super) undone: Undone,
    pub(super) _lock: File,
}

impl Store {
    /// Does all of it in one transaction, then answers.
    pub(super) fn commit(&mut self, works: Vec<Box<dyn Work>>) {
        if let Err(error) = carry_out(&mut self.connection, &self.path, &self.undone, works)
            && is_damage(&error)
        {
            self.mark_damaged();
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

/// The open file for whoever is to work with it; gone once it is closed.
#[derive(Clone)]
pub(super) struct Desk {
    store: Arc<Mutex<Option<Store>>>,
    /// Jobs of the last commit.
    last: Arc<AtomicUsize>,
}

impl Desk {
    pub(super) fn new(store: Store) -> Self {
        Self { store: Arc::new(Mutex::new(Some(store))), last: Arc::default() }
    }

    /// The file, if nobody works with it and nobody who did so in company may come back.
    pub(super) fn free(&self) -> Option<MutexGuard<'_, Option<Store>>> {
        if self.last.load(Ordering::Relaxed) > 1 {
            return None;
        }
        match self.store.try_lock() {
            Ok(store) => Some(store),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whoever panicked left a transaction behind, and that is undone.
    fn wait(&self) -> MutexGuard<'_, Option<Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread.
pub(super) struct Writer {
    pub(super) desk: Desk,
    pub(super) queue: mpsc::Receiver<Job>,
}

impl Writer {
    pub(super) fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let desk = self.desk.clone();
            let mut store = desk.wait();
            let (works, closing) = self.gather(first);
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

    /// What waits now, up to a request to close.
    fn gather(&mut self, first: Job) -> (Vec<Box<dyn Work>>, Option<oneshot::Sender<()>>) {
        let mut works = Vec::new();
        let mut next = Some(first);
        let mut patience = Patience::new();
        while let Some(job) = next {
            match job {
                Job::Close(done) => return (works, Some(done)),
                Job::Work(work) => works.push(work),
            }
            next = if works.len() < JOBS_PER_COMMIT_MAX {
                self.follower(works.len(), &mut patience)
            } else {
                None
            };
        }
        self.desk.last.store(works.len(), Ordering::Relaxed);
        (works, None)
    }

    /// The next job if it is there. Those who were answered together bring their next jobs one after another: the first
    /// of them must not have a commit of its own.
    fn follower(&mut self, gathered: usize, patience: &mut Patience) -> Option<Job> {
        let company = self.desk.last.load(Ordering::Relaxed);
        loop {
            match self.queue.try_recv() {
                Ok(job) => return Some(job),
                Err(_) if gathered >= company || !patience.holds() => return None,
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

/// What is left of the time that the thread gives way.
struct Patience {
    yields: u32,
    until: Option<Instant>,
}

impl Patience {
    const fn new() -> Self {
        Self { yields: YIELDS_MAX, until: None }
    }

    /// True as long as it may give way once more; the time begins when it is asked first.
    fn holds(&mut self) -> bool {
        let now = Instant::now();
        self.yields = self.yields.saturating_sub(1);
        self.yields > 0 && now < *self.until.get_or_insert(now + YIELDING_MAX)
    }
}

/// Counts as undone what does not end well, also where whoever works panics.
struct Undoing<'a>(Option<&'a Undone>);

impl Undoing<'_> {
    fn ended(mut self, well: bool) {
        self.0 = self.0.filter(|_| !well);
    }
}

impl Drop for Undoing<'_> {
    fn drop(&mut self) {
        if let Some(undone) = self.0 {
            undone.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Does all of it in one transaction, then answers.
pub(super) fn carry_out(
    connection: &mut Connection,
    path: &Arc<Path>,
    undone: &Undone,
    mut works: Vec<Box<dyn Work>>,
) -> Result<(), Arc<SqlError>> {
    let undoing = Undoing(Some(undone));
    let end = transact(connection, &mut works).map_err(Arc::new);
    undoing.ended(end.is_ok());
    for work in works {
        work.answer(path, end.clone());
    }
    end
}

/// One transaction for all; whoever fails is undone alone, unless the file itself is damaged.
fn transact(connection: &mut Connection, works: &mut [Box<dyn Work>]) -> SqlResult<()> {
    if !connection.is_autocommit() {
        // Left over where even undoing failed: it must not bar everything that comes after it.
        connection.execute_batch("ROLLBACK")?;
    }
    let mut transaction = connection.transaction()?;
    if let [only] = works {
        // Nobody else could be kept: the transaction is its savepoint.
        return match only.perform(&transaction) {
            Ok(()) => transaction.commit(),
            Err(error) => Err(SqlError::SqliteFailure(code_of(&error), None)),
        };
    }
    for work in works {
        let savepoint = transaction.savepoint()?;
        match work.perform(&savepoint) {
            Ok(()) => savepoint.commit()?,
            // A full disk may undo the whole transaction. What ran after that would be kept, and yet be answered with
            // the failure of the commit.
            Err(error) if is_damage(&error) || savepoint.is_autocommit() => {
                return Err(SqlError::SqliteFailure(code_of(&error), None));
            }
            // A savepoint that is dropped is rolled back.
            Err(_) => {}
        }
    }
    transaction.commit()
}
