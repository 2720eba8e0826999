//! Runs each command as a task of the process, and prints its result.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;

use muster_service::config::Common;
use muster_service::run::run;
use muster_service::supervisor::{Stage, Supervisor};
use serde::Serialize;

use crate::chaos::{self, Summary};
use crate::config::log::LOG_DEFAULT;
use crate::config::{self, Cli, Settings};
use crate::{demo, error, lab, line_cuts, link_proxy, result_text, run_paths};

const NAME: &str = "muster-simulator";
/// The log filter while a screen is drawn on the same terminal.
const LOG_BESIDE_A_PICTURE: &str = "error";

/// How a run that came to its end was not a success.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The simulation itself.
    #[error("the run could not be played to its end; play it again with {again}")]
    Simulation {
        /// The command, or the option, that repeats the faults.
        again: String,
        /// The error.
        #[source]
        source: Box<error::Error>,
    },
    /// The demo did not converge in time.
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
    /// A check of the run failed.
    #[error(
        "{count} things are not as they must be; play it again with `{replay}`, and see the logs in {logs}"
    )]
    NotHeld {
        /// Number of differences.
        count: usize,
        /// The command that plays it again.
        replay: String,
        /// Where the logs are.
        logs: String,
    },
    /// The result cannot be written.
    #[error("cannot write the result to standard output")]
    Output(#[source] std::io::Error),
}

/// The whole of `main`.
pub fn main() -> ExitCode {
    let cli: Cli = muster_service::config::parse();
    let programs = run_paths::own_directory().unwrap_or_default();
    match cli.check(fastrand::u64(..), programs) {
        Ok(settings) => {
            let common = quiet_beside_a_picture(&settings);
            run(NAME, &common, move |supervisor| start(settings, supervisor))
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
        let config::demo::DemoConfig { devices, sites, seed, .. } = config;
        // Standard error may be closed; then nobody waits for the picture either.
        let _ = writeln!(std::io::stderr(), "starting {devices} devices at {sites} sites; seed {seed}");
    }
    common
}

async fn start(settings: Settings, supervisor: Supervisor) -> Result<(), error::Error> {
    let whole = supervisor.clone();
    match settings {
        Settings::Demo(config) => supervisor.spawn(Stage::Intake, "demo", async move {
            let ended = show(&config, &whole).await;
            whole.stop();
            ended
        }),
        Settings::Chaos(config) => supervisor.spawn(Stage::Intake, "chaos", async move {
            let ended = try_out(&config, &whole).await;
            whole.stop();
            ended
        }),
        Settings::Link(config) => link_proxy::start(config, supervisor).await?,
        Settings::Cut(config) => {
            let client = line_cuts::apply(&config.client, config.is_cut, &config.dir).await?;
            tracing::info!(link.client = %client, link.cut = config.is_cut, "changed cut: the link applies it within a second");
            supervisor.stop();
        }
        Settings::Prepare(config) => {
            lab::prepare::run_once(&config).await?;
            supervisor.stop();
        }
        Settings::Admit(config) => lab::admit::start(config, supervisor).await?,
    }
    Ok(())
}

async fn show(config: &config::demo::DemoConfig, supervisor: &Supervisor) -> Result<(), Failure> {
    let stop = supervisor.stop_token();
    let seed = config.seed;
    tracing::info!(seed, devices = config.devices, sites = config.sites, "starting a fleet");
    let result = match demo::run(config, &stop).await {
        Ok(result) => result,
        // If the operator stops the start of the fleet, its failure is not reported.
        Err(_) if stop.is_cancelled() => return Ok(()),
        Err(source) => {
            let again = format!("--seed {seed}");
            return Err(Failure::Simulation { again, source: Box::new(source) });
        }
    };
    if config.json {
        print_json(&result)?;
    } else {
        print(&result_text::text(&result))?;
    }
    if result.converged || stop.is_cancelled() {
        return Ok(());
    }
    let logs = config.location.dir.join("logs").display().to_string();
    Err(Failure::NotConverged { missing: result.accounting.missing, seed, logs })
}

async fn try_out(config: &config::chaos::ChaosConfig, supervisor: &Supervisor) -> Result<(), Failure> {
    let stop = supervisor.stop_token();
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
    let Summary { held, cut_short, violations, replay, logs, .. } = summary;
    if held || cut_short {
        return Ok(());
    }
    Err(Failure::NotHeld { count: violations.len(), replay, logs })
}

fn print_json(result_text: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(result_text).map_err(|error| Failure::Output(error.into()))?;
    print(&format_args!("{text}\n"))
}

fn print(text: &impl Display) -> Result<(), Failure> {
    write!(std::io::stdout().lock(), "{text}").map_err(Failure::Output)
}
