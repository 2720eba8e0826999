//! Ledgers of situations in which other systems were found to show untruths, and of rules worth a case, numbered as in
//! the catalogue of scenarios. `situations.rs` or `targets.rs` asserts each, and each is published with the
//! resulting views as a reducer vector in `schemas/vectors/`, like the single rules in `doubts` and `rules`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
mod doubts;
pub(crate) mod failures;
pub(crate) mod hearing;
pub(crate) mod retries;
pub(crate) mod rules;

use muster_contract::State::{Failed, Installed, Installing, Pending, Removed, Removing};
use muster_contract::fact::{Account, DeadlineKind, IncidentKind, Liveness};
use muster_contract::{Epoch, SeqRanges};

use crate::ledger::{Ledger, Said, stored_at};

/// A situation.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) ledger: fn() -> Ledger,
}

/// Every scenario that there is.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    SITUATIONS
        .iter()
        .chain(failures::ALL)
        .chain(rules::ALL)
        .chain(doubts::ALL)
        .chain(hearing::ALL)
        .chain(retries::ALL)
}

/// The situations, in the order of their names.
const SITUATIONS: &[Scenario] = &[
    Scenario {
        name: "account_taught_by_liveness",
        about: "The facts of numbers 1 to 3 have aged out of LEDGER; a liveness fact's account says that they were held.",
        ledger: account_taught_by_liveness,
    },
    Scenario {
        name: "amnesia",
        about: "A device lost its memory: what it reported before is kept beside its standing, but not known to hold.",
        ledger: amnesia,
    },
    Scenario {
        name: "amnesia_while_leaving",
        about: "A deployment is removed while its device is away, and the device comes back without its memory: nothing of it is left to leave.",
        ledger: amnesia_while_leaving,
    },
    Scenario {
        name: "errors_counted_by_code",
        about: "Errors are counted once a device and code, most frequent first; a failure without an error is 'unspecified'.",
        ledger: errors_counted_by_code,
    },
    Scenario {
        name: "groups_by_label",
        about: "Devices are grouped by the hub's labels, each label by itself; a change of a label moves all that its device counts for.",
        ledger: groups_by_label,
    },
    Scenario {
        name: "m01_success_then_dark",
        about: "A device succeeds and goes dark: convergedStale, never converged.",
        ledger: m01_success_then_dark,
    },
    Scenario {
        name: "m02_error_then_dark_then_fix",
        about: "A device fails, goes dark, and a fix is published: the old error is not the new generation's.",
        ledger: m02_error_then_dark_then_fix,
    },
    Scenario {
        name: "m03_all_dark",
        about: "Every device is dark: nothing is sure, nothing is excluded.",
        ledger: m03_all_dark,
    },
    Scenario {
        name: "m08_silent_after_installing",
        about: "A device stays at installing past its limit: overdue, a mark beside the standing, until a newer generation.",
        ledger: m08_silent_after_installing,
    },
    Scenario {
        name: "m09_never_connects",
        about: "A device that was never heard: a bucket of its own, not progress.",
        ledger: m09_never_connects,
    },
    Scenario {
        name: "m10_last_report_lost",
        about: "The last report is lost on its way: incomplete, with the number of missing reports.",
        ledger: m10_last_report_lost,
    },
    Scenario {
        name: "m14_removed_while_away",
        about: "A deployment is removed while its device is away: leaving until it says removed, and older news do not bring it back.",
        ledger: m14_removed_while_away,
    },
    Scenario {
        name: "m15_late_progress_after_success",
        about: "Late progress after a success changes no state; it counts in the account.",
        ledger: m15_late_progress_after_success,
    },
    Scenario {
        name: "m19_new_revision_old_success",
        about: "A new revision is published while the old success is fresh: outdated.",
        ledger: m19_new_revision_old_success,
    },
    Scenario {
        name: "m24_one_failed_one_at_work",
        about: "One failed, one at work: failing.",
        ledger: m24_one_failed_one_at_work,
    },
    Scenario {
        name: "m25_empty_target_set",
        about: "The last target is taken away and says removed: no view, and never a success.",
        ledger: m25_empty_target_set,
    },
    Scenario {
        name: "m29_target_retired",
        about: "A device is retired in the middle of a rollout: every count follows at once.",
        ledger: m29_target_retired,
    },
    Scenario {
        name: "m30_separate_buckets",
        about: "Fresh, stale and never heard are counted apart.",
        ledger: m30_separate_buckets,
    },
    Scenario {
        name: "m37_fix_published_while_away",
        about: "Bad A and fix B are published while a device is away: it applies B only.",
        ledger: m37_fix_published_while_away,
    },
    Scenario {
        name: "newest_first_after_an_outage",
        about: "After an outage the newest reports come first: known by their head, though the backlog is still missing.",
        ledger: newest_first_after_an_outage,
    },
    Scenario {
        name: "not_storing",
        about: "A device says that it cannot store reports: it is heard, and nothing of it is known.",
        ledger: not_storing,
    },
    Scenario {
        name: "quarantined_and_coalesced",
        about: "Numbers in quarantine and numbers folded into others are not missing, and touch nothing reported later.",
        ledger: quarantined_and_coalesced,
    },
    Scenario {
        name: "quarantined_and_dropped",
        about: "A person says that nobody needs the message: it stays in the account, and leaves nothing in doubt.",
        ledger: quarantined_and_dropped,
    },
    Scenario {
        name: "quarantined_news",
        about: "A later report is in quarantine: what was reported before it is not known, what was reported after it is.",
        ledger: quarantined_news,
    },
    Scenario {
        name: "quarantined_only",
        about: "All that ever came of a device is in quarantine: it was heard, and nothing of it is known.",
        ledger: quarantined_only,
    },
    Scenario {
        name: "quarantined_until_said_how_far",
        about: "A message without a number leaves a device in doubt until a heartbeat says how far its numbers go.",
        ledger: quarantined_until_said_how_far,
    },
    Scenario {
        name: "quarantined_without_a_number",
        about: "A message without a number may be anything: nothing of the device is known.",
        ledger: quarantined_without_a_number,
    },
];

