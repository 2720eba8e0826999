//! Tests every combination of inputs on every axis.

use muster_contract::evidence::EvidenceSource;

use super::*;

fn count_class(standing: Standing, freshness: Freshness, known: bool, overdue: bool) -> CountClass {
    let source = EvidenceSource::EVERY_CHANGE;
    CountClass::Target { standing, freshness, known, overdue, attempts: 0, missing: 0, source }
}

#[test]
fn only_what_is_heard_and_known_is_current_whatever_the_standing() {
    let row = Row::new(0);
    for standing in Standing::ALL {
        for freshness in [Freshness::Fresh, Freshness::Stale, Freshness::Never] {
            for known in [true, false] {
                let scan = RowCondition::of(&row, count_class(standing, freshness, known, false)).unwrap();
                let is_confirmed = freshness == Freshness::Fresh && known;
                let expected = match standing {
                    Standing::Failed => KStatus::Failed,
                    _ if !is_confirmed => KStatus::Unknown,
                    Standing::Installed => KStatus::Current,
                    Standing::Waiting | Standing::Removed => KStatus::NotFound,
                    _ => KStatus::InProgress,
                };
                assert_eq!(scan.kstatus(), expected, "{standing:?} {freshness:?} {known}");
            }
        }
    }
    assert_eq!(RowCondition::of(&row, CountClass::Leaving).unwrap().kstatus(), KStatus::Terminating);
    assert_eq!(RowCondition::of(&row, CountClass::Nothing), None);
}

#[test]
fn a_deadline_that_passed_is_a_timeout_of_what_is_not_at_an_end() {
    let row = Row::new(0);
    let scan =
        |standing| RowCondition::of(&row, count_class(standing, Freshness::Fresh, true, true)).unwrap();
    let reconcile =
        |standing, deployed| scan(standing).axes_of_whole(scan(standing).kstatus(), deployed, None).reconcile;
    assert_eq!(reconcile(Standing::Installing, Deployed::Applied), Reconcile::Timeout);
    assert_eq!(reconcile(Standing::Waiting, Deployed::Pending), Reconcile::Timeout);
    assert_eq!(reconcile(Standing::Installed, Deployed::Applied), Reconcile::Succeeded);
}

#[test]
fn the_worst_speaks_and_nothing_is_empty() {
    let mut axes = Axes::default();
    assert_eq!((axes.deployed_status(), axes.ready_status()), (Deployed::Empty, Ready::Empty));
    axes.ready[Ready::Ready as usize] = 5;
    axes.deployed[Deployed::Applied as usize] = 5;
    assert_eq!((axes.deployed_status(), axes.ready_status()), (Deployed::Applied, Ready::Ready));
    axes.ready[Ready::Unknown as usize] = 1;
    assert_eq!(axes.ready_status(), Ready::Unknown);
    axes.ready[Ready::NotPresent as usize] = 1;
    axes.deployed[Deployed::Failed as usize] = 1;
    assert_eq!((axes.deployed_status(), axes.ready_status()), (Deployed::Failed, Ready::NotReady));
}
