//! A device with the rights of the contract's section 8 can do what it must and nothing else.

use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Outgoing, Start};
use muster_contract::subjects::{self, stream};
use muster_tests::server::{Server, Setup, device};
use muster_tests::wait::soon;

use crate::{connect, converged, report};

async fn guarded() -> (Server, Bus) {
    let devices = vec![device("press-4"), device("press-5")];
    let server = Server::start_with(Setup { devices, ..Setup::default() });
    let hub = converged(&server).await;
    (server, hub)
}

#[tokio::test]
async fn a_device_can_do_its_work_with_its_own_rights() {
    let (server, hub) = guarded().await;
    let key = device("press-4");
    let bus = connect(server.device_config(&key)).await;

    let mut window = bus.window(16);
    window.send(report(&key, 1), ()).await;
    soon("a confirmation", window.next()).await.unwrap().1.unwrap();
    bus.publish(Outgoing::new(subjects::presence(&key), "beat")).await.unwrap();
    bus.publish_core(&subjects::presence(&key), Default::default(), Bytes::from("beat")).await.unwrap();

    assert!(bus.last(stream::DOWNLINK, &subjects::desired(&key)).await.unwrap().is_none());
    let mut live = bus.subscribe(&subjects::live(&key)).await.unwrap();
    assert!(bus.flush(Duration::from_secs(5)).await);
    // An answered request proves that the server has the subscription made before it.
    bus.last(stream::DOWNLINK, &subjects::receipt(&key)).await.unwrap();
    hub.publish(Outgoing::new(subjects::desired(&key), "one")).await.unwrap();
    assert_eq!(soon("the live document", live.next()).await.unwrap().payload, "one");
    let last = bus.last(stream::DOWNLINK, &subjects::desired(&key)).await.unwrap().unwrap();
    assert_eq!((last.subject.as_str(), &last.payload[..]), ("muster.desired.plant7.press-4", &b"one"[..]));
}

#[tokio::test]
async fn a_device_can_neither_write_nor_read_what_is_not_its_own() {
    let (server, hub) = guarded().await;
    let (key, other) = (device("press-4"), device("press-5"));
    hub.publish(Outgoing::new(subjects::desired(&other), "secret")).await.unwrap();
    let bus = connect(server.device_config(&key)).await;

    let foreign_document = subjects::desired(&other);
    let (foreign_report, foreign_fact, read, info, consumer, view) = tokio::join!(
        bus.publish(report(&other, 1)),
        bus.publish(Outgoing::new("muster.status.plant7.press-4.web", "{}")),
        bus.last(stream::DOWNLINK, &foreign_document),
        bus.stream_state(stream::UPLINK),
        bus.replay(stream::DOWNLINK, &[], Start::First),
        bus.view_put("fleet", Bytes::from("{}"), None),
    );
    for refused in [foreign_report.err(), foreign_fact.err(), view.err()] {
        assert!(refused.is_some(), "published what it may not");
    }
    assert!(read.is_err() && info.is_err() && consumer.is_err(), "read what it may not");

    let mut eavesdrop = bus.subscribe(&subjects::live(&other)).await.unwrap();
    hub.publish(Outgoing::new(subjects::desired(&other), "secret")).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_millis(300), eavesdrop.next()).await;
    assert!(heard.is_err(), "heard what it may not: {heard:?}");
    assert_eq!(hub.stream_state(stream::UPLINK).await.unwrap().messages, 0);
    assert_eq!(hub.stream_state("KV_views").await.unwrap().messages, 0);
}
