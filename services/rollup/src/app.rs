//! Wires the rollup and orders its shutdown: it stops reading LEDGER, writes the last views and the snapshot,
//! then answers the remaining questions.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use fastrand::Rng;
use muster_bus::{
    Bus, BusConfig, IncidentReporter, Keeper, KeeperMetrics, LinkHealth, MirrorSettings, StreamState,
};
use muster_contract::Timestamp;
use muster_domain::fold::{Fleet, Timeline};
use muster_notify::metrics::NotifyMetrics;
use muster_notify::{Notifier, SharedRegister, SubscriptionHandler};
use muster_service::clock::{Clock, SystemClock};
use muster_service::error::chain;
use muster_service::exit;
use muster_service::supervisor::{Stage, Supervisor};

use crate::config::{Cli, Config, Readers};
use crate::consume::Consumer;
use crate::define::Definer;
use crate::definitions::Definitions;
use crate::error::StartError;
use crate::history::archive::Archive;
use crate::history::checkpoint_retention::Room;
use crate::history::point::Points;
use crate::history::store::Checkpoints;
use crate::history::{self, point_in_time};
use crate::incidents::HubIncidents;
use crate::lag::LagState;
use crate::ledger::{ledger_state, replaced};
use crate::metrics::Metrics;
use crate::monitor::Monitor;
use crate::notices::ProjectionSource;
use crate::projection::Projection;
use crate::publish::Publisher;
use crate::query::{Actions, History, Manifests, QueryHandler};
use crate::restored;
use crate::snapshot::Snapshots;
use crate::store::{Damage, Store, StoreError, StoredSnapshot};

const NAME: &str = "muster-rollup";

/// A rollup that runs.
#[derive(Debug)]
pub struct Handle {
    /// The projection.
    pub projection: Arc<Projection>,
    /// The rollup's metrics.
    pub metrics: Metrics,
    /// The notifier's metrics.
    pub notices: NotifyMetrics,
}

/// Runs the rollup until it is asked to stop.
pub fn main() -> ExitCode {
    match muster_service::config::parse::<Cli>().check() {
        Ok(config) => {
            muster_service::run(
                NAME,
                &config.common.clone(),
                |tasks| async move { start(config, &tasks).await },
            )
        }
        Err(problems) => exit::usage(NAME, &problems),
    }
}

