//! Connecting: the bus waits for a server, reports a refusal, and notices a lost link.

use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, BusConfig, ConnectError, Link, LinkHealth};
use muster_contract::DeviceKey;
use muster_service::supervisor::Supervisor;
use muster_tests::server::{Server, Setup};
use muster_tests::wait::{soon, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connect;

#[tokio::test]
async fn a_bus_waits_for_a_server_that_starts_later() {
    let mut server = Server::start();
    server.stop();
    let connecting = tokio::spawn(connect(server.config("early")));
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart();
    let bus = soon("a connection", connecting).await.unwrap();
    assert!(bus.link().borrow().is_up());
}

#[tokio::test]
async fn waiting_ends_when_the_process_stops() {
    let mut server = Server::start();
    server.stop();
    let stop = CancellationToken::new();
    let waiting = Bus::connect(server.config("late"), &stop);
    let (end, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stop.cancel();
    });
    assert!(matches!(end, Err(ConnectError::Stopped { .. })), "{end:?}");
}

#[tokio::test]
async fn one_attempt_ends_with_its_own_cause() {
    let key: DeviceKey = "plant7/press-4".parse().unwrap();
    let mut server = Server::start_with(Setup { devices: vec![key], ..Setup::default() });
    let nobody = BusConfig { url: server.url(), ..server.config("nobody") };
    let refusal = Bus::connect_once(nobody.clone()).await.unwrap_err();
    assert!(matches!(refusal, ConnectError::Unauthorized { .. }), "{refusal:?}");
    assert!(refusal.to_string().starts_with("authorization violation: "), "{refusal}");
    Bus::connect_once(server.config("hub")).await.unwrap();
    server.stop();
    let refusal = Bus::connect_once(nobody).await.unwrap_err();
    assert!(matches!(refusal, ConnectError::Unreached { .. }), "{refusal:?}");
    assert!(refusal.to_string().contains("refused"), "{refusal}");
}

#[tokio::test]
async fn what_the_server_refuses_can_be_asked_for() {
    let key: DeviceKey = "plant7/press-4".parse().unwrap();
    let server = Server::start_with(Setup { devices: vec![key.clone()], ..Setup::default() });
    let bus = connect(server.device_config(&key)).await;
    assert_eq!(bus.refusal(), None);
    let asked = bus.request("muster.query.fleet", Bytes::new(), Duration::from_millis(300)).await;
    assert!(asked.is_err());
    assert!(bus.refusal().is_some_and(|words| words.contains("muster.query.fleet")), "{:?}", bus.refusal());
}

#[tokio::test]
async fn health_says_whether_the_link_is_up() {
    let mut server = Server::start();
    let bus = connect(server.config("test")).await;
    let supervisor = Supervisor::new();
    LinkHealth::register(supervisor.health()).follow(&bus);
    let shown = async |wanted: &str| {
        until(wanted, async || supervisor.health().metrics_text(), |text: &String| text.contains(wanted))
            .await;
    };
    shown("muster_link_up 1").await;
    server.kill();
    shown("muster_link_up 0").await;
    server.restart();
    shown("muster_link_up 1").await;
}

#[tokio::test]
async fn a_server_without_jetstream_is_refused_with_what_to_do() {
    let server = Server::start_with(Setup { jetstream: false, ..Setup::default() });
    let refusal = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(refusal, ConnectError::NoJetStream { .. }), "{refusal:?}");
    assert!(refusal.to_string().contains("nats-server -js"), "{refusal}");
}

#[tokio::test]
async fn a_server_with_a_small_max_payload_is_refused_with_what_to_set() {
    let server = Server::start_with(Setup { more: "max_payload: 64KB\n".into(), ..Setup::default() });
    let refusal = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap_err();
    assert!(refusal.to_string().contains("max_payload to 278528"), "{refusal}");
}

/// Greets one client as a server of some version would.
async fn pretend(listener: TcpListener, version: &str) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let info = format!(
        r#"{{"server_id":"X","version":"{version}","max_payload":1048576,"headers":true,"jetstream":true}}"#
    );
    stream.write_all(format!("INFO {info}\r\n").as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"PING\r\n") {
        assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0);
    }
    stream.write_all(b"PONG\r\n").await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_server_that_is_too_old_is_refused_with_what_is_needed() {
    for version in ["2.9.10", "2.14.2"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { pretend(listener, version).await });
        let connecting = Bus::connect(BusConfig::service(url, "test"), &CancellationToken::new()).await;
        let refusal = connecting.unwrap_err().to_string();
        assert!(refusal.contains(version) && refusal.contains("2.12.12 or newer"), "{refusal}");
        server.abort();
    }
}

#[tokio::test]
async fn an_unusable_setting_is_refused_by_name() {
    let stop = CancellationToken::new();
    let config =
        BusConfig { creds: Some("/nowhere/device.creds".into()), ..BusConfig::service("nats://x", "test") };
    let refusal = Bus::connect(config, &stop).await.unwrap_err().to_string();
    assert!(refusal.contains("/nowhere/device.creds"), "{refusal}");
    let refusal = Bus::connect(BusConfig::service("ftp://x", "test"), &stop).await.unwrap_err().to_string();
    assert!(refusal.contains("ftp://x"), "{refusal}");
}

#[tokio::test]
async fn the_link_tells_that_the_server_went_and_came() {
    let mut server = Server::start();
    let bus = connect(server.config("test")).await;
    let mut link = bus.link();
    assert_eq!(*link.borrow_and_update(), Link::Up { since_count: 1 });
    server.kill();
    soon("the link to be down", link.wait_for(|link| !link.is_up())).await.unwrap();
    server.restart();
    let up = *soon("the link to be up", link.wait_for(|link| link.is_up())).await.unwrap();
    assert_eq!(up, Link::Up { since_count: 2 });
}

#[tokio::test]
async fn a_half_open_link_is_found_by_pings() {
    let server = Server::start();
    let config = BusConfig { ping_interval: Duration::from_millis(200), ..server.config("test") };
    let bus = connect(config).await;
    server.freeze();
    let mut link = bus.link();
    soon("the link to be down", link.wait_for(|link| !link.is_up())).await.unwrap();
    server.thaw();
    soon("the link to be up", link.wait_for(|link| link.is_up())).await.unwrap();
}
