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

/// The follower of definitions.
#[derive(Debug)]
pub struct Definitions {
    bus: Bus,
    present: Arc<Present>,
    chance: Rng,
    held: BTreeMap<ViewName, ViewDefinition>,
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
        let mut watch = self.bus.view_watch(DEFINITIONS).await?;
        let mut found = BTreeMap::new();
        while let Some(batch) = watch.next_present(BATCH_MAX).await? {
            batch.iter().for_each(|entry| take(&mut found, entry));
        }
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
        let held = || self.held.values().take(DEFINED_VIEWS_MAX).cloned();
        if self.held.len() > DEFINED_VIEWS_MAX {
            let beyond = self.held.len() - DEFINED_VIEWS_MAX;
            tracing::warn!(beyond, "more views are defined than are counted: remove some");
        }
        self.present.edit(|fleet| fleet.define(held()));
        while self.present.edit(|fleet| fleet.count_defined(STEP)) {
            // Whoever waits for the present goes first: a thread that only yields takes it again before they wake.
            tokio::time::sleep(COUNT_PAUSE).await;
        }
    }
}

/// A definition nobody can read defines nothing; it was not written by the door of this service.
fn take(held: &mut BTreeMap<ViewName, ViewDefinition>, entry: &ViewEntry) {
    let Some(name) = defined_by(&entry.key) else { return };
    let read = entry.value.as_ref().map(|value| decode::parse::<ViewDefinition>(value));
    match read {
        Some(Ok(definition)) if definition.name == name => _ = held.insert(name, definition),
        None => _ = held.remove(&name),
        Some(other) => {
            let reason =
                other.map_or_else(|refusal| refusal.to_string(), |said| format!("it is named {}", said.name));
            tracing::warn!(view = %name, reason, "passing a definition that cannot be used");
            held.remove(&name);
        }
    }
}
