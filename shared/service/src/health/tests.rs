//! Health as a client sees it, over a real socket.

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::life::DRAIN_DEADLINE;

const ANY_PORT: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Status code and everything after it.
async fn get_of(addr: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (status, rest) = answer.strip_prefix("HTTP/1.1 ").unwrap().split_at(3);
    (status.parse().unwrap(), rest.to_owned())
}

#[tokio::test]
async fn ready_is_a_latch_that_names_what_is_missing() {
    let life = Life::new();
    let bus = life.health().latch("bus");
    let topology = life.health().latch("streams");
    let addr = serve(&life, ANY_PORT.into()).await.unwrap();

    let (status, body) = get_of(addr, "/ready").await;
    assert!(status == 503 && body.contains("bus") && body.contains("streams"), "{status} {body}");
    bus.release();
    let (status, body) = get_of(addr, "/ready").await;
    assert!(status == 503 && !body.contains("bus") && body.contains("streams"), "{status} {body}");
    topology.release();
    assert_eq!(get_of(addr, "/ready").await.0, 200);
    assert_eq!(get_of(addr, "/live").await.0, 200);
    life.stop();
    let (status, body) = get_of(addr, "/ready").await;
    assert!(status == 503 && body.contains("stopping"), "{status} {body}");
    assert!(life.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[tokio::test]
async fn ready_stays_ready_and_its_body_says_how_the_parts_are_now() {
    let life = Life::new();
    let addr = serve(&life, ANY_PORT.into()).await.unwrap();
    life.health().note("NATS", "up");
    life.health().note("NATS", "down since 2026-01-01T00:00:00Z");
    let (status, body) = get_of(addr, "/ready").await;
    assert!(
        status == 200 && body.ends_with("ready\nNATS: down since 2026-01-01T00:00:00Z\n"),
        "{status} {body}"
    );
    life.stop();
    assert!(life.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[test]
fn a_part_that_never_came_keeps_the_process_unready() {
    let health = Health::new(CancellationToken::new());
    drop(health.latch("bus"));
    assert_eq!(health.missing(), ["bus"]);
}

#[tokio::test]
async fn metrics_are_open_metrics_with_our_prefix() {
    let life = Life::new();
    let reports = Counter::<u64>::default();
    life.health().metrics(|registry| registry.register("reports", "Reports taken in", reports.clone()));
    let addr = serve(&life, ANY_PORT.into()).await.unwrap();
    reports.inc_by(3);
    let (status, body) = get_of(addr, "/metrics").await;
    assert_eq!(status, 200);
    assert!(body.contains("content-type: application/openmetrics-text"), "{body}");
    assert!(body.contains("muster_reports_total 3") && body.trim_end().ends_with("# EOF"), "{body}");
    life.drain(DRAIN_DEADLINE).await;
}

#[tokio::test]
async fn an_open_connection_does_not_hold_the_drain_up() {
    let life = Life::new();
    let addr = serve(&life, ANY_PORT.into()).await.unwrap();
    let mut idle = TcpStream::connect(addr).await.unwrap();
    idle.write_all(b"GET /live HTTP/1.1\r\n").await.unwrap();
    assert_eq!(get_of(addr, "/live").await.0, 200);
    assert!(life.drain(4 * CLOSE_GRACE).await.late.is_empty());
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let life = Life::new();
    let addr = serve(&life, ANY_PORT.into()).await.unwrap();
    let refusal = serve(&life, addr).await.unwrap_err().to_string();
    assert!(refusal.contains(&addr.to_string()) && refusal.contains("--http-addr"), "{refusal}");
    life.drain(DRAIN_DEADLINE).await;
}
