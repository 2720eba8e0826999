//! Tests the fold in situations in which other systems were found to show something untrue.

use crate::ledger;
use crate::scenarios;
use std::collections::BTreeMap;

use crate::ledger::{Ledger, Look, Said, key, seen};
use muster_contract::State::{Failed, Installing};
use muster_contract::fact::{DeadlineKind, Fidelity, Liveness, Provenance};
use muster_contract::limits::{COMPONENTS_MAX, VIEW_ERRORS_MAX, VIEW_MESSAGE_BYTES_MAX};
use muster_contract::query::{LastReport, Output, Query};
use muster_contract::status::{LOOKED_AT_MAX, StatusQuery};
use muster_contract::view::Freshness::{Fresh, Never, Stale};
use muster_contract::view::{Bounds, Complete, DeploymentView, Split, Standing, Verdict};
use muster_domain::fold::{Fleet, Outcome, Page};

const PRESS: &str = "plant7/press-4";

fn counts(view: &DeploymentView) -> Vec<(&'static str, Split)> {
    view.counts.iter().map(|(standing, split)| (standing.as_str(), *split)).collect()
}

fn fresh(fresh: u64) -> Split {
    Split { fresh, ..Split::default() }
}

fn stale(stale: u64) -> Split {
    Split { stale, ..Split::default() }
}

fn never(never: u64) -> Split {
    Split { never, ..Split::default() }
}

fn report(fleet: &Fleet, device: &str) -> LastReport {
    let answer = fleet.device_answer(&key(device), Output::Detail).unwrap();
    answer.deployments[0].report.clone().unwrap()
}

#[test]
fn m01_success_then_dark_is_never_plain_green() {
    let view = scenarios::m01_success_then_dark().fold().deployment("web");
    assert_eq!(view.verdict, Verdict::ConvergedStale);
    assert_eq!(counts(&view), [("installed", stale(1))]);
    assert_eq!(view.converged, Bounds { lo: 0, hi: 1 });
}

#[test]
fn sampled_evidence_is_told_from_events_and_is_no_success_once_it_is_old() {
    let fleet = scenarios::rules::sampled_evidence().fold();
    let view = fleet.deployment("web");
    assert_eq!(counts(&view), [("installed", Split { fresh: 1, stale: 1, never: 0 })]);
    assert_eq!((view.verdict, view.converged), (Verdict::ConvergedStale, Bounds { lo: 1, hi: 2 }));
    let counted = BTreeMap::from([(Provenance::Pull, BTreeMap::from([(Fidelity::Sampled, 2)]))]);
    assert_eq!((&view.evidence, &fleet.fleet_view().tally.evidence), (&counted, &counted));
    let kept = report(&fleet, PRESS);
    assert_eq!((kept.origin, kept.fidelity), (Provenance::Pull, Fidelity::Sampled));
    let kept = report(&scenarios::m01_success_then_dark().fold(), PRESS);
    assert_eq!((kept.origin, kept.fidelity), (Provenance::Push, Fidelity::Event));
}

#[test]
fn m02_an_old_error_is_not_the_new_generations() {
    let fleet = scenarios::m02_error_then_dark_then_fix().fold();
    let view = fleet.deployment("web");
    assert_eq!(counts(&view), [("outdated", stale(1))]);
    assert!(view.errors.is_empty() && view.components.is_empty());
    assert_eq!((view.verdict, view.converged.hi), (Verdict::Waiting, 1));
    let kept = report(&fleet, PRESS);
    assert_eq!(kept.components[0].error.as_ref().unwrap().code, "ImagePull", "the history is kept");
}

#[test]
fn m03_all_dark_is_no_evidence_either_way() {
    let fleet = scenarios::m03_all_dark().fold();
    let view = fleet.deployment("web");
    assert_eq!(view.converged, Bounds { lo: 0, hi: 3 });
    assert_eq!(view.verdict, Verdict::ConvergedStale);
    assert_eq!(fleet.fleet_view().tally.devices, stale(3));
}

