//! Ledgers that each show one rule of standings, verdicts and view contents, made so that a fold without that
//! rule gives other views. They are published as reducer vectors; `tests/tests/python_reduce/sabotage.py`
//! breaks the rules one by one, and a vector has to find each.

use muster_contract::Generation;
use muster_contract::State::{self, Failed, Installed, Installing, Pending, Removed, Removing};
use muster_contract::desired_refusal::{DesiredRefusal, DesiredRefusalCode};
use muster_contract::evidence::{EvidenceSource, Fidelity, Provenance};
use muster_contract::fact::{DeadlineKind, Fact, IncidentKind, Liveness};
use muster_contract::ownership::Ownership;
use muster_contract::subjects::LedgerSubject;

use super::{DRILL, OVEN, PRESS, Scenario};
use crate::ledger::{Ledger, Said, key, status, stored_at};

/// All of them, in the order of their names.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "as_much_as_can_be_listed",
        about: "A view with as many components and codes as it can list leaves none out, and says nothing of it.",
        ledger: as_much_as_can_be_listed,
    },
    Scenario {
        name: "bounds_of_the_truth",
        about: "The lower bound counts what is installed, fresh and known; the upper one is lowered by failures that are fresh and known, and by nothing else.",
        ledger: bounds_of_the_truth,
    },
    Scenario {
        name: "deadline_void_for_a_newer_generation",
        about: "A deadline counts for the generation that is wanted and for no other; of two the higher generation holds, whichever came last.",
        ledger: deadline_void_for_a_newer_generation,
    },
    Scenario {
        name: "desired_refused",
        about: "A device refuses its desired state, and later accepts one: incidents, of which no view has anything.",
        ledger: desired_refused,
    },
    Scenario {
        name: "empty",
        about: "Facts about no device, and a retired device: no deployment, no site, no group, and an empty fleet.",
        ledger: empty,
    },
    Scenario {
        name: "error_without_words",
        about: "A failure's own error blames a component only if there is one of that name; of one code on one device the first component is the example; without any error the reason is the message.",
        ledger: error_without_words,
    },
    Scenario {
        name: "groups_of_retired_devices",
        about: "A retired device counts in no group and no site, and what has none but retired ones has no view.",
        ledger: groups_of_retired_devices,
    },
    Scenario {
        name: "long_message_cut",
        about: "A message above 512 bytes is cut at a whole character and says how long it was; one of 512 bytes is not; a code is cut at 128 bytes.",
        ledger: long_message_cut,
    },
    Scenario {
        name: "more_than_can_be_listed",
        about: "A view lists the first 256 components and the 40 most frequent codes, and says in `omitted` how many it leaves out.",
        ledger: more_than_can_be_listed,
    },
    Scenario {
        name: "never_started",
        about: "A device that was never heard and has not begun in time is waiting and overdue.",
        ledger: never_started,
    },
    Scenario {
        name: "older_generation_after_newer",
        about: "The highest generation of a desired state holds, with its labels and its retirement, whichever came last; a report above the wanted generation is not outdated.",
        ledger: older_generation_after_newer,
    },
    Scenario {
        name: "overdue_not_for_installed_or_failed",
        about: "A deadline marks what is on its way, and neither what is installed nor what has failed.",
        ledger: overdue_not_for_installed_or_failed,
    },
    Scenario {
        name: "progressing_by_each_standing",
        about: "Pending, installing, removing and removed on a device that is heard, each beside an installed one: progressing. Removed is a standing while it is wanted.",
        ledger: progressing_by_each_standing,
    },
    Scenario {
        name: "removing_with_leaving",
        about: "A deployment that a device no longer is to run is leaving, whatever it last reported, and counts as no target; without targets the verdict is removing.",
        ledger: removing_with_leaving,
    },
    Scenario {
        name: "sampled_evidence",
        about: "A deployment that was sampled counts as one that reports itself while its device is fresh, and as stale once the sample is older than its period.",
        ledger: sampled_evidence,
    },
    Scenario {
        name: "silent_while_at_work",
        about: "Pending, installing, removing and removed on a silent device, each beside an installed one that is heard: waiting, not progressing; another that is heard at work makes it progressing.",
        ledger: silent_while_at_work,
    },
    Scenario {
        name: "verdicts_in_their_order",
        about: "Where several verdicts could hold, the first of failing, overdue, incomplete, progressing, waiting, convergedStale and converged does.",
        ledger: verdicts_in_their_order,
    },
];

const WEB: [(&str, u64); 1] = [("web", 1)];

