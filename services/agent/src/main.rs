//! The entry point of `muster-agent`: parses the settings and returns the exit code.

use std::process::ExitCode;

use muster_agent::config::Args;

fn main() -> ExitCode {
    let args: Args = muster_service::config::parse();
    if let Some(command) = &args.command {
        return muster_agent::commands::run(command);
    }
    match args.check() {
        Ok(config) => {
            let common = config.common.clone();
            muster_service::run("muster-agent", &common, |supervisor| async move {
                muster_agent::start(config, &supervisor).await
            })
        }
        Err(problems) => muster_service::exit::usage("muster-agent", &problems),
    }
}
