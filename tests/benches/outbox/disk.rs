//! Measures the disk's own speed, which bounds both sides, and the size of SQLite's log.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Empties the log, which then only grows.
pub(crate) const EMPTY_LOG: &str = "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA wal_autocheckpoint=0;";
/// Bytes of a page, and of the header of a log and of each page in it.
const PAGE: usize = 4096;
const LOG_HEADER: u64 = 32;
const PAGE_HEADER: usize = 24;
/// Writes timed for each figure.
const WRITES: u64 = 101;

/// Where the log of a database is.
pub(crate) fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Pages in a log that was empty before.
pub(crate) fn pages(log: &Path) -> f64 {
    let bytes = std::fs::metadata(log).unwrap().len().saturating_sub(LOG_HEADER);
    bytes as f64 / (PAGE + PAGE_HEADER) as f64
}

/// Median time to make a page durable: written over an older one, and at the end of a file that grows.
pub(crate) fn syncs(dir: &Path) -> (Duration, Duration) {
    let file = File::create_new(dir.join("syncs")).unwrap();
    let grown = median(&file, |nth| nth * PAGE as u64);
    (median(&file, |_| 0), grown)
}

fn median(file: &File, place: impl Fn(u64) -> u64) -> Duration {
    let mut times: Vec<Duration> = (0..WRITES)
        .map(|nth| {
            let begin = Instant::now();
            file.write_all_at(&[0x5a; PAGE], place(nth)).unwrap();
            file.sync_data().unwrap();
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
