//! A release opens the files of the one before: outbox, snapshot and checkpoints of the rollup, snapshots of ingest, checkpoint of
//! the planner, LEDGER, desired states, views.
//!
//! `make release-data` keeps what this version writes in `tests/release/VERSION`; every folder there is opened, and so is what
//! this version writes now. A file of a newer format is refused by name, and stays as it is.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_agent::app::schema;
use muster_agent::db::Db;
use muster_bus::Bus;
use muster_bus::topology::VIEWS_STREAM;
use muster_contract::desired::DesiredState;
use muster_contract::fact::Fact;
use muster_contract::limits::PARTITIONS;
use muster_contract::plans::Plan;
use muster_contract::subjects::{LedgerSubject, ViewKey, stream};
use muster_contract::view::{DeploymentView, FleetView};
use muster_contract::{DeviceKey, State, Timestamp, decode};
use muster_ctl::backup::archive;
use muster_ctl::backup::manifest::{Manifest, SavedStream};
use muster_domain::intake::{IntakeState, Rules};
use muster_ingest::snapshot::Snapshots;
use muster_planner::checkpoint::Checkpoints as PlannerCheckpoints;
use muster_rollup::history::checkpoint_retention::Room;
use muster_rollup::history::store::Checkpoints;
use muster_rollup::store::{Damage, Store, StoredSnapshot};
use muster_tests::backlog::Backlog;
use muster_tests::command::muster;
use muster_tests::wait::until;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::backup::{DOCUMENTS, report};
use super::hub::{DRAIN, Hub};

/// The folder of what releases wrote.
const RELEASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/release");
/// Set by `make release-data`: keep what this version writes.
const KEEP: &str = "MUSTER_RELEASE_DATA";
/// The plan in PLANS.
const PLAN: &str = "web";
/// Reports of the device that were never sent.
const UNSENT: u64 = 4;
/// A snapshot and a checkpoint after every few facts.
const DENSE: [&str; 6] =
    ["--snapshot-every", "100ms", "--checkpoint-facts", "5", "--checkpoint-every", "100ms"];
/// Room for all checkpoints of a test.
const ROOM: Room = Room { count: 100, bytes: 1 << 30 };
/// A format that no release has yet.
const NEWER: i64 = 99;
/// The folders of ingest's snapshots and of the planner's checkpoint, which releases before 0.3.0 did not keep.
const INGEST: &str = "ingest";
const PLANNER: &str = "planner";
/// The planner's file.
const PLANNER_FILE: &str = "planner.checkpoint";
/// Time between two checkpoints of a planner, which the test does not wait for: it writes one at its end.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

fn device() -> DeviceKey {
    "plant7/press-5".parse().unwrap()
}

fn names() -> impl Iterator<Item = String> {
    ["app-0".to_owned()].into_iter()
}

/// Writes what a release leaves on disks: `hub`, a backup with a rollup's databases, `ingest` and `planner`, what these restore
/// their state from, and `device`, a database.
async fn write(folder: &Path) {
    let hub = Hub::start().await;
    let kept = |name: &str| folder.join(name).display().to_string();
    let ingest = hub.ingest_with(&["--data-dir", &kept(INGEST)]).await;
    let (publisher, _handle) = hub.publisher().await;
    let planner = hub.planner_with(&["--data-dir", &kept(PLANNER)]).await;
    super::backup::plan(&hub, PLAN).await;
    let rollup = hub.rollup_with(&DENSE).await;
    let apply = json!({"site": "plant7", "device": "press-4", "documents": DOCUMENTS});
    assert_eq!(hub.request("muster.publisher.apply", &apply).await["generation"], 1);
    report(&hub, 1, 2, "installing").await;
    report(&hub, 3, 4, "installed").await;
    let data = hub.dir.path().join("rollup");
    let created_at = hub.bus.stream_state(stream::LEDGER).await.unwrap().created_at;
    until("a checkpoint", async || checkpoints(&data, created_at), |count| *count > 0).await;
    for service in [ingest, rollup, publisher, planner] {
        service.drain(DRAIN).await;
    }
    let (to, data) = (kept("hub"), data.display().to_string());
    let said = muster(&hub.server.url(), &["backup", "-o", &to, "--rollup-data", &data]).await;
    assert_eq!(said.code, 0, "{said:?}");

    let backlog = Backlog::running(device(), names()).await;
    let states = [State::Installing, State::Failed, State::Installed].map(|state| (0, state));
    backlog.tell(Timestamp::now(), states).await;
    let source = backlog.close().await;
    fs::create_dir_all(folder.join("device")).unwrap();
    // With what its log holds.
    let copy = folder.join("device/agent.db").display().to_string();
    let copied = async || {
        let database = Connection::open(source.path().join("agent.db")).unwrap();
        database.execute("VACUUM INTO ?1", [&copy]).map_err(|error| error.to_string())
    };
    until("a copy of the outbox", copied, Result::is_ok).await.unwrap();
}

