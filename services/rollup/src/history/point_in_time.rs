//! Rebuilds the past on request: one rebuild at a time, a bounded queue, and a cache of the last few points.
//!
//! This bounds memory: beside the live fold there are at most the cached folds (some for operators, as many for
//! all others), the one being rebuilt, and one for a missing checkpoint ([`backfill`](super::backfill)).
//!
//! A requester waits for a limited time. A longer rebuild continues, and the answer then reports its progress;
//! the next request finds the result.
//!
//! Requesters have fair shares: the queue of [`WAITING`] rebuilds is served round robin by requester, questions
//! wait at [`ASKERS`] places, and no other user's points evict an operator's.

mod rebuild_cache;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_bus::{Bus, Permit, Permits, Requester, RequesterBounds};
use muster_contract::Timestamp;
use muster_contract::history::VerifyAnswer;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_domain::fold::ChangeRecord;
use muster_service::fair::{Exceeded, FairQueue};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use self::rebuild_cache::{CachedRebuild, RebuildCache, RebuildJob, RebuildStage};
use super::archive::Archive;
use super::backfill::Backfill;
use super::progress::ReadProgress;
use super::rebuild::{Past, Rebuilder};
use super::verify;
use crate::metrics::{Metrics, RebuildResult};
use crate::projection::Projection;

/// Rebuilds that wait for their turn: in all, of one requester, and for operators alone.
const WAITING: RequesterBounds = RequesterBounds::new(8, 3, 2);
/// Questions that wait at once: in total, for one requester, and for operators alone. A question beyond that
/// gets the progress at once, so that the service has room for others.
const ASKERS: RequesterBounds = RequesterBounds::new(16, 6, 4);
/// How long one rebuild may take.
const REBUILD_MAX: Duration = Duration::from_secs(10 * 60);
/// How long one question waits for it: less than people's programs wait for an answer.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A point that can be rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildTarget {
    /// The fold as of a fact.
    At(u64),
    /// The state at the event time for which `then` is the last fact, as known at the fact `by`.
    EventTime {
        /// The moment.
        moment: Timestamp,
        /// The last fact stored at or before it.
        then: u64,
        /// Known with this fact.
        by: u64,
    },
    /// The changes after one fact up to another.
    Changes {
        /// The earlier fact.
        from: u64,
        /// The later one.
        to: u64,
    },
    /// The changes after one fact up to another, as far as they can still be rebuilt.
    Remaining {
        /// The earlier fact.
        from: u64,
        /// The later one.
        to: u64,
    },
    /// Whether a rebuild says the same as what runs.
    Verified,
}

/// A rebuild target, and whether it is only the present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuildRequest {
    /// The target, as of this moment.
    pub wanted: RebuildTarget,
    /// The request named no end: a recent rebuild of the present serves as well if it contains this fact.
    pub now_since: Option<u64>,
}

impl From<RebuildTarget> for RebuildRequest {
    fn from(wanted: RebuildTarget) -> Self {
        Self { wanted, now_since: None }
    }
}

/// The result of a rebuild.
#[derive(Debug, Clone)]
pub enum Rebuilt {
    /// A point of the past.
    Past(Arc<Past>),
    /// Changes between two points.
    Changes(Arc<ChangeRecord>),
    /// Changes as far as they can still be rebuilt; none if LEDGER has forgotten all of them.
    Remaining(Option<Arc<ChangeRecord>>),
    /// A comparison.
    Verified(Arc<VerifyAnswer>),
}

/// Reports the progress of a rebuild.
#[derive(Debug)]
pub struct Progress(watch::Sender<RebuildStage>);

impl ReadProgress for Progress {
    fn read(&self, at: u64, to: u64) {
        self.0.send_replace(RebuildStage::Reading { at, to });
    }
}

/// Answers questions about the past. Clones share everything.
#[derive(Debug, Clone)]
pub struct Rebuilds {
    projection: Arc<Projection>,
    rebuild_cache: Arc<Mutex<RebuildCache>>,
    /// Says that something waits.
    work: Arc<Notify>,
    places: Permits,
    /// The requester.
    requester: Requester,
}

/// Performs the rebuilds.
#[derive(Debug)]
pub struct RebuildWorker {
    bus: Bus,
    projection: Arc<Projection>,
    archive: Arc<Archive>,
    metrics: Metrics,
    rebuild_cache: Arc<Mutex<RebuildCache>>,
    work: Arc<Notify>,
    /// The backfill, which works while no question waits.
    filler: Backfill,
}

