//! The newest views of the fleet, its deployments and its sites, from the bucket `views`: one reader for all pages and event
//! streams of a gateway.
//!
//! A view is served only as long as it may be believed: while NATS is reached and the views are renewed. [`Feed::staleness`]
//! says otherwise, with the cause.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, ReadError, ViewEntry};
use muster_contract::subjects::ViewKey;
use muster_contract::validity::valid_until;
use muster_contract::view::{DeploymentView, FleetView, SiteView};
use muster_contract::{DeploymentId, SiteId, Timestamp};
use muster_service::clock::Clock;
use muster_service::error::chain;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Entries taken from the bucket at once.
const BATCH: usize = 256;
/// Time before the bucket is read again after an error.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A view of the bucket.
#[derive(Debug)]
pub(crate) struct CachedView<V> {
    /// The view.
    pub view: V,
    /// The document in one line, for an event.
    pub data: Bytes,
    /// Its sequence in LEDGER.
    pub ledger_seq: u64,
}

/// The newest views.
#[derive(Debug, Default, Clone)]
pub(crate) struct Views {
    /// The fleet; none before the first fact.
    pub fleet: Option<Arc<CachedView<FleetView>>>,
    /// The deployments.
    pub deployments: BTreeMap<DeploymentId, Arc<CachedView<DeploymentView>>>,
    /// The sites.
    pub sites: BTreeMap<SiteId, Arc<CachedView<SiteView>>>,
}

impl Views {
    /// The name of a deployment; empty if it is not known.
    pub(crate) fn name_of(&self, id: &DeploymentId) -> &str {
        self.deployments.get(id).map_or("", |cached| &cached.view.deployment_name)
    }
}

/// Why the views may not be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staleness {
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
    /// The cause, and a remedy.
    pub cause: &'static str,
}

#[derive(Debug, Default)]
struct State {
    views: Views,
    /// The number of changes so far.
    changes: u64,
    /// Whether the views could be believed after the last change.
    was_current: bool,
    is_loaded: bool,
    /// The last attempt to read the bucket failed.
    is_unreadable: bool,
    /// Since when NATS is not reached.
    down_since: Option<Timestamp>,
    /// Until when the view written last may be believed: one writer renews them all, and takes the validity back from all.
    until: Option<Timestamp>,
}

/// The newest views, kept up to date by [`Feed::follow`]. Clones share them.
#[derive(Clone)]
pub(crate) struct Feed {
    state: Arc<RwLock<State>>,
    followed: Arc<FollowedViews>,
    clock: Arc<dyn Clock>,
}

/// The views that somebody follows. A view that changes wakes those that follow it, and no other.
#[derive(Default)]
struct FollowedViews(Mutex<BTreeMap<ViewKey, watch::Sender<()>>>);

impl FollowedViews {
    fn follow(&self, key: &ViewKey) -> watch::Receiver<()> {
        let mut followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = followed.get(key) {
            return sender.subscribe();
        }
        followed.retain(|_, sender| sender.receiver_count() > 0);
        followed.entry(key.clone()).or_default().subscribe()
    }

    fn wake(&self, keys: &[ViewKey]) {
        let followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().filter_map(|key| followed.get(key)).for_each(|sender| sender.send_replace(()));
    }

    fn wake_all(&self) {
        let followed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        followed.values().for_each(|sender| sender.send_replace(()));
    }
}

/// Without the views.
impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

impl Feed {
    /// A feed without views.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { state: Arc::default(), followed: Arc::default(), clock }
    }

    /// A copy of the newest views, which share their content.
    pub(crate) fn views(&self) -> Views {
        self.read(|state| state.views.clone())
    }

    /// The data and sequence of one view.
    pub(crate) fn data(&self, key: &ViewKey) -> Option<(Bytes, u64)> {
        fn of<V>(held: &Arc<CachedView<V>>) -> (Bytes, u64) {
            (held.data.clone(), held.ledger_seq)
        }
        self.read(|state| match key {
            ViewKey::Fleet => state.views.fleet.as_ref().map(of),
            ViewKey::Deployment(id) => state.views.deployments.get(id).map(of),
            ViewKey::Site(site) => state.views.sites.get(site).map(of),
            _ => None,
        })
    }

    /// The number of changes so far, of views and of their validity.
    pub(crate) fn changes_seen(&self) -> u64 {
        self.read(|state| state.changes)
    }

    /// Wakes its holder when a view changes, and when views may no longer be believed or may be again.
    pub(crate) fn changes(&self, key: &ViewKey) -> watch::Receiver<()> {
        self.followed.follow(key)
    }

    /// Why the views may not be believed; `None` if they may.
    pub(crate) fn staleness(&self) -> Option<Staleness> {
        let now = self.clock.now();
        self.read(|state| state.staleness(now))
    }

    /// Follows the bucket until `stop`.
    pub(crate) async fn follow(self, bus: Bus, stop: CancellationToken) {
        let link = self.clone().follow_link(bus.clone());
        let views = async {
            loop {
                if let Err(error) = self.follow_views(&bus).await {
                    tracing::debug!(cause = chain(&error), "cannot read the views; trying again");
                    self.write(|state| state.is_unreadable = true);
                }
                sleep(RETRY_AFTER).await;
            }
        };
        Box::pin(stop.run_until_cancelled(async { tokio::join!(link, views) })).await;
    }

    async fn follow_link(self, bus: Bus) {
        let mut link = bus.link();
        loop {
            let is_up = link.borrow_and_update().is_up();
            let now = self.clock.now();
            self.write(|state| {
                if is_up {
                    state.down_since = None;
                } else {
                    _ = state.down_since.get_or_insert(now);
                }
            });
            if link.changed().await.is_err() {
                return;
            }
        }
    }

    async fn follow_views(&self, bus: &Bus) -> Result<(), ReadError> {
        let mut watch = bus.view_watch(">").await?;
        let mut present = State::default();
        while let Some(entries) = watch.next_present(BATCH).await? {
            entries.iter().for_each(|entry| present.apply_entry(entry));
        }
        self.write(|state| {
            (state.views, state.until, state.is_loaded) = (present.views, present.until, true);
        });
        // Views may have changed since the bucket was read before.
        self.followed.wake_all();
        loop {
            let entries = watch.next_batch(BATCH).await?;
            self.write(|state| entries.iter().for_each(|entry| state.apply_entry(entry)));
            let keys: Vec<_> = entries.iter().filter_map(|entry| ViewKey::parse(&entry.key)).collect();
            self.followed.wake(&keys);
        }
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state. Wakes every stream if the views are stale or current now and were not after the change before. If their
    /// validity ends without a change, nothing wakes a stream: it looks when it is `alive`.
    fn write(&self, write: impl FnOnce(&mut State)) {
        let now = self.clock.now();
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        write(&mut state);
        state.changes += 1;
        let is_current = state.staleness(now).is_none();
        let was_current = std::mem::replace(&mut state.was_current, is_current);
        drop(state);
        if is_current != was_current {
            self.followed.wake_all();
        }
    }
}

