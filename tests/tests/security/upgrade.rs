//! A running hub of the release before READERS and PEOPLE is upgraded: no device needs a new key, and people who had the
//! right to write by a reply subject lose it.

use muster_bus::{Bus, Outgoing, Start};
use muster_contract::subjects;
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};

use crate::{connect, ingest};

async fn report(bus: &Bus) {
    soon("a report", bus.publish(Outgoing::new(subjects::report(&device("press-4")), "{}"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_a_running_hub_disturbs_no_device_and_moves_people() {
    let hub = Guarded::start_older(&device("press-4"));
    let refused = hub.muster(&["auth", "push", "--dir", &hub.auth().display().to_string()]);
    assert!(String::from_utf8(refused.stderr).unwrap().contains("muster auth upgrade"));
    let ingest = ingest(&hub).await;
    let press = connect(hub.device_config(&device("press-4"))).await;
    report(&press).await;
    let old_viewer = std::fs::read(hub.creds(Role::Viewer)).unwrap();
    let carried = hub.dir().join("carried.creds");
    std::fs::write(&carried, old_viewer).unwrap();
    Raw::connect(hub.server.port(), &carried).unwrap();

    let said = hub.decide(&["auth", "upgrade"]);
    assert!(said.contains("READERS, PEOPLE") && said.contains("muster auth push"), "{said}");
    hub.decide(&["auth", "push"]);

    let refused = async || Raw::connect(hub.server.port(), &carried).is_err();
    until("the old token of a viewer is refused", refused, |is_refused| *is_refused).await;
    report(&press).await;
    let again = connect(hub.device_config(&device("press-4"))).await;
    report(&again).await;
    assert_eq!(ingest.stream_state("UPLINK").await.unwrap().messages, 3);
    hub.mirror().await;
    let subscriber = connect(hub.config(Role::Subscriber)).await;
    soon("LEDGER", subscriber.replay("LEDGER", &[], Start::First)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maintainer_brings_streams_of_an_older_release_to_this_ones() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    let file = hub.dir().join("maintainer.creds").display().to_string();
    hub.decide(&["auth", "creds", "maintainer", "--valid", "1h", "-o", &file]);
    let mut raw = Raw::connect(hub.server.port(), file.as_ref()).unwrap();
    // What the server lets nobody take back stays: deletes are denied.
    let older = r#"{"name":"PRESENCE","subjects":["muster.presence.*.*"],"storage":"memory","num_replicas":1,
        "max_age":1800000000000,"max_msgs_per_subject":1,"deny_delete":true}"#;
    raw.publish("$JS.API.STREAM.UPDATE.PRESENCE", "", older);
    let converged = async || ingest.converge().await;
    let refused = until("a service refuses the older shape", converged, Result::is_err).await.unwrap_err();
    assert!(refused.to_string().contains("muster streams upgrade"), "{refused}");

    let streams = |verb: &str| hub.muster(&["streams", verb, "--creds", &file]);
    let shown = streams("show");
    let words = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.status.code(), Some(1), "{words}");
    assert!(words.contains("PRESENCE") && words.contains("max_age"), "{words}");
    assert!(streams("upgrade").status.success());
    soon("the streams", ingest.converge()).await.unwrap();
    assert!(streams("show").status.success());
    let viewer = hub.creds(Role::Viewer).display().to_string();
    let denied = hub.muster(&["streams", "show", "--creds", &viewer, "--timeout", "1s"]);
    assert!(!denied.status.success());
}
