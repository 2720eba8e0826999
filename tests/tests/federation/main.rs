//! Tests the federation's promises on real servers: two hubs, each with a LEDGER and a rollup, and a top that
//! adds their counts. A third hub with all of their facts gives the expected result.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod lines;
mod notices;
mod questions;
mod silence;
mod sums;
mod why;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use clap::Parser;
use muster_bus::Bus;
use muster_contract::canonical::Digest;
use muster_contract::subjects::{QUERY_PREFIX, ViewKey};
use muster_service::supervisor::{Drained, Supervisor};
use muster_tests::ledger::{DEVICES_PER_SITE, Message, beginning, publish, reports};
use muster_tests::server::Server;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Time a service may take to drain.
const DRAIN: Duration = Duration::from_secs(10);
/// Time an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// A lease that no slow answer ends.
const LONG: &str = "90s";
/// One that ends while a test waits for it.
const SHORT: &str = "3s";
/// Devices of one hub. Each hub has one whole site, `site-0` and `site-1`.
const NORTH: Range<usize> = 0..12;
/// Devices of the other hub.
const SOUTH: Range<usize> = DEVICES_PER_SITE..DEVICES_PER_SITE + 9;

/// A server and a connection that may do everything.
struct Place {
    server: Server,
    bus: Bus,
}

impl Place {
    async fn start() -> Self {
        let server = Server::start();
        let stop = CancellationToken::new();
        let bus = soon("a connection", Bus::connect(server.config("test"), &stop)).await.unwrap();
        Self { server, bus }
    }

    /// The views in the bucket by key, those that are deleted left out.
    async fn views(&self) -> BTreeMap<String, (u64, Value)> {
        let mut watch = soon("views", self.bus.view_watch(">")).await.unwrap();
        let mut views = BTreeMap::new();
        while let Some(batch) = soon("views", watch.next_present(1000)).await.unwrap() {
            for entry in batch {
                let value = entry.value.map(|value| serde_json::from_slice(&value).unwrap());
                views.extend(value.map(|value| (entry.key, (entry.revision, value))));
            }
        }
        views
    }

    /// Digests of the views by key.
    async fn digests(&self) -> BTreeMap<String, Digest> {
        let digest = |value: &Value| value["digest"].as_str().map(|text| text.parse().unwrap());
        self.views().await.into_iter().filter_map(|(key, (_, value))| Some((key, digest(&value)?))).collect()
    }

    async fn view(&self, key: &str) -> Value {
        let found = soon("a view", self.bus.view_get(key)).await.unwrap();
        found
            .and_then(|entry| entry.value)
            .map_or(Value::Null, |value| serde_json::from_slice(&value).unwrap())
    }

    async fn ask(&self, what: &str, question: Value) -> Value {
        let subject = format!("{QUERY_PREFIX}.{what}");
        let answer = self.bus.request(&subject, question.to_string().into(), PATIENCE).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }
}

/// A hub with a rollup in this process.
struct Hub {
    place: Place,
    rollup: Supervisor,
    handle: muster_rollup::app::Handle,
    _dir: TempDir,
}

impl Hub {
    /// One whose devices have reported everything as installed.
    async fn start(devices: impl Iterator<Item = usize> + Clone) -> Self {
        let place = Place::start().await;
        soon("the topology", place.bus.converge()).await.unwrap();
        publish(&place.bus, devices.clone().flat_map(begun)).await;
        for round in 1..=2 {
            publish(&place.bus, devices.clone().flat_map(|device| reports(device, round))).await;
        }
        let (dir, url) = (tempfile::tempdir().unwrap(), place.server.hub_url());
        let words = ["muster-rollup", "--nats-url", &url, "--data-dir", dir.path().to_str().unwrap()];
        let config = muster_rollup::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let rollup = Supervisor::new();
        let handle = soon("a rollup", muster_rollup::app::start(config, &rollup)).await.unwrap();
        let hub = Self { place, rollup, handle, _dir: dir };
        hub.has(devices.count()).await;
        hub
    }

