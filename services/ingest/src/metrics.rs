//! The metrics of ingest. No label names a device.

use std::sync::Arc;

use muster_contract::decode::Document;
use muster_contract::fact::{DeadlineFact, DeviceFact, Incident, LivenessFact, QuarantineFact, StatusFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::quarantine::QuarantineVerdict;
use muster_domain::intake::Outcome;
use muster_service::health::Health;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Ingest's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Reports by outcome.
    reports: Family<OutcomeLabels, Counter>,
    /// Facts that LEDGER confirmed, by kind.
    facts: Family<KindLabels, Counter>,
    /// Heartbeats that were parsed.
    pub heartbeats: Counter,
    /// Heartbeats that could not be parsed.
    pub heartbeats_refused: Counter,
    /// Receipts that DOWNLINK confirmed.
    pub receipts: Counter,
    /// Times a partition read LEDGER again, because the outcome of a publication was unknown.
    pub rewinds: Counter,
    /// Facts that LEDGER will never store.
    pub unstorable: Counter,
    /// Times the documents of a device were read before one of its reports was evaluated.
    pub document_lookups: Counter,
    /// Acknowledged reports removed from UPLINK.
    pub trimmed: Counter,
    lag: Family<PartitionLabels, Gauge>,
    unconfirmed: Family<PartitionLabels, Gauge>,
    devices: Family<PartitionLabels, Gauge>,
    owned: Family<PartitionLabels, Gauge>,
    throttled: Family<PartitionLabels, Gauge>,
    /// Times another process took a partition of this process.
    pub leases_lost: Counter,
    /// The metrics of the watcher of connections.
    pub connections: ConnectionMetrics,
    /// How full LEDGER is.
    pub ledger: LedgerMetrics,
    /// How full QUARANTINE is.
    pub quarantine: QuarantineMetrics,
}

/// How full LEDGER is.
#[derive(Debug, Clone, Default)]
pub struct LedgerMetrics {
    /// Bytes it holds.
    pub bytes: Gauge,
    /// Bytes that it may hold; 0 without a bound.
    pub bytes_max: Gauge,
    /// While it fills up: the sequence through which every fact that still holds is re-asserted.
    pub reasserted: Gauge,
    /// 1 while reports wait for that.
    pub held: Gauge,
}

/// How full QUARANTINE is.
#[derive(Debug, Clone, Default)]
pub struct QuarantineMetrics {
    /// Rejected reports that wait for a decision.
    pub reports: Gauge,
    /// Their bytes.
    pub bytes: Gauge,
    /// Bytes that it may hold; 0 without a bound.
    pub bytes_max: Gauge,
}

/// The metrics of the watcher of connections.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    /// Open connections of users with a role, at all servers.
    pub open: Gauge,
    /// Connections ended because their key had too many.
    pub ended: Counter,
    /// 1 while the watcher receives the servers' events.
    pub watching: Gauge,
}

