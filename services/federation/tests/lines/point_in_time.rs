//! Tests the law of the past: the past of several hubs, by processing time and by event time, equals that of
//! one hub with all sites; and the error where a hub cannot reach it.

use muster_contract::history::Point;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::status::StatusQuery;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::hubs::{self, Apart, DEPLOYMENTS, is_of_errors_at_sites, without_removals};
use crate::ledger::{Ledger, Said, stored_at};
use crate::{each_page, questions};

/// An answer without these: places in LEDGERs that have no common one, and whose LEDGER they are of.
fn without(names: &[&str], value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let told = fields.iter().filter(|(name, _)| !names.contains(&name.as_str()));
            let told = told.map(|(name, field)| (name.clone(), without(names, field)));
            told.collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(|item| without(names, item)).collect(),
        value => value.clone(),
    }
}

fn comparable(question: &Value, answer: &Value) -> Value {
    let names = ["asOf", "knownThen", "hubs", "hub", "ledgerSeq"];
    // Facts found by reading on are reported as of the last fact read, of whatever device.
    let names = if question["about"].is_null() { &names[..4] } else { &names[..] };
    without_removals(without(names, answer))
}

/// The same of counts that are kept, without what the present does not tell of them either.
fn comparable_status(question: &Value, top: &Value, answer: &Value) -> Value {
    let (query, mut answer): (StatusQuery, _) =
        (serde_json::from_value(question.clone()).unwrap(), comparable(question, answer));
    if is_of_errors_at_sites(question, top) {
        answer["rollup"]["message"] = Value::Null;
    }
    if query.is_of_places() {
        answer["rollup"]["changedAt"] = Value::Null;
    }
    answer
}

fn same_pages(apart: &Apart, endpoint: &'static str, question: Value) -> Result<(), TestCaseError> {
    each_page(apart, endpoint, question, |question, whole, top| {
        let compared = |answer| match endpoint {
            "status" => comparable_status(question, top, answer),
            _ => comparable(question, answer),
        };
        prop_assert_eq!(compared(top), compared(whole), "{} {}", endpoint, question);
        Ok(())
    })
}

/// A question about a point.
fn of(point: Point, mut question: Value) -> Value {
    let point = serde_json::to_value(point).unwrap();
    question.as_object_mut().unwrap().extend(point.as_object().unwrap().clone());
    question
}

/// As known at a time, and what is known of one by another or by now.
fn points() -> impl Strategy<Value = (Point, Point)> {
    let time = || (0u64..150).prop_map(stored_at);
    let point = (time(), time(), 0..4).prop_map(|(one, other, kind)| {
        let (earlier, later) = (one.min(other), one.max(other));
        match kind {
            0 => Point { about: Some(earlier), ..Point::default() },
            1 => Point { about: Some(earlier), ..Point::at(later) },
            _ => Point::at(later),
        }
    });
    (point, time()).prop_map(|(point, time)| (point, Point::at(time)))
}

proptest! {
    // Each case folds many points, and asks them everything.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_past_of_several_hubs_equals_that_of_one_hub(
        apart in hubs::apart(), (point, _) in points(), limit in 1usize..5, status in questions(),
        label in select(vec!["ring", "region"]), value in select(vec!["one", "two"]),
    ) {
        for (endpoint, question) in [
            ("moment", json!({})),
            ("fleet", json!({})),
            ("deployments", json!({"limit": limit})),
            ("devices", json!({"limit": limit})),
            ("labels", json!({})),
            ("groups", json!({"label": label, "limit": 1})),
            ("groups", json!({"label": label, "id": "web"})),
            ("group", json!({"label": label, "value": value})),
        ] {
            same_pages(&apart, endpoint, of(point, question))?;
        }
        for id in DEPLOYMENTS {
            same_pages(&apart, "deployment", of(point, json!({"id": id})))?;
            same_pages(&apart, "deployment", of(point, json!({"id": id, "output": "detail", "limit": limit})))?;
            same_pages(&apart, "why", of(point, json!({"id": id, "limit": limit})))?;
        }
        if apart.heard_of_places(point, &status) {
            same_pages(&apart, "status", of(point, status))?;
        }
    }

    #[test]
    fn a_diff_over_several_hubs_equals_that_of_one_hub(
        apart in hubs::apart(), one in 0u64..100, other in 0u64..150, limit in 1usize..5,
    ) {
        let [from, to] = [one.min(other), one.max(other)].map(|seq| json!({"at": stored_at(seq)}));
        for id in DEPLOYMENTS {
            same_pages(&apart, "diff", json!({"id": id, "from": from, "to": to, "limit": limit}))?;
            same_pages(&apart, "diff", json!({"id": id, "from": from, "limit": limit}))?;
            same_pages(&apart, "diff", json!({"id": id, "from": from, "to": to, "site": "s0"}))?;
        }
    }
}

