//! Counts for `/metrics`. No label distinguishes devices or deployments.

mod fleet;
mod gauge;
mod silence;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use muster_bus::QueryMetrics;
use muster_contract::lag::RollupLag;
use muster_domain::fold::Outcome;
use muster_service::health::Health;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub(crate) use self::fleet::FleetMetrics;
pub(crate) use self::silence::SILENT_SITES_NAMED;

/// The rollup's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Messages of LEDGER read since the start, by what they did.
    pub facts: Family<FactLabels, Counter>,
    /// Sequence of the last message of LEDGER read.
    pub ledger_seq: Gauge,
    /// Messages of LEDGER that are still to be read.
    pub lag: Gauge,
    /// Partitions that the hub does not hear.
    pub unheard: Gauge,
    /// For how long the newest pulse of each partition is in LEDGER.
    pulse_age: Family<PartitionLabels, Gauge<f64, AtomicU64>>,
    /// By how much answers and views may be out of date.
    pub view_lag: Gauge<f64, AtomicU64>,
    /// 1 while the rollup says in its answers that something stands between it and LEDGER, by what that is.
    pub behind: Family<BehindLabels, Gauge>,
    /// Views that were written again only because they would have ended.
    pub renewals: Counter,
    /// Devices known.
    pub devices: Gauge,
    /// Published views and answered queries.
    pub queries: QueryMetrics,
    /// Snapshots by result.
    pub snapshots: Family<SnapshotLabels, Counter>,
    /// Sequence up to which the last snapshot has read.
    pub snapshot_seq: Gauge,
    /// How long the last snapshot took.
    pub snapshot_seconds: Gauge<f64, AtomicU64>,
    /// For how long at most the fold had to wait at once for the last snapshot.
    pub snapshot_stall_seconds: Gauge<f64, AtomicU64>,
    /// Checkpoints there are.
    pub checkpoints: Gauge,
    /// Bytes of all checkpoints.
    pub checkpoint_bytes: Gauge,
    /// Checkpoints that were missing and were filled in.
    pub checkpoints_filled: Counter,
    /// Points of the past that were rebuilt, by result.
    pub rebuilds: Family<RebuildLabels, Counter>,
    /// How long the last one took.
    pub rebuild_seconds: Gauge<f64, AtomicU64>,
    /// The state of the fleet.
    pub fleet: FleetMetrics,
}

/// A point of the past that was rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RebuildLabels {
    result: RebuildResult,
}

/// How that went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum RebuildResult {
    /// It was reached.
    Reached,
    /// It was not.
    Failed,
}

/// A partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabels {
    partition: u16,
}

/// Outcome of a LEDGER message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FactLabels {
    outcome: FactOutcome,
}

/// Outcome of a LEDGER message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum FactOutcome {
    /// It holds now.
    Taken,
    /// Something newer holds.
    Late,
    /// It was held already.
    Again,
    /// It was read before, or is of another kind than its subject.
    Skipped,
    /// The message is not a readable fact.
    Unreadable,
}

/// Cause of the lag behind LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BehindLabels {
    cause: BehindCause,
}

/// Cause of the lag behind LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum BehindCause {
    /// Facts are unread.
    Lagging,
    /// LEDGER does not answer.
    CutOff,
    /// LEDGER does not take what the hub hears.
    Unrecorded,
}

/// A snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SnapshotLabels {
    result: SnapshotResult,
}

