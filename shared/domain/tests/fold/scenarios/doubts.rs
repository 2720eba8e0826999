//! Ledgers that each show one rule of knowledge: epochs, heads, accounts, quarantine. They are made and
//! published like those of `rules`.

use jiff::SignedDuration;
use muster_contract::SeqRanges;
use muster_contract::State::{self, Failed, Removed};
use muster_contract::fact::{Account, Fact, Liveness};
use muster_contract::quarantine::{QuarantineDecision, QuarantineVerdict};

use super::{DRILL, OVEN, PRESS, Scenario};
use crate::ledger::{Ledger, Said, stored_at};

/// All of them, in the order of their names.
pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "account_and_quarantine",
        about: "An account's word that a number is held gives way to quarantine, which says that nobody knows what it said; a report or a person's word does not.",
        ledger: account_and_quarantine,
    },
    Scenario {
        name: "current_said_again",
        about: "A report that is re-asserted as the newest up to a higher head is known up to there; re-asserted with a lower head it stays so.",
        ledger: current_said_again,
    },
    Scenario {
        name: "epochs_to_come",
        about: "Numbers in quarantine of an epoch that has not begun count once it begins; they are kept of at most four such epochs, the lowest.",
        ledger: epochs_to_come,
    },
    Scenario {
        name: "epochs_to_come_dropped",
        about: "A report of an epoch that a person dropped before the epoch began is held and leaves no doubt; an accepted one is held by its own report alone.",
        ledger: epochs_to_come_dropped,
    },
    Scenario {
        name: "heads_of_reports",
        about: "The advertised head is the highest that any report or heartbeat of the epoch has said; numbers above it are not missing.",
        ledger: heads_of_reports,
    },
    Scenario {
        name: "leaving_and_forgotten",
        about: "A deployment that no longer is to run and was reported in an older epoch is gone only when nothing of the new epoch is missing or in doubt.",
        ledger: leaving_and_forgotten,
    },
    Scenario {
        name: "missing_beyond_counting",
        about: "A sum has at most 2^32 - 1 missing reports of one device.",
        ledger: missing_beyond_counting,
    },
    Scenario {
        name: "newer_epoch_begins_anew",
        about: "A newer epoch begins with no numbers: none of the older one's is held, missing or in doubt in it.",
        ledger: newer_epoch_begins_anew,
    },
    Scenario {
        name: "older_epoch_ignored",
        about: "Reports, liveness and capabilities of an older epoch change no view, however late they come.",
        ledger: older_epoch_ignored,
    },
    Scenario {
        name: "quarantined_and_expired",
        about: "Nobody decided about a message before QUARANTINE had held its payload as long as it may: it stays in doubt.",
        ledger: quarantined_and_expired,
    },
    Scenario {
        name: "scattered_quarantine",
        about: "Numbers held in 2,048 pieces are joined by no other quarantined one: those stay missing, and a message above the advertised head may be anything.",
        ledger: scattered_quarantine,
    },
    Scenario {
        name: "unread_by_number",
        about: "A message whose number is above the advertised head, or of an epoch that has not begun, may be anything; one that the device has spoken of is that number and hides what was reported before it.",
        ledger: unread_by_number,
    },
    Scenario {
        name: "unread_until_a_beat",
        about: "A message without a number leaves its device in doubt until a heartbeat that was taken in after it, to the fraction of a second.",
        ledger: unread_until_a_beat,
    },
    Scenario {
        name: "unread_until_a_word",
        about: "A person's word ends the doubt of the very message that it names, by number or by the moment it came, and of no other.",
        ledger: unread_until_a_word,
    },
    Scenario {
        name: "whole_devices",
        about: "A device is complete when nothing of it is missing or unread, it can store, and each of its targets is known; what is leaving has no say.",
        ledger: whole_devices,
    },
];

const WEB: [(&str, u64); 1] = [("web", 1)];

/// The verdict that was pushed last.
fn verdict_of(ledger: &mut Ledger) -> &mut QuarantineVerdict {
    match ledger.entries.last_mut().map(|entry| &mut entry.fact) {
        Some(Fact::Verdict(verdict)) => verdict,
        other => panic!("{other:?} is no verdict"),
    }
}

