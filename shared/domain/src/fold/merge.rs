//! Merges the parts of several hubs with disjoint sites into one. The result equals that of one hub with all
//! those sites, digest for digest.
//!
//! A hub that is not heard still counts with its last parts, but none of its devices is heard and nothing of
//! them is known. The caller says whether a hub is heard: this module reads no clock.

mod answer;
pub(super) mod deployments;
pub(super) mod hearing;
mod hub;
pub(super) mod notice;
pub(super) mod pages;
pub(super) mod status;
pub(super) mod view;
pub(super) mod why;

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::parts::Part;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{AsOf, SiteView};
use muster_contract::{HubName, SiteId, Timestamp};

use self::hub::Hub;
use super::tally::BadPart;

/// Hubs and what they have given.
#[derive(Debug)]
pub struct Merge {
    hubs: BTreeMap<HubName, Hub>,
    /// Which hub has which site.
    sites: BTreeMap<SiteId, HubName>,
    changed: BTreeSet<ViewKey>,
}

/// The state of a part after it was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppliedPart {
    /// It counts.
    Whole,
    /// The part counts once its remaining rows have come: those after so many. Zero where it has changed
    /// meanwhile: the caller asks again from the first row.
    Rest(u64),
}

/// A site is at another hub already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("site '{site}' is at hub '{hub}' as well: a site belongs to one hub")]
pub struct OtherHub {
    /// The site.
    pub site: SiteId,
    /// The hub that has it and keeps it.
    pub hub: HubName,
}

impl Merge {
    /// Creates a merge of hubs that were not read yet.
    pub fn new(hubs: impl IntoIterator<Item = HubName>) -> Self {
        let hubs = hubs.into_iter().map(|name| (name, Hub::default())).collect();
        Self { hubs, sites: BTreeMap::new(), changed: BTreeSet::from([ViewKey::Fleet]) }
    }

    /// Applies a hub's part of a view, or its absence.
    ///
    /// # Errors
    /// The part is inconsistent; the part held before remains.
    pub fn apply_parts(
        &mut self,
        hub: &HubName,
        as_of: AsOf,
        key: &ViewKey,
        part: Option<&Part>,
    ) -> Result<AppliedPart, BadPart> {
        let Some(hub) = self.hubs.get_mut(hub) else { return Ok(AppliedPart::Whole) };
        let taken = hub.apply_part(key, part, &mut self.changed)?;
        hub.read_to(as_of);
        Ok(taken)
    }

    /// Takes a hub's view of one of its sites, or that the site has no device any more.
    ///
    /// # Errors
    /// Another hub has it.
    pub fn apply_site(
        &mut self,
        hub: &HubName,
        site: &SiteId,
        view: Option<&SiteView>,
    ) -> Result<(), OtherHub> {
        let Some(held) = self.hubs.get_mut(hub) else { return Ok(()) };
        match (self.sites.get(site), view) {
            (Some(other), _) if other != hub => {
                return match view {
                    Some(_) => Err(OtherHub { site: site.clone(), hub: other.clone() }),
                    None => Ok(()),
                };
            }
            (_, Some(view)) => {
                held.sites.insert(site.clone(), view.clone());
                self.sites.insert(site.clone(), hub.clone());
            }
            (_, None) => {
                held.sites.remove(site);
                self.sites.remove(site);
            }
        }
        self.changed.insert(ViewKey::Site(site.clone()));
        Ok(())
    }

    /// Everything that a hub had when it was looked through is taken.
    pub fn read_whole(&mut self, hub: &HubName) {
        if let Some(hub) = self.hubs.get_mut(hub) {
            hub.whole = true;
        }
    }

    /// Says that a hub answered at a moment.
    pub fn record_heard(&mut self, hub: &HubName, at: Timestamp) {
        let Some(held) = self.hubs.get_mut(hub) else { return };
        held.heard_at = Some(at);
        if !std::mem::replace(&mut held.heard, true) {
            self.changed.extend(held.keys());
        }
    }

    /// Says that a hub has not answered for too long.
    pub fn record_unreachable(&mut self, hub: &HubName) {
        let Some(held) = self.hubs.get_mut(hub) else { return };
        if std::mem::replace(&mut held.heard, false) {
            self.changed.extend(held.keys());
        }
    }

    /// Hubs that were never read completely. While there are any, nothing may be published: their content is
    /// unknown.
    pub fn unread(&self) -> Vec<HubName> {
        self.hubs.iter().filter(|(_, hub)| !hub.whole).map(|(name, _)| name.clone()).collect()
    }

    /// The keys held of a hub.
    pub fn keys_of(&self, hub: &HubName) -> BTreeSet<ViewKey> {
        self.hubs.get(hub).map(Hub::keys).unwrap_or_default()
    }

    /// The views that may have changed since the last call: also those that are gone now.
    pub fn drain_changed(&mut self) -> BTreeSet<ViewKey> {
        std::mem::take(&mut self.changed)
    }

    /// The hub that has a site.
    pub fn hub_of(&self, site: &SiteId) -> Option<&HubName> {
        self.sites.get(site)
    }

    /// The hubs by name.
    pub fn hub_names(&self) -> impl Iterator<Item = &HubName> {
        self.hubs.keys()
    }

    /// Those of them that are heard.
    pub fn heard_names(&self) -> impl Iterator<Item = &HubName> {
        self.hubs.iter().filter(|(_, hub)| hub.heard).map(|(name, _)| name)
    }

    /// The position of the parts: the sum of the hubs' sequences, which orders merged views and is no LEDGER
    /// sequence, and the time of the newest fact.
    pub fn as_of(&self) -> AsOf {
        sum_of(self.hubs.values().filter_map(|hub| hub.as_of))
    }
}

fn sum_of(read: impl Iterator<Item = AsOf>) -> AsOf {
    let start = AsOf { ledger_seq: 0, at: Timestamp::UNIX_EPOCH };
    read.fold(start, |sum, of| AsOf {
        ledger_seq: sum.ledger_seq.saturating_add(of.ledger_seq),
        at: sum.at.max(of.at),
    })
}
