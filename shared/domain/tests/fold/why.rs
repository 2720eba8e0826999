//! Tests that the proof of `why` holds: without the devices it names the verdict is another, with any one of
//! them it is the same, without any other device it is the same; the named facts suffice for the standing of
//! each, none can be left out, and no other matters; a report is named by its number. Where LEDGER holds only
//! the newest fact of each subject, the verdict differs without the named facts, and with them alone it is the
//! same.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleets::ledgers_of_a_deaf_hub;
use crate::ledger;
use crate::ledger::{Ledger, Said, position};
use muster_contract::State;
use muster_contract::fact::{DeadlineKind, Fact};
use muster_contract::query::Output;
use muster_contract::status::{StatusQuery, TargetStatus};
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_contract::why::{Because, EvidenceKind, WhyAnswer};
use muster_contract::{DeploymentId, DeviceKey};
use muster_domain::fold::{Fleet, Page};
use proptest::prelude::*;

const DEPLOYMENTS: [&str; 3] = ["web", "db", "log"];
const ALL: Page<DeviceKey> = Page { after: None, limit: usize::MAX };

/// Folds the entries that are wanted, each in its place.
fn fold_where(ledger: &Ledger, wanted: impl Fn(u64, &ledger::Entry) -> bool) -> Fleet {
    let mut fleet = Fleet::default();
    for (at, entry) in ledger.entries.iter().enumerate() {
        let position = position(at);
        if wanted(position.ledger_seq, entry) {
            fleet.apply(position, &entry.subject, entry.fact.clone());
        }
    }
    fleet
}

fn verdict(fleet: &Fleet, id: &DeploymentId) -> Verdict {
    fleet.deployment_view(id).map_or(Verdict::Empty, |view| view.verdict)
}

fn devices(ledger: &Ledger) -> BTreeSet<DeviceKey> {
    ledger.entries.iter().filter_map(|entry| entry.subject.device().cloned()).collect()
}

/// The lines of a deployment; none where it is nowhere.
fn lines(fleet: &Fleet, id: &DeploymentId) -> Vec<TargetStatus> {
    let query = StatusQuery { id: Some(id.clone()), output: Output::Brief, ..StatusQuery::default() };
    fleet.status_answer(&query, None, ALL.limit).map(|answer| answer.targets).unwrap_or_default()
}

/// The content that the evidence of a standing must preserve: the standing itself, and the rest of its
/// verdict's subject.
fn essence(fleet: &Fleet, id: &DeploymentId, because: &Because) -> Option<(Standing, bool, String)> {
    let answer = fleet.why_device(id, &because.key)?;
    let line = lines(fleet, id).into_iter().find(|line| line.key == because.key)?;
    let more = match because.speaks_for {
        Verdict::Overdue => format!("overdue {}", line.overdue),
        Verdict::Incomplete => format!("known {}", line.known),
        // A target that has not begun is waited for whether it is heard or not.
        Verdict::Waiting if matches!(because.standing, Standing::Waiting | Standing::Outdated) => {
            format!("known {}", line.known)
        }
        Verdict::Progressing | Verdict::Waiting | Verdict::ConvergedStale | Verdict::Converged => {
            let fresh = answer.standings[0].freshness == Freshness::Fresh;
            format!("known {}, fresh {fresh}", line.known)
        }
        Verdict::Empty | Verdict::Removing | Verdict::Failing => String::new(),
    };
    // Past its deadline, or not known: the standing may be any.
    let standing = match because.speaks_for {
        Verdict::Overdue | Verdict::Incomplete => Standing::Waiting,
        _ => answer.standings[0].standing,
    };
    Some((standing, line.leaving, more))
}

