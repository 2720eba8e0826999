//! A hub that is backed up while it runs, destroyed, and made again in another server.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use muster_bus::{Bus, Outgoing};
use muster_contract::subjects::stream;
use muster_ctl::backup::archive;
use muster_service::supervisor::Supervisor;
use muster_tests::command::{Said, muster};
use muster_tests::server::Server;
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::hub::{DRAIN, Hub, key};

pub(crate) const DOCUMENTS: &str = "id: web\nmetadata: {name: web}\nspec:\n  applicationId: com-example-web\n  deploymentProfile:\n    \
                         type: process\n    components:\n      - name: main\n        properties: {command: run}\n";

/// The services of a hub.
struct Services {
    all: Vec<Supervisor>,
    _publisher: muster_publisher::app::Handle,
}

impl Services {
    async fn start(hub: &Hub) -> Self {
        let (publisher, handle) = hub.publisher().await;
        let (ingest, planner) = (hub.ingest().await, hub.planner().await);
        Self { all: vec![ingest, planner, publisher, hub.rollup().await], _publisher: handle }
    }

    async fn without_rollup(mut self) -> Self {
        self.all.pop().unwrap().drain(DRAIN).await;
        self
    }

    fn with(mut self, service: Supervisor) -> Self {
        self.all.push(service);
        self
    }

    async fn stop(self) {
        for service in self.all {
            service.drain(DRAIN).await;
        }
    }
}

/// Sends reports `from..=head` of the device, and waits until the receipt covers them and the view has them.
pub(crate) async fn report(hub: &Hub, from: u64, head: u64, state: &str) -> Value {
    for seq in from..=head {
        hub.report_state(&key(), (seq, head), state).await;
    }
    covered(hub, head).await;
    let look = async || view(hub).await;
    until("the view", look, |view| view["counts"][state]["fresh"] == 1).await
}

async fn covered(hub: &Hub, head: u64) {
    let look = async || {
        hub.beat(&key(), head).await;
        hub.receipt(&key()).await
    };
    until("the receipt", look, |seen| *seen == Some((head, String::new()))).await;
}

async fn view(hub: &Hub) -> Value {
    let entry = hub.bus.view_get("deployment.web").await.ok().flatten();
    entry.and_then(|entry| serde_json::from_slice(&entry.value?).ok()).unwrap_or_default()
}

/// Every message of a stream: sequence, subject, payload.
pub(crate) async fn messages(hub: &Hub, name: &str) -> Vec<(u64, String, Vec<u8>)> {
    let (mut all, mut from) = (Vec::new(), 1);
    while let Some(message) = hub.bus.from(name, from).await.unwrap() {
        from = message.stream_seq + 1;
        all.push((message.stream_seq, message.subject.clone(), message.payload.to_vec()));
    }
    all
}

/// Stores a plan, which the planner may refuse only while it still reads PLANS.
pub(crate) async fn plan(hub: &Hub, name: &str) {
    let plan = json!({"name": name, "namespace": "demo", "serviceName": name, "profile": "process",
        "applications": [{"payloadName": "main", "resources": {"cores": 1, "memory": 1}}]});
    let apply = async || hub.request("muster.planner.plan-apply", &plan).await;
    let answer = until("the plan is stored", apply, |answer| answer["error"]["code"] != "notReady").await;
    assert_eq!(answer["version"], 0, "{answer}");
}

