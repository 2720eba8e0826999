//! The one thread that touches the file: takes what waits, commits once, answers all.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Connection, Error, JOBS_PER_COMMIT_MAX, SqlError, SqlResult, code_of, explain, is_damage};

/// How often the thread gives way at most, in all of one commit, to those who were answered together the last time: far
/// less time than a commit takes.
const YIELDS_MAX: u32 = 256;

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

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) queue: mpsc::Receiver<Job>,
    pub(super) path: Arc<Path>,
    pub(super) marker: PathBuf,
    pub(super) damaged: CancellationToken,
    /// Jobs of the last commit.
    pub(super) last: usize,
    pub(super) _lock: File,
}

impl Writer {
    pub(super) fn run(mut self) {
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
        let mut patience = YIELDS_MAX;
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
        self.last = works.len();
        (works, None)
    }

    /// The next job if it is there. Those who were answered together bring their next jobs one after another: the first
    /// of them must not have a commit of its own.
    fn follower(&mut self, gathered: usize, patience: &mut u32) -> Option<Job> {
        loop {
            match self.queue.try_recv() {
                Ok(job) => return Some(job),
                Err(_) if gathered >= self.last || *patience == 0 => return None,
                Err(_) => {
                    *patience -= 1;
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Does all of it in one transaction, then answers.
    fn commit(&mut self, works: Vec<Box<dyn Work>>) {
        if let Err(error) = carry_out(&mut self.connection, &self.path, works)
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

/// Does all of it in one transaction, then answers.
pub(super) fn carry_out(
    connection: &mut Connection,
    path: &Arc<Path>,
    mut works: Vec<Box<dyn Work>>,
) -> Result<(), Arc<SqlError>> {
    let end = transact(connection, &mut works).map_err(Arc::new);
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
