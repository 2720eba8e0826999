//! The metrics of the gateway. No label names a person, a device or a deployment.

use muster_service::health::Health;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The metrics of one listener. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ListenerMetrics {
    /// Open connections.
    pub connections: Gauge,
    /// Connections that were closed for newer ones.
    pub evicted: Counter,
}

/// The gateway's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// The listener of people.
    pub people: ListenerMetrics,
    /// The listener of devices.
    pub devices: ListenerMetrics,
    /// The listener of gRPC.
    pub grpc: ListenerMetrics,
    /// Calls over gRPC that were answered.
    pub grpc_requests: Counter,
    /// Those that were refused or failed before the first message; the later end of a stream is not counted.
    pub grpc_errors: Counter,
    /// Requests of devices that were answered.
    pub device_requests: Counter,
    /// Requests of devices that failed or were refused, by status 400 and above.
    pub device_errors: Counter,
    /// Polls of clusters for their ResourceGroups.
    pub pull_polls: Counter,
    /// Those that failed.
    pub pull_failures: Counter,
    /// Clusters whose last poll failed.
    pub pull_failing_clusters: Gauge,
    /// ResourceGroups of polls that no report could be made of.
    pub pull_refused_groups: Counter,
    /// Requests of people that were answered.
    pub requests: Counter,
    /// Those that were refused or failed, by status 400 and above.
    pub errors: Counter,
    /// Open event streams.
    pub followers: Gauge,
    /// Frames that were written to event streams.
    pub frames: Counter,
    /// Deliveries to webhooks that were tried.
    pub webhook_deliveries: Counter,
    /// Those that failed.
    pub webhook_failures: Counter,
    /// Those that are under way.
    pub webhooks_under_way: Gauge,
}

impl Metrics {
    /// Registered metrics.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("gateway");
            let all = metrics.clone();
            registry.register("connections", "Open connections of people", all.people.connections);
            let help =
                "Connections of people that were closed for newer ones, because as many were open as may be";
            registry.register("evicted_connections", help, all.people.evicted);
            registry.register("device_connections", "Open connections of devices", all.devices.connections);
            let help =
                "Connections of devices that were closed for newer ones, because as many were open as may be";
            registry.register("evicted_device_connections", help, all.devices.evicted);
            registry.register("grpc_connections", "Open gRPC connections", all.grpc.connections);
            let help =
                "gRPC connections that were closed for newer ones, because as many were open as may be";
            registry.register("evicted_grpc_connections", help, all.grpc.evicted);
            registry.register("grpc_requests", "Calls over gRPC that were answered", all.grpc_requests);
            let help = "Calls over gRPC that were refused or failed before the first message; the later end of a stream is not counted";
            registry.register("grpc_errors", help, all.grpc_errors);
            let help = "Requests of devices that were answered";
            registry.register("device_requests", help, all.device_requests);
            let help = "Answers to devices with a status of 400 or above";
            registry.register("device_errors", help, all.device_errors);
            registry.register("pull_polls", "Polls of clusters for their ResourceGroups", all.pull_polls);
            registry.register("pull_failures", "Polls of clusters that failed", all.pull_failures);
            let help = "Clusters whose last poll failed";
            registry.register("pull_failing_clusters", help, all.pull_failing_clusters);
            let help = "ResourceGroups of polls that no report could be made of";
            registry.register("pull_refused_groups", help, all.pull_refused_groups);
            registry.register("requests", "Requests of people that were answered", all.requests);
            registry.register("errors", "Answers to people with a status of 400 or above", all.errors);
            registry.register("followers", "Open event streams", all.followers);
            registry.register("frames", "Frames written to event streams", all.frames);
            let help = "Deliveries to webhooks that were tried";
            registry.register("webhook_deliveries", help, all.webhook_deliveries);
            let help = "Deliveries to webhooks that failed";
            registry.register("webhook_failures", help, all.webhook_failures);
            let help = "Deliveries to webhooks that are under way";
            registry.register("webhooks_under_way", help, all.webhooks_under_way);
        });
        metrics
    }
}