fn check(ledger: &Ledger, fleet: &Fleet, id: &DeploymentId, why: &WhyAnswer) -> Result<(), TestCaseError> {
    let named: BTreeSet<_> = why.standings.iter().map(|because| because.key.clone()).collect();
    prop_assert_eq!(why.because, named.len() as u64, "{:?}", why);
    prop_assert!(why.because > 0, "a verdict has a reason: {:?}", why);

    let without = |gone: &BTreeSet<DeviceKey>| {
        fold_where(ledger, |_, entry| entry.subject.device().is_none_or(|key| !gone.contains(key)))
    };
    prop_assert_ne!(verdict(&without(&named), id), why.verdict, "without the named: {:?}", why);
    for other in devices(ledger).difference(&named) {
        let gone = BTreeSet::from([other.clone()]);
        prop_assert_eq!(verdict(&without(&gone), id), why.verdict, "without {}: {:?}", other, why);
    }
    for one in &named {
        let others: BTreeSet<_> = named.iter().filter(|other| *other != one).cloned().collect();
        prop_assert_eq!(verdict(&without(&others), id), why.verdict, "with {} alone: {:?}", one, why);
    }
    for because in &why.standings {
        check_facts(ledger, fleet, id, because)?;
    }
    Ok(())
}

fn check_facts(
    ledger: &Ledger,
    fleet: &Fleet,
    id: &DeploymentId,
    because: &Because,
) -> Result<(), TestCaseError> {
    // An uncertainty is named by its LEDGER sequence: the last fact about it may be of an older epoch.
    for fact in because.facts.iter().filter(|fact| fact.kind != EvidenceKind::Quarantine) {
        let entry = &ledger.entries[fact.ledger_seq as usize - 1];
        let number = match &entry.fact {
            Fact::Status(report) => (report.epoch, report.seq),
            Fact::Device(report) => (report.epoch, report.seq),
            _ => continue,
        };
        prop_assert_eq!(
            (fact.epoch, fact.seq),
            (Some(number.0), Some(number.1)),
            "{:?} is {:?}",
            fact,
            entry
        );
    }
    let whole = essence(fleet, id, because);
    let named: BTreeSet<_> = because.facts.iter().map(|fact| fact.ledger_seq).collect();
    let of_device = |entry: &ledger::Entry| entry.subject.device() == Some(&because.key);
    let stood_for = |entry: &ledger::Entry| is_stood_for(because, entry);
    let alone = |gone: u64| {
        fold_where(ledger, |seq, entry| {
            !of_device(entry) || (seq != gone && (named.contains(&seq) || stood_for(entry)))
        })
    };
    prop_assert_eq!(&essence(&alone(0), id, because), &whole, "the named facts alone: {:?}", because);
    for fact in because.facts.iter().filter(|fact| !is_said_more_than_once(because, fact.kind)) {
        let less = essence(&alone(fact.ledger_seq), id, because);
        prop_assert_ne!(&less, &whole, "without {:?} of {:?}", fact, because);
    }
    if because.speaks_for == Verdict::Incomplete {
        // One may be as good as another; without all of them it is known, or nothing of it is left.
        let exempt = |kind| is_said_more_than_once(because, kind);
        let rest = because.facts.iter().filter(|fact| !exempt(fact.kind)).map(|fact| fact.ledger_seq);
        let rest: BTreeSet<_> = rest.collect();
        let bare = fold_where(ledger, |seq, entry| !of_device(entry) || rest.contains(&seq));
        prop_assert!(is_known_or_gone(&bare, id, &because.key), "without all that hides it: {:?}", because);
    }
    for (at, entry) in ledger.entries.iter().enumerate() {
        let other = position(at).ledger_seq;
        if of_device(entry) && !named.contains(&other) && !stood_for(entry) {
            let less = fold_where(ledger, |seq, _| seq != other);
            prop_assert_eq!(&essence(&less, id, because), &whole, "without {:?} beside {:?}", entry, because);
        }
    }
    Ok(())
}

/// Properties that several facts may prove: silent, missing, unreadable, unfinished or untargeted; where a last
/// fact stands for several, one may serve as well as another.
fn is_said_more_than_once(because: &Because, kind: EvidenceKind) -> bool {
    use EvidenceKind::{Desired, Head, Liveness, Quarantine, Status};
    let names = |kind| because.facts.iter().any(|fact| fact.kind == kind);
    match (because.speaks_for, kind) {
        (Verdict::Incomplete, Head | Status | Quarantine | Liveness)
        | (Verdict::ConvergedStale | Verdict::Waiting, Liveness)
        | (Verdict::Removing, Desired | Head | Quarantine | Liveness)
        // Without any report it is at no end either.
        | (Verdict::Overdue, Status) => true,
        (Verdict::Incomplete | Verdict::Removing | Verdict::Failing, _) => false,
        (_, Head | Quarantine) => true,
        (_, Status) => names(Head) || names(Quarantine),
        (_, Liveness) => names(Quarantine),
        _ => false,
    }
}

