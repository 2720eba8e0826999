//! Wiring, and the order of the drain: first nothing more is read, then views and snapshot say what was read last, and
//! questions are answered to the end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{
    Bus, BusConfig, IncidentReporter, Keeper, KeeperMetrics, LinkHealth, MirrorSettings, ReadError,
    StreamState,
};
use muster_contract::Timestamp;
use muster_contract::incident::IncidentKind;
use muster_contract::subjects::stream;
use muster_domain::fold::Fleet;
use muster_service::backoff::FullJitter;
use muster_service::clock::{Clock, SystemClock};
use muster_service::error::chain;
use muster_service::exit;
use muster_service::life::{Life, Stage};

use crate::config::{Cli, Config, Readers};
use crate::consume::Consumer;
use crate::define::Definer;
use crate::definitions::Definitions;
use crate::error::StartError;
use crate::history::archive::Archive;
use crate::history::point::Points;
use crate::history::store::Checkpoints;
use crate::history::thinning::Room;
use crate::history::{self, recall};
use crate::incidents::HubIncidents;
use crate::lag::LagState;
use crate::metrics::Metrics;
use crate::monitor::Monitor;
use crate::notify::desk::NotifyDesk;
use crate::notify::metrics::NotifyMetrics;
use crate::notify::{Notifier, SharedRegister};
use crate::present::Present;
use crate::publish::Publisher;
use crate::query::{Actions, Desk, History, Manifests};
use crate::snapshot::Snapshots;
use crate::store::{Damage, Found, Store, StoreError};

const NAME: &str = "muster-rollup";
/// Least and longest upper bound of the delay before LEDGER is looked for again.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// See [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_secs(5);

/// A rollup that runs.
#[derive(Debug)]
pub struct Handle {
    /// What it knows.
    pub present: Arc<Present>,
    /// What it counts.
    pub metrics: Metrics,
    /// What it counts of notices.
    pub notices: NotifyMetrics,
}

/// Runs the rollup until it is asked to stop.
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

/// Starts the rollup within a life. It is ready once it has read what LEDGER held at the start and answers questions.
///
/// # Errors
/// Why it cannot run, for a person to mend.
pub async fn start(config: Config, life: &Life) -> Result<Handle, StartError> {
    let caught_up = life.health().latch("LEDGER, read to its end");
    let offered = life.health().latch("answering questions");
    let defining = life.health().latch("taking definitions of views");
    let metrics = Metrics::register(life.health());
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
        keep_mirrors(&readers, &bus, life);
    }
    let bus = Bus::connect(bus, &life.stop_token()).await?;
    LinkHealth::register(life.health()).follow(&bus);
    bus.converge_streams().await?;
    let (incidents, requests) = IncidentReporter::new();
    life.spawn(
        Stage::Publish,
        "incidents",
        requests.run(bus.clone(), Rng::new(), life.token(Stage::Publish)),
    );
    let ledger = ledger_state(&bus).await;
    let created_at = ledger.created_at;
    let (store, fleet) = begin_with(store, found, &ledger, &incidents)?;
    let present = Arc::new(Present::new(created_at, fleet));
    let checkpoints = open_checkpoints(config.data_dir, created_at, config.room).await?;
    let archive = Arc::new(Archive::new(checkpoints, present.look(|now| now.origin)));

    // Before anything is read: what the store holds is what the present is now.
    let cadences = [config.cadence, config.checkpoints];
    let snapshots = Snapshots::new(present.clone(), store, archive.clone(), cadences, metrics.clone());

    let consumer =
        Consumer::new(bus.clone(), present.clone(), metrics.clone(), incidents.clone(), Rng::new());
    life.spawn(Stage::Intake, "consume", consumer.run(caught_up, life.token(Stage::Intake)));
    let definitions = Definitions::new(bus.clone(), present.clone(), Rng::new());
    life.spawn(Stage::Intake, "definitions", definitions.run(life.token(Stage::Intake)));
    let lag = Arc::new(LagState::new(SystemClock.now()));
    let monitor = Monitor::new(bus.clone(), present.clone(), lag.clone(), metrics.clone(), Rng::new());
    life.spawn(Stage::Intake, "hearing of the hub", monitor.run(life.token(Stage::Intake)));
    let publisher =
        Publisher::new(bus.clone(), present.clone(), metrics.clone(), incidents.clone(), Rng::new())
            .vouching(lag.clone());
    life.spawn(Stage::Publish, "views", publisher.run(life.token(Stage::Publish)));
    life.spawn(Stage::Publish, "snapshots", snapshots.run(life.token(Stage::Publish)));
    let definer = Definer::new(bus.clone(), Arc::new(SystemClock));
    life.spawn(Stage::Serve, "view requests", definer.serve(defining, life.token(Stage::Serve)));
    answer_incidents(&bus, &present, &lag, life);
    let notices = notify(&bus, &present, life);
    let (recall, maker) =
        recall::pair(bus.clone(), present.clone(), archive, metrics.clone(), config.checkpoints.facts);
    life.spawn(Stage::Serve, "history", maker.run(life.token(Stage::Serve), life.token(Stage::Intake)));
    let points = Points::new(bus.clone(), present.clone(), Arc::new(SystemClock));
    let manifests = Manifests::new(bus.clone(), present.clone());
    let actions = Actions::new(bus.clone(), present.clone(), points.clone());
    life.spawn(Stage::Serve, "actions", actions.clone().tidy(life.token(Stage::Serve)));
    let desk = Desk::new(present.clone(), metrics.clone())
        .with_lag(lag)
        .with_history(History::new(points, recall))
        .with_manifests(manifests)
        .with_actions(actions);
    life.spawn(Stage::Serve, "queries", desk.serve(bus, offered, life.token(Stage::Serve)));
    Ok(Handle { present, metrics, notices })
}

