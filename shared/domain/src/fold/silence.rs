//! Finds sites that are silent as a whole, and when their last device was heard. Liveness facts decide whether
//! a device is silent; this module neither guesses nor explains silence.

use muster_contract::Timestamp;
use muster_contract::query::Sites;
use muster_contract::silence::{SILENT_DEVICES_MIN, SILENT_SITES_MAX, SilentSite, SilentSites};
use muster_contract::view::Freshness;

use super::fleet::Fleet;
use super::totals::Site;

impl Fleet {
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

/// Whether several of a site's devices were heard once, and none is now. If the hub stopped hearing the
/// partition of a device that was heard until then, nothing is known of the site's silence.
fn is_silent(site: &Site) -> bool {
    let devices = site.whole.devices.by_freshness();
    devices.fresh == 0 && site.whole.masked == 0 && devices.stale >= SILENT_DEVICES_MIN
}