/// Creates the responder and the worker; the worker makes missing checkpoints where they lie more than so many
/// `facts` apart.
pub fn pair(
    bus: Bus,
    projection: Arc<Projection>,
    archive: Arc<Archive>,
    metrics: Metrics,
    facts: u64,
) -> (Rebuilds, RebuildWorker) {
    let origin = projection.read(|now| now.origin);
    let waiting = FairQueue::default();
    let rebuild_cache =
        Arc::new(Mutex::new(RebuildCache { origin, entries: Vec::new(), waiting, is_ended: false }));
    let work = Arc::new(Notify::new());
    let rebuilds = Rebuilds {
        projection: Arc::clone(&projection),
        rebuild_cache: Arc::clone(&rebuild_cache),
        work: Arc::clone(&work),
        places: Permits::new(ASKERS),
        requester: Requester::Unverified,
    };
    let filler =
        Backfill::new(bus.clone(), Arc::clone(&projection), Arc::clone(&archive), metrics.clone(), facts);
    (rebuilds, RebuildWorker { bus, projection, archive, metrics, rebuild_cache, work, filler })
}

impl Rebuilds {
    /// The same for the questions of a requester.
    #[must_use]
    pub(crate) fn for_requester(self, requester: Requester) -> Self {
        Self { requester, ..self }
    }

    /// Returns a point of the past as soon as it is rebuilt, or its progress at `deadline`.
    ///
    /// # Errors
    /// The obstacle, for the asker.
    pub async fn past(&self, asked: RebuildRequest, deadline: Instant) -> Result<Arc<Past>, ErrorBody> {
        match self.made(asked, deadline).await? {
            Rebuilt::Past(past) => Ok(past),
            _ => Err(internal("this is no point of the past")),
        }
    }

    /// The changes after one fact up to another.
    ///
    /// # Errors
    /// As [`Self::past`].
    pub async fn changes(
        &self,
        from: u64,
        to: u64,
        deadline: Instant,
    ) -> Result<Arc<ChangeRecord>, ErrorBody> {
        match self.made(RebuildTarget::Changes { from, to }.into(), deadline).await? {
            Rebuilt::Changes(record) => Ok(record),
            _ => Err(internal("these are no changes")),
        }
    }

    /// The changes after one fact up to another, from the first point that can be rebuilt on; none if there is none.
    ///
    /// # Errors
    /// As [`Self::past`].
    pub(crate) async fn remaining_changes(
        &self,
        from: u64,
        to: u64,
        deadline: Instant,
    ) -> Result<Option<Arc<ChangeRecord>>, ErrorBody> {
        match self.made(RebuildTarget::Remaining { from, to }.into(), deadline).await? {
            Rebuilt::Remaining(record) => Ok(record),
            _ => Err(internal("these are no changes")),
        }
    }

    /// A comparison of a rebuild with what runs.
    ///
    /// # Errors
    /// As [`Self::past`].
    pub async fn verified(&self, deadline: Instant) -> Result<Arc<VerifyAnswer>, ErrorBody> {
        match self.made(RebuildTarget::Verified.into(), deadline).await? {
            Rebuilt::Verified(answer) => Ok(answer),
            _ => Err(internal("this is no comparison")),
        }
    }

    /// A slot for a waiting question, from its first read of LEDGER on; none if all slots are in use. A
    /// question without a slot does not wait.
    pub(crate) fn acquire_slot(&self) -> Option<Permit> {
        self.places.acquire(&self.requester).ok()
    }

    async fn made(&self, asked: RebuildRequest, deadline: Instant) -> Result<Rebuilt, ErrorBody> {
        let mut stage = self.enter(asked)?;
        let done = timeout_at(deadline, stage.wait_for(|stage| matches!(stage, RebuildStage::Done(_)))).await;
        if let Ok(Err(_)) = done {
            return Err(ending());
        }
        drop(done);
        let stage = stage.borrow().clone();
        match stage {
            RebuildStage::Done(made) => made,
            RebuildStage::Waiting => Err(not_ready(
                "other points of the past are being rebuilt first; ask again in a moment".to_owned(),
            )),
            RebuildStage::Reading { at, to } => {
                Err(not_ready(format!("rebuilding: ledger {at} of {to} is read; ask again in a moment")))
            }
        }
    }