const PRESS: &str = "plant7/press-4";
const DRILL: &str = "plant7/drill-1";
const OVEN: &str = "plant9/oven-2";

pub(crate) fn groups_by_label() -> Ledger {
    let mut ledger = Ledger::default();
    let web = [("web", 1)];
    ledger
        .labelled("north/a", 1, &web, &[("region", "north"), ("ring", "canary")])
        .labelled("north/b", 1, &web, &[("region", "north"), ("ring", "stable")])
        .labelled("south/a", 1, &web, &[("ring", "stable")])
        .retired("south/b", 1)
        .fresh("north/a", 1, 1)
        .status("north/a", "web", &Said::default())
        .status("north/b", "web", &Said { components: &[("main", Failed)], ..Said::default() })
        .labelled("north/b", 2, &web, &[("region", "north"), ("ring", "canary")]);
    ledger
}

pub(crate) fn m01_success_then_dark() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said { seq: 1, components: &[("main", Installing)], ..Said::default() })
        .status(PRESS, "web", &Said { seq: 2, ..Said::default() })
        .stale(PRESS, 1, 2);
    ledger
}

pub(crate) fn m02_error_then_dark_then_fix() -> Ledger {
    let mut ledger = Ledger::default();
    let failed = Said {
        components: &[("main", Failed)],
        errors: &[("main", "ImagePull", "no such image")],
        ..Said::default()
    };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &failed)
        .stale(PRESS, 1, 1)
        .desired(PRESS, 2, &[("web", 2)]);
    ledger
}

pub(crate) fn m03_all_dark() -> Ledger {
    let mut ledger = Ledger::default();
    for device in [PRESS, DRILL, OVEN] {
        ledger
            .desired(device, 1, &[("web", 1)])
            .fresh(device, 1, 0)
            .status(device, "web", &Said::default())
            .stale(device, 1, 1);
    }
    ledger
}

