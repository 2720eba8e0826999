//! Tests the law of sums: the parts of hubs with disjoint sites add up to the views of one hub with all those
//! sites. A hub that is not heard still counts, and counts as unknown.

use std::collections::BTreeMap;

use crate::fleets::ledgers;
use crate::ledger;
use crate::ledger::{Ledger, Said, position};
use muster_contract::canonical::Digest;
use muster_contract::explained::Explained;
use muster_contract::groups::GroupLine;
use muster_contract::parts::Part;
use muster_contract::subjects::ViewKey;
use muster_contract::view::Verdict;
use muster_contract::{DeploymentId, HubName, State};
use muster_domain::fold::{AppliedPart, BadPart, Fleet, Merge, OtherHub, Page, all_unheard};
use proptest::prelude::*;

/// A hub a site, of the two that the ledgers have.
const HUBS: [&str; 2] = ["north", "south"];
/// As many rows as nobody has.
const ALL: usize = usize::MAX;

fn hub(name: &str) -> HubName {
    name.parse().unwrap()
}

/// The facts of one site, in a LEDGER of its own.
fn part_of(ledger: &Ledger, site: &str) -> Ledger {
    let of_site =
        |entry: &&ledger::Entry| entry.subject.device().is_some_and(|key| key.site.as_str() == site);
    Ledger { entries: ledger.entries.iter().filter(of_site).cloned().collect() }
}

/// Takes all that a hub has, so many rows at a time, and takes out what it has no more.
fn read(merge: &mut Merge, name: &HubName, fleet: &Fleet, rows: usize) {
    for key in merge.keys_of(name).union(&fleet.view_keys()) {
        match key {
            ViewKey::Site(site) => merge.apply_site(name, site, fleet.site_view(site).as_ref()).unwrap(),
            key => take(merge, name, fleet, key, rows),
        }
    }
    merge.read_whole(name);
}

fn take(merge: &mut Merge, name: &HubName, fleet: &Fleet, key: &ViewKey, rows: usize) {
    let mut skip = 0;
    loop {
        // As a document, as it comes over the bus.
        let part: Option<Part> = fleet
            .part(key, skip, rows)
            .map(|part| serde_json::from_slice(&serde_json::to_vec(&part).unwrap()).unwrap());
        match merge.apply_parts(name, fleet.as_of(), key, part.as_ref()).unwrap() {
            AppliedPart::Whole => return,
            AppliedPart::Rest(next) => {
                assert!(next > skip, "each answer brings rows");
                skip = next;
            }
        }
    }
}

fn merged(fleets: &[(HubName, Fleet)], rows: usize) -> Merge {
    let mut merge = Merge::new(fleets.iter().map(|(name, _)| name.clone()));
    for (name, fleet) in fleets {
        merge.record_heard(name, "2026-11-22T08:00:00Z".parse().unwrap());
        read(&mut merge, name, fleet, rows);
    }
    merge
}

fn fleets(ledger: &Ledger) -> Vec<(HubName, Fleet)> {
    HUBS.map(|name| (hub(name), part_of(ledger, name).fold())).into()
}

fn digests(merge: &Merge, keys: impl IntoIterator<Item = ViewKey>) -> BTreeMap<String, Digest> {
    let digest = |key: ViewKey| Some((key.to_string(), merge.view(&key)?.0));
    keys.into_iter().filter_map(digest).collect()
}

fn all_of(merge: &Merge) -> BTreeMap<String, Digest> {
    digests(merge, HUBS.iter().flat_map(|name| merge.keys_of(&hub(name))))
}

fn without_times<P: Clone>(part: &Explained<P>) -> Explained<P> {
    Explained { changed_at: None, last_heard_at: None, ..part.clone() }
}

fn line_without_times(line: &GroupLine) -> GroupLine {
    GroupLine { part: without_times(&line.part), ..line.clone() }
}

