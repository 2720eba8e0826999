//! The door of `muster-probe`: an address in, exit code out.

use std::process::ExitCode;

use clap::Parser;
use muster_service::probe::{self, Args};

fn main() -> ExitCode {
    probe::main(&Args::parse())
}
