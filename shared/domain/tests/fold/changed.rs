//! Tests when a line, and a roll-up of lines, last changed: a function of the held rows, whatever has gone
//! since.

use crate::ledger;
use crate::ledger::{Entry, Ledger, Said, Tried};
use crate::status::{ask, at, of, on};
use jiff::SignedDuration;
use muster_contract::fact::Fact;
use muster_contract::query::{Output, Query};
use muster_contract::status::StatusQuery;
use muster_contract::view::Retried;
use muster_contract::{Generation, State, Timestamp};
use muster_domain::fold::{Fleet, Page, Position};
use proptest::collection::vec;
use proptest::prelude::*;

const DEVICES: [&str; 4] = ["north/a", "north/b", "south/a", "south/b"];
const DEPLOYMENTS: [&str; 2] = ["web", "db"];

fn changed(fleet: &Fleet, query: &StatusQuery) -> Option<Timestamp> {
    fleet.status_answer(query, None, usize::MAX).ok().and_then(|answer| answer.rollup.changed_at)
}

/// When the fact was made that came last.
fn made(ledger: &Ledger) -> Timestamp {
    match &ledger.entries.last().unwrap().fact {
        Fact::Desired(fact) => fact.issued_at,
        Fact::Status(fact) => fact.received_at,
        other => panic!("{other:?}"),
    }
}

#[test]
fn q18_a_line_changes_with_its_reports_and_its_target_alone() {
    let mut ledger = Ledger::default();
    let line = |ledger: &Ledger| {
        let line = ask(&ledger.fold(), &of("web")).targets.remove(0);
        assert_eq!(line.components[0].changed_at, line.changed_at);
        line.changed_at
    };
    let told = made(ledger.desired("north/a", 1, &[("web", 1)]));
    assert_eq!(line(ledger.desired("north/a", 2, &[("db", 2), ("web", 1)])), Some(told));
    let changed = made(ledger.desired("north/a", 3, &[("db", 2), ("web", 3)]));
    assert_eq!(line(&ledger), Some(changed), "it shall run another");
    let reported = made(ledger.status("north/a", "web", &Said { generation: 3, ..Said::default() }));
    assert_eq!(line(ledger.desired("north/a", 4, &[("db", 4), ("web", 3)])), Some(reported));
    let outdated = made(ledger.desired("north/a", 5, &[("db", 4), ("web", 5)]));
    assert_eq!(line(&ledger), Some(outdated), "what is reported is of another target");
    let leaving = made(ledger.desired("north/a", 6, &[("db", 4)]));
    assert_eq!(line(ledger.desired("north/a", 7, &[])), Some(leaving));
}

#[test]
fn q18_a_superseded_line_changed_when_it_was_reported() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]);
    let reported = made(ledger.status("north/a", "web", &Said::default()));
    ledger.desired("north/a", 3, &[("web", 2)]);
    let then =
        |generation| StatusQuery { generation: Generation::new(generation), ..on(&["north/a"], of("web")) };
    for (generation, expected) in [(1, Some(reported)), (3, Some(made(&ledger)))] {
        let answer = ask(&ledger.fold(), &then(generation));
        assert_eq!((answer.targets[0].changed_at, answer.rollup.changed_at), (expected, expected));
    }
    ledger.status("north/a", "web", &Said { seq: 2, generation: 2, ..Said::default() });
    let answer = ask(&ledger.fold(), &then(1));
    assert_eq!((answer.targets[0].changed_at, answer.rollup.changed_at), (None, None), "{answer:?}");
}

#[test]
fn q18_a_publisher_whose_clock_is_ahead_changes_nothing_in_time_to_come() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]);
    let Fact::Desired(fact) = &mut ledger.entries[0].fact else { panic!("no desired state") };
    fact.issued_at += SignedDuration::from_hours(1);
    assert_eq!(changed(&ledger.fold(), &of("web")), Some(ledger::stored_at(1)));
}

