//! The Python of `make tools`.

use std::path::{Path, PathBuf};

/// The interpreter, with the packages of `.ci/python-requirements.txt`.
///
/// # Panics
/// There is none.
pub fn interpreter() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/python");
    assert!(python.exists(), "{} is missing: run `make tools` once", python.display());
    python
}
