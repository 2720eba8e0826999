//! The hub that is attacked: a secured server over TLS, ingest, rollup and publisher as processes with the credentials of
//! their roles, good devices and one that floods. Every device runs one deployment that the publisher published to it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use muster_contract::DeviceKey;
use muster_contract::partition::partition_of;
use muster_identity::Role;
use muster_simulator::child::{Child, Spec};
use rustix::process::Pid;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::client;
use super::good::Reporter;
use crate::bench::HubKind;
use crate::guarded::Guarded;
use crate::system::{INGEST, PUBLISHER, ROLLUP, program};
use crate::wait::{soon, within};

/// The server's name among the processes.
pub const SERVER: &str = "nats-server";
/// Site of the good devices.
pub const GOOD_SITE: &str = "plant7";
/// Site of the device that floods, so that its facts are counted by their subjects.
pub const FLOOD_SITE: &str = "plant9";
/// Silence after which a device of a trial is stale.
const LEASE: &str = "30s";
/// The credentials of the keeper of the mirrors.
const KEEPER_CREDS: &str = "keeper.creds";
/// Further credentials of services: the service, the file, and the flag that takes it.
const FURTHER_CREDS: [(&str, &str, &str); 2] =
    [(ROLLUP, KEEPER_CREDS, "--readers-creds"), (INGEST, "watcher.creds", "--system-creds")];
/// Time anything of the preparation may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A secured hub with its devices.
pub struct HostileHub {
    /// The server and its keys.
    pub guarded: Guarded,
    /// The good devices.
    pub good: Vec<Reporter>,
    /// The device that floods. Its partition is also that of the first good device.
    pub attacker: Reporter,
    /// A connection with the credentials of ingest, which looks at the hub's own streams.
    pub inspector: Bus,
    /// A connection with the credentials of the rollup, which sees the views.
    pub views: Bus,
    /// Whether people read mirrors in an account of their own.
    pub has_mirrors: bool,
    services: BTreeMap<&'static str, (Spec, Child)>,
    attackers: usize,
}

impl HostileHub {
    /// Starts everything, ingest with this burst of each device's quota, and waits until each device has its desired state.
    pub async fn start(good_devices: usize, burst_reports: u64) -> Self {
        let guarded = Guarded::start();
        let mut services = BTreeMap::new();
        for name in [ROLLUP, PUBLISHER, INGEST] {
            let mut spec = service(&guarded, name, LEASE);
            if name == INGEST {
                spec.args.push(format!("--device-burst-reports={burst_reports}"));
            }
            services.insert(name, (spec.clone(), Child::start(spec, guarded.dir()).unwrap()));
        }
        let inspector = connect(guarded.config(Role::Ingest)).await;
        let views = connect(guarded.config(Role::Rollup)).await;
        let mut good = Vec::new();
        for at in 0..good_devices {
            good.push(admit(&guarded, &inspector, key(GOOD_SITE, &format!("good-{at}"))).await);
        }
        let attacker = admit(&guarded, &inspector, flooding(&good[0].key, 0)).await;
        let has_mirrors = has_mirrors(&guarded).await;
        Self { guarded, good, attacker, inspector, views, has_mirrors, services, attackers: 0 }
    }

    /// Says how readers reach the hub.
    pub const fn kind(&self) -> HubKind {
        if self.has_mirrors { HubKind::SecuredWithMirrors } else { HubKind::Secured }
    }

    /// The processes whose memory counts.
    pub fn processes(&self) -> Vec<(&'static str, Pid)> {
        let services = self.services.iter().filter_map(|(name, (_, child))| Some((*name, child.pid()?)));
        services.chain(self.guarded.server.pid().map(|pid| (SERVER, pid))).collect()
    }

    /// The services that have ended.
    pub fn ended(&mut self) -> Vec<String> {
        let ended = |(name, (_, child)): (&&str, &mut (Spec, Child))| {
            child.expect_running().is_err().then(|| format!("{name} has ended"))
        };
        self.services.iter_mut().filter_map(ended).collect()
    }

    /// Enrols another device to flood, of which LEDGER holds nothing yet.
    pub async fn replace_attacker(&mut self) {
        self.attackers += 1;
        let key = flooding(&self.good[0].key, self.attackers);
        self.attacker = admit(&self.guarded, &self.inspector, key).await;
    }

    /// Halts a service where it stands.
    pub fn freeze(&self, name: &str) {
        self.services[name].1.freeze();
    }

    /// Lets a halted service go on.
    pub fn thaw(&self, name: &str) {
        self.services[name].1.thaw();
    }

    /// Kills a service and starts it again.
    pub async fn restart(&mut self, name: &'static str) {
        let (spec, child) = self.services.remove(name).unwrap();
        child.kill().await.unwrap();
        let child = Child::start(spec.clone(), self.guarded.dir()).unwrap();
        self.services.insert(name, (spec, child));
    }

