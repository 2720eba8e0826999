//! The effects of one attack on the good devices and on the hub.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::flood::Flood;

/// The outcome of one attack, or of a calm time where `flood` is none.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The flood.
    #[serde(serialize_with = "named")]
    pub flood: Option<Flood>,
    /// How long it lasted.
    pub seconds: f64,
    /// The burst of each device's quota.
    pub burst_reports: u64,
    /// The actions of the attacker, and their result.
    pub attack: String,
    /// Messages, requests or objects that the attacker tried.
    pub attempts: u64,
    /// Connections, consumers or subscriptions that the attacker holds at the end, where the flood is about these.
    pub held: Option<usize>,
    /// Reports of good devices.
    pub reports: u64,
    /// Publishes of good devices that were refused or not answered; each was repeated.
    pub refused: u64,
    /// Good reports that LEDGER holds.
    pub in_ledger: u64,
    /// Good reports that their view shows.
    pub in_view: u64,
    /// From a report to its fact in LEDGER.
    pub ledger: Latency,
    /// From a report to its view.
    pub view: Latency,
    /// Largest resident memory of each process, in bytes.
    pub memory: BTreeMap<&'static str, u64>,
    /// Messages that LEDGER gained.
    pub ledger_messages: u64,
    /// Bytes that LEDGER gained.
    pub ledger_bytes: u64,
    /// Facts about the attacking device.
    pub facts: FloodFacts,
    /// Entries of the bucket `views`.
    pub views: u64,
    /// The losses and failures of the hub: a stream that was deleted, a command that was refused.
    pub lost: Vec<String>,
    /// The checks after the flood, and their results.
    pub afterwards: String,
}

/// Latencies in milliseconds; zero where nothing arrived.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Facts in LEDGER about the device that floods.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FloodFacts {
    /// Statuses and capabilities.
    pub reports: u64,
    /// Messages in quarantine.
    pub quarantine: u64,
    /// Incidents, liveness and deadlines.
    pub others: u64,
    /// Deployments that the statuses name.
    pub deployments: usize,
    /// Epochs that the statuses carry.
    pub epochs: usize,
    /// Why the first message in quarantine is there.
    pub refusal: Option<String>,
}

impl FloodFacts {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.reports + self.quarantine + self.others
    }
}

impl Latency {
    /// The latencies of these samples.
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let per_cent = |share: usize| {
            let at = (samples.len() * share).div_ceil(100).max(1) - 1;
            samples.get(at).map_or(0.0, |took| took.as_secs_f64() * 1000.0)
        };
        Self { p50: per_cent(50), p99: per_cent(99) }
    }
}

impl Outcome {
    /// The name of the row.
    pub fn name(&self) -> String {
        self.flood.map_or_else(|| "calm".to_owned(), |flood| format!("{} {}", flood.number(), flood.name()))
    }
}

fn named<S: Serializer>(flood: &Option<Flood>, serializer: S) -> Result<S::Ok, S::Error> {
    flood.map(Flood::name).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_sample() {
        let samples = (1..=200).rev().map(Duration::from_millis).collect();
        let Latency { p50, p99 } = Latency::of(samples);
        assert_eq!((p50, p99), (100.0, 198.0));
        assert_eq!(Latency::of(Vec::new()).p99, 0.0);
    }
}
