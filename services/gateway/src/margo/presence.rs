//! Publishes heartbeats of devices that poll: a request of an accepted client is a sign of life of its device. Each gateway
//! publishes at most one heartbeat of a device in a period.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::http_device::HttpDevice;
use muster_contract::presence::Heartbeat;
use muster_contract::version::{ApiVersion, kind};
use tokio::time::Instant;

use super::Devices;
use super::capabilities::agent_version;
use crate::problem::Problem;

/// Entries beyond which the gateway forgets devices whose next heartbeat is due.
const REMEMBERED_MAX: usize = 16 * 1024;

/// The time of each device's last heartbeat.
#[derive(Debug)]
pub(crate) struct Presence {
    period: Duration,
    sent: Mutex<HashMap<DeviceKey, Instant>>,
}

impl Presence {
    /// At most one heartbeat of a device in `period`.
    pub(crate) fn every(period: Duration) -> Self {
        Self { period, sent: Mutex::default() }
    }

    /// Whether a heartbeat is due; if so, it counts as sent.
    fn is_due(&self, key: &DeviceKey, now: Instant) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.get(key).is_some_and(|at| now < *at + self.period) {
            return false;
        }
        if sent.len() >= REMEMBERED_MAX {
            sent.retain(|_, at| now < *at + self.period);
        }
        sent.insert(key.clone(), now);
        true
    }
}

impl Devices {
    /// Publishes a heartbeat of a device if one is due. `generation` is that of the manifest that the device names in its request;
    /// without one, the heartbeat has that of the last served manifest.
    ///
    /// # Errors
    /// The hub cannot be asked now.
    pub(crate) async fn beat(&self, key: &DeviceKey, generation: Option<u64>) -> Result<(), Problem> {
        if !self.presence.is_due(key, Instant::now()) {
            return Ok(());
        }
        let read = |current: &mut HttpDevice, _: Option<&_>| Ok((current.clone(), false));
        let current = self.store.update(key, self.now(), read).await?;
        let heartbeat = Heartbeat {
            api_version: ApiVersion::V1,
            kind: kind::Heartbeat::Heartbeat,
            epoch: current.epoch,
            head: current.head,
            unsent: current.open.len() as u64,
            oldest_unsent_at: current.open.iter().map(|open| open.at).min(),
            generation: generation.unwrap_or(current.generation),
            agent_version: agent_version(),
            storing: true,
            refused: None,
            // The gateway has one of its own, which is no device's.
            token: None,
        };
        self.store.beat(key, &heartbeat).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_device_has_one_heartbeat_in_a_period() {
        let (presence, now) = (Presence::every(Duration::from_secs(30)), Instant::now());
        let [one, other]: [DeviceKey; 2] = ["a/b", "a/c"].map(|key| key.parse().unwrap());
        assert!(presence.is_due(&one, now) && presence.is_due(&other, now));
        assert!(!presence.is_due(&one, now + Duration::from_secs(29)));
        assert!(presence.is_due(&one, now + Duration::from_secs(30)));
    }
}
