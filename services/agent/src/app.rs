//! Wiring: which parts there are, who is handed what, and what stops in which order.
//!
//! ```text
//! stage     task        waits for its end
//! intake    follow      nobody listens for new desired state or receipts
//!           device      nobody looks at the device any more
//! work      reconcile   operations end where they stand; workloads go on, or are stopped if so asked
//!           reports     everything told is kept
//! publish   relay       what can be sent quickly is sent; the last heartbeat
//! serve     figures     nothing: it only counts
//!           database    closed last
//! ```
//!
//! The hub is not needed to start: `follow` and `relay` begin when there is a connection for the first time.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, BusConfig, ConnectError};
use muster_contract::Generation;
use muster_service::backoff::FullJitter;
use muster_service::clock::{Clock, SystemClock};
use muster_service::error::chain;
use muster_service::{Life, Stage};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::capabilities::Probe;
use crate::config::{Config, RuntimeKind};
use crate::db::{self, Db};
use crate::error::{RunError, StartError};
use crate::follow::Follower;
use crate::metrics::{self, Metrics};
use crate::observe::{self, Observer};
use crate::outbox::{self, Outbox, Summary};
use crate::reconcile::{Reconciler, Settings, Wanted};
use crate::relay::Relay;
use crate::runtime::process::ProcessRuntime;
use crate::runtime::simulated::SimulatedRuntime;
use crate::runtime::{EXITS_WAITING_MAX, Exit, Runtime};
use crate::store;

/// Bounds of the delay before a server that cannot serve is tried again: a person has to do something first.
const REFUSED_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A running agent.
#[derive(Debug)]
pub struct Handle {
    outbox: Outbox,
    desired: watch::Receiver<Wanted>,
    connected: watch::Receiver<Option<Bus>>,
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
    let parts = open(config, life).await?;
    let document = parts.accepted.as_ref().and_then(|accepted| accepted.document.clone());
    let (desired, wanted) = watch::channel(document.map(Arc::new));
    let (bus, connected) = watch::channel(None);
    let (greeted, is_greeted) = watch::channel(false);
    keep(&parts, life);
    work(&parts, wanted.clone(), life).await?;
    listen(&parts, desired, connected.clone(), greeted, life);
    speak(&parts, wanted.clone(), bus, is_greeted, life);
    tracing::info!(
        device.site = %parts.config.device.site, device.id = %parts.config.device.device,
        db.dir = %parts.config.data_dir.display(), "the agent works"
    );
    Ok(Handle { outbox: parts.outbox, desired: wanted, connected })
}

/// The tables of every room that keeps something.
pub fn schema() -> String {
    [store::SCHEMA, outbox::SCHEMA].concat()
}

async fn open(config: Config, life: &Life) -> Result<Parts, StartError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let (dir, device, now) = (config.data_dir.clone(), config.device.clone(), clock.now());
    let db = tokio::task::spawn_blocking(move || Db::open(&dir, &device, &schema(), now)).await??;
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
async fn work(parts: &Parts, desired: watch::Receiver<Wanted>, life: &Life) -> Result<(), StartError> {
    let (observer, keeper) =
        observe::corridor(parts.outbox.clone(), Arc::clone(&parts.clock), parts.metrics.clone());
    let probe = Probe {
        device: parts.config.device.clone(),
        data_dir: parts.config.data_dir.clone(),
        profiles: parts.config.runtime.profiles().to_vec(),
        labels: parts.config.labels.clone(),
    };
    let told = observer.tell_device(&probe, parts.outbox.capabilities().await?).await;
    let watching = Observer::clone(&observer).watch_device(probe, told, life.token(Stage::Intake));
    let (exits, ended) = mpsc::channel(EXITS_WAITING_MAX);
    let settings = Settings {
        device: parts.config.device.clone(),
        retry: parts.config.retry,
        on_exit: parts.config.on_exit,
    };
    let standings = store::standings(&parts.db).await?;
    let chance = fastrand::Rng::new();
    let runtime = runtime(parts, exits);
    let reconciler = Reconciler::new(settings, runtime, observer, desired, ended, standings, chance);
    life.spawn(Stage::Intake, "device", watching);
    life.spawn(Stage::Work, "reconcile", reconciler.run(life.token(Stage::Work)));
    life.spawn(Stage::Work, "reports", keeper.run(life.token(Stage::Work), fastrand::Rng::new()));
    Ok(())
}

