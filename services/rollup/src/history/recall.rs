//! The past on request: one rebuild at a time, a queue with an end, and the last few points kept for who asks on. Memory
//! is bounded by that: beside the live fold at most as many as are kept (for operators, and as many for all others), the one that is being made, and one of which a missing checkpoint is
//! made while nobody asks ([`fill`](super::fill)).
//!
//! Whoever asks waits for a while. A rebuild that takes longer goes on, and the answer until then is how far it is: ask
//! again, and what was made meanwhile is there.
//!
//! Requesters have fair shares: rebuilds wait in a queue of [`WAITING`] that is served round robin by requester, questions wait at
//! [`ASKERS`] places, and nobody's points push out an operator's.

mod shelf;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_bus::{Bus, Place, Places, Requester, RequesterBounds};
use muster_contract::Timestamp;
use muster_contract::history::VerifyAnswer;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_service::fair::{Exceeded, FairQueue};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::shelf::{Entry, Job, Shelf, Stage};
use super::archive::Archive;
use super::fill::Filler;
use super::rebuild::{Past, Rebuilder};
use super::verify;
use crate::metrics::{Metrics, RecallResult};
use crate::present::Present;

/// Rebuilds that wait for their turn: in all, of one requester, and for operators alone.
const WAITING: RequesterBounds = RequesterBounds::new(8, 3, 2);
/// Questions that wait at once: in all, of one requester, and for operators alone. Whoever comes beyond is told at once how far
/// it is: the service has room for other questions.
const ASKERS: RequesterBounds = RequesterBounds::new(16, 6, 4);
/// How long one rebuild may take.
const REBUILD_MAX: Duration = Duration::from_secs(10 * 60);
/// How long one question waits for it: less than people's programs wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The fold as of a fact.
    At(u64),
    /// What was known with `by` of a moment with which `then` had come.
    About {
        /// The moment.
        moment: Timestamp,
        /// The last fact stored at or before it.
        then: u64,
        /// Known with this fact.
        by: u64,
    },
    /// Whether a rebuild says the same as what runs.
    Verified,
}

/// What is asked for, and whether its end is only that it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// What it is at this moment.
    pub wanted: Wanted,
    /// No end was named: what was begun as the present a moment ago serves as well, if it knows of this fact.
    pub now_since: Option<u64>,
}

impl From<Wanted> for Asked {
    fn from(wanted: Wanted) -> Self {
        Self { wanted, now_since: None }
    }
}

/// What was made.
#[derive(Debug, Clone)]
pub enum Made {
    /// A point of the past.
    Past(Arc<Past>),
    /// A comparison.
    Verified(Arc<VerifyAnswer>),
}

/// Where a rebuild says how far it is.
#[derive(Debug)]
pub struct Progress(watch::Sender<Stage>);

impl Progress {
    /// LEDGER is read so far, of so much.
    pub fn read(&self, at: u64, to: u64) {
        self.0.send_replace(Stage::Reading { at, to });
    }
}

/// Who answers about the past. Clones share everything.
#[derive(Debug, Clone)]
pub struct Recall {
    present: Arc<Present>,
    shelf: Arc<Mutex<Shelf>>,
    /// Says that something waits.
    work: Arc<Notify>,
    places: Places,
    /// Who asks.
    requester: Requester,
}

/// Who makes it.
#[derive(Debug)]
pub struct Maker {
    bus: Bus,
    present: Arc<Present>,
    archive: Arc<Archive>,
    metrics: Metrics,
    shelf: Arc<Mutex<Shelf>>,
    work: Arc<Notify>,
    /// What is done where nobody asks.
    filler: Filler,
}

