//! Wires the planner: one task, which finishes the rollout at hand when it is asked to stop.

use std::process::ExitCode;
use std::sync::Arc;

use muster_bus::{Bus, BusConfig, LinkHealth};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::supervisor::{Stage, Supervisor};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::asker::Asker;
use crate::config::{Cli, Config};
use crate::error::StartError;
use crate::ledger::BusLedger;
use crate::metrics::Metrics;
use crate::planner::Planner;
use crate::plans::{PlansKeeper, PlansLog, PlansResponder};
use crate::services::Services;
use crate::webhook::Webhooks;

const NAME: &str = "muster-planner";
/// Requests about plans that wait for the keeper.
const CALLS_WAITING_MAX: usize = 256;

/// Runs the planner until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => muster_service::run(NAME, &config.common.clone(), |supervisor| async move {
            start(config, &supervisor).await
        }),
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the planner under a supervisor; returns its metrics. The planner is ready once it has read LEDGER and judged every
/// rollout.
///
/// # Errors
/// Why it cannot run; a person must act.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Metrics, StartError> {
    let Config { common, every, webhooks, plans_creds } = config;
    let webhooks = Webhooks::new(webhooks)?;
    let ready = supervisor.health().latch("LEDGER, read to its end, and a judgement of every rollout");
    let metrics = Metrics::register(supervisor.health());
    let bus = BusConfig {
        creds: common.creds,
        tls_ca: common.tls_ca,
        ..BusConfig::service(common.nats_url.as_str(), NAME)
    };
    let is_open = bus.creds.is_none();
    let config_of_plans = BusConfig { creds: plans_creds.clone(), ..bus.clone() };
    // The caller drops an interrupted start, so this one needs no token.
    let bus = Bus::connect(bus, &CancellationToken::new()).await?;
    LinkHealth::register(supervisor.health()).follow(&bus);
    // On a server without rights one connection is enough.
    if is_open || plans_creds.is_some() {
        keep_plans(config_of_plans, &bus, supervisor, &metrics).await?;
    } else {
        tracing::info!("keeps no plans: --plans-creds names no credentials of the role scheduler");
    }
    let (services, asker) = (Services::new(bus.clone()), Asker::new(bus.clone(), webhooks));
    let planner = Planner::new(services, asker, BusLedger::open(bus), Arc::new(SystemClock), metrics.clone())
        .with_health(supervisor.health());
    supervisor.spawn(Stage::Intake, "plan", planner.run(every, ready, supervisor.token(Stage::Intake)));
    Ok(metrics)
}

/// Keeps plans over a connection of its own.
async fn keep_plans(
    config: BusConfig,
    publisher: &Bus,
    supervisor: &Supervisor,
    metrics: &Metrics,
) -> Result<(), StartError> {
    let (read, offered) = (
        supervisor.health().latch("PLANS, read to its end"),
        supervisor.health().latch("requests about plans"),
    );
    let bus = Bus::connect(config, &CancellationToken::new()).await?;
    bus.converge_plans().await?;
    let (calls, waiting) = mpsc::channel(CALLS_WAITING_MAX);
    let keeper = PlansKeeper::new(
        PlansLog::open(bus.clone()),
        BusLedger::open(publisher.clone()),
        Services::new(publisher.clone()),
        Arc::new(SystemClock),
        metrics.clone(),
    );
    supervisor.spawn(Stage::Intake, "plans", keeper.run(waiting, read, supervisor.token(Stage::Intake)));
    let responder = PlansResponder::new(calls);
    let stop = supervisor.token(Stage::Intake);
    supervisor.spawn(Stage::Intake, "requests about plans", responder.serve(bus, offered, stop));
    Ok(())
}
