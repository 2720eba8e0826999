//! What the way from a report to a view costs, beside the bare hops of the same way: publish → UPLINK → consume →
//! publish → LEDGER → consume. The hops go once with the documents alone, and once with the same messages as Muster's, so
//! that what Muster does and what its messages carry are told apart. All run in turn on fresh servers, and ratios are the
//! middle ones of the rounds, because machines are shared and noisy. It measures; it asserts only that nothing was lost on
//! the way. The same work is also done on hubs with accounts and TLS, without and with mirrors for readers.
//!
//! `make bench`; `BENCH_REPORTS=200000 BENCH_ROUNDS=3 make bench` for other sizes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod agents;
mod load;
mod muster;
mod raw;
mod secured;
mod table;

use std::process::ExitCode;

use load::Fleet;
use muster_tests::bench::{self, HubKind, say, setting};
use muster_tests::envelope::Carry;

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
    let figures = runtime.block_on(measure(reports, rounds));
    bench::tell(HubKind::Open, &table::render(reports, rounds, &figures))
}

/// Everything measured.
pub(crate) struct Figures {
    pub(crate) document_rates: Vec<f64>,
    pub(crate) raw_rates: Vec<f64>,
    pub(crate) alike_rates: Vec<f64>,
    pub(crate) different_rates: Vec<f64>,
    /// On secured hubs.
    pub(crate) secured: secured::Rates,
    pub(crate) raw_latency: load::Latency,
    pub(crate) muster_latency: load::Latency,
    pub(crate) agent_latency: load::Latency,
    pub(crate) keeping: load::Latency,
}

async fn measure(reports: usize, rounds: usize) -> Figures {
    let mut secured = secured::Rates::default();
    let (mut document_rates, mut raw_rates) = (Vec::new(), Vec::new());
    let (mut alike_rates, mut different_rates) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}: bare hops, documents alone"));
        document_rates.push(raw::throughput(Carry::Document, reports).await);
        say(&format!("round {round} of {rounds}: bare hops, the same messages"));
        raw_rates.push(raw::throughput(Carry::Everything, reports).await);
        say(&format!("round {round} of {rounds}: muster, devices alike"));
        alike_rates.push(muster::throughput(Fleet::Alike, reports).await);
        say(&format!("round {round} of {rounds}: muster, devices different"));
        different_rates.push(muster::throughput(Fleet::Different, reports).await);
        let say = |what: &str| say(&format!("round {round} of {rounds}: muster on a secured hub, {what}"));
        secured.measure(reports, say).await;
    }
    say(&format!("latency at {} events/s: bare hops, then muster", load::EVENTS_PER_SECOND));
    tokio::task::block_in_place(bench::settle);
    let raw_latency = raw::latency(Carry::Everything).await;
    tokio::task::block_in_place(bench::settle);
    let [muster_latency, agent_latency, keeping] = muster::latency().await;
    Figures {
        document_rates,
        raw_rates,
        alike_rates,
        different_rates,
        secured,
        raw_latency,
        muster_latency,
        agent_latency,
        keeping,
    }
}
