//! Wiring: each command as the one task of the process, and its closing words.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;

use muster_service::config::Common;
use muster_service::life::{Life, Stage};
use muster_service::run::run;
use serde::Serialize;

use crate::chaos::{self, Summary};
use crate::config::{self, Cli, LOG_DEFAULT, Settings};
use crate::{carrier, closing, demo, error, lab, places};

const NAME: &str = "muster-simulator";
/// What is logged while a picture is drawn on the same terminal.
const LOG_BESIDE_A_PICTURE: &str = "error";

/// How a run that came to its end was not a success.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The simulation itself.
    #[error("the run could not be played to its end; play it again with {again}")]
    Simulation {
        /// The command, or the option, that repeats the faults.
        again: String,
        /// What went wrong.
        #[source]
        source: Box<error::Error>,
    },
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
    /// What was tried did not hold.
    #[error(
        "{count} things are not as they must be; play it again with `{replay}`, and see the logs in {logs}"
    )]
    NotHeld {
        /// Differences told.
        count: usize,
        /// The command that plays it again.
        replay: String,
        /// Where the logs are.
        logs: String,
    },
    /// The closing words.
    #[error("the closing words could not be written")]
    Output(#[source] std::io::Error),
}

/// The whole of `main`.
pub fn main() -> ExitCode {
    let cli: Cli = muster_service::config::parse();
    let programs = places::own_directory().unwrap_or_default();
    match cli.check(fastrand::u64(..), programs) {
        Ok(settings) => {
            let common = quiet_beside_a_picture(&settings);
            run(NAME, &common, move |life| start(settings, life))
        }
        Err(problems) => muster_service::exit::usage(NAME, &problems),
    }
}

/// The settings of the log. Beside a picture that is drawn over it only says what went wrong, unless it was asked for.
fn quiet_beside_a_picture(settings: &Settings) -> Common {
    let mut common = settings.common().clone();
    let Settings::Demo(config) = settings else { return common };
    let drawn = !config.json && std::io::stdout().is_terminal();
    if drawn && common.log_filter == LOG_DEFAULT {
        common.log_filter = LOG_BESIDE_A_PICTURE.to_owned();
        let config::demo::Config { devices, sites, seed, .. } = config;
        // Standard error may be closed; then nobody waits for the picture either.
        let _ = writeln!(std::io::stderr(), "starting {devices} devices at {sites} sites; seed {seed}");
    }
    common
}

async fn start(settings: Settings, life: Life) -> Result<(), error::Error> {
    let whole = life.clone();
    match settings {
        Settings::Demo(config) => life.spawn(Stage::Intake, "demo", async move {
            let ended = show(&config, &whole).await;
            whole.stop();
            ended
        }),
        Settings::Chaos(config) => life.spawn(Stage::Intake, "chaos", async move {
            let ended = try_out(&config, &whole).await;
            whole.stop();
            ended
        }),
        Settings::Link(config) => carrier::start(config, life).await?,
        Settings::Prepare(config) => {
            lab::prepare::run_once(&config).await?;
            life.stop();
        }
        Settings::Admit(config) => lab::admit::start(config, life).await?,
    }
    Ok(())
}

async fn show(config: &config::demo::Config, life: &Life) -> Result<(), Failure> {
    let stop = life.stop_token();
    let seed = config.seed;
    tracing::info!(seed, devices = config.devices, sites = config.sites, "starting a fleet");
    let tally = match demo::run(config, &stop).await {
        Ok(tally) => tally,
        // Whoever asks for the end while the fleet starts does not ask why it is not up.
        Err(_) if stop.is_cancelled() => return Ok(()),
        Err(source) => {
            let again = format!("--seed {seed}");
            return Err(Failure::Simulation { again, source: Box::new(source) });
        }
    };
    if config.json {
        print_json(&tally)?;
    } else {
        print(&closing::words(&tally))?;
    }
    if tally.converged || stop.is_cancelled() {
        return Ok(());
    }
    let logs = config.stage.dir.join("logs").display().to_string();
    Err(Failure::NotConverged { missing: tally.accounting.missing, seed, logs })
}

async fn try_out(config: &config::chaos::Config, life: &Life) -> Result<(), Failure> {
    let stop = life.stop_token();
    let seed = config.seed;
    tracing::info!(seed, agents = config.agents, sites = config.sites, length = ?config.length, "starting a trial");
    let summary = match chaos::run(config, &stop).await {
        Ok(summary) => summary,
        // As above.
        Err(_) if stop.is_cancelled() => return Ok(()),
        Err(source) => {
            let again = format!("`{}`", config.replay());
            return Err(Failure::Simulation { again, source: Box::new(source) });
        }
    };
    if config.json {
        print_json(&summary)?;
    } else {
        print(&summary)?;
    }
    let Summary { held, cut_short, differences, replay, logs, .. } = summary;
    if held || cut_short {
        return Ok(());
    }
    Err(Failure::NotHeld { count: differences.len(), replay, logs })
}

fn print_json(closing: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(closing).map_err(|error| Failure::Output(error.into()))?;
    print(&format_args!("{text}\n"))
}

fn print(text: &impl Display) -> Result<(), Failure> {
    write!(std::io::stdout().lock(), "{text}").map_err(Failure::Output)
}
