//! Tests that a site is silent as a whole exactly where its devices' own lines say so, over arbitrary ledgers,
//! until one device is heard; that silent devices by site and the oldest silence are what these lines say.

use std::collections::BTreeMap;

use crate::fleets::ledgers_of_a_deaf_hub;
use crate::ledger::{Ledger, stored_at};
use muster_contract::query::{DeviceLine, Query};
use muster_contract::silence::{SilentSite, SilentSites};
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, SiteId};
use muster_domain::fold::{Fleet, Page};
use proptest::prelude::*;

const ALL: Page<DeviceKey> = Page { after: None, limit: usize::MAX };

/// The silent sites in the list of deployments.
fn silent(fleet: &Fleet, only: Option<&SiteId>) -> SilentSites {
    let page = Page { after: None, limit: 1 };
    fleet
        .deployments_answer(&Query { site: only.cloned().into(), ..Query::default() }, &page)
        .unwrap()
        .silent_sites
}

/// The same from the lines of the devices.
fn silent_by_lines(lines: &[DeviceLine]) -> Vec<SilentSite> {
    let mut sites: BTreeMap<&SiteId, Vec<&DeviceLine>> = BTreeMap::new();
    for line in lines.iter().filter(|line| !line.retired) {
        sites.entry(&line.key.site).or_default().push(line);
    }
    let of = |(site, lines): (&SiteId, Vec<&DeviceLine>)| {
        let count = |freshness| lines.iter().filter(|line| line.freshness == freshness).count() as u64;
        let (fresh, stale) = (count(Freshness::Fresh), count(Freshness::Stale));
        let targets = lines.iter().flat_map(|line| line.standings.values()).sum();
        let heard = lines.iter().filter(|line| line.freshness == Freshness::Stale);
        let since = heard.filter_map(|line| line.last_heard_at).max()?;
        let is_silent = fresh == 0 && stale >= 2 && targets > 0;
        is_silent.then(|| SilentSite { site: site.clone(), devices: stale, targets, since })
    };
    sites.into_iter().filter_map(of).collect()
}

/// The ledger without the hub's hearing. A device that is stale because the hub does not hear its partition stays as it
/// was: nothing is known of its silence.
fn without_hearing(ledger: &Ledger) -> Ledger {
    let of_devices = ledger.entries.iter().filter(|one| one.subject.device().is_some());
    Ledger { entries: of_devices.cloned().collect() }
}

proptest! {
    #[test]
    fn silent_devices_are_counted_as_the_lines_of_devices_say(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        let lines = without_hearing(&ledger).fold().devices_answer(&Default::default(), &ALL).unwrap().devices;
        let silent = lines.iter().filter(|line| !line.retired && line.freshness == Freshness::Stale);
        let mut sites: BTreeMap<SiteId, u64> = BTreeMap::new();
        silent.clone().for_each(|line| *sites.entry(line.key.site.clone()).or_default() += 1);
        let mut expected = Vec::from_iter(sites);
        expected.sort_by_key(|(site, count)| (std::cmp::Reverse(*count), site.clone()));
        let oldest = silent.filter_map(|line| line.last_heard_at).min().map(|at| at.as_second());
        let restored = Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records());
        for fleet in [&fleet, &restored] {
            prop_assert_eq!(fleet.oldest_silence().map(|at| at.as_second()), oldest);
            for sites_max in 0..=expected.len() {
                let (first, others) = expected.split_at(sites_max);
                let others = others.iter().map(|(_, count)| count).sum();
                let counted = fleet.silent_devices(sites_max);
                prop_assert_eq!((counted.first.as_slice(), counted.others), (first, others));
            }
        }
    }

    #[test]
    fn a_site_is_silent_where_the_lines_of_its_devices_say_so(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        let lines = without_hearing(&ledger).fold().devices_answer(&Default::default(), &ALL).unwrap().devices;
        let expected = silent_by_lines(&lines);
        let found = silent(&fleet, None);
        prop_assert_eq!(found.count, expected.len() as u64);
        prop_assert_eq!(&found.first, &expected);
        for line in &lines {
            let site = &line.key.site;
            let own: Vec<_> = expected.iter().filter(|silent| silent.site == *site).cloned().collect();
            prop_assert_eq!(silent(&fleet, Some(site)).first, own);
        }
    }
}

#[test]
fn a_silent_site_is_named_with_its_deployment_until_a_device_is_heard() {
    let mut ledger = Ledger::default();
    for device in ["north/a", "north/b", "south/a"] {
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 0);
    }
    ledger.desired("south/a", 2, &[("web", 1), ("db", 2)]);
    let (web, db) = ("web".parse().unwrap(), "db".parse().unwrap());
    let named = |fleet: &Fleet| {
        let why = fleet.why(&web, None, &ALL).unwrap().silent_sites;
        let status = fleet.deployment_answer(&web).unwrap().silent_sites;
        assert_eq!((&why, &why), (&status, &silent(fleet, None)));
        why.first
    };
    ledger.stale("north/a", 1, 0);
    assert_eq!(named(&ledger.fold()), [], "the other is heard");
    ledger.stale("north/b", 1, 0).stale("south/a", 1, 0);
    let since = stored_at(ledger.entries.len() as u64 - 1);
    let north: SiteId = "north".parse().unwrap();
    let fleet = ledger.fold();
    assert_eq!(named(&fleet), [SilentSite { site: north, devices: 2, targets: 2, since }]);
    assert!(fleet.why(&db, None, &ALL).unwrap().silent_sites.is_empty(), "one device alone is no site");
    ledger.fresh("north/a", 1, 0);
    assert_eq!(named(&ledger.fold()), [], "one of them is heard again");
}
