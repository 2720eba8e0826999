//! Sites that are silent as a whole. Whether a device is silent its liveness says; here is only whether that is true of all
//! of a site, and when the last of them was heard. Nobody's silence is guessed, and nobody's is explained.

use muster_contract::silence::{SILENT_DEVICES_MIN, SILENT_SITES_MAX, SilentSite, SilentSites};
use muster_contract::view::Freshness;
use muster_contract::{SiteId, Timestamp};

use super::fleet::Fleet;
use super::totals::Site;

impl Fleet {
    /// The silent sites (only this one, if one is named) that have targets (of this deployment, if one is named).
    pub(super) fn silent_sites(&self, only: Option<&SiteId>, deployment: Option<u32>) -> SilentSites {
        let sites = self.totals.site_numbers.iter().filter(|(id, _)| only.is_none_or(|only| only == *id));
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
            // The devices of a site are looked at only where they are shown: a fleet may be silent as a whole.
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
        let devices = site.members.iter().map(|number| &self.devices[number as usize].about);
        let silent = devices.filter(|about| !about.is_retired() && about.freshness() == Freshness::Stale);
        silent.filter_map(|about| about.heard_at()).max()
    }
}

/// Whether several of a site's devices were heard once, and none is now. Where the hub itself has stopped to listen to one that
/// was heard until then, nothing is known of the site's silence.
fn is_silent(site: &Site) -> bool {
    let devices = site.whole.devices.by_freshness();
    devices.fresh == 0 && site.whole.masked == 0 && devices.stale >= SILENT_DEVICES_MIN
}
