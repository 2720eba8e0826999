//! The listener of devices: Margo's workload management API 1.0.0-rc.3, over TLS with client certificates.
//!
//! ```text
//! device ─► svid, caller: certificate to device ─► manifest ◄── DOWNLINK           (poll: a heartbeat, too)
//!                                             ├► status, capabilities ─► record ─► UPLINK
//!                                             └──────────────────────── the bucket `http_devices`, by compare-and-set
//! ```
//!
//! A gateway keeps no state that another one needs: the numbers of a device's reports are in the bucket, and each request reads
//! them. The gateway answers a report with success only after UPLINK has confirmed it and the bucket has recorded that.
//!
//! Reading order: [`svid`] and [`caller`], [`manifest`] with [`application`] and [`bundle`], [`record`] (the rules of the numbers,
//! pure), [`store`], [`span`], [`served`] and [`child_status`] (clients that speak for several devices), [`status`] and [`capabilities`], [`presence`]
//! and [`heartbeat`], [`routes`]; [`trust`] and [`openapi`], the description of all of it, are served by the listener of people.
//! People's side shares only the listener's code.

pub(crate) mod application;
pub(crate) mod bundle;
pub(crate) mod caller;
pub(crate) mod capabilities;
pub(crate) mod child_status;
pub(crate) mod config;
mod heartbeat;
pub(crate) mod manifest;
pub(crate) mod openapi;
pub(crate) mod presence;
pub(crate) mod problems;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod routes;
pub(crate) mod served;
pub(crate) mod span;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod svid;
pub(crate) mod trust;

use std::sync::Arc;

use muster_contract::http_device::HttpClient;
use muster_contract::limits::{HEARTBEAT_LEASE_MS_MAX, POLL_LEASE_MS_MIN};
use muster_contract::{DeviceKey, Timestamp};
use muster_service::clock::Clock;

use self::manifest::ManifestCache;
use self::presence::Presence;
use self::store::Store;
use crate::metrics::Metrics;

/// The state of the routes of devices. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Devices {
    pub(crate) store: Store,
    pub(crate) presence: Arc<Presence>,
    pub(crate) manifests: Arc<ManifestCache>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
}

impl Devices {
    /// The time of a request.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// The client of a request, which has an accepted certificate.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Its entry in the bucket.
    pub client: Arc<HttpClient>,
}

impl Caller {
    /// Its device.
    pub(crate) fn device(&self) -> &DeviceKey {
        &self.client.device
    }

    /// The `deviceId` of its device: the name within the site. It never changes, so a manifest of one generation always has the
    /// same bytes.
    pub(crate) fn device_id(&self) -> &str {
        self.client.device.device.as_str()
    }

    /// The lease of its polls, if it is not that of the hub, within the bounds of `muster enroll`.
    pub(crate) fn poll_lease_ms(&self) -> Option<u64> {
        self.client.poll_lease_ms.map(|lease| lease.clamp(POLL_LEASE_MS_MIN, HEARTBEAT_LEASE_MS_MAX))
    }

    /// Whether the client speaks for other devices, or did.
    pub(crate) fn is_gateway(&self) -> bool {
        self.client.children.is_some()
    }

    /// The devices for which the client speaks, its own first.
    pub(crate) fn devices(&self) -> Vec<DeviceKey> {
        let children = self.client.children.iter().flatten();
        let children = children.map(|device| DeviceKey { device: device.clone(), ..self.device().clone() });
        std::iter::once(self.device().clone()).chain(children).collect()
    }

    /// The `deviceId` of one of its devices. That of a child is below its own, as Margo wants.
    pub(crate) fn id_of(&self, key: &DeviceKey) -> String {
        if key == self.device() {
            return self.device_id().to_owned();
        }
        format!("{}/{}", self.device_id(), key.device)
    }

    /// The device with a `deviceId`, if the client speaks for it.
    pub(crate) fn device_of(&self, device_id: &str) -> Option<DeviceKey> {
        self.devices().into_iter().find(|key| self.id_of(key) == device_id)
    }
}