fn only(state: State) -> [(&'static str, State); 1] {
    [("main", state)]
}

fn account_and_quarantine() -> Ledger {
    let mut ledger = Ledger::default();
    let account = |received, missing| Some(Account { received, coalesced: 0, quarantined: 0, missing });
    let later = |seq| Said { seq, current: false, ..Said::default() };
    let removed = only(Removed);
    let other = |seq| Said { components: &removed, ..later(seq) };
    for id in ["dropped-since", "only-the-account", "report-since", "word-before"] {
        let device = format!("plant7/{id}");
        ledger.desired(&device, 1, &[(id, 1)]).status(&device, id, &later(2));
        ledger.liveness(&device, Liveness::Fresh, 1, 6, account(6, SeqRanges::new()));
    }
    ledger
        .quarantine("plant7/only-the-account", Some((1, 4)))
        .status("plant7/report-since", "other", &other(6))
        .quarantine("plant7/report-since", Some((1, 6)))
        .dropped("plant7/word-before", Some((1, 4)), stored_at(40))
        .quarantine("plant7/word-before", Some((1, 4)))
        .quarantine_sum("plant7/dropped-since", Some((1, 4)), SeqRanges::span(5, 6))
        .dropped_sum("plant7/dropped-since", Some((1, 4)), SeqRanges::span(5, 6), stored_at(20))
        .quarantine("plant7/dropped-since", Some((1, 5)))
        .desired("plant8/holes", 1, &[("holes", 1)])
        .liveness("plant8/holes", Liveness::Fresh, 1, 6, account(4, SeqRanges::span(3, 4)))
        .fresh("plant8/holes", 1, 7)
        .desired("plant8/report-before", 1, &[("report-before", 1)])
        .status("plant8/report-before", "report-before", &later(1))
        .status("plant8/report-before", "other", &other(2))
        .liveness("plant8/report-before", Liveness::Fresh, 1, 2, account(2, SeqRanges::new()))
        .quarantine("plant8/report-before", Some((1, 2)));
    ledger
}

fn current_said_again() -> Ledger {
    let mut ledger = Ledger::default();
    let again = Said { seq: 3, reasserted: true, ..Said::default() };
    ledger
        .desired(PRESS, 1, &WEB)
        .status(PRESS, "web", &Said { seq: 3, ..Said::default() })
        .fresh(PRESS, 1, 7)
        .status(PRESS, "web", &Said { head: 7, ..again.clone() })
        .status(PRESS, "web", &Said { head: 4, ..again.clone() })
        .desired(DRILL, 1, &[("db", 1)])
        .status(DRILL, "db", &Said { seq: 3, ..Said::default() })
        .fresh(DRILL, 1, 7)
        .status(DRILL, "db", &Said { head: 7, current: false, ..again.clone() })
        .desired(OVEN, 1, &[("log", 1)])
        .status(OVEN, "log", &Said { seq: 3, current: false, ..Said::default() })
        .fresh(OVEN, 1, 7)
        .status(OVEN, "log", &Said { seq: 2, head: 7, ..Said::default() });
    ledger
}

fn epochs_to_come() -> Ledger {
    let mut ledger = Ledger::default();
    let begins = |epoch| Said { epoch, seq: 2, current: false, ..Said::default() };
    for (id, epoch) in [("fifth", 5), ("sixth", 6), ("third", 3)] {
        let device = format!("epochs/{id}");
        ledger.desired(&device, 1, &[(id, 1)]).fresh(&device, 1, 0);
        for epoch in [6, 2, 3, 4, 5] {
            ledger.quarantine(&device, Some((epoch, 1)));
        }
        ledger.status(&device, id, &begins(epoch)).beat(&device, epoch, 2);
    }
    // An ended epoch makes room.
    ledger.quarantine("epochs/third", Some((6, 1))).quarantine("epochs/third", Some((7, 1)));
    ledger.status("epochs/third", "third", &begins(7)).beat("epochs/third", 7, 2);
    for id in ["past", "past-dropped"] {
        let device = format!("epochs/{id}");
        ledger.desired(&device, 1, &[(id, 1)]).fresh(&device, 5, 0);
        for epoch in [1, 2, 3, 4, 6] {
            if id == "past" {
                ledger.quarantine(&device, Some((epoch, 1)));
            } else {
                ledger.dropped(&device, Some((epoch, 1)), stored_at(1));
            }
        }
        ledger.status(&device, id, &begins(6)).beat(&device, 6, 2);
    }
    ledger
}

fn epochs_to_come_dropped() -> Ledger {
    let mut ledger = Ledger::default();
    let begins = |epoch, seq| Said { epoch, seq, current: false, ..Said::default() };
    for id in ["dropped", "let-in", "told-before"] {
        let device = format!("epochs/{id}");
        ledger.desired(&device, 1, &[(id, 1)]);
    }
    let whole = Account { received: 6, coalesced: 0, quarantined: 0, missing: SeqRanges::new() };
    ledger
        .quarantine("epochs/dropped", Some((3, 1)))
        .dropped("epochs/dropped", Some((3, 1)), stored_at(4))
        .dropped("epochs/dropped", Some((3, 3)), stored_at(1))
        .dropped("epochs/dropped", Some((3, 5)), stored_at(7))
        .quarantine("epochs/dropped", Some((3, 5)))
        .status("epochs/dropped", "dropped", &begins(3, 2))
        .status("epochs/dropped", "dropped", &begins(3, 4))
        .beat("epochs/dropped", 3, 5)
        .dropped("epochs/let-in", Some((3, 1)), stored_at(1));
    verdict_of(&mut ledger).verdict = QuarantineDecision::LetIn;
    ledger
        .status("epochs/let-in", "let-in", &begins(3, 2))
        .beat("epochs/let-in", 3, 2)
        .liveness("epochs/told-before", Liveness::Fresh, 1, 6, Some(whole))
        .dropped("epochs/told-before", Some((2, 2)), stored_at(1))
        .status("epochs/told-before", "told-before", &begins(2, 1))
        .beat("epochs/told-before", 2, 2)
        .quarantine("epochs/told-before", Some((2, 2)))
        .beat("epochs/told-before", 2, 2);
    ledger
}

fn quarantined_and_expired() -> Ledger {
    let mut ledger = super::quarantined_and_dropped();
    verdict_of(&mut ledger).verdict = QuarantineDecision::Expired;
    ledger
}

fn scattered_quarantine() -> Ledger {
    const BAD: u64 = 2_060;
    let mut ledger = Ledger::default();
    let mut others = SeqRanges::new();
    (2..=BAD).for_each(|nth| _ = others.insert(2 * nth + 1));
    let first = Said { epoch: 2, head: 2 * BAD + 1, current: false, ..Said::default() };
    ledger
        .desired(PRESS, 1, &[("scattered", 1)])
        .status(PRESS, "scattered", &Said::default())
        .quarantine_sum(PRESS, Some((2, 3)), others)
        .status(PRESS, "scattered", &first)
        .beat(PRESS, 2, 2 * BAD + 1)
        .quarantine(PRESS, Some((2, 2 * BAD + 7)));
    ledger
}

fn heads_of_reports() -> Ledger {
    let mut ledger = Ledger::default();
    let old = |seq, head| Said { seq, head, current: false, ..Said::default() };
    ledger
        .desired(PRESS, 1, &[("ahead", 1)])
        .status(PRESS, "ahead", &old(2, 5))
        .status(PRESS, "ahead", &old(1, 1))
        .desired(DRILL, 1, &[("folded", 1)])
        .status(DRILL, "folded", &Said { coalesced: &[(1, 2), (4, 5)], ..old(6, 8) })
        .desired(OVEN, 1, &[("above", 1)])
        .quarantine(OVEN, Some((1, 9)))
        .capabilities(OVEN, 1, 1)
        .status(OVEN, "above", &old(3, 3))
        .beat(OVEN, 1, 4)
        .beat(OVEN, 1, 2);
    ledger
}

fn leaving_and_forgotten() -> Ledger {
    let mut ledger = Ledger::default();
    for device in ["old/gone", "old/holed", "old/doubted", "old/unread", "new/leaving"] {
        let id = device.split_once('/').unwrap().1;
        let epoch = if device.starts_with("old") { 1 } else { 7 };
        ledger.desired(device, 1, &[(id, 1)]).status(device, id, &Said { epoch, ..Said::default() });
        ledger.desired(device, 2, &[]).capabilities(device, 7, if epoch == 1 { 1 } else { 2 });
    }
    ledger
        .fresh("old/gone", 7, 1)
        .fresh("old/holed", 7, 2)
        .quarantine("old/doubted", Some((7, 2)))
        .beat("old/doubted", 7, 2)
        .beat("old/unread", 7, 1)
        .quarantine("old/unread", None)
        .fresh("new/leaving", 7, 2);
    ledger
}

fn missing_beyond_counting() -> Ledger {
    let mut ledger = Ledger::default();
    for (device, head) in [(PRESS, 1 << 40), (DRILL, (1 << 32) - 1), (OVEN, 1 << 32)] {
        ledger.desired(device, 1, &WEB).fresh(device, 1, head);
    }
    ledger
}

fn newer_epoch_begins_anew() -> Ledger {
    let mut ledger = Ledger::default();
    let said = |epoch, seq| Said { epoch, seq, current: false, ..Said::default() };
    let whole = Account { received: 3, coalesced: 0, quarantined: 0, missing: SeqRanges::new() };
    ledger
        .desired("plant7/holed-before", 1, &[("holed-before", 1)])
        .status("plant7/holed-before", "holed-before", &said(1, 9))
        .status("plant7/holed-before", "holed-before", &said(7, 1))
        .fresh("plant7/holed-before", 7, 1)
        .desired("plant7/whole-before", 1, &[("whole-before", 1)])
        .liveness("plant7/whole-before", Liveness::Fresh, 1, 3, Some(whole))
        .status("plant7/whole-before", "whole-before", &said(7, 3))
        .fresh("plant7/whole-before", 7, 3)
        .desired("plant7/doubted-before", 1, &[("doubted-before", 1)])
        .quarantine("plant7/doubted-before", Some((1, 2)))
        .beat("plant7/doubted-before", 1, 2)
        .status("plant7/doubted-before", "doubted-before", &said(7, 1))
        .status("plant7/doubted-before", "other", &Said { components: &only(Removed), ..said(7, 2) })
        .fresh("plant7/doubted-before", 7, 2);
    ledger
}

fn older_epoch_ignored() -> Ledger {
    let mut ledger = Ledger::default();
    let account = Account { received: 2, coalesced: 0, quarantined: 0, missing: SeqRanges::span(3, 9) };
    ledger
        .desired(PRESS, 1, &WEB)
        .capabilities(PRESS, 5, 1)
        .status(PRESS, "web", &Said { epoch: 5, seq: 2, ..Said::default() })
        .fresh(PRESS, 5, 2)
        .status(PRESS, "web", &Said { epoch: 3, seq: 9, components: &only(Failed), ..Said::default() })
        .capabilities(PRESS, 3, 8)
        .liveness(PRESS, Liveness::Stale, 3, 9, Some(account))
        .desired(DRILL, 1, &WEB)
        .status(DRILL, "web", &Said { epoch: 5, ..Said::default() })
        .fresh(DRILL, 5, 3)
        .quarantine(DRILL, Some((3, 2)))
        .heard(DRILL, Liveness::Stale, 3, 9, None, None, false)
        .status(DRILL, "web", &Said { epoch: 3, seq: 3, coalesced: &[(1, 2)], ..Said::default() })
        .dropped(DRILL, Some((3, 3)), stored_at(9));
    ledger
}

fn unread_by_number() -> Ledger {
    let mut ledger = Ledger::default();
    let removed = only(Removed);
    let other = Said { seq: 2, components: &removed, ..Said::default() };
    let begun = ["above", "above-and-in", "next-epoch", "passed-by", "stands-for-others"];
    for id in begun {
        let device = format!("plant7/{id}");
        let said = Said { current: false, ..Said::default() };
        ledger.desired(&device, 1, &[(id, 1)]).status(&device, id, &said).beat(&device, 1, 1);
    }
    ledger
        .quarantine("plant7/above", Some((1, 5)))
        .quarantine("plant7/above-and-in", Some((1, 2)))
        .status("plant7/above-and-in", "other", &other)
        .quarantine("plant7/next-epoch", Some((2, 1)))
        .status("plant7/passed-by", "passed-by", &Said { seq: 2, head: 3, ..Said::default() })
        .quarantine("plant7/passed-by", Some((1, 3)))
        .quarantine_sum("plant7/stands-for-others", Some((1, 2)), SeqRanges::span(3, 4))
        .beat("plant7/stands-for-others", 1, 5)
        .desired("plant7/waiting", 1, &[("waiting", 1)])
        .quarantine("plant7/waiting", Some((1, 1)))
        .beat("plant7/waiting", 1, 1);
    ledger
}

fn unread_until_a_beat() -> Ledger {
    let mut ledger = Ledger::default();
    // When the heartbeat was taken in, in milliseconds after the message; both by the hub's clock.
    for (id, message, beat) in [
        ("before", 0, -1000),
        ("at-once", 0, 0),
        ("half-a-second-before", 500, -500),
        ("half-a-second-after", 0, 500),
        ("after", 0, 1000),
    ] {
        let device = format!("plant7/{id}");
        ledger.desired(&device, 1, &[(id, 1)]).status(&device, id, &Said::default());
        let came = ledger.next_at() + SignedDuration::from_millis(message);
        ledger.quarantine(&device, None);
        if let Some(Fact::Quarantine(last)) = ledger.entries.last_mut().map(|entry| &mut entry.fact) {
            last.received_at = came;
        }
        let beat_at = came + SignedDuration::from_millis(beat);
        ledger.heard(&device, Liveness::Fresh, 1, 1, None, Some(beat_at), true);
        // An earlier one takes nothing back, and neither does silence.
        ledger.heard(&device, Liveness::Fresh, 1, 1, None, Some(stored_at(0)), true).stale(&device, 1, 1);
    }
    ledger
}

fn unread_until_a_word() -> Ledger {
    let mut ledger = Ledger::default();
    for (id, number) in [
        ("above", Some((1, 5))),
        ("above-and-its-twin", Some((1, 5))),
        ("let-in", None),
        ("let-in-and-not-yet-told", Some((1, 2))),
        ("next-epoch", Some((2, 3))),
        ("next-epoch-and-its-twin", Some((2, 3))),
        ("no-number", None),
        ("no-number-and-another", None),
        ("of-no-message-that-is-left", None),
    ] {
        let device = format!("plant7/{id}");
        ledger.desired(&device, 1, &[(id, 1)]).status(&device, id, &Said::default()).beat(&device, 1, 1);
        if id.starts_with("of-no") {
            // Its fact has aged out of LEDGER.
            ledger.fresh(&device, 1, 2).dropped(&device, Some((1, 2)), stored_at(1));
            continue;
        }
        if id.ends_with("twin") || id.ends_with("another") {
            ledger.quarantine(&device, number);
        }
        let came = ledger.next_at();
        ledger.quarantine(&device, number).dropped(&device, number, came);
        if id.starts_with("let-in") {
            verdict_of(&mut ledger).verdict = QuarantineDecision::LetIn;
            ledger.fresh(&device, 1, number.map_or(1, |(_, seq)| seq));
        }
    }
    ledger
}

fn whole_devices() -> Ledger {
    let mut ledger = Ledger::default();
    // Each is a site of its own, so that each shows whether it is complete.
    ledger
        .desired("cannot-store/a", 1, &[])
        .not_storing("cannot-store/a", 1, 0)
        .desired("holed/a", 1, &WEB)
        .status("holed/a", "web", &Said { seq: 2, ..Said::default() })
        .fresh("holed/a", 1, 2)
        .desired("leaving/a", 1, &WEB)
        .status("leaving/a", "web", &Said::default())
        .desired("leaving/a", 2, &[])
        .fresh("leaving/a", 1, 1)
        .desired("unread/a", 1, &[])
        .beat("unread/a", 1, 0)
        .quarantine("unread/a", None)
        .desired("whole/a", 1, &WEB)
        .status("whole/a", "web", &Said { components: &only(Failed), ..Said::default() })
        .fresh("whole/a", 1, 1);
    ledger
}
