//! Tests the laws of status after filters, over arbitrary ledgers.

use crate::fleets::ledgers_of_a_deaf_hub;
use crate::ledger;
use crate::status::{ask, at, on, pages, part};
use muster_contract::query::Output;
use muster_contract::status::{
    Actuation, Axis, KStatus, Ready, Reconcile, Rollup, StatusAnswer, StatusQuery, Strategy,
};
use muster_contract::view::{Freshness, Retried, Split, Standing};
use muster_domain::fold::Fleet;
use proptest::prelude::*;

/// The roll-up that lines give, without words and times.
fn counted(answer: &StatusAnswer) -> Rollup {
    let mut sum = Rollup::default();
    for target in &answer.targets {
        *sum.kstatus.entry(target.axes.kstatus).or_default() += 1;
        for line in &target.components {
            *sum.deployed_counts.entry(line.deployed_status.unwrap()).or_default() += 1;
            if let Some(ready) = line.ready_status {
                *sum.ready_counts.entry(ready).or_default() += 1;
            }
        }
        if target.leaving {
            sum.leaving += 1;
            continue;
        }
        sum.targets += 1;
        sum.overdue += u64::from(target.overdue);
        sum.known += u64::from(target.known);
        if let Some(retry) = target.retry.filter(|_| target.standing != Standing::Outdated) {
            sum.retried = sum.retried.plus(Retried { targets: 1, attempts: retry.attempt.into() });
        }
        let source = target.report.as_ref().map(|report| (report.origin, report.fidelity));
        for (origin, fidelity) in source.into_iter().filter(|source| *source != Default::default()) {
            *sum.evidence.entry(origin).or_default().entry(fidelity).or_default() += 1;
        }
        let split: &mut Split = sum.counts.entry(target.standing).or_default();
        *split.get_mut(target.freshness) += 1;
    }
    sum
}

fn numbers(rollup: &Rollup) -> Rollup {
    let numbers = Rollup { deployed_status: None, ready_status: None, ..rollup.clone() };
    Rollup { message: None, changed_at: None, last_heard_at: None, ..numbers }
}

