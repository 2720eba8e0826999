//! Publishes heartbeats of devices that poll: a poll of an accepted client is a sign of life of its device, and of the devices for
//! which it speaks, but for those that it does not reach. The heartbeat of a device with snapshots counts no longer than they do; any
//! other one counts for the poll lease of the client, if an operator has given it one.

use muster_contract::DeviceKey;
use muster_contract::http_device::{HttpClient, HttpDevice};
use muster_contract::presence::Heartbeat;
use muster_contract::version::{ApiVersion, kind};
use tokio::time::Instant;

use super::record::{self, HeartbeatLease, agent_version};
use super::{Caller, Devices};
use crate::problem::Problem;

/// The shortest lease of a heartbeat, in milliseconds: it ends an earlier one.
const ENDED_MS: u64 = 1;

impl Devices {
    /// Publishes a heartbeat of a device that polls, if one is due. `generation` is that of the manifest that the device has, if this
    /// poll shows it. One with a poll lease is waited for: the next may be hours away.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has not confirmed a heartbeat with a poll lease.
    pub(crate) async fn beat(
        &self,
        caller: &Caller,
        key: &DeviceKey,
        generation: Option<u64>,
    ) -> Result<(), Problem> {
        if !self.presence.is_due(key, Instant::now()) {
            return Ok(());
        }
        let Some(heartbeat) = self.heartbeat(key, generation, false).await? else { return Ok(()) };
        let Some(lease) = caller.poll_lease_ms() else {
            self.store.beat(key, &heartbeat).await;
            return Ok(());
        };
        let heartbeat = Heartbeat { lease_ms: heartbeat.lease_ms.or(Some(lease)), ..heartbeat };
        let stored = self.store.vouch(key, &heartbeat).await;
        if stored.is_err() {
            self.presence.forget(key);
        }
        stored
    }

    /// After a status, publishes a heartbeat of a device with a poll lease, and waits until PRESENCE has it: a device that its client
    /// does not reach must not count as fresh until the lease ends, and one that it reaches again not as stale until the next poll.
    ///
    /// # Errors
    /// The hub cannot be asked now, or has not confirmed the heartbeat: the client must post the status again.
    pub(crate) async fn beat_after_status(
        &self,
        caller: &Caller,
        key: &DeviceKey,
        is_unreachable: bool,
    ) -> Result<(), Problem> {
        let Some(lease) = caller.poll_lease_ms() else { return Ok(()) };
        if is_unreachable {
            return self.end_lease(key).await;
        }
        match self.heartbeat(key, None, true).await? {
            Some(heartbeat) => {
                let lease_ms = heartbeat.lease_ms.or(Some(lease));
                self.store.vouch(key, &Heartbeat { lease_ms, ..heartbeat }).await
            }
            None => Ok(()),
        }
    }

    /// Ends the poll leases of the devices of a revoked client that still sends requests: at most once in the period of heartbeats.
    pub(crate) async fn end_leases(&self, client: &HttpClient) {
        let caller = Caller { client: client.clone().into() };
        if caller.poll_lease_ms().is_none() {
            return;
        }
        for key in caller.devices() {
            if self.presence.is_due(&key, Instant::now())
                && let Err(problem) = self.end_lease(&key).await
            {
                self.presence.forget(&key);
                tracing::debug!(device.id = %key, reason = problem.detail, "cannot end the lease of a revoked client");
            }
        }
    }

    async fn end_lease(&self, key: &DeviceKey) -> Result<(), Problem> {
        let read = |current: &mut HttpDevice, _: Option<&_>| Ok((current.clone(), false));
        let current = self.store.update(key, self.now(), read).await?;
        self.store.vouch(key, &heartbeat_of(&current, None, Some(ENDED_MS))).await
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
        Ok(Some(heartbeat_of(&current, generation, lease_ms)))
    }
}

fn heartbeat_of(current: &HttpDevice, generation: Option<u64>, lease_ms: Option<u64>) -> Heartbeat {
    Heartbeat {
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
    }
}
