//! Health as a client sees it, over a real socket.

use std::collections::VecDeque;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::http_listener::{CLOSE_GRACE, CONNECTIONS_MAX, HEADER_BYTES_MAX, HEADER_TIMEOUT};
use crate::supervisor::DRAIN_DEADLINE;

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
    let supervisor = Supervisor::new();
    let bus = supervisor.health().latch("bus");
    let topology = supervisor.health().latch("streams");
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();

    let (status, body) = get_of(addr, "/ready").await;
    assert!(status == 503 && body.contains("bus") && body.contains("streams"), "{status} {body}");
    bus.release();
    let (status, body) = get_of(addr, "/ready").await;
    assert!(status == 503 && !body.contains("bus") && body.contains("streams"), "{status} {body}");
    topology.release();
    assert_eq!(get_of(addr, "/ready").await.0, 200);
    assert_eq!(get_of(addr, "/live").await.0, 200);
    supervisor.stop();
    let (status, body) = get_of(addr, "/ready").await;
    assert!(status == 503 && body.contains("stopping"), "{status} {body}");
    assert!(supervisor.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[tokio::test]
async fn ready_stays_ready_and_its_body_says_how_the_parts_are_now() {
    let supervisor = Supervisor::new();
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    supervisor.health().note("NATS", "up");
    supervisor.health().note("NATS", "down since 2026-01-01T00:00:00Z");
    let (status, body) = get_of(addr, "/ready").await;
    assert!(
        status == 200 && body.ends_with("ready\nNATS: down since 2026-01-01T00:00:00Z\n"),
        "{status} {body}"
    );
    supervisor.stop();
    assert!(supervisor.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[test]
fn a_dropped_latch_keeps_the_process_unready() {
    let health = Health::new(CancellationToken::new());
    drop(health.latch("bus"));
    assert_eq!(health.missing(), ["bus"]);
}

#[tokio::test]
async fn metrics_are_open_metrics_with_our_prefix() {
    let supervisor = Supervisor::new();
    let reports = Counter::<u64>::default();
    supervisor.health().metrics(|registry| registry.register("reports", "Reports taken in", reports.clone()));
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    reports.inc_by(3);
    let (status, body) = get_of(addr, "/metrics").await;
    assert_eq!(status, 200);
    assert!(body.contains("content-type: application/openmetrics-text"), "{body}");
    assert!(body.contains("muster_reports_total 3") && body.trim_end().ends_with("# EOF"), "{body}");
    supervisor.drain(DRAIN_DEADLINE).await;
}

#[tokio::test]
async fn an_open_connection_does_not_hold_the_drain_up() {
    let supervisor = Supervisor::new();
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    let mut idle = TcpStream::connect(addr).await.unwrap();
    idle.write_all(b"GET /live HTTP/1.1\r\n").await.unwrap();
    assert_eq!(get_of(addr, "/live").await.0, 200);
    assert!(supervisor.drain(4 * CLOSE_GRACE).await.late.is_empty());
}

/// Reads until the server closes the connection, or resets it; what came until then.
async fn read_until_closed(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset closes it as well.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_header_sent_byte_by_byte_ends_with_the_timeout() {
    let supervisor = Supervisor::new();
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    let mut slow = TcpStream::connect(addr).await.unwrap();
    slow.write_all(b"GET /live HTTP/1.1\r\nx: ").await.unwrap();
    let begun = Instant::now();
    let (mut reading, mut writing) = slow.into_split();
    let trickle = tokio::spawn(async move {
        while writing.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut answer = Vec::new();
    let closed = timeout(2 * HEADER_TIMEOUT, reading.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "open after {:?}", begun.elapsed());
    assert!(begun.elapsed() >= HEADER_TIMEOUT, "closed after {:?}", begun.elapsed());
    trickle.abort();
    assert!(supervisor.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[tokio::test]
async fn ten_thousand_idle_connections_do_not_block_health() {
    const IDLE: usize = 10_000;
    let supervisor = Supervisor::new();
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    let mut idle = VecDeque::new();
    for _ in 0..IDLE {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        // Half a header, or nothing at all.
        if idle.len() % 2 == 0 {
            stream.write_all(b"GET /live HTTP/1.1\r\n").await.unwrap();
        }
        idle.push_back(stream);
    }
    let begun = Instant::now();
    assert_eq!(get_of(addr, "/live").await.0, 200);
    assert!(begun.elapsed() < HEADER_TIMEOUT, "answered after {:?}", begun.elapsed());
    let (status, text) = get_of(addr, "/metrics").await;
    let evicted = text.lines().find_map(|line| line.strip_prefix("muster_http_evicted_connections_total "));
    let evicted: usize = evicted.unwrap().trim().parse().unwrap();
    assert!(status == 200 && evicted >= IDLE - CONNECTIONS_MAX, "{status}: {evicted} evicted");
    // The oldest are closed and the newest are not.
    assert_eq!(timeout(HEADER_TIMEOUT, read_until_closed(&mut idle[0])).await.unwrap(), "");
    assert!(supervisor.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[tokio::test]
async fn a_header_beyond_its_bound_is_refused() {
    let supervisor = Supervisor::new();
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let header = format!("GET /live HTTP/1.1\r\nx: {}\r\n", "a".repeat(2 * HEADER_BYTES_MAX));
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(header.as_bytes()).await;
    let answer = timeout(HEADER_TIMEOUT, read_until_closed(&mut stream)).await.unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(get_of(addr, "/live").await.0, 200);
    assert!(supervisor.drain(DRAIN_DEADLINE).await.late.is_empty());
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let supervisor = Supervisor::new();
    let addr = serve(&supervisor, ANY_PORT.into()).await.unwrap();
    let refusal = serve(&supervisor, addr).await.unwrap_err().to_string();
    assert!(refusal.contains(&addr.to_string()) && refusal.contains("--http-addr"), "{refusal}");
    supervisor.drain(DRAIN_DEADLINE).await;
}