/// Whether a fact is one of those that the last word on all reports, or on everything in doubt, stands for.
fn is_stood_for(because: &Because, entry: &ledger::Entry) -> bool {
    let names = |kind| because.facts.iter().any(|fact| fact.kind == kind);
    match (because.speaks_for, &entry.fact) {
        (Verdict::Incomplete | Verdict::Removing, _) => false,
        (_, Fact::Status(_) | Fact::Device(_)) => names(EvidenceKind::Head),
        (_, Fact::Quarantine(_)) => names(EvidenceKind::Head) || names(EvidenceKind::Quarantine),
        (_, Fact::Liveness(_) | Fact::Verdict(_)) => names(EvidenceKind::Quarantine),
        _ => false,
    }
}

/// Whether a target's standing is known; a former target is gone.
fn is_known_or_gone(fleet: &Fleet, id: &DeploymentId, key: &DeviceKey) -> bool {
    lines(fleet, id).iter().filter(|line| line.key == *key).all(|line| line.known || line.leaving)
}

/// The newest fact of each subject, as a compacted LEDGER has them.
fn newest_of_each_subject(ledger: &Ledger) -> Ledger {
    let newest: BTreeMap<_, _> =
        ledger.entries.iter().enumerate().map(|(at, entry)| (entry.subject.to_string(), at)).collect();
    let kept: BTreeSet<_> = newest.into_values().collect();
    let entries = ledger.entries.iter().enumerate().filter(|(at, _)| kept.contains(at));
    Ledger { entries: entries.map(|(_, entry)| entry.clone()).collect() }
}

/// The law where each subject has one fact:
///
/// - Without the named facts the verdict is another, or there is no view. The desired state of each named
///   device is among them, and no other fact proves it; for a leaving one, its one report is.
/// - The named facts yield the verdict by themselves, together with those that a last fact stands for. Further
///   facts of the same devices, and further whole devices, change nothing. An operator's decision on
///   quarantined messages is kept in any case: if a message with the same number came since, LEDGER has the
///   decision before the message, so nothing was ever uncertain and no fact is named that ended it.
/// - Removing single facts of unnamed devices may make an earlier verdict hold: without its report a device is
///   not known. So any facts but the named ones may be removed where no verdict could come earlier: for failing
///   and overdue.
fn check_newest(
    ledger: &Ledger,
    id: &DeploymentId,
    why: &WhyAnswer,
    dice: &[bool],
) -> Result<(), TestCaseError> {
    let facts = why.standings.iter().flat_map(|because| &because.facts);
    let of_devices: BTreeSet<_> = facts.map(|fact| fact.ledger_seq).collect();
    // That the hub does not listen is named once, and not of every device.
    let of_hub = why.hub.unheard.iter().filter_map(|unheard| unheard.ledger_seq);
    let named: BTreeSet<_> = of_devices.iter().copied().chain(of_hub).collect();
    let left = |wanted: &dyn Fn(u64, &ledger::Entry) -> bool| verdict(&fold_where(ledger, wanted), id);
    // It is no reason where all that are named are heard: without it others would be heard as well.
    let all_heard = why.standings.iter().all(|because| because.freshness == Freshness::Fresh);
    let named_facts = if all_heard { &of_devices } else { &named };
    prop_assert_ne!(left(&|seq, _| !named_facts.contains(&seq)), why.verdict, "without the named: {:?}", why);

    let because = |entry: &ledger::Entry| {
        why.standings.iter().find(|because| entry.subject.device() == Some(&because.key))
    };
    let matters = |seq: u64, entry: &ledger::Entry| {
        let stands = |because| is_stood_for(because, entry) || matches!(entry.fact, Fact::Verdict(_));
        named.contains(&seq) || because(entry).is_some_and(stands)
    };
    prop_assert_eq!(left(&matters), why.verdict, "the named alone: {:?}", why);
    let drawn = |seq: u64| dice[seq as usize - 1];
    let devices: Vec<_> = devices(ledger).into_iter().collect();
    let is_there = |seq: u64, entry: &ledger::Entry| match because(entry) {
        Some(_) => drawn(seq),
        None => devices.iter().zip(dice).any(|(key, die)| *die && entry.subject.device() == Some(key)),
    };
    let some = left(&|seq, entry| matters(seq, entry) || is_there(seq, entry));
    prop_assert_eq!(some, why.verdict, "the named and some others: {:?}", why);
    if matches!(why.verdict, Verdict::Failing | Verdict::Overdue) {
        let some = left(&|seq, _| named.contains(&seq) || drawn(seq));
        prop_assert_eq!(some, why.verdict, "the named and any others: {:?}", why);
    }
    Ok(())
}