/// Who answers and who makes; the latter fills in checkpoints where they lie more than so many `facts` apart.
pub fn pair(
    bus: Bus,
    present: Arc<Present>,
    archive: Arc<Archive>,
    metrics: Metrics,
    facts: u64,
) -> (Recall, Maker) {
    let origin = present.look(|now| now.origin);
    let waiting = FairQueue::default();
    let shelf = Arc::new(Mutex::new(Shelf { origin, entries: Vec::new(), waiting, is_ended: false }));
    let work = Arc::new(Notify::new());
    let recall = Recall {
        present: Arc::clone(&present),
        shelf: Arc::clone(&shelf),
        work: Arc::clone(&work),
        places: Places::new(ASKERS),
        requester: Requester::Unverified,
    };
    let filler = Filler::new(bus.clone(), Arc::clone(&present), Arc::clone(&archive), metrics.clone(), facts);
    (recall, Maker { bus, present, archive, metrics, shelf, work, filler })
}

impl Recall {
    /// The same for the questions of a requester.
    #[must_use]
    pub fn for_requester(self, requester: Requester) -> Self {
        Self { requester, ..self }
    }

    /// A point of the past, as soon as it is made, or how far it is at `deadline`.
    ///
    /// # Errors
    /// What is in the way, for the asker.
    pub async fn past(&self, asked: Asked, deadline: Instant) -> Result<Arc<Past>, ErrorBody> {
        match self.made(asked, deadline).await? {
            Made::Past(past) => Ok(past),
            Made::Verified(_) => Err(internal("a comparison is no point of the past")),
        }
    }

    /// A comparison of a rebuild with what runs.
    ///
    /// # Errors
    /// As [`Self::past`].
    pub async fn verified(&self, deadline: Instant) -> Result<Arc<VerifyAnswer>, ErrorBody> {
        match self.made(Wanted::Verified.into(), deadline).await? {
            Made::Verified(answer) => Ok(answer),
            Made::Past(_) => Err(internal("a point of the past is no comparison")),
        }
    }

    /// A place for one who waits, from the first look into LEDGER on; none where as many wait as may. Who has none has no
    /// time: what is not there at once is not waited for.
    pub fn place(&self) -> Option<Place> {
        self.places.enter(&self.requester).ok()
    }

    async fn made(&self, asked: Asked, deadline: Instant) -> Result<Made, ErrorBody> {
        let mut stage = self.enter(asked)?;
        let done = timeout_at(deadline, stage.wait_for(|stage| matches!(stage, Stage::Done(_)))).await;
        if let Ok(Err(_)) = done {
            return Err(ending());
        }
        drop(done);
        let stage = stage.borrow().clone();
        match stage {
            Stage::Done(made) => made,
            Stage::Waiting => Err(not_ready(
                "other points of the past are being rebuilt first; ask again in a moment".to_owned(),
            )),
            Stage::Reading { at, to } => {
                Err(not_ready(format!("rebuilding: ledger {at} of {to} is read; ask again in a moment")))
            }
        }
    }

    /// Finds a thing on the shelf, or has it made.
    fn enter(&self, asked: Asked) -> Result<watch::Receiver<Stage>, ErrorBody> {
        let origin = self.present.look(|now| now.origin);
        let mut shelf = locked(&self.shelf);
        if shelf.origin != origin {
            (shelf.origin, shelf.entries) = (origin, Vec::new());
        }
        shelf.tidy();
        if let Some(entry) = shelf.find(asked) {
            if entry.is_kept() {
                entry.asked_at = Instant::now();
            }
            return Ok(entry.stage.clone());
        }
        let (progress, stage) = watch::channel(Stage::Waiting);
        let (wanted, of_now) = (asked.wanted, asked.now_since.is_some());
        let job = Job { wanted, origin, progress: Progress(progress) };
        if shelf.is_ended {
            return Err(ending());
        }
        let requester = self.requester.clone();
        let queued = shelf.waiting.push(requester.clone(), WAITING.share(&requester), job);
        queued.map_err(|(_, exceeded)| too_many(exceeded))?;
        self.work.notify_one();
        let (stage_of, asked_at) = (stage.clone(), Instant::now());
        shelf.entries.push(Entry { wanted, requester, of_now, stage: stage_of, asked_at, done_at: None });
        Ok(stage)
    }
}

