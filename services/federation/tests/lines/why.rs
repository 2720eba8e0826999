//! Tests the law of proofs: over several hubs the verdict, the rule, the devices that make it hold and their
//! facts equal those of one hub with all sites; and the answer where a hub is silent.

use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::why::WhyAnswer;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::each_page;
use crate::hubs::{self, Apart, DEPLOYMENTS, SITES};
use crate::ledger::{Ledger, Said};

/// An answer without up to where it has read, and without whose facts they are.
fn comparable(answer: &Value) -> Value {
    let mut answer = answer.clone();
    answer["asOf"] = Value::Null;
    answer["hubs"] = Value::Null;
    for because in answer["standings"].as_array_mut().unwrap() {
        for fact in because["facts"].as_array_mut().unwrap() {
            fact.as_object_mut().unwrap().remove("hub");
        }
    }
    answer
}

/// Each fact is in the LEDGER of the hub whose device it is of, and the hubs together have as many standings as is said.
fn says_whose(answer: &Value, is_of_all: bool) -> Result<(), TestCaseError> {
    let why: WhyAnswer = serde_json::from_value(answer.clone()).unwrap();
    for fact in why.standings.iter().flat_map(|because| &because.facts) {
        let hub = why.hubs.iter().find(|hub| Some(&hub.name) == fact.hub.as_ref());
        prop_assert!(hub.is_some_and(|hub| hub.as_of.unwrap().ledger_seq >= fact.ledger_seq), "{:?}", why);
    }
    if is_of_all {
        prop_assert_eq!(why.because, why.hubs.iter().map(|hub| hub.because).sum::<u64>(), "{:?}", why);
    }
    for hub in &why.hubs {
        prop_assert_eq!(hub.because > 0, hub.verdict == why.verdict, "{:?}", why);
    }
    Ok(())
}

fn same_pages(apart: &Apart, question: Value) -> Result<(), TestCaseError> {
    each_page(apart, "why", question, |question, whole, top| {
        prop_assert_eq!(comparable(top), comparable(whole), "{}", question);
        says_whose(top, question["site"].is_null())
    })
}

proptest! {
    #[test]
    fn a_merged_verdict_is_proved_by_the_facts_of_one_hub_with_all_sites(
        apart in hubs::apart(), limit in 1usize..5, site in select(&SITES[..]), device in select(vec!["a", "b", "ghost"]),
    ) {
        for id in DEPLOYMENTS {
            same_pages(&apart, json!({"id": id, "limit": limit}))?;
            // A site of retired devices alone has no view, so the top does not hear of it.
            if apart.hears_of_places(&json!({"site": [site]})) {
                same_pages(&apart, json!({"id": id, "site": site, "limit": limit}))?;
                same_pages(&apart, json!({"id": id, "site": site, "device": device}))?;
            }
        }
    }
}

/// Two hubs with `web`: everything is well at `s1`, of `middle`; and at `s0`, of `first`, unless its device failed.
fn two(failed: bool) -> Apart {
    let (mut one, mut other) = (Ledger::default(), Ledger::default());
    one.desired("s1/a", 1, &[("web", 1)]).fresh("s1/a", 1, 1).status("s1/a", "web", &Said::default());
    let error = Some(("E1", "test", "gone")).filter(|_| failed);
    let said =
        Said { error, components: if failed { &[] } else { Said::default().components }, ..Said::default() };
    other.desired("s0/b", 1, &[("web", 1)]).fresh("s0/b", 1, 1).status("s0/b", "web", &said);
    Apart::of(&[one, other])
}

fn why(apart: &Apart, question: &Value) -> WhyAnswer {
    serde_json::from_value(apart.top("why", question).unwrap()).unwrap()
}

#[test]
fn a_silent_hub_is_named_as_cause_without_facts() {
    let question = json!({"id": "web"});
    let all_well = why(&two(false), &question);
    assert_eq!((all_well.verdict.as_str(), all_well.because, all_well.of), ("converged", 2, 2));
    let seen = |why: &WhyAnswer| {
        let hubs = why.hubs.iter();
        let hubs = hubs.map(|hub| (hub.name.to_string(), hub.verdict.as_str(), hub.because, hub.heard));
        (why.verdict.as_str(), why.standings.len(), hubs.collect::<Vec<_>>())
    };
    let line = |name: &str, verdict, because, heard| (name.to_owned(), verdict, because, heard);

    let away = two(false).where_one_is_silent(1);
    let lines = vec![line("first", "incomplete", 1, false), line("middle", "converged", 0, true)];
    assert_eq!(seen(&why(&away, &question)), ("incomplete", 0, lines));
    let away = two(true).where_one_is_silent(0);
    let lines = vec![line("first", "failing", 1, true), line("middle", "incomplete", 0, false)];
    assert_eq!(seen(&why(&away, &question)), ("failing", 1, lines));
    // Its last word was that it failed: that holds on, and its LEDGER cannot be looked at.
    let away = two(true).where_one_is_silent(1);
    let lines = vec![line("first", "failing", 1, false), line("middle", "converged", 0, true)];
    assert_eq!(seen(&why(&away, &question)), ("failing", 0, lines));
}

#[test]
fn a_verdict_is_of_all_hubs_also_where_a_place_is_asked_about() {
    let apart = two(true);
    let of_site = why(&apart, &json!({"id": "web", "site": "s1"}));
    assert_eq!((of_site.verdict.as_str(), of_site.because, of_site.of), ("failing", 0, 1));
    assert!(of_site.standings.is_empty(), "{of_site:?}");
    let of_device = why(&apart, &json!({"id": "web", "site": "s1", "device": "a"}));
    assert_eq!((of_device.verdict.as_str(), of_device.because, of_device.of), ("failing", 0, 1));
    assert_eq!(of_device.standings[0].speaks_for.as_str(), "converged");
}

#[test]
fn a_heard_hub_that_does_not_answer_is_an_error() {
    let away = ErrorBody { code: ErrorCode::NotReady, message: "the hub first does not answer".to_owned() };
    let apart = two(false).where_one_says(1, Err(away));
    let error = apart.top("why", &json!({"id": "web"})).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::NotReady, "the hub first does not answer"));
    assert!(apart.top("why", &json!({"id": "web", "site": "s1"})).is_ok(), "of which nothing is asked");
    let broken = two(false).where_one_says(1, Ok("[]".into()));
    let error = broken.top("why", &json!({"id": "web"})).unwrap_err();
    assert!(error.message.contains("the hub first cannot be read"), "{}", error.message);
}
