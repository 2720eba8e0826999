//! Gauges of the fleet's state in `/metrics`: deployments by verdict, targets by standing, devices by freshness, missing
//! reports and silence. No label names a device or a deployment; a bounded number of sites is named. All rollups of a hub
//! export the same values, so a query over several rollups takes their maximum.

use muster_contract::view::{Split, Standing, Tally, Verdict};
use muster_service::health::Health;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::gauge::shown;
use super::silence::SilenceMetrics;

/// The state of the fleet. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FleetMetrics {
    deployments: Family<VerdictLabels, Gauge>,
    targets: Family<StandingLabels, Gauge>,
    devices: Family<FreshnessLabels, Gauge>,
    leaving: Gauge,
    overdue: Gauge,
    retried: Gauge,
    missing_reports: Gauge,
    silent_sites: Gauge,
    /// Silent devices by site, and the oldest silence.
    pub silence: SilenceMetrics,
}

/// A verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    verdict: &'static str,
}

/// A standing on devices of one freshness.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StandingLabels {
    standing: &'static str,
    freshness: &'static str,
}

/// A freshness.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FreshnessLabels {
    freshness: &'static str,
}

impl FleetMetrics {
    /// Registers the metrics.
    pub(super) fn register(&self, health: &Health) {
        health.metrics(|registry| self.describe(registry.sub_registry_with_prefix("fleet")));
    }

    fn describe(&self, registry: &mut Registry) {
        let all = self.clone();
        registry.register("deployments", "Deployments by verdict", all.deployments);
        registry.register("targets", "Targets by standing and by freshness of their devices", all.targets);
        registry.register("devices", "Devices by freshness; retired ones are not counted", all.devices);
        registry.register("leaving", "Standings that should not be and still are", all.leaving);
        registry.register("overdue", "Targets past their deadline", all.overdue);
        registry.register("retried", "Targets that are tried again after an error", all.retried);
        registry.register("missing_reports", "Reports that exist and are not in", all.missing_reports);
        registry.register("silent_sites", "Sites that are silent as a whole", all.silent_sites);
        all.silence.describe(registry);
    }

    /// Sets the gauges from the tally of the fleet's view and the number of sites that are silent as a whole.
    pub fn show(&self, fleet: &Tally, silent_sites: u64) {
        for verdict in Verdict::ALL {
            let count = fleet.deployments.get(&verdict).copied().unwrap_or_default();
            let labels = VerdictLabels { verdict: verdict.as_str() };
            self.deployments.get_or_create(&labels).set(shown(count));
        }
        for standing in Standing::ALL {
            let split = fleet.counts.get(&standing).copied().unwrap_or_default();
            for (freshness, count) in by_freshness(split) {
                let labels = StandingLabels { standing: standing.as_str(), freshness };
                self.targets.get_or_create(&labels).set(shown(count));
            }
        }
        for (freshness, count) in by_freshness(fleet.devices) {
            self.devices.get_or_create(&FreshnessLabels { freshness }).set(shown(count));
        }
        self.leaving.set(shown(fleet.leaving));
        self.overdue.set(shown(fleet.overdue));
        self.retried.set(shown(fleet.retried.targets));
        self.missing_reports.set(shown(fleet.complete.missing_reports));
        self.silent_sites.set(shown(silent_sites));
    }
}

const fn by_freshness(split: Split) -> [(&'static str, u64); 3] {
    [("fresh", split.fresh), ("stale", split.stale), ("never", split.never)]
}

#[cfg(test)]
mod tests {
    use muster_domain::fold::Fleet;

    use super::*;

    #[test]
    fn a_count_that_leaves_the_view_returns_to_zero() {
        let mut tally = Fleet::default().fleet_view().tally;
        tally.deployments.insert(Verdict::Failing, 2);
        tally.counts.insert(Standing::Failed, Split { stale: 3, ..Split::default() });
        let metrics = FleetMetrics::default();
        let failing = || metrics.deployments.get_or_create(&VerdictLabels { verdict: "failing" }).get();
        let failed = || {
            let labels = StandingLabels { standing: "failed", freshness: "stale" };
            metrics.targets.get_or_create(&labels).get()
        };
        metrics.show(&tally, 1);
        assert_eq!((failing(), failed(), metrics.silent_sites.get()), (2, 3, 1));
        metrics.show(&Fleet::default().fleet_view().tally, 0);
        assert_eq!((failing(), failed(), metrics.silent_sites.get()), (0, 0, 0));
    }
}
