//! What a border knows of its devices by LEDGER, as text: a line for each device.
//!
//! A snapshot is the fold of LEDGER up to a position, which its holder keeps beside it. A border that takes in a snapshot and
//! then the facts after that position knows what a border knows that took in all of them. Facts up to the position that come
//! again change nothing.
//!
//! What was heard live, what is on its way and what DOWNLINK holds are not part of it.

use muster_contract::DeviceKey;
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::memory::Memory;
use super::quota::SentDeployments;
use super::{Border, NOBODY};

/// The shape of a snapshot. Any change of what is remembered is another one.
pub const SNAPSHOT_VERSION: u32 = 2;

/// A snapshot that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the snapshot cannot be read")]
pub struct SnapshotError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    #[source]
    pub source: serde_json::Error,
}

/// One device.
#[derive(Serialize)]
struct LineOf<'a> {
    key: Option<&'a DeviceKey>,
    memory: &'a Memory,
    sent: &'a SentDeployments,
}

/// The same, read.
#[derive(Deserialize)]
struct Line {
    key: Option<DeviceKey>,
    memory: Memory,
    sent: SentDeployments,
}

impl Border {
    /// Everything confirmed, as text.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for device in &self.devices {
            let line = LineOf { key: device.key.as_ref(), memory: device.confirmed(), sent: &device.sent };
            // Maps have names as keys, so every value can be written.
            text.extend(serde_json::to_vec(&line).unwrap_or_default());
            text.push(b'\n');
        }
        text
    }

    /// Takes in a snapshot; only a border that knows nothing yet may do so. After an error it is of no use.
    ///
    /// # Errors
    /// A line cannot be read.
    pub fn restore_snapshot(&mut self, text: &[u8]) -> Result<(), SnapshotError> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for (at, line) in lines.enumerate() {
            let Line { key, memory, sent } =
                serde_json::from_slice(line).map_err(|source| SnapshotError { line: at + 1, source })?;
            let place = key.as_ref().map_or(NOBODY, |key| self.place(key));
            let mut device = Device::restored(key, memory);
            device.sent = sent;
            self.devices[place] = device;
        }
        Ok(())
    }
}

/// A map whose keys are no names, as a list of pairs.
pub(super) mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(in super::super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
