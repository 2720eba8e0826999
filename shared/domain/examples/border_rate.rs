//! How fast reports are parsed and let in at the border, and what each costs. Run it by hand:
//! `cargo run --release -p muster-domain --example border_rate [DEVICES]`.
//!
//! It is no benchmark of the bus: reports are made in memory, and LEDGER confirms every fact at once. Time is this thread's
//! time on a processor, so that a busy machine does not change it much (it still shares its caches).

// Its numbers go to standard output.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::report::Report;
use muster_contract::subjects::origin;
use muster_domain::border::{Arrival, Border, Outcome, Rules};

const DEVICES: usize = 1_000;
const ROUNDS: usize = 200;

#[derive(Default)]
struct Spent {
    parsing: Duration,
    judging: Duration,
    bytes: usize,
}

fn main() {
    let devices = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(DEVICES);
    let now = Timestamp::UNIX_EPOCH;
    let mut border = Border::new(Rules::default(), now);
    let mut spent = Spent::default();
    for round in 1..=ROUNDS {
        let reports: Vec<_> = (0..devices).map(|device| report(device, round)).collect();
        pass(&mut border, &reports, now, &mut spent);
    }
    let reports = (devices * ROUNDS) as f64;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / reports;
    println!(
        "{reports} reports of {devices} devices, facts of {} bytes: parse {:.2} µs, let in {:.2} µs, both {:.0} k/s",
        spent.bytes / reports as usize,
        each(spent.parsing),
        each(spent.judging),
        1000.0 / each(spent.parsing + spent.judging)
    );
}

fn pass(border: &mut Border, reports: &[(String, String)], now: Timestamp, spent: &mut Spent) {
    let begun = processor_time();
    let parsed: Vec<_> = reports
        .iter()
        .map(|(subject, body)| (origin(subject), Report::parse(body.as_bytes()), body))
        .collect();
    spent.parsing += processor_time() - begun;
    let begun = processor_time();
    for (origin, parsed, body) in parsed {
        let Some(origin) = origin else { continue };
        let payload = body.as_bytes();
        let outcome = border.report(Arrival { origin, parsed, payload, position: 1, stored_at: now, now });
        assert_eq!(outcome, Outcome::New, "{body}");
        while let Some(publication) = border.next_publication() {
            spent.bytes += publication.payload.len();
            border.confirm();
        }
        border.settled();
    }
    spent.judging += processor_time() - begun;
}

/// A report and where it went.
fn report(device: usize, seq: usize) -> (String, String) {
    let state = if seq.is_multiple_of(2) { "installed" } else { "installing" };
    let body = format!(
        r#"{{"apiVersion":"muster/v1","kind":"StatusReport","epoch":1,"seq":{seq},"head":{seq},"observedAt":"1970-01-01T00:00:00Z","deployment":"web","generation":1,"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","status":{{"state":"{state}"}},"components":[{{"name":"main","state":"{state}"}},{{"name":"side","state":"{state}"}}],"current":true}}"#
    );
    (format!("muster.report.{}.site-{}.device-{device:07}", device % 16, device % 20), body)
}

/// Time this thread has spent on a processor, as the kernel counts it; 0 where it does not say.
fn processor_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = schedstat.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