/// The metrics of one partition.
#[derive(Debug, Clone)]
pub struct PartitionMetrics {
    /// The metrics that all partitions share.
    pub all: Metrics,
    /// Reports of the partition that wait in UPLINK.
    pub lag: Gauge,
    /// Publications that LEDGER has yet to confirm.
    pub unconfirmed: Gauge,
    /// Known devices.
    pub devices: Gauge,
    /// 1 while this process owns the partition, 0 while it stands by.
    pub owned: Gauge,
    /// Devices beyond their quota.
    pub throttled: Gauge,
    /// The counters of the outcomes, looked up once because every report is counted.
    outcomes: Arc<[Counter; 8]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: OutcomeLabel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OutcomeLabel(Outcome);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabels {
    partition: u16,
}

const OUTCOMES: [Outcome; 8] = [
    Outcome::New,
    Outcome::Late,
    Outcome::Amended,
    Outcome::Duplicate,
    Outcome::Quarantined,
    Outcome::Repeated,
    Outcome::Batched,
    Outcome::Refused,
];
const KINDS: [&str; 7] = [
    StatusFact::KIND,
    DeviceFact::KIND,
    LivenessFact::KIND,
    DeadlineFact::KIND,
    Incident::KIND,
    QuarantineFact::KIND,
    QuarantineVerdict::KIND,
];

impl EncodeLabelValue for OutcomeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let word = match self.0 {
            Outcome::New => "new",
            Outcome::Late => "late",
            Outcome::Amended => "amended",
            Outcome::Duplicate => "duplicate",
            Outcome::Quarantined => "quarantined",
            Outcome::Repeated => "repeated",
            Outcome::Batched => "summed",
            Outcome::Refused => "refused",
            Outcome::Storing => "storing",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

impl Metrics {
    /// Registers all metrics, so that each exists from the start.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        let all = metrics.clone();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("ingest");
            registry.register("reports", "Reports by outcome", all.reports);
            registry.register("facts", "Facts that LEDGER confirmed, by kind", all.facts);
            registry.register("heartbeats", "Heartbeats that were parsed", all.heartbeats);
            registry.register(
                "heartbeats_refused",
                "Heartbeats that could not be parsed",
                all.heartbeats_refused,
            );
            registry.register("receipts", "Receipts that DOWNLINK confirmed", all.receipts);
            registry.register("rewinds", "Times a partition read LEDGER again", all.rewinds);
            registry.register("unstorable", "Facts that LEDGER will never store", all.unstorable);
            registry.register(
                "document_lookups",
                "Times a device's documents were read before a report of an unknown deployment was evaluated",
                all.document_lookups,
            );
            registry.register("trimmed", "Acknowledged reports removed from UPLINK", all.trimmed);
            registry.register("lag", "Reports that wait in UPLINK", all.lag);
            registry.register("unconfirmed", "Facts that LEDGER has yet to confirm", all.unconfirmed);
            registry.register("devices", "Known devices", all.devices);
            registry.register(
                "owned",
                "1 while this process owns the partition, 0 while it stands by",
                all.owned,
            );
            registry.register("throttled", "Devices that send more than their quota", all.throttled);
            registry.register(
                "leases_lost",
                "Times another process took a partition of this process",
                all.leases_lost.clone(),
            );
            registry.register("usurped", "Old name of leases_lost, for one release", all.leases_lost);
            let LedgerMetrics { bytes, bytes_max, reasserted, held } = all.ledger;
            registry.register("ledger_bytes", "Bytes that LEDGER holds", bytes);
            registry.register("ledger_bytes_max", "Bytes that LEDGER may hold; 0 without a bound", bytes_max);
            registry.register(
                "ledger_reasserted",
                "While LEDGER fills up: every fact that holds is re-asserted through this sequence",
                reasserted,
            );
            registry.register(
                "ledger_held",
                "1 while reports wait until LEDGER's oldest facts are re-asserted",
                held,
            );
            let QuarantineMetrics { reports, bytes, bytes_max } = all.quarantine;
            registry.register("quarantine_reports", "Rejected reports that wait for a decision", reports);
            registry.register("quarantine_bytes", "Bytes of the rejected reports", bytes);
            registry.register(
                "quarantine_bytes_max",
                "Bytes that QUARANTINE may hold; 0 without a bound",
                bytes_max,
            );
            let ConnectionMetrics { open, ended, watching } = all.connections;
            registry.register("connections", "Connections of users with a role, at all servers", open);
            registry.register("connections_ended", "Connections ended because their key had too many", ended);
            registry.register("connections_watched", "1 while connections are counted", watching);
        });
        KINDS.iter().for_each(|kind| metrics.fact(kind, 0));
        OUTCOMES.iter().for_each(|outcome| _ = metrics.outcome(*outcome));
        metrics
    }

    /// Counts confirmed facts.
    pub fn fact(&self, kind: &'static str, count: u64) {
        self.facts.get_or_create(&KindLabels { kind }).inc_by(count);
    }

    /// The metrics of one partition.
    pub fn partition(&self, partition: u16) -> PartitionMetrics {
        debug_assert!(partition < PARTITIONS);
        let labels = PartitionLabels { partition };
        PartitionMetrics {
            all: self.clone(),
            lag: self.lag.get_or_create_owned(&labels),
            unconfirmed: self.unconfirmed.get_or_create_owned(&labels),
            devices: self.devices.get_or_create_owned(&labels),
            owned: self.owned.get_or_create_owned(&labels),
            throttled: self.throttled.get_or_create_owned(&labels),
            outcomes: Arc::new(OUTCOMES.map(|outcome| self.outcome(outcome))),
        }
    }

    fn outcome(&self, outcome: Outcome) -> Counter {
        self.reports.get_or_create_owned(&OutcomeLabels { outcome: OutcomeLabel(outcome) })
    }
}

impl PartitionMetrics {
    /// The reports of all partitions by outcome.
    pub fn reports(&self) -> impl Iterator<Item = (Outcome, u64)> {
        OUTCOMES.into_iter().map(|outcome| (outcome, self.outcomes[outcome as usize].get()))
    }

    /// Counts a report. A report that waits for QUARANTINE is counted by its final outcome.
    pub fn report(&self, outcome: Outcome) {
        self.outcomes.get(outcome as usize).map(Counter::inc);
    }
}

#[cfg(test)]
mod tests {
    use muster_service::supervisor::Supervisor;

    use super::*;

    #[test]
    fn each_outcome_is_counted_under_its_own_name() {
        let supervisor = Supervisor::new();
        let metrics = Metrics::register(supervisor.health()).partition(3);
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            (0..=at).for_each(|_| metrics.report(outcome));
        }
        let text = supervisor.health().metrics_text();
        let words = ["new", "late", "amended", "duplicate", "quarantined", "repeated", "summed", "refused"];
        for (at, word) in words.into_iter().enumerate() {
            let line = format!("muster_ingest_reports_total{{outcome=\"{word}\"}} {}", at + 1);
            assert!(text.contains(&line), "{line} is missing:\n{text}");
        }
    }
}
