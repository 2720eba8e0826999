//! Tests the laws of the past: a copy made in steps is of one moment, a comparison of two points is their whole
//! difference, and the state at an event time does not depend on the order of arrival.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleets::{ledgers, ledgers_of_a_deaf_hub};
use crate::ledger::{Ledger, position, seen, stored_at};
use crate::moments::{at_event_time, up_to};
use muster_contract::fact::Fact;
use muster_contract::history::{DiffAnswer, Stand};
use muster_contract::partition::partition_of;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::{Counts, Freshness, Standing};
use muster_contract::{DeploymentId, DeviceKey, SeqRanges};
use muster_domain::fold::{DeviceRecord, Fleet, Page, RecordPacker};
use proptest::prelude::*;

const DEPLOYMENTS: [&str; 3] = ["web", "db", "log"];
const ALL: Page<DeviceKey> = Page { after: None, limit: usize::MAX };

fn text(records: &[DeviceRecord]) -> String {
    serde_json::to_string(records).unwrap()
}

proptest! {
    /// Whatever is folded between two bits of a copy, it is as of the moment at which it began.
    #[test]
    fn a_copy_taken_bit_by_bit_is_of_one_moment(
        ledger in ledgers(),
        cut in any::<prop::sample::Index>(),
        bits in proptest::collection::vec((1usize..4, 0usize..9), 80),
    ) {
        let cut = cut.index(ledger.entries.len() + 1);
        let mut fleet = up_to(&ledger, cut);
        let changed: BTreeSet<DeviceKey> = up_to(&ledger, cut).drain_changed_devices().into_iter().collect();
        let wanted: Vec<_> = fleet.records().filter(|record| changed.contains(record.key())).collect();
        fleet.start_capture(wanted.first().map(|record| record.key()));
        let (mut at, mut copied) = (cut, Vec::new());
        for (max, facts) in bits {
            let records = fleet.capture(max);
            let is_done = records.is_empty();
            copied.extend(records);
            if is_done {
                break;
            }
            for _ in 0..facts.min(ledger.entries.len() - at) {
                fleet.apply(position(at), &ledger.entries[at].subject, ledger.entries[at].fact.clone());
                at += 1;
            }
        }
        copied.sort_by(|one, other| one.key().cmp(other.key()));
        prop_assert_eq!(text(&copied), text(&wanted));
        // Changes since the copy began belong to the next one.
        let mut before: BTreeMap<_, _> = up_to(&ledger, cut).records().map(|r| (r.key().clone(), r)).collect();
        for key in fleet.drain_changed_devices() {
            before.insert(key.clone(), fleet.record(&key).unwrap());
        }
        prop_assert_eq!(text(&before.into_values().collect::<Vec<_>>()), text(&up_to(&ledger, at).records().collect::<Vec<_>>()));
    }

    /// The changes of the devices, taken out of and put into the counts at the earlier point, give those at the later; a
    /// device that is not named has not changed; and each change has facts between the two.
    #[test]
    fn device_changes_lead_from_the_earlier_view_to_the_later(
        ledger in ledgers_of_a_deaf_hub(),
        cuts in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let cut = |at: prop::sample::Index| at.index(ledger.entries.len() + 1);
        let (one, other) = (cut(cuts.0), cut(cuts.1));
        let (from, to) = (one.min(other), one.max(other));
        let (earlier, later) = (up_to(&ledger, from), up_to(&ledger, to));
        for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
            let Some(diff) = later.diff(&earlier, &id, None, &ALL) else {
                prop_assert!(earlier.deployment_view(&id).is_none() && later.deployment_view(&id).is_none());
                continue;
            };
            prop_assert_eq!(diff.changed, diff.devices.len() as u64);
            leads_over(&diff)?;
            for change in &diff.devices {
                prop_assert!(change.from != change.to || !change.components.is_empty());
                prop_assert!(!change.facts.is_empty(), "{:?}", change);
                let within = change.facts.iter().all(|fact| (from as u64 + 1..=to as u64).contains(&fact.ledger_seq));
                prop_assert!(within, "{:?}", change);
                for fact in &change.facts {
                    let entry = &ledger.entries[fact.ledger_seq as usize - 1];
                    match &entry.subject {
                        LedgerSubject::Hearing(partition) => prop_assert_eq!(*partition, partition_of(&change.key)),
                        subject => prop_assert_eq!(subject.device(), Some(&change.key), "{:?}", fact),
                    }
                }
            }
            by_page(&earlier, &later, &id, &diff)?;
        }
    }

    /// Reports that came by the moment, after it, early or late: the final state at the moment is the same.
    #[test]
    fn the_state_at_a_moment_does_not_depend_on_report_order(
        (ledger, moment, delays) in (ledgers(), 0u64..70, proptest::collection::vec(0usize..60, 70))
    ) {
        let ledger = heard_first(&ledger);
        let moment = stored_at(moment);
        let (straight, _) = at_event_time(&ledger, moment);
        let (crooked, _) = at_event_time(&delayed(&ledger, &delays), moment);
        prop_assert_eq!(essence(&crooked), essence(&straight));
    }

    /// Where every report comes at once, the state at a moment is the hub's state then, except for numbers that
    /// came later.
    #[test]
    fn what_came_in_time_is_no_news(ledger in ledgers(), moment in 0u64..70) {
        let at = (moment as usize).min(ledger.entries.len());
        let (fleet, rests) = at_event_time(&ledger, stored_at(moment));
        prop_assert_eq!(rests.late_reports, 0);
        let then = up_to(&ledger, at);
        for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
            // A gap that closed later, or an unreadable message, may prove a loss of memory or leave it open:
            // an untargeted row then counts as leaving or not at all. The targets do not change.
            let targets = |fleet: &Fleet| fleet.deployment_view(&id).map_or(0, |view| view.targets);
            prop_assert_eq!(targets(&fleet), targets(&then));
        }
    }
}

