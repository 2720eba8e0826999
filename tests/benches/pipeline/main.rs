//! Measures the pipeline from a report to a view, beside the bare hops of the same pipeline: publish → UPLINK → consume →
//! publish → LEDGER → consume. The hops run with the documents alone, with Muster's messages, and with Muster's messages up to
//! 0.1, which separates the cost of the services from the cost of the headers. All run in turn on fresh servers, and ratios are
//! the medians of the rounds, because machines are shared and noisy. It measures; it asserts only that no message was lost on
//! the way. The same work is also done on hubs with accounts and TLS, without and with mirrors for readers.
//!
//! `make bench`; `BENCH_REPORTS=200000 BENCH_ROUNDS=3 make bench` for other sizes; `BENCH_BARE=1` for the rates of the hops
//! alone; `BENCH_LATENCY=5` for the latencies alone, in five runs. Server, services and agents store their files in `TMPDIR`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod agents;
mod muster;
mod raw;
mod secured;
mod table;

use std::process::ExitCode;

use muster_tests::bench::{self, HubKind, say, setting};
use muster_tests::envelope::Carry;
use muster_tests::load::{self, Fleet, Latency};

/// Reports of one throughput round.
const REPORTS_DEFAULT: usize = 100_000;
/// Rounds of each side: with three, the middle one of the ratios still moves by a tenth from run to run.
const ROUNDS_DEFAULT: usize = 7;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let reports = setting("BENCH_REPORTS", REPORTS_DEFAULT);
    let rounds = setting("BENCH_ROUNDS", ROUNDS_DEFAULT).max(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if setting("BENCH_BARE", 0) > 0 {
        let bare = runtime.block_on(bare(reports, rounds));
        return bench::tell(HubKind::Open, &table::render_bare(reports, rounds, &bare));
    }
    let runs = setting("BENCH_LATENCY", 0);
    if runs > 0 {
        let all = runtime.block_on(measure_runs(runs));
        return bench::tell(HubKind::Open, &table::render_latencies(&all));
    }
    let figures = runtime.block_on(measure(reports, rounds));
    bench::tell(HubKind::Open, &table::render(reports, rounds, &figures))
}

/// Everything measured.
pub(crate) struct Figures {
    pub(crate) document_rates: Vec<f64>,
    pub(crate) raw_rates: Vec<f64>,
    /// Rates of the bare hops with the messages of 0.1.
    pub(crate) attributed_rates: Vec<f64>,
    pub(crate) alike_rates: Vec<f64>,
    pub(crate) different_rates: Vec<f64>,
    /// On secured hubs.
    pub(crate) secured: secured::Rates,
    pub(crate) latencies: Latencies,
}

/// The latencies of one run.
pub(crate) struct Latencies {
    /// The latency of the bare hops with Muster's messages.
    pub(crate) raw: Latency,
    /// From publish to the view.
    pub(crate) muster: Latency,
    /// From an agent to the view.
    pub(crate) agents: Latency,
    /// The time in which an agent keeps a report, which is part of `agents`.
    pub(crate) keeping: Latency,
}

/// Rates of the bare hops: with documents alone, with Muster's messages, with the messages of 0.1.
pub(crate) type BareRates = [Vec<f64>; 3];

async fn bare_round(reports: usize, round: &str, rates: &mut BareRates) {
    let kinds = [
        ("documents alone", Carry::Document),
        ("the same messages", Carry::Everything),
        ("the messages of 0.1", Carry::Attributes),
    ];
    for ((name, carry), rates) in kinds.into_iter().zip(rates) {
        say(&format!("round {round}: bare hops, {name}"));
        rates.push(raw::throughput(carry, reports).await);
    }
}

async fn bare(reports: usize, rounds: usize) -> BareRates {
    let mut rates = BareRates::default();
    for round in 1..=rounds {
        bare_round(reports, &format!("{round} of {rounds}"), &mut rates).await;
    }
    rates
}

async fn measure(reports: usize, rounds: usize) -> Figures {
    let mut secured = secured::Rates::default();
    let mut bare_rates = BareRates::default();
    let (mut alike_rates, mut different_rates) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        bare_round(reports, &format!("{round} of {rounds}"), &mut bare_rates).await;
        say(&format!("round {round} of {rounds}: muster, devices alike"));
        alike_rates.push(muster::throughput(Fleet::Alike, reports).await);
        say(&format!("round {round} of {rounds}: muster, devices different"));
        different_rates.push(muster::throughput(Fleet::Different, reports).await);
        let say = |what: &str| say(&format!("round {round} of {rounds}: muster on a secured hub, {what}"));
        secured.measure(reports, say).await;
    }
    say(&format!("latency at {} events/s: bare hops, then muster", load::EVENTS_PER_SECOND));
    let latencies = measure_latencies().await;
    let [document_rates, raw_rates, attributed_rates] = bare_rates;
    Figures { document_rates, raw_rates, attributed_rates, alike_rates, different_rates, secured, latencies }
}

/// The latencies of the bare hops, then of Muster.
async fn measure_latencies() -> Latencies {
    tokio::task::block_in_place(bench::sync_disk);
    let raw = raw::latency(Carry::Everything).await;
    tokio::task::block_in_place(bench::sync_disk);
    let [muster, agents, keeping] = muster::latency().await;
    Latencies { raw, muster, agents, keeping }
}

async fn measure_runs(runs: usize) -> Vec<Latencies> {
    let mut all = Vec::new();
    for run in 1..=runs {
        say(&format!("run {run} of {runs}: latency at {} events/s", load::EVENTS_PER_SECOND));
        all.push(measure_latencies().await);
    }
    all
}
