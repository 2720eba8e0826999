//! The door of `muster-agent`: settings in, exit code out.

use std::process::ExitCode;

use clap::Parser;
use muster_agent::config::Args;

fn main() -> ExitCode {
    match Args::parse().check() {
        Ok(config) => {
            let common = config.common.clone();
            muster_service::run("muster-agent", &common, |life| async move {
                muster_agent::start(config, &life).await
            })
        }
        Err(problems) => muster_service::exit::usage("muster-agent", &problems),
    }
}