/// The lines of packed records.
fn packed(records: Vec<DeviceRecord>) -> Vec<String> {
    let mut packer = RecordPacker::default();
    records.into_iter().map(|record| serde_json::to_string(&packer.pack(record)).unwrap()).collect()
}

proptest! {
    // Each case tries every point from every checkpoint.
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Any point rebuilt from any checkpoint before it is the fold of all facts up to it, byte for byte.
    #[test]
    fn a_point_is_the_same_from_every_checkpoint(ledger in ledgers_of_a_deaf_hub(), marks in proptest::collection::vec(any::<prop::sample::Index>(), 1..5)) {
        let marks: BTreeSet<usize> = marks.iter().map(|mark| mark.index(ledger.entries.len() + 1)).collect();
        let kept: BTreeMap<usize, String> = marks.iter().map(|at| (*at, text(&up_to(&ledger, *at).records().collect::<Vec<_>>()))).collect();
        for point in 0..=ledger.entries.len() {
            let whole = up_to(&ledger, point);
            for (at, records) in kept.range(..=point) {
                let records: Vec<DeviceRecord> = serde_json::from_str(records).unwrap();
                let then = up_to(&ledger, *at);
                let (as_of, hearing) = (then.as_of(), then.hearing_state());
                let lines = packed(records.clone());
                let unpacked = lines.iter().map(|line| serde_json::from_str(line).unwrap());
                let fleets = [
                    Fleet::restore(as_of, hearing.clone(), records),
                    Fleet::restore_packed(as_of, hearing.clone(), unpacked).unwrap(),
                ];
                for mut fleet in fleets {
                    Ledger { entries: ledger.entries[..point].to_vec() }.fold_into(&mut fleet, *at);
                    prop_assert_eq!(text(&fleet.records().collect::<Vec<_>>()), text(&whole.records().collect::<Vec<_>>()));
                    prop_assert_eq!(fleet.as_of(), whole.as_of());
                    prop_assert_eq!(fleet.digests(), whole.digests());
                }
            }
        }
    }
}

/// Checks that the changes are the whole difference of two views.
fn leads_over(diff: &DiffAnswer) -> Result<(), TestCaseError> {
    let mut counts: BTreeMap<(Standing, Freshness), i64> = spread(&diff.from.counts);
    let sides = [&diff.from, &diff.to];
    let [mut targets, mut leaving, mut overdue] =
        [sides[0].targets, sides[0].leaving, sides[0].overdue].map(|count| count as i64);
    let (mut known, mut missing) =
        (sides[0].complete.devices as i64, sides[0].complete.missing_reports as i64);
    let mut components: BTreeMap<String, i64> = BTreeMap::new();
    for change in &diff.devices {
        for (stand, by) in [(&change.from, -1), (&change.to, 1)] {
            let Some(stand): Option<&Stand> = stand.as_ref() else { continue };
            if stand.leaving {
                leaving += by;
                continue;
            }
            *counts.entry((stand.standing, stand.freshness)).or_default() += by;
            targets += by;
            overdue += by * i64::from(stand.overdue);
            known += by * i64::from(stand.known);
            missing += by * stand.missing_reports as i64;
        }
        for component in &change.components {
            for (state, by) in [(component.from, -1), (component.to, 1)] {
                if let Some(state) = state {
                    *components.entry(format!("{} {state}", component.name)).or_default() += by;
                }
            }
        }
    }
    counts.retain(|_, count| *count != 0);
    prop_assert_eq!(&counts, &spread(&diff.to.counts), "{:?}", diff);
    let to = sides[1];
    prop_assert_eq!(
        [targets, leaving, overdue],
        [to.targets, to.leaving, to.overdue].map(|count| count as i64)
    );
    prop_assert_eq!((known, missing), (to.complete.devices as i64, to.complete.missing_reports as i64));
    let states = |at: usize| -> BTreeMap<String, i64> {
        let all = sides[at].components.iter().flat_map(|(name, states)| {
            states.iter().map(move |(state, count)| (format!("{name} {state}"), *count as i64))
        });
        all.collect()
    };
    let mut reached = states(0);
    for (name, by) in components {
        *reached.entry(name).or_default() += by;
    }
    reached.retain(|_, count| *count != 0);
    prop_assert_eq!(reached, states(1));
    Ok(())
}

