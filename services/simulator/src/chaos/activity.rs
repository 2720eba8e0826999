//! Reads from LEDGER which ingest took a partition over from the other, and which deployments were in a crash loop. It does
//! not decide whether that is right.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::fact::Fact;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey};
use serde::Serialize;

use crate::ledger::Entry;

/// The fence whose record decides who owns a partition.
const DECIDING_FENCE: u16 = 0;

/// The takeovers and crash loops read so far.
#[derive(Debug, Default)]
pub(super) struct LedgerActivity {
    owners: BTreeMap<u16, String>,
    /// Each change of an owner: the partition, the former and the new one.
    changes: Vec<(u16, String, String)>,
    crash_loops: BTreeSet<(DeviceKey, DeploymentId)>,
}

/// How often a standby replaced a process that was down or frozen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Takeovers {
    /// Times one ingest took partitions over from a process of the other.
    pub ingest: u64,
    /// Partitions that changed hands in this way.
    pub partitions: u64,
    /// Times one rollup was down or frozen for some seconds while the other was up.
    pub rollup_outages: u64,
    /// Those in which the other rollup wrote views.
    pub rollup: u64,
}

impl LedgerActivity {
    /// Reads one entry.
    pub(super) fn read(&mut self, entry: &Entry) {
        match (&entry.subject, &entry.fact) {
            (LedgerSubject::Owner { partition, fence: DECIDING_FENCE }, Fact::Ownership(record)) => {
                let former = self.owners.insert(*partition, record.owner.clone());
                let changed = former.filter(|former| *former != record.owner);
                self.changes.extend(changed.map(|former| (*partition, former, record.owner.clone())));
            }
            (subject, Fact::Status(fact)) if fact.retries.iter().any(|retry| retry.crash_loop) => {
                let device = subject.device().cloned();
                self.crash_loops.extend(device.map(|device| (device, fact.deployment.clone())));
            }
            _ => {}
        }
    }

    /// The takeovers between ingests, where each process id belongs to one of them. A process that takes over from an
    /// earlier one of the same ingest is a restart and is not counted.
    pub(super) fn takeovers(&self, ingests_by_pid: &BTreeMap<u32, usize>) -> Takeovers {
        let ingest = |owner: &str| pid(owner).and_then(|pid| ingests_by_pid.get(&pid));
        let is_other = |former: &str, new: &str| match (ingest(former), ingest(new)) {
            (Some(former), Some(new)) => former != new,
            _ => false,
        };
        let taken: Vec<_> = self.changes.iter().filter(|(_, former, new)| is_other(former, new)).collect();
        let pairs: BTreeSet<_> = taken.iter().map(|(_, former, new)| (former, new)).collect();
        Takeovers { ingest: pairs.len() as u64, partitions: taken.len() as u64, ..Takeovers::default() }
    }

    /// Deployments on devices that were reported in a crash loop: those of some devices, and all.
    pub(super) fn crash_loops(&self, of: &[DeviceKey]) -> (u64, u64) {
        let those = self.crash_loops.iter().filter(|(device, _)| of.contains(device)).count();
        (those as u64, self.crash_loops.len() as u64)
    }
}

/// The process id in an owner's name: `<host>/<pid>/<random>`.
fn pid(owner: &str) -> Option<u32> {
    owner.rsplit('/').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    fn owned(partition: u16, owner: &str) -> Entry {
        let subject = LedgerSubject::parse(&format!("muster.owner.{partition}.0")).unwrap();
        let text = format!(
            r#"{{"apiVersion":"muster/v1","kind":"Ownership","owner":"{owner}","claimedAt":"2026-01-01T00:00:00Z","lanes":1}}"#
        );
        let fact = Fact::parse(&subject, text.as_bytes()).unwrap();
        Entry { seq: 1, stored_at: Timestamp::UNIX_EPOCH, subject, fact }
    }

    #[test]
    fn a_takeover_is_by_the_other_ingest_and_not_by_a_restart() {
        let mut activity = LedgerActivity::default();
        for (partition, owner) in [
            (0, "host/10/a"),
            (1, "host/10/a"),
            (0, "host/11/b"),
            (1, "host/11/b"),
            (0, "host/20/c"),
            (1, "host/20/c"),
            (1, "host/20/c"),
            (0, "host/11/d"),
        ] {
            activity.read(&owned(partition, owner));
        }
        let takeovers = activity.takeovers(&BTreeMap::from([(10, 0), (11, 0), (20, 1)]));
        assert_eq!((takeovers.ingest, takeovers.partitions), (2, 3));
    }
}