fn runtime(parts: &Parts, exits: mpsc::Sender<Exit>) -> Arc<dyn Runtime> {
    let (device, dir) = (parts.config.device.clone(), &parts.config.data_dir);
    match parts.config.runtime {
        RuntimeKind::Process => Arc::new(ProcessRuntime::new(device, dir, exits)),
        RuntimeKind::Simulated => {
            Arc::new(SimulatedRuntime::new(device, dir, Arc::clone(&parts.clock), exits))
        }
    }
}

/// The way down: begins with the first connection.
fn listen(
    parts: &Parts,
    desired: watch::Sender<Wanted>,
    mut connected: watch::Receiver<Option<Bus>>,
    greeted: watch::Sender<bool>,
    life: &Life,
) {
    let (config, db, outbox) = (&parts.config, parts.db.clone(), parts.outbox.clone());
    let (clock, metrics, accepted) =
        (Arc::clone(&parts.clock), parts.metrics.clone(), parts.accepted.clone());
    let (device, stop) = (config.device.clone(), life.token(Stage::Intake));
    life.spawn(Stage::Intake, "follow", async move {
        let first = stop.run_until_cancelled(connected.wait_for(Option::is_some)).await;
        let Some(Some(bus)) = first.and_then(Result::ok).map(|bus| bus.clone()) else { return };
        let chance = fastrand::Rng::new();
        let follower = Follower {
            device,
            bus,
            db,
            outbox,
            clock,
            desired,
            greeted,
            metrics,
            chance,
            accepted,
            refused: None,
            blind: false,
        };
        follower.run(stop).await;
    });
}

/// The way up: connects, then sends.
fn speak(
    parts: &Parts,
    desired: watch::Receiver<Wanted>,
    connected: watch::Sender<Option<Bus>>,
    greeted: watch::Receiver<bool>,
    life: &Life,
) {
    let (config, outbox) = (parts.config.clone(), parts.outbox.clone());
    let (clock, metrics) = (Arc::clone(&parts.clock), parts.metrics.clone());
    let (asked, stop) = (life.stop_token(), life.token(Stage::Publish));
    life.spawn(Stage::Publish, "relay", async move {
        let mut chance = fastrand::Rng::new();
        let Some(bus) = connect(&config, &asked, &mut chance).await else { return };
        connected.send_replace(Some(bus.clone()));
        let (device, heartbeat) = (config.device, config.heartbeat);
        let relay = Relay { device, bus, outbox, clock, heartbeat, desired, greeted, metrics, chance };
        relay.run(stop).await;
    });
}

/// The first connection; `None` when the agent is asked to stop before. A server that cannot serve is no reason to end:
/// workloads need none, and somebody may set it right.
async fn connect(config: &Config, stop: &CancellationToken, chance: &mut fastrand::Rng) -> Option<Bus> {
    let mut delays = FullJitter::new(REFUSED_RETRY.0, REFUSED_RETRY.1);
    loop {
        let settings = BusConfig {
            creds: config.common.creds.clone(),
            reconnect_max: config.reconnect_max,
            ..BusConfig::device(config.common.nats_url.as_str(), &config.device)
        };
        match Bus::connect(settings, stop).await {
            Ok(bus) => return Some(bus),
            Err(ConnectError::Stopped { .. }) => return None,
            Err(error) => {
                tracing::error!(error = chain(&error), "this hub cannot serve; workloads go on without it");
            }
        }
        stop.run_until_cancelled(sleep(delays.next(chance))).await?;
    }
}