proptest! {
    /// Kept counts equal counted ones, after any history, and after a restart from a snapshot; so does the time
    /// of the last change.
    #[test]
    fn kept_counts_are_the_counts_of_the_lines(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        let restored = Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records());
        let any = StatusQuery { output: Output::All, ..StatusQuery::default() };
        let mut queries = vec![any.clone()];
        for id in ["web", "db", "log"] {
            queries.push(StatusQuery { id: Some(id.parse().unwrap()), ..any.clone() });
        }
        for sites in [&["north"][..], &["south"], &["south", "north"]] {
            queries.extend(queries.clone().into_iter().take(4).map(|query| at(sites, query)));
        }
        for query in queries {
            let Ok(answer) = fleet.status_answer(&query, None, usize::MAX) else { continue };
            prop_assert!(answer.whole);
            prop_assert_eq!(numbers(&answer.rollup), counted(&answer), "{:?}", query);
            let again = restored.status_answer(&query, None, usize::MAX).unwrap();
            prop_assert_eq!(numbers(&again.rollup), numbers(&answer.rollup), "restored, {:?}", query);
            prop_assert_eq!(again.rollup.changed_at, answer.rollup.changed_at, "restored, {:?}", query);
            prop_assert_eq!(again.rollup.last_heard_at, answer.rollup.last_heard_at, "restored, {:?}", query);
            prop_assert!(answer.targets.iter().all(|line| line.changed_at.is_some()), "{:?}", answer.targets);
            let newest = answer.targets.iter().map(|line| line.changed_at).max().flatten();
            prop_assert!(newest <= answer.rollup.changed_at, "what is gone may be newer, what is there is not");
            prop_assert_eq!(again.targets, answer.targets);
        }
    }

    /// Nothing that is silent, or of which reports are missing, is Ready or Current.
    #[test]
    fn nothing_is_current_that_is_not_heard_and_known(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        let answer = ask(&fleet, &StatusQuery { output: Output::All, ..StatusQuery::default() });
        for target in &answer.targets {
            let sure = target.freshness == Freshness::Fresh && target.known && !target.leaving;
            let current = target.components.iter().any(|line| {
                line.axes.kstatus == KStatus::Current || line.ready_status == Some(Ready::Ready)
                    || (line.axes.strategy == Strategy::Apply && line.axes.reconcile == Reconcile::Succeeded)
            });
            prop_assert!(sure || !(current || target.axes.kstatus == KStatus::Current), "{:?}", target);
            let all_current = target.components.iter().all(|line| line.axes.kstatus == KStatus::Current);
            if target.axes.kstatus == KStatus::Current {
                prop_assert_eq!(target.standing, Standing::Installed);
            }
            if !target.leaving && target.standing == Standing::Failed {
                prop_assert!(!all_current, "{:?}", target);
            }
        }
    }

    /// However small the pages: the same targets in order, and the same counts.
    #[test]
    fn pages_are_the_whole(ledger in ledgers_of_a_deaf_hub(), limit in 1usize..4) {
        let fleet = ledger.fold();
        let any = StatusQuery { output: Output::All, ..StatusQuery::default() };
        let known = ["north/a", "north/b", "south/a", "south/b"].into_iter().filter(|device| {
            fleet.status_answer(&on(&[device], any.clone()), None, 1).is_ok()
        });
        let known: Vec<_> = known.collect();
        for query in [any.clone(), on(&known, any), at(&["north"], StatusQuery { output: Output::All, ..StatusQuery::default() })] {
            if fleet.status_answer(&query, None, 1).is_err() {
                continue;
            }
            let (names, sum) = pages(&fleet, &query, usize::MAX);
            let (paged, counts) = pages(&fleet, &query, limit);
            prop_assert!(names.is_sorted());
            prop_assert_eq!(&paged, &names);
            // Statuses, message and time as well.
            prop_assert_eq!(counts, sum);
        }
    }

    /// kpt has no other pairs: reconcile has failed or succeeded only after a succeeded actuation, and is skipped
    /// exactly where the actuation failed.
    #[test]
    fn what_went_wrong_or_came_about_was_taken_up(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        let any = StatusQuery { output: Output::All, ..StatusQuery::default() };
        for query in [any.clone(), part(&["main"], any.clone()), part(&["side"], any)] {
            let Ok(answer) = fleet.status_answer(&query, None, usize::MAX) else { continue };
            let lines = answer.targets.iter().flat_map(|target| &target.components).map(|line| line.axes);
            for axes in answer.targets.iter().map(|target| target.axes).chain(lines) {
                let ended = matches!(axes.reconcile, Reconcile::Failed | Reconcile::Succeeded);
                prop_assert!(!ended || axes.actuation == Actuation::Succeeded, "{:?}", axes);
                let (refused, skipped) =
                    (axes.actuation == Actuation::Failed, axes.reconcile == Reconcile::Skipped);
                prop_assert_eq!(refused, skipped, "{:?}", axes);
            }
        }
    }

    /// One axis is half of the answer with both.
    #[test]
    fn an_axis_is_a_part_of_the_answer(ledger in ledgers_of_a_deaf_hub()) {
        let fleet = ledger.fold();
        let both = ask(&fleet, &StatusQuery::default()).rollup;
        let one = |axis| ask(&fleet, &StatusQuery { status: Some(axis), ..StatusQuery::default() }).rollup;
        let (deployed, ready) = (one(Axis::Deployed), one(Axis::Ready));
        prop_assert_eq!(&deployed.deployed_counts, &both.deployed_counts);
        prop_assert_eq!(&ready.ready_counts, &both.ready_counts);
        prop_assert!(deployed.ready_status.is_none() && deployed.ready_counts.is_empty());
        prop_assert!(ready.deployed_status.is_none() && ready.deployed_counts.is_empty());
    }

    /// Whatever became of it: removed, forgotten by its device, retired, updated to another application and back.
    #[test]
    fn an_application_is_known_exactly_while_a_line_is_of_it(ledger in ledgers_of_a_deaf_hub(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(ledger.entries.len() + 1);
        let early = ledger::Ledger { entries: ledger.entries[..cut].to_vec() };
        for fleet in [early.fold(), ledger.fold()] {
            let lines = ask(&fleet, &StatusQuery { output: Output::All, ..StatusQuery::default() }).targets;
            let restored = Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records());
            for app in ["com.example.web", "com.example.db", "com.example.log"] {
                let there = lines.iter().any(|target| target.app.as_deref() == Some(app));
                let query = StatusQuery { app: vec![app.to_owned()], ..StatusQuery::default() };
                for fleet in [&fleet, &restored] {
                    prop_assert_eq!(fleet.status_answer(&query, None, 1).is_ok(), there, "{}", app);
                }
            }
        }
    }
}
