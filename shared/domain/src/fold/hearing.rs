//! The partitions that the hub does not hear, as the rollup records them in LEDGER, and counts by such partition. None of
//! their devices is fresh. Nothing is concluded from missing facts. [`partitions`] applies the facts to a fleet.

mod partitions;

use std::collections::BTreeMap;

use muster_contract::Timestamp;
use muster_contract::limits::PARTITIONS;
use serde::{Deserialize, Serialize};

use super::delta::Delta;

/// The newest hearing fact of each partition that has one, as a snapshot stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HearingState(BTreeMap<u16, PartitionHearing>);

/// The newest hearing fact of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartitionHearing {
    /// Since when the hub does not hear the partition; none where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<Timestamp>,
    /// The LEDGER sequence of the fact.
    ledger_seq: u64,
}

/// Counts by unheard partition. Mostly there is none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnheardCounts(Option<Box<[u32; PARTITIONS as usize]>>);

impl HearingState {
    /// Whether the hub does not hear the devices of a partition.
    pub fn is_stopped(&self, partition: u16) -> bool {
        self.stopped(partition).is_some()
    }

    fn stopped(&self, partition: u16) -> Option<Timestamp> {
        self.0.get(&partition)?.stopped
    }
}

impl UnheardCounts {
    /// Adds or retracts one, in its partition if that is not heard.
    pub(super) fn shift(&mut self, delta: Delta, partition: Option<u8>) {
        let Some(partition) = partition else { return };
        let counts = self.0.get_or_insert_default();
        delta.apply(&mut counts[usize::from(partition)], 1);
        if counts.iter().all(|count| *count == 0) {
            self.0 = None;
        }
    }

    fn partitions(&self) -> impl Iterator<Item = u16> {
        let counts = self.0.iter().flat_map(|counts| counts.iter());
        (0..PARTITIONS).zip(counts).filter(|(_, count)| **count > 0).map(|(partition, _)| partition)
    }
}
