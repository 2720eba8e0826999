//! The Python of `make tools`.

use std::path::{Path, PathBuf};

/// The interpreter, with the packages of `.ci/python-requirements.txt`.
///
/// # Panics
/// There is none.
pub fn interpreter() -> PathBuf {
    program("python")
}

/// A program of these packages.
///
/// # Panics
/// There is none of this name.
pub fn program(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin").join(name);
    assert!(program.exists(), "{} is missing: run `make tools`", program.display());
    program
}
