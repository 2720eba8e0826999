//! A fleet whose devices speak HTTP: the services, gateways, certificates, and deployments in Git.

use std::net::SocketAddr;

use muster_contract::DeviceKey;
use muster_simulator::child::Spec;
use muster_simulator::repository::write_devices;
use muster_tests::server::free_port;
use muster_tests::story::key;
use muster_tests::system::{System, program};
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::pki::{Authority, DOMAIN, client_id};

pub(crate) const GATEWAY: &str = "muster-gateway";
/// Arguments of a gateway that publishes heartbeats often.
const HEARTBEAT: [&str; 2] = ["--devices-heartbeat", "200ms"];
/// The device of most tests.
pub(crate) const DEVICE: &str = "plant7/press-1";
/// The deployment of most tests, as Margo names one.
pub(crate) const WEB: &str = "6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10";

/// A running fleet.
pub(crate) struct Fleet {
    pub(crate) system: System,
    pub(crate) authority: Authority,
    pub(crate) gateway: SocketAddr,
}

impl Fleet {
    /// Services, one gateway, and an accepted client for each device.
    pub(crate) async fn start(devices: &[&str]) -> Self {
        let mut system = System::start().await;
        let authority = Authority::create(system.dir(), "authority");
        let [_, gateway] = start_gateway(&mut system, &authority, GATEWAY, None, &HEARTBEAT);
        let fleet = Self { system, authority, gateway };
        fleet.add(devices).await;
        for device in devices {
            fleet.accept(device).await;
        }
        fleet
    }

    /// Adds devices to the repository.
    pub(crate) async fn add(&self, devices: &[&str]) {
        if devices.is_empty() {
            return;
        }
        let keys: Vec<DeviceKey> = devices.iter().map(|device| key(device)).collect();
        write_devices(&self.system.repository, &keys).unwrap();
        self.system.repository.commit("devices").await.unwrap();
    }

    /// Services, one gateway, and an accepted client of a device that speaks for other devices.
    pub(crate) async fn start_with_children(parent: &str, children: &[&str]) -> Self {
        let fleet = Self::start(&[]).await;
        fleet.add(&[&[parent], children].concat()).await;
        let names: Vec<String> = children.iter().map(|child| key(child).device.to_string()).collect();
        fleet.accept_with(parent, &["--children", &names.join(",")]).await;
        fleet
    }

    /// Starts another gateway, with another address of NATS if one is given.
    pub(crate) fn another_gateway(&mut self, name: &str, nats: Option<SocketAddr>) -> SocketAddr {
        let [_, devices] = start_gateway(&mut self.system, &self.authority, name, nats, &HEARTBEAT);
        devices
    }

    /// Accepts the client of a device, which has its name.
    pub(crate) async fn accept(&self, device: &str) {
        self.accept_with(device, &[]).await;
    }

    /// The same with more arguments.
    pub(crate) async fn accept_with(&self, device: &str, more: &[&str]) {
        let id = client_id(key(device).device.as_str());
        let args = [&["enroll", device, "--spiffe", &id], more].concat();
        let look = async || {
            let done = self.system.muster(&args).await;
            // A service that starts makes the bucket.
            if done.status.success() {
                Ok(())
            } else {
                Err(String::from_utf8_lossy(&done.stderr).into_owned())
            }
        };
        self.system.eventually("the client is accepted", look).await;
    }