proptest! {
    #[test]
    fn the_sum_of_the_parts_is_the_view_of_the_whole_digest_for_digest(ledger in ledgers(), rows in 1usize..5) {
        let (whole, merge) = (ledger.fold(), merged(&fleets(&ledger), rows));
        prop_assert_eq!(all_of(&merge), whole.digests());
        prop_assert!(merge.unread().is_empty());
        let page = Page { after: None, limit: ALL };
        let sum = whole.deployments_answer(&Default::default(), &page).unwrap();
        let views = merge.deployments_answer(&Default::default(), &page);
        prop_assert_eq!(views.silent_sites, sum.silent_sites);
        prop_assert_eq!(views.deployments.len(), sum.deployments.len());
        for label in ["region", "ring"].map(|label| label.parse().unwrap()) {
            for id in [None, Some("web"), Some("db")].map(|id| id.map(|id| id.parse::<DeploymentId>().unwrap())) {
                let Ok(answer) = whole.groups_answer(&label, id.as_ref(), &Page { after: None, limit: ALL }) else {
                    continue;
                };
                let Ok(sum) = merge.groups_answer(&label, id.as_ref(), &Page { after: None, limit: ALL }) else {
                    // A group of retired devices alone has no view, so nobody hears of it.
                    prop_assert!(answer.groups.iter().all(|group| group.devices.total() == 0));
                    continue;
                };
                prop_assert_eq!(sum.total.last_heard_at, answer.total.last_heard_at);
                prop_assert_eq!(without_times(&sum.total), without_times(&answer.total));
                prop_assert_eq!(&sum.without, &answer.without);
                let there: Vec<_> = answer.groups.iter().filter(|group| group.devices.total() > 0).collect();
                for (sum, whole) in sum.groups.iter().zip(&there) {
                    prop_assert_eq!(sum.part.last_heard_at, whole.part.last_heard_at);
                    // A hub with retired devices alone in a group has no part in it.
                    prop_assert!(sum.part.changed_at <= whole.part.changed_at);
                }
                let there: Vec<_> = there.into_iter().map(line_without_times).collect();
                prop_assert_eq!(sum.groups.iter().map(line_without_times).collect::<Vec<_>>(), there);
            }
        }
    }

    /// Parts come one by one, as views change, and what is not named as changed has not changed.
    #[test]
    fn a_sum_that_follows_its_hubs_ends_as_one_that_reads_them_anew(ledger in ledgers(), every in 1usize..9, rows in 1usize..5) {
        let mut following = fleets(&Ledger::default());
        let mut merge = merged(&following, rows);
        let mut before = all_of(&merge);
        merge.drain_changed();
        for (at, entry) in ledger.entries.iter().enumerate() {
            let (name, fleet) = following
                .iter_mut()
                .find(|(name, _)| entry.subject.device().unwrap().site.as_str() == name.as_str())
                .unwrap();
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
            if at % every == 0 {
                read(&mut merge, name, fleet, rows);
                let (named, now) = (merge.drain_changed(), all_of(&merge));
                for (key, digest) in &now {
                    let same = before.get(key) == Some(digest);
                    prop_assert!(same || named.contains(&ViewKey::parse(key).unwrap()), "{} changed in silence", key);
                }
                before = now;
            }
        }
        for (name, fleet) in &following {
            read(&mut merge, name, fleet, rows);
        }
        prop_assert_eq!(all_of(&merge), ledger.fold().digests());
    }

    #[test]
    fn an_unheard_hub_has_no_fresh_and_no_known_device(ledger in ledgers()) {
        let fleets = fleets(&ledger);
        let mut merge = merged(&fleets, ALL);
        let (before, south) = (all_of(&merge), hub("south"));
        merge.drain_changed();
        merge.record_unreachable(&south);
        let named = merge.drain_changed();
        prop_assert!(merge.keys_of(&south).is_subset(&named));

        let (north, lost) = (fleets[0].1.fleet_view().tally, fleets[1].1.fleet_view().tally);
        let tally = merge.fleet_view().tally;
        prop_assert_eq!(tally.devices.fresh, north.devices.fresh);
        prop_assert_eq!(tally.devices.total(), north.devices.total() + lost.devices.total());
        prop_assert_eq!(tally.devices.stale, north.devices.stale + lost.devices.stale + lost.devices.fresh);
        prop_assert_eq!(tally.complete.devices, north.complete.devices);
        for id in ["web", "db", "log"].map(|id| id.parse().unwrap()) {
            let (Some(view), there) = (merge.deployment_view(&id), fleets[1].1.deployment_view(&id)) else { continue };
            let Some(there) = there.filter(|there| there.targets > 0) else { continue };
            let here = fleets[0].1.deployment_view(&id);
            prop_assert_eq!(view.counts.values().map(|split| split.total()).sum::<u64>(), view.targets);
            prop_assert_eq!(view.converged.lo, here.as_ref().map_or(0, |here| here.converged.lo));
            prop_assert_eq!(view.converged.hi, here.map_or(0, |here| here.converged.hi) + there.targets);
            prop_assert!(!matches!(view.verdict, Verdict::Converged | Verdict::ConvergedStale | Verdict::Waiting));
        }
        if let Some(site) = merge.site_view(&"south".parse().unwrap()) {
            prop_assert_eq!((site.tally.devices.fresh, site.tally.complete.devices), (0, 0));
            let sum = site.tally.counts.values().map(|split| split.total()).sum::<u64>();
            prop_assert_eq!(sum, site.tally.targets);
        }
        // The remainder of a view without any heard hub follows from the view alone.
        let views = |merge: &Merge| -> Vec<_> {
            let keys = HUBS.iter().flat_map(|name| merge.keys_of(&hub(name))).collect::<std::collections::BTreeSet<_>>();
            keys.into_iter().filter_map(|key| Some((merge.view(&key)?.1, key))).collect()
        };
        let known = views(&merge);
        merge.record_unreachable(&hub("north"));
        for ((view, key), (nothing, _)) in known.iter().zip(views(&merge)) {
            prop_assert_eq!(all_unheard(key, view.to_string().as_bytes()).unwrap().1, nothing);
        }
        for name in HUBS {
            merge.record_heard(&hub(name), "2026-11-22T09:00:00Z".parse().unwrap());
        }
        prop_assert_eq!(all_of(&merge), before);
    }
}

