//! What all hubs say together: the parts of each, added, and which of them are heard. The followers of the hubs write here;
//! everyone else looks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use muster_contract::parts::{HubLine, HubName, HubsView, PartsAnswer};
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, SiteView};
use muster_contract::{SiteId, Timestamp};
use muster_domain::merge::Merge;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::Lease;

/// What is known of all hubs.
#[derive(Debug)]
pub struct Now {
    /// Their parts.
    pub merge: Merge,
    hubs: BTreeMap<HubName, Hub>,
}

#[derive(Debug, Clone)]
struct Hub {
    lease: Lease,
    heard: bool,
    heard_at: Option<Timestamp>,
    as_of: Option<AsOf>,
}

/// What is known of all hubs, shared.
#[derive(Debug)]
pub struct Merged {
    now: RwLock<Now>,
    /// Rises with every change.
    changes: watch::Sender<u64>,
    whole: watch::Sender<bool>,
}

impl Now {
    /// Every hub and whether it is heard, by name.
    pub fn hubs(&self) -> HubsView {
        let line = |(name, hub): (&HubName, &Hub)| HubLine {
            name: name.clone(),
            as_of: hub.as_of,
            heard: hub.heard,
            heard_at: hub.heard_at,
        };
        HubsView { hubs: self.hubs.iter().map(line).collect() }
    }
}

impl Merged {
    /// Hubs of which nothing is known yet.
    pub fn new(hubs: impl IntoIterator<Item = HubName>, lease: Duration) -> Self {
        let hub = Hub { lease: Lease::new(lease), heard: false, heard_at: None, as_of: None };
        let hubs: BTreeMap<_, _> = hubs.into_iter().map(|name| (name, hub.clone())).collect();
        let merge = Merge::new(hubs.keys().cloned());
        Self {
            now: RwLock::new(Now { merge, hubs }),
            changes: watch::Sender::new(0),
            whole: watch::Sender::new(false),
        }
    }

    /// Looks.
    pub fn look<T>(&self, look: impl FnOnce(&Now) -> T) -> T {
        look(&self.read())
    }

    /// Views that may say something else than when this was last asked.
    pub fn take_changed(&self) -> BTreeSet<ViewKey> {
        self.write().merge.take_changed()
    }

    /// A hub has answered with parts: it is heard, and what it says of them holds. Gives the keys that the answer is about.
    pub fn take(
        &self,
        hub: &HubName,
        answer: PartsAnswer,
        at: Instant,
        heard_at: Timestamp,
    ) -> BTreeSet<ViewKey> {
        let PartsAnswer { as_of, parts, gone } = answer;
        let there = parts.into_iter().map(|(key, part)| (key, Some(part)));
        let said: Vec<_> = there
            .chain(gone.into_iter().map(|key| (key, None)))
            .filter_map(|(key, part)| Some((ViewKey::parse(&key)?, part)))
            .collect();
        let keys = said.iter().map(|(key, _)| key.clone()).collect();
        self.change(|now| {
            for (key, part) in said {
                now.merge.take(hub, as_of, &key, part);
            }
            if let Some(one) = now.hubs.get_mut(hub) {
                one.lease.renew(at);
                (one.heard_at, one.as_of) = (Some(heard_at), Some(as_of));
                one.heard = true;
            }
            now.merge.hear(hub, true);
        });
        keys
    }

    /// What a hub says of one of its sites, or that it has none of that name.
    ///
    /// # Errors
    /// The hub that has the site already. It stays there.
    pub fn take_site(&self, hub: &HubName, site: &SiteId, view: Option<SiteView>) -> Result<(), HubName> {
        self.change(|now| now.merge.take_site(hub, site, view))
    }

    /// What is held of a hub.
    pub fn keys_of(&self, hub: &HubName) -> BTreeSet<ViewKey> {
        self.read().merge.keys_of(hub)
    }

    /// A hub was read to its end.
    pub fn read_whole(&self, hub: &HubName) {
        let whole = self.change(|now| {
            now.merge.read_whole(hub);
            now.merge.is_whole().is_ok()
        });
        self.whole.send_if_modified(|told| !std::mem::replace(told, whole) && whole);
    }

    /// Ends the leases that are over; those hubs, and when to look again: none where no hub is heard.
    pub fn expire(&self, at: Instant) -> (Vec<HubName>, Option<Instant>) {
        let over = |(_, hub): &(&HubName, &mut Hub)| hub.heard && !hub.lease.holds(at);
        let mut now = self.write();
        let Now { merge, hubs } = &mut *now;
        let mut silent = Vec::new();
        for (name, hub) in hubs.iter_mut().filter(over) {
            hub.heard = false;
            merge.hear(name, false);
            silent.push(name.clone());
        }
        let next = hubs.values().filter(|hub| hub.heard).filter_map(|hub| hub.lease.ends_at()).min();
        drop(now);
        if !silent.is_empty() {
            self.tell();
        }
        (silent, next)
    }

    /// Follows that something has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Follows whether every hub was read once: until then nobody is to be told anything.
    pub fn whole(&self) -> watch::Receiver<bool> {
        self.whole.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Now) -> T) -> T {
        let result = change(&mut self.write());
        self.tell();
        result
    }

    fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Each change is one call of a total function, so that a panic elsewhere leaves nothing that a lock could mend.
    fn read(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Now> {
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }
}
