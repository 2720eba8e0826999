//! The metrics of the planner. No label names a device or a deployment.

use muster_service::health::Health;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The planner's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Requests that failed.
    pub failures: Counter,
    /// 1 while nothing is decided: LEDGER is not read to its end, or the hub has no pulse.
    pub behind: Gauge,
    /// Sequence of the last fact of LEDGER that was read.
    pub ledger_seq: Gauge,
    /// Devices that a content was released to.
    pub released: Counter,
    /// Rollouts of deployments with held changes or an open rollout.
    pub rollouts: Gauge,
    /// Rollouts that have failed, are paused, stopped or rolled back, or wait for such a one.
    pub stopped: Gauge,
    /// Rollouts that wait for approvals of a wave.
    pub approvals: Gauge,
    /// Answers to checks, or their absence.
    pub checks: Counter,
    /// Those that were inconclusive.
    pub inconclusive: Counter,
    /// Documents that were appended to PLANS.
    pub appended: Counter,
    /// Batches of documents that PLANS refused or did not confirm.
    pub conflicts: Counter,
    /// Orders of approved operations that the publisher has accepted.
    pub orders: Counter,
    /// Orders that LEDGER does not show yet.
    pub orders_open: Gauge,
    /// 1 while no order is sent: PLANS or LEDGER is not read to its end, or the hub has no pulse.
    pub plans_behind: Gauge,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("planner");
            let all = metrics.clone();
            registry.register("failures", "Requests that failed and are repeated", all.failures);
            registry.register(
                "behind",
                "1 while nothing is decided: LEDGER is not read to its end, or the hub has no pulse",
                all.behind,
            );
            registry.register(
                "ledger_seq",
                "Sequence of the last fact of LEDGER that was read",
                all.ledger_seq,
            );
            registry.register("released", "Devices that a content was released to", all.released);
            registry.register(
                "rollouts",
                "Rollouts of deployments with held changes or an open rollout",
                all.rollouts,
            );
            registry.register(
                "stopped",
                "Rollouts that have failed, are paused, stopped or rolled back, or wait for such a one",
                all.stopped,
            );
            registry.register("approvals", "Rollouts that wait for approvals of a wave", all.approvals);
            registry.register("checks", "Answers to checks of waves, or their absence", all.checks);
            registry.register(
                "checks_inconclusive",
                "Checks of waves that had no usable answer",
                all.inconclusive,
            );
            registry.register("plans_appended", "Documents that were appended to PLANS", all.appended);
            registry.register(
                "plans_conflicts",
                "Batches of documents that PLANS refused or did not confirm",
                all.conflicts,
            );
            registry.register("plans_orders", "Orders of instances that the publisher has accepted", all.orders);
            registry.register("plans_orders_open", "Orders that LEDGER does not show yet", all.orders_open);
            registry.register(
                "plans_behind",
                "1 while no order of plans is sent: PLANS or LEDGER is not read to its end, or the hub has no pulse",
                all.plans_behind,
            );
        });
        metrics
    }
}
