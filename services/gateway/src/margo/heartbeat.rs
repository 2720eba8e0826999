//! Publishes heartbeats of devices that poll: a poll of an accepted client is a sign of life of its device, and of the devices for
//! which it speaks, but for those that it does not reach. The heartbeat of a device with snapshots counts no longer than they do; any
//! other one counts for the poll lease of the client, if an operator has given it one.

use muster_contract::http_device::HttpDevice;
use muster_contract::presence::Heartbeat;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Generation};
use tokio::time::Instant;

use super::record::{self, HeartbeatLease, SentReport, agent_version};
use super::{Caller, Devices};
use crate::problem::Problem;

/// The shortest lease of a heartbeat, in milliseconds: it ends an earlier one.
const ENDED_MS: u64 = 1;

impl Devices {
    /// Publishes a heartbeat of a device whose client asks, if one is due. `generation` is that of the manifest that the device has, if
    /// this request shows it; otherwise the heartbeat has the one that was served last. A heartbeat with a poll lease is waited for,
    /// and counts as sent only then: the next request may be hours away.
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
        let lease = caller.poll_lease_ms();
        // With a lease, a replica that is behind must not decide that the client reaches the device.
        if let Some(heartbeat) = self.heartbeat(key, generation, lease, lease.is_some()).await? {
            match lease {
                Some(_) => self.store.vouch(key, &heartbeat).await?,
                None => self.store.beat(key, &heartbeat).await,
            }
        }
        self.presence.sent(key, now);
        Ok(())
    }

    /// Publishes a heartbeat after a status, and waits until PRESENCE has it. A device that its client does not reach is stale at once,
    /// whatever lease an earlier heartbeat had; one with a poll lease that it reaches is not stale until the next poll.
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
        let lease = caller.poll_lease_ms();
        match (status.unreachable, lease) {
            (Some(true), _) | (Some(false), Some(_)) => {
                let lease = lease.or(Some(ENDED_MS));
                match self.heartbeat(key, generation, lease, true).await? {
                    Some(heartbeat) => self.store.vouch(key, &heartbeat).await,
                    None => Ok(()),
                }
            }
            (None, Some(_)) => self.beat(caller, key, generation).await,
            (Some(false) | None, None) => Ok(()),
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
                Some(_) => Some(ENDED_MS),
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
