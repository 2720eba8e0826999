//! The log files of a unit's stdout and stderr. The unit writes them itself, so that it outlives the agent.
//!
//! Their size is limited: a file over [`ROTATE_BYTES`] is renamed to `.1` when the unit starts, replacing the one
//! before. While the unit runs, the agent copies the last part of a file over [`RUNNING_BYTES_MAX`] to `.1` and
//! truncates it, with a warning in the agent's log: the part before is lost, and the disk does not fill up. The agent
//! checks the sizes at least every [`CHECK_EVERY`], and the sooner the faster the file grows, down to
//! [`CHECK_LEAST`]; only while it runs. So each of a unit's two files has at most [`RUNNING_BYTES_MAX`] and
//! [`ROTATE_BYTES`], and what is written between two checks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::paths::UnitPaths;
use crate::runtime::UnitName;

/// A file over this size is renamed when the unit starts.
pub(super) const ROTATE_BYTES: u64 = 4 * 1024 * 1024;
/// A file over this size is truncated while the unit runs.
pub(super) const RUNNING_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Longest time between two checks of the sizes.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Shortest time between two checks, and the time before the first: the speed of the writer is not known then.
pub(super) const CHECK_LEAST: Duration = Duration::from_millis(100);
/// Lines of stderr in an error at most.
const LAST_LINES_MAX: usize = 10;
/// Bytes of stderr in an error at most.
const LAST_BYTES_MAX: u64 = 2048;

const _: () = {
    assert!(ROTATE_BYTES < RUNNING_BYTES_MAX);
    assert!(CHECK_LEAST.as_millis() < CHECK_EVERY.as_millis());
    // The message needs room for its other parts.
    assert!(2 * LAST_BYTES_MAX as usize <= muster_contract::limits::ERROR_MESSAGE_BYTES_MAX);
};

/// The two files of one unit.
#[derive(Debug, Clone)]
pub(super) struct Logs {
    out: PathBuf,
    err: PathBuf,
    /// The offset at which this run's stderr begins.
    err_from: u64,
}

impl Logs {
    /// The existing files of a running unit: the begin of its part is not known.
    pub(super) fn of(paths: &UnitPaths, name: &UnitName) -> Self {
        Self { out: paths.log(name, "out"), err: paths.log(name, "err"), err_from: 0 }
    }

    /// Opens both for a unit that is about to start.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn open(paths: &UnitPaths, name: &UnitName) -> io::Result<(Self, File, File)> {
        let mut logs = Self::of(paths, name);
        fs::create_dir_all(logs.out.parent().unwrap_or(Path::new(".")))?;
        let (out, err) = (open_rotated(&logs.out)?, open_rotated(&logs.err)?);
        logs.err_from = err.metadata()?.len();
        Ok((logs, out, err))
    }

    /// The file of stderr.
    pub(super) fn err(&self) -> &Path {
        &self.err
    }

    /// The size of the larger file.
    pub(super) fn size(&self) -> u64 {
        [&self.out, &self.err]
            .into_iter()
            .map(|path| fs::metadata(path).map_or(0, |file| file.len()))
            .max()
            .unwrap_or(0)
    }

    /// Truncates the files that have grown over their limit, and returns them.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn bound(&self) -> io::Result<Vec<PathBuf>> {
        let mut emptied = Vec::new();
        for path in [&self.out, &self.err] {
            let size = fs::metadata(path).map_or(0, |file| file.len());
            if size > RUNNING_BYTES_MAX {
                empty(path, size)?;
                emptied.push(path.clone());
            }
        }
        Ok(emptied)
    }

    /// The last lines of stderr of this run, fit for a terminal and for JSON. Empty if there are none.
    pub(super) fn last_lines(&self) -> String {
        last_bytes(&self.err, self.err_from).map(|bytes| last_lines(&bytes)).unwrap_or_default()
    }
}

/// The time to the next check: half the time in which a file would reach its limit at its present growth.
pub(super) fn next_check(before: u64, now: u64, after: Duration) -> Duration {
    let grown = match now.checked_sub(before) {
        Some(0) => return CHECK_EVERY,
        Some(grown) => grown,
        // It was truncated in between.
        None => RUNNING_BYTES_MAX,
    };
    let room = RUNNING_BYTES_MAX.saturating_sub(now);
    after.mul_f64(room as f64 / grown as f64 / 2.0).clamp(CHECK_LEAST, CHECK_EVERY)
}

fn open_rotated(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|file| file.len() > ROTATE_BYTES) {
        fs::rename(path, aside(path))?;
    }
    // In append mode the agent can truncate the file while the unit holds it open.
    OpenOptions::new().append(true).create(true).open(path)
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

