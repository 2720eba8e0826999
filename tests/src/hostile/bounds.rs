//! The bounds that hold during an attack, those of the contract and of issue 21, in one place, and which of them an
//! [`Outcome`] breaks. It measures nothing.

use std::time::Duration;

use muster_contract::limits::{
    DEPLOYMENTS_PER_DEVICE_MAX, DEVICE_BYTES_PER_SECOND, DEVICE_REPORTS_PER_SECOND, EPOCH_RISES_PER_HOUR,
    REPORT_BYTES_MAX, UPLINK_SHARE,
};
use muster_contract::notify::SUBSCRIPTIONS_OF_USER_MAX;
use muster_domain::intake::rejection_facts_max;
use muster_domain::trim::Quota;
use muster_identity::claims::MIRROR_CONSUMERS_MAX;

use super::flood::Flood;
use super::hub::SERVER;
use super::outcome::Outcome;

/// Good devices beside each flood.
pub const GOOD_DEVICES: usize = 20;
/// Reports a second of each good device.
pub const REPORTS_PER_SECOND: u32 = 2;
/// Latency of a good report during a flood, in multiples of the calm one.
pub const LATENCY_FACTOR: f64 = 3.0;
/// Latency of a good report during a flood that nothing excuses.
pub const LATENCY_MAX: Duration = Duration::from_secs(1);
/// Resident memory of a process during a flood, in multiples of the calm one; [`MEMORY_EXTRA_BYTES`] are added.
pub const MEMORY_FACTOR: u64 = 2;
/// Bytes of memory that a flood may add beyond the factor.
pub const MEMORY_EXTRA_BYTES: u64 = 200 * 1_000_000;
/// The memory that nats-server never exceeds, even where it misses the bound above: beside a device with the largest reports.
pub const SERVER_MEMORY_CEILING_BYTES: u64 = 1_200 * 1_000_000;

/// Bytes in LEDGER for each byte of a report: a fact carries its envelope beside the report.
pub const LEDGER_BYTES_FACTOR: u64 = 4;
/// Epochs of a device within an hour: the first, and its rises.
pub const EPOCHS_MAX: usize = EPOCH_RISES_PER_HOUR + 1;
/// Deployments that a device may speak of.
pub const DEPLOYMENTS_MAX: usize = DEPLOYMENTS_PER_DEVICE_MAX;
/// Bytes of a report that is no flood's largest.
const REPORT_BYTES: u64 = 4 * 1024;
/// Bytes of a quarantine fact: its example, and the numbers that it stands for.
const REFUSAL_BYTES: u64 = 32 * 1024;
/// Incidents, liveness and deadlines of a device: what is not said once for each of its reports.
const OTHER_FACTS_MAX: u64 = 64;
/// Connections of one credential that stay, after the hub had time to end the others.
pub const CONNECTIONS_MAX: usize = 4;
/// Notice subscriptions that one requester may hold.
pub const SUBSCRIPTIONS_MAX: usize = SUBSCRIPTIONS_OF_USER_MAX;
/// Consumers on the LEDGER that readers use: what their account allows. Services have an account of their own.
pub const CONSUMERS_MAX: usize = MIRROR_CONSUMERS_MAX as usize;
/// Time in which the hub ends what exceeds such a bound.
pub const ENFORCED_WITHIN: Duration = Duration::from_secs(10);
/// Facts of one device's backlog before the fact of a report that came after it: the device's share of UPLINK.
pub const FACTS_BEFORE_ANOTHER: u64 = UPLINK_SHARE as u64;
/// Time in which a restarted ingest takes reports again.
pub const RESTART_MAX: Duration = Duration::from_secs(20);

const _: () = {
    assert!(CONNECTIONS_MAX < 16 && SUBSCRIPTIONS_MAX < 1_000);
};

impl Outcome {
    /// Reports of the device that floods that ingest may take in: its burst, what the sustained rate gives, and a share of
    /// UPLINK, because ingest writes facts before it charges the quota.
    fn reports_max(&self) -> u64 {
        let rate = Quota::new(DEVICE_REPORTS_PER_SECOND, DEVICE_BYTES_PER_SECOND, self.burst_reports).reports;
        rate.burst + self.whole_seconds() * rate.per_second + u64::from(UPLINK_SHARE)
    }

    fn refusals_max(&self) -> u64 {
        rejection_facts_max(self.reports_max() + self.reports, self.whole_seconds())
    }