fn only(state: State) -> [(&'static str, State); 1] {
    [("main", state)]
}

fn bounds_of_the_truth() -> Ledger {
    let mut ledger = Ledger::default();
    let states = [("installed", Installed), ("failed", Failed), ("at-work", Installing)];
    for (state, is) in states {
        for (device, current, head) in [("known", true, 1), ("unknown", false, 2)] {
            for at in ["fresh", "stale"] {
                let device = format!("{at}/{state}-{device}");
                ledger.desired(&device, 1, &WEB);
                ledger.status(&device, "web", &Said { current, components: &only(is), ..Said::default() });
                let heard = if at == "fresh" { Liveness::Fresh } else { Liveness::Stale };
                ledger.liveness(&device, heard, 1, head, None);
            }
        }
    }
    ledger
}

fn deadline_void_for_a_newer_generation() -> Ledger {
    let mut ledger = Ledger::default();
    let at_work = |generation| Said { generation, components: &[("main", Installing)], ..Said::default() };
    ledger
        .desired(PRESS, 1, &[("void", 1)])
        .status(PRESS, "void", &at_work(1))
        .deadline(PRESS, "void", 1, DeadlineKind::Stuck)
        .desired(PRESS, 2, &[("void", 2)])
        .status(PRESS, "void", &Said { seq: 2, ..at_work(2) })
        .desired(DRILL, 2, &[("holds", 2)])
        .status(DRILL, "holds", &at_work(2))
        .deadline(DRILL, "holds", 2, DeadlineKind::Stuck)
        .deadline(DRILL, "holds", 1, DeadlineKind::NeverStarted)
        .desired(OVEN, 1, &[("outrun", 1)])
        .status(OVEN, "outrun", &at_work(1))
        .deadline(OVEN, "outrun", 1, DeadlineKind::Stuck)
        .deadline(OVEN, "outrun", 2, DeadlineKind::Stuck);
    ledger
}

fn desired_refused() -> Ledger {
    let refused_since = stored_at(3);
    let refusal = DesiredRefusal {
        generation: Generation::new(1),
        code: DesiredRefusalCode::Older,
        message: "its generation 1 is below 2".to_owned(),
        since: refused_since,
    };
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 2, &[("web", 2)])
        .fresh(PRESS, 1, 0)
        .status(PRESS, "web", &Said { generation: 2, ..Said::default() })
        .incident(PRESS, IncidentKind::DesiredRefused(refusal))
        .desired(PRESS, 3, &[("web", 2)])
        .incident(PRESS, IncidentKind::DesiredAccepted { generation: 3, refused_since });
    ledger
}

fn empty() -> Ledger {
    let mut ledger = Ledger::default();
    let record = Ownership {
        api_version: Default::default(),
        kind: Default::default(),
        owner: "ingest-1".to_owned(),
        claimed_at: ledger.next_at(),
        fences: 1,
    };
    let owner = LedgerSubject::Owner { partition: 3, fence: 0 };
    ledger.push(owner, Fact::Ownership(record)).quarantine(PRESS, Some((1, 1)));
    // It came from a sender whose name is no identifier.
    ledger.entries[1].subject = LedgerSubject::Quarantine(None);
    ledger.desired(OVEN, 1, &WEB).status(OVEN, "web", &Said::default()).retired(OVEN, 2);
    ledger
}

fn error_without_words() -> Ledger {
    let mut ledger = Ledger::default();
    let both: &[(&str, State)] = &[("main", Failed), ("side", Failed)];
    let elsewhere =
        Said { components: both, error: Some(("Refused", "web", "no room for web")), ..Said::default() };
    let blamed = Said {
        components: both,
        errors: &[("main", "Exit1", "main died")],
        error: Some(("Exit1", "side", "side took all with it")),
        ..Said::default()
    };
    for (device, said) in [(PRESS, elsewhere), (DRILL, blamed)] {
        ledger.desired(device, 1, &WEB).fresh(device, 1, 1).status(device, "web", &said);
    }
    let mut fact = status("web", &Said { components: &only(Failed), ..Said::default() }, ledger.next_at());
    fact.status.reason = Some("stopped by hand".to_owned());
    ledger.desired(OVEN, 1, &WEB).fresh(OVEN, 1, 1);
    ledger.push(LedgerSubject::Status(key(OVEN), "web".parse().unwrap()), Fact::Status(fact));
    ledger
}

fn groups_of_retired_devices() -> Ledger {
    let mut ledger = Ledger::default();
    for (device, labels) in [
        ("north/a", [("region", "north"), ("ring", "canary")]),
        ("north/b", [("region", "north"), ("ring", "stable")]),
        ("south/a", [("region", "south"), ("ring", "stable")]),
    ] {
        ledger.labelled(device, 1, &WEB, &labels).status(device, "web", &Said::default());
        ledger.labelled(device, 2, &[], &labels);
        let Some(Fact::Desired(last)) = ledger.entries.last_mut().map(|entry| &mut entry.fact) else {
            unreachable!("it was pushed above")
        };
        last.retired = device != "north/b";
    }
    ledger
}

