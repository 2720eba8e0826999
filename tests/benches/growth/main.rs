//! Measures how costs grow with a fleet, at a thousand to a million standings: facts folded a second on one core, memory of
//! a standing, time to start from a snapshot, and the slowest of a hundred summaries. No bus: facts are made in memory.
//!
//! Each size has a process of its own, so that no measurement sees the memory of another. The fold is measured by this
//! thread's CPU time, a restart by the clock, because several threads share it.
//!
//! `cargo bench -p muster-tests --bench growth`; `BENCH_ROUNDS=5` for more rounds. It asserts only that nothing is lost.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod fleet;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use muster_contract::Timestamp;
use muster_contract::query::Output;
use muster_contract::status::StatusQuery;
use muster_domain::fold::Fleet;
use muster_rollup::store::{Changes, Store, StoredSnapshot};
use muster_tests::bench::{self, HubKind, median, say, setting};
use muster_tests::ledger::DEPLOYMENTS;

use self::fleet::Made;

/// Standings of each size.
const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const ROUNDS_DEFAULT: usize = 3;
/// Which size a process measures; without it, it starts one for each.
const SIZE: &str = "MUSTER_BENCH_GROWTH_STANDINGS";
/// Reports by which folding is measured, at least: a small fleet reports more often.
const REPORTS_MIN: usize = 300_000;
/// How often the summary is asked for.
const ASKED: usize = 2_000;

// As in muster-rollup.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    match setting(SIZE, 0) {
        0 => bench::tell(HubKind::None, &table(setting("BENCH_ROUNDS", ROUNDS_DEFAULT).max(1))),
        standings => bench::print(&Figures::measure(standings).to_line()),
    }
}

/// The measurements of one size.
struct Figures {
    folded_a_second: f64,
    bytes: f64,
    restart_seconds: f64,
    summary_seconds: f64,
}

fn table(rounds: usize) -> String {
    let mut lines = vec![
        format!("{} deployments a device, median of {rounds} rounds", DEPLOYMENTS.len()),
        String::new(),
        "| standings | folded, k facts/s | bytes a standing | restart, s | summary p99, ms |".to_owned(),
        "|---:|---:|---:|---:|---:|".to_owned(),
    ];
    for standings in SIZES {
        let measured: Vec<Figures> = (0..rounds).map(|_| of_a_process(standings)).collect();
        let middle = |of: fn(&Figures) -> f64| median(&measured.iter().map(of).collect::<Vec<_>>());
        lines.push(format!(
            "| {standings} | {:.0} | {:.0} | {:.2} | {:.2} |",
            middle(|figures| figures.folded_a_second) / 1e3,
            middle(|figures| figures.bytes),
            middle(|figures| figures.restart_seconds),
            middle(|figures| figures.summary_seconds) * 1e3,
        ));
    }
    lines.join("\n")
}

fn of_a_process(standings: usize) -> Figures {
    say(&format!("{standings} standings"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.arg("--bench").env(SIZE, standings.to_string()).output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{standings} standings: {}", String::from_utf8_lossy(&output.stderr));
    Figures::of_line(&line)
}

impl Figures {
    fn measure(standings: usize) -> Self {
        let devices = standings.div_ceil(DEPLOYMENTS.len());
        let mut made = Made::new(devices);
        made.warm_up();
        let before = resident_bytes();
        made.begin();
        made.report();
        let bytes = resident_bytes().saturating_sub(before) as f64 / (devices * DEPLOYMENTS.len()) as f64;
        let (mut reports, mut folding) = (0, Duration::ZERO);
        while reports < REPORTS_MIN {
            folding += made.report();
            reports += devices * DEPLOYMENTS.len();
        }
        let (summary_seconds, restart_seconds) = (summary(&made.fleet), restart(&made.fleet));
        Self {
            folded_a_second: reports as f64 / folding.as_secs_f64(),
            bytes,
            restart_seconds,
            summary_seconds,
        }
    }

    fn to_line(&self) -> String {
        let Self { folded_a_second, bytes, restart_seconds, summary_seconds } = self;
        format!("{folded_a_second} {bytes} {restart_seconds} {summary_seconds}")
    }

    fn of_line(line: &str) -> Self {
        let numbers: Vec<f64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [folded_a_second, bytes, restart_seconds, summary_seconds] = numbers[..] else {
            panic!("'{line}' are not four numbers")
        };
        Self { folded_a_second, bytes, restart_seconds, summary_seconds }
    }
}

/// The 99th percentile of the time from a question to its answer as JSON.
fn summary(fleet: &Fleet) -> f64 {
    let query = StatusQuery {
        id: Some(DEPLOYMENTS[0].parse().unwrap()),
        output: Output::Summary,
        ..StatusQuery::default()
    };
    let ask = |_| {
        let begin = Instant::now();
        let answer = fleet.status_answer(&query, None, 1).unwrap();
        assert!(!serde_json::to_vec(&answer).unwrap().is_empty());
        begin.elapsed().as_secs_f64()
    };
    let mut seconds: Vec<f64> = (0..ASKED).map(ask).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[ASKED * 99 / 100]
}

/// Writes a snapshot and gives the seconds until a process that starts has it again.
fn restart(fleet: &Fleet) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(dir.path()).unwrap();
    let digest = fleet.fleet_view().tally.digest;
    let changes = Changes {
        afresh: true,
        created_at: Timestamp::UNIX_EPOCH,
        as_of: fleet.as_of(),
        fleet_digest: digest,
        records: fleet.records().collect(),
        hearing: fleet.hearing_state().clone(),
        timeline: (0, Vec::new()),
    };
    store.save(&changes).unwrap();
    drop((store, changes));
    let begin = Instant::now();
    let (_store, found) = Store::open(dir.path()).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    let StoredSnapshot::Snapshot { fleet: restored, .. } = found else {
        panic!("the snapshot does not hold: {found:?}")
    };
    assert_eq!((restored.fleet_view().tally.digest, restored.as_of()), (digest, fleet.as_of()));
    seconds
}

/// Memory of this process that is in use, as the kernel counts it; 0 where it does not say.
fn resident_bytes() -> u64 {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE
}