#[test]
fn m04_one_question_tells_who_is_dark_and_since_when() {
    let fleet = scenarios::m30_separate_buckets().fold();
    let answer = fleet.devices_answer(&Default::default(), &Page { after: None, limit: 10 }).unwrap();
    let lines: Vec<_> = answer
        .devices
        .iter()
        .map(|line| (line.key.to_string(), line.freshness, line.last_heard_at.is_some()))
        .collect();
    assert_eq!(
        lines,
        [
            ("plant7/drill-1".to_owned(), Stale, true),
            ("plant7/press-4".to_owned(), Fresh, true),
            ("plant9/oven-2".to_owned(), Never, false),
        ]
    );
    let page = Page { after: None, limit: 10 };
    let dark =
        fleet.devices_answer(&Query { freshness: [Stale, Never].into(), ..Query::default() }, &page).unwrap();
    let names: Vec<_> = dark.devices.iter().map(|line| line.key.to_string()).collect();
    assert_eq!((names, dark.next), (vec!["plant7/drill-1".to_owned(), "plant9/oven-2".to_owned()], None));
    let site = Some("plant9".parse().unwrap()).into();
    let at_site = Query { site, freshness: [Stale].into(), ..Query::default() };
    let at_site = fleet.devices_answer(&at_site, &page).unwrap();
    assert!(at_site.devices.is_empty() && at_site.next.is_none(), "{at_site:?}");
}

#[test]
fn m04_a_page_of_silent_devices_visits_a_bounded_number() {
    let mut ledger = Ledger::default();
    let (devices, dark) = (2 * LOOKED_AT_MAX + 10, [3, LOOKED_AT_MAX + 5, 2 * LOOKED_AT_MAX + 9]);
    let name = |number: usize| format!("north/d{number:06}");
    for number in 0..devices {
        if dark.contains(&number) {
            ledger.stale(&name(number), 1, 0);
        } else {
            ledger.fresh(&name(number), 1, 0);
        }
    }
    ledger.retired(&name(7), 1).stale(&name(7), 1, 0);
    let fleet = ledger.fold();
    let ask = |after: Option<String>, limit| {
        let page = Page { after: after.map(|text| text.parse().unwrap()), limit };
        let dark = Query { freshness: [Stale, Never].into(), ..Query::default() };
        let answer = fleet.devices_answer(&dark, &page).unwrap();
        (answer.devices.iter().map(|line| line.key.to_string()).collect::<Vec<_>>(), answer.next)
    };
    let first = ask(None, usize::MAX);
    assert_eq!(first, (vec![name(3)], Some(name(LOOKED_AT_MAX - 1))), "no retired one, and no more looks");
    let second = ask(first.1, usize::MAX);
    assert_eq!(second, (vec![name(dark[1])], Some(name(2 * LOOKED_AT_MAX - 1))));
    assert_eq!(ask(second.1, usize::MAX), (vec![name(dark[2])], None));
    assert_eq!(ask(None, 1), (vec![name(3)], Some(name(3))), "a full page ends with its last device");
    assert_eq!(ask(Some(name(3)), 1), (Vec::new(), Some(name(LOOKED_AT_MAX + 3))), "one without any goes on");
}

#[test]
fn m08_silence_after_installing_is_overdue_beside_its_standing() {
    let mut ledger = scenarios::m08_silent_after_installing();
    let view = ledger.fold().deployment("web");
    assert_eq!((view.verdict, view.overdue), (Verdict::Overdue, 1));
    assert_eq!(counts(&view), [("installing", stale(1))]);

    let later = ledger.clone().desired(PRESS, 2, &[("web", 2)]).fold().deployment("web");
    assert_eq!((later.verdict, later.overdue), (Verdict::Waiting, 0), "void for a later generation");

    ledger.status(PRESS, "web", &Said { seq: 2, ..Said::default() });
    let ended = ledger.fold().deployment("web");
    assert_eq!((ended.verdict, ended.overdue), (Verdict::ConvergedStale, 0), "an end clears it");
}

#[test]
fn m08_a_deadline_may_come_before_its_desired_state() {
    let mut ledger = Ledger::default();
    ledger.deadline(PRESS, "web", 2, DeadlineKind::NeverStarted).desired(PRESS, 1, &[("web", 1)]);
    assert_eq!(ledger.fold().deployment("web").overdue, 0);
    ledger.desired(PRESS, 2, &[("web", 2)]).deadline(PRESS, "web", 1, DeadlineKind::Stuck);
    assert_eq!(ledger.fold().deployment("web").overdue, 1, "an older deadline does not displace it");
}