/// A standing that is still not known without the facts that say so has others that do, and they are named next. `None` where
/// nothing is named of one that is not known.
fn rounds_until_known(ledger: &Ledger, id: &DeploymentId, key: &DeviceKey) -> Option<usize> {
    let mut gone = BTreeSet::new();
    for round in 0..=ledger.entries.len() {
        let fleet = fold_where(ledger, |seq, _| !gone.contains(&seq));
        let Some(answer) = fleet.why_device(id, key).filter(|_| !is_known_or_gone(&fleet, id, key)) else {
            return Some(round);
        };
        let because = answer.standings.iter().filter(|because| because.speaks_for == Verdict::Incomplete);
        let facts = because.flat_map(|because| &because.facts);
        let news = facts.filter(|fact| fact.kind != EvidenceKind::Desired).map(|fact| fact.ledger_seq);
        let before = gone.len();
        gone.extend(news);
        if gone.len() == before {
            return answer
                .standings
                .iter()
                .all(|because| because.speaks_for != Verdict::Incomplete)
                .then_some(round);
        }
    }
    None
}

proptest! {
    #[test]
    fn among_the_newest_facts_the_named_ones_make_the_verdict(
        ledger in ledgers_of_a_deaf_hub(),
        dice in proptest::collection::vec(any::<bool>(), 82),
    ) {
        let ledger = newest_of_each_subject(&ledger);
        let fleet = ledger.fold();
        for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
            let Some(why) = fleet.why(&id, None, &ALL) else { continue };
            check_newest(&ledger, &id, &why, &dice)?;
            for because in why.standings.iter().filter(|because| because.speaks_for == Verdict::Incomplete) {
                let rounds = rounds_until_known(&ledger, &id, &because.key);
                prop_assert!(rounds.is_some(), "not known, and nothing says so: {:?}", because);
            }
        }
    }

    #[test]
    fn what_is_named_makes_the_verdict_and_nothing_else_does(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
            match fleet.why(&id, None, &ALL) {
                Some(why) => check(&ledger, &fleet, &id, &why)?,
                None => prop_assert_eq!(verdict(&fleet, &id), Verdict::Empty),
            }
        }
    }

    #[test]
    fn pages_and_sites_are_parts_of_the_whole_answer(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
            let Some(whole) = fleet.why(&id, None, &ALL) else { continue };
            let mut by_page = Vec::new();
            let mut after = None;
            loop {
                let page = fleet.why(&id, None, &Page { after, limit: 1 }).unwrap();
                by_page.extend(page.standings);
                let Some(next) = page.next else { break };
                after = Some(next.parse().unwrap());
            }
            prop_assert_eq!(&by_page, &whole.standings);
            let sites = ["north", "south"].map(|site| fleet.why(&id, Some(&site.parse().unwrap()), &ALL));
            let (mut because, mut of) = (0, 0);
            for part in sites.into_iter().flatten() {
                because += part.because;
                of += part.of;
            }
            prop_assert_eq!((because, of), (whole.because, whole.of));
        }
    }
}

