//! Rights to the hub's packages: a packager writes them, a device reads them, at the hub and behind a leaf node, and neither gains
//! anything else.

use std::time::Duration;

use muster_agent::package::{PackageSettings, PackageSource, PackageStore};
use muster_bus::Role;
use muster_contract::packages::{ObjectName, STREAM};
use muster_tests::guarded::Guarded;
use muster_tests::leaf::Site;
use muster_tests::oci::packed;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use tokio::sync::watch;

use crate::{connect, ingest};

const COMPOSE: &str = "services: {web: {image: web}}\n";

/// Puts a package, as a packager does.
fn put(hub: &Guarded, name: &str) -> PackageSource {
    let file = hub.dir().join(name);
    std::fs::write(&file, packed(&[("compose.yaml", COMPOSE)])).unwrap();
    let (file, creds) = (file.display().to_string(), hub.creds(Role::Packager).display().to_string());
    let done = hub.muster(&["package", "put", &file, "--creds", &creds, "--format", "json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let put: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let digest = put["digest"].as_str().unwrap().parse().unwrap();
    PackageSource::archive(put["address"].as_str().unwrap(), Some(digest)).unwrap()
}

/// Requests that are refused to somebody with these credentials.
fn refused(hub: &Guarded, raw: &mut Raw, subjects: &[(&str, &str)]) {
    for (subject, payload) in subjects {
        let said = raw.publish(subject, "", payload).join("\n");
        assert!(said.contains("Permissions Violation"), "{subject}: {said}; {}", hub.server.log_tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_reads_packages_and_gains_nothing_else() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    put(&hub, "web.tar.gz");
    let creds = hub.enroll(&device("press-4"), "1h");
    let mut raw = Raw::connect(hub.server.port(), &creds).unwrap();
    let before = ingest.stream_state(STREAM).await.unwrap();
    let by_sequence = r#"{"seq":1}"#;
    refused(
        &hub,
        &mut raw,
        &[
            ("$JS.API.DIRECT.GET.DOWNLINK", by_sequence),
            ("$JS.API.DIRECT.GET.LEDGER", by_sequence),
            ("$JS.API.DIRECT.GET.OBJ_other", by_sequence),
            ("$JS.API.STREAM.MSG.GET.OBJ_packages", by_sequence),
            ("$JS.API.STREAM.INFO.OBJ_packages", ""),
            ("$JS.API.STREAM.PURGE.OBJ_packages", ""),
            ("$JS.API.STREAM.DELETE.OBJ_packages", ""),
            ("$JS.API.CONSUMER.CREATE.OBJ_packages", "{}"),
            ("$JS.API.CONSUMER.CREATE.OBJ_packages.mine", "{}"),
            ("$O.packages.C.mine", "a chunk"),
            ("$O.packages.M.mine", "{}"),
        ],
    );
    let inbox = "_INBOX_plant7_press-4.1";
    raw.subscribe(inbox, 1);
    // The record, because the protocol of this test reads text alone.
    let subject = "web.tar.gz".parse::<ObjectName>().unwrap().record_subject();
    let newest = format!(r#"{{"last_by_subj":"{subject}"}}"#);
    let record = raw.ask("$JS.API.DIRECT.GET.OBJ_packages", inbox, &newest);
    assert!(record.contains("SHA-256="), "{record}");
    // A foreign reply reaches nothing in HUB.
    raw.publish("$JS.API.DIRECT.GET.OBJ_packages", "$JS.API.STREAM.PURGE.OBJ_packages", r#"{"seq":99}"#);
    raw.ask("$JS.API.DIRECT.GET.OBJ_packages", inbox, &newest);
    assert_eq!(ingest.stream_state(STREAM).await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packager_writes_packages_and_gains_nothing_else() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    put(&hub, "web.tar.gz");
    let mut raw = Raw::connect(hub.server.port(), &hub.creds(Role::Packager)).unwrap();
    refused(
        &hub,
        &mut raw,
        &[
            ("$JS.API.STREAM.CREATE.OBJ_mine", r#"{"name":"OBJ_mine"}"#),
            ("$JS.API.STREAM.UPDATE.OBJ_packages", "{}"),
            ("$JS.API.STREAM.DELETE.OBJ_packages", ""),
            ("$JS.API.DIRECT.GET.DOWNLINK", r#"{"seq":1}"#),
            ("muster.desired.plant7.press-4", "{}"),
            ("muster.publisher.apply", "{}"),
            ("muster.query.fleet", "{}"),
            ("$O.other.M.mine", "{}"),
            ("$KV.views.fleet", "{}"),
        ],
    );
    assert_eq!(ingest.stream_state("DOWNLINK").await.unwrap().messages, 0);
    // Nobody else of PEOPLE writes packages.
    for role in [Role::Operator, Role::Viewer, Role::Gateway, Role::Planner] {
        let mut raw = Raw::connect(hub.server.port(), &hub.creds(role)).unwrap();
        refused(&hub, &mut raw, &[("$O.packages.M.mine", "{}"), ("$O.packages.C.mine", "{}")]);
    }
    // An operator lists them, also through a gateway.
    for role in [Role::Viewer, Role::Planner] {
        let mut raw = Raw::connect(hub.server.port(), &hub.creds(role)).unwrap();
        refused(&hub, &mut raw, &[("$JS.API.DIRECT.GET.OBJ_packages", "{}")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_behind_a_leaf_node_fetches_a_package_from_the_hub() {
    let site = "plant7".parse().unwrap();
    let hub = Guarded::start_with_sites(&[&site]);
    let _ingest = ingest(&hub).await;
    let source = put(&hub, "web.tar.gz");
    let key = device("press-4");
    hub.enroll(&key, "1h");
    let leaf = Site::start(&hub, &site);
    let bus = connect(leaf.device_config(&hub, &key)).await;
    let (_sender, connected) = watch::channel(Some(bus));
    let dir = tempfile::tempdir().unwrap();
    let store = PackageStore::with_hub(dir.path(), PackageSettings::default(), connected);
    let place = async || store.ensure_unpacked(&source, None, dir.path()).await.map_err(|e| e.to_string());
    let placed = tokio::time::timeout(
        Duration::from_secs(60),
        muster_tests::wait::until("the package", place, Result::is_ok),
    );
    let folder = placed.await.unwrap().unwrap();
    assert_eq!(std::fs::read_to_string(folder.join("compose.yaml")).unwrap(), COMPOSE);
}
