//! Wiring: the demo as the one task of the process, and its closing words.

use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;

use clap::Parser;
use muster_service::config::Common;
use muster_service::life::{Life, Stage};
use muster_service::run::run;

use crate::config::{Cli, Config, LOG_DEFAULT};
use crate::tally::Tally;
use crate::{closing, demo, error};

/// Exit code for settings that cannot be used, as of every Muster program.
const EXIT_USAGE: u8 = 2;
/// What is logged while a picture is drawn on the same terminal.
const LOG_BESIDE_A_PICTURE: &str = "error";

/// How a demo that ran to its end was not a success.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The simulation itself.
    #[error("the demo could not be played")]
    Simulation(#[source] error::Error),
    /// What it simulated.
    #[error(
        "the fleet did not converge in time: {missing} reports are missing; repeat with --seed {seed}, and see the logs in {logs}"
    )]
    NotConverged {
        /// Reports not in.
        missing: u64,
        /// The seed of the faults.
        seed: u64,
        /// Where the logs are.
        logs: String,
    },
    /// The closing words.
    #[error("the closing object could not be written")]
    Output(#[source] std::io::Error),
}

/// The whole of `main`.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let programs = demo::own_directory().unwrap_or_default();
    match cli.check(fastrand::u64(..), programs) {
        Ok(config) => {
            let common = quiet_beside_a_picture(&config);
            run("muster-simulator", &common, move |life| start(config, life))
        }
        Err(problems) => {
            // Standard error may be closed; the exit code still tells.
            let _ = write!(std::io::stderr(), "muster-simulator: {problems}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// The settings of the log. Beside a picture that is drawn over it only says what went wrong, unless it was asked for.
fn quiet_beside_a_picture(config: &Config) -> Common {
    let mut common = config.common.clone();
    let drawn = !config.json && std::io::stdout().is_terminal();
    if drawn && common.log_filter == LOG_DEFAULT {
        common.log_filter = LOG_BESIDE_A_PICTURE.to_owned();
        let Config { devices, sites, seed, .. } = config;
        // Standard error may be closed; then nobody waits for the picture either.
        let _ = writeln!(std::io::stderr(), "starting {devices} devices at {sites} sites; seed {seed}");
    }
    common
}

async fn start(config: Config, life: Life) -> Result<(), std::convert::Infallible> {
    let whole = life.clone();
    life.spawn(Stage::Intake, "demo", async move {
        let ended = play(&config, &whole).await;
        whole.stop();
        ended
    });
    Ok(())
}

async fn play(config: &Config, life: &Life) -> Result<(), Failure> {
    let stop = life.stop_token();
    tracing::info!(seed = config.seed, devices = config.devices, sites = config.sites, "starting a fleet");
    let tally = match demo::run(config, &stop).await {
        Ok(tally) => tally,
        // Whoever asks for the end while the fleet starts does not ask why it is not up.
        Err(_) if stop.is_cancelled() => return Ok(()),
        Err(error) => return Err(Failure::Simulation(error)),
    };
    close(config, &tally).map_err(Failure::Output)?;
    if tally.converged || stop.is_cancelled() {
        return Ok(());
    }
    let logs = config.dir.join("logs").display().to_string();
    Err(Failure::NotConverged { missing: tally.accounting.missing, seed: config.seed, logs })
}

fn close(config: &Config, tally: &Tally) -> std::io::Result<()> {
    if config.json {
        let text = serde_json::to_string(tally)?;
        return writeln!(std::io::stdout().lock(), "{text}");
    }
    write!(std::io::stdout().lock(), "{}", closing::words(tally))
}