#[test]
fn an_older_fact_of_the_subject_replaces_a_removed_named_one() {
    let (mut ledger, web) = (Ledger::default(), "web".parse::<DeploymentId>().unwrap());
    for number in [1, 2] {
        ledger.desired("north/a", number, &[("web", 1)]);
        let failed = Said { seq: number, components: &[("main", State::Failed)], ..Said::default() };
        ledger.status("north/a", "web", &failed);
    }
    let without_the_named = |ledger: &Ledger| {
        let why = ledger.fold().why(&web, None, &ALL).unwrap();
        let named: Vec<_> = why.standings[0].facts.iter().map(|fact| fact.ledger_seq).collect();
        verdict(&fold_where(ledger, |seq, _| !named.contains(&seq)), &web)
    };
    assert_eq!(without_the_named(&ledger), Verdict::Failing, "by the first two");
    assert_eq!(without_the_named(&newest_of_each_subject(&ledger)), Verdict::Empty, "there are no others");
}

#[test]
fn a_second_proof_of_a_missing_report_is_named_next() {
    let (mut ledger, web) = (Ledger::default(), "web".parse::<DeploymentId>().unwrap());
    let device = "north/a";
    ledger.desired(device, 1, &[("db", 1), ("log", 1), ("web", 1)]);
    ledger.status(device, "db", &Said { seq: 3, ..Said::default() });
    ledger.status(device, "log", &Said { seq: 5, ..Said::default() });
    let rounds = rounds_until_known(&newest_of_each_subject(&ledger), &web, &device.parse().unwrap());
    assert_eq!(rounds, Some(2), "the head of the one, then that of the other");
}

/// The words and places of each kind of evidence, for a person.
#[test]
fn each_verdict_names_its_facts() {
    let mut ledger = Ledger::default();
    let web: DeploymentId = "web".parse().unwrap();
    let why = |ledger: &Ledger| {
        let answer = ledger.fold().why(&web, None, &ALL).unwrap();
        let facts = answer.standings.iter().flat_map(|because| {
            because.facts.iter().map(move |fact| format!("{} {} {}", because.key, fact.ledger_seq, fact.says))
        });
        (answer.verdict, facts.collect::<Vec<_>>())
    };
    let said =
        |seq, components: &'static [(&'static str, State)]| Said { seq, components, ..Said::default() };

    ledger.desired("north/a", 1, &[("web", 1)]);
    assert_eq!(why(&ledger), (Verdict::Waiting, vec!["north/a 1 is to run it".to_owned()]));
    ledger.deadline("north/a", "web", 1, DeadlineKind::NeverStarted);
    let overdue =
        vec!["north/a 1 is to run it".to_owned(), "north/a 2 had not started after 30 min".to_owned()];
    assert_eq!(why(&ledger), (Verdict::Overdue, overdue));
    let failed = Said { errors: &[("main", "Exit1", "no license")], ..said(1, &[("main", State::Failed)]) };
    ledger.status("north/a", "web", &failed);
    let failing = vec![
        "north/a 1 is to run it".to_owned(),
        "north/a 3 is failed: Exit1 in main: no license".to_owned(),
    ];
    assert_eq!(why(&ledger), (Verdict::Failing, failing));
    ledger.status("north/a", "web", &said(2, &[("main", State::Installed)])).fresh("north/a", 1, 3);
    let gap = ["1 is to run it", "4 is installed", "5 has reported up to 3; 1 of these reports are missing"];
    assert_eq!(why(&ledger), (Verdict::Incomplete, gap.map(|fact| format!("north/a {fact}")).to_vec()));
    ledger.status("north/a", "web", &said(3, &[("main", State::Installed)]));
    let converged = ["is to run it", "is installed", "is heard"].map(str::to_owned);
    let words = |facts: Vec<String>| {
        facts.iter().map(|f| f.splitn(3, ' ').nth(2).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (verdict, facts) = why(&ledger);
    assert_eq!((verdict, words(facts)), (Verdict::Converged, converged.to_vec()));
    // Another deployment's report: that there is no newer one of this is known from all numbers.
    ledger.status("north/a", "db", &said(4, &[("main", State::Installed)]));
    let all = ["is to run it", "is installed", "is heard", "completes 4 reports: none is missing"];
    let (verdict, facts) = why(&ledger);
    assert_eq!((verdict, words(facts)), (Verdict::Converged, all.map(str::to_owned).to_vec()));
    ledger.desired("north/a", 2, &[]);
    let (verdict, facts) = why(&ledger);
    assert_eq!(verdict, Verdict::Removing);
    assert_eq!(words(facts), ["no longer names it", "is installed"]);
}

#[test]
fn a_stopped_deployment_is_not_green_nor_failing_and_why_names_the_stop() {
    let mut ledger = Ledger::default();
    let web: DeploymentId = "web".parse().unwrap();
    ledger.desired("north/a", 2, &[("web", 2)]);
    let Some(Fact::Desired(document)) = ledger.entries.last_mut().map(|entry| &mut entry.fact) else {
        panic!("a desired state, please")
    };
    document.deployments[0].stopped = true;
    let said = |generation, components: &'static [(&'static str, State)]| Said {
        generation,
        seq: generation,
        components,
        ..Said::default()
    };
    ledger.fresh("north/a", 1, 1).status("north/a", "web", &said(1, &[("main", State::Installed)]));
    let fresh = |fleet: &Fleet, standing| {
        let counts = fleet.deployment_view(&web).unwrap().counts;
        counts.get(&standing).map_or(0, |split| split.fresh)
    };
    assert_eq!(fresh(&ledger.fold(), Standing::Outdated), 1, "an older agent refuses the document");
    ledger.fresh("north/a", 1, 2).status("north/a", "web", &said(2, &[("main", State::Pending)]));
    let fleet = ledger.fold();
    let counts = [Standing::Pending, Standing::Installed, Standing::Failed].map(|it| fresh(&fleet, it));
    assert_eq!(counts, [1, 0, 0]);
    let why = fleet.why(&web, None, &ALL).unwrap();
    assert_eq!(why.verdict, Verdict::Progressing);
    let says: Vec<_> = why.standings[0].facts.iter().map(|fact| fact.says.as_str()).collect();
    assert_eq!(says, ["is to keep it stopped since generation 2", "is pending", "is heard"]);
}

