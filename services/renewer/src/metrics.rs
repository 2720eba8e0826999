//! What the renewer counts, for `/metrics`. No label tells devices apart.

use std::sync::atomic::AtomicU64;

use muster_service::health::Health;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The renewer's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Tokens that were signed anew and handed to the hub.
    pub renewed: Counter,
    /// Renewals that came to nothing, and are tried again.
    pub failures: Counter,
    /// Tokens of devices that are in and end some time.
    pub tokens: Gauge,
    /// Those of them of which a tenth of their life or less is left.
    pub ending: Gauge,
    /// When the first of all tokens ends, in seconds since 1970; 0 where none does.
    pub first_end: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("renewer");
            let all = metrics.clone();
            registry.register("renewed", "Tokens signed anew and handed to the hub", all.renewed);
            registry.register("failures", "Renewals that came to nothing and are tried again", all.failures);
            registry.register("tokens", "Tokens of devices that are in and end some time", all.tokens);
            registry.register(
                "tokens_ending",
                "Tokens of devices that are in, of which a tenth of their life or less is left",
                all.ending,
            );
            registry.register(
                "first_end_timestamp_seconds",
                "When the first token of a device that is in ends, in seconds since 1970; 0 where none does",
                all.first_end,
            );
        });
        metrics
    }
}