#[test]
fn m09_never_heard_is_a_bucket_of_its_own_and_no_progress() {
    let fleet = scenarios::m09_never_connects().fold();
    let view = fleet.deployment("web");
    assert_eq!(counts(&view), [("waiting", never(1)), ("installed", fresh(1))]);
    assert_eq!((view.verdict, view.converged), (Verdict::Waiting, Bounds { lo: 1, hi: 2 }));
    assert_eq!(view.complete, Complete { devices: 2, of: 2, missing_reports: 0 }, "there is nothing to miss");
}

#[test]
fn m10_a_lost_report_is_visible_until_it_is_sent_again() {
    let mut ledger = scenarios::m10_last_report_lost();
    let view = ledger.fold().deployment("web");
    assert_eq!(view.verdict, Verdict::Incomplete);
    assert_eq!(view.complete, Complete { devices: 0, of: 1, missing_reports: 1 });
    ledger.status(PRESS, "web", &Said { seq: 2, ..Said::default() });
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Converged);
}

#[test]
fn m14_what_was_removed_leaves_no_ghost() {
    let ledger = scenarios::m14_removed_while_away();
    let mut fleet = Fleet::default();
    let upto = |entries: usize| Ledger { entries: ledger.entries[..entries].to_vec() };
    upto(6).fold_into(&mut fleet, 0);
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, view.targets, view.leaving), (Verdict::Removing, 0, 1));
    upto(7).fold_into(&mut fleet, 6);
    assert!(!fleet.has_deployment("web"));
    ledger.fold_into(&mut fleet, 7);
    assert!(!fleet.has_deployment("web"), "older news do not bring it back");
    let answer = fleet.device_answer(&key(PRESS), Output::All).unwrap();
    assert_eq!(answer.deployments.len(), 1);
    assert_eq!(fleet.fleet_view().tally.leaving, 0);
}

#[test]
fn m14_a_removal_is_forgotten_only_when_ledger_has_forgotten_it() {
    let mut ledger = scenarios::m25_empty_target_set();
    ledger.desired(PRESS, 3, &[("db", 3)]);
    let removed =
        |fleet: &Fleet| serde_json::to_string(&fleet.record(&key(PRESS))).unwrap().contains("\"web\"");
    assert!(removed(&ledger.fold()));
    let mut fleet = ledger.fold();
    let after = ledger::position(ledger.entries.len());
    let next_month = after.stored_at + jiff::SignedDuration::from_hours(24 * 32);
    let at = muster_domain::fold::Position { stored_at: next_month, ..after };
    let entry = ledger.desired(PRESS, 4, &[("db", 3)]).entries.last().unwrap().clone();
    fleet.apply(at, &entry.subject, entry.fact);
    assert!(!removed(&fleet));
}

#[test]
fn m14_what_a_device_has_forgotten_does_not_leave_for_ever() {
    let mut before = scenarios::amnesia_while_leaving();
    let fleet = before.fold();
    assert!(fleet.deployment_view(&"web".parse().unwrap()).is_none(), "the device knows nothing of it");
    assert_eq!(fleet.deployment("db").verdict, Verdict::Converged);
    // While something of what it has said since is missing, that may be it.
    before.status(PRESS, "db", &Said { epoch: 7, seq: 4, ..Said::default() });
    assert_eq!(before.fold().deployment("web").leaving, 1);
}

#[test]
fn m15_late_progress_after_success_is_history() {
    let ledger = scenarios::m15_late_progress_after_success();
    let mut fleet = Fleet::default();
    let outcomes = ledger.fold_into(&mut fleet, 0);
    assert_eq!(outcomes[3], Outcome::Late);
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, counts(&view)), (Verdict::Converged, vec![("installed", fresh(1))]));
    let line = fleet.device_answer(&key(PRESS), Output::All).unwrap().device;
    assert_eq!((line.account.received, line.account.missing.count()), (2, 0));
}

