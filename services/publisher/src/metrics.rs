//! What the publisher counts, for `/metrics`.

use std::sync::atomic::AtomicU64;

use muster_service::health::Health;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The publisher's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Commits by what became of them.
    pub commits: Family<CommitLabels, Counter>,
    /// Documents published.
    pub documents: Counter,
    /// Publishes that found another writer's document.
    pub conflicts: Counter,
    /// Polls that came to nothing.
    pub poll_failures: Counter,
    /// When the repository was last asked with success.
    pub polled_at: Gauge<f64, AtomicU64>,
    /// Since when the repository hangs; 0 while it does not.
    pub hanging_since: Gauge<f64, AtomicU64>,
    /// Devices with a desired state.
    pub devices: Gauge,
    /// Documents that are due.
    pub due: Gauge,
    /// Devices that cannot use what the last commit says of them.
    pub held_back: Gauge,
}

/// What became of a commit, as labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CommitLabels {
    result: &'static str,
}

/// What became of a commit.
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
            registry.register("commits", "Commits by what became of them", all.commits);
            registry.register("documents", "Desired states published", all.documents);
            registry.register("conflicts", "Publishes that found another writer's document", all.conflicts);
            registry.register(
                "poll_failures",
                "Polls of the repository that came to nothing",
                all.poll_failures,
            );
            registry.register(
                "polled_timestamp_seconds",
                "When the repository was last asked with success, in seconds since 1970",
                all.polled_at,
            );
            registry.register(
                "git_hanging_since_timestamp_seconds",
                "Since when the repository takes requests and gives no answer, in seconds since 1970; 0 while it answers",
                all.hanging_since,
            );
            registry.register("devices", "Devices with a desired state", all.devices);
            registry.register("due", "Desired states that are still to be published", all.due);
            registry.register(
                "held_back",
                "Devices that keep what they have, because they cannot use what the last commit says of them",
                all.held_back,
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
