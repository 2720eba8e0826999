//! Tests status after filters, row by row of EMCO's status query (`q01` to `q18`; rows about the wire and about
//! shapes are tests of the query service and of the command).

use std::collections::BTreeMap;

use crate::ledger::{Ledger, Said};
use crate::status::{INSTALLED, ask, at, desired, mixed, of, on, pages, part, refused, with_components};
use muster_contract::fact::DeadlineKind;
use muster_contract::query::Output;
use muster_contract::status::{
    Actuation, Deployed, KStatus, LOOKED_AT_MAX, Ready, Reconcile, StatusQuery, Strategy,
};
use muster_contract::view::{Freshness, Standing};
use muster_contract::{Generation, State};
use muster_domain::fold::{Fleet, StatusCursor};

fn counts<K: Ord + Copy>(pairs: &[(K, u64)]) -> BTreeMap<K, u64> {
    pairs.iter().copied().collect()
}

#[test]
fn q01_status_is_readable_before_any_device_has_said_a_word() {
    let mut ledger = Ledger::default();
    desired(&mut ledger, "north/a", 1, &[("web", 1)]);
    let answer = ask(&ledger.fold(), &of("web"));
    assert_eq!(answer.rollup.deployed_counts, counts(&[(Deployed::Pending, 2)]));
    assert_eq!(answer.rollup.ready_counts, counts(&[(Ready::NotPresent, 2)]));
    let target = &answer.targets[0];
    assert_eq!((target.standing, target.freshness), (Standing::Waiting, Freshness::Never));
    assert_eq!(target.axes.kstatus, KStatus::Unknown, "nobody has heard whether anything is there");
    assert_eq!(target.message, "nothing is reported of it; the device was never heard");
}

#[test]
fn q05_counts_are_of_components_after_filters_and_add_up_to_the_lines() {
    let fleet = mixed().fold();
    let all = ask(&fleet, &of("web"));
    let expected = counts(&[(Deployed::Pending, 3), (Deployed::Applied, 5)]);
    assert_eq!(all.rollup.deployed_counts, expected, "{all:?}");
    assert_eq!(all.targets.iter().map(|target| target.components.len()).sum::<usize>(), 8);
    let side = ask(&fleet, &part(&["side"], of("web")));
    let expected = counts(&[(Deployed::Pending, 2), (Deployed::Applied, 2)]);
    assert_eq!((&side.rollup.deployed_counts, side.rollup.targets), (&expected, 4));
    let north = ask(&fleet, &at(&["north"], part(&["side"], of("web"))));
    assert_eq!(north.rollup.deployed_counts, counts(&[(Deployed::Pending, 1), (Deployed::Applied, 1)]));
}

