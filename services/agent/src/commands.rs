//! The commands of the program that do not run an agent: `key`, `accept` and `status`. Prints their result or error.

use std::io::{self, Write as _};
use std::process::ExitCode;

use muster_service::error::chain;

use crate::config::Command;
use crate::{identity, status};

/// Carries out a command and prints its result.
pub fn run(command: &Command) -> ExitCode {
    let result = match command {
        Command::Key { data_dir } => identity::key(data_dir).map(|key| format!("{key}\n")),
        Command::Accept { data_dir, file } => identity::accept(data_dir, file),
        Command::Status { data_dir, json } => return status::print(data_dir, *json),
    };
    let (written, code) = match result {
        Ok(text) => (io::stdout().write_all(text.as_bytes()), ExitCode::SUCCESS),
        Err(error) => (writeln!(io::stderr(), "muster-agent: {}", chain(&error)), ExitCode::FAILURE),
    };
    // The exit code is the only sign that the output was not written.
    if written.is_ok() { code } else { ExitCode::FAILURE }
}