#[test]
fn q18_a_removal_is_the_last_change_of_its_roll_ups_until_it_is_forgotten() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).desired("north/b", 1, &[("web", 1)]);
    let stays = made(ledger.status("north/a", "web", &Said::default()));
    ledger.status("north/b", "web", &Said::default()).desired("north/b", 2, &[]);
    let removed = &[("main", State::Removed)];
    let said = Said { seq: 2, generation: 2, components: removed, ..Said::default() };
    let gone = made(ledger.status("north/b", "web", &said));
    let everywhere = [of("web"), StatusQuery::default(), at(&["north"], of("web"))];
    let mut fleet = ledger.fold();
    everywhere.iter().for_each(|query| assert_eq!(changed(&fleet, query), Some(gone)));
    let next = ledger::position(ledger.entries.len());
    let in_a_month = Position { stored_at: next.stored_at + SignedDuration::from_hours(24 * 32), ..next };
    let Entry { subject, fact } = ledger.desired("north/b", 3, &[]).entries.pop().unwrap();
    fleet.apply(in_a_month, &subject, fact);
    everywhere.iter().for_each(|query| assert_eq!(changed(&fleet, query), Some(stays)));
}

/// The newest that any row says which is held, whether it counts or not.
fn newest_held(fleet: &Fleet, query: &StatusQuery) -> Option<Timestamp> {
    let mut newest = None;
    for record in fleet.records().map(|record| serde_json::to_value(record).unwrap()) {
        let site = record["about"]["key"]["site"].as_str().unwrap();
        let is_asked_for = query.site.is_empty() || query.site.iter().any(|asked| asked.as_str() == site);
        for row in record["rows"].as_array().unwrap().iter().filter(|_| is_asked_for) {
            let id = row["deployment"].as_str();
            if query.id.as_ref().is_none_or(|asked| id == Some(asked.as_str())) {
                let times = [&row["since"], &row["report"]["received_at"]].map(serde_json::Value::as_str);
                newest = newest.max(times.into_iter().flatten().map(|at| at.parse().unwrap()).max());
            }
        }
    }
    newest
}

/// Something that happens to a device: which, what, and when by the hub's clock, which may be another one's each time.
type Move = (usize, usize, u8, i64);

/// Any order of targets that come, change and go, and of reports; a day apart, so that removals are forgotten too.
fn play(moves: &[Move], mut look: impl FnMut(&Fleet)) {
    let mut fleet = Fleet::default();
    let mut lives = [(0, 0, [None; DEPLOYMENTS.len()]); DEVICES.len()];
    for (place, (device, deployment, kind, skew)) in moves.iter().enumerate() {
        let (generation, seq, targets) = &mut lives[*device];
        let mut ledger = Ledger::default();
        if *kind < 4 {
            *generation += 1;
            targets[*deployment] = (*kind < 2).then_some(*generation);
            let named = DEPLOYMENTS.iter().zip(*targets).filter_map(|(id, target)| Some((*id, target?)));
            ledger.desired(DEVICES[*device], *generation, &named.collect::<Vec<_>>());
        } else {
            *seq += 1;
            let components = &[("main", if *kind < 6 { State::Installed } else { State::Removed })];
            let said = Said { seq: *seq, generation: (*generation).max(1), components, ..Said::default() };
            ledger.status(DEVICES[*device], DEPLOYMENTS[*deployment], &said);
        }
        let Entry { subject, mut fact } = ledger.entries.remove(0);
        let stored_at = ledger::stored_at(0) + SignedDuration::from_hours(24 * place as i64);
        match &mut fact {
            Fact::Desired(fact) => fact.issued_at = stored_at,
            Fact::Status(fact) => fact.received_at = stored_at + SignedDuration::from_hours(24 * skew),
            other => panic!("{other:?}"),
        }
        fleet.apply(Position { ledger_seq: place as u64 + 1, stored_at }, &subject, fact);
        look(&fleet);
    }
}