#[test]
fn q06_an_expected_component_is_not_present_until_it_is_reported() {
    let mut ledger = Ledger::default();
    desired(&mut ledger, "north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    let ready = |ledger: &Ledger| ask(&ledger.fold(), &of("web")).rollup.ready_counts;
    assert_eq!(ready(&ledger), counts(&[(Ready::NotPresent, 2)]));
    let half = &[("main", State::Installed), ("side", State::Installing)];
    ledger.status("north/a", "web", &Said { components: half, ..Said::default() });
    assert_eq!(ready(&ledger), counts(&[(Ready::NotReady, 1), (Ready::Ready, 1)]));
    ledger.status("north/a", "web", &Said { seq: 2, components: INSTALLED, ..Said::default() });
    assert_eq!(ready(&ledger), counts(&[(Ready::Ready, 2)]));
}

#[test]
fn q07_not_ready_is_everything_else_and_nothing_is_empty() {
    let fleet = mixed().fold();
    let status = |query: &StatusQuery| {
        let rollup = ask(&fleet, query).rollup;
        (rollup.deployed_status.unwrap(), rollup.ready_status.unwrap())
    };
    assert_eq!(status(&of("web")), (Deployed::Pending, Ready::NotReady));
    assert_eq!(status(&on(&["north/a"], of("web"))), (Deployed::Applied, Ready::Ready));
    assert_eq!(status(&on(&["south/a"], of("web"))), (Deployed::Pending, Ready::NotReady), "not present");
    assert_eq!(status(&on(&["south/b"], of("web"))), (Deployed::Applied, Ready::Unknown), "silent since");
    let nothing = ask(&fleet, &at(&["north"], on(&["south/a"], of("web"))));
    assert_eq!(nothing.rollup.ready_status, Some(Ready::Empty));
    assert_eq!((nothing.rollup.targets, nothing.total, nothing.next), (0, Some(0), None));
}

#[test]
fn q08_a_summary_counts_what_all_counts_and_has_no_lines() {
    let fleet = mixed().fold();
    for query in
        [of("web"), at(&["south"], of("web")), on(&["north/b"], of("web")), part(&["main"], of("web"))]
    {
        let all = ask(&fleet, &query);
        let summary = ask(&fleet, &StatusQuery { output: Output::Summary, ..query });
        assert_eq!(summary.rollup, all.rollup);
        assert!(summary.targets.is_empty() && summary.apps.is_empty() && !all.targets.is_empty());
    }
}

#[test]
fn q09_values_are_alternatives_filters_combine_and_unknown_is_refused() {
    let fleet = mixed().fold();
    let names = |query: &StatusQuery| {
        let answer = ask(&fleet, query);
        answer.targets.iter().map(|target| target.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&on(&["south/a", "north/a"], of("web"))), ["north/a", "south/a"]);
    assert_eq!(names(&at(&["south"], on(&["south/a", "north/a"], of("web")))), ["south/a"]);
    assert_eq!(names(&at(&["south", "north"], of("web"))), ["north/a", "north/b", "south/a", "south/b"]);
    let lines = |query: &StatusQuery| {
        let targets = ask(&fleet, query).targets;
        let lines = targets.iter().flat_map(|target| &target.components);
        lines.map(|line| line.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(lines(&on(&["north/a"], part(&["side", "main"], of("web")))), ["main", "side"]);
    assert_eq!(lines(&on(&["north/a"], part(&["side"], of("web")))), ["side"]);
    let app = StatusQuery { app: vec!["com.example.web".to_owned()], ..at(&["north"], of("web")) };
    assert_eq!(names(&app), ["north/a", "north/b"]);
    for (query, words) in [
        (of("wbe"), "deployment 'wbe' is targeted nowhere and left nowhere; did you mean web?"),
        (at(&["nroth"], of("web")), "site 'nroth' has no devices; did you mean north?"),
        (on(&["north/c"], of("web")), "device 'north/c' was never heard of; did you mean a or b?"),
        (on(&["nort/a"], of("web")), "site 'nort' has no devices; did you mean north?"),
        (
            part(&["mian"], of("web")),
            "component 'mian' shall run nowhere and is left nowhere; did you mean main?",
        ),
        (StatusQuery { app: vec!["com.example.wbe".into()], ..of("web") }, "did you mean com.example.web?"),
    ] {
        let refused = refused(&fleet, &query);
        assert!(refused.contains(words), "{refused}");
    }
    let mut ledger = mixed();
    ledger.desired("north/a", 2, &[("web", 1), ("db", 2)]);
    let fleet = ledger.fold();
    let other = StatusQuery { app: vec!["com.example.db".to_owned()], ..of("web") };
    assert_eq!(ask(&fleet, &other).rollup.targets, 0, "known, and nothing is left: no error");
    let any = StatusQuery { id: None, ..on(&["north/a"], of("web")) };
    for apps in [&["com.example.db", "com.example.web"], &["com.example.web", "com.example.db"]] {
        let either = StatusQuery { app: apps.map(str::to_owned).to_vec(), ..any.clone() };
        assert_eq!(ask(&fleet, &either).rollup.targets, 2);
    }
    let one = StatusQuery { app: vec!["com.example.db".to_owned()], ..any };
    assert_eq!(ask(&fleet, &one).rollup.targets, 1);
}

/// A leaving row still has its application and its components, and a misspelt name is unknown beside it too.
#[test]
fn q09_unknown_is_told_apart_from_empty_also_while_something_leaves() {
    let mut ledger = mixed();
    ledger.desired("north/a", 2, &[]).desired("north/b", 2, &[]);
    ledger.desired("south/a", 2, &[]).desired("south/b", 2, &[("db", 2)]);
    let app = |id: &str| StatusQuery { app: vec![id.to_owned()], ..of("web") };
    let check = |fleet: &Fleet| {
        for (query, words) in [
            (
                part(&["mian"], of("web")),
                "component 'mian' shall run nowhere and is left nowhere; did you mean main?",
            ),
            (
                app("com.example.wbe"),
                "app 'com.example.wbe' shall run nowhere and is left nowhere; did you mean",
            ),
        ] {
            let refused = refused(fleet, &query);
            assert!(refused.contains(words), "{refused}");
        }
        let left = ask(fleet, &app("com.example.web"));
        assert_eq!((left.rollup.targets, left.rollup.leaving, left.targets.len()), (0, 3, 3));
        assert!(left.targets.iter().all(|target| target.app.as_deref() == Some("com.example.web")));
        assert_eq!(ask(fleet, &part(&["side"], of("web"))).rollup.leaving, 3, "known by reports alone");
        assert_eq!(ask(fleet, &app("com.example.db")).total, Some(0), "known, and none of it leaves");
    };
    let fleet = ledger.fold();
    check(&fleet);
    check(&Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records()));
    for device in ["north/a", "north/b", "south/a", "south/b"] {
        ledger.retired(device, 3);
    }
    let nowhere = refused(&ledger.fold(), &StatusQuery { id: None, ..app("com.example.web") });
    assert!(nowhere.contains("shall run nowhere and is left nowhere"), "{nowhere}");
}

/// Its rows are kept for a month, so that no older report brings it back; they are nothing that anybody asks for.
#[test]
fn q09_an_application_removed_everywhere_is_unknown_until_targeted() {
    let mut ledger = Ledger::default();
    desired(&mut ledger, "north/a", 1, &[("web", 1), ("db", 1)]).fresh("north/a", 1, 0);
    ledger.status("north/a", "web", &Said { components: INSTALLED, ..Said::default() });
    desired(&mut ledger, "north/a", 2, &[("db", 1)]);
    let web = StatusQuery { app: vec!["com.example.web".to_owned()], ..StatusQuery::default() };
    assert_eq!(ask(&ledger.fold(), &web).rollup.leaving, 1, "it is left somewhere");
    let removed: &[(&str, State)] = &[("main", State::Removed), ("side", State::Removed)];
    ledger.status("north/a", "web", &Said { seq: 2, components: removed, ..Said::default() });
    let fleet = ledger.fold();
    for fleet in [&fleet, &Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records())] {
        let words = refused(fleet, &web);
        assert!(words.contains("app 'com.example.web' shall run nowhere and is left nowhere"), "{words}");
        let misspelt = StatusQuery { app: vec!["com.example.dbb".to_owned()], ..StatusQuery::default() };
        assert!(
            refused(fleet, &misspelt).ends_with("did you mean com.example.db?"),
            "no such name is offered"
        );
    }
    desired(&mut ledger, "north/a", 3, &[("db", 1), ("web", 3)]);
    assert_eq!(ask(&ledger.fold(), &web).rollup.targets, 1);
}

/// Components that an update leaves behind are known by reports alone: no desired state names them any more.
#[test]
fn q09_a_component_that_an_update_leaves_behind_is_known() {
    let mut ledger = Ledger::default();
    desired(&mut ledger, "north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    ledger.status("north/a", "web", &Said { components: INSTALLED, ..Said::default() });
    ledger.desired("north/a", 2, &[("web", 2)]);
    with_components(&mut ledger, &["side", "tail"]);
    let answer = ask(&ledger.fold(), &part(&["main"], of("web")));
    assert_eq!(answer.rollup.deployed_counts, counts(&[(Deployed::Deleting, 1)]));
    let target = &answer.targets[0];
    assert_eq!((target.axes.strategy, target.axes.actuation), (Strategy::Apply, Actuation::Pending));
}

#[test]
fn q09_an_unknown_component_differs_from_an_empty_answer() {
    let mut ledger = Ledger::default();
    let device = |number: usize| format!("north/d{number:06}");
    for number in 0..=LOOKED_AT_MAX {
        let name = format!("part-{number:06}");
        let components = &[("main", State::Installed), (name.as_str(), State::Failed)];
        ledger.desired(&device(number), 1, &[("web", 1)]);
        ledger.status(&device(number), "web", &Said { components, ..Said::default() });
    }
    let known = |fleet: &Fleet, name: &str| fleet.status_answer(&part(&[name], of("web")), None, 1).is_ok();
    let fleet = ledger.fold();
    assert!(known(&fleet, "part-000000") && known(&fleet, &format!("part-{LOOKED_AT_MAX:06}")));
    let words = refused(&fleet, &part(&["part-00000"], of("web")));
    assert!(
        words.contains("component 'part-00000' shall run nowhere") && words.contains("part-000000"),
        "{words}"
    );
    assert!(!known(&fleet, "main-2") && known(&fleet, "main"));

    // A name that is no longer reported is unknown from then on, also to a restored fleet.
    let said = Said { seq: 2, components: &[("main", State::Installed)], ..Said::default() };
    let fleet = ledger.status(&device(7), "web", &said).fold();
    let restored =
        Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records_after(None, usize::MAX));
    for fleet in [fleet, restored] {
        assert!(!known(&fleet, "part-000007") && known(&fleet, "part-000008"));
    }
}

#[test]
fn q10_an_older_generation_is_told_as_far_as_it_is_held() {
    let mut ledger = Ledger::default();
    desired(&mut ledger, "north/a", 1, &[("web", 1), ("db", 1)]).fresh("north/a", 1, 0);
    ledger.status("north/a", "web", &Said { components: INSTALLED, ..Said::default() });
    desired(&mut ledger, "north/a", 4, &[("web", 3), ("db", 1)]);
    let then = |ledger: &Ledger, generation: u64| {
        let query = StatusQuery { generation: Generation::new(generation), ..on(&["north/a"], of("web")) };
        ask(&ledger.fold(), &query)
    };
    let now = then(&ledger, 4);
    assert_eq!((now.targets[0].standing, now.targets[0].superseded), (Standing::Outdated, false));
    assert_eq!(then(&ledger, 3).targets, now.targets, "nothing has changed between the two");
    let old = then(&ledger, 1);
    let target = &old.targets[0];
    assert_eq!((target.standing, target.superseded), (Standing::Installed, true));
    assert_eq!(old.rollup.ready_counts, counts(&[(Ready::Ready, 2)]));
    let gone = then(&ledger, 2);
    assert_eq!((gone.rollup.superseded, gone.rollup.targets, gone.total), (1, 0, Some(1)));
    assert_eq!(gone.targets[0].axes.kstatus, KStatus::Unknown);

    let query = StatusQuery { generation: Generation::new(9), ..on(&["north/a"], of("web")) };
    assert!(refused(&ledger.fold(), &query).contains("never published; the newest is 4"));
    let query = StatusQuery { generation: Generation::new(1), ..of("web") };
    assert!(refused(&ledger.fold(), &query).contains("name one device"));
}

#[test]
fn q11_after_an_update_old_and_new_components_are_there_once() {
    let mut ledger = Ledger::default();
    desired(&mut ledger, "north/a", 1, &[("web", 1)]).fresh("north/a", 1, 0);
    ledger.status("north/a", "web", &Said { components: INSTALLED, ..Said::default() });
    ledger.desired("north/a", 2, &[("web", 2)]);
    with_components(&mut ledger, &["side", "tail"]);
    let answer = ask(&ledger.fold(), &of("web"));
    let lines: Vec<_> = answer.targets[0]
        .components
        .iter()
        .map(|line| (line.name.as_str(), line.deployed_status.unwrap(), line.ready_status))
        .collect();
    let not_present = Some(Ready::NotPresent);
    let expected = [
        ("side", Deployed::Pending, not_present),
        ("tail", Deployed::Pending, not_present),
        ("main", Deployed::Deleting, None),
    ];
    assert_eq!(lines, expected);
    assert_eq!(answer.targets[0].components[2].axes.strategy, Strategy::Delete);
}

#[test]
fn q12_whether_a_target_is_heard_is_said_of_each() {
    let mut ledger = mixed();
    desired(&mut ledger, "south/c", 1, &[("web", 1)]);
    let heard: Vec<_> =
        ask(&ledger.fold(), &of("web")).targets.iter().map(|target| target.freshness).collect();
    let (fresh, stale, never) = (Freshness::Fresh, Freshness::Stale, Freshness::Never);
    assert_eq!(heard, [fresh, fresh, fresh, stale, never]);
}

#[test]
fn q15_ready_is_installed_and_heard_and_known_and_failed_stays_failed() {
    let fleet = mixed().fold();
    let answer = ask(&fleet, &of("web"));
    let failed = answer.targets[1].axes;
    let pair = (failed.kstatus, failed.actuation, failed.reconcile);
    let expected = (KStatus::Failed, Actuation::Succeeded, Reconcile::Failed);
    assert_eq!(pair, expected, "one component failed, the other was never begun");
    let lines: Vec<_> = answer
        .targets
        .iter()
        .flat_map(|target| &target.components)
        .map(|line| (line.ready_status.unwrap(), line.axes.kstatus, line.axes.actuation, line.axes.reconcile))
        .collect();
    let ready = (Ready::Ready, KStatus::Current, Actuation::Succeeded, Reconcile::Succeeded);
    let absent = (Ready::NotPresent, KStatus::NotFound, Actuation::Pending, Reconcile::Pending);
    let silent = (Ready::Unknown, KStatus::Unknown, Actuation::Succeeded, Reconcile::Pending);
    let failed = (Ready::NotReady, KStatus::Failed, Actuation::Succeeded, Reconcile::Failed);
    let waits = (Ready::NotReady, KStatus::InProgress, Actuation::Pending, Reconcile::Pending);
    assert_eq!(lines, [ready, ready, failed, waits, absent, absent, silent, silent]);
    let kstatus =
        [(KStatus::Failed, 1), (KStatus::Unknown, 1), (KStatus::NotFound, 1), (KStatus::Current, 1)];
    assert_eq!(answer.rollup.kstatus, counts(&kstatus));

    let mut ledger = mixed();
    ledger.stale("north/b", 1, 1);
    let target = &ask(&ledger.fold(), &on(&["north/b"], of("web"))).targets[0];
    assert_eq!(target.axes.kstatus, KStatus::Failed, "as in the verdict");
    let refused = Said { error: Some(("E7", "web", "no disk")), components: INSTALLED, ..Said::default() };
    ledger.status("south/a", "web", &refused);
    let target = &ask(&ledger.fold(), &on(&["south/a"], of("web"))).targets[0];
    assert_eq!((target.deployed_status, target.axes.actuation), (Some(Deployed::Failed), Actuation::Failed));
    assert_eq!(target.axes.reconcile, Reconcile::Skipped);
    ledger.deadline("north/a", "web", 1, DeadlineKind::Stuck);
    ledger.desired("south/b", 2, &[]);
    let target = &ask(&ledger.fold(), &on(&["south/b"], of("web"))).targets[0];
    assert_eq!((target.axes.kstatus, target.axes.strategy), (KStatus::Terminating, Strategy::Delete));
}

#[test]
fn q16_a_device_and_a_site_have_a_status_of_their_own() {
    let mut ledger = mixed();
    ledger.desired("north/a", 2, &[("web", 1), ("db", 2)]);
    let fleet = ledger.fold();
    let any = StatusQuery { output: Output::All, ..StatusQuery::default() };
    let device = ask(&fleet, &on(&["north/a"], any.clone()));
    let names: Vec<_> = device.targets.iter().map(|target| target.deployment.as_str()).collect();
    assert_eq!((names, device.rollup.targets), (vec!["db", "web"], 2));
    assert_eq!(ask(&fleet, &at(&["north"], any.clone())).rollup.targets, 3);
    assert_eq!(ask(&fleet, &any).rollup.targets, 5);
}

#[test]
fn q17_a_page_looks_at_a_bounded_number_and_pages_are_the_whole() {
    let mut ledger = Ledger::default();
    let devices = LOOKED_AT_MAX + 10;
    for device in 0..devices {
        ledger.desired(&format!("north/d{device:06}"), 1, &[("web", 1)]);
    }
    let fleet = ledger.fold();
    let query = part(&["main"], StatusQuery { output: Output::Summary, ..of("web") });
    let first = ask(&fleet, &query);
    assert_eq!((first.rollup.targets as usize, first.whole, first.total), (LOOKED_AT_MAX, false, None));
    let cursor: StatusCursor = first.next.as_ref().unwrap().parse().unwrap();
    let rest = fleet.status_answer(&query, Some(&cursor), usize::MAX).unwrap();
    let mut sum = first.rollup;
    sum.merge(&rest.rollup);
    assert_eq!((sum.targets as usize, rest.next), (devices, None));
    let kept = ask(&fleet, &StatusQuery { output: Output::Summary, ..of("web") });
    assert!(kept.whole && kept.next.is_none());
    assert_eq!((kept.rollup.targets as usize, &kept.rollup.kstatus), (devices, &sum.kstatus));
}

#[test]
fn q18_every_line_and_roll_up_says_why_and_since_when() {
    let fleet = mixed().fold();
    let answer = ask(&fleet, &of("web"));
    let words = "Exit1 on 1 of 4, such as north/b: no license";
    assert_eq!(answer.rollup.message.as_deref(), Some(words));
    assert!(answer.rollup.changed_at.is_some() && answer.apps[0].rollup.changed_at.is_some());
    assert_eq!(answer.apps[0].app.as_deref(), Some("com.example.web"));
    let app = answer.apps[0].rollup.message.as_deref();
    assert_eq!(app, Some("web on north/b: is failed: Exit1 in main: no license"));
    let at_sites = |sites: &[&str], query| ask(&fleet, &at(sites, query)).rollup.message.unwrap();
    let words = "Exit1 on 1 of 2, such as north/b: no license";
    assert_eq!(at_sites(&["north"], of("web")), words);
    assert_eq!(at_sites(&["south", "north"], of("web")), "Exit1 on 1 of 4, such as north/b: no license");
    let words = "Exit1 of web on 1, such as north/b: no license";
    assert_eq!(at_sites(&["north"], StatusQuery::default()), words);
    assert_eq!(ask(&fleet, &StatusQuery::default()).rollup.message.as_deref(), Some(words));
    assert!(!at_sites(&["south"], of("web")).contains("Exit1"), "no error of another site");
    let heard = answer.targets.iter().map(|target| target.last_heard_at).collect::<Vec<_>>();
    assert!(heard.iter().all(Option::is_some), "when it was heard is beside the words: {heard:?}");
    assert_eq!(answer.rollup.last_heard_at, heard.into_iter().max().flatten(), "a roll-up has the newest");
    let messages: Vec<_> = answer.targets.iter().map(|target| target.message.as_str()).collect();
    let expected = [
        "is installed",
        "is failed: Exit1 in main: no license",
        "nothing is reported of it",
        "is installed; the device is silent",
    ];
    assert_eq!(messages, expected);
    assert_eq!(answer.targets[1].components[0].message, "Exit1: no license");
    for target in &answer.targets {
        assert!(target.changed_at.is_some() && target.changed_at <= answer.rollup.changed_at);
        assert!(target.components.iter().all(|line| !line.message.is_empty() && line.changed_at.is_some()));
    }
}

#[test]
fn q18_the_most_frequent_error_is_named_within_the_visit_limit() {
    let mut ledger = Ledger::default();
    let (failed, codes) = (&[("main", State::Failed)], LOOKED_AT_MAX + 10);
    for number in 0..codes {
        // All but the last two report a code of their own.
        let (device, code) = (format!("north/d{number:06}"), format!("E{:06}", number.min(codes - 2)));
        let said = Said { components: failed, errors: &[("main", &code, "no license")], ..Said::default() };
        ledger.desired(&device, 1, &[("web", 1)]).fresh(&device, 1, 0).status(&device, "web", &said);
    }
    let fleet = ledger.fold();
    let summary =
        |query| ask(&fleet, &StatusQuery { output: Output::Summary, ..query }).rollup.message.unwrap();
    // The ranking of codes is kept for deployments, not for sites.
    let last = codes - 2;
    let words = format!("E{last:06} on 2 of {codes}, such as north/d{last:06}: no license");
    assert_eq!(summary(of("web")), words);
    assert!(summary(StatusQuery::default()).starts_with(&format!("E{last:06} of web on 2, ")));
    let words = format!("E000000 on at least 1 of {codes}, such as north/d000000: no license");
    assert_eq!(summary(at(&["north"], of("web"))), words);
}

#[test]
fn q17_the_worst_speaks_from_whichever_page() {
    let mut ledger = Ledger::default();
    let devices = LOOKED_AT_MAX + 10;
    for device in 0..devices {
        ledger.desired(&format!("north/d{device:06}"), 1, &[("web", 1)]);
    }
    let last = format!("north/d{:06}", devices - 1);
    let failed = &[("main", State::Failed)];
    let said = Said { components: failed, errors: &[("main", "E1", "no license")], ..Said::default() };
    ledger.fresh(&last, 1, 0).status(&last, "web", &said);
    let query = part(&["main"], StatusQuery { output: Output::Summary, ..of("web") });
    let (_, sum) = pages(&ledger.fold(), &query, usize::MAX);
    let words = format!("web on {last}: is failed: E1 in main: no license");
    assert_eq!(sum.message, Some(words));
}
