//! Composes ingest, and defines the order of the drain: first the readers of other streams stop, then each partition settles its
//! received reports.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use fastrand::Rng;
use muster_bus::config::PING_INTERVAL;
use muster_bus::{Bus, BusConfig, LinkHealth, ReadError};
use muster_contract::Timestamp;
use muster_contract::subjects::stream;
use muster_domain::intake::IntakeState;
use muster_service::clock::{Clock, SystemClock};
use muster_service::exit;
use muster_service::retry::retry_transient;
use muster_service::supervisor::{Stage, Supervisor};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Cli, Config};
use crate::consume::{Context, Partition, PartitionStart};
use crate::desired::{DesiredFollower, DesiredQueue};
use crate::error::StartError;
use crate::follow::LedgerFollower;
use crate::guard::Guard;
use crate::incidents::IncidentRecorder;
use crate::ledger_publisher::HighWater;
use crate::limits::READ_RETRY;
use crate::metrics::Metrics;
use crate::quarantine_alarm::QuarantineAlarm;
use crate::restore::{self, Restored};
use crate::room::{RoomKeeper, Rooms};
use crate::snapshot::{LedgerOrigin, Snapshots};
use crate::verify::ReceiptVerifier;
use crate::{lag, ownership, watcher};

const NAME: &str = "muster-ingest";
/// The name of the connection that counts connections.
const WATCHER_NAME: &str = "muster-ingest watcher";
/// Pings in a lease: ingest notices a dead link within three pings, before the lease of any device ends.
const PINGS_PER_LEASE: u32 = 6;

/// A running ingest.
#[derive(Debug)]
pub struct Handle {
    /// The part of LEDGER that it read at the start.
    pub restored: Restored,
}

/// The state of all partitions by LEDGER.
struct RestoredState {
    intakes: BTreeMap<u16, IntakeState>,
    restored: Restored,
    ledger_created_at: Timestamp,
}

/// Runs ingest until it receives a signal to stop.
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

/// Starts the tasks of ingest. It is ready once it has read LEDGER and every partition can receive reports.
///
/// # Errors
/// Why it cannot run, in words for the operator.
pub async fn start(config: Config, tasks: &Supervisor) -> Result<Handle, StartError> {
    start_by(Arc::new(SystemClock), config, tasks).await
}

/// Starts the tasks of ingest with the caller's clock.
///
/// # Errors
/// Why it cannot run, in words for the operator.
pub async fn start_by(
    clock: Arc<dyn Clock>,
    config: Config,
    tasks: &Supervisor,
) -> Result<Handle, StartError> {
    let ledger_read = tasks.health().latch("reading LEDGER");
    let metrics = Metrics::register(tasks.health());
    let ping_interval = PING_INTERVAL.min(config.rules.lease / PINGS_PER_LEASE);
    let bus = BusConfig {
        creds: config.common.creds.clone(),
        tls_ca: config.common.tls_ca.clone(),
        ping_interval,
        uplink_bytes_max: config.streams.uplink_bytes_max,
        ledger_bytes_max: config.streams.ledger_bytes_max,
        replicas: config.streams.replicas,
        ..BusConfig::service(config.common.nats_url.as_str(), NAME)
    };
    let bus = Bus::connect(bus, &tasks.stop_token()).await?;
    LinkHealth::register(tasks.health()).follow(&bus);
    bus.converge().await?;
    let snapshots = config.data_dir.as_deref().map(open_snapshots).transpose()?;
    let state = restore_state(&bus, &config, snapshots.as_ref(), clock.as_ref()).await?;
    let RestoredState { intakes, restored, ledger_created_at } = state;
    ledger_read.release();
    let high_water = HighWater::default();
    high_water.reached(restored.position);
    let name = ownership::process_name(&mut Rng::new()).into();
    let follower = LedgerFollower::new(bus.clone(), config.partitions.iter(), restored.position);
    let snapshots = snapshots.map(|snapshots| (snapshots, LedgerOrigin::of(ledger_created_at)));
    let (seen_over, ledger_seen_over) = watch::channel(*bus.link().borrow());
    let incidents = IncidentRecorder::new(bus.clone(), clock.clone());
    let context = Context {
        bus,
        clock,
        quarantine_alarm: QuarantineAlarm::new(incidents.clone()),
        high_water,
        ledger_seen_over,
        name,
        quota: config.quota,
        quarantine_max_age: config.quarantine_max_age,
        follower: follower.into(),
        snapshots,
    };
    let keeper = RoomKeeper::new(
        context.bus.clone(),
        context.clock.clone(),
        metrics.ledger.clone(),
        config.partitions.iter(),
    );
    let rooms = keeper.rooms();
    let (read_to, documents) = watch::channel(0);
    let queues = spawn_partitions(&context, tasks, &metrics, intakes, restored.position, &rooms, &documents);
    // While partitions settle their reports, LEDGER confirms their re-assertions as well.
    tasks.spawn(Stage::Intake, "LEDGER's size", keeper.run(tasks.token(Stage::Intake)));
    let offered = tasks.health().latch("recording incidents");
    tasks.spawn(Stage::Serve, "incidents", incidents.clone().serve(offered, tasks.token(Stage::Serve)));
    let (bus, high_water) = (context.bus.clone(), context.high_water.clone());
    let verifier = ReceiptVerifier::new(bus.clone(), queues.clone(), incidents.clone());
    tasks.spawn(Stage::Intake, "receipts", verifier.run(tasks.token(Stage::Intake)));
    let guard = Guard { bus, high_water, created_at: ledger_created_at, incidents, seen_over };
    tasks.spawn(Stage::Intake, "guard", guard.watch(tasks.token(Stage::Intake)));
    let follower = DesiredFollower::new(context.bus.clone(), queues, read_to);
    spawn_followers(&context, tasks, &metrics, &config, follower);
    watch_connections(&context, tasks, &metrics, &config);
    Ok(Handle { restored })
}