/// Keeps the mirrors that people read.
fn keep_mirrors(readers: &Readers, own: &BusConfig, life: &Life) {
    let made = life.health().latch("the mirrors for people, made");
    let settings = MirrorSettings { tag: readers.tag.clone(), replicas: own.replicas };
    let keeper = Keeper::new(own, &readers.creds, settings, KeeperMetrics::register(life.health()));
    life.spawn(Stage::Serve, "mirrors", keeper.run(made, life.token(Stage::Serve)));
}

/// Follows the incidents of the hub, and answers questions about them.
fn answer_incidents(bus: &Bus, present: &Arc<Present>, lag: &Arc<LagState>, life: &Life) {
    let offered_incidents = life.health().latch("answering questions about incidents");
    let hub_incidents = HubIncidents::new(bus.clone(), present.clone(), Arc::new(SystemClock), lag.clone());
    life.spawn(
        Stage::Intake,
        "incidents of the hub",
        hub_incidents.clone().follow(life.token(Stage::Intake)),
    );
    let answering = hub_incidents.serve(offered_incidents, life.token(Stage::Serve));
    life.spawn(Stage::Serve, "questions about incidents", answering);
}

/// Tells subscribers, and takes their requests.
fn notify(bus: &Bus, present: &Arc<Present>, life: &Life) -> NotifyMetrics {
    let offered = life.health().latch("taking subscriptions");
    let (register, metrics) = (SharedRegister::default(), NotifyMetrics::register(life.health()));
    let notifier = Notifier::new(bus.clone(), present.clone(), register.clone(), metrics.clone(), Rng::new());
    life.spawn(Stage::Publish, "notices", notifier.run(life.token(Stage::Publish)));
    let desk = NotifyDesk::new(bus.clone(), present.clone(), register);
    life.spawn(Stage::Serve, "subscriptions", desk.serve(offered, life.token(Stage::Serve)));
    metrics
}

/// Opens the store where it may block. For a rebuild, what was there is set aside.
async fn open(directory: PathBuf, rebuild: bool) -> Result<(Store, Found), StartError> {
    let opening = move || {
        if rebuild && let Some(aside) = history::store::set_aside(&directory)? {
            tracing::info!(aside = %aside.display(), "rebuild: the checkpoints are set aside");
        }
        match Store::open(&directory)? {
            (store, Found::Snapshot { .. }) if rebuild => {
                let (store, aside) = store.set_aside()?;
                tracing::info!(aside = %aside.display(), "rebuild: the snapshot is set aside");
                Ok((store, Found::Nothing))
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
    found: Found,
    ledger: &StreamState,
    incidents: &IncidentReporter,
) -> Result<(Store, Fleet), StartError> {
    let created_at = ledger.created_at;
    match found {
        Found::Nothing => {
            tracing::info!(path = %store.path().display(), "no snapshot yet: reading LEDGER from its start");
            Ok((store, Fleet::default()))
        }
        Found::SetAside { damage, to } => {
            warn_of(&damage, &to);
            Ok((store, Fleet::default()))
        }
        Found::Snapshot { created_at: of, fleet } if of != created_at => {
            incidents.report(None, replaced((of, fleet.as_of().ledger_seq), ledger));
            let (store, to) = store.set_aside()?;
            warn_of(&Damage::OtherLedger { of, now: created_at }, &to);
            Ok((store, Fleet::default()))
        }
        Found::Snapshot { fleet, .. } => {
            let (ledger_seq, devices) = (fleet.as_of().ledger_seq, fleet.devices_known());
            tracing::info!(ledger.seq = ledger_seq, devices, "going on from the snapshot");
            Ok((store, *fleet))
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

/// The incident of a LEDGER that takes the place of another, which was created and known up to this.
pub(crate) const fn replaced(
    (known_created_at, known_seq): (Timestamp, u64),
    ledger: &StreamState,
) -> IncidentKind {
    let StreamState { created_at, last_seq, .. } = *ledger;
    IncidentKind::LedgerReplaced { known_created_at, known_seq, created_at, last_seq }
}

/// The state of LEDGER, as soon as that can be known.
async fn ledger_state(bus: &Bus) -> StreamState {
    let (mut retry, mut chance) = (FullJitter::new(LOOK_MIN, LOOK_MAX), Rng::new());
    loop {
        let error: ReadError = match bus.stream_state(stream::LEDGER).await {
            Ok(state) => return state,
            Err(error) => error,
        };
        let retry_in = retry.next(&mut chance);
        tracing::warn!(error = chain(&error), ?retry_in, "cannot see LEDGER yet");
        tokio::time::sleep(retry_in).await;
    }
}