#[test]
fn m18_two_reports_of_the_same_instant_are_both_kept() {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[("web", 1)]).status(PRESS, "web", &Said { seq: 1, ..Said::default() });
    let mut twin = ledger.entries[1].clone();
    if let muster_contract::fact::Fact::Status(fact) = &mut twin.fact {
        fact.seq = fact.seq.next();
        fact.head = fact.seq;
    }
    ledger.entries.push(twin);
    let line = ledger.fold().device_answer(&key(PRESS), Output::All).unwrap();
    assert_eq!(line.device.account.received, 2);
    assert_eq!(line.deployments[0].report.as_ref().unwrap().seq.get(), 2);
}

#[test]
fn m19_old_success_opens_no_gate_for_a_new_revision() {
    let view = scenarios::m19_new_revision_old_success().fold().deployment("web");
    assert_eq!(counts(&view), [("outdated", fresh(1))]);
    assert_eq!((view.verdict, view.converged), (Verdict::Waiting, Bounds { lo: 0, hi: 1 }));
}

#[test]
fn m24_failing_shows_while_others_are_at_work() {
    let view = scenarios::m24_one_failed_one_at_work().fold().deployment("web");
    assert_eq!(view.verdict, Verdict::Failing);
    assert_eq!(view.converged, Bounds { lo: 0, hi: 1 });
    assert_eq!((view.errors[0].code.as_str(), view.errors[0].count), ("Exit1", 1));
    let side = &view.components[&"side".parse().unwrap()];
    assert_eq!(side.values().sum::<u64>(), 2);
}

#[test]
fn m26_the_worst_state_wins_however_many_come_before_it() {
    let mut ledger = Ledger::default();
    for number in 10..25 {
        let device = format!("plant7/press-{number}");
        let state = if number == 24 { Failed } else { Installing };
        ledger.desired(&device, 1, &[("web", 1)]).status(
            &device,
            "web",
            &Said { components: &[("main", state)], ..Said::default() },
        );
    }
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Failing);
}

#[test]
fn m30_fresh_stale_and_never_are_counted_apart() {
    let mut ledger = scenarios::m30_separate_buckets();
    let fleet = ledger.fold();
    let view = fleet.deployment("web");
    assert_eq!(counts(&view), [("waiting", never(1)), ("installed", Split { fresh: 1, stale: 1, never: 0 })]);
    // The denominator of any percentage: all targets, heard or not.
    assert_eq!((view.targets, view.complete.of), (3, 3));
    assert_eq!((view.verdict, view.converged), (Verdict::Waiting, Bounds { lo: 1, hi: 3 }));
    assert_eq!(fleet.fleet_view().tally.devices, Split { fresh: 1, stale: 1, never: 1 });

    // One that is out of use is in no bucket and in no base, and is still listed as what it is.
    let spare = "plant9/spare-1";
    ledger.desired(spare, 1, &[("web", 1)]).fresh(spare, 1, 0).status(spare, "web", &Said::default());
    assert_eq!(ledger.fold().deployment("web").targets, 4);
    ledger.retired(spare, 2);
    let after = ledger.fold();
    assert_eq!(after.deployment("web").digest, view.digest);
    assert_eq!(after.fleet_view().tally.devices, fleet.fleet_view().tally.devices);
    assert!(after.device_answer(&key(spare), Output::All).unwrap().device.retired);
}

#[test]
fn m33_a_restart_with_nobody_talking_shows_what_was_known_with_its_age() {
    for scenario in scenarios::all() {
        let fleet = (scenario.ledger)().fold();
        let stored = serde_json::to_string(&fleet.records().collect::<Vec<_>>()).unwrap();
        let restored = Fleet::restore(
            fleet.as_of(),
            fleet.hearing_state().clone(),
            serde_json::from_str::<Vec<_>>(&stored).unwrap(),
        );
        assert_eq!(seen(&restored, true), seen(&fleet, true), "{}", scenario.name);
        assert_eq!(serde_json::to_string(&restored.records().collect::<Vec<_>>()).unwrap(), stored);
    }
}

#[test]
fn m34_two_readers_of_one_ledger_say_the_same_to_the_byte() {
    for scenario in scenarios::all() {
        assert_eq!(seen(&(scenario.ledger)().fold(), true), seen(&(scenario.ledger)().fold(), true));
    }
}

