//! Names what a test could not try in the summary of `.ci/test`. CI refuses each name that `.ci/not-run-allowed` does not list.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs::OpenOptions;
use std::io::Write;

use muster_simulator::disk::Disk;

/// The file that `.ci/test` shows, a line `NAME: REASON` each.
const FILE_VARIABLE: &str = "MUSTER_NOT_RUN";
/// Why a test has not seen a full disk.
const NO_MOUNT: &str = "this system lets nobody mount, so the test has not seen a full disk of its own";

/// Names a test that could not try what it is for.
///
/// # Panics
/// The file cannot be written.
pub fn not_run(name: &str, reason: &str) {
    writeln!(std::io::stderr(), "NOT RUN  {name}: {reason}").unwrap_or_default();
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{name}: {reason}\n").as_bytes()).unwrap();
    }
}

/// Names a test that had no disk of its own to fill.
pub fn not_run_without_mount(name: &str) {
    not_run(name, NO_MOUNT);
}

/// Names a test whose disk is a file size limit. True where the disk is real.
pub fn is_mounted(name: &str, disk: &Disk) -> bool {
    let mounted = matches!(disk, Disk::Mounted(_));
    if !mounted {
        not_run_without_mount(name);
    }
    mounted
}
