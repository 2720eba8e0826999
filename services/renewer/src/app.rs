//! Wires the renewer's tasks and drains them in order: first the round under way, then the reports of its incidents.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use muster_bus::{Bus, BusConfig, IncidentReporter, LinkHealth};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::supervisor::{Stage, Supervisor};
use tokio_util::sync::CancellationToken;

use crate::config::{Cli, Config};
use crate::error::StartError;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::renew::Renewer;

const NAME: &str = "muster-renewer";

/// Runs the renewer until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => muster_service::run(NAME, &config.common.clone(), |supervisor| async move {
            start(config, &supervisor).await
        }),
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the renewer's tasks under a supervisor; returns its metrics.
///
/// # Errors
/// Why it cannot run; a person must act.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Metrics, StartError> {
    let Config { common, keys, every } = config;
    let connected = supervisor.health().latch("the directory of keys and the hub");
    let metrics = Metrics::register(supervisor.health());
    // An unusable directory fails the start, not the first round.
    let dir = keys.clone();
    tokio::task::spawn_blocking(move || Keys::open(&dir)).await.map_err(|_| StartError::Stopped)??;
    let bus = BusConfig {
        creds: common.creds,
        tls_ca: common.tls_ca,
        ..BusConfig::service(common.nats_url.as_str(), NAME)
    };
    // The caller drops an interrupted start, so this one needs no token.
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    LinkHealth::register(supervisor.health()).follow(&bus);
    connected.release();
    let (incidents, requests) = IncidentReporter::new();
    let requesting = requests.run(bus.clone(), supervisor.token(Stage::Publish));
    supervisor.spawn(Stage::Publish, "incidents", requesting);
    let clock = Arc::new(SystemClock);
    let reported = BTreeSet::new();
    let renewer = Renewer { bus, keys, every, clock, metrics: metrics.clone(), incidents, reported };
    supervisor.spawn(Stage::Intake, "renew", renewer.run(supervisor.token(Stage::Intake)));
    Ok(metrics)
}
