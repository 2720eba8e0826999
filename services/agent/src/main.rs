//! The door of `muster-agent`: settings in, exit code out.

use std::process::ExitCode;

use muster_agent::config::Args;

fn main() -> ExitCode {
    let args: Args = muster_service::config::parse();
    if let Some(command) = &args.command {
        return muster_agent::identity::main(command);
    }
    match args.check() {
        Ok(config) => {
            let common = config.common.clone();
            muster_service::run("muster-agent", &common, |life| async move {
                muster_agent::start(config, &life).await
            })
        }
        Err(problems) => muster_service::exit::usage("muster-agent", &problems),
    }
}
