//! Tests the laws of the fold over arbitrary ledgers. A failing case prints its seed and its smallest form.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleets::{ledgers_of_a_deaf_hub, shuffled_ledgers};
use crate::ledger;
use crate::ledger::{Ledger, position, seen};
use crate::naive::World;
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::query::Query;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_contract::{DeploymentId, SiteId};
use muster_domain::fold::{Fleet, Page};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const DEPLOYMENTS: [&str; 3] = ["web", "db", "log"];
const SITES: [&str; 2] = ["north", "south"];

/// The digests of all views that there are.
fn digests(fleet: &Fleet) -> BTreeMap<ViewKey, Digest> {
    let mut digests = BTreeMap::from([(ViewKey::Fleet, fleet.fleet_view().tally.digest)]);
    for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
        let view = fleet.deployment_view(&id);
        digests.extend(view.map(|view| (ViewKey::Deployment(id), view.digest)));
    }
    for id in SITES.map(|id| id.parse::<SiteId>().unwrap()) {
        let view = fleet.site_view(&id);
        digests.extend(view.map(|view| (ViewKey::Site(id), view.tally.digest)));
    }
    digests
}

/// A failure prints its seed and keeps it beside this file, so that the next run begins with it. `PROPTEST_CASES` sets
/// how many cases there are.
fn config() -> ProptestConfig {
    let keep = FileFailurePersistence::WithSource("proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(keep)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Status and device facts, desired states, deadlines and numbered quarantine may come in any order, any number of
    /// times and as late as they like, also relative to liveness facts and incidents; these keep their own order.
    #[test]
    fn order_duplication_and_delay_change_nothing((ledger, shuffled) in shuffled_ledgers()) {
        let (straight, crooked) = (ledger.fold(), shuffled.fold());
        prop_assert_eq!(digests(&straight), digests(&crooked));
        prop_assert_eq!(seen(&straight, false), seen(&crooked, false));
    }

    /// A hearing fact may come before, between or after all others: only the order among hearing facts matters.
    #[test]
    fn when_a_stop_is_said_changes_nothing_but_when_it_is_seen(ledger in ledgers_of_a_deaf_hub()) {
        let (of_hub, others): (Vec<_>, Vec<_>) =
            ledger.entries.iter().cloned().partition(|entry| matches!(entry.fact, Fact::Hearing(_)));
        let whole = ledger.fold();
        for entries in [[of_hub.clone(), others.clone()], [others, of_hub]] {
            let other = Ledger { entries: entries.concat() }.fold();
            prop_assert_eq!(digests(&whole), digests(&other));
            prop_assert_eq!(seen(&whole, false), seen(&other, false));
        }
    }

    #[test]
    fn a_pulse_changes_nothing_and_is_no_place_to_have_read_to(ledger in ledgers_of_a_deaf_hub()) {
        let is_pulse = |entry: &&ledger::Entry| matches!(entry.fact, Fact::Pulse(_));
        let mut fleet = Fleet::default();
        for (at, entry) in ledger.entries.iter().enumerate().filter(|(_, entry)| !is_pulse(entry)) {
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
        }
        prop_assert_eq!(seen(&ledger.fold(), true), seen(&fleet, true));
        prop_assert_eq!(ledger.fold().as_of(), fleet.as_of());
    }

    #[test]
    fn a_snapshot_and_the_tail_are_the_whole_fold_byte_for_byte(ledger in ledgers_of_a_deaf_hub(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(ledger.entries.len() + 1);
        let first = Ledger { entries: ledger.entries[..cut].to_vec() }.fold();
        let stored: Vec<String> =
            first.records().map(|record| serde_json::to_string(&record).unwrap()).collect();
        let records = stored.iter().map(|text| serde_json::from_str(text).unwrap());
        let unheard = serde_json::to_string(first.hearing_state()).unwrap();
        let unheard = serde_json::from_str(&unheard).unwrap();
        let mut resumed = Fleet::restore(first.as_of(), unheard, records);
        ledger.fold_into(&mut resumed, cut);
        let whole = ledger.fold();
        prop_assert_eq!(seen(&resumed, true), seen(&whole, true));
        let text = |fleet: &Fleet| {
            let records: Vec<_> = fleet.records().collect();
            serde_json::to_string(&records).unwrap()
        };
        prop_assert_eq!(text(&resumed), text(&whole));
    }

    /// An incremental snapshot holds the devices that changed since the one before, and they are enough.
    #[test]
    fn the_changed_devices_bring_a_snapshot_up_to_date(ledger in ledgers_of_a_deaf_hub(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(ledger.entries.len() + 1);
        let mut fleet = Ledger { entries: ledger.entries[..cut].to_vec() }.fold();
        fleet.drain_changed_devices();
        let mut stored: BTreeMap<_, _> =
            fleet.records().map(|record| (record.key().clone(), record)).collect();
        ledger.fold_into(&mut fleet, cut);
        for key in fleet.drain_changed_devices() {
            stored.insert(key.clone(), fleet.record(&key).unwrap());
        }
        let now: Vec<_> = fleet.records().collect();
        prop_assert_eq!(stored.into_values().collect::<Vec<_>>(), now);
    }

    #[test]
    fn what_is_kept_up_to_date_is_what_a_recount_finds(ledger in ledgers_of_a_deaf_hub()) {
        let mut fleet = Fleet::default();
        for at in 0..ledger.entries.len() {
            let entry = &ledger.entries[at];
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
            let world = World::of(&ledger.entries[..=at]);
            for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
                prop_assert_eq!(fleet.deployment_view(&id), world.deployment_view(&id));
            }
            for site in SITES.map(|id| id.parse::<SiteId>().unwrap()) {
                prop_assert_eq!(fleet.site_view(&site), world.site_view(&site));
            }
            prop_assert_eq!(fleet.fleet_view(), world.fleet_view());
        }
    }

    #[test]
    fn counts_add_up_and_nothing_claims_more_than_is_known(ledger in ledgers_of_a_deaf_hub()) {
        let mut fleet = Fleet::default();
        for (at, entry) in ledger.entries.iter().enumerate() {
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
            check_honesty(&fleet)?;
        }
    }

    /// A reader of only the views named as changed misses no change.
    #[test]
    fn a_view_that_is_not_named_as_changed_has_not_changed(ledger in ledgers_of_a_deaf_hub(), every in 1usize..7) {
        let mut fleet = Fleet::default();
        let mut before = digests(&fleet);
        for (at, entry) in ledger.entries.iter().enumerate() {
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
            if at % every == 0 {
                let named = fleet.drain_changed_views();
                let now = digests(&fleet);
                let keys: BTreeSet<&ViewKey> = before.keys().chain(now.keys()).collect();
                for key in keys.into_iter().filter(|key| before.get(key) != now.get(key)) {
                    prop_assert!(named.contains(key), "{key} changed in silence");
                }
                before = now;
            }
        }
    }
}

fn check_honesty(fleet: &Fleet) -> Result<(), TestCaseError> {
    let page = Page { after: None, limit: usize::MAX };
    let views = fleet.deployments_answer(&Default::default(), &page).unwrap().deployments;
    for view in &views {
        let total: u64 = view.counts.values().map(|split| split.total()).sum();
        prop_assert_eq!(total, view.targets);
        prop_assert!(view.converged.lo <= view.converged.hi && view.converged.hi <= view.targets);
        prop_assert!(view.complete.devices <= view.complete.of && view.complete.of == view.targets);
        prop_assert!(view.overdue <= view.targets && view.targets + view.leaving > 0);
        let installed = view.counts.get(&Standing::Installed).copied().unwrap_or_default();
        prop_assert!(view.converged.lo <= installed.fresh, "only fresh devices are sure");
        if matches!(view.verdict, Verdict::Converged | Verdict::ConvergedStale) {
            prop_assert!(view.targets > 0 && installed.total() == view.targets);
        }
        if view.verdict == Verdict::Converged {
            prop_assert_eq!((installed.fresh, view.converged.lo), (view.targets, view.targets));
        }
    }
    let tally = fleet.fleet_view().tally;
    prop_assert_eq!(tally.counts.values().map(|split| split.total()).sum::<u64>(), tally.targets);
    prop_assert_eq!(tally.targets, views.iter().map(|view| view.targets).sum::<u64>());
    prop_assert_eq!(tally.leaving, views.iter().map(|view| view.leaving).sum::<u64>());
    prop_assert_eq!(tally.deployments.values().sum::<u64>(), views.len() as u64);
    let page = Page { after: None, limit: usize::MAX };
    for line in fleet.devices_answer(&Default::default(), &page).unwrap().devices {
        let account = &line.account;
        let sum = account.received + account.coalesced + account.quarantined + account.missing.count();
        prop_assert_eq!(sum, line.head, "the account of {} does not add up", line.key);
    }
    for freshness in [Freshness::Fresh, Freshness::Stale, Freshness::Never] {
        let listed = fleet
            .devices_answer(&Query { freshness: [freshness].into(), ..Query::default() }, &page)
            .unwrap()
            .devices;
        let mut counted = tally.devices;
        prop_assert_eq!(listed.len() as u64, *counted.get_mut(freshness), "devices that are {:?}", freshness);
        prop_assert!(listed.iter().all(|line| line.freshness == freshness && !line.retired));
    }
    Ok(())
}
