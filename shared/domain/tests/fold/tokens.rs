//! Tests what the fold shows of tokens that end, which the renewer and ingest both report.

use crate::ledger::{Ledger, key, stored_at};
use muster_contract::fact::IncidentKind;
use muster_contract::query::{DeviceLine, Output};

const PRESS: &str = "plant7/press-4";

fn line(ledger: &Ledger) -> DeviceLine {
    ledger.fold().device_answer(&key(PRESS), Output::All).unwrap().device
}

fn ending() -> IncidentKind {
    IncidentKind::TokenEnding { issued_at: stored_at(0), ends_at: stored_at(10) }
}

fn renewed() -> IncidentKind {
    IncidentKind::TokenRenewed { ends_at: stored_at(99) }
}

#[test]
fn a_token_that_ends_is_told_until_a_newer_one_or_a_later_word() {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[]).fresh(PRESS, 1, 0).incident(PRESS, ending());
    assert_eq!(line(&ledger).token_ends_at, Some(stored_at(10)));
    ledger.incident(PRESS, renewed());
    assert_eq!(line(&ledger).token_ends_at, None);
    ledger.incident(PRESS, ending());
    assert_eq!(line(&ledger).token_ends_at, Some(stored_at(10)));
    for _ in 0..6 {
        ledger.beat(PRESS, 1, 0);
    }
    assert_eq!(line(&ledger).token_ends_at, None, "it is heard after the end");
}

#[test]
fn an_end_of_a_token_that_renewer_and_ingest_report_is_one_incident() {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[]).fresh(PRESS, 1, 0);
    for (what, wanted) in [(ending(), 1), (ending(), 1), (renewed(), 2), (renewed(), 2), (ending(), 3)] {
        ledger.incident(PRESS, what.clone());
        assert_eq!(line(&ledger).incidents, wanted, "{what:?}");
    }
}
