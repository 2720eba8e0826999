//! The definitions of views, followed in the bucket: what is there is what the fold counts by. A definition that is new or
//! has changed is counted over all devices, a bounded number at each hold of the present, so that facts and questions pass
//! in between.
//!
//! Nothing is counted until LEDGER was read to its end: a fold that catches up has no one to show it to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, ReadError, ViewEntry, ViewWatch};
use muster_contract::defined::ViewDefinition;
use muster_contract::limits::DEFINED_VIEWS_MAX;
use muster_contract::subjects::{DEFINITIONS, defined_by};
use muster_contract::{ViewName, decode};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::present::Present;

/// Devices counted at one hold of the present; a device with ten deployments takes about a microsecond.
const STEP: u32 = 2_000;
/// Time between two holds of the present, in which the fold goes on.
const COUNT_PAUSE: Duration = Duration::from_millis(1);
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 100;
/// Time between two readings of all definitions: a bucket that was made anew has forgotten what was removed.
const RELOAD_EVERY: Duration = Duration::from_secs(60);
/// Least and longest upper bound of the delay before the bus is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Definitions by name, each with the revision at which it was written.
pub(crate) type Defined = BTreeMap<ViewName, (u64, ViewDefinition)>;

/// The follower of definitions.
#[derive(Debug)]
pub struct Definitions {
    bus: Bus,
    present: Arc<Present>,
    chance: Rng,
    held: Defined,
}

impl Definitions {
    /// A follower for a present.
    pub const fn new(bus: Bus, present: Arc<Present>, chance: Rng) -> Self {
        Self { bus, present, chance, held: BTreeMap::new() }
    }

    /// Follows until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) {
        let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let mut caught_up = self.present.caught_up();
        loop {
            match self.read_all().await {
                Ok(watch) => {
                    retry.reset();
                    self.keep_up(watch, &mut caught_up).await;
                }
                Err(error) => {
                    let retry_in = retry.next(&mut self.chance);
                    tracing::warn!(
                        error = chain(&error),
                        ?retry_in,
                        "cannot read the definitions of views yet"
                    );
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    }

    /// Everything that is defined now, and the way to what changes after.
    async fn read_all(&mut self) -> Result<ViewWatch, ReadError> {
        let (watch, found) = defined(&self.bus).await?;
        self.held = found;
        Ok(watch)
    }

    /// Follows for a while, until it is time to read everything again.
    async fn keep_up(&mut self, mut watch: ViewWatch, caught_up: &mut watch::Receiver<bool>) {
        let until = Instant::now() + RELOAD_EVERY;
        loop {
            // Before looking, so that a present that starts over while it is looked at is seen by the next turn.
            let is_caught_up = *caught_up.borrow_and_update();
            if is_caught_up {
                self.count().await;
            }
            tokio::select! {
                batch = timeout_at(until, watch.next_batch(BATCH_MAX)) => match batch {
                    Ok(Ok(batch)) => batch.iter().for_each(|entry| take(&mut self.held, entry)),
                    Ok(Err(error)) => {
                        tracing::debug!(error = chain(&error), "reading all definitions of views again");
                        return;
                    }
                    Err(_) => return,
                },
                // Ends with an error only when the present is gone, and this task holds it.
                _ = caught_up.changed() => {}
            }
        }
    }

    /// Has the present count by what is held.
    async fn count(&self) {
        let (counted, uncounted) = counted(&self.held);
        if !uncounted.is_empty() {
            let beyond = uncounted.len();
            tracing::warn!(beyond, "more views are defined than are counted: remove some");
        }
        self.present.define(counted, uncounted);
        while self.present.edit(|fleet| fleet.count_defined(STEP)) {
            // Whoever waits for the present goes first: a thread that only yields takes it again before they wake.
            tokio::time::sleep(COUNT_PAUSE).await;
        }
    }
}

/// Everything that is defined now, and the way to what changes after.
pub(crate) async fn defined(bus: &Bus) -> Result<(ViewWatch, Defined), ReadError> {
    let mut watch = bus.view_watch(DEFINITIONS).await?;
    let mut found = BTreeMap::new();
    while let Some(batch) = watch.next_present(BATCH_MAX).await? {
        batch.iter().for_each(|entry| take(&mut found, entry));
    }
    Ok((watch, found))
}

/// What is counted, and what is beyond that: who came last, not who is last by name, has found no room.
fn counted(held: &Defined) -> (Vec<ViewDefinition>, Vec<ViewDefinition>) {
    let mut by_age: Vec<_> = held.values().collect();
    by_age.sort_by_key(|(revision, _)| *revision);
    let mut definitions: Vec<_> = by_age.into_iter().map(|(_, definition)| definition.clone()).collect();
    let uncounted = definitions.split_off(definitions.len().min(DEFINED_VIEWS_MAX));
    (definitions, uncounted)
}

/// How many were there before one; none where it is not among them.
pub(crate) fn place_of(name: &ViewName, held: &Defined) -> Option<usize> {
    let (revision, _) = held.get(name)?;
    Some(held.values().filter(|(other, _)| other < revision).count())
}

/// A definition nobody can read defines nothing; it was not written by the door of this service.
fn take(held: &mut Defined, entry: &ViewEntry) {
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
            tracing::warn!(view = %name, reason, "passing a definition that cannot be used");
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
            take(&mut held, &ViewEntry { key, value, revision, read_to: None, pending: 0 });
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
