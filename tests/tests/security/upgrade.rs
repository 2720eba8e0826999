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
