//! Wires the planner: one task, which finishes the rollout at hand when it is asked to stop, and tasks for plans, for which it
//! does not wait.

use std::process::ExitCode;
use std::sync::Arc;

use muster_bus::{Bus, BusConfig, LinkHealth};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::supervisor::{Stage, Supervisor};
use tokio_util::sync::CancellationToken;

use crate::asker::Asker;
use crate::checkpoint::{self, Checkpoint, Checkpoints};
use crate::config::{Cli, Config};
use crate::error::StartError;
use crate::ledger::BusLedger;
use crate::metrics::Metrics;
use crate::planner::Planner;
use crate::plans;
use crate::services::Services;
use crate::webhook::Webhooks;

const NAME: &str = "muster-planner";

/// Runs the planner until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => muster_service::run(NAME, &config.common.clone(), |supervisor| async move {
            start(config, &supervisor).await
        }),
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the planner under a supervisor; returns its metrics. The planner is ready once it has read LEDGER, judged every
/// rollout, and keeps plans if it shall. Rollouts do not wait for plans.
///
/// # Errors
/// Why it cannot run; a person must act.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Metrics, StartError> {
    let Config { common, every, data_dir, checkpoint_every, webhooks, plans_creds } = config;
    let webhooks = Webhooks::new(webhooks)?;
    let checkpoints = data_dir.map(|folder| {
        Checkpoints::open(&folder, checkpoint_every)
            .map_err(|source| StartError::Folder { path: folder.clone(), source })
    });
    let checkpoints = checkpoints.transpose()?;
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
    let (services, asker) = (Services::new(bus.clone()), Asker::new(bus.clone(), webhooks));
    let restored = checkpoint::restore(checkpoints.clone()).await;
    let resume = checkpoints.clone().zip(restored.as_ref().map(Checkpoint::mark));
    let ledger = BusLedger::resume(bus.clone(), resume);
    let planner = Planner::new(services, asker.clone(), ledger, Arc::new(SystemClock), metrics.clone())
        .with_health(supervisor.health());
    let of_plans = checkpoints.clone();
    let planner = match checkpoints {
        Some(checkpoints) => planner.with_checkpoints(checkpoints, restored),
        None => planner,
    };
    supervisor.spawn(Stage::Intake, "plan", planner.run(every, ready, supervisor.token(Stage::Intake)));
    // A server without rights needs no credentials.
    if is_open || plans_creds.is_some() {
        plans::spawn(config_of_plans, bus, asker, supervisor, metrics.clone(), of_plans);
    } else {
        tracing::info!("keeping no plans: --plans-creds names no credentials of the role scheduler");
    }
    Ok(metrics)
}