    /// Bytes that LEDGER may grow by: those of the flood's reports by the same rule, and everybody's other facts.
    fn ledger_bytes_max(&self) -> u64 {
        let quota = Quota::new(DEVICE_REPORTS_PER_SECOND, DEVICE_BYTES_PER_SECOND, self.burst_reports);
        let report_bytes =
            if self.flood == Some(Flood::LargestReports) { REPORT_BYTES_MAX as u64 } else { REPORT_BYTES };
        let flood = quota.bytes.burst + self.whole_seconds() * quota.bytes.per_second;
        let share = u64::from(UPLINK_SHARE) * report_bytes;
        let good = self.reports * REPORT_BYTES;
        LEDGER_BYTES_FACTOR * (flood + share + good) + self.refusals_max() * REFUSAL_BYTES
    }

    const fn whole_seconds(&self) -> u64 {
        self.seconds.ceil() as u64
    }

    /// The counts that are out of bounds: what no machine is too slow for.
    pub fn broken_counts(&self, calm: &Self) -> Vec<String> {
        let mut broken = self.lost.clone();
        let mut check = |holds: bool, text: String| {
            if !holds {
                broken.push(text);
            }
        };
        check(self.refused == 0, format!("{} publishes of good devices were refused", self.refused));
        let unsettled = self.reports - self.in_view;
        check(unsettled == 0, format!("{unsettled} of {} good reports are not in the view", self.reports));
        for (name, &bytes) in &self.memory {
            let bound = calm.memory.get(name).unwrap_or(&0) * MEMORY_FACTOR + MEMORY_EXTRA_BYTES;
            check(
                bytes <= bound,
                format!("{name} has {} MB, above {} MB", bytes / 1_000_000, bound / 1_000_000),
            );
        }
        let refusals = self.refusals_max();
        let facts = self.reports_max() + refusals + OTHER_FACTS_MAX;
        let server = self.memory.get(SERVER).copied().unwrap_or_default();
        check(
            server <= SERVER_MEMORY_CEILING_BYTES,
            format!("{} MB of nats-server are above the ceiling", server / 1_000_000),
        );
        let of_flood = self.facts.total();
        check(of_flood <= facts, format!("LEDGER took {of_flood} facts of the flood, above {facts}"));
        let bytes = self.ledger_bytes_max();
        check(
            self.ledger_bytes <= bytes,
            format!("LEDGER grew by {} MB, above {} MB", self.ledger_bytes / 1_000_000, bytes / 1_000_000),
        );
        let quarantined = self.facts.quarantine;
        check(quarantined <= refusals, format!("{quarantined} quarantine facts, above {refusals}"));
        let deployments = self.facts.deployments;
        check(
            deployments <= DEPLOYMENTS_MAX,
            format!("{deployments} deployments of one device, above {DEPLOYMENTS_MAX}"),
        );
        let epochs = self.facts.epochs;
        check(epochs <= EPOCHS_MAX, format!("{epochs} epochs of one device, above {EPOCHS_MAX}"));
        let views = calm.views + DEPLOYMENTS_MAX as u64;
        check(self.views <= views, format!("{} views, above {views}", self.views));
        if let (Some(held), Some(most)) = (self.held, self.flood.and_then(held_max)) {
            check(held <= most, format!("the attacker holds {held}, above {most}"));
        }
        broken
    }

    /// The latencies that are out of bounds.
    pub fn broken_latencies(&self, calm: &Self) -> Vec<String> {
        let max = LATENCY_MAX.as_secs_f64() * 1000.0;
        let bound = (calm.ledger.p99 * LATENCY_FACTOR).min(max);
        let mut broken = Vec::new();
        if self.ledger.p99 > bound {
            broken.push(format!("p99 to LEDGER {:.0} ms, above {bound:.0} ms", self.ledger.p99));
        }
        if self.view.p99 > max {
            broken.push(format!("p99 to the view {:.0} ms, above {max:.0} ms", self.view.p99));
        }
        broken
    }
}

/// The most connections, consumers or subscriptions that an attacker may hold at the end of its flood.
pub const fn held_max(flood: Flood) -> Option<usize> {
    match flood {
        Flood::Connections => Some(CONNECTIONS_MAX),
        Flood::DurableConsumers => Some(CONSUMERS_MAX),
        Flood::NoticeSubscriptions => Some(SUBSCRIPTIONS_MAX),
        _ => None,
    }
}
