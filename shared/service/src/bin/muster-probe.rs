//! The door of `muster-probe`: an address in, exit code out.

use std::process::ExitCode;

use muster_service::{config, probe};

fn main() -> ExitCode {
    probe::main(&config::parse())
}