fn long_message_cut() -> Ledger {
    let mut ledger = Ledger::default();
    let (just, over, umlauts) = ("x".repeat(512), "x".repeat(513), "ü".repeat(400));
    let odd = format!("x{umlauts}");
    let (even, uneven) = ("ü".repeat(70), format!("J{}", "ü".repeat(70)));
    for (device, code, message) in [
        (PRESS, uneven.as_str(), &just),
        (DRILL, "Over", &over),
        (OVEN, &even, &umlauts),
        ("plant9/oven-3", "Odd", &odd),
    ] {
        let errors: &[(&str, &str, &str)] = &[("main", code, message)];
        let said = Said { components: &only(Failed), errors, ..Said::default() };
        ledger.desired(device, 1, &WEB).fresh(device, 1, 1).status(device, "web", &said);
    }
    ledger
}

fn as_much_as_can_be_listed() -> Ledger {
    let mut ledger = Ledger::default();
    let names: Vec<String> = (0..256).map(|number| format!("part-{number:03}")).collect();
    let state = |at| if at < 40 { Failed } else { Installed };
    let components: Vec<(&str, State)> =
        names.iter().zip(0..).map(|(name, at)| (name.as_str(), state(at))).collect();
    let errors: Vec<(&str, &str, &str)> =
        names[..40].iter().map(|name| (name.as_str(), name.as_str(), "it ended")).collect();
    let said = Said { components: &components, errors: &errors, ..Said::default() };
    ledger.desired(PRESS, 1, &WEB).fresh(PRESS, 1, 1).status(PRESS, "web", &said);
    ledger
}

fn more_than_can_be_listed() -> Ledger {
    let mut ledger = Ledger::default();
    let names = |device: &str| (0..130).map(|number| format!("{device}-{number:03}")).collect::<Vec<_>>();
    for (device, parts) in [(PRESS, names("press")), (DRILL, names("drill"))] {
        let components: Vec<(&str, State)> = parts
            .iter()
            .zip(0..)
            .map(|(name, at)| (name.as_str(), if at < 22 { Failed } else { Installed }))
            .collect();
        // One code is on both devices, and so it is listed before all others.
        let codes =
            parts[..22].iter().map(|name| if name.ends_with("021") { "zz-both" } else { name.as_str() });
        let errors: Vec<(&str, &str, &str)> =
            parts.iter().zip(codes).map(|(name, code)| (name.as_str(), code, "it ended")).collect();
        let said = Said { components: &components, errors: &errors, ..Said::default() };
        ledger.desired(device, 1, &WEB).fresh(device, 1, 1).status(device, "web", &said);
    }
    ledger
}

fn never_started() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .desired(PRESS, 1, &WEB)
        .deadline(PRESS, "web", 1, DeadlineKind::NeverStarted)
        .desired(DRILL, 1, &WEB)
        .fresh(DRILL, 1, 1)
        .status(DRILL, "web", &Said { components: &only(Pending), ..Said::default() })
        .deadline(DRILL, "web", 1, DeadlineKind::NeverStarted)
        .desired(OVEN, 1, &WEB)
        .fresh(OVEN, 1, 1)
        .status(OVEN, "web", &Said::default());
    ledger
}

fn older_generation_after_newer() -> Ledger {
    let mut ledger = Ledger::default();
    ledger
        .labelled(PRESS, 3, &[("web", 2)], &[("ring", "stable")])
        .labelled(PRESS, 2, &[("db", 2), ("web", 2)], &[("ring", "canary")])
        .fresh(PRESS, 1, 1)
        .status(PRESS, "web", &Said { generation: 3, ..Said::default() })
        .retired(DRILL, 3)
        .desired(DRILL, 2, &WEB)
        .desired(OVEN, 3, &WEB)
        .retired(OVEN, 2)
        .retired("plant9/oven-3", 1)
        .desired("plant9/oven-3", 2, &WEB);
    ledger
}

fn overdue_not_for_installed_or_failed() -> Ledger {
    let mut ledger = Ledger::default();
    for (id, state) in [("at-work", Removing), ("failed", Failed), ("installed", Installed)] {
        let device = format!("plant7/{id}");
        ledger
            .desired(&device, 1, &[(id, 1)])
            .fresh(&device, 1, 1)
            .status(&device, id, &Said { components: &only(state), ..Said::default() })
            .deadline(&device, id, 1, DeadlineKind::Stuck);
    }
    ledger
}

fn progressing_by_each_standing() -> Ledger {
    let mut ledger = Ledger::default();
    let states =
        [("installing", Installing), ("pending", Pending), ("removed", Removed), ("removing", Removing)];
    for device in [PRESS, DRILL] {
        ledger.desired(device, 1, &states.map(|(id, _)| (id, 1))).fresh(device, 1, 4);
    }
    for ((id, state), seq) in states.into_iter().zip(1..) {
        ledger.status(PRESS, id, &Said { seq, components: &only(state), ..Said::default() }).status(
            DRILL,
            id,
            &Said { seq, ..Said::default() },
        );
    }
    ledger
}