fn spread(counts: &Counts) -> BTreeMap<(Standing, Freshness), i64> {
    let each = counts.iter().flat_map(|(standing, split)| {
        let by = [
            (Freshness::Fresh, split.fresh),
            (Freshness::Stale, split.stale),
            (Freshness::Never, split.never),
        ];
        by.map(|(freshness, count)| ((*standing, freshness), count as i64))
    });
    each.filter(|(_, count)| *count > 0).collect()
}

fn by_page(
    earlier: &Fleet,
    later: &Fleet,
    id: &DeploymentId,
    whole: &DiffAnswer,
) -> Result<(), TestCaseError> {
    let (mut after, mut devices) = (None, Vec::new());
    loop {
        let page = later.diff(earlier, id, None, &Page { after, limit: 1 }).unwrap();
        prop_assert_eq!(page.changed, whole.changed);
        devices.extend(page.devices);
        let Some(next) = page.next else { break };
        after = Some(next.parse().unwrap());
    }
    prop_assert_eq!(&devices, &whole.devices);
    Ok(())
}

/// The ledger after a first liveness fact of every device, so that nobody's being heard rests on a report. Times stay
/// those at which things were observed, and no device folds reports.
fn heard_first(ledger: &Ledger) -> Ledger {
    let mut first = Ledger::default();
    let devices: BTreeSet<_> = ledger.entries.iter().filter_map(|entry| entry.subject.device()).collect();
    for key in devices {
        first.stale(&key.to_string(), 1, 0);
    }
    let mut highest = BTreeMap::new();
    for entry in &ledger.entries {
        let mut entry = entry.clone();
        let at = first.next_at();
        let key = entry.subject.device().cloned();
        match &mut entry.fact {
            Fact::Status(fact) => {
                fact.observed_at = at;
                fact.coalesced = SeqRanges::new();
                // A number is spoken of when it was given, not before.
                fact.head = fact.seq;
                highest.insert((key, fact.epoch), fact.seq.get());
            }
            Fact::Device(fact) => {
                fact.observed_at = at;
                fact.head = fact.seq;
                highest.insert((key, fact.epoch), fact.seq.get());
            }
            Fact::Liveness(fact) => fact.head = highest.get(&(key, fact.epoch)).copied().unwrap_or(0),
            _ => {}
        }
        first.entries.push(entry);
    }
    first
}

/// The same facts; each report comes so many places later, and what the hub says itself stays in its place.
fn delayed(ledger: &Ledger, delays: &[usize]) -> Ledger {
    let is_report = |fact: &Fact| matches!(fact, Fact::Status(_) | Fact::Device(_));
    let reports = ledger.entries.iter().enumerate().filter(|(_, entry)| is_report(&entry.fact));
    let mut late: Vec<(usize, usize)> = reports.map(|(at, _)| (at + delays[at % delays.len()], at)).collect();
    late.sort_unstable();
    // Places of reports in order: nothing comes before it was observed.
    let mut entries = ledger.entries.clone();
    let mut waiting: Vec<usize> = Vec::new();
    let mut due = late.into_iter().peekable();
    let mut tail = Vec::new();
    for (at, place) in ledger.entries.iter().enumerate() {
        if !is_report(&place.fact) {
            continue;
        }
        while let Some((_, from)) = due.next_if(|(arrives, _)| *arrives <= at) {
            waiting.push(from);
        }
        match waiting.iter().position(|from| *from <= at) {
            Some(place) => entries[at] = ledger.entries[waiting.remove(place)].clone(),
            None => tail.push(at),
        }
    }
    let rest: Vec<usize> = waiting.into_iter().chain(due.map(|(_, from)| from)).collect();
    // A place for which no report had come yet is passed by a message that nobody reads.
    for at in tail {
        let partition = muster_contract::subjects::LedgerSubject::Verdict(None);
        entries[at].subject = partition;
    }
    entries.extend(rest.into_iter().map(|from| ledger.entries[from].clone()));
    Ledger { entries }
}

/// The visible state of a fleet, without the times at which the hub received reports.
fn essence(fleet: &Fleet) -> String {
    let text = seen(fleet, false);
    let lines = text.lines().map(|line| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        without_arrival(&mut value);
        value.to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn without_arrival(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(object) => {
            object.remove("receivedAt");
            object.remove("lastHeardAt");
            object.remove("digest");
            object.values_mut().for_each(without_arrival);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(without_arrival),
        _ => {}
    }
}