fn empty(path: &Path, size: u64) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(size.saturating_sub(ROTATE_BYTES)))?;
    let kept = aside(path);
    let copied = File::create(kept).and_then(|mut kept| io::copy(&mut file.take(ROTATE_BYTES), &mut kept));
    // The file is truncated even if the copy failed: the disk may be too full for it.
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    copied.map(|_| ())
}

fn last_bytes(path: &Path, from: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    // A file shorter than where this run began has been truncated since: all of it is this run's.
    let from = if from > size { 0 } else { from };
    file.seek(SeekFrom::Start(from.max(size.saturating_sub(LAST_BYTES_MAX))))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn last_lines(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        // Escape sequences of a workload must not reach the terminal of a person who reads its status.
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { ' ' } else { c })
        .collect();
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn fixture() -> (tempfile::TempDir, UnitPaths, UnitName) {
        let dir = tempfile::tempdir().unwrap();
        let paths = UnitPaths::new("plant/press".parse().unwrap(), dir.path());
        let name = UnitName { deployment: "line".parse().unwrap(), component: "web".parse().unwrap() };
        (dir, paths, name)
    }

    #[test]
    fn last_lines_are_of_this_run_only() {
        let (_dir, paths, name) = fixture();
        let (_, _, mut err) = Logs::open(&paths, &name).unwrap();
        writeln!(err, "old").unwrap();
        let (logs, _, mut err) = Logs::open(&paths, &name).unwrap();
        assert_eq!(logs.last_lines(), "");
        writeln!(err, "new").unwrap();
        assert_eq!(logs.last_lines(), "new");
    }

    #[test]
    fn last_lines_are_bounded_and_plain() {
        let (_dir, paths, name) = fixture();
        let (logs, _, mut err) = Logs::open(&paths, &name).unwrap();
        for line in 0..10_000 {
            writeln!(err, "line {line}\r").unwrap();
        }
        writeln!(err, "\x1b[31mred\0 \u{fffd}").unwrap();
        err.write_all(&[0xff, b'\n']).unwrap();
        let words = logs.last_lines();
        assert_eq!(words.lines().count(), LAST_LINES_MAX);
        assert!(
            words.starts_with("line 9992\n") && words.ends_with(" [31mred  \u{fffd}\n\u{fffd}"),
            "{words:?}"
        );
    }

    #[test]
    fn a_large_log_is_renamed_at_the_next_start() {
        let (_dir, paths, name) = fixture();
        let (logs, mut out, _) = Logs::open(&paths, &name).unwrap();
        out.write_all(&vec![b'x'; ROTATE_BYTES as usize + 1]).unwrap();
        let (_, again, _) = Logs::open(&paths, &name).unwrap();
        assert_eq!(again.metadata().unwrap().len(), 0);
        assert_eq!(fs::metadata(aside(&logs.out)).unwrap().len(), ROTATE_BYTES + 1);
    }

    #[test]
    fn the_faster_a_file_grows_the_sooner_it_is_looked_at() {
        let (second, bound) = (Duration::from_secs(1), RUNNING_BYTES_MAX);
        for (before, now, expected) in [
            (0, 0, CHECK_EVERY),
            (bound / 2, bound / 2, CHECK_EVERY),
            (0, 1024, CHECK_EVERY),
            (0, bound / 4, Duration::from_millis(1_500)),
            (0, bound / 2, Duration::from_millis(500)),
            (0, bound, CHECK_LEAST),
            (0, 1000 * bound, CHECK_LEAST),
            // Emptied in between, and growing.
            (bound - 1, 0, Duration::from_millis(500)),
        ] {
            assert_eq!(next_check(before, now, second), expected, "{before} {now}");
        }
    }

    #[test]
    fn a_runaway_writer_loses_its_past_and_not_the_disk() {
        let (_dir, paths, name) = fixture();
        let (logs, _, mut err) = Logs::open(&paths, &name).unwrap();
        assert!(logs.bound().unwrap().is_empty());
        err.write_all(&vec![b'x'; RUNNING_BYTES_MAX as usize]).unwrap();
        writeln!(err, "last").unwrap();
        assert_eq!(logs.bound().unwrap().as_slice(), std::slice::from_ref(&logs.err));
        assert_eq!(fs::metadata(&logs.err).unwrap().len(), 0);
        assert!(fs::read(aside(&logs.err)).unwrap().ends_with(b"xlast\n"));
        assert_eq!(fs::metadata(aside(&logs.err)).unwrap().len(), ROTATE_BYTES);
        writeln!(err, "goes on").unwrap();
        assert_eq!(fs::read(&logs.err).unwrap(), b"goes on\n", "the writer appends to the emptied file");
        assert_eq!(logs.last_lines(), "goes on");
    }
}
