//! The confirmed state of the devices as text: a line for each device.
//!
//! A snapshot is the fold of LEDGER up to a position, which its caller stores beside it. A state that is restored from a
//! snapshot and then from the facts after that position equals a state that is restored from all facts. Facts up to the position
//! that come again change nothing.
//!
//! Changes in flight, documents of DOWNLINK and everything that only this process received are not part of it.

use muster_contract::DeviceKey;
use serde::{Deserialize, Serialize};

use super::device::DeviceIntake;
use super::ledger_state::DeviceLedgerState;
use super::sent_deployments::SentDeployments;
use super::state::{IntakeState, UNNAMED};

/// The version of the snapshot format. Every change of the serialised state is another version, also of what its digests are over.
pub const SNAPSHOT_VERSION: u32 = 5;

/// A snapshot that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the snapshot cannot be read")]
pub struct SnapshotError {
    /// The line, from 1.
    pub line: usize,
    /// Why.
    #[source]
    pub source: serde_json::Error,
}

/// The line of one device.
#[derive(Serialize)]
struct SnapshotLineRef<'a> {
    key: Option<&'a DeviceKey>,
    #[serde(rename = "memory")]
    state: &'a DeviceLedgerState,
    sent: &'a SentDeployments,
}

/// The line of one device, parsed.
#[derive(Deserialize)]
struct SnapshotLine {
    key: Option<DeviceKey>,
    #[serde(rename = "memory")]
    state: DeviceLedgerState,
    sent: SentDeployments,
}

impl IntakeState {
    /// The confirmed state of all devices as text.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for device in &self.devices {
            let line =
                SnapshotLineRef { key: device.key.as_ref(), state: device.confirmed(), sent: &device.sent };
            // Every map has strings as keys, so every value can be serialised.
            text.extend(serde_json::to_vec(&line).unwrap_or_default());
            text.push(b'\n');
        }
        text
    }

    /// Restores the state from a snapshot. The state must be new, and must be discarded after an error.
    ///
    /// # Errors
    /// A line cannot be read.
    pub fn restore_snapshot(&mut self, text: &[u8]) -> Result<(), SnapshotError> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for (at, line) in lines.enumerate() {
            let SnapshotLine { key, state, sent } =
                serde_json::from_slice(line).map_err(|source| SnapshotError { line: at + 1, source })?;
            let index = key.as_ref().map_or(UNNAMED, |key| self.index(key));
            let mut device = DeviceIntake::restored(key, state);
            device.sent = sent;
            self.devices[index] = device;
        }
        Ok(())
    }
}
