//! The newest views of the fleet, its deployments and its sites, from the bucket `views`: one reader for all pages and event
//! streams of a gateway.
//!
//! A view is served only as long as it may be believed: while NATS is reached and the views are renewed. [`Feed::staleness`]
//! says otherwise, with the cause.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
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
    changed: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
}

/// Without the views.
impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("changes", &*self.changed.borrow()).finish_non_exhaustive()
    }
}

impl Feed {
    /// A feed without views.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { state: Arc::default(), changed: watch::Sender::new(0), clock }
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

    /// The number of changes so far, as a watched value.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Why the views may not be believed; `None` if they may.
    pub(crate) fn staleness(&self) -> Option<Staleness> {
        let now = self.clock.now();
        self.read(|state| {
            if state.down_since.is_some() {
                let cause = "NATS is not reached; the gateway tries again";
                return Some(Staleness { since: state.down_since, cause });
            }
            if !state.is_loaded {
                let cause = if state.is_unreadable {
                    "the views cannot be read: follow them with the credentials of a subscriber or an operator"
                } else {
                    "the views are being read; try again in a moment"
                };
                return Some(Staleness { since: None, cause });
            }
            let until = state.until.filter(|until| *until < now)?;
            let cause =
                "the views are not renewed: does muster-rollup run, and has it read LEDGER to its end?";
            Some(Staleness { since: Some(until), cause })
        })
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
        loop {
            let entries = watch.next_batch(BATCH).await?;
            self.write(|state| entries.iter().for_each(|entry| state.apply_entry(entry)));
        }
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, write: impl FnOnce(&mut State)) {
        write(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_modify(|changes| *changes += 1);
    }
}

impl State {
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