#[test]
fn m37_a_device_that_missed_a_bad_revision_is_judged_by_the_fix_alone() {
    let ledger = scenarios::m37_fix_published_while_away();
    let verdicts = (1..=ledger.entries.len()).map(|entries| {
        let view = Ledger { entries: ledger.entries[..entries].to_vec() }.fold().deployment("web");
        assert!(view.errors.is_empty(), "of a release that was never begun nothing can have failed");
        (view.verdict, view.converged.lo)
    });
    // Targeted, heard, installed, silent; the bad revision and the fix are published; heard, at work,
    // installed. The earlier revision counts for neither, and the fix alone ends it.
    let expected = [
        (Verdict::Waiting, 0),
        (Verdict::Waiting, 0),
        (Verdict::Converged, 1),
        (Verdict::ConvergedStale, 0),
        (Verdict::Waiting, 0),
        (Verdict::Waiting, 0),
        (Verdict::Incomplete, 0),
        (Verdict::Incomplete, 0),
        (Verdict::Converged, 1),
    ];
    assert_eq!(verdicts.collect::<Vec<_>>(), expected);
}

#[test]
fn m40_what_a_view_leaves_out_it_declares() {
    let mut ledger = Ledger::default();
    let names: Vec<String> = (0..150).map(|at| format!("c{at:03}")).collect();
    for (device, prefix) in [("a", "x"), ("b", "y")] {
        let device = format!("plant7/{device}");
        let names: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
        let components: Vec<_> = names.iter().map(|name| (name.as_str(), Failed)).collect();
        let long = "m".repeat(4000);
        let errors: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str(), long.as_str())).collect();
        let said = Said { components: &components, errors: &errors, ..Said::default() };
        ledger.desired(&device, 1, &[("web", 1)]).status(&device, "web", &said);
    }
    let view = ledger.fold().deployment("web");
    assert_eq!(view.components.len(), COMPONENTS_MAX);
    assert_eq!(view.omitted.components, 300 - COMPONENTS_MAX as u64);
    assert_eq!(view.errors.len(), VIEW_ERRORS_MAX);
    assert_eq!(view.omitted.errors, 300 - VIEW_ERRORS_MAX as u64);
    assert!(view.errors.iter().all(|error| error.example.message.len() <= VIEW_MESSAGE_BYTES_MAX));
}

#[test]
fn amnesia_keeps_the_old_word_but_does_not_rely_on_it() {
    let fleet = scenarios::amnesia().fold();
    let web = fleet.deployment("web");
    assert_eq!((web.verdict, counts(&web)), (Verdict::Incomplete, vec![("installed", fresh(1))]));
    assert_eq!(web.converged, Bounds { lo: 0, hi: 1 });
    assert_eq!(fleet.deployment("db").verdict, Verdict::Converged);
    let answer = fleet.device_answer(&key(PRESS), Output::All).unwrap();
    assert_eq!((answer.device.epoch.unwrap().get(), answer.device.incidents), (7, 1));
    assert_eq!(answer.capabilities.unwrap()["cpus"][0]["cores"], 4);
}

#[test]
fn the_newest_reports_are_known_before_the_backlog_is_in() {
    let mut ledger = scenarios::newest_first_after_an_outage();
    let fleet = ledger.fold();
    let web = fleet.deployment("web");
    assert_eq!((web.verdict, web.converged.lo, web.complete.missing_reports), (Verdict::Converged, 1, 7));
    assert_eq!(fleet.deployment("db").verdict, Verdict::Incomplete, "its report may be in the backlog");
    ledger.fresh(PRESS, 1, 10);
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Incomplete, "a later head may be about it");
}

#[test]
fn errors_are_counted_once_a_device_and_code_with_the_first_as_example() {
    let mut ledger = scenarios::errors_counted_by_code();
    let view = ledger.fold().deployment("web");
    let errors: Vec<_> = view
        .errors
        .iter()
        .map(|error| {
            let example = &error.example;
            let component = example.component.as_ref().map(|name| name.as_str().to_owned());
            (error.code.as_str(), error.count, example.device.to_string(), component)
        })
        .collect();
    let main = Some("main".to_owned());
    assert_eq!(
        errors,
        [
            ("Exit1", 2, "plant7/drill-1".to_owned(), Some("side".to_owned())),
            ("DiskFull", 1, "plant9/oven-2".to_owned(), main.clone()),
            ("unspecified", 1, "plant9/oven-3".to_owned(), None),
        ]
    );
    ledger.status("plant7/drill-1", "web", &Said { seq: 2, ..Said::default() });
    let error = ledger.fold().deployment("web").errors.remove(1);
    let component = error.example.component.map(|name| name.to_string());
    assert_eq!((error.code.as_str(), error.count, component), ("Exit1", 1, main));
    assert_eq!(error.example.message, "main died");
}

