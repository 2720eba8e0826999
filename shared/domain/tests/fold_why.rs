//! The proof that `why` gives holds: without the devices it names the verdict is another, without any other device it is
//! the same, and the facts it names are enough for the standing of each and cannot be done without.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
#![allow(dead_code, reason = "the ledger and its generator serve several tests")]

mod fleets;
mod ledger;

use std::collections::BTreeSet;

use fleets::ledgers;
use ledger::{Ledger, Said, position};
use muster_contract::State;
use muster_contract::fact::DeadlineKind;
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

/// What the evidence of a standing must keep: the standing itself, and what else its verdict is about.
fn essence(fleet: &Fleet, id: &DeploymentId, because: &Because) -> Option<(Standing, bool, String)> {
    let answer = fleet.why_device(id, &because.key)?;
    let line = fleet.deployment_answer(id, muster_contract::query::Output::All, None, &ALL)?;
    let line = line.devices.into_iter().find(|line| line.key == because.key)?;
    let more = match because.speaks_for {
        Verdict::Overdue => format!("overdue {}", line.overdue.is_some()),
        Verdict::Incomplete => format!("known {}", line.known),
        Verdict::ConvergedStale | Verdict::Converged => {
            format!("fresh {}", answer.standings[0].freshness == Freshness::Fresh)
        }
        _ => String::new(),
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
    let whole = essence(fleet, id, because);
    let named: BTreeSet<_> = because.facts.iter().map(|fact| fact.ledger_seq).collect();
    let of_device = |entry: &ledger::Entry| entry.subject.device() == Some(&because.key);
    let alone = fold_where(ledger, |seq, entry| !of_device(entry) || named.contains(&seq));
    prop_assert_eq!(&essence(&alone, id, because), &whole, "the named facts alone: {:?}", because);

    for fact in &because.facts {
        // These may be known from more than one fact.
        match (because.speaks_for, fact.kind) {
            (
                Verdict::Incomplete,
                EvidenceKind::Head | EvidenceKind::Status | EvidenceKind::Quarantine | EvidenceKind::Liveness,
            )
            | (Verdict::ConvergedStale, EvidenceKind::Liveness)
            | (Verdict::Removing, EvidenceKind::Desired) => continue,
            _ => {}
        }
        let less = fold_where(ledger, |seq, entry| {
            !of_device(entry) || (named.contains(&seq) && seq != fact.ledger_seq)
        });
        prop_assert_ne!(&essence(&less, id, because), &whole, "without {:?} of {:?}", fact, because);
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_named_makes_the_verdict_and_nothing_else_does(ledger in ledgers()) {
        let fleet = ledger.fold();
        for id in DEPLOYMENTS.map(|id| id.parse::<DeploymentId>().unwrap()) {
            match fleet.why(&id, None, &ALL) {
                Some(why) => check(&ledger, &fleet, &id, &why)?,
                None => prop_assert_eq!(verdict(&fleet, &id), Verdict::Empty),
            }
        }
    }

    #[test]
    fn pages_and_sites_are_parts_of_the_whole_answer(ledger in ledgers()) {
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
    assert_eq!(why(&ledger), (Verdict::Waiting, vec!["north/a 1 shall run it".to_owned()]));
    ledger.deadline("north/a", "web", 1, DeadlineKind::NeverStarted);
    let overdue =
        vec!["north/a 1 shall run it".to_owned(), "north/a 2 had not begun after 30 min".to_owned()];
    assert_eq!(why(&ledger), (Verdict::Overdue, overdue));
    let failed = Said { errors: &[("main", "Exit1", "no license")], ..said(1, &[("main", State::Failed)]) };
    ledger.status("north/a", "web", &failed);
    let failing = vec![
        "north/a 1 shall run it".to_owned(),
        "north/a 3 is failed: Exit1 in main: no license".to_owned(),
    ];
    assert_eq!(why(&ledger), (Verdict::Failing, failing));
    ledger.status("north/a", "web", &said(2, &[("main", State::Installed)])).fresh("north/a", 1, 3);
    let gap = ["1 shall run it", "4 is installed", "5 has reported up to 3, of which 1 are not in"];
    assert_eq!(why(&ledger), (Verdict::Incomplete, gap.map(|fact| format!("north/a {fact}")).to_vec()));
    ledger.status("north/a", "web", &said(3, &[("main", State::Installed)]));
    let converged = ["shall run it", "is installed", "is heard"].map(str::to_owned);
    let words = |facts: Vec<String>| {
        facts.iter().map(|f| f.splitn(3, ' ').nth(2).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (verdict, facts) = why(&ledger);
    assert_eq!((verdict, words(facts)), (Verdict::Converged, converged.to_vec()));
    ledger.desired("north/a", 2, &[]);
    let (verdict, facts) = why(&ledger);
    assert_eq!(verdict, Verdict::Removing);
    assert_eq!(words(facts), ["does not name it any more", "is installed"]);
}
