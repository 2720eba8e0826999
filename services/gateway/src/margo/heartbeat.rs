//! Publishes heartbeats of devices that poll: a poll of an accepted client is a sign of life of its device, and of the devices for
//! which it speaks, but for those that it does not reach. The heartbeat of a device with snapshots counts no longer than they do.

use muster_contract::DeviceKey;
use muster_contract::http_device::HttpDevice;
use muster_contract::presence::Heartbeat;
use muster_contract::version::{ApiVersion, kind};
use tokio::time::Instant;

use super::Devices;
use super::record::{self, HeartbeatLease, agent_version};
use crate::problem::Problem;

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
        if let Some(heartbeat) = self.heartbeat(key, generation, false).await? {
            self.store.beat(key, &heartbeat).await;
        }
        Ok(())
    }

    /// Publishes a heartbeat of a device whose snapshots have come, and waits until PRESENCE has it: it says how long they count.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has not confirmed the heartbeat.
    pub(crate) async fn vouch(&self, key: &DeviceKey) -> Result<(), Problem> {
        match self.heartbeat(key, None, true).await? {
            Some(heartbeat) => self.store.vouch(key, &heartbeat).await,
            None => Ok(()),
        }
    }

    /// The heartbeat of a device as of now; `None` if nothing shows that the device is as its last reports say. With `is_newest`
    /// a replica that is behind does not decide.
    async fn heartbeat(
        &self,
        key: &DeviceKey,
        generation: Option<u64>,
        is_newest: bool,
    ) -> Result<Option<Heartbeat>, Problem> {
        let now = self.now();
        let read = |current: &mut HttpDevice, _: Option<&_>| Ok((current.clone(), is_newest));
        let current = self.store.update(key, now, read).await?;
        let lease_ms = match record::heartbeat_lease(&current, now) {
            HeartbeatLease::Hub => None,
            HeartbeatLease::Evidence(left) => Some(left),
            HeartbeatLease::Expired => return Ok(None),
        };
        if current.unreachable {
            return Ok(None);
        }
        Ok(Some(Heartbeat {
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
            lease_ms,
        }))
    }
}
