//! The six ways in which people read, with the credentials of `muster auth` over TLS, by a client that is not ours: an ordered
//! consumer, a durable pull consumer, get, watch and keys of the bucket `views`, and a request to a service.

use std::path::Path;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_bus::Outgoing;
use muster_contract::subjects;
use muster_identity::{KeyPair, Role, creds};
use muster_tests::guarded::Guarded;
use muster_tests::python::interpreter;
use muster_tests::server::device;
use muster_tests::system::{INGEST, ROLLUP};
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use crate::connect;
use crate::fleet::start_service;

const SCRIPT: &str = "tests/security/reading.py";

/// What a person with a role reads.
async fn read(hub: &Guarded, role: Role) -> Value {
    let text = std::fs::read_to_string(hub.creds(role)).unwrap();
    let token = creds::token(&text).unwrap();
    let key = KeyPair::from_seed(creds::seed(&text).unwrap()).unwrap();
    let mut command = Command::new(interpreter());
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT)).arg(hub.url());
    command.arg(hub.authority().unwrap()).args([token, &key.public_key(), role.as_str()]);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut reader = command.spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    let nonce = soon("a nonce", lines.next_line()).await.unwrap().expect("the reader connects");
    let signature = URL_SAFE_NO_PAD.encode(key.sign(nonce.as_bytes()).unwrap());
    reader.stdin.take().unwrap().write_all(format!("{signature}\n").as_bytes()).await.unwrap();
    let found = soon("what it read", lines.next_line()).await.unwrap();
    serde_json::from_str(&found.expect("it reads in every way")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_in_six_ways_with_tokens_over_tls_and_a_foreign_client() {
    let hub = Guarded::start();
    let (data, keeper) = (hub.dir().join("rollup").display().to_string(), hub.creds(Role::Keeper));
    let rollup_args = ["--data-dir", &data, "--readers-creds", &keeper.display().to_string()];
    let _rollup = start_service(&hub, Role::Rollup, ROLLUP, &rollup_args);
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s"]);
    let key = device("press-4");
    hub.enroll(&key, "1h");
    let own = connect(hub.device_config(&key)).await;
    let reported = async || own.publish(Outgoing::new(subjects::report(&key), "garbage")).await.is_ok();
    until("the streams", reported, |is_there| *is_there).await;
    let subscriber = connect(hub.config(Role::Subscriber)).await;
    let mirrored = async || {
        let ledger = subscriber.stream_state("LEDGER").await.map_or(0, |state| state.messages);
        let fleet = subscriber.last("KV_views", "$KV.views.fleet").await;
        ledger > 1 && fleet.is_ok_and(|view| view.is_some())
    };
    until("facts and a view in the mirrors", mirrored, |is_there| *is_there).await;

    for role in [Role::Subscriber, Role::Operator] {
        let found = read(&hub, role).await;
        let rest = json!({ "get": "FleetView", "watch": "fleet", "keys": true, "request": true });
        for (way, wanted) in rest.as_object().unwrap() {
            assert_eq!(found[way], *wanted, "{role:?}: {way}");
        }
        let sequences = [&found["ordered"], &found["durable"][0], &found["durable"][1]];
        let [ordered, first, second] = sequences.map(|sequence| sequence.as_u64().unwrap());
        assert!(ordered <= first && first < second, "{role:?}: {found}");
    }
    let log = hub.server.log();
    assert!(!log.contains("ermissions Violation"), "somebody lacked a right:\n{log}");
}
