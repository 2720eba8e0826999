//! Wires the federation and orders its shutdown: it stops reading hubs, writes the last views, then answers the
//! remaining questions.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use fastrand::Rng;
use muster_bus::{Bus, BusConfig, Keeper, KeeperMetrics, LinkHealth, MirrorSettings, ReadError};
use muster_contract::HubName;
use muster_contract::parts::{HUBS_KEY, HubList};
use muster_contract::subjects::ViewKey;
use muster_contract::subjects::stream::LEDGER;
use muster_domain::fold::Merge;
use muster_notify::metrics::NotifyMetrics;
use muster_notify::{Notifier, SharedRegister, SubscriptionHandler};
use muster_service::clock::SystemClock;
use muster_service::exit;
use muster_service::health::{Health, Latch};
use muster_service::supervisor::{Stage, Supervisor};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::config::{Cli, Config, NAME};
use crate::error::StartError;
use crate::handler::QueryHandler;
use crate::hub::{Hub, Line};
use crate::merged::Merged;
use crate::metrics::Metrics;
use crate::notices::HubsSource;
use crate::write::Writer;

/// The part of `/ready` that names the hubs that are heard.
const PART: &str = "hubs";

/// A federation that runs.
#[derive(Debug)]
pub struct Handle {
    /// The merged state of all hubs.
    pub merged: Arc<Merged>,
    /// The federation's metrics.
    pub metrics: Metrics,
}

/// Runs the federation until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => muster_service::run(NAME, &config.common.clone(), |supervisor| async move {
            start(config, &supervisor).await
        }),
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the federation under a supervisor. It is ready once every hub was read and questions are answered.
///
/// # Errors
/// An obstacle that an operator must remove.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Handle, StartError> {
    let whole = supervisor.health().latch("every hub, read once");
    let offered = supervisor.health().latch("answering questions");
    let metrics = Metrics::register(supervisor.health());
    let top = BusConfig {
        creds: config.common.creds,
        tls_ca: config.common.tls_ca,
        ..BusConfig::service(config.common.nats_url.as_str(), NAME)
    };
    if let Some(creds) = &config.readers_creds {
        let made = supervisor.health().latch("the mirror for people, made");
        let metrics = KeeperMetrics::register(supervisor.health());
        let keeper = Keeper::new(&top, creds, MirrorSettings::default(), metrics).of_views();
        supervisor.spawn(Stage::Serve, "mirror", keeper.run(made, supervisor.token(Stage::Serve)));
    }
    let top = Bus::connect(top, &supervisor.stop_token()).await?;
    LinkHealth::register(supervisor.health()).follow(&top);
    top.converge_top().await?;
    refuse_a_hub(&top).await?;

    let merged = Arc::new(Merged::new(config.hubs.keys().cloned(), config.timing.lease));
    metrics.hubs.set(config.hubs.len() as i64);
    let mut lines: BTreeMap<HubName, Line> = BTreeMap::new();
    for (name, at) in config.hubs {
        let hub =
            Hub::new(name.clone(), at, config.timing, merged.clone(), metrics.clone(), Arc::new(SystemClock));
        lines.insert(name.clone(), hub.line());
        supervisor.spawn(Stage::Intake, format!("hub {name}"), hub.run(supervisor.token(Stage::Intake)));
    }
    let health = supervisor.health().clone();
    supervisor.spawn(
        Stage::Intake,
        "leases",
        keep_leases(merged.clone(), health, metrics.clone(), supervisor.token(Stage::Intake)),
    );
    supervisor.spawn(
        Stage::Intake,
        "start of hubs",
        release(merged.clone(), whole, supervisor.token(Stage::Intake)),
    );
    let writer = Writer::new(
        top.clone(),
        merged.clone(),
        config.timing,
        Arc::new(SystemClock),
        metrics.clone(),
        Rng::new(),
    );
    supervisor.spawn(Stage::Publish, "views", writer.run(supervisor.token(Stage::Publish)));
    let desk = QueryHandler::new(merged.clone(), lines, metrics.clone());
    notify(&top, HubsSource::new(merged.clone(), desk.clone()), supervisor);
    supervisor.spawn(Stage::Serve, "queries", desk.serve(top, offered, supervisor.token(Stage::Serve)));
    Ok(Handle { merged, metrics })
}

/// Starts the notifier of the top and its request handler.
fn notify(top: &Bus, source: HubsSource, tasks: &Supervisor) {
    let offered = tasks.health().latch("taking subscriptions");
    let (source, register) = (Arc::new(source), SharedRegister::default());
    let metrics = NotifyMetrics::register(tasks.health(), &register);
    let notifier = Notifier::new(top.clone(), source.clone(), register.clone(), metrics, Rng::new());
    tasks.spawn(Stage::Publish, "notices", notifier.run(tasks.token(Stage::Publish)));
    let handler = SubscriptionHandler::new(top.clone(), source, register);
    tasks.spawn(Stage::Serve, "subscriptions", handler.serve(offered, tasks.token(Stage::Serve)));
}

/// Refuses a top that is a hub: a server with a LEDGER, or with views that no federation wrote. A federation
/// writes its list of hubs before any other view.
async fn refuse_a_hub(top: &Bus) -> Result<(), StartError> {
    match top.stream_state(LEDGER).await {
        Ok(_) => return Err(StartError::IsHub),
        Err(ReadError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let there = async |key: &str| Ok::<_, ReadError>(top.view_get(key).await?.is_some());
    if there(&ViewKey::Fleet.to_string()).await? && !there(HUBS_KEY).await? {
        Err(StartError::IsHub)
    } else {
        Ok(())
    }
}

async fn release(merged: Arc<Merged>, whole: Latch, stop: CancellationToken) {
    let mut read = merged.whole();
    // Ends with an error only when the sender is gone, and this task holds it.
    if let Some(Ok(_)) = stop.run_until_cancelled(read.wait_for(|whole| *whole)).await {
        tracing::info!("read every hub");
        whole.release();
    }
}

/// Has the devices of hubs that are silent for too long count as stale, and says which hubs are heard.
async fn keep_leases(merged: Arc<Merged>, health: Health, metrics: Metrics, stop: CancellationToken) {
    let keep = async {
        let mut changes = merged.changes();
        let mut told = None;
        loop {
            changes.mark_unchanged();
            let (silent, next) = merged.expire(Instant::now());
            for hub in silent {
                tracing::warn!(%hub, "a hub is silent beyond its lease: its devices count as stale");
            }
            let hubs = merged.read_merge(Merge::hub_list);
            metrics.hubs_heard.set(hubs.hubs.iter().filter(|hub| hub.heard).count() as i64);
            let words = words(&hubs);
            if told.as_ref() != Some(&words) {
                health.note(PART, words.clone());
                told = Some(words);
            }
            let end = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end => {}
                // Ends with an error only when the merged is gone, and this task holds it.
                _ = changes.changed() => {}
            }
        }
    };
    stop.run_until_cancelled(keep).await;
}

fn words(view: &HubList) -> String {
    let of = |heard: bool| {
        let names = view.hubs.iter().filter(|hub| hub.heard == heard).map(|hub| hub.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    match (of(true), of(false)) {
        (heard, silent) if silent.is_empty() => format!("{heard} heard"),
        (heard, silent) if heard.is_empty() => format!("{silent} not heard"),
        (heard, silent) => format!("{heard} heard; {silent} not heard"),
    }
}