fn said_well(said: &Said) {
    assert_eq!(said.code, 0, "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_made_again_from_a_backup_counts_on_from_where_it_was() {
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup").display().to_string();
    let old = Hub::start().await;
    let services = Services::start(&old).await;
    let apply = json!({"site": "plant7", "device": "press-4", "documents": DOCUMENTS});
    assert_eq!(old.request("muster.publisher.apply", &apply).await["generation"], 1);
    let before = report(&old, 1, 2, "installing").await;
    plan(&old, "kept").await;
    let plans = messages(&old, stream::PLANS).await;

    let data = |hub: &Hub| hub.dir.path().join("rollup").display().to_string();
    let services = services.without_rollup().await;
    let words = ["backup", "-o", &backup, "--rollup-data", &data(&old), "--format", "json"];
    let said = muster(&old.server.url(), &words).await;
    let services = services.with(old.rollup().await);
    said_well(&said);
    let result: Value = serde_json::from_str(&said.out).unwrap();
    let ledger = result["streams"].as_array().unwrap().iter().find(|stream| stream["name"] == "LEDGER");
    let last = ledger.unwrap()["lastSeq"].as_u64().unwrap();
    let kept = messages(&old, stream::LEDGER).await;
    // These events come after the backup and are lost with the hub.
    let after = report(&old, 3, 4, "installed").await;
    plan(&old, "lost").await;
    assert_ne!(before["digest"], after["digest"]);
    services.stop().await;
    drop(old);

    let new = Hub::without_streams().await;
    let words = ["restore", "--from", &backup, "--streams", "--rollup-data", &data(&new)];
    let restored = muster(&new.server.url(), &words).await;
    said_well(&restored);
    assert!(restored.out.contains("devices send again"), "{restored:?}");
    let same: Vec<_> = kept.into_iter().filter(|(seq, ..)| *seq <= last).collect();
    let ledger = messages(&new, stream::LEDGER).await;
    assert_eq!(ledger[..same.len()], same, "sequence numbers, subjects and facts of LEDGER");
    assert_eq!(view(&new).await["digest"], before["digest"], "the view as it was");
    assert_eq!(messages(&new, stream::PLANS).await, plans, "plans with their sequence numbers");
    let again = muster(&new.server.url(), &["restore", "--from", &backup, "--streams"]).await;
    said_well(&again);

    let services = Services::start(&new).await;
    assert_eq!(new.request("muster.planner.plan-get", &json!({"plan": "kept"})).await["plan"]["version"], 0);
    plan(&new, "later").await;
    let asked = async || {
        new.beat(&key(), 4).await;
        new.receipt(&key()).await
    };
    until("the hub asks for what it lost", asked, |seen| {
        seen.as_ref().is_some_and(|(through, missing)| *through == 2 || missing == "3-4")
    })
    .await;
    let now = report(&new, 3, 4, "installed").await;
    let view = async || view(&new).await["digest"].clone();
    until("the view as it was when the hub was lost", view, |digest| *digest == after["digest"]).await;
    assert!(now["asOf"]["ledgerSeq"].as_u64() > before["asOf"]["ledgerSeq"].as_u64(), "{now}");
    let audit = muster(&new.server.url(), &["audit"]).await;
    said_well(&audit);
    let verify = muster(&new.server.url(), &["verify"]).await;
    said_well(&verify);
    services.stop().await;
    let files = fs::read_dir(data(&new)).unwrap().map(|entry| entry.unwrap().file_name());
    let aside: Vec<_> = files.filter(|name| name.to_string_lossy().contains("set-aside")).collect();
    assert!(aside.is_empty(), "the rollup went on with what was restored: {aside:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_holds_every_stream_that_devices_do_not_fill_again() {
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup");
    let hub = Hub::start().await;
    let (publisher, _handle) = hub.publisher().await;
    hub.planner().await.drain(DRAIN).await;
    publisher.drain(DRAIN).await;
    said_well(&muster(&hub.server.url(), &["backup", "-o", &backup.display().to_string()]).await);
    let saved = archive::open(&backup).unwrap().streams.into_iter().map(|stream| stream.name);
    let saved: BTreeSet<String> =
        saved.chain([stream::UPLINK, stream::PRESENCE].map(str::to_owned)).collect();
    let described = muster_bus::topology::described();
    let names =
        described["streams"].as_array().unwrap().iter().map(|stream| stream["name"].as_str().unwrap());
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    assert_eq!(saved, names);
    assert_eq!(
        names,
        muster_ctl::restore::streams().map(str::to_owned).collect(),
        "muster restore checks all"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_damaged_restores_nothing() {
    let place = tempfile::tempdir().unwrap();
    let backup = place.path().join("backup");
    let name = backup.display().to_string();
    let old = Hub::start().await;
    said_well(&muster(&old.server.url(), &["backup", "-o", &name]).await);
    let taken = muster(&old.server.url(), &["backup", "-o", &name]).await;
    assert!(taken.code == 1 && taken.err.contains("exists and is not overwritten"), "{taken:?}");

    let file = backup.join("streams/NOTICES.snapshot");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let server = Server::start();
    let keys = place.path().join("keys").display().to_string();
    let restore = ["restore", "--from", &name, "--streams"];
    let refused = muster(&server.url(), &restore).await;
    assert!(refused.code == 1 && refused.err.contains("NOTICES.snapshot"), "{refused:?}");
    let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
    assert!(bus.stream_state(stream::LEDGER).await.is_err(), "nothing is restored");

    fs::write(&file, &whole).unwrap();
    let lacks = muster(&server.url(), &["restore", "--from", &name, "--keys", &keys]).await;
    assert!(lacks.code == 1 && lacks.err.contains("holds no keys"), "{lacks:?}");
    let occupied = Hub::start().await;
    occupied.report(&key(), 1, 1).await;
    occupied.bus.publish(Outgoing::new("muster.hub.x".to_owned(), "{}")).await.unwrap();
    let refused = muster(&occupied.server.url(), &restore).await;
    assert!(refused.code == 1 && refused.err.contains("the server already has LEDGER"), "{refused:?}");
    said_well(&muster(&server.url(), &restore).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_databases_come_back_and_an_outbox_is_never_copied() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).display().to_string();
    let url = "nats://127.0.0.1:1";
    said_well(&muster(url, &["auth", "init", "--dir", &path("auth"), "--resolver-dir", "accounts"]).await);
    fs::write(place.path().join("auth/agent.db"), "an outbox").unwrap();
    let hub = Hub::start().await;
    let rollup = hub.rollup().await;
    let data = hub.dir.path().join("rollup").display().to_string();
    let words = ["backup", "-o", &path("rollup"), "--without-streams", "--rollup-data", &data];
    let busy = muster(url, &words).await;
    assert!(busy.code == 1 && busy.err.contains("stop muster-rollup"), "{busy:?}");
    rollup.drain(DRAIN).await;
    said_well(&muster(url, &words).await);
    let words = ["backup", "-o", &path("x"), "--without-streams", "--rollup-data", &path("auth")];
    assert!(muster(url, &words).await.err.contains("no database of muster-rollup"));

    let words = ["backup", "-o", &path("keys"), "--without-streams", "--keys", &path("auth")];
    said_well(&muster(url, &words).await);
    assert!(!place.path().join("keys/keys/agent.db").exists(), "no outbox");
    let words = ["restore", "--from", &path("keys"), "--keys", &path("again")];
    said_well(&muster(url, &words).await);
    let again = place.path().join("again");
    for name in ["operator.seed", "signers/device.seed", "creds/ingest.creds", "roster.json"] {
        let (was, now) = (place.path().join("auth").join(name), again.join(name));
        assert_eq!(fs::read(&was).unwrap(), fs::read(&now).unwrap(), "{name}");
        assert_eq!(mode(&now), 0o600, "{name}");
    }
    assert_eq!(mode(&again), 0o700);
    said_well(&muster(url, &["auth", "list", "--dir", &path("again")]).await);
    let there = muster(url, &words).await;
    assert!(there.code == 1 && there.err.contains("exists and is not overwritten"), "{there:?}");

    let words = ["restore", "--from", &path("rollup"), "--rollup-data", &path("data")];
    said_well(&muster(&hub.server.url(), &words).await);
    assert!(place.path().join("data/snapshot.db").is_file());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
