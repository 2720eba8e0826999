//! Wires the agent: creates its shared parts, spawns its tasks, and orders their stop.
//!
//! ```text
//! stage     task        a stop of the stage means
//! intake    schedule    polling hours and downtimes are no longer evaluated
//!           follow      no desired state, receipt or token is accepted any more
//!           device      the capabilities are no longer checked
//!           join        the folder is no longer read
//! work      reconcile   operations are cancelled; workloads keep running, or are stopped with `--on-exit stop`
//!           reports     every queued report is stored
//!           storage     `/ready` no longer follows the storage
//! publish   relay       the remaining reports are sent if that is quick, then a last heartbeat
//! serve     metrics     ends at once: it stores nothing
//!           database    closed last
//! ```
//!
//! The agent starts without a hub: `follow` and `relay` wait for the first connection.

use std::path::PathBuf;
use std::sync::Arc;

use muster_bus::{Bus, BusConfig, LinkHealth};
use muster_contract::Generation;
use muster_service::clock::{Clock, SystemClock};
use muster_service::health::Health;
use muster_service::{Stage, Supervisor};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::capabilities::Probe;
use crate::config::{Config, RuntimeKind};
use crate::connection::ConnectionSupervisor;
use crate::db::{self, Db, Migration, Schema};
use crate::error::{RunError, StartError};
use crate::follow::Follower;
use crate::follow::refusal::CurrentRefusal;
use crate::identity;
use crate::join::Enrolment;
use crate::link_check;
use crate::metrics::{self, Metrics};
use crate::outbox::{self, Outbox, Summary};
use crate::package::PackageStore;
use crate::reconcile::{CurrentDesired, Reconciler, Settings};
use crate::relay::Relay;
use crate::relay::budget::Budget;
use crate::relay::core::RelayCore;
use crate::report_writer::{self, ReportSender, StorageFailure};
use crate::runtime::compose::ComposeRuntime;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::simulated::SimulatedRuntime;
use crate::runtime::{EXITS_WAITING_MAX, Exit, Runtime};
use crate::schedule::{self, SchedulePhase};
use crate::status::StatusFile;
use crate::token::{CurrentToken, TokenMonitor};
use crate::{name, store};

/// The migrations of the database: none, because every release has written the present format.
const MIGRATIONS: [Migration; 0] = [];

/// A running agent.
#[derive(Debug)]
pub struct Handle {
    outbox: Outbox,
    desired: watch::Receiver<CurrentDesired>,
    connected: watch::Receiver<Option<Bus>>,
    phase: watch::Receiver<SchedulePhase>,
}

impl Handle {
    /// The contents of the outbox in numbers.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn outbox(&self) -> Result<Summary, db::Error> {
        self.outbox.summary().await
    }

    /// The generation accepted last; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.desired.borrow().as_ref().map_or(0, |document| document.generation.get())
    }

    /// The phase of the schedule.
    pub fn phase(&self) -> SchedulePhase {
        *self.phase.borrow()
    }

    /// Whether the agent is connected to the hub.
    pub fn is_connected(&self) -> bool {
        self.connected.borrow().as_ref().is_some_and(|bus| bus.link().borrow().is_up())
    }
}

/// The parts that most tasks share.
struct Shared {
    config: Config,
    clock: Arc<dyn Clock>,
    db: Db,
    outbox: Outbox,
    metrics: Metrics,
    accepted: Option<store::AcceptedDesired>,
    refused: watch::Sender<CurrentRefusal>,
    token: watch::Sender<CurrentToken>,
}

/// The parts from which a runtime is created.
pub struct RuntimeParts<'a> {
    /// The checked settings.
    pub config: &'a Config,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The packages of components.
    pub packages: PackageStore,
    /// The channel of unexpected ends.
    pub exits: mpsc::Sender<Exit>,
}

/// Starts an agent. It runs until the supervisor stops it, with or without a hub.
///
/// # Errors
/// The data directory or the database cannot be used.
pub async fn start(config: Config, supervisor: &Supervisor) -> Result<Handle, StartError> {
    start_with_clock(Arc::new(SystemClock), config, supervisor).await
}

/// Starts an agent with another clock than the machine's.
///
/// # Errors
/// The same as [`start`].
pub async fn start_with_clock(
    clock: Arc<dyn Clock>,
    config: Config,
    supervisor: &Supervisor,
) -> Result<Handle, StartError> {
    start_with_runtime(clock, config, supervisor, host_runtime).await
}