fn removing_with_leaving() -> Ledger {
    let mut ledger = Ledger::default();
    let (failed, removed) = (only(Failed), only(Removed));
    let died: &[(&str, &str, &str)] = &[("main", "Exit1", "it ended")];
    for device in [PRESS, DRILL, OVEN] {
        ledger.desired(device, 1, &[("db", 1), ("log", 1), ("web", 1)]).fresh(device, 1, 3);
        ledger.status(device, "db", &Said::default()).status(
            device,
            "log",
            &Said { seq: 2, ..Said::default() },
        );
    }
    ledger
        .status(PRESS, "web", &Said { seq: 3, ..Said::default() })
        .status(DRILL, "web", &Said { seq: 3, components: &failed, errors: died, ..Said::default() })
        .status(OVEN, "web", &Said { seq: 3, components: &only(Removing), ..Said::default() })
        .desired(PRESS, 2, &[("db", 1)])
        .desired(DRILL, 2, &[])
        .desired(OVEN, 2, &[("db", 1)]);
    for device in [PRESS, DRILL, OVEN] {
        ledger.status(device, "log", &Said { seq: 4, components: &removed, ..Said::default() });
    }
    // Nobody ever wanted it there, nor anything of the last device.
    ledger.status("plant9/oven-3", "tap", &Said::default());
    ledger.status(OVEN, "tap", &Said { seq: 5, ..Said::default() });
    ledger
}

fn silent_while_at_work() -> Ledger {
    let mut ledger = Ledger::default();
    let silent = [
        ("both", Installing),
        ("installing", Installing),
        ("pending", Pending),
        ("removed", Removed),
        ("removing", Removing),
    ];
    for device in [PRESS, DRILL] {
        ledger.desired(device, 1, &silent.map(|(id, _)| (id, 1))).fresh(device, 1, 5);
    }
    for ((id, state), seq) in silent.into_iter().zip(1..) {
        let heard = if id == "both" { Pending } else { Installed };
        ledger.status(PRESS, id, &Said { seq, components: &only(state), ..Said::default() }).status(
            DRILL,
            id,
            &Said { seq, components: &only(heard), ..Said::default() },
        );
    }
    ledger.stale(PRESS, 1, 5);
    ledger
}

pub(crate) fn sampled_evidence() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[("web", 1)]).desired(DRILL, 1, &[("web", 1)]);
    for device in [PRESS, DRILL] {
        let evidence = EvidenceSource { origin: Provenance::Pull, fidelity: Fidelity::Sampled };
        ledger.status(device, "web", &Said { evidence, ..Said::default() }).fresh(device, 1, 1);
    }
    ledger.stale(DRILL, 1, 1);
    ledger
}

fn verdicts_in_their_order() -> Ledger {
    let mut ledger = Ledger::default();
    // Each deployment has two devices: one with the verdict that names it, the other with the next one.
    let sure = Said::default();
    let unsure = Said { current: false, ..Said::default() };
    let at_work = Said { components: &[("main", Installing)], ..Said::default() };
    let old = Said { generation: 1, ..Said::default() };
    let failed = Said { components: &[("main", Failed)], ..Said::default() };
    let mut say = |id: &str, which: &str, said: &Said<'_>, head: u64, late: bool, state: Liveness| {
        let device = format!("plant7/{id}-{which}");
        let wanted = if said.generation == 1 && which.ends_with("old") { 2 } else { 1 };
        ledger.desired(&device, wanted, &[(id, wanted)]).status(&device, id, said);
        ledger.liveness(&device, state, 1, head, None);
        if late {
            ledger.deadline(&device, id, wanted, DeadlineKind::Stuck);
        }
    };
    use Liveness::{Fresh, Stale};
    say("failing", "failed", &failed, 1, false, Fresh);
    say("failing", "late", &at_work, 1, true, Fresh);
    say("overdue", "late", &at_work, 1, true, Fresh);
    say("overdue", "unsure", &unsure, 2, false, Fresh);
    say("incomplete", "unsure", &unsure, 2, false, Fresh);
    say("incomplete", "at-work", &at_work, 1, false, Fresh);
    say("progressing", "at-work", &at_work, 1, false, Fresh);
    say("progressing", "old", &old, 1, false, Fresh);
    say("waiting", "old", &old, 1, false, Fresh);
    say("waiting", "silent", &sure, 1, false, Stale);
    say("stale", "silent", &sure, 1, false, Stale);
    say("stale", "heard", &sure, 1, false, Fresh);
    say("converged", "heard", &sure, 1, false, Fresh);
    ledger
}
