//! Floods by a device with its own credentials: it publishes what its rights allow, as fast as the server reads, and waits
//! for no answer.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use async_nats::connection::State as Connection;
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use fastrand::Rng;
use futures_util::StreamExt;
use muster_contract::decode::to_bytes;
use muster_contract::limits::COMPONENTS_MAX;
use muster_contract::report::StatusReport;
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};
use muster_contract::{Epoch, Seq, State, subjects};
use tokio::time::Instant;

use super::client;
use super::flood::Flood;
use super::hub::HostileHub;
use super::trial::{Attack, held_at_last};

/// Bytes of an error message in a report of nearly the largest size: 256 components with it make 72 KB.
const LARGE_MESSAGE_BYTES: usize = 203;
/// Bytes of a message id.
const LONG_ID_BYTES: usize = 60_000;
/// Connections that are opened at once.
const CONNECTING_AT_ONCE: usize = 32;
/// One report in so many claims a head that is far away.
const FAR_HEAD_EVERY: u64 = 100;
/// How far.
const FAR_HEAD: u64 = 1 << 40;
/// Backlog that every second heartbeat claims.
const CLAIMED_BACKLOG: u64 = 5;
/// Reports after which the flood lets others of this process run.
const YIELD_EVERY: u64 = 64;

/// Runs a flood of a device until `end`.
///
/// # Panics
/// It is a reader's.
pub async fn run(hub: &HostileHub, flood: Flood, connections: usize, end: Instant) -> Attack {
    if flood == Flood::Connections {
        return open_connections(hub, connections, end).await;
    }
    let client = match client::device(&hub.guarded, &hub.attacker.key).await {
        Ok(client) => client,
        Err(error) => return Attack { text: format!("was not accepted: {error}"), ..Attack::default() },
    };
    let mut sent = 0;
    while Instant::now() < end {
        let (subject, headers, payload) = message(hub, flood, sent + 1);
        // A server that no longer reads is a limit that holds.
        let publish = client.publish_with_headers(subject, headers, payload);
        match tokio::time::timeout_at(end, publish).await {
            Ok(Ok(())) => sent += 1,
            Ok(Err(error)) => {
                return Attack { attempts: sent, text: format!("was stopped: {error}"), held: None };
            }
            Err(_) => break,
        }
        if sent.is_multiple_of(YIELD_EVERY) {
            tokio::task::yield_now().await;
        }
    }
    let state = client.connection_state();
    Attack { attempts: sent, text: format!("sent {sent}; {state}"), held: None }
}

/// The `nth` message of a flood, counted from 1.
fn message(hub: &HostileHub, flood: Flood, nth: u64) -> (String, HeaderMap, Bytes) {
    let (report, none) = (subjects::report(&hub.attacker.key), HeaderMap::new());
    let base = || hub.attacker.report(nth);
    match flood {
        Flood::NewDeployments => {
            let deployment = format!("invented-{nth}").parse().unwrap();
            (report, none, bytes(&StatusReport { deployment, ..base() }))
        }
        Flood::LargestReports => (report, none, large(base())),
        Flood::LongMessageIds => (report, long_id(nth), bytes(&base())),
        Flood::RisingEpochs => {
            let base = hub.attacker.report(1);
            let epoch = Epoch::new(base.epoch.get() + nth).unwrap();
            (report, none, bytes(&StatusReport { epoch, ..base }))
        }
        Flood::MissingNumbers => {
            let base = hub.attacker.report(2 * nth - 1);
            let far = if nth.is_multiple_of(FAR_HEAD_EVERY) { FAR_HEAD } else { 0 };
            let head = Seq::new(base.head.get() + far).unwrap();
            (report, none, bytes(&StatusReport { head, current: far == 0, ..base }))
        }
        Flood::Garbage => (report, none, garbage(&mut Rng::with_seed(nth))),
        Flood::Heartbeats => {
            let beat = hub.attacker.heartbeat(CLAIMED_BACKLOG, nth % 2 * CLAIMED_BACKLOG);
            (subjects::presence(&hub.attacker.key), none, to_bytes(&beat).into())
        }
        Flood::LongHeartbeatIds => {
            let beat = hub.attacker.heartbeat(CLAIMED_BACKLOG, 0);
            (subjects::presence(&hub.attacker.key), long_id(nth), to_bytes(&beat).into())
        }
        _ => (report, none, bytes(&base())),
    }
}

fn long_id(nth: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("{nth:0>LONG_ID_BYTES$}"));
    headers
}

fn bytes(report: &StatusReport) -> Bytes {
    to_bytes(report).into()
}

/// The report with as much as it may hold.
fn large(report: StatusReport) -> Bytes {
    let text = "x".repeat(LARGE_MESSAGE_BYTES);
    let component = |at: usize| ComponentStatus {
        name: format!("c{at}").parse().unwrap(),
        state: State::Failed,
        error: Some(StatusError::new("e", format!("c{at}"), text.as_str())),
    };
    let components = (0..COMPONENTS_MAX).map(component).collect();
    let status = DeploymentStatus { state: State::Failed, error: None, reason: None };
    bytes(&StatusReport { status, components, ..report })
}

fn garbage(rng: &mut Rng) -> Bytes {
    let length = rng.usize(1..2_000);
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// Opens connections with one credential and keeps them.
async fn open_connections(hub: &HostileHub, connections: usize, end: Instant) -> Attack {
    let open = |_| client::device(&hub.guarded, &hub.attacker.key);
    let mut opening =
        futures_util::stream::iter(0..connections).map(open).buffer_unordered(CONNECTING_AT_ONCE);
    let (mut tried, mut open) = (0, Vec::new());
    while let Ok(Some(connection)) = tokio::time::timeout_at(end, opening.next()).await {
        tried += 1;
        open.extend(connection);
    }
    tokio::time::sleep_until(end).await;
    let is_open = |client: &&Client| client.connection_state() == Connection::Connected;
    let held = held_at_last(Flood::Connections, async || open.iter().filter(is_open).count()).await;
    let accepted = open.len();
    let text = format!("{tried} tried, {accepted} accepted, {held} stay");
    Attack { attempts: tried, text, held: Some(held) }
}

#[cfg(test)]
mod tests {
    use muster_contract::limits::REPORT_BYTES_MAX;
    use muster_contract::report::Report;

    use super::*;

    #[test]
    fn garbage_is_no_report() {
        let payload = garbage(&mut Rng::with_seed(7));
        assert!(Report::parse(&payload).is_err());
    }

    #[test]
    fn the_largest_report_is_valid_and_nearly_of_the_largest_size() {
        let small = format!(
            r#"{{"apiVersion":"muster/v1","kind":"StatusReport","epoch":1,"seq":1,"head":1,"deployment":"app",
            "observedAt":"2026-11-20T10:00:00Z","generation":1,"digest":"sha256:{}","status":{{"state":"installed"}},
            "components":[],"current":true}}"#,
            "0".repeat(64)
        );
        let report = large(serde_json::from_str(&small).unwrap());
        let Ok(Report::Status(parsed)) = Report::parse(&report) else { panic!("it is no report") };
        assert_eq!(parsed.status.state, State::Failed, "as the most severe of its components");
        assert!(
            (REPORT_BYTES_MAX * 95 / 100..=REPORT_BYTES_MAX).contains(&report.len()),
            "{} bytes",
            report.len()
        );
    }
}
