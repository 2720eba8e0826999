//! Follows the view definitions in the bucket and makes the fold count by them.
//!
//! A new or changed definition is counted over all devices, a bounded number for each hold of the projection's
//! lock, so that facts and questions pass in between. Counting starts once LEDGER is read to its end: before
//! that no view is published.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, ReadError, ViewEntry, ViewWatch};
use muster_contract::defined::ViewDefinition;
use muster_contract::limits::DEFINED_VIEWS_MAX;
use muster_contract::subjects::{DEFINITIONS, defined_by};
use muster_contract::{ViewName, decode};
use muster_service::error::chain;
use muster_service::retry::{RetryPolicy, retry};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::projection::Projection;

/// Devices counted at one hold of the projection; a device with ten deployments takes about a microsecond.
const STEP: u32 = 2_000;
/// Time between two holds of the projection, in which the fold continues.
const COUNT_PAUSE: Duration = Duration::from_millis(1);
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 100;
/// Time between two readings of all definitions: a bucket that was created again does not say what was removed.
const RELOAD_EVERY: Duration = Duration::from_secs(60);
/// Delays before the definitions are read again.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(200), max: Duration::from_secs(5) };

/// Definitions by name, each with the revision at which it was written.
pub(crate) type Defined = BTreeMap<ViewName, (u64, ViewDefinition)>;

/// The follower of definitions.
#[derive(Debug)]
pub(crate) struct Definitions {
    bus: Bus,
    projection: Arc<Projection>,
    held: Defined,
}

impl Definitions {
    /// Creates a follower for a projection.
    pub(crate) const fn new(bus: Bus, projection: Arc<Projection>) -> Self {
        Self { bus, projection, held: BTreeMap::new() }
    }

    /// Follows until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) {
        let mut caught_up = self.projection.caught_up();
        loop {
            let read = |_| defined(&self.bus);
            let (watch, found) = retry(RETRY, "cannot read the definitions of views yet", read).await;
            self.held = found;
            self.keep_up(watch, &mut caught_up).await;
        }
    }

    /// Follows until the next full read is due.
    async fn keep_up(&mut self, mut watch: ViewWatch, caught_up: &mut watch::Receiver<bool>) {
        let until = Instant::now() + RELOAD_EVERY;
        loop {
            // Subscribed before the read, so that a restart of the projection during it is seen by the next
            // turn.
            let is_caught_up = *caught_up.borrow_and_update();
            if is_caught_up {
                self.count().await;
            }
            tokio::select! {
                batch = timeout_at(until, watch.next_batch(BATCH_MAX)) => match batch {
                    Ok(Ok(batch)) => batch.iter().for_each(|entry| apply_entry(&mut self.held, entry)),
                    Ok(Err(error)) => {
                        tracing::debug!(error = chain(&error), "rereading all view definitions");
                        return;
                    }
                    Err(_) => return,
                },
                // Fails only when the projection is gone, and this task holds it.
                _ = caught_up.changed() => {}
            }
        }
    }

    /// Makes the projection count by the definitions held.
    async fn count(&self) {
        let (counted, uncounted) = counted(&self.held);
        if !uncounted.is_empty() {
            let beyond = uncounted.len();
            tracing::warn!(beyond, "cannot count all defined views: remove some definitions");
        }
        self.projection.define(counted, uncounted);
        while self.projection.edit(|fleet| fleet.count_defined(STEP)) {
            // Waiters for the projection go first: a thread that only yields takes the lock again before they
            // wake.
            tokio::time::sleep(COUNT_PAUSE).await;
        }
    }
}

/// Everything that is defined now, and the way to what changes after.
pub(crate) async fn defined(bus: &Bus) -> Result<(ViewWatch, Defined), ReadError> {
    let mut watch = bus.view_watch(DEFINITIONS).await?;
    let mut found = BTreeMap::new();
    while let Some(batch) = watch.next_present(BATCH_MAX).await? {
        batch.iter().for_each(|entry| apply_entry(&mut found, entry));
    }
    Ok((watch, found))
}

/// Splits the definitions into those that are counted and those beyond the limit: the last to come is not
/// counted, whatever its name.
fn counted(held: &Defined) -> (Vec<ViewDefinition>, Vec<ViewDefinition>) {
    let mut by_age: Vec<_> = held.values().collect();
    by_age.sort_by_key(|(revision, _)| *revision);
    let mut definitions: Vec<_> = by_age.into_iter().map(|(_, definition)| definition.clone()).collect();
    let uncounted = definitions.split_off(definitions.len().min(DEFINED_VIEWS_MAX));
    (definitions, uncounted)
}

/// The number of definitions before one; none where it is not among them.
pub(crate) fn place_of(name: &ViewName, held: &Defined) -> Option<usize> {
    let (revision, _) = held.get(name)?;
    Some(held.values().filter(|(other, _)| other < revision).count())
}

/// An unreadable definition defines nothing; this service did not write it.
fn apply_entry(held: &mut Defined, entry: &ViewEntry) {
    let Some(name) = defined_by(&entry.key) else { return };
    let read = entry.value.as_ref().map(|value| decode::parse::<ViewDefinition>(value));
    match read {
        Some(Ok(definition)) if definition.name == name => {
            held.insert(name, (entry.revision, definition));
        }
        None => _ = held.remove(&name),
        Some(other) => {
            let reason =
                other.map_or_else(|refusal| refusal.to_string(), |said| format!("it is named {}", said.name));
            tracing::warn!(view = %name, reason, "skipped an unusable view definition");
            held.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use muster_contract::subjects::definition_key;

    use super::*;

    #[test]
    fn beyond_the_limit_the_last_to_come_is_not_counted_whatever_its_name() {
        let mut held = Defined::new();
        let mut define = |name: &str, revision| {
            let name: ViewName = name.parse().unwrap();
            let document =
                format!(r#"{{"apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "{name}"}}"#);
            let (key, value) = (definition_key(&name), Some(Bytes::from(document)));
            apply_entry(&mut held, &ViewEntry { key, value, revision, read_to: None, pending: 0 });
        };
        for number in 0..DEFINED_VIEWS_MAX as u64 {
            define(&format!("view-{number:02}"), number + 1);
        }
        define("a-latecomer", 1000);
        let (counted, uncounted) = counted(&held);
        assert_eq!(counted.len(), DEFINED_VIEWS_MAX);
        assert_eq!(uncounted.len(), 1);
        assert_eq!(uncounted[0].name.as_str(), "a-latecomer");
        assert_eq!(place_of(&uncounted[0].name, &held), Some(DEFINED_VIEWS_MAX));
        assert_eq!(place_of(&counted[0].name, &held), Some(0));
        assert_eq!(place_of(&"nobody".parse().unwrap(), &held), None);
    }
}
