//! The fleet that Prometheus scrapes: the services with a renewer and a gateway, a faulty link that nobody uses, two agents at one
//! site, one on a disk of its own at another, and scripted devices at a third.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use muster_contract::DeviceKey;
use muster_identity::KeyPair;
use muster_simulator::child::Spec;
use muster_simulator::disk::Disk;
use muster_simulator::repository::write_devices;
use muster_tests::prometheus::{Prometheus, Targets, free_address};
use muster_tests::server::free_port;
use muster_tests::story::{key, sleeper};
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP, System, program};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::scripted::ScriptedDevice;

/// The site that falls silent, and its agents.
pub(crate) const SILENT_SITE: &str = "north";
const AGENTS: [&str; 2] = ["north/press-1", "north/press-2"];
/// The agent with a disk of its own.
const ON_A_DISK: &str = "east/pump-1";
/// The devices without an agent that are there from the start.
const SCRIPTED: &str = "south/oven-1";
/// The one whose reports ingest rejects.
pub(crate) const REJECTED_DEVICE: &str = "south/valve-1";
/// The device that is added later.
pub(crate) const LATE: &str = "south/oven-2";
/// A person with credentials that end.
pub(crate) const VIEWER: &str = "anna";

/// Process and program of the gateway.
pub(crate) const GATEWAY: &str = "muster-gateway";
/// A key that seals webhooks: 32 bytes in base64.
const WEBHOOK_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// The narrow line of a service.
const NARROW: &str = "narrow-link";

/// A fleet and the Prometheus that scrapes it.
pub(crate) struct Fleet {
    /// The processes.
    pub(crate) system: System,
    /// Scrapes all of them.
    pub(crate) prometheus: Prometheus,
    /// The agents of the site that falls silent.
    pub(crate) agents: Vec<DeviceKey>,
    /// The agent on a disk of its own, and the disk.
    pub(crate) on_disk: (DeviceKey, Disk),
    /// The device whose reports the test sends.
    pub(crate) scripted: ScriptedDevice,
    /// The device whose reports ingest rejects.
    pub(crate) rejected: ScriptedDevice,
    /// The device that is added later.
    pub(crate) late: Option<ScriptedDevice>,
    /// Where the gateway serves people.
    gateway: SocketAddr,
    /// The alerts that were waited for and have fired.
    pub(crate) fired: BTreeSet<String>,
}

impl Fleet {
    /// A fleet on which `web` has converged.
    pub(crate) async fn start() -> Self {
        let mut targets = Targets::new();
        let mut http = |job| {
            let address = free_address();
            targets.entry(job).or_default().push(address);
            address.to_string()
        };
        let [publisher, ingest, rollup, renewer, gateway, link] =
            ["publisher", "ingest", "rollup", "renewer", "gateway", "link"].map(&mut http);
        let mut system = System::with_settings(&[
            (PUBLISHER, &["--http-addr", &publisher]),
            (INGEST, &["--http-addr", &ingest]),
            (ROLLUP, &["--http-addr", &rollup]),
        ])
        .await;
        start_renewer(&mut system, &renewer);
        let gateway = start_gateway(&mut system, &gateway);
        start_link(&mut system, "link", "flapping", &["--http-addr", &link]);
        let on_disk = key(ON_A_DISK);
        let disk = Disk::small(&system.device_dir(&on_disk)).unwrap();
        let agents = AGENTS.map(key).to_vec();
        let hub = system.address();
        for key in agents.iter().chain([&on_disk]) {
            system.start_agent(key, hub, &["--http-addr", &http("agent")]);
        }
        let prometheus = Prometheus::start(&mut system, &targets);
        let devices: Vec<_> =
            agents.iter().chain([&on_disk]).cloned().chain([key(SCRIPTED), key(REJECTED_DEVICE)]).collect();
        write_devices(&system.repository, &devices).unwrap();
        system.repository.write("fleet/web.yaml", &web()).unwrap();
        system.repository.commit("web").await.unwrap();
        let mut scripted = ScriptedDevice::start(&system, SCRIPTED).await;
        scripted.report("installed").await;
        let mut rejected = ScriptedDevice::start(&system, REJECTED_DEVICE).await;
        rejected.report("installed").await;
        Self {
            system,
            prometheus,
            agents,
            on_disk: (on_disk, disk),
            scripted,
            rejected,
            late: None,
            gateway,
            fired: BTreeSet::new(),
        }
    }

    /// Waits until no alert fires.
    pub(crate) async fn none_fires(&self) {
        self.system
            .eventually("no alert fires", async || {
                let firing = self.prometheus.firing().await?;
                if firing.is_empty() { Ok(()) } else { Err(format!("{firing:?}")) }
            })
            .await;
    }

