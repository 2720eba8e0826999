//! Views into the bucket `views`: each view that changed is written, at most so often, and what is there last is the
//! final state. A view whose digest did not change is not written; one that is gone is deleted, also if an
//! earlier life left it behind.
//!
//! Nothing is written until LEDGER was read to its end: a view must not go back in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{StreamExt, stream};
use muster_bus::{Bus, PublishError, PublishErrorKind, ReadError};
use muster_contract::canonical::Digest;
use muster_contract::decode::to_bytes;
use muster_contract::limits::VIEW_WRITES_PER_SECOND;
use muster_contract::subjects::ViewKey;
use muster_domain::fold::Fleet;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, ViewResult};
use crate::present::{Now, Origin, Present};

/// Least time between two writes of one view.
const WRITE_INTERVAL: Duration = Duration::from_millis(1000 / VIEW_WRITES_PER_SECOND as u64);
/// Views built at one look at the present: the fold waits meanwhile.
const LOOK_MAX: usize = 64;
/// Views under way to the bus at once.
const IN_FLIGHT_MAX: usize = 64;
/// Attempts to write what is due when the process ends.
const FINISH_ATTEMPTS_MAX: usize = 3;
/// Entries of the bucket read at once.
const BATCH_MAX: usize = 500;
/// Least and longest upper bound of the delay before the bus is tried again.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(WRITE_INTERVAL.as_millis() * VIEW_WRITES_PER_SECOND as u128 >= 1000);

/// The writer of views.
#[derive(Debug)]
pub struct Publisher {
    bus: Bus,
    present: Arc<Present>,
    metrics: Metrics,
    chance: Rng,
    origin: Option<Origin>,
    /// What the bucket holds, as far as it is known.
    held: BTreeMap<ViewKey, Held>,
    /// Views to look at, and when.
    due: BTreeMap<ViewKey, Instant>,
    retry: FullJitter,
}

/// What the bucket holds under a key.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// None where the bucket holds something else, or it is not known.
    digest: Option<Digest>,
    /// When it was last written by this process.
    written_at: Option<Instant>,
}

/// What is to be done about a key.
#[derive(Debug)]
enum Write {
    Put(Digest, Bytes),
    Delete,
}

#[derive(Deserialize)]
struct Signed {
    digest: Digest,
}

impl Publisher {
    /// A writer of the present's views.
    pub fn new(bus: Bus, present: Arc<Present>, metrics: Metrics, chance: Rng) -> Self {
        let (held, due) = (BTreeMap::new(), BTreeMap::new());
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        Self { bus, present, metrics, chance, origin: None, held, due, retry }
    }

    /// Writes until `stop`, and then once more what is due.
    pub async fn run(mut self, stop: CancellationToken) {
        let (mut read_to, mut caught_up) = (self.present.read_to(), self.present.caught_up());
        if stop.run_until_cancelled(self.begin()).await.is_none() {
            return;
        }
        while stop.run_until_cancelled(self.wait(&mut read_to, &mut caught_up)).await.is_some() {
            // Not cancelled in the middle: what is under way would be unknown.
            self.write_due().await;
        }
        self.finish().await;
    }

