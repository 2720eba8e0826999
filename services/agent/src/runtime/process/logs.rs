//! The files that take a unit's stdout and stderr. The unit writes them itself, so that it outlives the agent.
//!
//! Bounded: a file over [`ROTATE_BYTES`] is set aside as `.1` when the unit starts, replacing the one before. While
//! the unit runs, a file over [`RUNNING_BYTES_MAX`] keeps its last part as `.1` and is emptied under the writer's
//! hands, with a warning in the agent's log: what came before is lost, the disk is not. That look is taken at least every
//! [`CHECK_EVERY`], and the sooner the faster the file grows, down to [`CHECK_LEAST`]; only while an agent runs. So a unit
//! has at most [`RUNNING_BYTES_MAX`] and [`ROTATE_BYTES`] for each of its two files, and what it writes between two looks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::home::Home;
use crate::runtime::UnitName;

/// A file over this size is set aside when the unit starts.
pub(super) const ROTATE_BYTES: u64 = 4 * 1024 * 1024;
/// A file over this size is emptied while the unit runs.
pub(super) const RUNNING_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Longest time between two looks at the sizes.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Shortest time between two looks, and the time before the first: nothing is known of the writer then.
pub(super) const CHECK_LEAST: Duration = Duration::from_millis(100);
/// Lines of stderr that an error carries at most.
const LAST_LINES_MAX: usize = 10;
/// Bytes of stderr that an error carries at most.
const LAST_BYTES_MAX: u64 = 2048;

const _: () = {
    assert!(ROTATE_BYTES < RUNNING_BYTES_MAX);
    assert!(CHECK_LEAST.as_millis() < CHECK_EVERY.as_millis());
    // The rest of the message must have room beside the lines.
    assert!(2 * LAST_BYTES_MAX as usize <= muster_contract::limits::ERROR_MESSAGE_BYTES_MAX);
};

/// The two files of one unit.
#[derive(Debug, Clone)]
pub(super) struct Logs {
    out: PathBuf,
    err: PathBuf,
    /// Where this run's stderr begins.
    err_from: u64,
}

impl Logs {
    /// The files as they are, for a unit that runs already: where its part begins is not known.
    pub(super) fn of(home: &Home, name: &UnitName) -> Self {
        Self { out: home.log(name, "out"), err: home.log(name, "err"), err_from: 0 }
    }

    /// Opens both for a unit that is going to start.
    ///
    /// # Errors
    /// The disk's.
    pub(super) fn open(home: &Home, name: &UnitName) -> io::Result<(Self, File, File)> {
        let mut logs = Self::of(home, name);
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

    /// Empties what has grown over its bound. Returns the files that had.
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

    /// The last lines of stderr of this run, fit for a terminal and a JSON text. Empty where there are none.
    pub(super) fn last_words(&self) -> String {
        last_bytes(&self.err, self.err_from).map(|bytes| last_lines(&bytes)).unwrap_or_default()
    }
}

/// When to look again: in half the time in which a file would reach the bound if it went on growing as it did.
pub(super) fn next_look(before: u64, now: u64, after: Duration) -> Duration {
    let grown = match now.checked_sub(before) {
        Some(0) => return CHECK_EVERY,
        Some(grown) => grown,
        // It was emptied in between.
        None => RUNNING_BYTES_MAX,
    };
    let room = RUNNING_BYTES_MAX.saturating_sub(now);
    after.mul_f64(room as f64 / grown as f64 / 2.0).clamp(CHECK_LEAST, CHECK_EVERY)
}

fn open_rotated(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|file| file.len() > ROTATE_BYTES) {
        fs::rename(path, aside(path))?;
    }
    // Appending is what lets the agent empty the file while the unit holds it open.
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
    // The room comes first: it is made also where the disk is already too full for the copy.
    OpenOptions::new().write(true).open(path)?.set_len(0)?;
    copied.map(|_| ())
}

fn last_bytes(path: &Path, from: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    // A file shorter than where this run began has been emptied since: all of it is this run's.
    let from = if from > size { 0 } else { from };
    file.seek(SeekFrom::Start(from.max(size.saturating_sub(LAST_BYTES_MAX))))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn last_lines(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        // Escape sequences of a workload have no business in the terminal of whoever asks for its status.
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { ' ' } else { c })
        .collect();
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn fixture() -> (tempfile::TempDir, Home, UnitName) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new("plant/press".parse().unwrap(), dir.path());
        let name = UnitName { deployment: "line".parse().unwrap(), component: "web".parse().unwrap() };
        (dir, home, name)
    }

    #[test]
    fn last_words_are_of_this_run_only() {
        let (_dir, home, name) = fixture();
        let (_, _, mut err) = Logs::open(&home, &name).unwrap();
        writeln!(err, "old").unwrap();
        let (logs, _, mut err) = Logs::open(&home, &name).unwrap();
        assert_eq!(logs.last_words(), "");
        writeln!(err, "new").unwrap();
        assert_eq!(logs.last_words(), "new");
    }

    #[test]
    fn last_words_are_bounded_and_plain() {
        let (_dir, home, name) = fixture();
        let (logs, _, mut err) = Logs::open(&home, &name).unwrap();
        for line in 0..10_000 {
            writeln!(err, "line {line}\r").unwrap();
        }
        writeln!(err, "\x1b[31mred\0 \u{fffd}").unwrap();
        err.write_all(&[0xff, b'\n']).unwrap();
        let words = logs.last_words();
        assert_eq!(words.lines().count(), LAST_LINES_MAX);
        assert!(
            words.starts_with("line 9992\n") && words.ends_with(" [31mred  \u{fffd}\n\u{fffd}"),
            "{words:?}"
        );
    }

    #[test]
    fn a_large_file_is_set_aside_at_the_next_start() {
        let (_dir, home, name) = fixture();
        let (logs, mut out, _) = Logs::open(&home, &name).unwrap();
        out.write_all(&vec![b'x'; ROTATE_BYTES as usize + 1]).unwrap();
        let (_, again, _) = Logs::open(&home, &name).unwrap();
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
            assert_eq!(next_look(before, now, second), expected, "{before} {now}");
        }
    }

    #[test]
    fn a_runaway_writer_loses_its_past_and_not_the_disk() {
        let (_dir, home, name) = fixture();
        let (logs, _, mut err) = Logs::open(&home, &name).unwrap();
        assert!(logs.bound().unwrap().is_empty());
        err.write_all(&vec![b'x'; RUNNING_BYTES_MAX as usize]).unwrap();
        writeln!(err, "last").unwrap();
        assert_eq!(logs.bound().unwrap().as_slice(), std::slice::from_ref(&logs.err));
        assert_eq!(fs::metadata(&logs.err).unwrap().len(), 0);
        assert!(fs::read(aside(&logs.err)).unwrap().ends_with(b"xlast\n"));
        assert_eq!(fs::metadata(aside(&logs.err)).unwrap().len(), ROTATE_BYTES);
        writeln!(err, "goes on").unwrap();
        assert_eq!(fs::read(&logs.err).unwrap(), b"goes on\n", "the writer appends to the emptied file");
        assert_eq!(logs.last_words(), "goes on");
    }
}