    /// Waits until its bucket says what these devices have told.
    async fn has(&self, devices: usize) {
        let told = json!({ "installed": { "fresh": 3 * devices } });
        until("the hub's view of its fleet", || self.place.view("fleet"), |view| view["counts"] == told)
            .await;
        let look = || async {
            let told = self.handle.projection.read(|now| now.fleet.digests());
            (told, self.place.digests().await)
        };
        until("all of the hub's views", look, |(told, seen)| told == seen).await;
        let missing = || async { self.rollup.health().missing() };
        until("a ready rollup", missing, Vec::is_empty).await;
    }

    async fn put(&self, messages: impl IntoIterator<Item = Message>) {
        publish(&self.place.bus, messages).await;
    }
}

/// A device's desired state, with a label that every other device has, and its liveness.
fn begun(device: usize) -> [Message; 2] {
    let [(subject, desired), liveness] = beginning(device);
    let mut desired: Value = serde_json::from_str(&desired).unwrap();
    if device.is_multiple_of(2) {
        let ring = ["inner", "outer"][device / 2 % 2];
        desired["labels"] = json!({ "ring": ring });
    }
    [(subject, desired.to_string()), liveness]
}

/// A device's report of one deployment: failed.
fn failure(device: usize) -> Message {
    let [(subject, report), ..] = reports(device, 3);
    let mut report: Value = serde_json::from_str(&report).unwrap();
    let error = json!({ "code": "E1", "message": format!("disk full on {device}"), "source": "test" });
    report["status"] = json!({ "state": "failed", "error": error });
    (subject, report.to_string())
}

/// A federation in this process.
struct Federation {
    supervisor: Supervisor,
    handle: muster_federation::app::Handle,
}

impl Federation {
    async fn start(top: &Place, hubs: &[(&str, &Hub)], lease: &str) -> Self {
        let named = hubs.iter().map(|(name, hub)| format!("{name}={}", hub.place.server.hub_url()));
        Self::with(top, &named.collect::<Vec<_>>().join(","), lease).await
    }

    async fn with(top: &Place, hubs: &str, lease: &str) -> Self {
        let top = top.server.hub_url();
        let words = ["muster-federation", "--nats-url", &top, "--hub", hubs, "--lease", lease];
        let config = muster_federation::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let supervisor = Supervisor::new();
        let handle = soon("a federation", muster_federation::app::start(config, &supervisor)).await.unwrap();
        Self { supervisor, handle }
    }

    async fn ready(&self) {
        let missing = || async { self.supervisor.health().missing() };
        until("a ready federation", missing, Vec::is_empty).await;
    }

    async fn drain(self) {
        assert_eq!(self.supervisor.drain(DRAIN).await, Drained::default());
        assert!(self.supervisor.failure().is_none(), "{:?}", self.supervisor.failure());
    }
}

/// Two hubs, a top, and a federation that is ready.
struct Two {
    north: Hub,
    south: Hub,
    top: Place,
    federation: Federation,
}

impl Two {
    async fn start(lease: &str) -> Self {
        let (north, south) = (Hub::start(NORTH).await, Hub::start(SOUTH).await);
        let top = Place::start().await;
        let federation = Federation::start(&top, &[("north", &north), ("south", &south)], lease).await;
        federation.ready().await;
        let two = Self { north, south, top, federation };
        two.top_is_written().await;
        two
    }

    /// Waits until the top's bucket says what the federation knows.
    async fn top_is_written(&self) {
        let look = || async {
            let (seen, merged) = (self.top.digests().await, &self.federation.handle.merged);
            let known = |key: &String| {
                let view = merged.read_merge(|merge| merge.view(&ViewKey::parse(key).unwrap()));
                (key.clone(), view.unwrap().0)
            };
            (seen.keys().map(known).collect::<BTreeMap<_, _>>(), seen)
        };
        until("the top's views", look, |(known, seen)| seen.len() == 8 && known == seen).await;
    }
}