    /// The log of a service so far.
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.services[name].1.log()).unwrap_or_default()
    }

    /// Runs `muster` with the credentials of a role.
    pub fn muster(&self, role: Role, args: &[&str]) -> Output {
        muster(&self.guarded, role, args)
    }
}

/// Connects with these settings.
pub async fn connect(config: BusConfig) -> Bus {
    soon("a connection", Box::pin(Bus::connect(config, &CancellationToken::new()))).await.unwrap()
}

fn muster(hub: &Guarded, role: Role, args: &[&str]) -> Output {
    let creds = hub.creds(role).display().to_string();
    tokio::task::block_in_place(|| hub.muster(&[args, &["--creds", &creds]].concat()))
}

/// Starts a service with the credentials of its role; ingest with this lease.
pub fn start_service(hub: &Guarded, name: &str, lease: &str) -> Child {
    Child::start(service(hub, name, lease), hub.dir()).unwrap()
}

fn service(hub: &Guarded, name: &str, lease: &str) -> Spec {
    let (data, url) = (hub.dir().join(name).display().to_string(), hub.url());
    let (role, own): (_, Vec<&str>) = match name {
        INGEST => (Role::Ingest, vec!["--lease", lease]),
        ROLLUP => (Role::Rollup, vec!["--data-dir", &data]),
        _ => (Role::Publisher, vec![]),
    };
    let creds = hub.creds(role).display().to_string();
    let mut args = [&["--nats-url", &url, "--creds", &creds], &own[..]]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    if let Some(authority) = hub.authority() {
        args.extend(["--tls-ca".to_owned(), authority.display().to_string()]);
    }
    for (_, file, flag) in FURTHER_CREDS.iter().filter(|(of, ..)| *of == name) {
        let creds = further_creds(hub, file).map(|creds| creds.display().to_string());
        args.extend(creds.into_iter().flat_map(|creds| [(*flag).to_owned(), creds]));
    }
    Spec { name: name.to_owned(), program: program(name), args }
}

/// Credentials of this name, where `muster auth init` of the programs under test makes them.
fn further_creds(hub: &Guarded, file: &str) -> Option<PathBuf> {
    Some(hub.auth().join("creds").join(file)).filter(|file| file.is_file())
}

fn key(site: &str, name: &str) -> DeviceKey {
    DeviceKey { site: site.parse().unwrap(), device: name.parse().unwrap() }
}

/// The `nth` device that floods in the partition of a good one.
fn flooding(good: &DeviceKey, nth: usize) -> DeviceKey {
    let keys = (0..).map(|at| key(FLOOD_SITE, &format!("flood-{at}")));
    keys.filter(|key| partition_of(key) == partition_of(good)).nth(nth).unwrap()
}

/// Enrols a device, publishes its desired state and connects it.
async fn admit(hub: &Guarded, inspector: &Bus, key: DeviceKey) -> Reporter {
    tokio::task::block_in_place(|| drop(hub.enroll(&key, "1d")));
    publish_desired(hub, &key).await;
    Reporter::connect(hub, inspector, key).await
}

/// The one deployment of a device.
pub fn deployment_of(key: &DeviceKey) -> String {
    format!("app-{}", key.device)
}

/// Asks the publisher, as an operator does, until it answers.
async fn publish_desired(hub: &Guarded, key: &DeviceKey) {
    let id = deployment_of(key);
    let file = hub.dir().join(format!("{id}.yaml"));
    let manifest = json!({ "id": id, "metadata": { "name": id }, "spec": {
        "applicationId": "com-example-hostile",
        "deploymentProfile": { "type": "simulated", "components": [{ "name": "main", "properties": {} }] } } });
    std::fs::write(&file, manifest.to_string()).unwrap();
    let (file, device) = (file.display().to_string(), key.to_string());
    let apply = async || {
        let done = muster(hub, Role::Operator, &["apply", "-f", &file, "--device", &device]);
        done.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&done.stderr).into_owned())
    };
    within(PATIENCE, "the publisher takes a request", apply, Result::is_ok).await.unwrap();
}

/// Whether the LEDGER that a subscriber reads is a mirror. Where somebody keeps mirrors, they are waited for.
pub async fn has_mirrors(hub: &Guarded) -> bool {
    let subscriber = client::reader(hub, Role::Subscriber).await.unwrap();
    let is_mirror = async || {
        let info = client::ask(&subscriber, "$JS.API.STREAM.INFO.LEDGER".to_owned(), "").await;
        info.is_some_and(|info| !info["config"]["mirror"].is_null())
    };
    if further_creds(hub, KEEPER_CREDS).is_none() {
        return is_mirror().await;
    }
    within(PATIENCE, "mirrors for readers", is_mirror, |is_mirror| *is_mirror).await
}
