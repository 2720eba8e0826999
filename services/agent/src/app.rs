//! Wiring: which parts there are, who is handed what, and what stops in which order.
//!
//! ```text
//! stage     task        waits for its end
//! intake    hours       nobody looks at the clock any more
//!           follow      nobody listens for new desired state or receipts
//!           device      nobody looks at the device any more
//!           join        nobody takes up a JWT any more
//! work      reconcile   operations end where they stand; workloads go on, or are stopped if so asked
//!           reports     everything told is kept
//!           storage     nobody keeps anything any more
//! publish   relay       what can be sent quickly is sent; the last heartbeat
//! serve     figures     nothing: it only counts
//!           database    closed last
//! ```
//!
//! The hub is not needed to start: `follow` and `relay` begin when there is a connection for the first time.

use std::path::PathBuf;
use std::sync::Arc;

use muster_bus::config::PING_INTERVAL;
use muster_bus::{Bus, BusConfig, LinkHealth};
use muster_contract::Generation;
use muster_service::clock::{Clock, SystemClock};
use muster_service::health::Health;
use muster_service::{Life, Stage};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::capabilities::Probe;
use crate::config::{Config, PINGS_PER_HEARTBEAT, RuntimeKind};
use crate::connection::Keeper;
use crate::db::{self, Db};
use crate::error::{RunError, StartError};
use crate::follow::Follower;
use crate::identity;
use crate::join::Joining;
use crate::metrics::{self, Metrics};
use crate::observe::{self, Observer, Trouble};
use crate::outbox::{self, Outbox, Summary};
use crate::reconcile::{Reconciler, Settings, Wanted};
use crate::relay::Relay;
use crate::relay::budget::Budget;
use crate::relay::sending::{self, Sending};
use crate::runtime::compose::ComposeRuntime;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::simulated::SimulatedRuntime;
use crate::runtime::{EXITS_WAITING_MAX, Exit, Runtime};
use crate::schedule::{self, Phase};
use crate::{name, store};

/// A running agent.
#[derive(Debug)]
pub struct Handle {
    outbox: Outbox,
    desired: watch::Receiver<Wanted>,
    connected: watch::Receiver<Option<Bus>>,
    phase: watch::Receiver<Phase>,
}

impl Handle {
    /// What waits for the hub, in numbers.
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

    /// What the clock on the wall lets it do.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Whether there was a connection to the hub, and it is up.
    pub fn is_connected(&self) -> bool {
        self.connected.borrow().as_ref().is_some_and(|bus| bus.link().borrow().is_up())
    }
}

/// What most parts are handed.
struct Parts {
    config: Config,
    clock: Arc<dyn Clock>,
    db: Db,
    outbox: Outbox,
    metrics: Metrics,
    accepted: Option<store::Accepted>,
}

/// Starts an agent. It works until its life is asked to stop, with or without a hub.
///
/// # Errors
/// Its data directory or database cannot be used.
pub async fn start(config: Config, life: &Life) -> Result<Handle, StartError> {
    start_by(Arc::new(SystemClock), config, life).await
}

/// Starts an agent that goes by another clock than the machine's.
///
/// # Errors
/// See [`start`].
pub async fn start_by(clock: Arc<dyn Clock>, config: Config, life: &Life) -> Result<Handle, StartError> {
    let joining = config.join.clone();
    let mut joining =
        joining.map(|folder| Joining::new(folder, config.data_dir.clone(), config.device.clone()));
    if let Some(joining) = &mut joining {
        // Without a JWT there is nothing it could do: it has never been told what to run.
        joining.wait().await?;
    }
    let parts = open(clock, config, life).await?;
    if let Some(joining) = joining {
        life.spawn(Stage::Intake, "join", joining.run(life.token(Stage::Intake)));
    }
    let document = parts.accepted.as_ref().and_then(|accepted| accepted.document.clone());
    let (desired, wanted) = watch::channel(document.map(Arc::new));
    let (bus, connected) = watch::channel(None);
    let (greeted, is_greeted) = watch::channel(false);
    keep(&parts, life);
    let trouble = work(&parts, wanted.clone(), life).await?;
    let phase = hours(&parts, life);
    listen(&parts, desired, connected.clone(), phase.clone(), greeted, life);
    speak(&parts, wanted.clone(), trouble, bus, phase.clone(), is_greeted, life);
    tracing::info!(
        device.site = %parts.config.device.site, device.id = %parts.config.device.device,
        db.dir = %parts.config.data_dir.display(), "the agent works"
    );
    Ok(Handle { outbox: parts.outbox, desired: wanted, connected, phase })
}