#[test]
fn quarantined_and_coalesced_numbers_are_not_missing() {
    let fleet = scenarios::quarantined_and_coalesced().fold();
    let line = fleet.device_answer(&key(PRESS), Output::All).unwrap().device;
    let account = &line.account;
    assert_eq!((line.head, account.received, account.coalesced, account.quarantined), (5, 1, 3, 1));
    assert!(account.missing.is_empty());
    assert_eq!(line.unnumbered_quarantined, 1);
    assert_eq!(fleet.deployment("web").verdict, Verdict::Converged);
}

#[test]
fn a_report_without_any_liveness_fact_is_stale() {
    let mut ledger = Ledger::default();
    ledger.capabilities(PRESS, 1, 1);
    let freshness = |ledger: &Ledger| ledger.fold().fleet_view().tally.devices;
    assert_eq!(freshness(&ledger), stale(1));
    ledger.fresh(PRESS, 2, 0);
    assert_eq!(freshness(&ledger), fresh(1));
    ledger.liveness(PRESS, Liveness::Stale, 1, 9, None);
    assert_eq!(freshness(&ledger), fresh(1), "hub time of an older epoch is history");
}

#[test]
fn a_fact_that_was_read_before_or_is_of_another_kind_changes_nothing() {
    let ledger = scenarios::amnesia();
    let mut fleet = ledger.fold();
    let before = seen(&fleet, true);
    assert!(ledger.fold_into(&mut fleet, 0).iter().all(|outcome| *outcome == Outcome::Skipped));
    assert_eq!(seen(&fleet, true), before);
    let wrong = (&ledger.entries[0].subject, ledger.entries[1].fact.clone());
    assert_eq!(fleet.apply(ledger::position(99), wrong.0, wrong.1), Outcome::Skipped);
    assert_eq!(fleet.as_of().ledger_seq, 100, "but it was passed");
}

#[test]
fn pages_follow_each_other_without_gap_or_overlap() {
    let mut ledger = Ledger::default();
    for number in 0..23 {
        let device = format!("plant{}/press-{number}", number % 3);
        ledger.desired(&device, 1, &[("web", 1), (&format!("app-{number}"), 1)]);
    }
    let fleet = ledger.fold();
    let site: muster_contract::SiteId = "plant1".parse().unwrap();
    let query =
        StatusQuery { id: Some("web".parse().unwrap()), output: Output::Brief, ..StatusQuery::default() };
    let all = fleet.status_answer(&query, None, 1000).unwrap().targets;
    let (mut after, mut lines) = (None, Vec::new());
    loop {
        let answer = fleet.status_answer(&query, after.as_ref(), 5).unwrap();
        lines.extend(answer.targets);
        let Some(next) = answer.next else { break };
        after = Some(next.parse().unwrap());
    }
    assert_eq!((&lines, lines.len()), (&all, 23));
    assert!(lines.is_sorted_by_key(|line| line.key.clone()));
    let page = Page { after: Some("app-9".parse().unwrap()), limit: 2 };
    let views = fleet.deployments_answer(&Default::default(), &page).unwrap();
    assert_eq!((views.deployments[0].deployment.as_str(), views.next), ("web", None));
    let page = Page { after: None, limit: 100 };
    let at = |site: &str| Query { site: Some(site.parse().unwrap()).into(), ..Query::default() };
    assert_eq!(fleet.deployments_answer(&at(site.as_str()), &page).unwrap().deployments.len(), 9);
    assert!(fleet.deployments_answer(&at("nowhere"), &page).is_err());
    let devices = fleet.devices_answer(&at(site.as_str()), &Page { after: None, limit: 9 }).unwrap().devices;
    assert!(devices.len() == 8 && devices.iter().all(|line| line.standings[&Standing::Waiting] == 2));
}
