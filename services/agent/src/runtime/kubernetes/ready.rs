//! Watches all ready units: checks their health after every change of a status, and sends the exit of a unit once.
//!
//! A failed or missing object is an exit at once, an object in progress after [`UNREADY_GRACE`]. After an outage of
//! [`OUTAGE_GRACE`] every unit gets the exit `EngineLost`; the next start adopts it when the API server answers again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::Inner;
use super::health::UnitHealth;
use super::kstatus::Failure;
use super::observation::Observation;
use crate::runtime::{Exit, Unit, UnitName, code};

/// Time for which objects of a ready unit may be in progress: a pod may move to another node.
const UNREADY_GRACE: Duration = Duration::from_secs(5);
/// Time for which the API server may not answer until its units count as lost.
const OUTAGE_GRACE: Duration = Duration::from_secs(10);
/// Time between two checks without a change.
const POLL: Duration = Duration::from_secs(1);
/// Pause after a change: changes come in bursts.
const BURST_PAUSE: Duration = Duration::from_millis(200);

const _: () = assert!(UNREADY_GRACE.as_secs() + 2 * POLL.as_secs() < 10);

/// A unit that is ready.
#[derive(Debug, Clone)]
pub(super) struct WatchedUnit {
    digest_prefix: String,
    observation: Arc<Observation>,
    since: Instant,
    unready_since: Option<Instant>,
}

impl Inner {
    /// Watches a unit that is ready.
    pub(super) fn watch_unit(inner: &Arc<Self>, unit: &Unit, observation: Observation) {
        let watched = WatchedUnit {
            digest_prefix: unit.digest_prefix(),
            observation: Arc::new(observation),
            since: Instant::now(),
            unready_since: None,
        };
        inner.table().insert(unit.name(), watched);
        if inner.watching.set(()).is_ok() {
            let leave = inner.leave.clone();
            tokio::spawn(leave.run_until_cancelled_owned(watch(Arc::clone(inner))));
        }
    }

    /// Stops watching a unit.
    pub(super) fn unwatch_unit(&self, name: &UnitName) {
        self.table().remove(name);
    }

    /// Checks every watched unit once.
    async fn check_units(&self) {
        let watched: Vec<_> = self.table().iter().map(|(name, unit)| (name.clone(), unit.clone())).collect();
        for (name, unit) in watched {
            if let Some(failure) = self.failure_of(&name, &unit) {
                self.send_exit(name, &unit, failure).await;
            }
        }
    }

    /// The failure of a unit; `None` if it is ready, or not ready for less than the grace time.
    fn failure_of(&self, name: &UnitName, unit: &WatchedUnit) -> Option<Failure> {
        if let Some((lasting, words)) = unit.observation.outage() {
            let message = format!("the API server has not answered for {OUTAGE_GRACE:?}: {words}");
            let lost = Failure { code: code::ENGINE_LOST.to_owned(), message };
            return (lasting >= OUTAGE_GRACE).then_some(lost);
        }
        let unready = match unit.observation.health() {
            UnitHealth::Ready => None,
            UnitHealth::Failed(failure) | UnitHealth::Missing(failure) => return Some(failure),
            UnitHealth::Waiting(failure) => Some(failure),
        };
        let mut table = self.table();
        let entry = table.get_mut(name).filter(|entry| entry.since == unit.since)?;
        let Some(mut failure) = unready else {
            entry.unready_since = None;
            return None;
        };
        if entry.unready_since.get_or_insert_with(Instant::now).elapsed() < UNREADY_GRACE {
            return None;
        }
        if failure.code == code::NOT_READY {
            failure.code = code::UNHEALTHY.to_owned();
        }
        Some(failure)
    }

    /// Sends the exit of a unit, unless it was removed or started again meanwhile.
    async fn send_exit(&self, name: UnitName, unit: &WatchedUnit, failure: Failure) {
        let still = {
            let mut table = self.table();
            let same = table.get(&name).is_some_and(|now| now.since == unit.since);
            same && table.remove(&name).is_some()
        };
        if still {
            let error = failure.error(&name.component);
            let exit = Exit { name, digest_prefix: unit.digest_prefix.clone(), error };
            // A closed channel means that the agent ends; its inventory finds the exit later.
            let _ = self.exits.send(exit).await;
        }
    }
}

async fn watch(inner: Arc<Inner>) {
    let mut changes = inner.watches.changes();
    loop {
        changes.mark_unchanged();
        inner.check_units().await;
        if timeout(POLL, changes.changed()).await.is_ok() {
            sleep(BURST_PAUSE).await;
        }
    }
}
