//! The entry point of `muster-probe`.

use std::process::ExitCode;

use muster_service::{config, probe};

fn main() -> ExitCode {
    probe::main(&config::parse())
}
