//! Time to truth: how long after a reconnect the hub knows the newest state of every deployment of a device, and when the whole
//! backlog is accounted for. The real agent program writes the backlog while its link is cut; the hub is secured with mirrors.
//! Each row of the table has a fresh hub and agent. The test `relay` asserts the order; this bench says whether
//! the views were right within their bound, and fails if they were not.
//!
//! `cargo bench -p muster-tests --bench reconnect -- --reports 100000`

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod table;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use muster_simulator::link::Shape;
use muster_tests::bench::{self, HubKind, say};
use muster_tests::reconnect::OfflineDevice;

use self::table::{LinkRate, Row};

/// Timeout of a backlog.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// The bench `reconnect`.
#[derive(Debug, Parser)]
struct Args {
    /// Reports that wait
    #[arg(long, default_value_t = 100_000)]
    reports: usize,
    /// The thin link, in kbit/s each way
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    kbit: u64,
    /// Cargo says so to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let Args { reports, kbit, .. } = Args::parse();
    let links = [LinkRate::Kbit(kbit), LinkRate::Unlimited];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut rows = Vec::with_capacity(links.len());
    for link in links {
        say(&format!("{reports} reports, link {link}"));
        let row = runtime.block_on(run(link, reports));
        say(&row.to_string());
        rows.push(row);
    }
    let told = bench::tell(HubKind::SecuredWithMirrors, &table::render(&rows));
    if rows.iter().all(Row::is_in_time) { told } else { ExitCode::FAILURE }
}

async fn run(link: LinkRate, reports: usize) -> Row {
    let device = OfflineDevice::with_backlog(reports).await;
    bench::sync_disk();
    let bytes = link.bytes_a_second();
    Row { link, measured: device.reconnect(Shape::PLAIN.slow(bytes, bytes), PATIENCE).await }
}