/// Checkpoints in a copy of the file, which the rollup keeps locked; a copy made in the middle of a write has none.
fn checkpoints(data: &Path, created_at: Timestamp) -> usize {
    Checkpoints::open(copied(data).path(), created_at, ROOM)
        .map_or(0, |checkpoints| checkpoints.marks().len())
}

fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

/// Opens everything that a release wrote. `now` is the folder of what this version writes.
async fn open(folder: &Path, now: &Path) {
    let manifest = archive::open(&folder.join("hub")).unwrap();
    open_rollup(&folder.join("hub/rollup"));
    let hub = open_streams(&folder.join("hub"), &manifest).await;
    if folder.join(INGEST).exists() {
        open_ingest(&hub, &folder.join(INGEST), &now.join(INGEST)).await;
        open_planner(&folder.join(PLANNER), &now.join(PLANNER));
    }
    open_outbox(&folder.join("device")).await;
}

/// Ingest restores each partition from a snapshot of the format that it writes, and sets one of another format aside. A restored
/// LEDGER counts as another one, so each copy names the LEDGER of this hub.
async fn open_ingest(hub: &Hub, folder: &Path, now: &Path) {
    let created_at = json!(hub.bus.stream_state(stream::LEDGER).await.unwrap().created_at);
    for partition in 0..PARTITIONS {
        let file = format!("partition-{partition}.snapshot");
        let version = header(&folder.join(&file))["version"].clone();
        let is_read = version == header(&now.join(&file))["version"];
        for (version, is_read) in [(version, is_read), (NEWER.into(), false)] {
            let fields = [("ledgerCreatedAt", created_at.clone()), ("version", version)];
            let data = changed(folder, &file, fields);
            let mut intake = IntakeState::new(Rules::default(), Timestamp::now());
            let snapshots = Snapshots::open(data.path()).unwrap();
            let position = snapshots.restore(&hub.bus, partition, &mut intake).await.unwrap();
            assert_eq!(position.is_some(), is_read, "{file} of {}", folder.display());
            assert_eq!(data.path().join(&file).with_extension("unfit").exists(), !is_read);
        }
    }
}

/// The planner restores a checkpoint of the format that it writes, and sets one of another format aside.
fn open_planner(folder: &Path, now: &Path) {
    let format = |folder: &Path| {
        let header = header(&folder.join(PLANNER_FILE));
        (header["format"].clone(), header["records"].clone())
    };
    let is_read = format(folder) == format(now);
    let newer = changed(folder, PLANNER_FILE, [("format", NEWER.into())]);
    for (data, is_read) in [(copied(folder), is_read), (newer, false)] {
        let checkpoint = PlannerCheckpoints::open(data.path(), CHECKPOINT_EVERY).unwrap().restore();
        assert_eq!(checkpoint.is_some_and(|checkpoint| checkpoint.mark().position > 0), is_read);
        assert_eq!(data.path().join(PLANNER_FILE).with_extension("set-aside").exists(), !is_read);
    }
}

