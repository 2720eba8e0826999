//! Wiring, and the order of the drain: the round under way is finished, then its incidents are requested.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use fastrand::Rng;
use muster_bus::{Bus, BusConfig, IncidentReporter, LinkHealth};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::life::{Life, Stage};
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
        Ok(config) => {
            muster_service::run(
                NAME,
                &config.common.clone(),
                |life| async move { start(config, &life).await },
            )
        }
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the renewer within a life; what it counts.
///
/// # Errors
/// Why it cannot run, for a person to mend.
pub async fn start(config: Config, life: &Life) -> Result<Metrics, StartError> {
    let Config { common, keys, every } = config;
    let connected = life.health().latch("the directory of keys and the hub");
    let metrics = Metrics::register(life.health());
    // A directory that cannot be used is said at the start, not a minute later.
    let dir = keys.clone();
    tokio::task::spawn_blocking(move || Keys::open(&dir)).await.map_err(|_| StartError::Stopped)??;
    let bus = BusConfig {
        creds: common.creds,
        tls_ca: common.tls_ca,
        ..BusConfig::service(common.nats_url.as_str(), NAME)
    };
    // A start that is interrupted is dropped by its caller, which is no failure; so nothing here asks it to stop.
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    LinkHealth::register(life.health()).follow(&bus);
    connected.release();
    let (incidents, requests) = IncidentReporter::new();
    let requesting = requests.run(bus.clone(), Rng::new(), life.token(Stage::Publish));
    life.spawn(Stage::Publish, "incidents", requesting);
    let clock = Arc::new(SystemClock);
    let reported = BTreeSet::new();
    let renewer = Renewer { bus, keys, every, clock, metrics: metrics.clone(), incidents, reported };
    life.spawn(Stage::Intake, "renew", renewer.run(life.token(Stage::Intake)));
    Ok(metrics)
}
