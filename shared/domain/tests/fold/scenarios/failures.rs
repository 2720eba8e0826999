//! Ledgers of failures that a later report, or silence, leaves standing, and of work that silence breaks off.

use muster_contract::State::{Failed, Installing};

use super::{DRILL, PRESS, Scenario};
use crate::ledger::{Ledger, Said};

/// All of them, in the order of their names.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "contradiction_after_success",
        about: "A device succeeds and then fails for the same generation: the newer word holds, and the success is history.",
        ledger: contradiction_after_success,
    },
    Scenario {
        name: "m03_dark_after_failure",
        about: "A device fails and goes dark: failing, but it may have recovered since, so nothing is excluded.",
        ledger: m03_dark_after_failure,
    },
    Scenario {
        name: "m08_dark_while_installing",
        about: "A device goes dark while installing, before any deadline: beside an installed one the verdict is waiting, because nobody is heard at work.",
        ledger: m08_dark_while_installing,
    },
];

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

pub(crate) fn m08_dark_while_installing() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .desired(DRILL, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .fresh(DRILL, 1, 0)
        .status(PRESS, "web", &Said { components: &[("main", Installing)], ..Said::default() })
        .status(DRILL, "web", &Said::default())
        .stale(PRESS, 1, 1);
    ledger
}
