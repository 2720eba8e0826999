//! Counts notices. No label distinguishes subscriptions.

use muster_service::health::Health;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The notifier's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct NotifyMetrics {
    notices: Family<NoticeLabels, Counter>,
    /// Subscriptions there are.
    pub subscriptions: Gauge,
    /// Webhooks that deliver nothing any more, because their receivers failed for too long.
    pub disabled_webhooks: Gauge,
}

/// Result of evaluating a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoticeLabels {
    result: NoticeResult,
}

/// Result of evaluating a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum NoticeResult {
    /// The notice was news and published.
    Published,
    /// The state equals the last notice.
    Unchanged,
    /// Another rollup published meanwhile; the subscription is evaluated again.
    Overtaken,
    /// It could not be written and is due again.
    Failed,
}

impl NotifyMetrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        let all = metrics.clone();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("notify");
            registry.register("notices", "Looks at subscriptions, by what became of them", all.notices);
            registry.register("subscriptions", "Subscriptions", all.subscriptions);
            let help = "Webhooks that deliver nothing any more, because their receivers failed for too long";
            registry.register("disabled_webhooks", help, all.disabled_webhooks);
        });
        metrics
    }

    /// Counts a look.
    pub fn notice(&self, result: NoticeResult) {
        self.notices.get_or_create(&NoticeLabels { result }).inc();
    }

    /// Looks with one result since the start.
    pub fn notices_with(&self, result: NoticeResult) -> u64 {
        self.notices.get_or_create(&NoticeLabels { result }).get()
    }
}
