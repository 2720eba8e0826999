//! Finds sites that are silent as a whole, and when their last device was heard; counts silent devices by site.
//! Liveness facts decide whether a device is silent; this module neither guesses nor explains silence.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use muster_contract::query::{DevicesAnswer, Query, Sites};
use muster_contract::silence::{SILENT_DEVICES_MIN, SILENT_SITES_MAX, SilentSite, SilentSites};
use muster_contract::status::LOOKED_AT_MAX;
use muster_contract::view::Freshness;
use muster_contract::{SiteId, Timestamp};

use super::answer::{Page, passing};
use super::fleet::Fleet;
use super::silence_order::SilenceCursor;
use super::status::StatusRefusal;
use super::totals::Site;

/// Silent devices by site: the sites with most of them, and the sum of the others. A device counts if it was heard once,
/// is not retired, and is not silent only because the hub does not hear its partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SilentDevices {
    /// The sites with most silent devices, most first, those with as many by name.
    pub first: Vec<(SiteId, u64)>,
    /// Silent devices of all other sites.
    pub others: u64,
}

impl Fleet {
    /// The silent devices by site, of at most so many sites. It visits sites, no devices.
    pub fn silent_devices(&self, sites_max: usize) -> SilentDevices {
        let (mut first, mut others) = (BTreeSet::new(), 0);
        // In the order of names: of sites with as many silent devices, a later one comes after those of `first`.
        for (id, number) in &self.totals.site_numbers {
            let count = silent_devices_of(self.totals.site(*number));
            let is_full = first.len() == sites_max;
            if count == 0 || (is_full && first.last().is_none_or(|(Reverse(least), _)| count <= *least)) {
                others += count;
                continue;
            }
            if is_full {
                others += first.pop_last().map_or(0, |(Reverse(least), _)| least);
            }
            first.insert((Reverse(count), id));
        }
        let first = first.into_iter().map(|(Reverse(count), id)| (id.clone(), count)).collect();
        SilentDevices { first, others }
    }

    /// When the device that has been silent for longest was last heard, to the second.
    pub fn oldest_silence(&self) -> Option<Timestamp> {
        self.silence_starts.oldest()
    }

    /// The stale and never heard devices at the query's sites, in the order of [`SilenceCursor`], without those of partitions that the
    /// hub does not hear. Other filters of the query do not apply. At most [`LOOKED_AT_MAX`] devices are visited.
    ///
    /// # Errors
    /// A site is unknown.
    pub fn devices_by_silence(
        &self,
        query: &Query,
        page: &Page<SilenceCursor>,
    ) -> Result<DevicesAnswer, StatusRefusal> {
        self.known_sites(query)?;
        let silent = self.silence_order.after(page.after.as_ref());
        let (found, last) = passing(silent, page.limit, LOOKED_AT_MAX, |(_, key)| query.site.pass(&key.site));
        let devices = found.into_iter().filter_map(|(_, key)| self.find(key)).map(|device| self.line(device));
        let devices = devices.collect();
        let next = last
            .map(|(second, device)| SilenceCursor { second: *second, device: device.clone() }.to_string());
        let hub = self.hub_hearing_at(query.site.iter());
        Ok(DevicesAnswer { as_of: self.as_of, devices, hub, next })
    }

    /// The silent sites of the whole fleet that have targets.
    pub fn silent_sites_of_fleet(&self) -> SilentSites {
        self.silent_sites(&Sites::default(), None)
    }

    /// The silent sites (only these, if any is named) that have targets (of this deployment, if one is named).
    pub(super) fn silent_sites(&self, only: &Sites, deployment: Option<u32>) -> SilentSites {
        let sites = self.totals.site_numbers.iter().filter(|(id, _)| only.pass(id));
        let silent = sites.map(|(_, number)| self.totals.site(*number)).filter(|site| is_silent(site));
        let mut found = SilentSites::default();
        for site in silent {
            let targets = match deployment {
                Some(number) => site.deployments.get(number).map_or(0, |group| group.targets()),
                None => site.whole.group.targets(),
            };
            if targets == 0 {
                continue;
            }
            found.count += 1;
            // A site's devices are visited only where they are shown: a fleet may be silent as a whole.
            if found.first.len() < SILENT_SITES_MAX {
                found.first.extend(self.silent_site(site, targets));
            }
        }
        found
    }

    fn silent_site(&self, site: &Site, targets: u64) -> Option<SilentSite> {
        let devices = site.whole.devices.by_freshness().stale;
        Some(SilentSite { site: site.id.clone(), devices, targets, since: self.last_heard(site)? })
    }

    /// When the last of a site's silent devices was heard.
    fn last_heard(&self, site: &Site) -> Option<Timestamp> {
        let devices = site.members.iter().map(|number| &self.devices[number as usize].state);
        let silent = devices.filter(|state| !state.is_retired() && state.freshness() == Freshness::Stale);
        silent.filter_map(|state| state.heard_at()).max()
    }
}

fn silent_devices_of(site: &Site) -> u64 {
    site.whole.devices.by_freshness().stale.saturating_sub(site.whole.masked.into())
}

/// Whether several of a site's devices were heard once, and none is now. If the hub stopped hearing the
/// partition of a device that was heard until then, nothing is known of the site's silence.
fn is_silent(site: &Site) -> bool {
    let devices = site.whole.devices.by_freshness();
    devices.fresh == 0 && site.whole.masked == 0 && devices.stale >= SILENT_DEVICES_MIN
}
