//! The hub of the bench: nats-server, ingest and one gateway as processes, a fleet of devices that run one deployment, and what the
//! hub has stored. It sends no request of a device but those that wait for its start.

use std::collections::BTreeSet;

use muster_contract::subjects::stream;
use muster_tests::bench::processor_seconds;
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, System, numbers};

use crate::client::Client;
use crate::device::Device;
use crate::fleet::{Fleet, GATEWAY, WEB, start_gateway};
use crate::pki::Authority;

/// A hub whose devices have a manifest with one deployment.
pub(crate) struct Hub {
    fleet: Fleet,
    clients: Vec<Client>,
}

/// The processor time of each process, in seconds or in cores.
pub(crate) struct ProcessorTime {
    pub(crate) gateway: f64,
    pub(crate) server: f64,
    pub(crate) ingest: f64,
    pub(crate) devices: f64,
}

/// The reports that the hub has.
pub(crate) struct Stored {
    /// Messages that UPLINK has ever taken in.
    pub(crate) uplink: usize,
    /// Numbers of reports in LEDGER.
    pub(crate) ledger: usize,
}

impl ProcessorTime {
    /// The cores that each process used in the seconds since `before`.
    pub(crate) fn cores_since(&self, before: &Self, seconds: f64) -> Self {
        Self {
            gateway: (self.gateway - before.gateway) / seconds,
            server: (self.server - before.server) / seconds,
            ingest: (self.ingest - before.ingest) / seconds,
            devices: (self.devices - before.devices) / seconds,
        }
    }
}

impl Hub {
    /// A hub with so many accepted devices, and the processes alone that they need.
    pub(crate) async fn start(devices: usize, heartbeat_ms: usize) -> Self {
        let mut system = System::start().await;
        let authority = Authority::create(system.dir(), "authority");
        let heartbeat = ["--devices-heartbeat", &format!("{heartbeat_ms}ms")];
        let [_, gateway] = start_gateway(&mut system, &authority, GATEWAY, None, &heartbeat);
        let mut fleet = Fleet { system, authority, gateway };
        let names: Vec<String> = (0..devices).map(|at| format!("plant7/press-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        fleet.add(&names).await;
        for name in &names {
            fleet.accept(name).await;
        }
        fleet.publish(&[(WEB, "1.0.0")]).await;
        let mut clients = Vec::with_capacity(devices);
        for name in &names {
            let client = fleet.client(name).await;
            fleet.manifest(&client, |manifest| !manifest["bundle"].is_null()).await;
            clients.push(client);
        }
        // Neither takes part in an answer to a device, and both need processor time.
        for name in [PUBLISHER, ROLLUP] {
            fleet.system.terminate(name).await;
        }
        Self { fleet, clients }
    }

    /// The devices, each with an open connection.
    pub(crate) async fn devices(&self) -> Vec<Device> {
        let mut devices = Vec::with_capacity(self.clients.len());
        for client in &self.clients {
            devices.push(Device::connect(client).await);
        }
        devices
    }

    /// The processor time that each process has used so far.
    pub(crate) fn processor_time(&self) -> ProcessorTime {
        let system = &self.fleet.system;
        ProcessorTime {
            gateway: processor_seconds(system.pid(GATEWAY).unwrap()),
            server: processor_seconds(system.server.pid().unwrap()),
            ingest: processor_seconds(system.pid(INGEST).unwrap()),
            devices: processor_seconds(rustix::process::getpid()),
        }
    }

    /// Heartbeats that PRESENCE has ever taken in.
    pub(crate) async fn heartbeats(&self) -> u64 {
        self.last_seq(stream::PRESENCE).await
    }

    /// Waits until LEDGER has so many reports; how many the hub has.
    ///
    /// # Panics
    /// LEDGER does not get them, or has one twice.
    pub(crate) async fn stored(&self, wanted: usize) -> Stored {
        let system = &self.fleet.system;
        let look = async || {
            let ledger = numbers(&system.ledger().await).values().map(BTreeSet::len).sum::<usize>();
            if ledger >= wanted { Ok(ledger) } else { Err(format!("{ledger} of {wanted} reports")) }
        };
        let ledger = system.eventually("LEDGER has every report", look).await;
        Stored { uplink: self.last_seq(stream::UPLINK).await as usize, ledger }
    }

    async fn last_seq(&self, stream: &str) -> u64 {
        self.fleet.system.bus.stream_state(stream).await.unwrap().last_seq
    }
}
