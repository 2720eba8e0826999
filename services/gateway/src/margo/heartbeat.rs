//! Publishes heartbeats of devices that poll: a poll of an accepted client is a sign of life of its device, and of the devices for
//! which it speaks, but for those that it does not reach. The heartbeat of a device with snapshots counts no longer than they do; any
//! other one counts for the poll lease of the client, if an operator has given it one.

use muster_contract::http_device::HttpDevice;
use muster_contract::limits::ENDED_LEASE_MS;
use muster_contract::presence::Heartbeat;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Generation};
use tokio::time::Instant;

use super::record::{self, HeartbeatLease, SentReport, agent_version};
use super::{Caller, Devices, problems};
use crate::problem::Problem;

/// Heartbeats that are published at most for one request, if statuses change the record meanwhile.
const ATTEMPTS_MAX: usize = 3;

impl Devices {
    /// Publishes a heartbeat of a device whose client sends a request, if one is due. `generation` is that of the manifest that the
    /// device has, if this request shows it; otherwise the heartbeat has the generation that the record knows. The gateway waits
    /// until PRESENCE has a heartbeat with a poll lease, because the next request may be hours away.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has not confirmed a heartbeat with a poll lease.
    pub(crate) async fn beat(
        &self,
        caller: &Caller,
        key: &DeviceKey,
        generation: Option<u64>,
    ) -> Result<(), Problem> {
        let now = Instant::now();
        if !self.presence.is_due(key, now) {
            return Ok(());
        }
        match caller.poll_lease_ms() {
            Some(lease) => self.beat_with_lease(key, generation, lease).await?,
            None => {
                if let Some(heartbeat) = self.heartbeat(key, generation, None, false).await? {
                    self.store.beat(key, &heartbeat).await;
                }
            }
        }
        self.presence.sent(key, now);
        Ok(())
    }

    /// Publishes a heartbeat with a poll lease, and waits until PRESENCE has it. If a status changes meanwhile whether the client reaches
    /// the device, another heartbeat follows, so that the newest one in PRESENCE agrees with the record.
    async fn beat_with_lease(
        &self,
        key: &DeviceKey,
        generation: Option<u64>,
        lease: u64,
    ) -> Result<(), Problem> {
        let is_ended = |heartbeat: &Heartbeat| heartbeat.lease_ms == Some(ENDED_LEASE_MS);
        // A replica that is behind must not decide that the client reaches the device.
        let mut next = self.heartbeat(key, generation, Some(lease), true).await?;
        for _ in 0..ATTEMPTS_MAX {
            let Some(heartbeat) = next else { return Ok(()) };
            self.store.vouch(key, &heartbeat).await?;
            next = self.heartbeat(key, generation, Some(lease), true).await?;
            if next.as_ref().map(is_ended) == Some(is_ended(&heartbeat)) {
                return Ok(());
            }
        }
        Err(problems::unavailable("other statuses of this device are under way; try again"))
    }

    /// Publishes a heartbeat after a status, if the client has a poll lease: a device that the client does not reach is stale at once,
    /// and one that it reaches again is not stale until the next poll.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has not confirmed the heartbeat: the client must post the status again.
    pub(crate) async fn beat_after_status(
        &self,
        caller: &Caller,
        key: &DeviceKey,
        status: &SentReport<'_>,
    ) -> Result<(), Problem> {
        let generation = status.adopted.map(Generation::get);
        match (caller.poll_lease_ms(), status.unreachable) {
            (None, _) => Ok(()),
            (Some(_), None) => self.beat(caller, key, generation).await,
            (Some(lease), Some(_)) => self.beat_with_lease(key, generation, lease).await,
        }
    }

    /// Publishes a heartbeat of a device whose snapshots have come, and waits until PRESENCE has it: it says how long they count.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has not confirmed the heartbeat.
    pub(crate) async fn vouch(&self, key: &DeviceKey) -> Result<(), Problem> {
        match self.heartbeat(key, None, None, true).await? {
            Some(heartbeat) => self.store.vouch(key, &heartbeat).await,
            None => Ok(()),
        }
    }

    /// The heartbeat of a device as of now; `None` if nothing shows that the device is as its last reports say. With a poll lease, in
    /// milliseconds, it ends the lease of a device that its client does not reach. With `is_newest` a replica that is behind does not
    /// decide.
    async fn heartbeat(
        &self,
        key: &DeviceKey,
        generation: Option<u64>,
        poll_lease: Option<u64>,
        is_newest: bool,
    ) -> Result<Option<Heartbeat>, Problem> {
        let now = self.now();
        let read = |current: &mut HttpDevice, _: Option<&_>| Ok((current.clone(), is_newest));
        let current = self.store.update(key, now, read).await?;
        let lease_ms = match record::heartbeat_lease(&current, now) {
            _ if current.unreachable => match poll_lease {
                None => return Ok(None),
                Some(_) => Some(ENDED_LEASE_MS),
            },
            HeartbeatLease::Hub => poll_lease,
            HeartbeatLease::Evidence(left) => Some(left),
            HeartbeatLease::Expired => return Ok(None),
        };
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
