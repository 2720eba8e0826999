//! Publishes heartbeats of devices that poll: a poll of an accepted client is a sign of life of its device, and of the devices for
//! which it speaks, but for those that it does not reach.

use muster_contract::DeviceKey;
use muster_contract::http_device::HttpDevice;
use muster_contract::presence::Heartbeat;
use muster_contract::version::{ApiVersion, kind};
use tokio::time::Instant;

use super::Devices;
use super::record::agent_version;
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
        let read = |current: &mut HttpDevice, _: Option<&_>| Ok((current.clone(), false));
        let current = self.store.update(key, self.now(), read).await?;
        if current.unreachable {
            return Ok(());
        }
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
