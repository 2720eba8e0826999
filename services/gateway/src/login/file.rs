//! Reads a file of the login; the error names the file.

use std::io;
use std::path::{Path, PathBuf};

/// A file of the login cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .path.display())]
pub struct ReadFileError {
    /// The file.
    pub(super) path: PathBuf,
    /// The error of the system.
    pub(super) source: io::Error,
}

/// Reads a file as text.
///
/// # Errors
/// It cannot be read.
pub(super) fn read_file(path: &Path) -> Result<String, ReadFileError> {
    std::fs::read_to_string(path).map_err(|source| ReadFileError { path: path.to_owned(), source })
}
