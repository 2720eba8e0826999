//! Fills in the checkpoints that are missing ([`gaps`](super::gaps)), at leisure: LEDGER is read again from the checkpoint
//! before, beside the live fold, and kept where one should lie. Nobody waits for it: it works in short steps, rests as
//! long as each took, and lets every question go first. Beside the folds of people's questions there is one more in
//! memory for it.
//!
//! What fails is said and tried again later. What it makes is believed like any other checkpoint: if its digest holds.

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
use super::gaps::Gap;
use super::pack::{PART_RECORDS, Packed, Packer};
use super::rebuild::{Rebuilder, fold, unreadable};
use super::store::KeepError;
use super::tail::Tail;
use crate::metrics::Metrics;
use crate::present::{Origin, Present};

/// Facts folded in one step: some milliseconds.
const STEP_FACTS: u64 = 2_000;
/// How long LEDGER may take to give the next facts: a question would wait as long.
const READ_MAX: Duration = Duration::from_secs(5);
/// The least rest after a step, so that a question that came meanwhile is next.
const REST_MIN: Duration = Duration::from_millis(1);
/// The rest after a question: who asks once asks again.
const REST_ASKED: Duration = Duration::from_millis(500);
/// How often it is looked whether something is missing.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The rest after a failure.
const REST_FAILED: Duration = Duration::from_secs(30);

/// Who fills in.
#[derive(Debug)]
pub struct Filler {
    bus: Bus,
    present: Arc<Present>,
    archive: Arc<Archive>,
    metrics: Metrics,
    /// How many facts apart checkpoints are to lie.
    facts: u64,
    /// Where LEDGER began when it was last asked. It only ever forgets.
    began: Option<(Origin, u64)>,
    walk: Option<Box<Walk>>,
    rest: Duration,
}

/// On the way to the next place.
#[derive(Debug)]
struct Walk {
    origin: Origin,
    first_seq: u64,
    gap: Gap,
    fleet: Fleet,
    tail: Tail,
    /// It is there, and its records are packed, those up to a device so far.
    packing: Option<(Packer, Option<DeviceKey>)>,
}

/// What is to become a checkpoint.
struct Checkpoint {
    packed: Packed,
    as_of: AsOf,
    digest: Digest,
}

/// Why nothing is filled in now, in words.
type Failure = String;

impl Filler {
    /// One that has checkpoints lie so many facts apart.
    pub const fn new(
        bus: Bus,
        present: Arc<Present>,
        archive: Arc<Archive>,
        metrics: Metrics,
        facts: u64,
    ) -> Self {
        Self { bus, present, archive, metrics, facts, began: None, walk: None, rest: LOOK_EVERY }
    }

    /// How long it is to be left alone from now on.
    pub const fn rest(&self) -> Duration {
        self.rest
    }

    /// Somebody has asked.
    pub fn give_way(&mut self) {
        self.rest = self.rest.max(REST_ASKED);
    }

    /// One step, of some milliseconds. Given up in the middle, it begins again where it last kept one.
    pub async fn step(&mut self) {
        let begun = Instant::now();
        let next = match self.walk.take() {
            Some(walk) => Box::pin(self.go_on(walk)).await,
            // A fold is too large to lie in every future around it.
            None => Box::pin(self.begin()).await,
        };
        self.rest = match next {
            Ok(Some(walk)) => {
                self.walk = Some(walk);
                begun.elapsed().max(REST_MIN)
            }
            Ok(None) => LOOK_EVERY,
            Err(reason) => {
                tracing::warn!(reason, retry_in = ?REST_FAILED, "cannot fill in a checkpoint; the past is reached from an older one");
                REST_FAILED
            }
        };
    }