    /// Runs `muster`, which must succeed; its output.
    pub(crate) async fn muster(&self, args: &[&str]) -> String {
        let done = self.system.muster(args).await;
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// A client with the certificate of a device; it waits until the gateway answers.
    pub(crate) async fn client(&self, device: &str) -> Client {
        let own = self.authority.client(key(device).device.as_str());
        let client = Client::new(self.gateway, &self.authority.certificate(), Some(&own));
        self.serves(&client).await;
        client
    }

    /// Waits until a gateway answers.
    pub(crate) async fn serves(&self, client: &Client) {
        let look = async || match client.ask("GET", "/api/v1/deployments", &[], b"").await {
            Ok(answer) if answer.status < 500 || answer.status == 503 => Ok(()),
            other => Err(format!("{other:?}")),
        };
        self.system.eventually("the gateway answers", look).await;
    }

    /// Commits the deployments of the whole fleet, each with the tag of its package.
    pub(crate) async fn publish(&self, deployments: &[(&str, &str)]) {
        let file = "fleet/margo.yaml";
        let documents: Vec<String> = deployments.iter().map(|(id, tag)| package(id, tag)).collect();
        self.system.repository.write(file, &documents.join("---\n")).unwrap();
        self.system.repository.commit("release").await.unwrap();
    }

    /// Waits for a manifest with a property.
    pub(crate) async fn manifest(&self, client: &Client, holds: impl Fn(&Value) -> bool) -> (Value, Answer) {
        let look = async || {
            let answer = client.get("/api/v1/deployments").await;
            if answer.status != 200 {
                return Err(format!("{answer:?}"));
            }
            let manifest = answer.json();
            if holds(&manifest) { Ok((manifest, answer)) } else { Err(manifest.to_string()) }
        };
        self.system.eventually("a manifest", look).await
    }

    /// Waits until `muster device` shows a property.
    pub(crate) async fn device(&self, device: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let look = async || {
            let shown = self.system.muster(&["device", device, "--format", "json"]).await;
            let text = String::from_utf8_lossy(&shown.stdout).into_owned();
            match serde_json::from_str::<Value>(&text) {
                Ok(shown) if holds(&shown) => Ok(shown),
                _ => Err(text + &String::from_utf8_lossy(&shown.stderr)),
            }
        };
        self.system.eventually(what, look).await
    }

    /// Waits until a device's state of a deployment is known.
    pub(crate) async fn state(&self, device: &str, id: &str, state: &str) -> Value {
        let what = format!("{id} is {state} on {device}");
        self.device(device, &what, |shown| standing(shown, id)["report"]["state"] == state).await
    }
}

/// The line of a deployment in the answer of `muster device`.
pub(crate) fn standing(shown: &Value, id: &str) -> Value {
    let lines = shown["deployments"].as_array().cloned().unwrap_or_default();
    lines.into_iter().find(|line| line["deployment"] == id).unwrap_or_default()
}

/// Whether every number of a device is accounted for, and it has so many.
pub(crate) fn is_complete(shown: &Value, head: u64) -> bool {
    let missing = &shown["device"]["account"]["missing"];
    (missing.is_null() || *missing == json!([])) && shown["device"]["head"].as_u64() >= Some(head)
}

/// A deployment of two components as a Margo document.
fn package(id: &str, tag: &str) -> String {
    format!(
        "id: {id}\nmetadata: {{name: web-{tag}, namespace: margo-apps}}\nspec:\n  applicationId: com-example-web\n  \
         deploymentProfile:\n    type: compose\n    components:\n      \
         - {{name: db, properties: {{repository: \"oci://registry.example/db\", revision: {tag}, timeout: 8m30s}}}}\n      \
         - {{name: web, properties: {{repository: \"oci://registry.example/web\", revision: {tag}}}}}\n"
    )
}

/// Starts a gateway with more arguments; its addresses of people and of devices.
pub(crate) fn start_gateway(
    system: &mut System,
    authority: &Authority,
    name: &str,
    nats: Option<SocketAddr>,
    more: &[&str],
) -> [SocketAddr; 2] {
    let [people, devices] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let server = authority.server();
    let file = |path: &std::path::Path| path.display().to_string();
    let args = [
        "--nats-url",
        &nats.map_or_else(|| system.server.url(), |addr| format!("nats://{addr}")),
        "--insecure-http",
        "--people-addr",
        &people.to_string(),
        "--devices-addr",
        &devices.to_string(),
        "--client-ca",
        &file(&authority.certificate()),
        "--devices-cert",
        &file(&server.certificate),
        "--devices-key",
        &file(&server.key),
        "--trust-domain",
        DOMAIN,
        "--wfm-id",
        "main",
    ];
    let args = [&args, more].concat().into_iter().map(str::to_owned).collect();
    system.start_own(Spec { name: name.to_owned(), program: program(GATEWAY), args });
    [people, devices]
}

/// A status as a device posts it: every component in the same state.
pub(crate) fn status(id: &str, version: &Value, state: &str) -> Value {
    let error = json!({ "code": "E", "source": "web", "message": "broken" });
    let component = |name: &str| match state {
        "failed" => json!({ "name": name, "state": state, "error": error }),
        _ => json!({ "name": name, "state": state }),
    };
    json!({
        "deploymentId": id, "adoptedManifestVersion": version, "status": { "state": state },
        "components": [component("db"), component("web")],
    })
}

/// The address of a deployment's statuses.
pub(crate) fn status_path(id: &str) -> String {
    format!("/api/v1/deployments/{id}/status")
}
