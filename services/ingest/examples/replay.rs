//! Replays reports through the session of a partition, without a bus, to count the instructions of a report:
//! `valgrind --tool=callgrind target/release/examples/replay [DEVICES [ROUNDS]]`. Each run does the same. The difference between two
//! numbers of rounds leaves out the start.
//!
//! It does not measure the bus. It uses the system's allocator, because mimalloc does not run under valgrind.

// Its numbers go to standard output.
#![allow(clippy::print_stdout)]

use std::collections::VecDeque;

use fastrand::Rng;
use muster_bus::{Link, Stored, Trace};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_domain::intake::{IntakeState, Rules};
use muster_ingest::ledger_publisher::HighWater;
use muster_ingest::metrics::Metrics;
use muster_ingest::session::{
    Conditions, Effect, FactAnswer, Input, ReportDelivery, SessionCore, SessionStart,
};

const DEVICES: u64 = 100;
const ROUNDS: u64 = 20;
/// Messages that come at once.
const AT_ONCE: usize = 50;
/// Facts in flight.
const IN_FLIGHT: usize = 128;
const OVER: Link = Link::Up { since_count: 1 };

/// A message of UPLINK.
#[derive(Debug)]
struct Message {
    subject: String,
    payload: Vec<u8>,
    position: u64,
}

impl ReportDelivery for Message {
    fn subject(&self) -> &str {
        &self.subject
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn header(&self, _: &str) -> Option<&str> {
        None
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn stored_at(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn trace(&self) -> Option<Trace> {
        None
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let (devices, rounds) = (args.next().unwrap_or(DEVICES), args.next().unwrap_or(ROUNDS));
    let messages: Vec<Message> = (0..rounds)
        .flat_map(|round| {
            (0..devices).map(move |device| message(device, round + 1, round * devices + device + 1))
        })
        .collect();
    let (facts, bytes) = replay(messages);
    println!("{} reports, {facts} facts of {bytes} bytes", devices * rounds);
}

/// A report of a device whose deployment alternates between installing and installed.
fn message(device: u64, seq: u64, position: u64) -> Message {
    let state = if seq.is_multiple_of(2) { "installed" } else { "installing" };
    let (digest, site, at) = (Digest::of_bytes(b"app"), device % 20, Timestamp::UNIX_EPOCH);
    let payload = format!(
        r#"{{"apiVersion":"muster/v1","kind":"StatusReport","epoch":1,"seq":{seq},"head":{seq},"observedAt":"{at}","deployment":"app-{}","generation":1,"digest":"{digest}","status":{{"state":"{state}"}},"components":[{{"name":"web","state":"{state}"}},{{"name":"worker","state":"{state}"}}],"current":true}}"#,
        device % 10
    );
    let subject = format!("muster.report.0.site-{site}.device-{device}");
    Message { subject, payload: payload.into_bytes(), position }
}

/// Hands in the messages a few at a time and answers the oldest facts. Returns the number of facts, and their bytes.
fn replay(messages: Vec<Message>) -> (u64, usize) {
    let (now, high_water) = (Timestamp::UNIX_EPOCH, HighWater::default());
    let mut intake = IntakeState::new(Rules::default(), now);
    let start = SessionStart { now, link: OVER, high_water, read_through: 0, reasserted_through: 0 };
    let metrics = Metrics::default().partition(0);
    let mut core = SessionCore::new(&mut intake, start, metrics, Rng::with_seed(1));
    let conditions = Conditions { now, link: OVER, ledger_seen_over: OVER, heartbeats_through: Some(now) };
    let (mut in_flight, mut facts, mut bytes) = (VecDeque::new(), 0, 0);
    let mut messages = messages.into_iter();
    loop {
        let next: Vec<Message> = messages.by_ref().take(AT_ONCE).collect();
        let is_last = next.is_empty();
        core.handle(&mut intake, Input::Reports(next, Some(now)), now);
        loop {
            while let Some(effect) = core.next_effect(&mut intake, &conditions) {
                match effect {
                    Effect::Publish(publication, _) => {
                        (facts, bytes) = (facts + 1, bytes + publication.payload.len());
                        in_flight.push_back(facts);
                    }
                    Effect::ReadDocuments(key) => {
                        core.handle(&mut intake, Input::DocumentsRead(key, true), now);
                    }
                    _ => {}
                }
            }
            if in_flight.len() <= IN_FLIGHT && !is_last {
                break;
            }
            let Some(sequence) = in_flight.pop_front() else { return (facts, bytes) };
            let stored = Stored { sequence, duplicate: false };
            core.handle(&mut intake, Input::FactAnswer(FactAnswer::Stored(stored)), now);
        }
    }
}
