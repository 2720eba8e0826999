//! Measures the cost of storing a report durably, beside bare SQLite that writes the same bytes with the same durability
//! (WAL, `synchronous=FULL`) and nothing else: a row for the report and a replaced standing in one transaction, without
//! numbers, limits or indexes.
//! Both sides take turns in one run, on the same disk, after their logs have been written round once. It measures; it
//! asserts only that everything was kept.
//!
//! `make bench`; `BENCH_KEPT=5000 BENCH_ROUNDS=9 BENCH_DIR=/mnt/sd make bench` for other sizes and disks.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod bare;
mod disk;
mod kept;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_tests::bench::{self, HubKind, say, setting};

/// Reports kept in a round, one at a time and again in groups; rounded up to whole groups in each turn.
const KEPT_DEFAULT: usize = 1_000;
/// Rounds of each side.
const ROUNDS_DEFAULT: usize = 5;
/// Reports of a group, and callers that wait at once.
pub(crate) const GROUP: usize = 64;
/// Turns that each side has in a round.
const TURNS: usize = 20;
/// Reports kept before anything is measured: enough to write the log round on either side. A log that still grows
/// makes the file system write more than a log does.
const WARM_UP: usize = 1_200;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let kept = setting("BENCH_KEPT", KEPT_DEFAULT).max(1);
    let rounds = setting("BENCH_ROUNDS", ROUNDS_DEFAULT).max(1);
    let base = std::env::var_os("BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let dir = tempfile::tempdir_in(base).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // On a thread of its own beside those of the runtime, as the agent's writer is.
    let figures = runtime.block_on(measure(dir.path().to_owned(), kept, rounds));
    bench::tell(HubKind::None, &table::render(kept, rounds, &figures))
}

/// Rates of both sides, in reports a second, round by round.
#[derive(Default)]
pub(crate) struct Pair {
    pub(crate) bare: Vec<f64>,
    pub(crate) outbox: Vec<f64>,
}

impl Pair {
    fn note(&mut self, reports: usize, taken: Taken) {
        self.bare.push(reports as f64 / taken.bare.as_secs_f64());
        self.outbox.push(reports as f64 / taken.outbox.as_secs_f64());
    }
}

/// Time that both sides took for the same reports.
#[derive(Clone, Copy, Default)]
struct Taken {
    bare: Duration,
    outbox: Duration,
}

/// Everything measured.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) single: Pair,
    pub(crate) grouped: Pair,
    pub(crate) waiting: Pair,
    /// Pages of the log that one report costs: bare, outbox.
    pub(crate) pages: (f64, f64),
    /// Bytes of a row.
    pub(crate) row_bytes: usize,
    /// Bytes of a standing.
    pub(crate) standing_bytes: usize,
    /// The time of the disk to make 4 KiB durable: overwritten, and at the end of a growing file.
    pub(crate) syncs: (Duration, Duration),
}

async fn measure(dir: PathBuf, kept: usize, rounds: usize) -> Figures {
    let (row_bytes, standing_bytes) = kept::sizes();
    let syncs = disk::syncs(&dir);
    let mut bare = bare::Bare::open(&dir.join("bare.db"), row_bytes, standing_bytes);
    let outbox = kept::Kept::open(&dir.join("outbox")).await;
    say("writing both logs round once");
    bare.keep(WARM_UP, 1);
    outbox.keep(outbox.groups(WARM_UP, 1)).await;
    let mut figures = Figures { row_bytes, standing_bytes, syncs, ..Figures::default() };
    // The sides take turns often: a disk that others use, too, is now fast and now slow.
    let (single, groups) = (kept.div_ceil(TURNS), kept.div_ceil(TURNS * GROUP));
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}"));
        let [mut alone, mut together, mut waiting] = [Taken::default(); 3];
        for _ in 0..TURNS {
            alone.bare += timed(|| bare.keep(single, 1));
            let reports = outbox.groups(single, 1);
            alone.outbox += timed_of(outbox.keep(reports)).await;

            let grouped = timed(|| bare.keep(groups, GROUP));
            (together.bare, waiting.bare) = (together.bare + grouped, waiting.bare + grouped);
            let reports = outbox.groups(groups, GROUP);
            together.outbox += timed_of(outbox.keep(reports)).await;
            let reports = (0..GROUP).map(|_| outbox.groups(groups, 1)).collect();
            waiting.outbox += timed_of(outbox.keep_waiting(reports)).await;
        }
        figures.single.note(single * TURNS, alone);
        figures.grouped.note(groups * GROUP * TURNS, together);
        figures.waiting.note(groups * GROUP * TURNS, waiting);
    }
    figures.pages = (bare.pages(kept), outbox.pages(kept).await);
    outbox.check().await;
    figures
}

fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

async fn timed_of(work: impl Future<Output = ()>) -> Duration {
    let begin = Instant::now();
    work.await;
    begin.elapsed()
}