    /// Looks whether something is missing, and where to begin.
    async fn begin(&mut self) -> Result<Option<Box<Walk>>, Failure> {
        let (origin, caught_up) = self.present.look(|now| (now.origin, now.caught_up));
        let began = self.began.filter(|(of, _)| *of == origin).map_or(1, |(_, first_seq)| first_seq);
        // LEDGER is asked only where something may be missing, as far as is known.
        if !caught_up || self.archive.gap(origin, began, self.facts).is_none() {
            return Ok(None);
        }
        let rebuilder = Rebuilder::new(self.bus.clone(), Arc::clone(&self.archive), origin);
        let window = in_time(rebuilder.window()).await?.map_err(|error| error.message)?;
        self.began = Some((origin, window.first_seq));
        let Some(gap) = self.archive.gap(origin, window.first_seq, self.facts) else { return Ok(None) };
        let fleet = match gap.from {
            Some(mark) => rebuilder.load(mark, window).await.map_err(|error| error.message)?,
            None => Some(Fleet::default()),
        };
        let Some(fleet) = fleet else { return Ok(None) };
        let tail = in_time(rebuilder.tail(gap.after())).await?.map_err(|error| error.message)?;
        tracing::debug!(ledger.seq = gap.to, after = gap.after(), "filling in a checkpoint");
        Ok(Some(Box::new(Walk { origin, first_seq: window.first_seq, gap, fleet, tail, packing: None })))
    }

    async fn go_on(&self, mut walk: Box<Walk>) -> Result<Option<Box<Walk>>, Failure> {
        if self.present.look(|now| now.origin) != walk.origin {
            return Ok(None);
        }
        if walk.packing.is_none() {
            walk.read().await?;
            return Ok(Some(walk));
        }
        let packing = tokio::task::spawn_blocking(move || walk.pack().map(|done| (walk, done)));
        match packing.await {
            Ok(Ok((walk, None))) => Ok(Some(walk)),
            Ok(Ok((walk, Some(checkpoint)))) => self.keep(walk, checkpoint).await,
            Ok(Err(error)) => Err(chain(&error)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Keeps what was packed, and goes on to the next place if that follows.
    async fn keep(&self, mut walk: Box<Walk>, checkpoint: Checkpoint) -> Result<Option<Box<Walk>>, Failure> {
        let (archive, origin) = (Arc::clone(&self.archive), walk.origin);
        let Checkpoint { packed, as_of, digest } = checkpoint;
        let keeping = tokio::task::spawn_blocking(move || archive.fill(origin, &packed, as_of, digest));
        let kept = match keeping.await {
            Ok(kept) => kept.map_err(|error| chain(&error))?,
            Err(error) => return Err(error.to_string()),
        };
        let Some(mark) = kept else { return Ok(None) };
        self.metrics.checkpoints_filled.inc();
        self.metrics.archive(self.archive.size());
        tracing::debug!(ledger.seq = as_of.ledger_seq, bytes = mark.bytes, "checkpoint filled in");
        let next = self.archive.gap(origin, walk.first_seq, self.facts);
        Ok(next.filter(|gap| gap.from == Some(mark)).map(|gap| {
            walk.gap = gap;
            walk
        }))
    }
}

impl Walk {
    /// Reads on for a while; where the place is reached, packing begins.
    async fn read(&mut self) -> Result<(), Failure> {
        let enough = self.fleet.as_of().ledger_seq.saturating_add(STEP_FACTS);
        while self.fleet.as_of().ledger_seq < self.gap.to {
            let read = in_time(self.tail.next(self.gap.to)).await?;
            let read = read.map_err(|error| unreadable(&error).message)?;
            if read.is_empty() {
                // Somebody took that fact out of LEDGER: it is as it was with the one before.
                break;
            }
            fold(&mut self.fleet, read);
            if self.fleet.as_of().ledger_seq >= enough {
                return Ok(());
            }
        }
        if self.fleet.as_of().ledger_seq <= self.gap.after() {
            let (after, to) = (self.gap.after(), self.gap.to);
            return Err(format!("LEDGER holds nothing after ledger {after} up to {to}"));
        }
        self.packing = Some((Packer::default(), None));
        Ok(())
    }

    /// Packs some more records; the checkpoint when all are. May block.
    fn pack(&mut self) -> Result<Option<Checkpoint>, KeepError> {
        let Some((mut packer, after)) = self.packing.take() else { return Ok(None) };
        let records = self.fleet.records_after(after.as_ref(), PART_RECORDS);
        for record in &records {
            packer.take_record(record)?;
        }
        if let Some(last) = records.last() {
            self.packing = Some((packer, Some(last.key().clone())));
            return Ok(None);
        }
        let (as_of, digest) = (self.fleet.as_of(), self.fleet.fleet_view().tally.digest);
        Ok(Some(Checkpoint { packed: packer.finish()?, as_of, digest }))
    }
}

/// What comes of LEDGER, if it comes in time.
async fn in_time<T>(look: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(READ_MAX, look).await.map_err(|_| format!("LEDGER says nothing for {READ_MAX:?}"))
}
