//! What all hubs say together: the parts of each, added, and which of them are heard. The followers of the hubs write here;
//! everyone else looks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use muster_contract::parts::PartsAnswer;
use muster_contract::subjects::ViewKey;
use muster_contract::view::SiteView;
use muster_contract::{HubName, SiteId, Timestamp};
use muster_domain::fold::{BadPart, Merge, OtherHub, Taken};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease::Lease;

/// What is known of all hubs.
#[derive(Debug)]
struct Now {
    merge: Merge,
    /// Of those that are heard.
    leases: BTreeMap<HubName, Lease>,
}

/// What is known of all hubs, shared.
#[derive(Debug)]
pub struct Merged {
    now: RwLock<Now>,
    lease: Duration,
    /// Rises with every change.
    changes: watch::Sender<u64>,
    whole: watch::Sender<bool>,
}

/// What became of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Keys that it has settled.
    pub settled: BTreeSet<ViewKey>,
    /// Keys of which there is more, after so many rows.
    pub rest: Vec<(ViewKey, u64)>,
    /// The first that makes no sense, and why. A hub that says such is not heard.
    pub bad: Option<(ViewKey, BadPart)>,
}

impl Merged {
    /// Hubs of which nothing is known yet, each silent after so long without an answer.
    pub fn new(hubs: impl IntoIterator<Item = HubName>, lease: Duration) -> Self {
        Self {
            now: RwLock::new(Now { merge: Merge::new(hubs), leases: BTreeMap::new() }),
            lease,
            changes: watch::Sender::new(0),
            whole: watch::Sender::new(false),
        }
    }

    /// Looks.
    pub fn look<T>(&self, look: impl FnOnce(&Merge) -> T) -> T {
        look(&self.read().merge)
    }

    /// Views that may say something else than when this was last asked.
    pub fn take_changed(&self) -> BTreeSet<ViewKey> {
        self.write().merge.take_changed()
    }

    /// A hub has answered with parts: what it says of them holds, and it is heard.
    pub fn take(&self, hub: &HubName, answer: &PartsAnswer, at: Instant, heard_at: Timestamp) -> Took {
        let there = answer.parts.iter().map(|(key, part)| (key, Some(part)));
        let said = there.chain(answer.gone.iter().map(|key| (key, None)));
        let said: Vec<_> = said.filter_map(|(key, part)| Some((ViewKey::parse(key)?, part))).collect();
        let mut took = Took::default();
        self.change(|now| {
            for (key, part) in said {
                match now.merge.take(hub, answer.as_of, &key, part) {
                    Ok(Taken::Whole) => _ = took.settled.insert(key),
                    Ok(Taken::Rest(rows)) => took.rest.push((key, rows)),
                    Err(why) => _ = took.bad.get_or_insert((key, why)),
                }
            }
            if took.bad.is_none() {
                now.merge.hear(hub, heard_at);
                now.leases.entry(hub.clone()).or_insert(Lease::new(self.lease, at)).renew(at);
            }
        });
        took
    }

    /// What a hub says of one of its sites, or that it has none of that name.
    ///
    /// # Errors
    /// Another hub has the site already. It stays there.
    pub fn take_site(&self, hub: &HubName, site: &SiteId, view: Option<&SiteView>) -> Result<(), OtherHub> {
        self.change(|now| now.merge.take_site(hub, site, view))
    }

    /// A hub was read to its end.
    pub fn read_whole(&self, hub: &HubName) {
        let whole = self.change(|now| {
            now.merge.read_whole(hub);
            now.merge.unread().is_empty()
        });
        self.whole.send_if_modified(|told| !std::mem::replace(told, whole) && whole);
    }

    /// Ends the leases that are over; those hubs, and when to look again: none where no hub is heard.
    pub fn expire(&self, at: Instant) -> (Vec<HubName>, Option<Instant>) {
        let mut now = self.write();
        let Now { merge, leases } = &mut *now;
        let silent: Vec<_> =
            leases.extract_if(.., |_, lease| !lease.holds(at)).map(|(name, _)| name).collect();
        silent.iter().for_each(|name| merge.miss(name));
        let next = leases.values().map(Lease::ends_at).min();
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
