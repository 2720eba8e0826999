//! Tests the laws of groups and user-defined views, over arbitrary ledgers and definitions.

use crate::ledger;
use std::collections::{BTreeMap, BTreeSet};

use crate::fleets::{ledgers_of_a_deaf_hub, shuffled_ledgers};
use crate::ledger::{Ledger, Said, position};
use crate::naive::World;
use muster_contract::defined::{CountedPart, DefinedView, ViewDefinition};
use muster_contract::explained::Explained;
use muster_contract::groups::{GroupView, GroupsAnswer};
use muster_contract::limits::VIEW_GROUPS_MAX;
use muster_contract::standing_part::StandingPart;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{Counts, Split};
use muster_contract::{State, Timestamp};
use muster_domain::fold::{Fleet, NoGroups, Page, Shown};
use proptest::prelude::*;
use serde_json::{Value, json};

const LABELS: [&str; 2] = ["region", "ring"];
const VALUES: [&str; 2] = ["one", "two"];

fn view(fleet: &Fleet, label: &str, value: &str) -> Option<GroupView> {
    fleet.group_view(&label.parse().unwrap(), &value.parse().unwrap())
}

fn groups(fleet: &Fleet) -> Vec<Option<GroupView>> {
    LABELS.iter().flat_map(|label| VALUES.map(|value| view(fleet, label, value))).collect()
}

fn by(fleet: &Fleet, label: &str, id: Option<&str>) -> Result<GroupsAnswer, NoGroups> {
    let id = id.map(|id| id.parse().unwrap());
    fleet.groups_answer(&label.parse().unwrap(), id.as_ref(), &Page { after: None, limit: usize::MAX })
}

/// A definition from dice.
fn definitions() -> impl Strategy<Value = ViewDefinition> {
    let some = |values: &'static [&'static str]| {
        prop::option::weighted(0.3, prop::sample::subsequence(values, 1..=values.len()))
    };
    let standings = &["waiting", "outdated", "installed", "failed", "removing"];
    let verdicts =
        &["removing", "failing", "overdue", "incomplete", "waiting", "convergedStale", "converged"];
    let select = (
        some(&["north", "south"]),
        some(&["fresh", "stale", "never"]),
        some(&["web", "db", "log"]),
        some(standings),
        some(verdicts),
        some(&VALUES),
    );
    let by = prop::sample::select(vec!["", "site", "deployment", "component", "label:region", "label:ring"]);
    let count = prop::sample::select(vec!["standings", "devices", "components"]);
    (select, by, count).prop_filter_map("components are counted by component", |(select, by, count)| {
        let (sites, freshness, deployments, standings, verdicts, rings) = select;
        let fields = json!({
            "sites": sites, "freshness": freshness, "deployments": deployments, "standings": standings,
            "verdicts": verdicts, "labels": rings.map(|rings| json!({ "ring": rings })),
        });
        let select: Value = fields.as_object()?.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect::<serde_json::Map<_, _>>().into();
        let mut text = json!({
            "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "drawn", "select": select, "count": count,
        });
        if !by.is_empty() {
            text["groupBy"] = json!(by);
        }
        muster_contract::decode::parse(text.to_string().as_bytes()).ok()
    })
}

fn shown(fleet: &Fleet) -> Option<Box<DefinedView>> {
    match fleet.defined_view(&"drawn".parse().unwrap()) {
        Shown::View(view) => Some(view.sign()),
        Shown::NotYet | Shown::Absent => None,
    }
}

fn count_all(fleet: &mut Fleet) {
    while fleet.count_defined(1) {}
}