fn two_hubs() -> (Merge, Fleet) {
    let mut ledger = Ledger::default();
    for device in ["north/a", "south/a"] {
        let said = Said {
            components: &[("main", State::Failed)],
            errors: &[("main", "Exit1", "gone")],
            ..Said::default()
        };
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 1).status(device, "web", &said);
    }
    let whole = ledger.fold();
    (merged(&fleets(&ledger), ALL), whole)
}

#[test]
fn an_inconsistent_part_is_refused_and_the_former_one_kept() {
    let (mut merge, whole) = two_hubs();
    let (before, name, web) = (all_of(&merge), hub("north"), "web".parse().unwrap());
    let key = ViewKey::Deployment(web);
    let Some(Part::DeploymentPart(part)) = whole.part(&key, 0, ALL) else { panic!("it has a part") };
    let bend = |bend: fn(&mut muster_contract::parts::DeploymentPart)| {
        let mut bent = part.clone();
        bend(&mut bent);
        Part::DeploymentPart(bent)
    };
    // The inconsistency, and its error.
    let table = [
        (bend(|part| part.standings.targets += 1), BadPart::Counts),
        (bend(|part| part.standings.complete.of += 1), BadPart::Counts),
        (bend(|part| part.standings.converged.hi += 3), BadPart::Counts),
        (bend(|part| part.standings.converged.lo = 1), BadPart::Counts),
        (bend(|part| part.standings.verdict = Verdict::Converged), BadPart::Counts),
        (bend(|part| part.standings.leaving = u64::MAX), BadPart::Size),
        (bend(|part| part.skipped = 7), BadPart::Rows),
    ];
    let as_of = whole.as_of();
    for (part, why) in table {
        assert_eq!(merge.apply_parts(&name, as_of, &key, Some(&part)), Err(why), "{part:?}");
    }
    let fleet = whole.part(&ViewKey::Fleet, 0, ALL);
    assert_eq!(merge.apply_parts(&name, as_of, &key, fleet.as_ref()), Err(BadPart::Kind));
    assert_eq!(all_of(&merge), before);
}

