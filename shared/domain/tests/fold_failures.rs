//! What a failure says while it is the last word, and how long it excludes anything.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
#![allow(dead_code, reason = "the ledger and the scenarios serve several tests")]

mod ledger;
mod scenarios;

use ledger::{Look as _, Said};
use muster_contract::view::{Bounds, Verdict};
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
