//! Wiring, and the order of the drain: first nothing new is followed, then each partition finishes what it took in.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::config::PING_INTERVAL;
use muster_bus::{Bus, BusConfig, LinkHealth, ReadError};
use muster_contract::Timestamp;
use muster_contract::subjects::stream;
use muster_domain::border::Border;
use muster_service::backoff::FullJitter;
use muster_service::clock::{Clock, SystemClock};
use muster_service::error::chain;
use muster_service::exit;
use muster_service::life::{Life, Stage};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::{Cli, Config};
use crate::consume::{Around, Partition};
use crate::desired::{Follower, Wishes};
use crate::error::StartError;
use crate::follow::LedgerFollower;
use crate::guard::Guard;
use crate::incidents::IncidentRecorder;
use crate::metrics::Metrics;
use crate::outlet::HighWater;
use crate::restore::{self, Restored};
use crate::room::{RoomKeeper, Rooms};
use crate::snapshot::{Origin, Snapshots};
use crate::verify::ReceiptVerifier;
use crate::{lag, ownership, watcher};

const NAME: &str = "muster-ingest";
/// The name of the connection that counts connections.
const WATCHER_NAME: &str = "muster-ingest watcher";
/// Pings in a lease: a dead link is found within three of them, before the lease of anybody runs out.
const PINGS_PER_LEASE: u32 = 6;
/// Least and longest upper bound of the delay before LEDGER is asked again.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);

/// An ingest that runs.
#[derive(Debug)]
pub struct Handle {
    /// What LEDGER held at the start.
    pub restored: Restored,
}

/// Runs ingest until it is asked to stop.
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

/// Starts ingest within a life. It is ready once it has read what LEDGER holds and every partition's reports can come.
///
/// # Errors
/// Why it cannot run, for a person to mend.
pub async fn start(config: Config, life: &Life) -> Result<Handle, StartError> {
    start_by(Arc::new(SystemClock), config, life).await
}

/// The same by a clock of the caller's own.
///
/// # Errors
/// Why it cannot run, for a person to mend.
pub async fn start_by(clock: Arc<dyn Clock>, config: Config, life: &Life) -> Result<Handle, StartError> {
    let held = life.health().latch("what LEDGER holds");
    let metrics = Metrics::register(life.health());
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
    let bus = Bus::connect(bus, &life.stop_token()).await?;
    LinkHealth::register(life.health()).follow(&bus);
    bus.converge().await?;

    let snapshots = match &config.data_dir {
        Some(folder) => Some(
            Snapshots::open(folder)
                .map_err(|source| StartError::DataDir { folder: folder.clone(), source })?,
        ),
        None => None,
    };
    let (borders, restored, ledger_created_at) =
        restored(&bus, &config, snapshots.as_ref(), clock.as_ref()).await?;
    held.release();
    let high_water = HighWater::default();
    high_water.reached(restored.position);
    let name = ownership::name_of_this_process(&mut Rng::new()).into();
    let follower = LedgerFollower::new(bus.clone(), config.partitions.iter(), restored.position);
    let snapshots = snapshots.map(|snapshots| (snapshots, Origin::of(ledger_created_at)));
    let quota = config.quota;
    let (seen_over, ledger_seen_over) = watch::channel(*bus.link().borrow());
    let around = Around {
        bus,
        clock,
        high_water,
        ledger_seen_over,
        name,
        quota,
        follower: follower.into(),
        snapshots,
    };
    let keeper = RoomKeeper::new(
        around.bus.clone(),
        around.clock.clone(),
        metrics.ledger.clone(),
        config.partitions.iter(),
    );
    let rooms = keeper.rooms();
    let (read_to, documents) = watch::channel(0);
    let wishes = partitions(&around, life, &metrics, borders, (restored.position, &rooms, &documents));
    // While partitions finish what they took in, their re-assertions are confirmed as well.
    life.spawn(Stage::Intake, "LEDGER's size", keeper.run(life.token(Stage::Intake)));
    let incidents = IncidentRecorder::new(around.bus.clone(), around.clock.clone());
    let offered = life.health().latch("recording incidents");
    life.spawn(Stage::Serve, "incidents", incidents.clone().serve(offered, life.token(Stage::Serve)));
    let (bus, high_water) = (around.bus.clone(), around.high_water.clone());
    let verifier = ReceiptVerifier::new(bus.clone(), wishes.clone(), incidents.clone(), Rng::new());
    life.spawn(Stage::Intake, "receipts", verifier.run(life.token(Stage::Intake)));
    let guard = Guard { bus, high_water, created_at: ledger_created_at, incidents, seen_over };
    life.spawn(Stage::Intake, "guard", guard.watch(life.token(Stage::Intake)));
    let follower = Follower::new(around.bus.clone(), wishes, read_to, Rng::new());
    followers(&around, life, &metrics, &config, follower);
    watch_connections(&around, life, &metrics, &config);
    Ok(Handle { restored })
}