/// The store of snapshots in a folder.
fn open_snapshots(folder: &Path) -> Result<Snapshots, StartError> {
    Snapshots::open(folder).map_err(|source| StartError::DataDir { folder: folder.to_owned(), source })
}

/// Restores all partitions; repeats that until LEDGER can be read.
async fn restore_state(
    bus: &Bus,
    config: &Config,
    snapshots: Option<&Snapshots>,
    clock: &dyn Clock,
) -> Result<RestoredState, ReadError> {
    let read = |_| async {
        let begun = Instant::now();
        let state = read_state(bus, config, snapshots, clock).await?;
        Ok((state, begun.elapsed()))
    };
    let (state, took) =
        retry_transient(READ_RETRY, "cannot read LEDGER yet", ReadError::is_transient, read).await?;
    tracing::info!(
        partitions = %config.partitions,
        devices = state.intakes.values().map(IntakeState::devices).sum::<usize>(),
        ?took,
        facts = state.restored.facts,
        ledger.first = state.restored.first,
        ledger.seq = state.restored.position,
        "restored the partitions from LEDGER"
    );
    Ok(state)
}

/// Restores all partitions from their snapshots and from LEDGER after the oldest snapshot.
async fn read_state(
    bus: &Bus,
    config: &Config,
    snapshots: Option<&Snapshots>,
    clock: &dyn Clock,
) -> Result<RestoredState, ReadError> {
    // Read first: if LEDGER is replaced meanwhile, the guard notices that this is another one.
    let ledger_created_at = bus.stream_state(stream::LEDGER).await?.created_at;
    let (mut intakes, mut after) = (BTreeMap::new(), u64::MAX);
    for partition in config.partitions.iter() {
        let mut intake = IntakeState::new(config.rules, clock.now());
        let known_to = match snapshots {
            Some(snapshots) => snapshots.restore(bus, partition, &mut intake).await?,
            None => None,
        };
        if known_to.is_none() {
            intake = IntakeState::new(config.rules, clock.now());
        }
        after = after.min(known_to.unwrap_or(0));
        intakes.insert(partition, intake);
    }
    let (intakes, restored) = restore::all(bus, intakes, after).await?;
    Ok(RestoredState { intakes, restored, ledger_created_at })
}

/// Starts every partition; returns the queues through which each receives updates of DOWNLINK.
fn spawn_partitions(
    context: &Context,
    tasks: &Supervisor,
    metrics: &Metrics,
    intakes: BTreeMap<u16, IntakeState>,
    read_after: u64,
    rooms: &Rooms,
    documents: &watch::Receiver<u64>,
) -> BTreeMap<u16, Arc<DesiredQueue>> {
    let mut queues = BTreeMap::new();
    for (number, intake) in intakes {
        let Some(room) = rooms.get(&number).cloned() else { continue };
        let desired = Arc::new(DesiredQueue::default());
        queues.insert(number, desired.clone());
        let partition = Partition::new(PartitionStart {
            number,
            context: context.clone(),
            intake,
            read_after,
            desired,
            documents_read: documents.clone(),
            room,
            metrics: metrics.partition(number),
            ready: tasks.health().latch(format!("the reports of partition {number}")),
        });
        tasks.spawn(Stage::Work, format!("partition {number}"), partition.run(tasks.token(Stage::Work)));
    }
    queues
}

/// Starts the watcher of connections, if it has credentials.
fn watch_connections(context: &Context, tasks: &Supervisor, metrics: &Metrics, config: &Config) {
    let Some(creds) = config.system_creds.clone() else {
        tracing::info!("not counting connections: --system-creds names no credentials");
        return;
    };
    let system = BusConfig {
        creds: Some(creds),
        tls_ca: config.common.tls_ca.clone(),
        ..BusConfig::service(config.common.nats_url.as_str(), WATCHER_NAME)
    };
    let (ledger, clock) = (context.bus.clone(), context.clock.clone());
    let watcher = watcher::Watcher::new(system, ledger, clock, metrics.connections.clone());
    tasks.spawn(Stage::Intake, "watcher", watcher.run(tasks.token(Stage::Intake)));
}

/// Starts the tasks that run beside the partitions.
fn spawn_followers(
    context: &Context,
    tasks: &Supervisor,
    metrics: &Metrics,
    config: &Config,
    follower: DesiredFollower,
) {
    let (bus, stop) = (&context.bus, tasks.token(Stage::Intake));
    tasks.spawn(Stage::Intake, "desired", follower.run(stop.clone()));
    let lags = config.partitions.iter().map(|number| (number, metrics.partition(number).lag)).collect();
    let following = lag::follow(bus.clone(), lags, metrics.quarantine.clone(), stop);
    tasks.spawn(Stage::Intake, "lag", following);
}
