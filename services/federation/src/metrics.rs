//! Counts for `/metrics`. No label distinguishes hubs, sites or deployments; `muster.query.hubs` does.

use muster_bus::QueryMetrics;
use muster_service::health::Health;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The federation's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Hubs there are.
    pub hubs: Gauge,
    /// Hubs that are heard.
    pub hubs_heard: Gauge,
    /// Questions to hubs for their parts, by result.
    pub asked: Family<AskLabels, Counter>,
    /// Views of hubs that could not be read.
    pub unreadable: Counter,
    /// Claims of a hub to a site that another hub has.
    pub sites_disputed: Counter,
    /// Times the views were left to another federation, which hears more hubs.
    pub stood_back: Counter,
    /// Published views and answered queries.
    pub queries: QueryMetrics,
}

/// A question to a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AskLabels {
    result: AskResult,
}

/// How that went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum AskResult {
    /// Parts came.
    Answered,
    /// None came.
    Failed,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| metrics.describe(registry.sub_registry_with_prefix("federation")));
        for result in [AskResult::Answered, AskResult::Failed] {
            metrics.asked.get_or_create(&AskLabels { result }).inc_by(0);
        }
        metrics
    }

    fn describe(&self, registry: &mut Registry) {
        let all = self.clone();
        registry.register("hubs", "Configured hubs", all.hubs);
        registry.register("hubs_heard", "Hubs that answer within their lease", all.hubs_heard);
        registry.register("asked", "Questions to hubs for their parts, by result", all.asked);
        registry.register("unreadable", "Views of hubs that could not be read", all.unreadable);
        registry.register(
            "sites_disputed",
            "Views of a site from a hub that does not own the site",
            all.sites_disputed,
        );
        self.queries.register(registry);
        registry.register(
            "stood_back",
            "Times the views were left to another federation, which hears more hubs",
            all.stood_back,
        );
    }

    /// Counts a question to a hub.
    pub fn ask(&self, result: AskResult) {
        self.asked.get_or_create(&AskLabels { result }).inc();
    }
}
