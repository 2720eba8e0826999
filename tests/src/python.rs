//! Programs in another language: the Python examples under `schemas/examples/`, run with the packages of `make tools`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::wait::soon;

/// A running example. It ends with this value.
pub struct Example {
    name: String,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    /// Starts `schemas/examples/<name>` with arguments. What it says on standard error is the test's.
    ///
    /// # Panics
    /// There is no Python of `make tools`.
    pub fn start(name: &str, args: &[&str]) -> Self {
        let script = crate::schemas::folder().join("examples").join(name);
        let mut child = Command::new(interpreter())
            .arg(script)
            .args(args)
            // A killed example leaves nothing behind, and writes no caches into the tree.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {name}: {error}"));
        let lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
        Self { name: name.to_owned(), child, lines }
    }

    /// The next line it prints.
    ///
    /// # Panics
    /// It ends, or prints nothing for too long.
    pub async fn line(&mut self) -> String {
        let line = soon(&format!("a line of {}", self.name), self.lines.next_line()).await;
        line.expect("lines of text").unwrap_or_else(|| panic!("{} ended; what it said is above", self.name))
    }

    /// Kills it where it stands (SIGKILL) and waits for its end.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("a process to end");
    }
}

/// The Python that `make tools` made.
///
/// # Panics
/// It did not.
pub fn interpreter() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/venv/bin/python");
    assert!(python.exists(), "{} is missing: run `make tools` once", python.display());
    python
}
