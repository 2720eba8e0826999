//! The least service there can be: one task that ticks. Shows how a service is put together, and is the process
//! that `tests/process.rs` sends signals to.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use muster_service::{CommonArgs, Problems, Stage, Supervisor, VERSION, exit, run};

/// Ticks until a signal stops it
#[derive(Debug, Parser)]
#[command(name = "ticker", version = VERSION)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,

    /// Time between two ticks
    #[arg(long, env = "MUSTER_TICK", value_name = "DURATION", default_value = "1s")]
    tick: String,

    /// Defect: nothing, start (it fails), wait (it never ends), fail or panic (at a tick), hang (at the end)
    #[arg(long, env = "MUSTER_DEFECT", value_name = "WHAT", default_value = "nothing")]
    defect: String,
}

#[derive(Debug, thiserror::Error)]
#[error("the spring is broken")]
struct Broken(#[source] std::io::Error);

fn main() -> ExitCode {
    let args = Args::parse();
    let mut problems = Problems::default();
    let common = args.common.check(&mut problems);
    let tick = problems.duration("--tick", &args.tick, Duration::from_millis(1)..=Duration::from_secs(60));
    match problems.finish(|| Some((common?, tick?))) {
        Err(problems) => exit::usage("ticker", &problems),
        Ok((common, tick)) => run("ticker", &common, move |supervisor| start(supervisor, tick, args.defect)),
    }
}

async fn start(supervisor: Supervisor, tick: Duration, defect: String) -> Result<(), Broken> {
    match defect.as_str() {
        "start" => return Err(Broken(std::io::Error::other("metal fatigue"))),
        "wait" => std::future::pending().await,
        _ => {}
    }
    let token = supervisor.token(Stage::Work);
    supervisor.spawn(Stage::Work, "ticker", async move {
        while token.run_until_cancelled(tokio::time::sleep(tick)).await.is_some() {
            match defect.as_str() {
                "fail" => return Err(Broken(std::io::Error::other("metal fatigue"))),
                "panic" => panic!("the spring jumped out"),
                _ => tracing::info!("tick"),
            }
        }
        if defect == "hang" {
            // Blocks a worker on purpose: the worst a task can do.
            std::thread::sleep(Duration::from_secs(3600));
        }
        Ok(())
    });
    Ok(())
}
