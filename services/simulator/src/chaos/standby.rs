//! Checks standbys after the faults: the other ingest takes all partitions over from one that is killed, and the other rollup
//! writes views while one is down. Deployments still change then, so there are views to write. During the faults the run
//! only counts takeovers, because the standby may be down or cut off as well.

use std::net::SocketAddr;
use std::time::Duration;

use muster_contract::limits::PARTITIONS;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::monitor::ViewMonitor;
use super::processes::Processes;
use super::schedule::{REPLICAS, Role};
use super::violation::Violation;
use crate::error::Error;
use crate::http;

/// Time for each step: three times what ingest promises for a takeover, on a machine that others use.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after the kill of a rollup from which on every view that the monitor sees is the other rollup's.
pub(super) const LAST_WRITES_WITHIN: Duration = Duration::from_secs(1);
/// How lines of the metric begin that is 1 for each partition of an ingest.
const OWNED_METRIC: &str = "muster_ingest_owned{";

/// The result of the check.
#[derive(Debug, Default)]
pub(super) struct StandbyResult {
    /// From the kill of the owner until the other ingest owned all partitions.
    pub(super) takeover: Option<Duration>,
    /// The takeovers that did not happen in time.
    pub(super) violations: Vec<Violation>,
}

/// Kills an owner and a rollup, one after the other, waits for their standbys, and starts both again. Ends early with `stop`.
///
/// # Errors
/// A process ended by itself, or could not be started.
pub(super) async fn check(
    processes: &mut Processes,
    monitor: &ViewMonitor,
    stop: &CancellationToken,
) -> Result<StandbyResult, Error> {
    let mut result = StandbyResult::default();
    match ingest(processes, stop).await? {
        Ok(takeover) => result.takeover = takeover,
        Err(violation) => result.violations.push(violation),
    }
    result.violations.extend(rollup(processes, monitor, stop).await?);
    Ok(result)
}

async fn ingest(
    processes: &mut Processes,
    stop: &CancellationToken,
) -> Result<Result<Option<Duration>, Violation>, Error> {
    let Some(owner) = wait_for_owner(processes, stop, larger_owner).await? else {
        return Ok(no_success(stop, || {
            "the ingests do not own all partitions although all is healed".to_owned()
        }));
    };
    processes.process(owner).kill().await?;
    let killed = Instant::now();
    let taken = wait_for_owner(processes, stop, sole_owner).await?;
    let takeover = taken.map(|_| killed.elapsed());
    let dir = processes.paths.dir.clone();
    processes.process(owner).start(&dir)?;
    let violation = || format!("{} was killed, and the other took nothing over in {TIMEOUT:?}", owner.name());
    Ok(if takeover.is_some() { Ok(takeover) } else { no_success(stop, violation) })
}

async fn rollup(
    processes: &mut Processes,
    monitor: &ViewMonitor,
    stop: &CancellationToken,
) -> Result<Option<Violation>, Error> {
    let rollup = Role::Rollup(0);
    processes.process(rollup).kill().await?;
    stop.run_until_cancelled(tokio::time::sleep(LAST_WRITES_WITHIN)).await;
    let (before, deadline) = (monitor.newest(), Instant::now() + TIMEOUT);
    while monitor.newest() == before && Instant::now() < deadline && !stop.is_cancelled() {
        processes.start_ended()?;
        stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
    }
    let dir = processes.paths.dir.clone();
    processes.process(rollup).start(&dir)?;
    let violation = || format!("{} was killed, and the other wrote no view in {TIMEOUT:?}", rollup.name());
    Ok(if monitor.newest() > before { None } else { no_success(stop, violation).err() })
}

/// No result and no violation if a person has stopped the run; the violation otherwise.
fn no_success(
    stop: &CancellationToken,
    violation: impl FnOnce() -> Violation,
) -> Result<Option<Duration>, Violation> {
    if stop.is_cancelled() { Ok(None) } else { Err(violation()) }
}

/// Waits until `of` picks an ingest by the number of partitions that each owns; `None` at the timeout or at `stop`.
async fn wait_for_owner(
    processes: &mut Processes,
    stop: &CancellationToken,
    of: fn(&[Option<usize>; REPLICAS]) -> Option<usize>,
) -> Result<Option<Role>, Error> {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline && !stop.is_cancelled() {
        processes.start_ended()?;
        let mut counts = [None; REPLICAS];
        for (at, count) in counts.iter_mut().enumerate() {
            // A process that is down has its former address.
            let ingest = processes.process(Role::Ingest(at));
            *count = if ingest.up().is_some() { owned(ingest.http).await } else { None };
        }
        if let Some(at) = of(&counts) {
            return Ok(Some(Role::Ingest(at)));
        }
        stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
    }
    Ok(None)
}

/// The ingest that owns more partitions, if both are ready and together own all: the faults may have split them.
fn larger_owner(counts: &[Option<usize>; REPLICAS]) -> Option<usize> {
    let known: Option<Vec<usize>> = counts.iter().copied().collect();
    let known = known.filter(|known| known.iter().sum::<usize>() == usize::from(PARTITIONS))?;
    (0..REPLICAS).max_by_key(|at| known[*at])
}

/// The ingest that owns all partitions.
fn sole_owner(counts: &[Option<usize>; REPLICAS]) -> Option<usize> {
    counts.iter().position(|count| *count == Some(usize::from(PARTITIONS)))
}

/// Partitions that an ingest owns; none while it does not answer or is not ready.
async fn owned(address: Option<SocketAddr>) -> Option<usize> {
    let ready = http::get(address?, "/ready").await.ok()?;
    let metrics = http::get(address?, "/metrics").await.ok()?;
    (ready.status == 200).then(|| count_owned(&metrics.body))
}

fn count_owned(metrics: &str) -> usize {
    metrics.lines().filter(|line| line.starts_with(OWNED_METRIC) && line.ends_with(" 1")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_partitions_are_counted_by_their_metric() {
        let metrics = "# TYPE muster_ingest_owned gauge\nmuster_ingest_owned{partition=\"0\"} 1\n\
            muster_ingest_owned{partition=\"1\"} 0\nmuster_ingest_owned{partition=\"11\"} 1\n\
            muster_ingest_lag{partition=\"0\"} 1\n";
        assert_eq!(count_owned(metrics), 2);
    }

    #[test]
    fn the_larger_owner_is_known_only_where_both_own_all_between_them() {
        assert_eq!(larger_owner(&[Some(3), Some(13)]), Some(1));
        assert_eq!(larger_owner(&[Some(16), Some(0)]), Some(0));
        for unknown in [[Some(16), None], [Some(16), Some(16)], [Some(15), Some(0)]] {
            assert_eq!(larger_owner(&unknown), None, "{unknown:?}");
        }
        assert_eq!(sole_owner(&[None, Some(16)]), Some(1));
    }
}