/// A border a partition with what LEDGER holds, and when LEDGER was created, asking for as long as it takes.
async fn restored(
    bus: &Bus,
    config: &Config,
    snapshots: Option<&Snapshots>,
    clock: &dyn Clock,
) -> Result<(BTreeMap<u16, Border>, Restored, Timestamp), ReadError> {
    let (mut retry, mut chance) = (FullJitter::new(RETRY_MIN, RETRY_MAX), Rng::new());
    loop {
        let begun = Instant::now();
        let reading = async {
            // Before anything is read: a LEDGER that takes its place is another one than was read.
            let created_at = bus.stream_state(stream::LEDGER).await?.created_at;
            let (borders, restored) = read_all(bus, config, snapshots, clock).await?;
            Ok::<_, ReadError>((borders, restored, created_at))
        };
        match reading.await {
            Ok((borders, restored, created_at)) => {
                tracing::info!(
                    partitions = %config.partitions,
                    devices = borders.values().map(Border::devices).sum::<usize>(),
                    took = ?begun.elapsed(),
                    facts = restored.facts,
                    ledger.first = restored.first,
                    ledger.seq = restored.position,
                    "LEDGER read: this is what is known of the devices of these partitions"
                );
                return Ok((borders, restored, created_at));
            }
            Err(error) if error.is_transient() => {
                let retry_in = retry.next(&mut chance);
                tracing::warn!(error = chain(&error), ?retry_in, "cannot read LEDGER yet");
                tokio::time::sleep(retry_in).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Borders with what their snapshots and, after the oldest of those, LEDGER say.
async fn read_all(
    bus: &Bus,
    config: &Config,
    snapshots: Option<&Snapshots>,
    clock: &dyn Clock,
) -> Result<(BTreeMap<u16, Border>, Restored), ReadError> {
    let (mut borders, mut after) = (BTreeMap::new(), u64::MAX);
    for partition in config.partitions.iter() {
        let mut border = Border::new(config.rules, clock.now());
        let known_to = match snapshots {
            Some(snapshots) => snapshots.restore(bus, partition, &mut border).await?,
            None => None,
        };
        if known_to.is_none() {
            border = Border::new(config.rules, clock.now());
        }
        after = after.min(known_to.unwrap_or(0));
        borders.insert(partition, border);
    }
    let restored = restore::all(bus, &mut borders, after).await?;
    Ok((borders, restored))
}

/// Starts every partition; the ways by which each learns what its devices shall run.
fn partitions(
    around: &Around,
    life: &Life,
    metrics: &Metrics,
    borders: BTreeMap<u16, Border>,
    (read_to, rooms, documents): (u64, &Rooms, &watch::Receiver<u64>),
) -> BTreeMap<u16, Arc<Wishes>> {
    let mut wishes = BTreeMap::new();
    for (number, border) in borders {
        let desired = Arc::new(Wishes::default());
        wishes.insert(number, desired.clone());
        let ready = life.health().latch(format!("the reports of partition {number}"));
        let (known, metrics) = ((border, read_to), metrics.partition(number));
        let Some(room) = rooms.get(&number).cloned() else { continue };
        let desired = (desired, documents.clone(), room);
        let partition = Partition::new(number, around.clone(), known, desired, metrics, ready);
        life.spawn(Stage::Work, format!("partition {number}"), partition.run(life.token(Stage::Work)));
    }
    wishes
}

/// Starts the watcher of connections, where it has credentials.
fn watch_connections(around: &Around, life: &Life, metrics: &Metrics, config: &Config) {
    let Some(creds) = config.system_creds.clone() else {
        tracing::info!("connections are not counted: --system-creds names no credentials");
        return;
    };
    let system = BusConfig {
        creds: Some(creds),
        tls_ca: config.common.tls_ca.clone(),
        ..BusConfig::service(config.common.nats_url.as_str(), WATCHER_NAME)
    };
    let (ledger, clock) = (around.bus.clone(), around.clock.clone());
    let watcher = watcher::Watcher::new(system, ledger, clock, metrics.connections.clone());
    life.spawn(Stage::Intake, "watcher", watcher.run(life.token(Stage::Intake)));
}

/// Starts what runs beside the partitions.
fn followers(around: &Around, life: &Life, metrics: &Metrics, config: &Config, follower: Follower) {
    let (bus, stop) = (&around.bus, life.token(Stage::Intake));
    life.spawn(Stage::Intake, "desired", follower.run(stop.clone()));
    let lags = config.partitions.iter().map(|number| (number, metrics.partition(number).lag)).collect();
    life.spawn(Stage::Intake, "lag", lag::follow(bus.clone(), lags, stop));
}