#[test]
fn rows_of_two_moments_are_not_put_together() {
    let mut ledger = Ledger::default();
    for (device, code) in [("north/a", "A"), ("north/b", "B"), ("north/c", "C")] {
        let errors = [("main", code, "gone")];
        let said = Said { components: &[("main", State::Failed)], errors: &errors, ..Said::default() };
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 1).status(device, "web", &said);
    }
    let (mut fleet, key) = (ledger.fold(), ViewKey::parse("deployment.web").unwrap());
    let (mut merge, name) = (Merge::new([hub("north")]), hub("north"));
    let mut ask = |fleet: &Fleet, skip| {
        let part = fleet.part(&key, skip, 2);
        merge.apply_parts(&name, fleet.as_of(), &key, part.as_ref()).unwrap()
    };
    assert_eq!(ask(&fleet, 0), AppliedPart::Rest(2));
    // The first code goes away, and every row moves up by one.
    let read = ledger.entries.len();
    ledger.status("north/a", "web", &Said { seq: 2, ..Said::default() });
    ledger.fold_into(&mut fleet, read);
    assert_eq!(ask(&fleet, 2), AppliedPart::Rest(0), "from the first row again");
    assert_eq!((ask(&fleet, 0), ask(&fleet, 2)), (AppliedPart::Rest(2), AppliedPart::Whole));
    merge.record_heard(&name, "2026-11-22T08:00:00Z".parse().unwrap());
    let digest = |key| merge.view(key).map(|(digest, _)| digest);
    assert_eq!(digest(&key), fleet.digest_of(&key));
}

#[test]
fn a_site_belongs_to_the_hub_that_had_it_first() {
    let (mut merge, whole) = two_hubs();
    let site = "north".parse().unwrap();
    let view = whole.site_view(&site);
    let refused = merge.apply_site(&hub("south"), &site, view.as_ref());
    assert_eq!(refused, Err(OtherHub { site: site.clone(), hub: hub("north") }));
    assert_eq!(merge.hub_of(&site), Some(&hub("north")));
    merge.apply_site(&hub("south"), &site, None).unwrap();
    assert_eq!(merge.hub_of(&site), Some(&hub("north")), "it is not the other's to take away");
    merge.apply_site(&hub("north"), &site, None).unwrap();
    merge.apply_site(&hub("south"), &site, view.as_ref()).unwrap();
    assert_eq!(merge.hub_of(&site), Some(&hub("south")));
}

#[test]
fn the_example_of_an_error_is_the_first_device_of_all_hubs() {
    let (merge, whole) = two_hubs();
    let view = merge.deployment_view(&"web".parse().unwrap()).unwrap();
    assert_eq!(view.errors, whole.deployment_view(&"web".parse().unwrap()).unwrap().errors);
    assert_eq!((view.errors[0].count, view.errors[0].example.device.to_string()), (2, "north/a".to_owned()));
}

#[test]
fn until_each_hub_was_read_once_it_is_told_which_were_not() {
    let (north, south) = (hub("north"), hub("south"));
    let mut merge = Merge::new([north.clone(), south.clone()]);
    assert_eq!(merge.unread(), [north.clone(), south.clone()]);
    merge.read_whole(&north);
    assert_eq!(merge.unread(), [south]);
    assert!(!merge.hub_list().hubs[0].heard, "only an answer makes a hub heard");
}