impl State {
    fn staleness(&self, now: Timestamp) -> Option<Staleness> {
        if self.down_since.is_some() {
            let cause = "NATS is not reached; the gateway tries again";
            return Some(Staleness { since: self.down_since, cause });
        }
        if !self.is_loaded {
            let cause = if self.is_unreadable {
                "the views cannot be read: follow them with the credentials of a subscriber or an operator"
            } else {
                "the views are being read; try again in a moment"
            };
            return Some(Staleness { since: None, cause });
        }
        let until = self.until.filter(|until| *until < now)?;
        let cause = "the views are not renewed: does muster-rollup run, and has it read LEDGER to its end?";
        Some(Staleness { since: Some(until), cause })
    }

    /// Applies an entry of the bucket. An entry that is no view of its key removes the view.
    fn apply_entry(&mut self, entry: &ViewEntry) {
        let Some(key) = ViewKey::parse(&entry.key) else { return };
        self.until = entry.value.as_deref().and_then(valid_until).or(self.until);
        match key {
            ViewKey::Fleet => self.views.fleet = parse_view(entry),
            ViewKey::Deployment(id) => set_or_remove(&mut self.views.deployments, id, parse_view(entry)),
            ViewKey::Site(site) => set_or_remove(&mut self.views.sites, site, parse_view(entry)),
            _ => {}
        }
    }
}

fn set_or_remove<K: Ord, V>(views: &mut BTreeMap<K, V>, key: K, view: Option<V>) {
    match view {
        Some(view) => _ = views.insert(key, view),
        None => _ = views.remove(&key),
    }
}

fn parse_view<V: DeserializeOwned>(entry: &ViewEntry) -> Option<Arc<CachedView<V>>> {
    let value: Value = serde_json::from_slice(entry.value.as_deref()?).ok()?;
    // Written again: an event's data is one line.
    let data = Bytes::from(value.to_string());
    let ledger_seq = value["asOf"]["ledgerSeq"].as_u64()?;
    let view = serde_json::from_value(value);
    let view = view
        .inspect_err(|error| tracing::warn!(view = entry.key, %error, "ignored an entry that is no view"));
    Some(Arc::new(CachedView { view: view.ok()?, data, ledger_seq }))
}

#[cfg(test)]
mod tests {
    use muster_service::clock::SystemClock;

    use super::*;

    #[test]
    fn a_view_wakes_its_followers_and_staleness_wakes_all() {
        let feed = Feed::new(Arc::new(SystemClock));
        let site = ViewKey::Site("plant7".parse().unwrap());
        let mut followers = [feed.changes(&ViewKey::Fleet), feed.changes(&site), feed.changes(&site)];
        let mut woken = || -> Vec<bool> {
            let seen = |one: &mut watch::Receiver<()>| {
                let is_woken = one.has_changed().unwrap();
                one.mark_unchanged();
                is_woken
            };
            followers.iter_mut().map(seen).collect()
        };
        feed.followed.wake(std::slice::from_ref(&site));
        assert_eq!(woken(), [false, true, true]);
        feed.write(|state| state.is_loaded = true);
        assert_eq!(woken(), [true; 3], "the views are current");
        feed.write(|_| {});
        assert_eq!(woken(), [false; 3]);
        feed.write(|state| state.down_since = Some(Timestamp::now()));
        assert_eq!(woken(), [true; 3], "they are stale");
    }

    #[test]
    fn a_view_without_followers_takes_no_memory_for_long() {
        let followed = FollowedViews::default();
        for number in 0..100 {
            drop(followed.follow(&ViewKey::Site(format!("site-{number}").parse().unwrap())));
        }
        assert_eq!(followed.0.lock().unwrap().len(), 1);
    }
}
