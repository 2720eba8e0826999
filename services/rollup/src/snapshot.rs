//! Decides when to save the snapshot: after a number of facts, after a time, and at the end of the process.
//!
//! During catch-up only the time counts, `CATCHING_UP_EVERY` at most: a crash then costs reading again what was
//! read since. When facts arrive so fast that snapshots would follow each other, they rest in between.
//! Only changed devices are written. A failed snapshot is logged and retried; nothing waits for it, because the
//! copy is made in small steps between which the fold goes on.
//!
//! From time to time the snapshot on disk is kept as a checkpoint, which costs the fold nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::history::archive::Archive;
use crate::history::checkpoint_retention::Mark;
use crate::metrics::{Metrics, SnapshotResult};
use crate::projection::{Origin, Projection};
use crate::store::{Changes, Store};

/// Devices copied at once: the fold waits meanwhile, for a few milliseconds.
const COPIED_AT_ONCE: usize = 500;
/// Time between two steps of a copy, in which the fold continues.
const COPY_PAUSE: Duration = Duration::from_millis(1);

/// Longest time between two snapshots while LEDGER is being caught up with.
const CATCHING_UP_EVERY: Duration = Duration::from_secs(30);
/// After a snapshot, facts make another one due once this multiple of its duration has passed: snapshots made
/// due by facts then take a tenth of the time, and each writes a frequently changed device only once.
const REST: u32 = 9;

/// When something is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    /// So long after the one before, if anything came in since.
    pub every: Duration,
    /// Facts between two snapshots.
    pub facts: u64,
}

/// The writer of snapshots and checkpoints.
#[derive(Debug)]
pub(crate) struct Snapshots {
    projection: Arc<Projection>,
    /// The store; absent while it is being written.
    store: Option<Store>,
    cadence: Cadence,
    /// When the snapshot is kept as a checkpoint.
    checkpoints: Cadence,
    archive: Arc<Archive>,
    checkpoint_at: Instant,
    metrics: Metrics,
    /// The LEDGER and position of the store's snapshot.
    stored: (Origin, u64),
    /// Devices whose record was copied and not stored.
    due: BTreeSet<DeviceKey>,
    /// Which LEDGER those are of.
    due_of: Origin,
    /// The last attempt failed: the next one waits its time, however many facts come in.
    failed: bool,
    /// Until then facts make none due.
    rest_until: Instant,
}

/// The result of a written snapshot, and of the checkpoint made from it.
type Written = (Store, Result<Option<Mark>, String>);

impl Snapshots {
    /// Creates a writer to a store that holds the current projection, or nothing.
    pub(crate) fn new(
        projection: Arc<Projection>,
        store: Store,
        archive: Arc<Archive>,
        [cadence, checkpoints]: [Cadence; 2],
        metrics: Metrics,
    ) -> Self {
        let stored = projection.read(|now| (now.origin, now.fleet.as_of().ledger_seq));
        let (due, failed, now) = (BTreeSet::new(), false, Instant::now());
        let (store, due_of) = (Some(store), stored.0);
        Self {
            projection,
            store,
            cadence,
            checkpoints,
            archive,
            checkpoint_at: now,
            metrics,
            stored,
            due,
            due_of,
            failed,
            rest_until: now,
        }
    }

