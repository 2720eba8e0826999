//! Tests the fold over the facts of the intake: the verdict on a device that falls silent while it is at
//! work, whichever of its lease and its limit ends first.

use muster_contract::DeploymentId;
use muster_contract::view::Verdict;

use super::*;
use crate::fold::{Fleet, Position};

/// The fold of the desired state and of every fact that the intake has published since.
fn folded(desired: &DesiredState, hub: &Hub) -> Fleet {
    let mut fleet = Fleet::default();
    let first = (LedgerSubject::Desired(press()), Fact::Desired(desired.clone()), at(1_000));
    for ((subject, fact, stored_at), ledger_seq) in [first].iter().chain(&hub.ledger).zip(1..) {
        fleet.apply(Position { ledger_seq, stored_at: *stored_at }, subject, fact.clone());
    }
    fleet
}

fn verdict(desired: &DesiredState, hub: &Hub) -> Verdict {
    let web: DeploymentId = "web".parse().unwrap();
    folded(desired, hub).deployment_view(&web).unwrap().verdict
}

/// A device that reports that it is installing, and nothing more while ten times the longer of lease and limit pass.
fn silenced(limit: &str) -> (DesiredState, Hub) {
    let mut desired = desired(3, false);
    desired.deployments[0].profile.components[0].properties["timeout"] = json!(limit);
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired, hub.now);
    hub.report(&status(1, 1, 1));
    assert_eq!(verdict(&desired, &hub), Verdict::Progressing, "it is heard");
    (0..100).for_each(|_| hub.pass(30));
    assert_eq!(hub.states().last(), Some(&Liveness::Stale));
    (desired, hub)
}

#[test]
fn m08_a_silent_installation_is_waiting_after_its_lease() {
    let (desired, hub) = silenced("5m");
    assert!(!hub.ledger.iter().any(|(_, fact, _)| matches!(fact, Fact::Deadline(_))), "its limit is longer");
    assert_eq!(verdict(&desired, &hub), Verdict::Waiting);
}

#[test]
fn m08_a_silent_installation_is_overdue_if_its_limit_ends_in_its_lease() {
    let (desired, hub) = silenced("30s");
    assert_eq!(verdict(&desired, &hub), Verdict::Overdue, "and it stays so while it is silent");
}

#[test]
fn m08_a_device_back_at_work_is_progress_until_its_limit_then_overdue() {
    let (desired, mut hub) = silenced("5m");
    hub.beat(1, 1, 0);
    assert_eq!(verdict(&desired, &hub), Verdict::Progressing, "it is heard again");
    hub.live(320, 1, 1);
    assert_eq!(verdict(&desired, &hub), Verdict::Overdue, "heard and stuck");
}

#[test]
fn a_device_that_lost_its_memory_is_not_converged_until_it_reports() {
    let desired = desired(3, false);
    let mut hub = Hub::new();
    hub.intake.apply_desired(&press(), &desired, hub.now);
    let report = with(status(5, 1, 1), "status", json!({"state": "installed"}));
    hub.report(&with(report, "components", json!([{"name": "c", "state": "installed"}])));
    assert_eq!(verdict(&desired, &hub), Verdict::Converged);
    // Reports of the old epoch may still wait in UPLINK, so the new one is not open yet.
    hub.beat(6, 0, 0);
    assert_eq!(verdict(&desired, &hub), Verdict::Incomplete, "no report shows its present state");
    hub.restart();
    hub.pass(1);
    assert_eq!(verdict(&desired, &hub), Verdict::Incomplete);
    hub.beat(6, 0, 0);
    hub.pass(1);
    assert_eq!(hub.liveness().last().map(|fact| (fact.epoch, fact.storing)), Some((epoch(6), true)));
    assert_ne!(verdict(&desired, &hub), Verdict::Converged);
    let report = with(status(6, 1, 1), "status", json!({"state": "installed"}));
    hub.report(&with(report, "components", json!([{"name": "c", "state": "installed"}])));
    assert_eq!(verdict(&desired, &hub), Verdict::Converged);
}
