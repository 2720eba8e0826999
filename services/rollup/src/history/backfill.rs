//! Makes missing checkpoints ([`gaps`](super::gaps)) in the background: it reads LEDGER again from the
//! checkpoint before and stores the new one where it is due.
//!
//! The backfill works in short steps, rests after each ([`throttle`](super::throttle)) and gives way to every
//! question. It holds one more fold in memory beside those of questions, until questions have kept it waiting
//! for a minute.
//!
//! A failure is logged and retried with growing delay. A backfilled checkpoint is trusted like any other: only
//! if its digest holds.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::Bus;
use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::view::AsOf;
use muster_domain::fold::Fleet;
use muster_service::error::chain;
use tokio::time::{Instant, timeout};

use super::archive::Archive;
use super::gaps::{Gap, MarkSpacing};
use super::pack::{PART_RECORDS, Packed, Packer};
use super::rebuild::{Rebuilder, fold, unreadable};
use super::store::error::KeepError;
use super::tail::Tail;
use super::throttle::Throttle;
use crate::metrics::Metrics;
use crate::projection::{Origin, Projection};

/// How long LEDGER may take to give the next facts: a question would wait as long.
const READ_MAX: Duration = Duration::from_secs(5);
/// The rest after a question: who asks once asks again.
const REST_ASKED: Duration = Duration::from_millis(500);
/// Interval of the search for missing checkpoints.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The rest after a failure; it doubles with every further one.
const REST_FAILED: Duration = Duration::from_secs(30);
/// The longest rest: a failure at the end of a walk, such as a full disk, costs a whole walk each time.
const REST_FAILED_MAX: Duration = Duration::from_secs(10 * 60);
/// How long a fold stays in memory without a step: if questions come all the time, starting again later is
/// better.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Places that are remembered as out of reach.
const OUT_OF_REACH_MAX: usize = 64;

/// Makes missing checkpoints.
#[derive(Debug)]
pub struct Backfill {
    bus: Bus,
    projection: Arc<Projection>,
    archive: Arc<Archive>,
    metrics: Metrics,
    /// How many facts apart checkpoints are to lie.
    facts: u64,
    /// LEDGER's first sequence when last asked. It only ever grows.
    began: Option<(Origin, u64)>,
    /// Places that LEDGER does not lead to, or at which nothing could be kept.
    out_of_reach: Vec<Gap>,
    walk: Option<Box<Walk>>,
    stepped_at: Instant,
    /// The end of the rest; none means for good. It is a moment and not a length, so that questions that come
    /// meanwhile do not restart it.
    rest_until: Option<Instant>,
    throttle: Throttle,
    /// Failures since a checkpoint was kept, or nothing was missing.
    failures: u32,
}

/// On the way to the next place.
#[derive(Debug)]
struct Walk {
    origin: Origin,
    first_seq: u64,
    gap: Gap,
    fleet: Fleet,
    tail: Tail,
    /// Where the fold is complete: its records, packed up to this device.
    packing: Option<(Packer, Option<DeviceKey>)>,
}

/// A fold that becomes a checkpoint.
struct Checkpoint {
    packed: Packed,
    as_of: AsOf,
    digest: Digest,
}

/// Why nothing is filled in now, in words.
type Failure = String;

impl Backfill {
    /// Creates a backfill for checkpoints at most so many facts apart.
    pub fn new(
        bus: Bus,
        projection: Arc<Projection>,
        archive: Arc<Archive>,
        metrics: Metrics,
        facts: u64,
    ) -> Self {
        let (out_of_reach, stepped_at) = (Vec::new(), Instant::now());
        Self {
            bus,
            projection,
            archive,
            metrics,
            facts,
            began: None,
            out_of_reach,
            walk: None,
            stepped_at,
            rest_until: Some(stepped_at + LOOK_EVERY),
            throttle: Throttle::since(stepped_at),
            failures: 0,
        }
    }