    /// Writes until `stop`, and once more then.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut read_to = self.projection.read_to();
        while stop.run_until_cancelled(self.until_due(&mut read_to)).await.is_some() {
            let begun = Instant::now();
            self.save().await;
            self.rest_after(begun.elapsed());
        }
        self.save().await;
    }

    fn rest_after(&mut self, took: Duration) {
        self.rest_until = Instant::now() + took * REST;
    }

    async fn until_due(&mut self, read_to: &mut watch::Receiver<u64>) {
        let (begun, mut caught_up) = (Instant::now(), self.projection.caught_up());
        let only_time = self.failed || self.store.is_none();
        let enough = self.stored.1.saturating_add(self.cadence.facts);
        // The projection outlives this task, so its sender cannot be dropped during the wait.
        loop {
            let is_caught_up = *caught_up.borrow_and_update();
            let enough_facts = async {
                tokio::time::sleep_until(self.rest_until).await;
                drop(read_to.wait_for(|seq| *seq >= enough).await);
            };
            tokio::select! {
                () = tokio::time::sleep_until(begun + self.every(is_caught_up)) => return,
                // While LEDGER is being caught up with, snapshots would take the time that reading needs.
                () = enough_facts, if is_caught_up && !only_time => return,
                _ = caught_up.changed() => {}
            }
        }
    }

    fn every(&self, is_caught_up: bool) -> Duration {
        let every = self.cadence.every;
        if is_caught_up { every } else { every.min(CATCHING_UP_EVERY) }
    }

    async fn save(&mut self) {
        let Some(store) = self.store.take() else { return };
        let (origin, changes) = self.collect().await;
        if (origin, changes.as_of.ledger_seq) == self.stored {
            self.store = Some(store);
            return;
        }
        let begun = Instant::now();
        let (ledger_seq, devices) = (changes.as_of.ledger_seq, changes.records.len());
        let timeline_to = changes.timeline.0;
        self.due.extend(changes.records.iter().map(|record| record.key().clone()));
        let keep = self.keeps(origin, changes.as_of.ledger_seq);
        let archive = Arc::clone(&self.archive);
        let written = tokio::task::spawn_blocking(move || write(store, &archive, origin, &changes, keep));
        let result = match written.await {
            Ok((store, result)) => {
                self.store = Some(store);
                result
            }
            Err(error) => {
                self.metrics.snapshot(SnapshotResult::Failed);
                tracing::error!(%error, "lost the snapshot writer; a restart would read more of LEDGER");
                return;
            }
        };
        match result {
            Ok(checkpoint) => {
                self.stored = (origin, ledger_seq);
                self.due.clear();
                self.projection.update_marks(|now| {
                    if now.origin == origin {
                        now.timeline.set_saved(timeline_to);
                    }
                });
                self.failed = false;
                self.metrics.snapshot(SnapshotResult::Stored);
                self.metrics.snapshot_seq.set(ledger_seq as i64);
                self.metrics.snapshot_seconds.set(begun.elapsed().as_secs_f64());
                tracing::debug!(ledger.seq = ledger_seq, devices, "stored snapshot");
                if !self.projection.read(|now| now.caught_up) {
                    tracing::info!(
                        ledger.seq = ledger_seq,
                        "catching up with LEDGER: a restart continues from here"
                    );
                }
                self.kept(checkpoint);
            }
            Err(error) => {
                self.failed = true;
                self.metrics.snapshot(SnapshotResult::Failed);
                tracing::error!(error, "cannot write the snapshot; a restart would read more of LEDGER");
            }
        }
    }

    /// Collects the changes that the store lacks, all as of one moment, whatever is folded while they are
    /// copied.
    async fn collect(&mut self) -> (Origin, Changes) {
        let mut longest = Duration::ZERO;
        let (origin, mut changes) = loop {
            let (origin, mut changes) = self.start_capture(&mut longest);
            if copy(&self.projection, origin, &mut changes, &mut longest).await {
                break (origin, changes);
            }
        };
        // Copied ahead and in their turn: a store takes them in their order.
        changes.records.sort_by(|one, other| one.key().cmp(other.key()));
        self.metrics.snapshot_stall_seconds.set(longest.as_secs_f64());
        (origin, changes)
    }

    fn start_capture(&mut self, longest: &mut Duration) -> (Origin, Changes) {
        let (stored, due, due_of) = (self.stored.0, &mut self.due, &mut self.due_of);
        let begun = Instant::now();
        let begin = self.projection.update_marks(|now| {
            let afresh = now.origin != stored;
            // Only then: changes copied by a failed attempt for this LEDGER are in no store and no longer
            // marked.
            if std::mem::replace(due_of, now.origin) != now.origin {
                due.clear();
            }
            now.fleet.start_capture(due.iter());
            let changes = Changes {
                afresh,
                created_at: now.origin.created_at,
                as_of: now.fleet.as_of(),
                fleet_digest: now.fleet.fleet_view().tally.digest,
                hearing: now.fleet.hearing_state().clone(),
                timeline: now.timeline.unsaved(),
                records: Vec::new(),
            };
            (now.origin, changes)
        });
        *longest = (*longest).max(begun.elapsed());
        begin
    }

    /// Whether this snapshot is to be kept as a checkpoint.
    fn keeps(&self, origin: Origin, ledger_seq: u64) -> bool {
        let newest = self.archive.newest(origin, ledger_seq);
        ledger_seq >= newest.saturating_add(self.checkpoints.facts)
            || (ledger_seq > newest && self.checkpoint_at.elapsed() >= self.checkpoints.every)
    }

    fn kept(&mut self, checkpoint: Option<Mark>) {
        let Some(mark) = checkpoint else { return };
        self.checkpoint_at = Instant::now();
        let (count, bytes) = self.archive.size();
        self.metrics.archive(count, bytes);
        tracing::debug!(ledger.seq = mark.as_of.ledger_seq, bytes = mark.bytes, "kept checkpoint");
    }
}

/// Writes the snapshot and, if due, keeps it as a checkpoint. A failed checkpoint is logged and is not an
/// error: the next one serves as well.
fn write(mut store: Store, archive: &Archive, origin: Origin, changes: &Changes, keep: bool) -> Written {
    if let Err(error) = store.save(changes) {
        return (store, Err(chain(&error)));
    }
    let kept = keep.then(|| archive.keep(origin, &store, changes.as_of, changes.fleet_digest));
    let mark = match kept.transpose() {
        Ok(mark) => mark,
        Err(error) => {
            tracing::error!(
                error = chain(&error),
                "cannot keep a checkpoint; rebuilds start from an older one"
            );
            None
        }
    };
    (store, Ok(mark))
}