#[test]
fn a_silent_device_is_shown_with_the_verdict_on_its_host() {
    let (mut ledger, web) = (Ledger::default(), "web".parse::<DeploymentId>().unwrap());
    let (cluster, mgmt) = ("plant7/cluster-4", "hub/mgmt-1");
    ledger.labelled(cluster, 1, &[("web", 1)], &[("hosted-by", "capi-cluster-4")]);
    ledger.desired(mgmt, 1, &[("capi-cluster-4", 1)]);
    ledger.status(cluster, "web", &Said::default()).stale(cluster, 1, 1);
    let hosts = |ledger: &Ledger| {
        let fleet = ledger.fold();
        let why = fleet.why(&web, None, &ALL).unwrap();
        let line = fleet.device_answer(&cluster.parse().unwrap(), Output::Summary).unwrap().device;
        let hosts = [why.standings[0].hosted_by.clone(), line.hosted_by].map(Option::unwrap);
        assert!(hosts.iter().all(|host| host.deployment.as_str() == "capi-cluster-4"));
        hosts.map(|host| host.verdict)
    };
    assert_eq!(hosts(&ledger), [Verdict::Waiting; 2]);
    let failed = Said { components: &[("main", State::Failed)], ..Said::default() };
    ledger.status(mgmt, "capi-cluster-4", &failed);
    assert_eq!(hosts(&ledger), [Verdict::Failing; 2]);
    ledger.labelled(cluster, 2, &[("web", 1)], &[("hosted-by", "unknown")]);
    let line = ledger.fold().device_answer(&cluster.parse().unwrap(), Output::Summary).unwrap().device;
    assert_eq!(line.hosted_by.unwrap().verdict, Verdict::Empty, "nothing is known of that host");
}