    /// The remaining rest.
    pub fn retry_delay(&self) -> Duration {
        self.rest_until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Notes that a question came.
    pub(crate) fn give_way(&mut self) {
        let asked = Instant::now() + REST_ASKED;
        self.rest_until = self.rest_until.map(|until| until.max(asked));
        if self.stepped_at.elapsed() >= IDLE_MAX {
            self.walk = None;
        }
    }

    /// No step is to come any more.
    pub fn end(&mut self) {
        self.walk = None;
        self.rest_until = None;
    }

    /// Performs one step of some milliseconds. If a step is dropped midway, the walk restarts from the last kept
    /// checkpoint.
    pub async fn step(&mut self) {
        let begun = Instant::now();
        let next = match self.walk.take() {
            Some(walk) => Box::pin(self.go_on(walk)).await,
            // A fold is too large to lie in every future around it.
            None => Box::pin(self.next_walk()).await,
        };
        let rest = match next {
            Ok(Some(walk)) => {
                self.walk = Some(walk);
                let read_to = self.projection.read(|now| now.fleet.as_of().ledger_seq);
                self.throttle.after(begun.elapsed(), read_to, Instant::now())
            }
            Ok(None) => {
                self.failures = 0;
                LOOK_EVERY
            }
            Err(reason) => {
                let retry_in = rest_after(self.failures);
                self.failures = self.failures.saturating_add(1);
                tracing::warn!(
                    reason,
                    ?retry_in,
                    "cannot fill in a checkpoint; the past is reached from an older one"
                );
                retry_in
            }
        };
        self.stepped_at = Instant::now();
        self.rest_until = Some(self.stepped_at + rest);
    }

    /// The next walk over LEDGER, if checkpoints are missing.
    async fn next_walk(&mut self) -> Result<Option<Box<Walk>>, Failure> {
        let (origin, caught_up) = self.projection.read(|now| (now.origin, now.caught_up));
        if self.began.is_some_and(|(of, _)| of != origin) {
            (self.began, self.out_of_reach) = (None, Vec::new());
        }
        let began = self.began.map_or(1, |(_, first_seq)| first_seq);
        // LEDGER is asked only where something may be missing, as far as is known.
        if !caught_up || self.gap(origin, began).is_none() {
            return Ok(None);
        }
        let rebuilder = Rebuilder::new(self.bus.clone(), Arc::clone(&self.archive), origin);
        let window = in_time(rebuilder.window()).await?.map_err(|error| error.message)?;
        self.began = Some((origin, window.first_seq));
        let Some(gap) = self.gap(origin, window.first_seq) else { return Ok(None) };
        let fleet = match gap.from {
            Some(mark) => rebuilder.load(mark, window).await.map_err(|error| error.message)?,
            None => Some(Fleet::default()),
        };
        let fleet = fleet.ok_or_else(|| format!("the checkpoint of ledger {} is of no use", gap.after()))?;
        let tail = in_time(rebuilder.tail(gap.after())).await?.map_err(|error| error.message)?;
        tracing::debug!(ledger.seq = gap.to, after = gap.after(), "backfilling a checkpoint");
        Ok(Some(Box::new(Walk { origin, first_seq: window.first_seq, gap, fleet, tail, packing: None })))
    }

    fn gap(&self, origin: Origin, first_seq: u64) -> Option<Gap> {
        let read_to = self.projection.read(|now| now.fleet.as_of().ledger_seq);
        let (facts, out_of_reach) = (self.facts, self.out_of_reach.as_slice());
        self.archive.gap(origin, MarkSpacing { first_seq, read_to, facts, out_of_reach })
    }

    /// Marks a gap as out of reach, so that others have their turn.
    fn pass_over(&mut self, gap: Gap) -> Result<Option<Box<Walk>>, Failure> {
        let (after, to) = (gap.after(), gap.to);
        if self.out_of_reach.len() >= OUT_OF_REACH_MAX {
            return Err(format!(
                "nothing comes of LEDGER after {after} up to {to}, nor of {OUT_OF_REACH_MAX} other places"
            ));
        }
        tracing::warn!(after, ledger.seq = to, "cannot backfill a checkpoint; skipping it");
        self.out_of_reach.push(gap);
        Ok(None)
    }

    async fn go_on(&mut self, mut walk: Box<Walk>) -> Result<Option<Box<Walk>>, Failure> {
        if self.projection.read(|now| now.origin) != walk.origin {
            return Ok(None);
        }
        if walk.packing.is_none() {
            return if walk.read().await? { Ok(Some(walk)) } else { self.pass_over(walk.gap) };
        }
        let packing = tokio::task::spawn_blocking(move || walk.pack().map(|done| (walk, done)));
        match packing.await {
            Ok(Ok((walk, None))) => Ok(Some(walk)),
            Ok(Ok((walk, Some(checkpoint)))) => self.keep(walk, checkpoint).await,
            Ok(Err(error)) => Err(chain(&error)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Stores the packed records and continues with the next place if it follows.
    async fn keep(
        &mut self,
        mut walk: Box<Walk>,
        checkpoint: Checkpoint,
    ) -> Result<Option<Box<Walk>>, Failure> {
        let (archive, origin) = (Arc::clone(&self.archive), walk.origin);
        let Checkpoint { packed, as_of, digest } = checkpoint;
        let keeping = tokio::task::spawn_blocking(move || archive.fill(origin, &packed, as_of, digest));
        let kept = match keeping.await {
            Ok(kept) => kept.map_err(|error| chain(&error))?,
            Err(error) => return Err(error.to_string()),
        };
        let Some(mark) = kept else { return self.pass_over(walk.gap) };
        self.failures = 0;
        self.metrics.checkpoints_filled.inc();
        let (count, bytes) = self.archive.size();
        self.metrics.archive(count, bytes);
        tracing::debug!(ledger.seq = as_of.ledger_seq, bytes = mark.bytes, "backfilled checkpoint");
        let next = self.gap(origin, walk.first_seq);
        Ok(next.filter(|gap| gap.from == Some(mark)).map(|gap| {
            walk.gap = gap;
            walk
        }))
    }
}

impl Walk {
    /// Reads the next facts, as many as come at once; where the place is reached, packing begins. False where LEDGER holds
    /// nothing on the way.
    async fn read(&mut self) -> Result<bool, Failure> {
        let read = in_time(self.tail.next(self.gap.to)).await?;
        let read = read.map_err(|error| unreadable(&error).message)?;
        // No message is left before the place: its fact was removed from LEDGER, so the fold equals that of the
        // one before.
        let is_there = read.is_empty() || read.last().is_some_and(|(at, _)| at.ledger_seq >= self.gap.to);
        fold(&mut self.fleet, read);
        if is_there {
            self.packing = Some((Packer::default(), None));
        }
        Ok(!is_there || self.fleet.as_of().ledger_seq > self.gap.after())
    }

    /// Packs some more records; the checkpoint when all are. May block.
    fn pack(&mut self) -> Result<Option<Checkpoint>, KeepError> {
        let Some((mut packer, after)) = self.packing.take() else { return Ok(None) };
        let records = self.fleet.records_after(after.as_ref(), PART_RECORDS);
        for record in &records {
            packer.pack_record(record)?;
        }
        if let Some(last) = records.last() {
            self.packing = Some((packer, Some(last.key().clone())));
            return Ok(None);
        }
        let (as_of, digest) = (self.fleet.as_of(), self.fleet.fleet_view().tally.digest);
        let packed = packer.finish(self.fleet.hearing_state().clone())?;
        Ok(Some(Checkpoint { packed, as_of, digest }))
    }
}

/// The rest after so many failures in a row.
fn rest_after(failures: u32) -> Duration {
    REST_FAILED.saturating_mul(2_u32.saturating_pow(failures)).min(REST_FAILED_MAX)
}

/// The result of a read from LEDGER, if it arrives in time.
async fn in_time<T>(look: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(READ_MAX, look).await.map_err(|_| format!("LEDGER says nothing for {READ_MAX:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_are_retried_with_growing_delay_for_ever() {
        let rests: Vec<u64> = [0, 1, 2, 4, 5, u32::MAX].map(|failures| rest_after(failures).as_secs()).into();
        assert_eq!(rests, [30, 60, 120, 480, 600, 600]);
    }
}