    /// Waits until there is something true to say, and learns what the bucket says already.
    async fn begin(&mut self) {
        let mut caught_up = self.present.caught_up();
        // The present outlives this task, so the wait cannot end for want of a sender.
        let _ = caught_up.wait_for(|caught_up| *caught_up).await;
        // The fleet's view is there from the start, also of an empty fleet.
        self.due.insert(ViewKey::Fleet, Instant::now());
        loop {
            match self.learn().await {
                Ok(()) => return,
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.chance);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot read the views yet");
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    }

    /// Reads the bucket. Everything in it is due: what an earlier life left is either still so or to be deleted.
    async fn learn(&mut self) -> Result<(), ReadError> {
        let mut watch = self.bus.view_watch(">").await?;
        let mut read = 0;
        while read < watch.waiting() {
            let batch = watch.next_batch(BATCH_MAX).await?;
            read += batch.len() as u64;
            for entry in batch {
                let Some((key, value)) = ViewKey::parse(&entry.key).zip(entry.value) else { continue };
                let digest = serde_json::from_slice::<Signed>(&value).ok().map(|signed| signed.digest);
                self.held.insert(key.clone(), Held { digest, written_at: None });
                self.due.insert(key, Instant::now());
            }
        }
        self.retry.reset();
        Ok(())
    }

    /// Waits until a view is due. Cancel-safe.
    async fn wait(&mut self, read_to: &mut watch::Receiver<u64>, caught_up: &mut watch::Receiver<bool>) {
        loop {
            // Before looking, so that what changes while looking is seen by the next turn.
            read_to.mark_unchanged();
            let is_caught_up = *caught_up.borrow_and_update();
            self.take_changed();
            let next = self.due.values().min().copied().filter(|_| is_caught_up);
            if next.is_some_and(|next| next <= Instant::now()) {
                return;
            }
            let timer = async {
                match next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // These end with an error only when the present is gone, and this task holds it.
                _ = read_to.changed() => {}
                _ = caught_up.changed() => {}
                () = timer => {}
            }
        }
    }

    /// Takes over which views may have changed, and when each may be written.
    fn take_changed(&mut self) {
        let (origin, changed) = self.present.take(|now| (now.origin, now.fleet.take_changed_views()));
        let mut changed: BTreeSet<ViewKey> = changed;
        if self.origin.replace(origin) != Some(origin) {
            // Another LEDGER: whatever was written may be gone now.
            changed.extend(self.held.keys().cloned());
        }
        let now = Instant::now();
        for key in changed {
            let written_at = self.held.get(&key).and_then(|held| held.written_at);
            let allowed = written_at.map_or(now, |at| now.max(at + WRITE_INTERVAL));
            self.due.entry(key).or_insert(allowed);
        }
        self.metrics.views_due.set(self.due.len() as i64);
    }

    /// Writes what is due now, look by look.
    async fn write_due(&mut self) {
        let now = Instant::now();
        let keys: Vec<ViewKey> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for look in keys.chunks(LOOK_MAX) {
            let writes = self.look(look);
            let bus = &self.bus;
            let results: Vec<_> = stream::iter(writes)
                .map(|(key, write)| async move {
                    let result = carry_out(bus, &key, &write).await;
                    (key, write, result)
                })
                .buffer_unordered(IN_FLIGHT_MAX)
                .collect()
                .await;
            self.settle(results);
        }
        self.metrics.views_due.set(self.due.len() as i64);
    }

    /// What has to be written of some views, all as of one moment. They are due no more, unless that moment is one at
    /// which nobody is to be told anything.
    fn look(&mut self, keys: &[ViewKey]) -> Vec<(ViewKey, Write)> {
        let show =
            |now: &Now| keys.iter().map(|key| (key.clone(), show(&now.fleet, key))).collect::<Vec<_>>();
        let views = self.present.look(|now| now.caught_up.then(|| show(now))).unwrap_or_default();
        let mut writes = Vec::new();
        for (key, view) in views {
            self.due.remove(&key);
            let held = self.held.get(&key);
            match view {
                Some((digest, _)) if held.is_some_and(|held| held.digest == Some(digest)) => {
                    self.metrics.view(ViewResult::Unchanged);
                }
                Some((digest, bytes)) => writes.push((key, Write::Put(digest, bytes))),
                None if held.is_some() => writes.push((key, Write::Delete)),
                None => {}
            }
        }
        writes
    }

    /// Remembers what the bucket holds now, and makes due again what failed.
    fn settle(&mut self, results: Vec<(ViewKey, Write, Result<(), PublishError>)>) {
        let now = Instant::now();
        let mut failure = None;
        for (key, write, result) in results {
            let digest = match (&result, &write) {
                (Ok(()), Write::Delete) => {
                    self.metrics.view(ViewResult::Deleted);
                    self.held.remove(&key);
                    continue;
                }
                (Ok(()), Write::Put(digest, _)) => {
                    self.metrics.view(ViewResult::Written);
                    Some(*digest)
                }
                // Whether it was written is not known.
                (Err(_), _) => None,
            };
            self.held.insert(key.clone(), Held { digest, written_at: Some(now) });
            if let Err(error) = result {
                self.metrics.view(ViewResult::Failed);
                if error.kind != PublishErrorKind::Permanent {
                    self.due.insert(key.clone(), now);
                }
                failure.get_or_insert((key, error));
            }
        }
        match failure {
            None => self.retry.reset(),
            Some((key, error)) => {
                let retry_in = self.retry.next(&mut self.chance).max(WRITE_INTERVAL);
                tracing::warn!(view = %key, error = chain(&error), ?retry_in, "cannot write a view");
                self.due.values_mut().for_each(|at| *at = (*at).max(now + retry_in));
            }
        }
    }

    /// The end: the fold stands still, and the bucket shall say what it says. What cannot be written now is written by
    /// the next life.
    async fn finish(&mut self) {
        self.take_changed();
        if !self.present.look(|now| now.caught_up) {
            return;
        }
        for _ in 0..FINISH_ATTEMPTS_MAX {
            let Some(next) = self.due.values().max().copied() else { return };
            if !self.bus.link().borrow().is_up() {
                break;
            }
            tokio::time::sleep_until(next).await;
            self.write_due().await;
        }
        if !self.due.is_empty() {
            tracing::warn!(
                views = self.due.len(),
                "views are left as they are; the next start brings them up to date"
            );
        }
    }
}

async fn carry_out(bus: &Bus, key: &ViewKey, write: &Write) -> Result<(), PublishError> {
    match write {
        Write::Put(_, bytes) => bus.view_put(&key.to_string(), bytes.clone()).await.map(|_| ()),
        Write::Delete => bus.view_delete(&key.to_string()).await,
    }
}

/// A view as it is now: its digest and its document. None where there is none.
fn show(fleet: &Fleet, key: &ViewKey) -> Option<(Digest, Bytes)> {
    match key {
        ViewKey::Deployment(id) => {
            fleet.deployment_view(id).map(|view| (view.digest, to_bytes(&view).into()))
        }
        ViewKey::Site(id) => fleet.site_view(id).map(|view| (view.tally.digest, to_bytes(&view).into())),
        ViewKey::Fleet => {
            let view = fleet.fleet_view();
            Some((view.tally.digest, to_bytes(&view).into()))
        }
    }
}
