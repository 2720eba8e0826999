//! Tests retries in the fold: a retry without progress never shows progress.

use crate::ledger::{Ledger, Look, Said, Tried};
use crate::scenarios::retries::{self, said};
use muster_contract::State::{Failed, Installed, Installing, Pending};
use muster_contract::notify::Subscription;
use muster_contract::query::Output;
use muster_contract::status::{KStatus, StatusQuery, TargetStatus};
use muster_contract::view::{Bounds, DeploymentView, Standing, Verdict};
use muster_domain::fold::{Fleet, Page};

const PRESS: &str = "plant7/press-4";

/// The deployment as a line of a question about status.
fn line(fleet: &Fleet) -> TargetStatus {
    let query =
        StatusQuery { id: Some("web".parse().unwrap()), output: Output::All, ..StatusQuery::default() };
    let answer = fleet.status_answer(&query, None, 9).unwrap();
    answer.targets.into_iter().find(|line| line.key.to_string() == PRESS).unwrap()
}

fn words(fleet: &Fleet) -> Vec<String> {
    let why = fleet.why(&"web".parse().unwrap(), None, &Page { after: None, limit: 9 }).unwrap();
    why.standings[0].facts.iter().map(|fact| fact.says.clone()).collect()
}

fn attempts(view: &DeploymentView) -> Vec<(&str, u64, u32)> {
    let attempt =
        |error: &muster_contract::view::ErrorCount| error.example.retry.map_or(0, |retry| retry.attempt);
    view.errors.iter().map(|error| (error.code.as_str(), error.count, attempt(error))).collect()
}

#[test]
fn m08_a_retry_shows_error_and_attempt_and_stays_overdue() {
    for state in [Pending, Installing, Failed, Installed] {
        let components = [("main", state)];
        let tried = [Tried {
            component: Some("main"),
            attempt: 9,
            code: "Exited",
            message: "ended with code 3",
            crash_loop: false,
        }];
        let mut ledger = retries::m08_retried_for_ever();
        ledger.status(PRESS, "web", &said(9, &components, &tried));
        let fleet = ledger.fold();
        let view = fleet.deployment("web");
        assert_eq!((view.overdue, attempts(&view)), (1, vec![("Exited", 1, 9)]), "{state}");
        let verdict = if state == Failed { Verdict::Failing } else { Verdict::Overdue };
        assert_eq!(view.verdict, verdict, "{state}");
        let line = line(&fleet);
        assert!(line.overdue && line.retry.unwrap().attempt == 9, "{state}");
        let told = format!("is {state} (attempt 9 since 2026-11-20T08:00:00Z): ");
        let error = "Exited in main: ended with code 3";
        assert!(line.message.starts_with(&told) && line.message.contains(error), "{}", line.message);
        assert!(words(&fleet).iter().any(|says| says.starts_with(&told)), "{:?}", words(&fleet));
    }
}

#[test]
fn m08_a_crash_loop_counts_as_failing_while_its_component_is_ready() {
    let mut ledger = retries::m08_crash_loop();
    let fleet = ledger.fold();
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Failing, Bounds { lo: 1, hi: 1 }));
    assert_eq!(view.counts[&Standing::Failed].fresh, 1);
    assert_eq!(view.components[&"main".parse().unwrap()], [(Installed, 2)].into(), "what is reported stays");
    assert!(view.errors[0].example.retry.unwrap().crash_loop);
    let line = line(&fleet);
    assert_eq!((line.standing, line.axes.kstatus), (Standing::Failed, KStatus::Failed));
    assert_eq!(line.components[0].axes.kstatus, KStatus::Failed);
    assert!(
        words(&fleet)[1].starts_with("is installed (crash loop, attempt 6 since "),
        "{:?}",
        words(&fleet)
    );

    ledger.status(PRESS, "web", &Said { seq: 3, ..Said::default() });
    let held = ledger.fold().deployment("web");
    assert_eq!((held.verdict, held.errors.len()), (Verdict::Converged, 0), "the success held");
}

#[test]
fn m08_a_flap_past_the_deadline_is_overdue_until_the_success_has_held() {
    let mut ledger = retries::m08_flap_past_the_deadline();
    let view = ledger.fold().deployment("web");
    assert_eq!((view.verdict, view.overdue, view.converged.lo), (Verdict::Overdue, 1, 1));
    ledger.status(PRESS, "web", &Said { seq: 3, ..Said::default() });
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Converged);
}

#[test]
fn m08_a_deadline_from_before_a_success_that_held_is_void() {
    let ledger = retries::m08_success_that_held();
    let before = Ledger { entries: ledger.entries[..4].to_vec() };
    assert_eq!(before.fold().deployment("web").overdue, 1);
    let view = ledger.fold().deployment("web");
    assert_eq!(
        (view.verdict, view.overdue, attempts(&view)),
        (Verdict::Progressing, 0, vec![("Exited", 1, 2)])
    );
}

#[test]
fn a_notice_carries_what_is_tried_again_with_its_error() {
    let fleet = retries::m08_retried_for_ever().fold();
    let id = Some("web".parse().unwrap());
    let about = Subscription { id, output: Output::All, ..Subscription::named("ops".parse().unwrap()) };
    let (state, _) = fleet.notice_state(&about, 9).unwrap();
    let (line, view) = (&state.targets[0], state.view.as_ref().unwrap());
    assert_eq!((line.retry.unwrap().attempt, attempts(view)), (2, vec![("Exited", 1, 2)]));
    assert!(line.message.contains("last error Exited in main: ended with code 3"), "{}", line.message);
}