/// Two hubs with one device each, that have `web` since the third fact.
fn two() -> Apart {
    let ledgers = ["s1/a", "s0/b"].map(|device| {
        let mut ledger = Ledger::default();
        ledger.desired(device, 1, &[("web", 1)]).fresh(device, 1, 1).status(device, "web", &Said::default());
        ledger
    });
    Apart::of(&ledgers)
}

#[test]
fn a_time_is_a_fact_of_each_ledger_and_an_answer_says_which() {
    let moment = two().top("moment", &json!({"at": stored_at(4)})).unwrap();
    let seqs: Vec<_> =
        moment["hubs"].as_array().unwrap().iter().map(|hub| &hub["asOf"]["ledgerSeq"]).collect();
    assert_eq!((seqs, &moment["asOf"]["ledgerSeq"]), (vec![&json!(4), &json!(3)], &json!(7)));
    assert_eq!(moment["asOf"]["at"], json!(stored_at(4)));
    let of = |seq| two().top("deployment", &json!({"id": "web", "at": stored_at(seq)}));
    assert_eq!(of(2).unwrap()["view"]["counts"], json!({"waiting": {"never": 2}}));
    assert_eq!(of(5).unwrap()["view"]["counts"], json!({"installed": {"fresh": 1}, "waiting": {"fresh": 1}}));
    assert_eq!(of(6).unwrap()["view"]["verdict"], "converged");
    assert_eq!(of(0).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_hub_that_cannot_reach_a_time_is_named_and_none_is_left_out() {
    let forgotten = || ErrorBody {
        code: ErrorCode::NotFound,
        message: "at: LEDGER has forgotten what it held then".to_owned(),
    };
    let away =
        || ErrorBody { code: ErrorCode::NotReady, message: "the hub first does not answer".to_owned() };
    let at = stored_at(6);
    for (endpoint, question) in [
        ("moment", json!({"at": at})),
        ("fleet", json!({"at": at})),
        ("deployment", json!({"id": "web", "at": at})),
        ("status", json!({"id": "web", "site": ["s1"], "at": at})),
        ("devices", json!({"about": at})),
        ("why", json!({"id": "web", "at": at})),
        ("diff", json!({"id": "web", "from": {"at": at}})),
    ] {
        let apart = two().where_one_says(1, Err(forgotten()));
        let error = apart.top(endpoint, &question).unwrap_err();
        let says = "at the hub first: at: LEDGER has forgotten what it held then";
        assert_eq!(
            (error.code, error.message.as_str()),
            (ErrorCode::NotFound, says),
            "{endpoint} {question}"
        );
        let error = two().where_one_says(1, Err(away())).top(endpoint, &question).unwrap_err();
        let says = "the hub first does not answer";
        assert_eq!(
            (error.code, error.message.as_str()),
            (ErrorCode::NotReady, says),
            "{endpoint} {question}"
        );
    }
    // One that is silent for longer than the lease is asked all the same.
    let silent = two().where_one_is_silent(1);
    assert_eq!(silent.top("fleet", &json!({"at": at})).unwrap()["devices"], json!({"fresh": 2}));
}
