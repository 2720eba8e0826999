//! Tests failures: while they are the last report, how long they exclude success, and failures and work on
//! silent devices.

use crate::ledger::{Ledger, Look as _, Said, key};
use crate::scenarios;
use muster_contract::State;
use muster_contract::status::StatusQuery;
use muster_contract::view::{Bounds, Standing, Verdict};
use muster_domain::fold::{Fleet, Page};

#[test]
fn m03_a_failure_before_the_dark_excludes_nothing() {
    let mut ledger = scenarios::failures::m03_dark_after_failure();
    let view = ledger.fold().deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Failing, Bounds { lo: 0, hi: 1 }));
    let view = ledger.fresh("plant7/press-4", 1, 1).fold().deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Failing, Bounds { lo: 0, hi: 0 }), "it is heard");
}

const NOT_BEGUN: &str = "some device has not started its target, or fell silent while applying it; ";

#[test]
fn m03_an_all_silent_fleet_has_no_fresh_evidence() {
    let nobody = "all 3 targets are silent: no fresh evidence";
    for (state, verdict, words) in [
        (None, Verdict::Waiting, NOT_BEGUN),
        (Some(State::Installing), Verdict::Waiting, NOT_BEGUN),
        (Some(State::Installed), Verdict::ConvergedStale, "installed everywhere by the last reports; "),
    ] {
        let mut ledger = Ledger::default();
        for device in ["plant7/press-4", "plant7/drill-1", "plant9/oven-2"] {
            ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 0);
            if let Some(state) = state {
                ledger.status(device, "web", &Said { components: &[("main", state)], ..Said::default() });
            }
            ledger.stale(device, 1, state.map_or(0, |_| 1));
        }
        let fleet = ledger.fold();
        let told = |fleet: &Fleet| {
            let query = StatusQuery { id: Some("web".parse().unwrap()), ..StatusQuery::default() };
            fleet.status_answer(&query, None, 10).unwrap().rollup.message.unwrap()
        };
        assert_eq!((fleet.deployment("web").verdict, told(&fleet)), (verdict, words.to_owned() + nobody));
        let (web, page) = ("web".parse().unwrap(), Page { after: None, limit: 10 });
        let why = fleet.why(&web, None, &page).unwrap();
        assert_eq!((why.because, why.of, why.fresh, why.rule.as_str()), (3, 3, Some(0), verdict.rule()));
        let one = fleet.why_device(&web, &key("plant7/press-4")).unwrap();
        assert_eq!((one.of, one.fresh), (1, Some(0)));

        let fleet = ledger.fresh("plant9/oven-2", 1, state.map_or(0, |_| 1)).fold();
        let is_at_work = state == Some(State::Installing);
        let heard = if is_at_work { Verdict::Progressing } else { verdict };
        assert_eq!(told(&fleet), heard.rule(), "one that is heard is evidence");
        let at = |site: &str| fleet.why(&web, Some(&site.parse().unwrap()), &page).unwrap();
        assert_eq!((at("plant7").of, at("plant7").fresh), (2, Some(0)));
        assert_eq!((at("plant9").of, at("plant9").fresh), (1, Some(1)));
    }
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
    assert_eq!(facts, ["is to run it", "is installing", "is silent"]);

    let heard = ledger.clone().fresh("plant7/press-4", 1, 1).fold().deployment("web");
    assert_eq!(heard.verdict, Verdict::Progressing, "it is heard again, and at work still");
    ledger.status("plant7/press-4", "web", &Said { seq: 2, ..Said::default() });
    assert_eq!(
        ledger.fold().deployment("web").verdict,
        Verdict::ConvergedStale,
        "a last word that came late"
    );
}