/// The tables of every room that keeps something.
pub fn schema() -> String {
    [store::SCHEMA, outbox::SCHEMA].concat()
}

async fn open(clock: Arc<dyn Clock>, config: Config, life: &Life) -> Result<Parts, StartError> {
    let (dir, device, now) = (config.data_dir.clone(), config.device.clone(), clock.now());
    let opened = tokio::task::spawn_blocking(move || {
        let db = Db::open(&dir, &device, &schema(), now)?;
        name::keep(&dir, &device.device).map_err(|source| db::Error::Directory { dir, source })?;
        Ok::<_, db::Error>(db)
    });
    let db = opened.await??;
    let outbox = Outbox::open(db.clone(), config.outbox).await?;
    let metrics = Metrics::register(life.health());
    let accepted = store::accepted(&db).await?;
    metrics.generation(accepted.as_ref().map_or(0, |accepted| Generation::get(accepted.generation)));
    Ok(Parts { config, clock, db, outbox, metrics, accepted })
}

/// The database and its figures: last to go.
fn keep(parts: &Parts, life: &Life) {
    let (db, stop) = (parts.db.clone(), life.token(Stage::Serve));
    life.spawn(Stage::Serve, "database", async move {
        let damaged = stop.run_until_cancelled(db.damaged()).await.is_some();
        db.close().await;
        if damaged { Err(RunError::Damaged) } else { Ok(()) }
    });
    let figures = metrics::follow(parts.metrics.clone(), parts.outbox.clone());
    let stop = life.token(Stage::Serve);
    life.spawn(Stage::Serve, "figures", async move {
        _ = stop.run_until_cancelled(figures).await;
    });
}

/// What runs and what is told of it. The capabilities are told before anything else: they come first in an epoch.
async fn work(
    parts: &Parts,
    desired: watch::Receiver<Wanted>,
    life: &Life,
) -> Result<watch::Receiver<Trouble>, StartError> {
    let (observer, keeper) =
        observe::corridor(parts.outbox.clone(), Arc::clone(&parts.clock), parts.metrics.clone());
    let probe = Probe {
        device: parts.config.device.clone(),
        data_dir: parts.config.data_dir.clone(),
        profiles: parts.config.runtime.profiles().to_vec(),
        labels: parts.config.labels.clone(),
    };
    let capabilities = Arc::new(probe.capabilities());
    let told = observer.tell_device(&probe, parts.outbox.capabilities().await?).await;
    let watching = Observer::clone(&observer).watch_device(probe, told, life.token(Stage::Intake));
    let (exits, ended) = mpsc::channel(EXITS_WAITING_MAX);
    let settings = Settings {
        device: parts.config.device.clone(),
        retry: parts.config.retry,
        on_exit: parts.config.on_exit,
        capabilities,
    };
    let standings = store::standings(&parts.db).await?;
    let chance = fastrand::Rng::new();
    let runtime = runtime(parts, exits);
    let reconciler = Reconciler::new(settings, runtime, observer, desired, ended, standings, chance);
    life.spawn(Stage::Intake, "device", watching);
    life.spawn(Stage::Work, "reconcile", reconciler.run(life.token(Stage::Work)));
    let trouble = keeper.trouble();
    life.spawn(Stage::Work, "storage", note_storage(life.health().clone(), trouble.clone()));
    life.spawn(Stage::Work, "reports", apart(keeper.run(life.token(Stage::Work), fastrand::Rng::new())));
    Ok(trouble)
}

/// Work on a thread of its own: it waits for the disk most of the time, and to make room for others on a thread that they
/// share, and to be given it back, costs a twentieth of what a commit costs. If this is dropped, the work is dropped where it
/// waits next.
async fn apart(work: impl Future<Output = ()> + Send + 'static) -> Result<(), JoinError> {
    let (runtime, dropped) = (tokio::runtime::Handle::current(), CancellationToken::new());
    let _guard = dropped.clone().drop_guard();
    let whole = async move { _ = dropped.run_until_cancelled(work).await };
    tokio::task::spawn_blocking(move || runtime.block_on(whole)).await
}