/// Starts an agent with the runtime that `runtime` creates, so that a program links only the runtimes that it names.
///
/// # Errors
/// The same as [`start`], or the runtime cannot be created.
pub async fn start_with_runtime(
    clock: Arc<dyn Clock>,
    config: Config,
    supervisor: &Supervisor,
    runtime: impl FnOnce(RuntimeParts<'_>) -> Result<Arc<dyn Runtime>, StartError>,
) -> Result<Handle, StartError> {
    let enrolment = config.join.clone();
    let mut enrolment =
        enrolment.map(|folder| Enrolment::new(folder, config.data_dir.clone(), config.device.clone()));
    if let Some(enrolment) = &mut enrolment {
        // Without a JWT there is nothing to run: the device was never assigned a workload.
        enrolment.enrol().await?;
    }
    let shared = open(clock, config, supervisor).await?;
    if let Some(enrolment) = enrolment {
        supervisor.spawn(Stage::Intake, "join", enrolment.run(supervisor.token(Stage::Intake)));
    }
    let document = shared.accepted.as_ref().and_then(|accepted| accepted.document.clone());
    let (desired, wanted) = watch::channel(document.map(Arc::new));
    let (bus, connected) = watch::channel(None);
    let (receipt_fetched, is_receipt_fetched) = watch::channel(false);
    spawn_storage(&shared, supervisor);
    spawn_token(&shared, supervisor).await;
    let (exits, ended) = mpsc::channel(EXITS_WAITING_MAX);
    let Config { data_dir, packages, .. } = &shared.config;
    let packages = PackageStore::with_hub(data_dir, packages.clone(), connected.clone());
    let parts = RuntimeParts { config: &shared.config, clock: Arc::clone(&shared.clock), packages, exits };
    let runtime = runtime(parts)?;
    let storage_failure = spawn_workloads(&shared, wanted.clone(), runtime, ended, supervisor).await?;
    let phase = spawn_schedule(&shared, supervisor);
    spawn_follower(&shared, desired, connected.clone(), phase.clone(), receipt_fetched, supervisor);
    spawn_relay(&shared, wanted.clone(), storage_failure, bus, phase.clone(), is_receipt_fetched, supervisor);
    tracing::info!(
        device.site = %shared.config.device.site, device.id = %shared.config.device.device,
        db.dir = %shared.config.data_dir.display(), "started the agent"
    );
    Ok(Handle { outbox: shared.outbox, desired: wanted, connected, phase })
}

/// The tables of the database, and the migrations from older formats.
pub fn schema() -> Schema {
    Schema { tables: [store::SCHEMA, outbox::SCHEMA].concat(), migrations: &MIGRATIONS }
}

async fn open(clock: Arc<dyn Clock>, config: Config, supervisor: &Supervisor) -> Result<Shared, StartError> {
    let (dir, device, now) = (config.data_dir.clone(), config.device.clone(), clock.now());
    let opened = tokio::task::spawn_blocking(move || {
        let db = Db::open(&dir, &device, &schema(), now)?;
        name::store(&dir, &device.device).map_err(|source| db::Error::Directory { dir, source })?;
        Ok::<_, db::Error>(db)
    });
    let db = opened.await??;
    let outbox = Outbox::open(db.clone(), config.outbox).await?;
    let metrics = Metrics::register(supervisor.health());
    let accepted = store::accepted(&db).await?;
    metrics.set_generation(accepted.as_ref().map_or(0, |accepted| Generation::get(accepted.generation)));
    let refused = watch::Sender::new(store::refusal(&db).await?);
    let token = watch::Sender::new(None);
    Ok(Shared { config, clock, db, outbox, metrics, accepted, refused, token })
}

/// Spawns the database's task and the metrics: they stop last.
fn spawn_storage(shared: &Shared, supervisor: &Supervisor) {
    let (db, stop) = (shared.db.clone(), supervisor.token(Stage::Serve));
    supervisor.spawn(Stage::Serve, "database", async move {
        let damaged = stop.run_until_cancelled(db.damaged()).await.is_some();
        db.close().await;
        if damaged { Err(RunError::Damaged) } else { Ok(()) }
    });
    let figures = metrics::update(
        shared.metrics.clone(),
        shared.outbox.clone(),
        shared.refused.subscribe(),
        shared.token.subscribe(),
        status_file(shared),
    );
    let stop = supervisor.token(Stage::Serve);
    supervisor.spawn(Stage::Serve, "metrics", async move {
        _ = stop.run_until_cancelled(figures).await;
    });
}

/// Spawns the task that follows the term of the device's token, after its first look.
async fn spawn_token(shared: &Shared, supervisor: &Supervisor) {
    let Some(creds) = credentials(&shared.config) else { return };
    let (device, clock) = (shared.config.device.clone(), Arc::clone(&shared.clock));
    let mut monitor = TokenMonitor::new(device, creds, clock, shared.metrics.clone(), shared.token.clone());
    monitor.check().await;
    supervisor.spawn(Stage::Intake, "token", monitor.run(supervisor.token(Stage::Intake)));
}

/// The credentials with which the device connects, if it has some.
fn credentials(config: &Config) -> Option<PathBuf> {
    config.common.creds.clone().or_else(|| identity::folder(&config.data_dir))
}

fn status_file(shared: &Shared) -> StatusFile {
    let Config { data_dir, device, .. } = &shared.config;
    StatusFile::new(data_dir, device.clone(), Arc::clone(&shared.clock))
}

/// Spawns the reconciler and the report writer. The capabilities are the first report of an epoch.
async fn spawn_workloads(
    shared: &Shared,
    desired: watch::Receiver<CurrentDesired>,
    runtime: Arc<dyn Runtime>,
    ended: mpsc::Receiver<Exit>,
    supervisor: &Supervisor,
) -> Result<watch::Receiver<StorageFailure>, StartError> {
    let (reports, writer) =
        report_writer::queue(shared.outbox.clone(), Arc::clone(&shared.clock), shared.metrics.clone());
    let probe = Probe {
        device: shared.config.device.clone(),
        data_dir: shared.config.data_dir.clone(),
        profiles: runtime.profiles(),
        labels: shared.config.labels.clone(),
    };
    let capabilities = Arc::new(probe.capabilities());
    let reported = reports.report_capabilities(&probe, shared.outbox.capabilities().await?).await;
    let watching =
        ReportSender::clone(&reports).watch_capabilities(probe, reported, supervisor.token(Stage::Intake));
    let settings = Settings {
        device: shared.config.device.clone(),
        retry: shared.config.retry,
        on_exit: shared.config.on_exit,
        capabilities,
    };
    let records = store::records(&shared.db).await?;
    let rng = fastrand::Rng::new();
    let reconciler = Reconciler::new(settings, runtime, reports, desired, ended, records, rng);
    supervisor.spawn(Stage::Intake, "device", watching);
    supervisor.spawn(Stage::Work, "reconcile", reconciler.run(supervisor.token(Stage::Work)));
    let storage_failure = writer.storage_failure();
    supervisor.spawn(
        Stage::Work,
        "storage",
        show_storage(supervisor.health().clone(), storage_failure.clone()),
    );
    supervisor.spawn(
        Stage::Work,
        "reports",
        on_own_thread(writer.run(supervisor.token(Stage::Work), fastrand::Rng::new())),
    );
    Ok(storage_failure)
}

/// Runs `work` on a thread of its own: it waits for the disk most of the time, and handing a shared thread over and back
/// costs a twentieth of a commit. Dropping this future drops `work` at its next await.
async fn on_own_thread(work: impl Future<Output = ()> + Send + 'static) -> Result<(), JoinError> {
    let (runtime, dropped) = (tokio::runtime::Handle::current(), CancellationToken::new());
    let _guard = dropped.clone().drop_guard();
    let whole = async move { _ = dropped.run_until_cancelled(work).await };
    tokio::task::spawn_blocking(move || runtime.block_on(whole)).await
}

/// Shows in the body of `/ready` whether reports can be stored, until the report writer ends.
async fn show_storage(health: Health, mut storage_failure: watch::Receiver<StorageFailure>) {
    loop {
        let state = match &*storage_failure.borrow_and_update() {
            None => "reports can be stored".to_owned(),
            Some(words) => format!("reports cannot be stored, workloads keep running: {words}"),
        };
        health.note("storage", state);
        if storage_failure.changed().await.is_err() {
            return;
        }
    }
}

/// Creates a runtime that `muster-agent` has.
///
/// # Errors
/// Only another program has it.
pub fn host_runtime(parts: RuntimeParts<'_>) -> Result<Arc<dyn Runtime>, StartError> {
    let RuntimeParts { config, clock, packages, exits } = parts;
    let (device, dir) = (config.device.clone(), &config.data_dir);
    match config.runtime {
        RuntimeKind::Process => Ok(Arc::new(ProcessRuntime::new(device, dir, exits))),
        RuntimeKind::Compose => Ok(Arc::new(ComposeRuntime::new(device, dir, packages, exits))),
        RuntimeKind::Simulated => Ok(Arc::new(SimulatedRuntime::new(device, dir, clock, packages, exits))),
        RuntimeKind::Kubernetes => Err(StartError::OtherProgram),
    }
}

/// Spawns the task that evaluates the schedule.
fn spawn_schedule(shared: &Shared, supervisor: &Supervisor) -> watch::Receiver<SchedulePhase> {
    let (schedule, clock) = (shared.config.schedule.clone(), Arc::clone(&shared.clock));
    let (sender, phase) = watch::channel(schedule.phase_at(clock.now()));
    let stop = supervisor.token(Stage::Intake);
    supervisor.spawn(Stage::Intake, "schedule", async move {
        _ = stop.run_until_cancelled(schedule::run(schedule, clock, sender)).await;
    });
    phase
}

/// Spawns the task that receives desired states, receipts and tokens.
fn spawn_follower(
    shared: &Shared,
    desired: watch::Sender<CurrentDesired>,
    connected: watch::Receiver<Option<Bus>>,
    phase: watch::Receiver<SchedulePhase>,
    receipt_fetched: watch::Sender<bool>,
    supervisor: &Supervisor,
) {
    let follower = Follower {
        device: shared.config.device.clone(),
        connected,
        phase,
        poll: shared.config.poll,
        db: shared.db.clone(),
        outbox: shared.outbox.clone(),
        clock: Arc::clone(&shared.clock),
        desired,
        receipt_fetched,
        metrics: shared.metrics.clone(),
        rng: fastrand::Rng::new(),
        accepted: shared.accepted.clone(),
        refused: shared.refused.clone(),
        rejected_document: None,
        refused_reports: Vec::new(),
        identity: identity_dir(shared),
        rejected_credential: None,
        has_read_failed: false,
        is_identity_duplicate: false,
        token: shared.token.subscribe(),
        hub_compares: false,
        receipt_read_at: None,
        read_again_at: None,
    };
    supervisor.spawn(Stage::Intake, "follow", follower.run(supervisor.token(Stage::Intake)));
}

/// The data directory, if the identity in it is in use: a JWT from the hub may renew it.
fn identity_dir(shared: &Shared) -> Option<PathBuf> {
    let own = shared.config.common.creds.is_none() && identity::folder(&shared.config.data_dir).is_some();
    own.then(|| shared.config.data_dir.clone())
}

/// Spawns the connection supervisor, which runs the relay.
fn spawn_relay(
    shared: &Shared,
    desired: watch::Receiver<CurrentDesired>,
    storage_failure: watch::Receiver<StorageFailure>,
    connected: watch::Sender<Option<Bus>>,
    phase: watch::Receiver<SchedulePhase>,
    receipt_fetched: watch::Receiver<bool>,
    supervisor: &Supervisor,
) {
    let config = &shared.config;
    let budget = Budget::new(config.uplink_limit, Instant::now());
    let relay = Relay {
        device: config.device.clone(),
        outbox: shared.outbox.clone(),
        clock: Arc::clone(&shared.clock),
        desired,
        storage_failure,
        refused: shared.refused.subscribe(),
        token: shared.token.subscribe(),
        receipt_fetched,
        metrics: shared.metrics.clone(),
        core: RelayCore::new(config.heartbeat, budget, fastrand::Rng::new()),
    };
    let settings = BusConfig {
        creds: credentials(config),
        tls_ca: config.common.tls_ca.clone(),
        reconnect_max: config.reconnect_max,
        ping_interval: config.ping.unwrap_or_else(|| link_check::ping_interval(config.heartbeat)),
        unacknowledged_max: config.ping.is_none().then(|| link_check::unacknowledged_max(config.heartbeat)),
        ..BusConfig::device(config.common.nats_url.as_str(), &config.device)
    };
    LinkHealth::register(supervisor.health()).follow_each(connected.subscribe());
    let supervised = ConnectionSupervisor { settings, phase, connected, rng: fastrand::Rng::new() };
    supervisor.spawn(
        Stage::Publish,
        "relay",
        supervised.run(relay, supervisor.stop_token(), supervisor.token(Stage::Publish)),
    );
}
