//! The metrics of the renewer. No label names a device.

use std::sync::atomic::AtomicU64;

use muster_identity::Role;
use muster_service::health::Health;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The renewer's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Renewed tokens that the hub has stored.
    pub renewed: Counter,
    /// Failed renewals, which are repeated.
    pub failures: Counter,
    /// Tokens of enrolled devices that expire at some time.
    pub tokens: Gauge,
    /// Tokens among them with a tenth of their lifetime or less.
    pub ending: Gauge,
    /// When the first of these tokens expires: Unix seconds; 0 if there are none.
    pub first_end: Gauge<f64, AtomicU64>,
    /// Credentials of people and services with a tenth of their lifetime or less, by role.
    credentials_ending: Family<RoleLabels, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabels {
    role: &'static str,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("renewer");
            let all = metrics.clone();
            registry.register("renewed", "Renewed tokens that the hub has stored", all.renewed);
            registry.register("failures", "Failed renewals, which are repeated", all.failures);
            registry.register("tokens", "Tokens of enrolled devices that expire at some time", all.tokens);
            registry.register(
                "tokens_ending",
                "Tokens of enrolled devices with a tenth of their lifetime or less",
                all.ending,
            );
            registry.register(
                "first_end_timestamp_seconds",
                "When the first token of an enrolled device expires, in seconds since 1970; 0 if there is none",
                all.first_end,
            );
            registry.register(
                "credentials_ending",
                "Credentials of people and services with a tenth of their lifetime or less, by role",
                all.credentials_ending,
            );
        });
        metrics
    }

    /// Sets how many credentials end soon, from the role of each.
    pub(crate) fn show_ending(&self, ending: &[Role]) {
        for role in Role::ALL.into_iter().filter(|role| *role != Role::Device) {
            let count = ending.iter().filter(|one| **one == role).count();
            self.credentials_ending.get_or_create(&RoleLabels { role: role.as_str() }).set(count as i64);
        }
    }
}