/// Starts the rollup under a supervisor. It is ready once it has read what LEDGER held at the start and answers
/// questions.
///
/// # Errors
/// An obstacle that an operator must remove.
pub async fn start(config: Config, tasks: &Supervisor) -> Result<Handle, StartError> {
    let caught_up = tasks.health().latch("LEDGER, read to its end");
    let offered = tasks.health().latch("answering questions");
    let defining = tasks.health().latch("taking definitions of views");
    let metrics = Metrics::register(tasks.health());
    let (store, found) = open(config.data_dir.clone(), config.rebuild).await?;

    let bus = BusConfig {
        creds: config.common.creds,
        tls_ca: config.common.tls_ca,
        uplink_bytes_max: config.streams.uplink_bytes_max,
        ledger_bytes_max: config.streams.ledger_bytes_max,
        replicas: config.streams.replicas,
        ..BusConfig::service(config.common.nats_url.as_str(), NAME)
    };
    if let Some(readers) = config.readers {
        keep_mirrors(&readers, &bus, tasks);
    }
    let bus = Bus::connect(bus, &tasks.stop_token()).await?;
    LinkHealth::register(tasks.health()).follow(&bus);
    bus.converge_streams().await?;
    let (incidents, requests) = IncidentReporter::new();
    let reporter = requests.run(bus.clone(), tasks.token(Stage::Publish));
    tasks.spawn(Stage::Publish, "incidents", reporter);
    let ledger = ledger_state(&bus).await;
    let created_at = ledger.created_at;
    let (store, fleet, timeline) = begin_with(store, found, &ledger, &incidents)?;
    let projection = Arc::new(Projection::restored(created_at, fleet, timeline));
    let checkpoints = open_checkpoints(config.data_dir, created_at, config.room).await?;
    let archive = Arc::new(Archive::new(checkpoints, projection.read(|now| now.origin)));

    // Before anything is read, the store's content equals the projection.
    let cadences = [config.cadence, config.checkpoints];
    let snapshots = Snapshots::new(projection.clone(), store, archive.clone(), cadences, metrics.clone());

    let consumer = Consumer::new(bus.clone(), projection.clone(), metrics.clone(), incidents.clone());
    tasks.spawn(Stage::Intake, "consume", consumer.run(caught_up, tasks.token(Stage::Intake)));
    let definitions = Definitions::new(bus.clone(), projection.clone());
    tasks.spawn(Stage::Intake, "definitions", definitions.run(tasks.token(Stage::Intake)));
    let lag = Arc::new(LagState::new(SystemClock.now()));
    let monitor = Monitor::new(bus.clone(), projection.clone(), lag.clone(), metrics.clone(), Rng::new());
    tasks.spawn(Stage::Intake, "hearing of the hub", monitor.run(tasks.token(Stage::Intake)));
    let publisher =
        Publisher::new(bus.clone(), projection.clone(), metrics.clone(), incidents.clone(), Rng::new())
            .vouching(lag.clone(), config.view_validity);
    tasks.spawn(Stage::Publish, "views", publisher.run(tasks.token(Stage::Publish)));
    tasks.spawn(Stage::Publish, "snapshots", snapshots.run(tasks.token(Stage::Publish)));
    let definer = Definer::new(bus.clone(), Arc::new(SystemClock));
    tasks.spawn(Stage::Serve, "view requests", definer.serve(defining, tasks.token(Stage::Serve)));
    answer_incidents(&bus, &projection, &lag, tasks);
    let facts = config.checkpoints.facts;
    let (rebuilds, maker) =
        point_in_time::pair(bus.clone(), projection.clone(), archive, metrics.clone(), facts);
    tasks.spawn(Stage::Serve, "history", maker.run(tasks.token(Stage::Serve), tasks.token(Stage::Intake)));
    let source = ProjectionSource::new(bus.clone(), projection.clone(), rebuilds.clone(), lag.clone());
    let notices = notify(&bus, source, tasks);
    let points = Points::new(bus.clone(), projection.clone(), Arc::new(SystemClock));
    let manifests = Manifests::new(bus.clone(), projection.clone());
    let actions = Actions::new(bus.clone(), projection.clone(), points.clone());
    tasks.spawn(Stage::Serve, "actions", actions.clone().tidy(tasks.token(Stage::Serve)));
    let handler = QueryHandler::new(projection.clone(), metrics.clone())
        .with_lag(lag)
        .with_history(History::new(points, rebuilds))
        .with_manifests(manifests)
        .with_actions(actions);
    tasks.spawn(Stage::Serve, "queries", handler.serve(bus, offered, tasks.token(Stage::Serve)));
    Ok(Handle { projection, metrics, notices })
}

/// Keeps the mirrors that people read.
fn keep_mirrors(readers: &Readers, own: &BusConfig, tasks: &Supervisor) {
    let made = tasks.health().latch("the mirrors for people, made");
    let settings = MirrorSettings { tag: readers.tag.clone(), replicas: own.replicas };
    let keeper = Keeper::new(own, &readers.creds, settings, KeeperMetrics::register(tasks.health()));
    tasks.spawn(Stage::Serve, "mirrors", keeper.run(made, tasks.token(Stage::Serve)));
}

