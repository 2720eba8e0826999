//! Measures one gateway under devices that speak Margo's API: polls by devices that have their manifest (304), and statuses, each of
//! which becomes a report.
//!
//! A hub of real processes: nats-server, ingest and one gateway. The bench itself is the devices: each has one connection (HTTP/1.1
//! over TLS 1.3, with a client certificate) that stays open, and sends the next request as soon as it has the last answer, so the
//! latencies are those of a saturated machine. All processes share the cores of the machine, so beside the rates stands how many
//! requests the gateway answers per second of its own processor time.
//!
//! It asserts that every answer is a success or asks for a repetition (429, 503), that UPLINK took in the report of each answered
//! status, and that LEDGER then has exactly as many reports, none twice. It does not measure handshakes, first manifests, clients
//! with children or a secured hub. nats-server confirms before its disk does: it syncs at its own interval.
//!
//! `cargo bench -p muster-tests --bench margo`; `BENCH_DEVICES`, `BENCH_SECONDS` (at most 250: the gateway ends a connection after
//! ten minutes) and `BENCH_HEARTBEAT_MS` (100 to 30,000: least time between two heartbeats of a device) set other sizes. A device
//! whose polls are rarer than that sends a heartbeat with each.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

#[path = "../../tests/margo_api/client.rs"]
#[allow(dead_code, reason = "the tests of the API need more of it")]
mod client;
mod device;
#[path = "../../tests/margo_api/fleet.rs"]
#[allow(dead_code, reason = "the tests of the API need more of it")]
mod fleet;
mod hub;
mod phase;
#[path = "../../tests/margo_api/pki.rs"]
#[allow(dead_code, reason = "the tests of the API need more of it")]
mod pki;

use std::process::ExitCode;

use muster_tests::bench::{self, HubKind, say, setting};

use self::device::RequestKind;
use self::hub::{Hub, Stored};
use self::phase::Phase;

/// Devices of the fleet, each with a connection.
const DEVICES_DEFAULT: usize = 100;
/// How long each kind of request is measured.
const SECONDS_DEFAULT: usize = 30;
/// The gateway's own default.
const HEARTBEAT_MS_DEFAULT: usize = 30_000;
/// Targets: polls a second that one core of the gateway answers, and statuses a second.
const POLLS_MIN: usize = 5_000;
const STATUSES_MIN: usize = 2_000;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measured())
}

async fn measured() -> ExitCode {
    let (count, seconds) =
        (setting("BENCH_DEVICES", DEVICES_DEFAULT), setting("BENCH_SECONDS", SECONDS_DEFAULT));
    let heartbeat_ms = setting("BENCH_HEARTBEAT_MS", HEARTBEAT_MS_DEFAULT);
    say(&format!("{count} devices are accepted"));
    let hub = Hub::start(count, heartbeat_ms).await;
    let devices = hub.devices().await;
    say("every device has its manifest");
    let (devices, polls) = phase::run(&hub, devices, RequestKind::Poll, seconds).await;
    say("polls are measured");
    let (_, statuses) = phase::run(&hub, devices, RequestKind::Status, seconds).await;
    say("statuses are measured");
    let stored = hub.stored(statuses.answered).await;
    check(&statuses, &stored);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let head = [
        format!(
            "{count} devices, {seconds} s of each kind, heartbeats of a device at least {heartbeat_ms} ms apart;"
        ),
        format!("gateway, nats-server, ingest and devices share {cores} cores"),
        String::new(),
        "| what | figure | target |".to_owned(),
        "|---|---:|---:|".to_owned(),
    ];
    let Stored { uplink, ledger } = stored;
    let tail = [
        format!("| heartbeats a second during polls | {:.0} | |", polls.heartbeats_a_second),
        format!("| statuses answered with success | {} | |", statuses.answered),
        format!("| their messages in UPLINK | {uplink} | |"),
        format!("| their reports in LEDGER | {ledger} | {} |", statuses.answered),
    ];
    let lines: Vec<String> = head
        .into_iter()
        .chain(rows("polls", &polls, POLLS_MIN))
        .chain(rows("statuses", &statuses, STATUSES_MIN))
        .chain(tail)
        .collect();
    bench::tell(HubKind::Open, &lines.join("\n"))
}

/// Each status that was answered with success is a report that the hub has, once.
fn check(statuses: &Phase, stored: &Stored) {
    let answered = statuses.answered;
    assert_eq!(stored.ledger, answered, "reports in LEDGER, statuses answered with success");
    assert!(stored.uplink >= answered, "UPLINK took in {} reports of {answered} statuses", stored.uplink);
    // A status that is sent again may be in UPLINK twice, under one number.
    if statuses.repeated == 0 {
        assert_eq!(stored.uplink, answered, "messages in UPLINK, statuses answered with success");
    }
}

/// The rows of one kind of request.
fn rows(what: &str, phase: &Phase, target: usize) -> [String; 9] {
    let (a_second, cores) = (phase.a_second(), &phase.cores);
    let a_core = a_second / cores.gateway;
    [
        format!("| {what} a second | {a_second:.0} | {target} |"),
        format!("| {what} per second of the gateway's processor time | {a_core:.0} | {target} |"),
        format!("| {what}: from request to answer p50, ms | {:.1} | |", phase.latency.per_mille(500)),
        format!("| {what}: from request to answer p99, ms | {:.1} | |", phase.latency.per_mille(990)),
        format!("| {what}: requests that were sent again (429, 503) | {} | |", phase.repeated),
        format!("| {what}: cores of the gateway | {:.2} | |", cores.gateway),
        format!("| {what}: cores of nats-server | {:.2} | |", cores.server),
        format!("| {what}: cores of ingest | {:.2} | |", cores.ingest),
        format!("| {what}: cores of the devices | {:.2} | |", cores.devices),
    ]
}