    /// Finds a rebuild in the cache, or queues it.
    fn enter(&self, asked: RebuildRequest) -> Result<watch::Receiver<RebuildStage>, ErrorBody> {
        let origin = self.projection.read(|now| now.origin);
        let mut rebuild_cache = locked(&self.rebuild_cache);
        if rebuild_cache.origin != origin {
            (rebuild_cache.origin, rebuild_cache.entries) = (origin, Vec::new());
        }
        rebuild_cache.tidy();
        if let Some(entry) = rebuild_cache.find(asked) {
            if entry.is_kept() {
                entry.asked_at = Instant::now();
            }
            return Ok(entry.stage.clone());
        }
        let (progress, stage) = watch::channel(RebuildStage::Waiting);
        let (wanted, of_now) = (asked.wanted, asked.now_since.is_some());
        let job = RebuildJob { wanted, origin, progress: Progress(progress) };
        if rebuild_cache.is_ended {
            return Err(ending());
        }
        let requester = self.requester.clone();
        let queued = rebuild_cache.waiting.push(requester.clone(), WAITING.share(&requester), job);
        queued.map_err(|(_, exceeded)| too_many(exceeded))?;
        self.work.notify_one();
        let (stage_of, asked_at) = (stage.clone(), Instant::now());
        rebuild_cache.entries.push(CachedRebuild {
            wanted,
            requester,
            of_now,
            stage: stage_of,
            asked_at,
            done_at: None,
        });
        Ok(stage)
    }
}

impl RebuildWorker {
    /// Performs the requested rebuilds one after the other until `stop`. Between requests it makes missing
    /// checkpoints, as long as facts arrive.
    pub async fn run(mut self, stop: CancellationToken, intake: CancellationToken) {
        while let Some(next) =
            stop.run_until_cancelled(timeout(self.filler.retry_delay(), self.next_job())).await
        {
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
            locked(&self.rebuild_cache).tidy();
        }
    }

    /// The next of what waits, in the requesters' turns. Cancel-safe.
    async fn next_job(&self) -> RebuildJob {
        loop {
            let next = locked(&self.rebuild_cache).waiting.pop();
            if let Some((_, job)) = next {
                return job;
            }
            self.work.notified().await;
        }
    }

    async fn make(&self, job: RebuildJob) {
        let RebuildJob { wanted, origin, progress } = job;
        let begun = Instant::now();
        let rebuilder = Rebuilder::new(self.bus.clone(), Arc::clone(&self.archive), origin);
        let making = async {
            match wanted {
                RebuildTarget::At(seq) => {
                    let fleet = rebuilder.at(seq, &progress).await?;
                    Ok(Rebuilt::Past(Arc::new(Past { fleet, certainty: None })))
                }
                RebuildTarget::EventTime { moment, then, by } => {
                    let past = rebuilder.at_event_time(moment, then, by, &progress).await?;
                    Ok(Rebuilt::Past(Arc::new(past)))
                }
                RebuildTarget::Changes { from, to } => {
                    let record = rebuilder.changes(from, to, &progress).await?;
                    Ok(Rebuilt::Changes(Arc::new(record)))
                }
                RebuildTarget::Remaining { from, to } => {
                    let record = rebuilder.remaining_changes(from, to, &progress).await?;
                    Ok(Rebuilt::Remaining(record.map(Arc::new)))
                }
                RebuildTarget::Verified => {
                    let answer =
                        verify::compare(&rebuilder, &self.projection, &self.archive, &progress).await?;
                    Ok(Rebuilt::Verified(Arc::new(answer)))
                }
            }
        };
        let made = timeout(REBUILD_MAX, making).await.unwrap_or_else(|_| Err(too_long()));
        let result = if made.is_ok() { RebuildResult::Reached } else { RebuildResult::Failed };
        self.metrics.rebuilds(result);
        self.metrics.rebuild_seconds.set(begun.elapsed().as_secs_f64());
        tracing::debug!(
            ?wanted,
            ok = made.is_ok(),
            seconds = begun.elapsed().as_secs_f64(),
            "rebuilt a point of the past"
        );
        // Its time counts from when it was done.
        let mut rebuild_cache = locked(&self.rebuild_cache);
        let entry = rebuild_cache.entries.iter_mut().find(|entry| entry.wanted == wanted);
        let now = Instant::now();
        entry.into_iter().for_each(|entry| (entry.asked_at, entry.done_at) = (now, Some(now)));
        progress.0.send_replace(RebuildStage::Done(made));
    }
}

impl Drop for RebuildWorker {
    /// Waiting questions are answered that nothing is rebuilt any more.
    fn drop(&mut self) {
        let mut rebuild_cache = locked(&self.rebuild_cache);
        rebuild_cache.is_ended = true;
        rebuild_cache.waiting.clear();
    }
}

/// Entries are whole at any moment, so a panic elsewhere leaves no half of one.
fn locked(rebuild_cache: &Mutex<RebuildCache>) -> MutexGuard<'_, RebuildCache> {
    rebuild_cache.lock().unwrap_or_else(PoisonError::into_inner)
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