impl Maker {
    /// Makes what is asked for, one after the other, until `stop`. Where nobody asks, what is missing is filled in, as long as
    /// facts are taken in.
    pub async fn run(mut self, stop: CancellationToken, intake: CancellationToken) {
        while let Some(next) = stop.run_until_cancelled(timeout(self.filler.rest(), self.next_job())).await {
            match next {
                Ok(job) => {
                    stop.run_until_cancelled(Box::pin(self.make(job))).await;
                    self.filler.give_way();
                }
                Err(_) => {
                    if intake.run_until_cancelled(self.filler.step()).await.is_none() {
                        self.filler.end();
                    }
                }
            }
            locked(&self.shelf).tidy();
        }
    }

    /// The next of what waits, in the requesters' turns. Cancel-safe.
    async fn next_job(&self) -> Job {
        loop {
            let next = locked(&self.shelf).waiting.pop();
            if let Some((_, job)) = next {
                return job;
            }
            self.work.notified().await;
        }
    }

    async fn make(&self, job: Job) {
        let Job { wanted, origin, progress } = job;
        let begun = Instant::now();
        let rebuilder = Rebuilder::new(self.bus.clone(), Arc::clone(&self.archive), origin);
        let making = async {
            match wanted {
                Wanted::At(seq) => {
                    let fleet = rebuilder.at(seq, &progress).await?;
                    Ok(Made::Past(Arc::new(Past { fleet, hindsight: None })))
                }
                Wanted::About { moment, then, by } => {
                    let past = rebuilder.about(moment, then, by, &progress).await?;
                    Ok(Made::Past(Arc::new(past)))
                }
                Wanted::Verified => {
                    let answer = verify::compare(&rebuilder, &self.present, &self.archive, &progress).await?;
                    Ok(Made::Verified(Arc::new(answer)))
                }
            }
        };
        let made = timeout(REBUILD_MAX, making).await.unwrap_or_else(|_| Err(too_long()));
        let result = if made.is_ok() { RecallResult::Reached } else { RecallResult::Failed };
        self.metrics.recall(result);
        self.metrics.recall_seconds.set(begun.elapsed().as_secs_f64());
        tracing::debug!(?wanted, ok = made.is_ok(), seconds = begun.elapsed().as_secs_f64(), "rebuilt");
        // Its time counts from when it was done.
        let mut shelf = locked(&self.shelf);
        let entry = shelf.entries.iter_mut().find(|entry| entry.wanted == wanted);
        let now = Instant::now();
        entry.into_iter().for_each(|entry| (entry.asked_at, entry.done_at) = (now, Some(now)));
        progress.0.send_replace(Stage::Done(made));
    }
}

impl Drop for Maker {
    /// Whoever waits is told that nothing is made any more.
    fn drop(&mut self) {
        let mut shelf = locked(&self.shelf);
        shelf.is_ended = true;
        shelf.waiting.clear();
    }
}

/// Entries are whole at any moment, so a panic elsewhere leaves no half of one.
fn locked(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_ready(message: String) -> ErrorBody {
    ErrorBody { code: ErrorCode::NotReady, message }
}

fn too_many(exceeded: Exceeded) -> ErrorBody {
    match exceeded {
        Exceeded::Key(bound) => ErrorBody {
            code: ErrorCode::TooManyRequests,
            message: format!(
                "{bound} points of the past that you asked for wait to be rebuilt, which is as many as one requester may have; ask again when they are answered"
            ),
        },
        Exceeded::All(bound) => not_ready(format!(
            "{bound} points of the past are waiting to be rebuilt, which is as many as may; ask again in a moment"
        )),
    }
}

fn ending() -> ErrorBody {
    not_ready("the rollup is ending; ask again in a moment".to_owned())
}

fn internal(message: &str) -> ErrorBody {
    ErrorBody { code: ErrorCode::Internal, message: message.to_owned() }
}

fn too_long() -> ErrorBody {
    internal(
        "the rebuild took too long and was given up: choose a point nearer to the present, or nearer after a checkpoint",
    )
}

#[cfg(test)]
mod tests;