/// The first line of a file, which names its format.
fn header(file: &Path) -> Value {
    let mut line = String::new();
    BufReader::new(fs::File::open(file).unwrap()).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

/// A copy of a folder in which the first line of one file has other values in some fields.
fn changed<const N: usize>(folder: &Path, file: &str, fields: [(&str, Value); N]) -> tempfile::TempDir {
    let data = copied(folder);
    let path = data.path().join(file);
    let (mut first, bytes) = (header(&path), fs::read(&path).unwrap());
    for (field, value) in fields {
        first[field] = value;
    }
    let rest = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    fs::write(&path, [first.to_string().as_bytes(), &bytes[rest..]].concat()).unwrap();
    data
}

fn open_rollup(folder: &Path) {
    let data = copied(folder);
    let (_, found) = Store::open(data.path()).unwrap();
    let StoredSnapshot::Snapshot { created_at, fleet, .. } = found else { panic!("{found:?}") };
    assert!(fleet.as_of().ledger_seq > 0);
    let checkpoints = Checkpoints::open(data.path(), created_at, ROOM).unwrap();
    let mark = *checkpoints.marks().last().expect("a checkpoint");
    checkpoints.load(mark).unwrap();

    let newer = copied(folder);
    let database = Connection::open(newer.path().join("snapshot.db")).unwrap();
    database.pragma_update(None, "user_version", NEWER).unwrap();
    drop(database);
    let (_, found) = Store::open(newer.path()).unwrap();
    let StoredSnapshot::SetAside { damage: Damage::Format { found: NEWER, .. }, to } = found else {
        panic!("{found:?}")
    };
    assert!(to.exists(), "it is kept aside, and LEDGER is read");
}

/// Reads all streams in a new server, and returns it.
async fn open_streams(backup: &Path, manifest: &Manifest) -> Hub {
    let hub = Hub::without_streams().await;
    for saved in &manifest.streams {
        restore(&hub.bus, backup, saved).await;
    }
    let (mut facts, mut views) = (0, 0);
    for (_, subject, payload) in super::backup::messages(&hub, stream::LEDGER).await {
        if let Some(subject) = LedgerSubject::parse(&subject) {
            Fact::parse(&subject, &payload).unwrap_or_else(|error| panic!("{subject}: {error}"));
            facts += 1;
        }
    }
    for (_, subject, payload) in super::backup::messages(&hub, VIEWS_STREAM).await {
        match ViewKey::parse(subject.trim_start_matches("$KV.views.")) {
            Some(ViewKey::Fleet) => drop(serde_json::from_slice::<FleetView>(&payload).unwrap()),
            Some(ViewKey::Deployment(_)) => drop(serde_json::from_slice::<DeploymentView>(&payload).unwrap()),
            _ => continue,
        }
        views += 1;
    }
    for (_, subject, payload) in super::backup::messages(&hub, stream::DOWNLINK).await {
        if subject.starts_with("muster.desired.") {
            decode::parse::<DesiredState>(&payload).unwrap();
        }
    }
    assert!(facts > 0 && views > 1, "{facts} facts, {views} views");
    // Releases before 0.3.0 kept no plans in a backup.
    if manifest.streams.iter().any(|saved| saved.name == stream::PLANS) {
        let plans = super::backup::messages(&hub, stream::PLANS).await;
        let names = plans.iter().filter(|(_, subject, _)| subject.starts_with("muster.plan."));
        let names: Vec<_> = names
            .map(|(.., payload)| decode::parse::<Plan>(payload).unwrap().spec.name.to_string())
            .collect();
        assert_eq!(names, [PLAN]);
    }
    hub
}

/// Restores a stream without its end of life, which the data of an old release has passed.
async fn restore(bus: &Bus, backup: &Path, saved: &SavedStream) {
    let mut head = saved.head.clone();
    head.config["max_age"] = Value::from(0);
    let writer = bus.restore_stream(&saved.name, &head).await.unwrap();
    for piece in fs::read(backup.join(&saved.file.path)).unwrap().chunks(64 * 1024) {
        writer.send(piece.to_vec().into()).await.unwrap();
    }
    writer.finish().await.unwrap();
}

/// The outbox keeps its unsent reports, and they reach LEDGER of this release.
async fn open_outbox(folder: &Path) {
    let newer = copied(folder);
    let database = Connection::open(newer.path().join("agent.db")).unwrap();
    database.pragma_update(None, "user_version", NEWER).unwrap();
    drop(database);
    let refused = Db::open(newer.path(), &device(), &schema(), Timestamp::now()).unwrap_err().to_string();
    assert!(refused.contains("has format 99") && refused.contains("agent.db"), "{refused}");

    let backlog = Backlog::reopened(copied(folder), device(), names()).await;
    let summary = backlog.summary().await;
    assert_eq!((summary.head, summary.unsent), (UNSENT, UNSENT));
    let hub = Hub::start().await;
    let ingest = hub.ingest().await;
    let sender = backlog.send(hub.server.device_config(&device()), None);
    let received = async || hub.receipt(&device()).await;
    until("the receipt", received, |seen| *seen == Some((UNSENT, String::new()))).await;
    sender.end().await;
    ingest.drain(DRAIN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_releases_wrote_is_opened_and_unsent_reports_are_kept() {
    let place = tempfile::tempdir().unwrap();
    let now = place.path().join("now");
    write(&now).await;
    if std::env::var_os(KEEP).is_some() {
        let kept = Path::new(RELEASES).join(env!("CARGO_PKG_VERSION"));
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir_all(RELEASES).unwrap();
        copy_all(&now, &kept);
    }
    open(&now, &now).await;
    let folders: Vec<PathBuf> = fs::read_dir(RELEASES).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!folders.is_empty(), "{RELEASES} is empty; `make release-data` fills it");
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        println!("data of release {}", folder.display());
        open(folder, &now).await;
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            fs::write(&target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}