/// False where the projection started over meanwhile.
async fn copy(
    projection: &Projection,
    origin: Origin,
    changes: &mut Changes,
    longest: &mut Duration,
) -> bool {
    loop {
        let begun = Instant::now();
        let copied =
            projection.update_marks(|now| (now.origin == origin).then(|| now.fleet.capture(COPIED_AT_ONCE)));
        *longest = (*longest).max(begun.elapsed());
        match copied {
            None => return false,
            Some(records) if records.is_empty() => return true,
            Some(records) => changes.records.extend(records),
        }
        tokio::time::sleep(COPY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::history::checkpoint_retention::Room;
    use crate::history::store::Checkpoints;
    use crate::store::StoredSnapshot;
    use crate::store::tests::{fleet, hear, ledger_time, run};

    const HOUR: Duration = Duration::from_secs(3600);

    fn writer(directory: &TempDir, every: Duration) -> (Arc<Projection>, Snapshots) {
        let (store, _) = Store::open(directory.path()).unwrap();
        let projection = Arc::new(Projection::new(ledger_time(), fleet(2)));
        let room = Room { count: 8, bytes: u64::MAX };
        let checkpoints = Checkpoints::open(directory.path(), ledger_time(), room).unwrap();
        let archive = Arc::new(Archive::new(checkpoints, projection.read(|now| now.origin)));
        let cadence = Cadence { every, facts: 1 };
        let snapshots =
            Snapshots::new(Arc::clone(&projection), store, archive, [cadence; 2], Metrics::default());
        (projection, snapshots)
    }

    #[tokio::test(start_paused = true)]
    async fn during_catch_up_time_alone_makes_a_snapshot_due() {
        let second = Duration::from_secs(1);
        // how far apart, caught up after, how long it takes
        for (every, after, takes) in [
            (HOUR, None, CATCHING_UP_EVERY),
            (second, None, second),
            (HOUR, Some(second), second),
            (2 * second, Some(second), second),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let (projection, mut snapshots) = writer(&directory, every);
            projection.update(|now| hear(&mut now.fleet, 3));
            let (begun, mut read_to) = (Instant::now(), projection.read_to());
            let catching_up = async {
                tokio::time::sleep(after.unwrap_or(2 * HOUR)).await;
                projection.set_caught_up();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = snapshots.until_due(&mut read_to) => {}
                () = catching_up => {}
            }
            let took = begun.elapsed().as_millis().abs_diff(takes.as_millis());
            assert!(took <= 2, "every {every:?}, caught up after {after:?}: {:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_catch_up_snapshots_follow_the_configured_interval() {
        let directory = tempfile::tempdir().unwrap();
        let (projection, mut snapshots) = writer(&directory, HOUR);
        projection.set_caught_up();
        let begun = Instant::now();
        snapshots.until_due(&mut projection.read_to()).await;
        assert!(begun.elapsed() >= HOUR, "{:?}: nothing has come in", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn facts_make_a_snapshot_due_once_the_one_before_is_a_tenth_of_the_time() {
        let (second, directory) = (Duration::from_secs(1), tempfile::tempdir().unwrap());
        // how far apart, how long the one before took, how long it takes
        for (every, took, takes) in [
            (HOUR, Duration::ZERO, Duration::ZERO),
            (HOUR, second, 9 * second),
            (5 * second, second, 5 * second),
        ] {
            let (projection, mut snapshots) = writer(&directory, every);
            projection.set_caught_up();
            projection.update(|now| hear(&mut now.fleet, 3));
            snapshots.rest_after(took);
            let begun = Instant::now();
            snapshots.until_due(&mut projection.read_to()).await;
            let off = begun.elapsed().as_millis().abs_diff(takes.as_millis());
            assert!(off <= 2, "every {every:?}, after {took:?}: {:?}", begun.elapsed());
        }
    }

    #[tokio::test]
    async fn a_failed_first_snapshots_changes_are_in_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let (projection, mut snapshots) = writer(&directory, HOUR);

        projection.start_over("2026-11-21T08:00:00Z".parse().unwrap());
        projection.update(|now| (1..=3).for_each(|number| hear(&mut now.fleet, number)));
        run(snapshots.store.as_ref().unwrap(), "ALTER TABLE device RENAME TO away");
        snapshots.save().await;
        assert!(snapshots.failed, "there is no table to write to");
        run(snapshots.store.as_ref().unwrap(), "ALTER TABLE away RENAME TO device");
        projection.update(|now| hear(&mut now.fleet, 4));
        snapshots.save().await;
        assert!(!snapshots.failed);
        drop(snapshots);
        match Store::open(directory.path()).unwrap().1 {
            StoredSnapshot::Snapshot { fleet, .. } => assert_eq!(fleet.devices_known(), 4),
            other => panic!("{other:?}"),
        }
    }
}