/// How a snapshot went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum SnapshotResult {
    /// The snapshot is on disk.
    Stored,
    /// The snapshot failed; the next one contains its changes.
    Failed,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| metrics.describe(registry.sub_registry_with_prefix("rollup")));
        metrics.fleet.register(health);
        for outcome in [FactOutcome::Taken, FactOutcome::Late, FactOutcome::Unreadable] {
            metrics.fact(outcome, 0);
        }
        metrics
    }

    fn describe(&self, registry: &mut Registry) {
        let all = self.clone();
        registry.register("facts", "Messages of LEDGER read since the start, by outcome", all.facts);
        registry.register("ledger_seq", "Sequence of the last message of LEDGER read", all.ledger_seq);
        registry.register("lag_messages", "Messages of LEDGER still to be read", all.lag);
        registry.register(
            "unheard_partitions",
            "Partitions that the hub does not hear: their devices count as stale",
            all.unheard,
        );
        registry.register(
            "pulse_age_seconds",
            "Age of the newest pulse of a partition that the rollup has read, by the server's clock",
            all.pulse_age,
        );
        registry.register(
            "view_lag_seconds",
            "Time since answers and views were last up to date with LEDGER; 0 while they are",
            all.view_lag,
        );
        registry.register(
            "behind",
            "1 while answers say that the rollup lags, is cut off from LEDGER, or cannot record what the hub hears",
            all.behind,
        );
        registry.register("view_renewals", "Views written again before they would have ended", all.renewals);
        registry.register("devices", "Devices known", all.devices);
        self.queries.register(registry);
        registry.register("snapshots", "Snapshots, by result", all.snapshots);
        registry.register("snapshot_seq", "Sequence of the last snapshot", all.snapshot_seq);
        registry.register("snapshot_seconds", "How long the last snapshot took", all.snapshot_seconds);
        registry.register(
            "snapshot_stall_seconds",
            "For how long at most the fold had to wait at once for the last snapshot",
            all.snapshot_stall_seconds,
        );
        registry.register("checkpoints", "Checkpoints there are", all.checkpoints);
        registry.register("checkpoint_bytes", "Bytes of all checkpoints", all.checkpoint_bytes);
        registry.register(
            "checkpoints_filled",
            "Checkpoints that were missing and were filled in",
            all.checkpoints_filled,
        );
        let (rebuilds, seconds) = (all.rebuilds, all.rebuild_seconds);
        registry.register("rebuilds", "Points of the past that were rebuilt, by result", rebuilds.clone());
        registry.register("rebuild_seconds", "Duration of the last rebuild", seconds.clone());
        registry.register("recalls", "Old name of rebuilds, for one release", rebuilds);
        registry.register("recall_seconds", "Old name of rebuild_seconds, for one release", seconds);
    }

    /// Sets how far LEDGER is folded, and into how many devices.
    pub fn position(&self, ledger_seq: u64, devices: usize) {
        self.ledger_seq.set(ledger_seq as i64);
        self.devices.set(devices as i64);
    }

    /// Says what stands between the rollup and LEDGER.
    pub fn behind(&self, lag: &RollupLag) {
        for (cause, holds) in [
            (BehindCause::Lagging, lag.lagging.is_some()),
            (BehindCause::CutOff, lag.cut_off_since.is_some()),
            (BehindCause::Unrecorded, lag.unrecorded_since.is_some()),
        ] {
            self.behind.get_or_create(&BehindLabels { cause }).set(i64::from(holds));
        }
    }

    /// Sets the age of a partition's newest pulse; a partition without a pulse has no series.
    pub fn pulse(&self, partition: u16, age: Option<Duration>) {
        let labels = PartitionLabels { partition };
        match age {
            Some(age) => _ = self.pulse_age.get_or_create(&labels).set(age.as_secs_f64()),
            None => _ = self.pulse_age.remove(&labels),
        }
    }

    /// Counts messages of LEDGER.
    pub fn fact(&self, outcome: FactOutcome, count: u64) {
        self.facts.get_or_create(&FactLabels { outcome }).inc_by(count);
    }

    /// Messages of LEDGER that were facts since the start, whatever their effect.
    pub fn facts_read(&self) -> u64 {
        let outcomes = [FactOutcome::Taken, FactOutcome::Late, FactOutcome::Again, FactOutcome::Skipped];
        outcomes.into_iter().map(|outcome| self.facts_with(outcome)).sum()
    }

    /// Messages of LEDGER with one outcome since the start.
    pub fn facts_with(&self, outcome: FactOutcome) -> u64 {
        self.facts.get_or_create(&FactLabels { outcome }).get()
    }

    /// Counts a snapshot.
    pub fn snapshot(&self, result: SnapshotResult) {
        self.snapshots.get_or_create(&SnapshotLabels { result }).inc();
    }

    /// Says how many checkpoints there are, and their bytes.
    pub fn archive(&self, count: usize, bytes: u64) {
        self.checkpoints.set(count as i64);
        self.checkpoint_bytes.set(bytes as i64);
    }

    /// Counts a point of the past.
    pub fn rebuilds(&self, result: RebuildResult) {
        self.rebuilds.get_or_create(&RebuildLabels { result }).inc();
    }

    /// Points of the past with one result since the start.
    pub fn rebuilds_with(&self, result: RebuildResult) -> u64 {
        self.rebuilds.get_or_create(&RebuildLabels { result }).get()
    }
}

impl From<Outcome> for FactOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Applied => Self::Taken,
            Outcome::Late => Self::Late,
            Outcome::Duplicate => Self::Again,
            Outcome::Skipped => Self::Skipped,
        }
    }
}
