//! Entry point of `muster`.

use std::process::ExitCode;

use muster_ctl::terminal::Terminal;

fn main() -> ExitCode {
    muster_ctl::app::main(&mut Terminal::system())
}
