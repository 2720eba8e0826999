//! What a failure says while it is the last word, and how long it excludes anything; and what work is worth of which nobody
//! hears any more.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
#![allow(dead_code, reason = "the ledger and the scenarios serve several tests")]

mod ledger;
mod scenarios;

use ledger::{Ledger, Look as _, Said};
use muster_contract::view::{Bounds, Standing, Verdict};
use muster_domain::fold::Page;

#[test]
fn m03_a_failure_before_the_dark_excludes_nothing() {
    let mut ledger = scenarios::failures::m03_dark_after_failure();
    let view = ledger.fold().deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Failing, Bounds { lo: 0, hi: 1 }));
    let view = ledger.fresh("plant7/press-4", 1, 1).fold().deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Failing, Bounds { lo: 0, hi: 0 }), "it is heard");
}

#[test]
fn contradiction_after_success_is_the_newer_word_and_so_is_what_follows() {
    let mut ledger = scenarios::failures::contradiction_after_success();
    let fleet = ledger.fold();
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Failing, Bounds { lo: 0, hi: 0 }));
    assert_eq!(view.errors.iter().map(|error| error.code.as_str()).collect::<Vec<_>>(), ["Exit1"]);
    let why = fleet.why(&"web".parse().unwrap(), None, &Page { after: None, limit: 10 }).unwrap();
    let seqs: Vec<_> = why.standings[0].facts.iter().filter_map(|fact| fact.seq).collect();
    assert_eq!(
        seqs.iter().map(|seq| seq.get()).collect::<Vec<_>>(),
        [2],
        "the success proves nothing: {why:?}"
    );

    let view = ledger.status("plant7/press-4", "web", &Said { seq: 3, ..Said::default() }).fold();
    let view = view.deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Converged, Bounds { lo: 1, hi: 1 }));
}

#[test]
fn m08_what_falls_silent_while_installing_is_no_progress() {
    let mut ledger = scenarios::failures::m08_dark_while_installing();
    let before = Ledger { entries: ledger.entries[..ledger.entries.len() - 1].to_vec() };
    assert_eq!(before.fold().deployment("web").verdict, Verdict::Progressing, "while it is heard");
    let fleet = ledger.fold();
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, view.overdue), (Verdict::Waiting, 0), "no deadline passed");
    let (stale, fresh) = (view.counts[&Standing::Installing].stale, view.counts[&Standing::Installed].fresh);
    assert_eq!((view.counts.len(), stale, fresh), (2, 1, 1), "what it said last is shown");
    let why = fleet.why(&"web".parse().unwrap(), None, &Page { after: None, limit: 9 }).unwrap();
    let named: Vec<_> = why.standings.iter().map(|because| because.key.to_string()).collect();
    assert_eq!((why.because, named), (1, vec!["plant7/press-4".to_owned()]));
    let facts: Vec<_> = why.standings[0].facts.iter().map(|fact| fact.says.as_str()).collect();
    assert_eq!(facts, ["shall run it", "is installing", "is silent"]);

    let heard = ledger.clone().fresh("plant7/press-4", 1, 1).fold().deployment("web");
    assert_eq!(heard.verdict, Verdict::Progressing, "it is heard again, and at work still");
    ledger.status("plant7/press-4", "web", &Said { seq: 2, ..Said::default() });
    assert_eq!(
        ledger.fold().deployment("web").verdict,
        Verdict::ConvergedStale,
        "a last word that came late"
    );
}
