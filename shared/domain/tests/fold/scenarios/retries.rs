//! Ledgers of retries: a start that never ends, a crash loop, a flap past the deadline, and a success that
//! held.

use muster_contract::State::{Failed, Installed, Installing, Pending};
use muster_contract::evidence::EvidenceSource;
use muster_contract::fact::DeadlineKind::Stuck;

use super::{DRILL, PRESS, Scenario};
use crate::ledger::{Ledger, Said, Tried};

/// All of them, in the order of their names.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "m08_crash_loop",
        about: "A component is ready and dies, again and again, and the device calls that a crash loop: it counts as failed whatever state it is in, with its error.",
        ledger: m08_crash_loop,
    },
    Scenario {
        name: "m08_flap_past_the_deadline",
        about: "A deployment that is past its deadline becomes ready after a retry: it stays overdue until the success has held.",
        ledger: m08_flap_past_the_deadline,
    },
    Scenario {
        name: "m08_retried_for_ever",
        about: "A component never becomes ready and is tried for ever: its last error, the attempt and since when are shown in every state, and it is overdue in each.",
        ledger: m08_retried_for_ever,
    },
    Scenario {
        name: "m08_success_that_held",
        about: "A deadline passed before a success that held: it says nothing of the attempts since.",
        ledger: m08_success_that_held,
    },
    Scenario {
        name: "retried_as_a_whole",
        about: "A deployment is tried again as a whole, and a component beside it; what they say now counts for more than their last errors, and an older generation's retries count for nothing.",
        ledger: retried_as_a_whole,
    },
];

/// A retry of `main` in this attempt.
const fn tried(attempt: u32) -> Tried<'static> {
    Tried {
        component: Some("main"),
        attempt,
        code: "Exited",
        message: "ended with code 3",
        crash_loop: false,
    }
}

/// A report of `main` in a state, while it is tried again.
pub(crate) const fn said<'a>(
    seq: u64,
    components: &'a [(&'a str, muster_contract::State)],
    retries: &'a [Tried<'a>],
) -> Said<'a> {
    Said {
        epoch: 1,
        seq,
        head: 0,
        generation: 1,
        components,
        errors: &[],
        error: None,
        current: true,
        coalesced: &[],
        reasserted: false,
        retries,
        first_attempt_at: Some(3),
        evidence: EvidenceSource::EVERY_CHANGE,
    }
}

pub(crate) fn m08_retried_for_ever() -> Ledger {
    let mut ledger = Ledger::default();
    let errors = [("main", "Exited", "ended with code 3")];
    let first = [tried(1)];
    let failed = Said { errors: &errors, ..said(2, &[("main", Failed)], &first) };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &said(1, &[("main", Installing)], &[]))
        .status(PRESS, "web", &failed)
        .deadline(PRESS, "web", 1, Stuck)
        .status(PRESS, "web", &said(3, &[("main", Installing)], &[tried(2)]));
    ledger
}

pub(crate) fn m08_crash_loop() -> Ledger {
    let mut ledger = Ledger::default();
    let crash_loop = [Tried { crash_loop: true, ..tried(6) }];
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .desired(DRILL, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .fresh(DRILL, 1, 0)
        .status(DRILL, "web", &Said::default())
        .status(PRESS, "web", &said(1, &[("main", Failed)], &[tried(5)]))
        .status(PRESS, "web", &said(2, &[("main", Installed)], &crash_loop));
    ledger
}

pub(crate) fn m08_flap_past_the_deadline() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &said(1, &[("main", Pending)], &[tried(1)]))
        .deadline(PRESS, "web", 1, Stuck)
        .status(
            PRESS,
            "web",
            &Said { first_attempt_at: None, ..said(2, &[("main", Installed)], &[tried(2)]) },
        );
    ledger
}

pub(crate) fn m08_success_that_held() -> Ledger {
    let mut ledger = Ledger::default();
    let second = [tried(2)];
    let anew = Said { first_attempt_at: Some(6), ..said(3, &[("main", Installing)], &second) };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &said(1, &[("main", Installing)], &[]))
        .deadline(PRESS, "web", 1, Stuck)
        .status(PRESS, "web", &Said { seq: 2, ..Said::default() })
        .status(PRESS, "web", &anew);
    ledger
}

fn retried_as_a_whole() -> Ledger {
    let mut ledger = Ledger::default();
    let whole = Tried { component: None, code: "InventoryFailed", message: "nobody answers", ..tried(3) };
    let (retries, crash_loop) = ([whole, tried(2)], [Tried { crash_loop: true, ..whole }]);
    let both = said(2, &[("main", Pending), ("side", Installed)], &retries);
    let old = said(1, &[("main", Installing)], &crash_loop);
    let again = Said {
        seq: 3,
        components: &[("main", Failed), ("side", Installed)],
        errors: &[("main", "Killed", "ended by signal 9")],
        error: Some(("EngineLost", "web", "nobody answers any more")),
        ..both.clone()
    };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .desired(DRILL, 2, &[("web", 2)])
        .fresh(PRESS, 1, 0)
        .fresh(DRILL, 1, 0)
        .status(PRESS, "web", &both)
        .status(PRESS, "web", &again)
        .status(DRILL, "web", &old);
    ledger
}
