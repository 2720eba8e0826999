//! Helpers for the files of units: a file that only the agent's user can read, and the folder at the top of an unpacked archive.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The mode of files that may hold passwords.
const PRIVATE_MODE: u32 = 0o600;

/// Writes a file that only the agent's user can read.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // An existing file would keep its mode.
    let _ = fs::remove_file(path);
    File::options().write(true).create_new(true).mode(PRIVATE_MODE).open(path)?.write_all(text.as_bytes())
}

/// The only folder in a folder, as archives of releases have it; `None` if there are none or several.
pub(super) fn only_folder(folder: &Path) -> Option<PathBuf> {
    let paths = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut folders = paths.filter(|path| path.is_dir());
    let first = folders.next()?;
    folders.next().is_none().then_some(first)
}
