//! Counts notices. No label distinguishes subscriptions.

use std::fmt;

use muster_contract::notify::WebhookUntriedCause;
use muster_service::clock::{Clock as _, SystemClock};
use muster_service::health::Health;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};

use crate::register::{SharedRegister, held};

/// Causes of notices without a try, with the values of their label.
const CAUSES: [(WebhookUntriedCause, &str); 3] = [
    (WebhookUntriedCause::NoGateway, "NoGateway"),
    (WebhookUntriedCause::NoKey, "NoKey"),
    (WebhookUntriedCause::Busy, "Busy"),
];

/// The notifier's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct NotifyMetrics {
    notices: Family<NoticeLabels, Counter>,
    /// Subscriptions there are.
    pub subscriptions: Gauge,
    /// Webhooks that deliver nothing any more, because their receivers failed for too long or their owners were revoked.
    pub disabled_webhooks: Gauge,
}

/// How long notices of webhooks are due without a try, by cause. A scrape computes it: it grows while nothing happens.
#[derive(Debug)]
struct UntriedWebhooks(SharedRegister);

impl Collector for UntriedWebhooks {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = SystemClock.now();
        let oldest = held(&self.0).untried_webhooks(now);
        let help =
            "How long the oldest notice of a webhook is due that no gateway has tried to deliver, by cause";
        let mut family =
            encoder.encode_descriptor("webhook_untried_seconds", help, None, MetricType::Gauge)?;
        for (cause, label) in CAUSES {
            let since = oldest.get(&cause);
            let seconds = since.map_or(0.0, |since| now.duration_since(*since).as_secs_f64().max(0.0));
            ConstGauge::new(seconds).encode(family.encode_family(&[("cause", label)])?)?;
        }
        Ok(())
    }
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
    /// Registered metrics of the notices of a register.
    pub fn register(health: &Health, register: &SharedRegister) -> Self {
        let metrics = Self::default();
        let all = metrics.clone();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("notify");
            registry.register("notices", "Checks of subscriptions, by result", all.notices);
            registry.register("subscriptions", "Subscriptions", all.subscriptions);
            let help =
                "Webhooks that deliver nothing any more: their receivers failed for too long, or their owners were revoked";
            registry.register("disabled_webhooks", help, all.disabled_webhooks);
            registry.register_collector(Box::new(UntriedWebhooks(SharedRegister::clone(register))));
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