pub(crate) fn m08_silent_after_installing() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said { components: &[("main", Installing)], ..Said::default() })
        .deadline(PRESS, "web", 1, DeadlineKind::Stuck)
        .stale(PRESS, 1, 1);
    ledger
}

pub(crate) fn m09_never_connects() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[("web", 1)]).desired(DRILL, 1, &[("web", 1)]).fresh(DRILL, 1, 0).status(
        DRILL,
        "web",
        &Said::default(),
    );
    ledger
}

pub(crate) fn m10_last_report_lost() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .status(PRESS, "web", &Said { components: &[("main", Installing)], ..Said::default() })
        .fresh(PRESS, 1, 2);
    ledger
}

pub(crate) fn m14_removed_while_away() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1), ("db", 1)])
        .status(PRESS, "web", &Said { seq: 1, ..Said::default() })
        .status(PRESS, "db", &Said { seq: 2, ..Said::default() })
        .stale(PRESS, 1, 2)
        .desired(PRESS, 2, &[("db", 1)])
        .fresh(PRESS, 1, 4)
        .status(PRESS, "web", &Said { seq: 4, components: &[("main", Removed)], ..Said::default() })
        .status(PRESS, "web", &Said { seq: 3, components: &[("main", Removing)], ..Said::default() });
    ledger
}

pub(crate) fn m15_late_progress_after_success() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 2)
        .status(PRESS, "web", &Said { seq: 2, ..Said::default() })
        .status(
            PRESS,
            "web",
            &Said { seq: 1, components: &[("main", Installing)], current: false, ..Said::default() },
        );
    ledger
}

pub(crate) fn m19_new_revision_old_success() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said::default())
        .desired(PRESS, 2, &[("web", 2)]);
    ledger
}

pub(crate) fn m24_one_failed_one_at_work() -> Ledger {
    let mut ledger = Ledger::default();
    let failed = Said {
        components: &[("main", Failed), ("side", Installed)],
        errors: &[("main", "Exit1", "exit code 1: cannot open /dev/ttyS0")],
        ..Said::default()
    };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .desired(DRILL, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .fresh(DRILL, 1, 0)
        .status(PRESS, "web", &failed)
        .status(
            DRILL,
            "web",
            &Said { components: &[("main", Installing), ("side", Pending)], ..Said::default() },
        );
    ledger
}

pub(crate) fn m25_empty_target_set() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said { seq: 1, ..Said::default() })
        .desired(PRESS, 2, &[])
        .status(PRESS, "web", &Said { seq: 2, components: &[("main", Removed)], ..Said::default() });
    ledger
}

pub(crate) fn m29_target_retired() -> Ledger {
    let mut ledger = Ledger::default();
    for device in [PRESS, DRILL, OVEN] {
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 0);
    }
    ledger
        .status(PRESS, "web", &Said { components: &[("main", Failed)], ..Said::default() })
        .status(DRILL, "web", &Said::default())
        .retired(PRESS, 2)
        .retired(OVEN, 2);
    ledger
}

pub(crate) fn m30_separate_buckets() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .desired(DRILL, 1, &[("web", 1)])
        .desired(OVEN, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said::default())
        .fresh(DRILL, 1, 0)
        .status(DRILL, "web", &Said::default())
        .stale(DRILL, 1, 1);
    ledger
}

pub(crate) fn m37_fix_published_while_away() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said { seq: 1, ..Said::default() })
        .stale(PRESS, 1, 1)
        .desired(PRESS, 2, &[("web", 2)])
        .desired(PRESS, 3, &[("web", 3)])
        .fresh(PRESS, 1, 3)
        .status(
            PRESS,
            "web",
            &Said { seq: 2, generation: 3, components: &[("main", Installing)], ..Said::default() },
        )
        .status(PRESS, "web", &Said { seq: 3, generation: 3, ..Said::default() });
    ledger
}