/// Follows the incidents of the hub, and answers questions about them.
fn answer_incidents(bus: &Bus, projection: &Arc<Projection>, lag: &Arc<LagState>, tasks: &Supervisor) {
    let offered_incidents = tasks.health().latch("answering questions about incidents");
    let hub_incidents =
        HubIncidents::new(bus.clone(), projection.clone(), Arc::new(SystemClock), lag.clone());
    tasks.spawn(
        Stage::Intake,
        "incidents of the hub",
        hub_incidents.clone().follow(tasks.token(Stage::Intake)),
    );
    let answering = hub_incidents.serve(offered_incidents, tasks.token(Stage::Serve));
    tasks.spawn(Stage::Serve, "questions about incidents", answering);
}

/// Starts the notifier and its request handler.
fn notify(bus: &Bus, source: ProjectionSource, tasks: &Supervisor) -> NotifyMetrics {
    let source = Arc::new(source);
    let offered = tasks.health().latch("taking subscriptions");
    let register = SharedRegister::default();
    let metrics = NotifyMetrics::register(tasks.health(), &register);
    let notifier = Notifier::new(bus.clone(), source.clone(), register.clone(), metrics.clone(), Rng::new());
    tasks.spawn(Stage::Publish, "notices", notifier.run(tasks.token(Stage::Publish)));
    let handler = SubscriptionHandler::new(bus.clone(), source, register);
    tasks.spawn(Stage::Serve, "subscriptions", handler.serve(offered, tasks.token(Stage::Serve)));
    metrics
}

/// Opens the store on a blocking thread. For a rebuild, existing files are set aside.
async fn open(directory: PathBuf, rebuild: bool) -> Result<(Store, StoredSnapshot), StartError> {
    let opening = move || {
        if rebuild && let Some(aside) = history::store::set_aside(&directory)? {
            tracing::info!(aside = %aside.display(), "rebuild: set the checkpoints aside");
        }
        restored::take_over(&directory)?;
        match Store::open(&directory)? {
            (store, StoredSnapshot::Snapshot { .. }) if rebuild => {
                let (store, aside) = store.set_aside()?;
                tracing::info!(aside = %aside.display(), "rebuild: set the snapshot aside");
                Ok((store, StoredSnapshot::Nothing))
            }
            opened => Ok(opened),
        }
    };
    blocking(opening).await
}

async fn open_checkpoints(
    directory: PathBuf,
    created_at: Timestamp,
    room: Room,
) -> Result<Checkpoints, StartError> {
    blocking(move || Checkpoints::open(&directory, created_at, room)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StartError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StartError::Stopped),
    }
}

/// The fold to go on from, and the store that holds it. A snapshot of another LEDGER is set aside.
fn begin_with(
    store: Store,
    found: StoredSnapshot,
    ledger: &StreamState,
    incidents: &IncidentReporter,
) -> Result<(Store, Fleet, Timeline), StartError> {
    let created_at = ledger.created_at;
    match found {
        StoredSnapshot::Nothing => {
            tracing::info!(path = %store.path().display(), "found no snapshot: reading LEDGER from its start");
            Ok((store, Fleet::default(), Timeline::default()))
        }
        StoredSnapshot::SetAside { damage, to } => {
            warn_of(&damage, &to);
            Ok((store, Fleet::default(), Timeline::default()))
        }
        StoredSnapshot::Snapshot { created_at: of, fleet, .. } if of != created_at => {
            incidents.report(None, replaced(of, fleet.as_of().ledger_seq, ledger));
            let (store, to) = store.set_aside()?;
            warn_of(&Damage::OtherLedger { of, now: created_at }, &to);
            Ok((store, Fleet::default(), Timeline::default()))
        }
        StoredSnapshot::Snapshot { fleet, timeline, .. } => {
            let (ledger_seq, devices) = (fleet.as_of().ledger_seq, fleet.devices_known());
            tracing::info!(ledger.seq = ledger_seq, devices, "continuing from the snapshot");
            Ok((store, *fleet, timeline))
        }
    }
}

fn warn_of(damage: &Damage, aside: &Path) {
    tracing::warn!(
        reason = chain(damage),
        aside = %aside.display(),
        "the snapshot is set aside: reading LEDGER from its start"
    );
}
