//! Chaos: a real system is started, struck by a seeded storm, healed, and judged.
//!
//! ```text
//! cast: who takes part ──► storm: carries out ── plan (what strikes when), script (what is committed when)
//!                                    │ heal
//!                                    ▼
//!          witness ─────►  judge: at rest? the books right? ──► summary
//! ```
//!
//! Nothing here knows how a service works: it knows what must be true of them all, after any storm.

mod cast;
mod judge;
mod plan;
mod script;
mod storm;
mod summary;
mod witness;
mod workloads;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use muster_bus::{Bus, BusConfig};
use muster_contract::DeviceKey;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::cast::Cast;
use self::judge::{Count, Difference, Judge};
use self::plan::Role;
use self::script::Script;
use self::storm::{Storm, Toll};
pub use self::summary::Summary;
use self::witness::Witness;
use crate::child::sweep;
use crate::config::chaos::Config;
use crate::error::Error;
use crate::hub::Hub;
use crate::places::Places;
use crate::repository::Repository;

/// Time a healed fleet gets to come to rest, and its books to be right: generous, because machines that test are slow and
/// shared, and connections that were stalled are given up only after half a minute.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two words on what is still missing.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Longest delay before the judge's own connection is tried again.
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// What SQLite and the system say of a write for which there was no room; the last, where a limit stands for the disk.
const NO_ROOM: [&str; 3] = ["database or disk is full", "No space left on device", "disk I/O error"];
/// What any log says of a panic.
const PANIC: [&str; 1] = ["panicked at"];

/// Plays a trial until its end, or until `stop` is cancelled.
///
/// # Errors
/// The system could not be started, or a part of it ended by itself.
pub async fn run(config: &Config, stop: &CancellationToken) -> Result<Summary, Error> {
    let places = Places::prepare(&config.stage)?;
    let repository = Repository::create(places.dir.join("repository")).await?;
    let mut script = Script::new(config.seed, &config.device_keys(), config.small_disks());
    repository.replace(&script.files())?;
    repository.commit("The first release").await?;
    let ended = play(config, places.clone(), &repository, &mut script, stop).await;
    // Agents that were killed leave workloads behind, and a trial that failed leaves everybody.
    sweep(&places.dir);
    ended
}

async fn play(
    config: &Config,
    places: Places,
    repository: &Repository,
    script: &mut Script,
    stop: &CancellationToken,
) -> Result<Summary, Error> {
    let started = stop.run_until_cancelled(Cast::start(config, places.clone(), repository)).await;
    let Some(cast) = started else {
        return Ok(summary(config, &places, &Toll::default(), Ending::default()));
    };
    let mut cast = cast?;
    let toll = Toll::default();
    tracing::info!(nats.url = format!("nats://{}", cast.nats), logs = %places.logs().display(), "everybody is up");
    let bus = connect(&cast, stop).await?;
    let witness = Witness::begin(bus.clone(), stop.clone());
    let storm = Storm::new(&mut cast, script, repository, config.small_disks(), toll.clone());
    storm.blow(config.seed, config.length, stop).await?;
    tracing::info!("everything is healed; the fleet comes to rest");
    let judge = Judge {
        hub: Hub::new(bus.clone()),
        bus,
        places: places.clone(),
        nats: cast.nats,
        wanted: script.wanted(),
        real: cast.devices[..config.process_agents()].to_vec(),
        forgotten: cast.forgotten.clone(),
        witness,
    };
    let mut ending = Ending::default();
    if !stop.is_cancelled() {
        ending = settle(&mut cast, &judge, stop).await?;
    }
    tracing::info!("stopping everybody");
    cast.stop().await?;
    ending.differences.extend(panics(&places.logs()));
    Ok(summary(config, &places, &toll, ending))
}

/// A connection of the trial's own, not by way of any link.
async fn connect(cast: &Cast, stop: &CancellationToken) -> Result<Bus, Error> {
    let url = format!("nats://{}", cast.nats);
    let settings = BusConfig { reconnect_max: RECONNECT_MAX, ..BusConfig::service(url, "muster-simulator") };
    Bus::connect(settings, stop).await.map_err(Error::Bus)
}