pub(crate) fn amnesia() -> Ledger {
    let mut ledger = Ledger::default();
    let (known_epoch, epoch) = (Epoch::new(1).unwrap(), Epoch::new(7).unwrap());
    ledger
        .desired(PRESS, 1, &[("web", 1), ("db", 1)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said { seq: 1, ..Said::default() })
        .status(PRESS, "db", &Said { seq: 2, ..Said::default() })
        .incident(PRESS, IncidentKind::Amnesia { known_epoch, epoch })
        .capabilities(PRESS, 7, 1)
        .status(PRESS, "db", &Said { epoch: 7, seq: 2, ..Said::default() });
    ledger
}

pub(crate) fn amnesia_while_leaving() -> Ledger {
    let mut ledger = amnesia();
    ledger.desired(PRESS, 2, &[("db", 1)]);
    ledger
}

pub(crate) fn newest_first_after_an_outage() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1), ("db", 1)])
        .status(PRESS, "web", &Said { seq: 1, components: &[("main", Installing)], ..Said::default() })
        .stale(PRESS, 1, 1)
        .fresh(PRESS, 1, 9)
        .status(PRESS, "web", &Said { seq: 8, head: 9, ..Said::default() });
    ledger
}

pub(crate) fn errors_counted_by_code() -> Ledger {
    let mut ledger = Ledger::default();
    let say = |components, errors, error| Said { components, errors, error, ..Said::default() };
    let both: &[(&str, muster_contract::State)] = &[("main", Failed), ("side", Failed)];
    for (device, said) in [
        (PRESS, say(both, &[("main", "Exit1", "main died"), ("side", "Exit1", "side died")], None)),
        (DRILL, say(both, &[("side", "Exit1", "side died on the drill")], None)),
        (OVEN, say(&[("main", Installed)], &[], Some(("DiskFull", "main", "no space left on /data")))),
        ("plant9/oven-3", say(&[("main", Failed)], &[], None)),
    ] {
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 0).status(device, "web", &said);
    }
    ledger
}

pub(crate) fn quarantined_and_coalesced() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .quarantine(PRESS, Some((1, 1)))
        .quarantine(PRESS, None)
        .beat(PRESS, 1, 5)
        .status(PRESS, "web", &Said { seq: 5, coalesced: &[(2, 4)], ..Said::default() });
    ledger
}

pub(crate) fn quarantined_news() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1), ("db", 1), ("log", 1)])
        .status(PRESS, "web", &Said { seq: 1, ..Said::default() })
        .status(PRESS, "log", &Said { seq: 2, head: 3, ..Said::default() })
        .quarantine(PRESS, Some((1, 3)))
        .status(PRESS, "db", &Said { seq: 4, ..Said::default() })
        .beat(PRESS, 1, 4);
    ledger
}

pub(crate) fn quarantined_and_dropped() -> Ledger {
    let mut ledger = quarantined_news();
    ledger.dropped(PRESS, Some((1, 3)), stored_at(4));
    ledger
}

pub(crate) fn quarantined_without_a_number() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .beat(PRESS, 1, 0)
        .status(PRESS, "web", &Said::default())
        .quarantine(PRESS, None);
    ledger
}

pub(crate) fn quarantined_until_said_how_far() -> Ledger {
    let mut ledger = quarantined_without_a_number();
    ledger.beat(PRESS, 1, 1);
    ledger
}

pub(crate) fn quarantined_only() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .desired(DRILL, 1, &[("web", 1)])
        .quarantine(PRESS, None)
        .quarantine(DRILL, Some((1, 1)));
    ledger
}

pub(crate) fn not_storing() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .beat(PRESS, 1, 0)
        .status(PRESS, "web", &Said::default())
        .not_storing(PRESS, 1, 1);
    ledger
}

pub(crate) fn account_taught_by_liveness() -> Ledger {
    let mut ledger = Ledger::default();
    let account = Account { received: 3, coalesced: 1, quarantined: 0, missing: SeqRanges::new() };
    ledger
        .desired(PRESS, 1, &[("web", 1)])
        .status(PRESS, "web", &Said { seq: 4, reasserted: true, current: false, ..Said::default() })
        .liveness(PRESS, Liveness::Fresh, 1, 4, Some(account));
    ledger
}
