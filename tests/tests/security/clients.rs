//! Tests common NATS clients on a secured hub: nats-py, nats.js and async-nats read over TLS with the credentials of
//! `muster auth` in every way: an ordered consumer, a durable pull consumer, get, watch, keys and history of the bucket
//! `views`, a request, a notice. Each refusal of the server names its subject. The `nats` CLI cannot be installed here: its
//! calls are replayed from [a transcript](clients/nats_cli.txt).

mod async_nats_client;
mod transcript;

use muster_bus::Outgoing;
use muster_contract::subjects;
use muster_identity::Role;
use muster_simulator::child::Child;
use muster_tests::example::{Example, Language, packages};
use muster_tests::guarded::Guarded;
use muster_tests::not_run::not_run;
use muster_tests::python::interpreter;
use muster_tests::schemas;
use muster_tests::server::device;
use muster_tests::system::{INGEST, ROLLUP};
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::connect;
use crate::fleet::start_service;

/// Roles that may read LEDGER and the views.
const READERS: [Role; 2] = [Role::Subscriber, Role::Operator];
/// The subject of the fact about an unreadable report.
const QUARANTINED: &str = "muster.quarantine.plant7.press-4";
/// A request that no reader may send.
const REFUSED: &str = "$JS.API.CONSUMER.NAMES.LEDGER";

/// A hub with facts of each kind of subject that the clients filter by, in LEDGER and its mirror.
struct Stage {
    hub: Guarded,
    _services: [Child; 2],
}

impl Stage {
    async fn start() -> Self {
        let hub = Guarded::start();
        let (data, keeper) = (hub.dir().join("rollup").display().to_string(), hub.creds(Role::Keeper));
        let rollup_args = ["--data-dir", &data, "--readers-creds", &keeper.display().to_string()];
        let services = [
            start_service(&hub, Role::Rollup, ROLLUP, &rollup_args),
            start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s"]),
        ];
        let key = device("press-4");
        hub.enroll(&key, "1h");
        let own = connect(hub.device_config(&key)).await;
        let reported = async || own.publish(Outgoing::new(subjects::report(&key), "garbage")).await.is_ok();
        until("the streams", reported, |is_there| *is_there).await;
        let subscriber = connect(hub.config(Role::Subscriber)).await;
        let mirrored = async || {
            let rejected = subscriber.last("LEDGER", QUARANTINED).await;
            let fleet = subscriber.last("KV_views", "$KV.views.fleet").await;
            rejected.is_ok_and(|fact| fact.is_some()) && fleet.is_ok_and(|view| view.is_some())
        };
        until("facts and a view in the mirrors", mirrored, |is_there| *is_there).await;
        Self { hub, _services: services }
    }

    /// The arguments of a client of a role: a name of its own, and how to reach the hub.
    fn args(&self, role: Role, client: &str, url: &str) -> Vec<String> {
        let creds = self.hub.creds(role).display().to_string();
        let authority = self.hub.authority().unwrap().display().to_string();
        let name = format!("{client}-{}", role.as_str());
        let args = [&name, "--url", url, "--creds", &creds, "--tls-ca", &authority];
        args.map(str::to_owned).to_vec()
    }

    /// Asserts that the server refused no request but the one that it must refuse.
    fn only_names_were_refused(&self) {
        let log = self.hub.server.log();
        let others =
            log.lines().filter(|line| line.contains("ermissions Violation") && !line.contains(REFUSED));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new(), "somebody lacked a right");
    }
}

/// Runs a client in another language once for each role, and checks that it reads in every way.
async fn reads(stage: &Stage, client: &str, url: &str, command: impl Fn() -> Command) {
    for role in READERS {
        let mut command = command();
        command.args(stage.args(role, client, url)).env("PYTHONDONTWRITEBYTECODE", "1");
        let line = Example::run(client, command).line().await;
        check(&serde_json::from_str(&line).unwrap(), role);
    }
    stage.only_names_were_refused();
}

/// Checks the result of each way of reading.
fn check(found: &Value, role: Role) {
    let wanted = json!({
        "ordered": QUARANTINED, "durable": true,
        "get": "FleetView", "watch": "fleet", "keys": true, "history": ["fleet"],
        "request": "FleetView", "notice": "present", "newestNotice": "present",
    });
    for (way, wanted) in wanted.as_object().unwrap() {
        assert_eq!(found[way], *wanted, "{role:?}: {way}");
    }
    let refusal = found["refused"].as_str().unwrap_or_default().to_lowercase();
    assert!(refusal.contains(&REFUSED.to_lowercase()), "{role:?}: the refusal names its subject: {refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_py_reads_in_every_way_with_shipped_credentials() {
    let stage = Stage::start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/security/clients/nats_py.py");
    let command = || {
        let mut command = Command::new(interpreter());
        command.arg(script).arg(schemas::folder().join("examples"));
        command
    };
    reads(&stage, "nats-py", &stage.hub.url(), command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_js_reads_in_every_way_with_shipped_credentials() {
    if !Language::JavaScript.is_there("nats.js on a secured hub") {
        return;
    }
    let stage = Stage::start().await;
    let command = |flags: &[&str]| {
        let mut command = Command::new("node");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/security/clients/nats_js.mjs");
        command.args(flags).arg(script).arg(packages());
        command
    };
    reads(&stage, "nats-js", &stage.hub.url(), || command(&[])).await;

    // As a browser does. Node.js 18 has no WebSocket.
    let flag = "--experimental-websocket";
    if !Command::new("node").args([flag, "--eval", "0"]).status().await.unwrap().success() {
        not_run(
            "nats.js by WebSocket",
            "node is older than version 20.10, which has a WebSocket; install a newer one",
        );
        return;
    }
    let by_websocket = || {
        let mut command = command(&[flag]);
        command.env("NODE_EXTRA_CA_CERTS", stage.hub.authority().unwrap());
        command
    };
    reads(&stage, "nats-ws", &stage.hub.websocket_url(), by_websocket).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn async_nats_reads_in_every_way_with_shipped_credentials() {
    let stage = Stage::start().await;
    for role in READERS {
        let found = async_nats_client::read(&stage.hub, role, &format!("async-nats-{}", role.as_str())).await;
        check(&found, role);
    }
    stage.only_names_were_refused();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_the_nats_cli_is_answered_or_refused_as_listed() {
    not_run(
        "nats CLI",
        "it cannot be installed from a package registry: its calls were replayed from a transcript",
    );
    let stage = Stage::start().await;
    let calls = transcript::calls(include_str!("clients/nats_cli.txt"));
    assert!(calls.len() > 20, "{}", calls.len());
    for role in READERS {
        transcript::replay(&stage.hub, role, &calls).await;
    }
}
