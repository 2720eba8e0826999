//! Measures one gateway under load: event streams and pages beside 2,000 facts a second, and the first screen of a large fleet.
//!
//! A hub of real processes has a fleet of which every device has reported. A process of its own holds the streams: half follow the
//! fleet, a quarter each a deployment and a site. A page is what a browser does with it: the document, its events, and the document
//! again after a change, two seconds after the last time at the earliest. The latency of a frame is the age of the oldest fact that
//! it is the first to show, so it holds the second in which a stream gets one view at most. It asserts that every stream got frames
//! and that none ended.
//!
//! A new gateway then gets clients that read nothing ([`slow`]): alone, for the memory of each, and once more beside the streams and
//! pages, for as long as the gateway takes to end them. Without them the streams are measured first, for the ratio of both p99.
//!
//! `cargo bench -p muster-tests --bench gateway`; `BENCH_DEVICES`, `BENCH_STREAMS`, `BENCH_PAGES`, `BENCH_SLOW` (at least 1; with
//! streams and pages at most 12,000) and `BENCH_SECONDS` set other sizes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod client;
mod hub;
mod process;
mod slow;
mod streams;

use std::process::ExitCode;

use muster_tests::bench::{self, HubKind, say, setting};

use self::hub::{Hub, Screens, Used};

/// Devices of the fleet.
const DEVICES_DEFAULT: usize = 100_000;
/// Event streams beside those of pages.
const STREAMS_DEFAULT: usize = 10_000;
const PAGES_DEFAULT: usize = 1_000;
/// Clients that open an event stream and read nothing. With the streams and pages, as many as a gateway serves.
const SLOW_DEFAULT: usize = 1_000;
/// How long the streams are measured.
const SECONDS_DEFAULT: usize = 30;
/// First screens that are asked for, one after another.
const FIRST_SCREENS: usize = 20;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match std::env::var(streams::HELD_AT) {
        Ok(settings) => runtime.block_on(streams::hold(&settings)),
        Err(_) => runtime.block_on(measured()),
    }
}

async fn measured() -> ExitCode {
    let devices = setting("BENCH_DEVICES", DEVICES_DEFAULT);
    let mut hub = Hub::start(devices).await;
    let screens = hub.first_screens(FIRST_SCREENS).await;
    let mut wanted = streams::Wanted {
        gateway: hub.gateway().addr(),
        nats: hub.nats(),
        streams: setting("BENCH_STREAMS", STREAMS_DEFAULT),
        pages: setting("BENCH_PAGES", PAGES_DEFAULT),
        seconds: setting("BENCH_SECONDS", SECONDS_DEFAULT),
    };
    let slow_clients = setting("BENCH_SLOW", SLOW_DEFAULT);
    let head = [
        format!(
            "{devices} devices, {} streams, {} pages, {} s, {slow_clients} slow clients",
            wanted.streams, wanted.pages, wanted.seconds
        ),
        String::new(),
        "| what | figure | target |".to_owned(),
        "|---|---:|---:|".to_owned(),
    ];
    let reports = hub.send_reports();
    let (held, used) = hub.under_load(&wanted, 0).await;
    say("the streams are measured; a new gateway gets slow clients alone");
    hub.replace_gateway().await;
    let cost = slow::cost(hub.gateway(), slow_clients).await;
    say("slow clients are measured; the streams are opened again beside them");
    wanted.gateway = hub.gateway().addr();
    wanted.seconds = wanted.seconds.max(cost.longest().as_secs() as usize);
    let (beside, _) = hub.under_load(&wanted, slow_clients).await;
    reports.end().await;
    let lines: Vec<String> = head
        .into_iter()
        .chain(rows(&wanted, &screens, &held, &used))
        .chain(cost.rows())
        .chain([
            format!("| from a fact to its frame p99 beside slow clients, s | {:.3} | 1.25 |", beside.p99),
            format!("| the same to that without them, ratio | {:.2} | 1 |", beside.p99 / held.p99),
        ])
        .collect();
    bench::tell(HubKind::Open, &lines.join("\n"))
}

/// The rows without slow clients.
fn rows(wanted: &streams::Wanted, screens: &Screens, held: &streams::Held, used: &Used) -> [String; 10] {
    [
        format!("| first screen, slowest of {FIRST_SCREENS}, s | {:.3} | 1 |", screens.slowest),
        format!("| first screen, kB | {:.0} | 200 |", screens.bytes as f64 / 1e3),
        format!("| frames a second | {:.0} | {} |", held.frames_a_second, wanted.streams),
        format!("| pages loaded again a second | {:.0} | |", held.reloads_a_second),
        format!("| from a fact to its frame p50, s | {:.3} | |", held.p50),
        format!("| from a fact to its frame p99, s | {:.3} | 1.25 |", held.p99),
        format!("| cores of the gateway | {:.2} | 1 |", used.gateway_cores),
        format!("| resident memory of the gateway, MiB | {:.0} | 400 |", used.resident_mib),
        format!("| facts a second | {:.0} | 2000 |", used.facts_a_second),
        format!("| cores of the clients | {:.2} | |", held.cores),
    ]
}
