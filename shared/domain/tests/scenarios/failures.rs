//! Failures that a later word, or silence, leaves standing.

use muster_contract::State::Failed;

use super::PRESS;
use crate::ledger::{Ledger, Said};

pub(crate) fn contradiction_after_success() -> Ledger {
    let mut ledger = Ledger::default();
    let failed = Said {
        seq: 2,
        components: &[("main", Failed)],
        errors: &[("main", "Exit1", "the license has ended")],
        ..Said::default()
    };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said::default())
        .status(PRESS, "web", &failed);
    ledger
}

pub(crate) fn m03_dark_after_failure() -> Ledger {
    let mut ledger = Ledger::default();
    let failed =
        Said { components: &[("main", Failed)], errors: &[("main", "Exit1", "no disk")], ..Said::default() };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &failed)
        .stale(PRESS, 1, 1);
    ledger
}