/// How a trial ended.
#[derive(Debug, Default)]
struct Ending {
    /// It was judged.
    judged: bool,
    rest_after: Option<Duration>,
    count: Count,
    differences: Vec<Difference>,
}

/// Waits until the fleet is at rest and the books are right, both at once.
async fn settle(cast: &mut Cast, judge: &Judge, stop: &CancellationToken) -> Result<Ending, Error> {
    let begin = Instant::now();
    let mut ending = Ending::default();
    let mut told_at = None;
    loop {
        watch(cast)?;
        let agents = agents(cast);
        ending.differences = judge.unrest(&agents).await;
        if ending.differences.is_empty() {
            ending.rest_after.get_or_insert(begin.elapsed());
            ending.differences = judge.books(&mut ending.count).await;
        } else {
            ending.rest_after = None;
        }
        if let Some(first) = ending.differences.first()
            && told_at.is_none_or(|told: Instant| told.elapsed() >= TELL_EVERY)
        {
            tracing::info!(differences = ending.differences.len(), first, "not yet");
            told_at = Some(Instant::now());
        }
        let late = begin.elapsed() >= PATIENCE;
        if ending.differences.is_empty() || late || stop.is_cancelled() {
            ending.judged = ending.differences.is_empty() || late;
            return Ok(ending);
        }
        stop.run_until_cancelled(tokio::time::sleep(LOOK)).await;
    }
}

/// Nobody ends by himself any more. Who fell before the storm was over is started again.
fn watch(cast: &mut Cast) -> Result<(), Error> {
    let dir = cast.places.dir.clone();
    for member in cast.members() {
        if member.has_fallen()?.is_some() {
            member.start(&dir)?;
        }
    }
    Ok(())
}

fn agents(cast: &mut Cast) -> Vec<(DeviceKey, Option<SocketAddr>)> {
    let keys = cast.devices.clone();
    keys.into_iter().enumerate().map(|(at, key)| (key, cast.member(Role::Agent(at)).http)).collect()
}

fn summary(config: &Config, places: &Places, toll: &Toll, ending: Ending) -> Summary {
    let Ending { judged, rest_after, count, differences } = ending;
    let Config { seed, agents, sites, length, .. } = config;
    Summary {
        held: judged && differences.is_empty(),
        cut_short: !judged,
        seed: *seed,
        seconds: length.as_secs(),
        agents: *agents,
        sites: *sites,
        faults: toll.counts(),
        reports: count.accounting,
        facts: count.facts,
        lost: count.lost,
        duplicated: count.duplicated,
        views_seen: count.views_seen,
        incidents: count.incidents,
        full_disk_writes: lines(&places.logs(), &NO_ROOM).len() as u64,
        converged_after_ms: rest_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        differences,
        replay: config.replay(),
        logs: places.logs().display().to_string(),
    }
}

fn panics(logs: &Path) -> Vec<Difference> {
    lines(logs, &PANIC).into_iter().map(|line| format!("somebody panicked: {line}")).collect()
}

/// The lines of all logs that hold one of some texts, each with the name of its log.
fn lines(logs: &Path, texts: &[&str]) -> Vec<String> {
    let holds = |line: &&str| texts.iter().any(|text| line.contains(text));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(logs).into_iter().flatten().flatten() {
        let log = std::fs::read(entry.path()).unwrap_or_default();
        let name = entry.file_name().to_string_lossy().into_owned();
        let log = String::from_utf8_lossy(&log);
        found.extend(log.lines().filter(holds).map(|line| format!("{name}: {line}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_log_says_is_found_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("agent.log"), "fine\nError: database or disk is full\n").unwrap();
        std::fs::write(dir.path().join("ingest.log"), "thread 'main' panicked at src/main.rs:1\n").unwrap();
        assert_eq!(lines(dir.path(), &NO_ROOM), ["agent.log: Error: database or disk is full"]);
        assert_eq!(panics(dir.path()).len(), 1);
        assert!(panics(&dir.path().join("nowhere")).is_empty());
    }
}
