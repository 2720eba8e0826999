//! Measures how fast reports become facts: `cargo run --release -p muster-domain --example intake_rate [DEVICES [ROUNDS]]`.
//!
//! It does not measure the bus: it builds messages in memory, and one thread parses and evaluates them and confirms their facts. It
//! counts the CPU time of this thread.

// Its numbers go to standard output.
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::collections::VecDeque;
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::report::Report;
use muster_contract::subjects::origin;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::{IncomingReport, IntakeState, Rules};
use rustix::time::{ClockId, clock_gettime};

const DEVICES: usize = 1_000;
const ROUNDS: usize = 200;
/// Facts in flight, as in muster-ingest.
const IN_FLIGHT: usize = 128;

// As in muster-ingest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A message of UPLINK.
struct Message {
    subject: String,
    payload: Vec<u8>,
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let (devices, rounds) = (args.next().unwrap_or(DEVICES), args.next().unwrap_or(ROUNDS));
    for backlog in [1, 8] {
        let (facts, spent) = measure(devices, rounds, backlog);
        let each = spent.as_secs_f64() * 1e6 / facts as f64;
        println!("{facts} facts of {devices} devices, {backlog} in a row of each: {each:.2} µs a fact");
    }
}

/// Evaluates reports of all devices in turn, `backlog` of each in a row. Returns the number of facts and the CPU time.
fn measure(devices: usize, rounds: usize, backlog: usize) -> (usize, Duration) {
    let now: Timestamp = "2026-11-20T08:00:00Z".parse().unwrap_or_default();
    let mut intake = IntakeState::new(Rules::default(), now);
    let mut in_flight = VecDeque::new();
    let (mut facts, mut position, mut spent) = (0, 0, Duration::ZERO);
    for round in 0..rounds / backlog {
        let messages: Vec<_> = (0..devices)
            .flat_map(|device| {
                (0..backlog).map(move |nth| message(device, (round * backlog + nth + 1) as u64))
            })
            .collect();
        let begin = thread_time();
        for Message { subject, payload } in &messages {
            position += 1;
            let Some(origin) = origin(subject) else { continue };
            let parsed = Report::parse(payload);
            let report = IncomingReport { origin, parsed, payload, position, stored_at: now, now };
            intake.apply_report(report);
            while let Some(publication) = intake.next_publication() {
                in_flight.push_back(publication);
                facts += 1;
            }
            while in_flight.len() >= IN_FLIGHT {
                in_flight.pop_front();
                intake.confirm();
            }
            intake.drain_settled();
        }
        spent += thread_time() - begin;
    }
    (facts, spent)
}

/// A report of a device whose deployment alternates between installing and installed.
fn message(device: usize, seq: u64) -> Message {
    let state = if seq.is_multiple_of(2) { "installed" } else { "installing" };
    let digest = Digest::of_bytes(b"app");
    let (site, at) = (device % 20, Timestamp::UNIX_EPOCH);
    let key = DeviceKey {
        site: format!("site-{site}").parse().expect("a label"),
        device: format!("device-{device}").parse().expect("a label"),
    };
    let payload = format!(
        r#"{{"apiVersion":"muster/v1","kind":"StatusReport","epoch":1,"seq":{seq},"head":{seq},"observedAt":"{at}","deployment":"app-{}","generation":1,"digest":"{digest}","status":{{"state":"{state}"}},"components":[{{"name":"web","state":"{state}"}},{{"name":"worker","state":"{state}"}}],"current":true}}"#,
        device % 10
    );
    Message { subject: format!("muster.report.0.{}.{}", key.site, key.device), payload: payload.into_bytes() }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