proptest! {
    #[test]
    fn a_group_is_what_a_count_of_its_devices_finds(ledger in ledgers_of_a_deaf_hub()) {
        let (fleet, world) = (ledger.fold(), World::of(&ledger.entries));
        for label in LABELS {
            for value in VALUES {
                let naive = world.group_view(&label.parse().unwrap(), &value.parse().unwrap());
                prop_assert_eq!(view(&fleet, label, value), naive, "{}={}", label, value);
            }
        }
        let page = Page { after: None, limit: usize::MAX };
        let lines = fleet.labels_answer(&page).labels;
        let shown: BTreeSet<_> = lines.iter().filter(|line| line.devices.total() > 0).map(|line| line.label.clone()).collect();
        prop_assert_eq!(shown, world.groups().into_iter().map(|(label, _)| label).collect());
    }

    #[test]
    fn groups_and_what_is_in_none_add_up_to_the_fleet(ledger in ledgers_of_a_deaf_hub()) {
        let (fleet, world) = (ledger.fold(), World::of(&ledger.entries));
        for label in LABELS {
            let Ok(answer) = by(&fleet, label, None) else { continue };
            let tally = fleet.fleet_view().tally;
            prop_assert_eq!((answer.total.part.targets, answer.total.part.leaving), (tally.targets, tally.leaving));
            prop_assert_eq!(&answer.total.part.counts, &tally.counts);
            prop_assert_eq!(sum(&answer), answer.total.part.clone().without_verdict());
            prop_assert_eq!(times_of(&answer.total), (tally.changed_at, tally.last_heard_at));
            for line in &answer.groups {
                let tally = view(&fleet, label, line.value.as_str()).map(|view| view.tally);
                if let Some(tally) = tally {
                    prop_assert_eq!(times_of(&line.part), (tally.changed_at, tally.last_heard_at));
                }
                prop_assert_eq!(line.part.message.is_empty(), false);
            }
            for id in ["web", "db", "log"] {
                let Ok(answer) = by(&fleet, label, Some(id)) else { continue };
                let view = fleet.deployment_view(&id.parse().unwrap()).unwrap();
                prop_assert_eq!((answer.total.part.targets, answer.total.part.verdict), (view.targets, view.verdict));
                for line in &answer.groups {
                    let times = world.times_with(&id.parse().unwrap(), &answer.label, &line.value);
                    prop_assert_eq!(times_of(&line.part), times);
                }
                prop_assert_eq!(times_of(&answer.total), (view.changed_at, view.last_heard_at));
                prop_assert_eq!(sum(&answer), answer.total.part.clone().without_verdict());
            }
        }
    }

    #[test]
    fn groups_and_defined_views_do_not_care_for_order((ledger, shuffled) in shuffled_ledgers(), definition in definitions()) {
        let counted = |ledger: &Ledger| {
            let mut fleet = Fleet::default();
            fleet.define([definition.clone()]);
            count_all(&mut fleet);
            ledger.fold_into(&mut fleet, 0);
            (digests(&groups(&fleet)), shown(&fleet).map(|view| view.digest))
        };
        prop_assert_eq!(counted(&ledger), counted(&shuffled));
    }

    #[test]
    fn groups_come_back_from_a_snapshot(ledger in ledgers_of_a_deaf_hub(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(ledger.entries.len() + 1);
        let first = Ledger { entries: ledger.entries[..cut].to_vec() }.fold();
        let mut resumed = Fleet::restore(first.as_of(), first.hearing_state().clone(), first.records());
        ledger.fold_into(&mut resumed, cut);
        prop_assert_eq!(groups(&resumed), groups(&ledger.fold()));
    }

    /// Whatever came in before, while, and after it was counted.
    #[test]
    fn a_defined_view_is_what_a_count_of_the_whole_fleet_finds(
        ledger in ledgers_of_a_deaf_hub(), definition in definitions(), begin in any::<prop::sample::Index>(), steps in 0usize..4,
    ) {
        let begin = begin.index(ledger.entries.len() + 1);
        let mut fleet = Fleet::default();
        for (at, entry) in ledger.entries.iter().enumerate() {
            if at == begin {
                fleet.define([definition.clone()]);
            }
            if at >= begin {
                (0..steps).for_each(|_| _ = fleet.count_defined(1));
            }
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
        }
        fleet.define([definition.clone()]);
        count_all(&mut fleet);
        let view = shown(&fleet).unwrap();
        let naive = World::of(&ledger.entries).defined(&definition);
        prop_assert_eq!(&view.total, &naive.total);
        let groups: BTreeMap<String, CountedPart> =
            view.groups.iter().map(|group| (group.name.clone(), group.part.part.clone())).collect();
        prop_assert_eq!(groups, naive.groups);
        let times = World::of(&ledger.entries).defined_times(&definition);
        if let Some(without) = &view.without {
            prop_assert_eq!(&without.part, &naive.without);
            prop_assert_eq!(times_of(without), times.without);
        }
        let groups: BTreeMap<String, _> =
            view.groups.iter().map(|group| (group.name.clone(), times_of(&group.part))).collect();
        prop_assert_eq!(groups, times.groups);
        prop_assert_eq!(muster_contract::view::content_digest(&*view), view.digest);
        prop_assert_eq!((view.changed_at, view.last_heard_at), times.total);
        prop_assert_eq!(view.message.is_empty(), false);
    }

    #[test]
    fn a_group_or_defined_view_that_is_not_named_as_changed_has_not_changed(
        ledger in ledgers_of_a_deaf_hub(), definition in definitions(), every in 1usize..7,
    ) {
        let mut fleet = Fleet::default();
        fleet.define([definition]);
        count_all(&mut fleet);
        let mut before = keyed(&fleet);
        for (at, entry) in ledger.entries.iter().enumerate() {
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
            if at % every == 0 {
                let named = fleet.drain_changed_views();
                let now = keyed(&fleet);
                let keys: BTreeSet<&ViewKey> = before.keys().chain(now.keys()).collect();
                for key in keys.into_iter().filter(|key| before.get(key) != now.get(key)) {
                    prop_assert!(named.contains(key), "{key} changed in silence");
                }
                before = now;
            }
        }
    }
}

fn keyed(fleet: &Fleet) -> BTreeMap<ViewKey, muster_contract::canonical::Digest> {
    let mut all: BTreeMap<_, _> = groups(fleet)
        .into_iter()
        .flatten()
        .map(|view| (ViewKey::Group(view.label, view.value), view.tally.digest))
        .collect();
    all.extend(shown(fleet).map(|view| (ViewKey::Defined(view.name.clone()), view.digest)));
    all
}

fn digests(views: &[Option<GroupView>]) -> Vec<Option<muster_contract::canonical::Digest>> {
    views.iter().map(|view| view.as_ref().map(|view| view.tally.digest)).collect()
}

/// Counts without the verdict, which does not add up.
type Sum = (u64, u64, u64, Counts, (u64, u64), (u64, u64, u64));

trait WithoutVerdict {
    fn without_verdict(self) -> Sum;
}

impl WithoutVerdict for StandingPart {
    fn without_verdict(self) -> Sum {
        let (bounds, complete) = (self.converged, self.complete);
        (
            self.targets,
            self.leaving,
            self.overdue,
            self.counts,
            (bounds.lo, bounds.hi),
            (complete.devices, complete.of, complete.missing_reports),
        )
    }
}

fn times_of<P>(part: &Explained<P>) -> (Option<Timestamp>, Option<Timestamp>) {
    (part.changed_at, part.last_heard_at)
}

fn sum(answer: &GroupsAnswer) -> Sum {
    let parts =
        answer.groups.iter().map(|line| &line.part).chain([&answer.without]).map(|part| part.part.clone());
    parts.map(WithoutVerdict::without_verdict).fold(Sum::default(), |sum, part| {
        let mut counts = sum.3;
        for (standing, split) in part.3 {
            let own: &mut Split = counts.entry(standing).or_default();
            *own = Split {
                fresh: own.fresh + split.fresh,
                stale: own.stale + split.stale,
                never: own.never + split.never,
            };
        }
        let (bounds, complete) = ((sum.4.0 + part.4.0, sum.4.1 + part.4.1), (sum.5, part.5));
        let complete =
            (complete.0.0 + complete.1.0, complete.0.1 + complete.1.1, complete.0.2 + complete.1.2);
        (sum.0 + part.0, sum.1 + part.1, sum.2 + part.2, counts, bounds, complete)
    })
}

#[test]
fn a_change_of_a_label_moves_all_that_the_device_counts_for() {
    let mut ledger = Ledger::default();
    let targets = [("web", 1), ("db", 1)];
    ledger
        .labelled("north/a", 1, &targets, &[("ring", "one")])
        .labelled("north/b", 1, &targets, &[("ring", "one")])
        .fresh("north/a", 1, 1)
        .status("north/a", "web", &Said::default());
    let counts = |ledger: &Ledger, value| {
        view(&ledger.fold(), "ring", value).map(|view| (view.tally.devices.total(), view.tally.targets))
    };
    assert_eq!((counts(&ledger, "one"), counts(&ledger, "two")), (Some((2, 4)), None));
    ledger.labelled("north/a", 2, &targets, &[("ring", "two")]);
    assert_eq!((counts(&ledger, "one"), counts(&ledger, "two")), (Some((1, 2)), Some((1, 2))));
    let fleet = ledger.fold();
    let moved = &by(&fleet, "ring", Some("web")).unwrap().groups[1];
    assert_eq!(moved.part.part.counts[&State::Installed.into()].fresh, 1, "its standing goes with it");
    ledger.labelled("north/a", 3, &targets, &[]);
    assert_eq!(counts(&ledger, "two"), None);
    assert_eq!(by(&ledger.fold(), "ring", None).unwrap().without.part.targets, 2);
    ledger.retired("north/b", 2);
    assert_eq!(counts(&ledger, "one"), None, "a retired device is in no group");
    assert_eq!(by(&ledger.fold(), "ring", None), Err(NoGroups::Label));
}

#[test]
fn an_older_desired_state_does_not_take_labels_back() {
    let mut ledger = Ledger::default();
    ledger.labelled("north/a", 2, &[], &[("ring", "two")]).labelled("north/a", 1, &[], &[("ring", "one")]);
    assert!(view(&ledger.fold(), "ring", "two").is_some() && view(&ledger.fold(), "ring", "one").is_none());
}

#[test]
fn own_labels_group_nothing_and_the_hubs_labels_override_them() {
    let mut ledger = Ledger::default();
    ledger.labelled("north/a", 1, &[], &[("ring", "one")]).capabilities("north/a", 1, 1);
    let fleet = ledger.fold();
    assert_eq!(by(&fleet, "line", None), Err(NoGroups::Label));
    let answer = fleet.device_answer(&ledger::key("north/a"), Default::default()).unwrap();
    let shown: Vec<_> = answer.labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
    assert_eq!(shown, ["line=a", "ring=one"]);
    ledger.labelled("north/a", 2, &[], &[("line", "b")]);
    let answer = ledger.fold().device_answer(&ledger::key("north/a"), Default::default()).unwrap();
    assert_eq!(answer.labels["line"], "b");
}

#[test]
fn groups_beyond_the_limit_are_declared_and_still_counted() {
    let mut ledger = Ledger::default();
    let sites = VIEW_GROUPS_MAX + 7;
    for at in 0..sites {
        ledger.desired(&format!("s{at:04}/a"), 1, &[("web", 1), ("db", 1)]);
    }
    let mut fleet = ledger.fold();
    let text = r#"{"apiVersion":"muster/v1","kind":"ViewDefinition","name":"drawn","groupBy":"site"}"#;
    fleet.define([muster_contract::decode::parse(text.as_bytes()).unwrap()]);
    assert_eq!(fleet.defined_view(&"drawn".parse().unwrap()), Shown::NotYet);
    count_all(&mut fleet);
    let view = shown(&fleet).unwrap();
    assert_eq!(view.groups.len(), VIEW_GROUPS_MAX);
    let omitted = view.omitted.unwrap();
    let CountedPart::Standings(part) = omitted.part.part else { panic!("{omitted:?}") };
    assert_eq!((omitted.groups, part.targets), (7, 14));
    let bytes = serde_json::to_vec(&shown(&fleet).unwrap()).unwrap().len();
    assert!(bytes < muster_contract::limits::MESSAGE_BYTES_MAX, "{bytes}");
}

/// The view of a definition's further fields, which counts all of the ledger.
fn counted(ledger: &Ledger, more: &Value) -> Box<DefinedView> {
    let mut definition = json!({ "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "drawn" });
    more.as_object().unwrap().iter().for_each(|(key, value)| definition[key] = value.clone());
    let mut fleet = ledger.fold();
    fleet.define([muster_contract::decode::parse(definition.to_string().as_bytes()).unwrap()]);
    count_all(&mut fleet);
    shown(&fleet).unwrap()
}

#[test]
fn q18_defined_views_say_why_since_when_and_how_they_are_heard() {
    let mut ledger = Ledger::default();
    for device in ["north/a", "north/b", "north/c"] {
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 1);
    }
    let failed = [("main", State::Failed)];
    let said = |seq| Said { seq, components: &failed, ..Said::default() };
    ledger.status("north/a", "web", &said(1)).status("north/b", "web", &said(1));
    ledger.status("north/c", "web", &Said::default());
    let broken = json!({ "select": { "standings": ["failed"] } });
    let line = |ledger: &Ledger, at: usize| {
        let page = Page { after: None, limit: usize::MAX };
        let line = ledger.fold().devices_answer(&Default::default(), &page).unwrap().devices.remove(at);
        (line.changed_at, line.last_heard_at)
    };
    let view = counted(&ledger, &broken);
    assert_eq!(view.message, "some device failed to apply its target");
    assert_eq!((view.changed_at, view.last_heard_at), line(&ledger, 1), "not of what is not selected");
    ledger.status("north/b", "web", &Said { seq: 2, ..Said::default() });
    assert_eq!(
        (counted(&ledger, &broken).changed_at, counted(&ledger, &broken).last_heard_at),
        line(&ledger, 0)
    );
    ledger.stale("north/a", 1, 1);
    let words = |more: &Value| counted(&ledger, more).message;
    assert_eq!(words(&json!({ "count": "devices" })), "devices that are silent: 1 of 3");
    assert_eq!(words(&json!({ "count": "components" })), "components that are failed: 1 of 3");
    assert_eq!(
        words(&json!({ "count": "components", "select": { "deployments": ["db"] } })),
        "no component is counted"
    );
}

/// Up to 20,000 devices are visited for a time that has left a part; in a larger fleet the part waits for a newer one.
#[test]
fn a_part_has_no_time_while_too_many_devices_would_be_searched() {
    let failed = [("main", State::Failed)];
    let said = |seq| Said { seq, components: &failed, ..Said::default() };
    let text = json!({
        "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "drawn", "groupBy": "site",
        "select": { "standings": ["failed"] },
    });
    for (others, is_found) in [(19_998, true), (19_999, false)] {
        let mut ledger = Ledger::default();
        ledger.desired("north/a", 1, &[("web", 1)]).desired("north/b", 1, &[("web", 1)]);
        (0..others).for_each(|number| _ = ledger.desired(&format!("south/d{number}"), 1, &[]));
        ledger.status("north/a", "web", &said(1)).status("north/b", "web", &said(1));
        let mut fleet = ledger.fold();
        fleet.define([muster_contract::decode::parse(text.to_string().as_bytes()).unwrap()]);
        count_all(&mut fleet);
        let mut after = |ledger: &Ledger| {
            let at = ledger.entries.len() - 1;
            let entry = &ledger.entries[at];
            fleet.apply(position(at), &entry.subject, entry.fact.clone());
            let view = shown(&fleet).unwrap();
            assert!(view.changed_at.is_some() && view.last_heard_at.is_some(), "the whole has its times");
            (times_of(&view.groups[0].part), (view.changed_at, view.last_heard_at))
        };
        ledger.status("north/b", "web", &Said { seq: 2, ..Said::default() });
        let (part, whole) = after(&ledger);
        assert_eq!(part, if is_found { whole } else { (None, None) }, "{others}");
        ledger.status("north/a", "web", &said(2));
        let (part, whole) = after(&ledger);
        assert_eq!(part, whole, "a newer one has come");
    }
}

#[test]
fn q18_hearing_a_device_writes_no_defined_view_and_moves_its_time() {
    let mut ledger = Ledger::default();
    ledger
        .desired("north/a", 1, &[("web", 1)])
        .status("north/a", "web", &Said::default())
        .fresh("north/a", 1, 1);
    for count in ["standings", "devices", "components"] {
        let mut fleet = ledger.fold();
        let text =
            json!({ "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "drawn", "count": count });
        fleet.define([muster_contract::decode::parse(text.to_string().as_bytes()).unwrap()]);
        count_all(&mut fleet);
        let (before, mut later) = (shown(&fleet).unwrap(), Ledger { entries: ledger.entries.clone() });
        fleet.drain_changed_views();
        later.fresh("north/a", 1, 1);
        later.fold_into(&mut fleet, ledger.entries.len());
        let after = shown(&fleet).unwrap();
        assert!(after.last_heard_at > before.last_heard_at, "{count}: {:?}", after.last_heard_at);
        assert_eq!((after.digest, after.changed_at), (before.digest, before.changed_at), "{count}");
        assert!(fleet.drain_changed_views().is_empty(), "{count}: nothing is counted differently");
    }
}

#[test]
fn a_removed_definition_is_named_as_changed_and_gone() {
    let mut fleet = Ledger::default().fold();
    let name = "drawn".parse().unwrap();
    assert_eq!(fleet.defined_view(&name), Shown::NotYet, "nobody knows yet what is defined");
    let text = r#"{"apiVersion":"muster/v1","kind":"ViewDefinition","name":"drawn"}"#;
    fleet.define([muster_contract::decode::parse(text.as_bytes()).unwrap()]);
    count_all(&mut fleet);
    assert!(shown(&fleet).is_some() && !fleet.is_counting());
    fleet.drain_changed_views();
    fleet.define([]);
    assert!(fleet.drain_changed_views().contains(&ViewKey::Defined(name.clone())));
    assert_eq!(fleet.defined_view(&name), Shown::Absent);
}