    /// Waits until each of these alerts has fired; others may as well. One that looks at a window clears by itself.
    pub(crate) async fn fire(&mut self, wanted: &[&str]) {
        let mut fired = BTreeSet::new();
        self.system
            .eventually(&format!("{wanted:?} fire"), async || {
                fired.append(&mut self.prometheus.firing().await?);
                let missing: Vec<_> = wanted.iter().filter(|name| !fired.contains(**name)).collect();
                if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} did not; {fired:?} did")) }
            })
            .await;
        self.fired.extend(wanted.iter().map(|name| (*name).to_owned()));
    }

    /// Waits until an expression has a series. One that Prometheus refuses never does.
    pub(crate) async fn has_series(&self, expression: &str) {
        self.system
            .eventually(&format!("{expression} has a series"), async || {
                let series: Vec<Value> = self.prometheus.query(expression).await?;
                if series.is_empty() { Err("none".to_owned()) } else { Ok(()) }
            })
            .await;
    }

    /// Waits until the gateway answers a request of `/api/v1` with this status.
    pub(crate) async fn ask_gateway(&self, head: &str, body: &str, status: u16) {
        let ask = async || {
            let mut stream = TcpStream::connect(self.gateway).await?;
            let (host, length) = (self.gateway, body.len());
            let request = format!(
                "{head} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.map(|_| answer)
        };
        self.system
            .eventually(&format!("{head} is answered with {status}"), async || {
                let answer = ask().await.map_err(|error| error.to_string())?;
                if answer.starts_with(&format!("HTTP/1.1 {status} ")) { Ok(()) } else { Err(answer) }
            })
            .await;
    }

    /// Starts the rollup again behind a narrow line; the next start is without it.
    pub(crate) fn start_rollup_behind_a_narrow_line(&mut self) {
        let line = start_link(&mut self.system, NARROW, "thin", &[]);
        self.system.start_again_through(ROLLUP, line);
    }

    /// The directory of keys.
    pub(crate) fn keys(&self) -> PathBuf {
        keys(&self.system)
    }

    /// Renews the device's token and the viewer's credentials.
    pub(crate) fn renew(&self) {
        enroll(&self.system, &[]);
        give_access(&self.system);
    }
}

/// A deployment that must be ready within a second.
fn web() -> String {
    sleeper("web", 1)
        .replace("readiness: {type: uptime, for: 50ms}", "readiness: {type: uptime, for: 50ms}, timeout: 1s")
}

fn keys(system: &System) -> PathBuf {
    system.dir().join("keys")
}

/// A renewer of a directory of keys with one device. The server is open, so the token counts for nothing.
fn start_renewer(system: &mut System, http: &str) {
    let resolver = system.dir().join("accounts");
    muster(system, &["auth", "init", "--resolver-dir", resolver.to_str().unwrap()]);
    enroll(system, &["--key", &KeyPair::new_user().public_key()]);
    give_access(system);
    let keys = keys(system).display().to_string();
    let args = ["--nats-url", &system.server.url(), "--keys", &keys, "--every", "200ms", "--http-addr", http];
    start_own(system, "muster-renewer", "muster-renewer", &args);
}

/// Credentials of 30 days for a viewer: new ones, or the same renewed.
fn give_access(system: &System) {
    muster(system, &["auth", "creds", "viewer", "--name", VIEWER, "--valid", "30d"]);
}

fn enroll(system: &System, more: &[&str]) {
    let token = system.dir().join("device.jwt");
    let enrolment = ["enroll", ON_A_DISK, "--output", token.to_str().unwrap()];
    muster(system, &[&enrolment, more].concat());
}

/// Runs `muster` on the directory of keys; it must succeed.
fn muster(system: &System, args: &[&str]) {
    let output = Command::new(program("muster")).args(args).arg("--dir").arg(keys(system)).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A gateway that delivers webhooks to this machine; where it serves people.
fn start_gateway(system: &mut System, http: &str) -> SocketAddr {
    let (people, key) = (free_address(), system.dir().join("webhook.key"));
    std::fs::write(&key, WEBHOOK_KEY).unwrap();
    let (address, key, url) = (people.to_string(), key.display().to_string(), system.server.url());
    let reach = ["--nats-url", &url, "--http-addr", http, "--insecure-http", "--people-addr", &address];
    let webhooks = ["--webhook-key", &key, "--webhook-allow", "localhost"];
    start_own(system, GATEWAY, GATEWAY, &[&reach[..], &webhooks].concat());
    people
}

/// A link to the server; where it listens.
fn start_link(system: &mut System, name: &str, profile: &str, more: &[&str]) -> SocketAddr {
    let listen: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
    let (address, server) = (listen.to_string(), system.address().to_string());
    let line = ["link", "--listen", &address, "--to", &server, "--profile", profile, "--seed", "1"];
    start_own(system, name, "muster-simulator", &[&line[..], more].concat());
    listen
}

fn start_own(system: &mut System, name: &str, binary: &str, args: &[&str]) {
    let args = args.iter().map(|word| (*word).to_owned()).collect();
    system.start_own(Spec { name: name.to_owned(), program: program(binary), args });
}