/// Says in the body of `/ready` whether reports can be kept, until nobody keeps any.
async fn note_storage(health: Health, mut trouble: watch::Receiver<Trouble>) {
    loop {
        let state = match &*trouble.borrow_and_update() {
            None => "reports are kept".to_owned(),
            Some(words) => format!("reports cannot be kept, workloads go on: {words}"),
        };
        health.note("storage", state);
        if trouble.changed().await.is_err() {
            return;
        }
    }
}

fn runtime(parts: &Parts, exits: mpsc::Sender<Exit>) -> Arc<dyn Runtime> {
    let (device, dir) = (parts.config.device.clone(), &parts.config.data_dir);
    match parts.config.runtime {
        RuntimeKind::Process => Arc::new(ProcessRuntime::new(device, dir, exits)),
        RuntimeKind::Compose => Arc::new(ComposeRuntime::new(device, dir, exits)),
        RuntimeKind::Simulated => {
            Arc::new(SimulatedRuntime::new(device, dir, Arc::clone(&parts.clock), exits))
        }
    }
}

/// What the clock on the wall lets the agent do.
fn hours(parts: &Parts, life: &Life) -> watch::Receiver<Phase> {
    let (schedule, clock) = (parts.config.schedule.clone(), Arc::clone(&parts.clock));
    let (sender, phase) = watch::channel(schedule.at(clock.now()));
    let stop = life.token(Stage::Intake);
    life.spawn(Stage::Intake, "hours", async move {
        _ = stop.run_until_cancelled(schedule::follow(schedule, clock, sender)).await;
    });
    phase
}

/// The way down.
fn listen(
    parts: &Parts,
    desired: watch::Sender<Wanted>,
    connected: watch::Receiver<Option<Bus>>,
    phase: watch::Receiver<Phase>,
    greeted: watch::Sender<bool>,
    life: &Life,
) {
    let follower = Follower {
        device: parts.config.device.clone(),
        connected,
        phase,
        poll: parts.config.poll,
        db: parts.db.clone(),
        outbox: parts.outbox.clone(),
        clock: Arc::clone(&parts.clock),
        desired,
        greeted,
        metrics: parts.metrics.clone(),
        chance: fastrand::Rng::new(),
        accepted: parts.accepted.clone(),
        refused: None,
        identity: own_identity(parts),
        refused_credential: None,
        blind: false,
        chased: false,
        look_again_at: None,
    };
    life.spawn(Stage::Intake, "follow", follower.run(life.token(Stage::Intake)));
}

/// Where the identity is kept that a JWT over the hub may renew.
fn own_identity(parts: &Parts) -> Option<PathBuf> {
    let own = parts.config.common.creds.is_none() && identity::folder(&parts.config.data_dir).is_some();
    own.then(|| parts.config.data_dir.clone())
}

/// The way up: connects, then sends.
fn speak(
    parts: &Parts,
    desired: watch::Receiver<Wanted>,
    trouble: watch::Receiver<Trouble>,
    connected: watch::Sender<Option<Bus>>,
    phase: watch::Receiver<Phase>,
    greeted: watch::Receiver<bool>,
    life: &Life,
) {
    let config = &parts.config;
    let relay = Relay {
        device: config.device.clone(),
        outbox: parts.outbox.clone(),
        clock: Arc::clone(&parts.clock),
        heartbeat: config.heartbeat,
        desired,
        trouble,
        greeted,
        metrics: parts.metrics.clone(),
        chance: fastrand::Rng::new(),
        sending: Sending::new(sending::Window::default()),
        budget: Budget::new(config.uplink_limit, Instant::now()),
        batches: true,
    };
    let settings = BusConfig {
        creds: config.common.creds.clone().or_else(|| identity::folder(&config.data_dir)),
        tls_ca: config.common.tls_ca.clone(),
        reconnect_max: config.reconnect_max,
        ping_interval: PING_INTERVAL.min(config.heartbeat / PINGS_PER_HEARTBEAT),
        ..BusConfig::device(config.common.nats_url.as_str(), &config.device)
    };
    LinkHealth::register(life.health()).follow_each(connected.subscribe());
    let keeper = Keeper { settings, phase, connected, chance: fastrand::Rng::new() };
    life.spawn(Stage::Publish, "relay", keeper.run(relay, life.stop_token(), life.token(Stage::Publish)));
}
