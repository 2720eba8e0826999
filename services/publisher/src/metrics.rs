//! The publisher's metrics.

use std::sync::atomic::AtomicU64;

use muster_service::health::Health;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The publisher's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Commits by result.
    pub commits: Family<CommitLabels, Counter>,
    /// Documents published.
    pub documents: Counter,
    /// Publishes that found another writer's document.
    pub conflicts: Counter,
    /// Failed polls.
    pub poll_failures: Counter,
    /// When a poll last succeeded.
    pub polled_at: Gauge<f64, AtomicU64>,
    /// Since when the repository hangs; 0 while it does not.
    pub hanging_since: Gauge<f64, AtomicU64>,
    /// Devices with a desired state.
    pub devices: Gauge,
    /// Documents that are due.
    pub due: Gauge,
    /// Devices for which the last commit has a mistake.
    pub held_back: Gauge,
    /// Changes of single devices that wait for a release.
    pub held: Gauge,
}

/// The result of a commit, as labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CommitLabels {
    result: &'static str,
}

/// The result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitResult {
    /// Every device has it.
    Applied,
    /// No device has it.
    Refused,
}

impl CommitResult {
    pub(crate) const fn label(self) -> CommitLabels {
        let result = match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
        };
        CommitLabels { result }
    }
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("publisher");
            let all = metrics.clone();
            registry.register("commits", "Commits by result", all.commits);
            registry.register("documents", "Desired states published", all.documents);
            registry.register("conflicts", "Publishes that found another writer's document", all.conflicts);
            registry.register("poll_failures", "Failed polls of the repository", all.poll_failures);
            registry.register(
                "polled_timestamp_seconds",
                "When a poll of the repository last succeeded, in seconds since 1970",
                all.polled_at,
            );
            registry.register(
                "git_hanging_since_timestamp_seconds",
                "Since when the repository has not answered, in seconds since 1970; 0 while it answers",
                all.hanging_since,
            );
            registry.register("devices", "Devices with a desired state", all.devices);
            registry.register("due", "Desired states that are not published yet", all.due);
            registry.register(
                "held_back",
                "Devices that keep their desired state because the last commit has a mistake for them",
                all.held_back,
            );
            registry.register(
                "held",
                "Changes of single devices that wait for a release because a rollout.yaml governs them",
                all.held,
            );
        });
        for result in [CommitResult::Applied, CommitResult::Refused] {
            metrics.commit(result, 0);
        }
        metrics
    }

    /// Counts commits.
    pub fn commit(&self, result: CommitResult, count: u64) {
        self.commits.get_or_create(&result.label()).inc_by(count);
    }
}
