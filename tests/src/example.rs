//! Runs the examples under `schemas/examples/` in Python, JavaScript and Rust, with the packages of
//! `make tools`. The same example takes the same arguments in each language.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::not_run::not_run;
use crate::python::interpreter;
use crate::schemas;
use crate::system::program;
use crate::wait::soon;

/// The reason why no example in JavaScript ran.
const NO_NODE: &str =
    "node or its packages are missing; install Node.js 18 or newer with npm, and run `make tools`";

/// The language of an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// With nats-py.
    Python,
    /// With nats.js in node.
    JavaScript,
    /// With async-nats.
    Rust,
}

impl Language {
    /// Whether its examples can run here. Otherwise the summary of `.ci/test` names the test.
    pub fn is_there(self, test: &str) -> bool {
        let is_there = self != Self::JavaScript || packages().join("node_modules").is_dir();
        if !is_there {
            not_run(test, NO_NODE);
        }
        is_there
    }

    /// The command that runs an example.
    pub fn command(self, name: &str) -> Command {
        let folder = schemas::folder().join("examples");
        match self {
            Self::Python => script(&interpreter(), &folder.join(format!("{name}.py"))),
            Self::JavaScript => script(Path::new("node"), &packages().join(format!("{name}.js"))),
            Self::Rust => Command::new(program(&format!("muster-example-{name}"))),
        }
    }
}

/// The folder of the examples in JavaScript, which has their packages.
pub fn packages() -> PathBuf {
    schemas::folder().join("examples/js")
}

fn script(interpreter: &Path, file: &Path) -> Command {
    let mut command = Command::new(interpreter);
    // Python writes no caches into the tree.
    command.arg(file).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A running example. It ends with this value.
pub struct Example {
    name: String,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    /// Starts an example with arguments. Its standard error is the test's.
    ///
    /// # Panics
    /// It cannot be run: `make tools` was not, or the programs are not built.
    pub fn start(language: Language, name: &str, args: &[&str]) -> Self {
        let mut command = language.command(name);
        command.args(args);
        Self::run(&format!("{name} in {language:?}"), command)
    }

    /// Starts a command.
    ///
    /// # Panics
    /// It cannot be run.
    pub fn run(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {name}: {error}"));
        let lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
        Self { name: name.to_owned(), child, lines }
    }

    /// The next line it prints.
    ///
    /// # Panics
    /// It ends, or prints nothing for too long.
    pub async fn line(&mut self) -> String {
        let line = soon(&format!("a line of {}", self.name), self.lines.next_line()).await;
        line.expect("lines of text").unwrap_or_else(|| panic!("{} ended; its errors are above", self.name))
    }

    /// Kills it where it stands (SIGKILL) and waits for its end.
    ///
    /// # Panics
    /// It cannot be killed.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("a process to end");
    }
}
