//! What ingest counts, for `/metrics`. No label is a device's.

use std::sync::Arc;

use muster_contract::decode::Document;
use muster_contract::fact::{DeadlineFact, DeviceFact, Incident, LivenessFact, QuarantineFact, StatusFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::quarantine::QuarantineVerdict;
use muster_domain::border::Outcome;
use muster_service::health::Health;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Ingest's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Reports by what became of them.
    reports: Family<OutcomeLabels, Counter>,
    /// Facts that LEDGER confirmed, by kind.
    facts: Family<KindLabels, Counter>,
    /// Heartbeats taken in.
    pub heartbeats: Counter,
    /// Heartbeats that could not be read.
    pub heartbeats_refused: Counter,
    /// Receipts that DOWNLINK confirmed.
    pub receipts: Counter,
    /// Times a partition read LEDGER again, because the fate of a publication was unknown.
    pub rewinds: Counter,
    /// Facts that LEDGER refused for good.
    pub unstorable: Counter,
    /// Times the documents of a device were read before one of its reports was judged.
    pub document_lookups: Counter,
    /// Acknowledged reports removed from UPLINK.
    pub trimmed: Counter,
    lag: Family<PartitionLabels, Gauge>,
    unconfirmed: Family<PartitionLabels, Gauge>,
    devices: Family<PartitionLabels, Gauge>,
    owned: Family<PartitionLabels, Gauge>,
    throttled: Family<PartitionLabels, Gauge>,
    /// Times another process took a partition that was this one's.
    pub usurped: Counter,
    /// What the watcher of connections counts.
    pub connections: ConnectionMetrics,
    /// How full LEDGER is.
    pub ledger: LedgerMetrics,
}

/// How full LEDGER is.
#[derive(Debug, Clone, Default)]
pub struct LedgerMetrics {
    /// Bytes it holds.
    pub bytes: Gauge,
    /// Bytes it may hold; 0 without a bound.
    pub bytes_max: Gauge,
    /// While it fills up: the sequence through which everything that holds is re-asserted.
    pub reasserted: Gauge,
    /// 1 while reports wait for that.
    pub held: Gauge,
}

/// What the watcher of connections counts.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    /// Connections open at the servers, of users with a role.
    pub open: Gauge,
    /// Connections ended because their key had too many.
    pub ended: Counter,
    /// 1 while the watcher hears the servers' events.
    pub watching: Gauge,
}

/// The numbers of one partition.
#[derive(Debug, Clone)]
pub struct PartitionMetrics {
    /// What all partitions share.
    pub all: Metrics,
    /// Reports of the partition that wait in UPLINK.
    pub lag: Gauge,
    /// Publications that LEDGER has yet to confirm.
    pub unconfirmed: Gauge,
    /// Devices known.
    pub devices: Gauge,
    /// 1 while the partition is this process's, 0 while it stands by.
    pub owned: Gauge,
    /// Devices beyond their quota.
    pub throttled: Gauge,
    /// Looked up once: every report counts.
    outcomes: Arc<[Counter; 7]>,
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

const OUTCOMES: [Outcome; 7] = [
    Outcome::New,
    Outcome::Late,
    Outcome::Amended,
    Outcome::Duplicate,
    Outcome::Quarantined,
    Outcome::Repeated,
    Outcome::Summed,
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
            Outcome::Summed => "summed",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

impl Metrics {
    /// Registered metrics, all there from the start.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        let all = metrics.clone();
        health.metrics(|registry| {
            let registry = registry.sub_registry_with_prefix("ingest");
            registry.register("reports", "Reports by what became of them", all.reports);
            registry.register("facts", "Facts that LEDGER confirmed, by kind", all.facts);
            registry.register("heartbeats", "Heartbeats taken in", all.heartbeats);
            registry.register(
                "heartbeats_refused",
                "Heartbeats that could not be read",
                all.heartbeats_refused,
            );
            registry.register("receipts", "Receipts that DOWNLINK confirmed", all.receipts);
            registry.register("rewinds", "Times a partition read LEDGER again", all.rewinds);
            registry.register("unstorable", "Facts that LEDGER refused for good", all.unstorable);
            registry.register(
                "document_lookups",
                "Times a device's documents were read before a report of a deployment that they did not name was judged",
                all.document_lookups,
            );
            registry.register("trimmed", "Acknowledged reports removed from UPLINK", all.trimmed);
            registry.register("lag", "Reports that wait in UPLINK", all.lag);
            registry.register("unconfirmed", "Facts that LEDGER has yet to confirm", all.unconfirmed);
            registry.register("devices", "Devices known", all.devices);
            registry.register(
                "owned",
                "1 where the partition is this process's, 0 where it stands by",
                all.owned,
            );
            registry.register("throttled", "Devices that send more than their quota", all.throttled);
            registry.register("usurped", "Times another process took a partition of this one", all.usurped);
            let LedgerMetrics { bytes, bytes_max, reasserted, held } = all.ledger;
            registry.register("ledger_bytes", "Bytes that LEDGER holds", bytes);
            registry.register("ledger_bytes_max", "Bytes that LEDGER may hold; 0 without a bound", bytes_max);
            registry.register(
                "ledger_reasserted",
                "While LEDGER fills up: everything that holds is re-asserted through this sequence",
                reasserted,
            );
            registry.register(
                "ledger_held",
                "1 while reports wait until LEDGER's old end is re-asserted",
                held,
            );
            let ConnectionMetrics { open, ended, watching } = all.connections;
            registry.register("connections", "Connections of users with a role, at all servers", open);
            registry.register("connections_ended", "Connections ended: their key had too many", ended);
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

    /// The numbers of one partition.
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
    /// Counts a report.
    pub fn report(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].inc();
    }
}

#[cfg(test)]
mod tests {
    use muster_service::life::Life;

    use super::*;

    #[test]
    fn each_outcome_is_counted_under_its_own_name() {
        let life = Life::new();
        let metrics = Metrics::register(life.health()).partition(3);
        for (at, outcome) in OUTCOMES.into_iter().enumerate() {
            (0..=at).for_each(|_| metrics.report(outcome));
        }
        let text = life.health().metrics_text();
        let words = ["new", "late", "amended", "duplicate", "quarantined", "repeated", "summed"];
        for (at, word) in words.into_iter().enumerate() {
            let line = format!("muster_ingest_reports_total{{outcome=\"{word}\"}} {}", at + 1);
            assert!(text.contains(&line), "{line} is missing:\n{text}");
        }
    }
}