proptest! {
    /// Beside what its rows say, and beside a fleet that was restored, which has taken rows in and let none go.
    #[test]
    fn when_something_changed_last_follows_from_what_is_held(
        moves in vec((0..DEVICES.len(), 0..DEPLOYMENTS.len(), 0u8..8, -3i64..3), 1..60),
    ) {
        let any = StatusQuery { output: Output::All, ..StatusQuery::default() };
        let mut queries = vec![any, of("web"), of("db")];
        for sites in [&["north"][..], &["south"], &["north", "south"]] {
            queries.extend(queries.clone().into_iter().take(3).map(|query| at(sites, query)));
        }
        play(&moves, |fleet| {
            let restored = Fleet::restore(fleet.as_of(), fleet.hearing_state().clone(), fleet.records());
            for query in queries.iter().filter(|query| fleet.status_answer(query, None, 1).is_ok()) {
                let newest = newest_held(fleet, query);
                assert_eq!((changed(fleet, query), changed(&restored, query)), (newest, newest), "{query:?}");
                let lines = ask(fleet, query).targets;
                assert!(lines.iter().all(|line| line.changed_at.is_some()), "{lines:?}");
                assert!(lines.iter().map(|line| line.changed_at).max().flatten() <= newest);
            }
        });
    }
}

#[test]
fn q18_views_say_why_since_when_and_how_often_is_tried() {
    let mut ledger = Ledger::default();
    ledger.labelled("north/a", 1, &[("web", 1)], &[("ring", "first")]).desired("north/b", 1, &[("web", 1)]);
    let tried =
        |attempt| Tried { component: Some("main"), attempt, code: "E", message: "no", crash_loop: false };
    let (one, other) = ([tried(7)], [tried(2)]);
    let failed = |retries| Said { components: &[("main", State::Failed)], retries, ..Said::default() };
    let early = made(ledger.status("north/a", "web", &failed(&one)));
    let late = made(ledger.status("north/b", "web", &failed(&other)));
    let fleet = ledger.fold();
    let view = fleet.deployment_view(&"web".parse().unwrap()).unwrap();
    assert_eq!(view.message, "E on 2 of 2, such as north/a: no");
    assert_eq!((view.changed_at, view.last_heard_at), (Some(late), Some(late)));
    assert_eq!(view.retried, Retried { targets: 2, attempts: 9 });
    let lines = fleet.devices_answer(&Query::default(), &Page { after: None, limit: 10 }).unwrap().devices;
    let retried: Vec<_> = lines.iter().map(|line| (line.retried.targets, line.retried.attempts)).collect();
    assert_eq!(retried, [(1, 7), (1, 2)], "each device has its own");
    let parts: Vec<_> = ask(&fleet, &of("web")).targets.iter().map(|line| line.components[0].retry).collect();
    assert_eq!(parts.iter().map(|retry| retry.unwrap().attempt).collect::<Vec<_>>(), [7, 2]);
    let ring = fleet.group_view(&"ring".parse().unwrap(), &"first".parse().unwrap()).unwrap().tally;
    assert_eq!((ring.changed_at, ring.last_heard_at, ring.retried.attempts), (Some(early), Some(early), 7));
    assert_eq!(
        ring.message,
        "1 of 1 deployments failing: some device failed to apply its target; \
         the only target is silent: no fresh evidence"
    );
    let whole = ask(&fleet, &of("web")).rollup;
    assert_eq!((whole.retried, whole.last_heard_at), (view.retried, Some(late)), "a roll-up as well");
}

#[test]
fn q18_hearing_a_device_moves_no_digest_and_writes_no_view() {
    let mut ledger = Ledger::default();
    ledger.desired("north/a", 1, &[("web", 1)]).status("north/a", "web", &Said::default());
    ledger.fresh("north/a", 1, 1);
    let mut fleet = ledger.fold();
    let before = fleet.deployment_view(&"web".parse().unwrap()).unwrap();
    fleet.drain_changed_views();
    ledger.fresh("north/a", 1, 1);
    ledger.fold_into(&mut fleet, ledger.entries.len() - 1);
    let after = fleet.deployment_view(&"web".parse().unwrap()).unwrap();
    assert!(after.last_heard_at > before.last_heard_at, "{:?}", after.last_heard_at);
    assert_eq!((after.digest, after.changed_at), (before.digest, before.changed_at));
    assert!(fleet.drain_changed_views().is_empty(), "nothing is counted differently");
}
