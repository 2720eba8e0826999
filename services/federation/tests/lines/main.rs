//! Tests the law of lines and proofs: pages over several hubs equal the pages of one hub with all their sites.
//! The hubs are folds in memory, asked by the federation's own code; there is no bus.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

#[path = "../../../../shared/domain/tests/fold/fleets/mod.rs"]
mod fleets;
mod hubs;
mod large;
#[path = "../../../../shared/domain/tests/fold/ledger/mod.rs"]
mod ledger;
mod names;
mod why;

use hubs::{Apart, COMPONENTS, DEPLOYMENTS, SITES, comparable, is_of_errors_at_sites};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::status::StatusQuery;
use muster_contract::view::{Standing, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

/// Pages that one question may take: more than there are rows.
const PAGES_MAX: usize = 60;
/// Codes of errors that the hubs report.
const CODES: [&str; 3] = ["DiskFull", "Exit1", "unspecified"];

fn some_of(names: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    let few = subsequence(names.to_vec(), 0..=names.len().min(3)).prop_shuffle();
    // Most questions name nothing of a kind.
    prop_oneof![3 => Just(Vec::new()), 1 => few]
        .prop_map(|names| names.into_iter().map(str::to_owned).collect())
}

fn devices() -> impl Strategy<Value = Vec<String>> {
    let one = (select(&SITES[..]), select(&["a", "b", "a", "b", "ghost"][..]));
    let few = vec(one.prop_map(|(site, device)| format!("{site}/{device}")), 1..4);
    prop_oneof![4 => Just(Vec::new()), 1 => few]
}

fn apps() -> impl Strategy<Value = Vec<String>> {
    some_of(&DEPLOYMENTS).prop_map(|ids| ids.iter().map(|id| format!("com.example.{id}")).collect())
}

/// Filters of rows by what they show; most questions have none.
fn rows_shown() -> impl Strategy<Value = (Vec<Standing>, Vec<&'static str>, Vec<String>)> {
    let standings = subsequence(Standing::ALL.to_vec(), 1..5);
    let standings = prop_oneof![4 => Just(Vec::new()), 1 => standings];
    let heard = subsequence(vec!["fresh", "stale", "never"], 1..3);
    (
        standings,
        prop_oneof![4 => Just(Vec::new()), 1 => heard],
        prop_oneof![4 => Just(Vec::new()), 1 => some_of(&CODES)],
    )
}

/// Questions about status: any filters, any output, small pages. Where a name is null it is not named.
pub(crate) fn questions() -> impl Strategy<Value = Value> {
    let id = prop_oneof![2 => Just(Value::Null), 3 => select(&DEPLOYMENTS[..]).prop_map(Value::from)];
    let sites = prop_oneof![2 => Just(Vec::new()), 1 => some_of(&SITES)];
    let axis = select(vec![Value::Null, Value::Null, json!("deployed"), json!("ready")]);
    let output = select(vec!["summary", "brief", "all", "detail"]);
    let generation = prop_oneof![7 => Just(Value::Null), 1 => (1u64..4).prop_map(Value::from)];
    let filters = (id, apps(), sites, devices(), some_of(&COMPONENTS));
    (filters, rows_shown(), axis, output, generation, 1usize..5).prop_map(
        |((id, app, site, device, component), (standing, freshness, error), axis, output, generation, limit)| {
            let question = json!({"id": id, "app": app, "site": site, "device": device, "component": component,
            "standing": standing, "freshness": freshness, "error": error,
            "status": axis, "output": output, "generation": generation, "limit": limit});
            serde_json::from_value::<StatusQuery>(question.clone()).unwrap();
            question
        },
    )
}

/// Asks the hub with all facts and the top for every page, and checks each question with both answers.
pub(crate) fn each_page(
    apart: &Apart,
    endpoint: &'static str,
    mut question: Value,
    check: impl Fn(&Value, &Value, &Value) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    for _ in 0..PAGES_MAX {
        let (whole, top) = match (apart.whole(endpoint, &question), apart.top(endpoint, &question)) {
            (Ok(whole), Ok(top)) => (whole, top),
            (Err(whole), Err(top)) => {
                prop_assert_eq!(whole.code, top.code, "{}: {} {}", question, whole.message, top.message);
                return Ok(());
            }
            (whole, top) => {
                return Err(TestCaseError::fail(format!(
                    "{endpoint} {question}: {whole:?} and at the top {top:?}"
                )));
            }
        };
        check(&question, &whole, &top)?;
        if whole["next"].is_null() {
            return Ok(());
        }
        question["after"] = whole["next"].clone();
    }
    Err(TestCaseError::fail("the pages come to no end"))
}

/// All deployments of all pages, or the code of the refusal: a page of filtered sums may end early.
fn rows(question: &Value, ask: impl Fn(&Value) -> Result<Value, ErrorBody>) -> Result<Vec<Value>, ErrorCode> {
    let (mut question, mut rows) = (question.clone(), Vec::new());
    for _ in 0..PAGES_MAX {
        let page = ask(&question).map_err(|error| error.code)?;
        let page = comparable(&page, true, true);
        rows.extend(page["deployments"].as_array().unwrap().iter().cloned());
        if page["next"].is_null() {
            return Ok(rows);
        }
        question["after"] = page["next"].clone();
    }
    panic!("the pages come to no end");
}

fn same_pages(apart: &Apart, endpoint: &'static str, question: Value) -> Result<(), TestCaseError> {
    each_page(apart, endpoint, question, |question, whole, top| {
        let words = !is_of_errors_at_sites(question, top);
        let time = endpoint != "status" || !apart.is_gone_somewhere(question);
        let [seen, wanted] = [top, whole].map(|answer| comparable(answer, words, time));
        prop_assert_eq!(seen, wanted, "{} {}", endpoint, question);
        Ok(())
    })
}

proptest! {
    #[test]
    fn status_pages_over_several_hubs_equal_those_of_one_hub(
        apart in hubs::apart(), questions in vec(questions(), 6),
    ) {
        for question in questions {
            // A site of retired devices alone has no view, so the top does not hear of it.
            if apart.hears_of_places(&question) {
                same_pages(&apart, "status", question)?;
            }
        }
    }

    #[test]
    fn device_pages_over_several_hubs_equal_those_of_one_hub(
        apart in hubs::apart(), limit in 1usize..6, heard in subsequence(vec!["fresh", "stale", "never"], 0..3),
        (sites, errors) in (some_of(&SITES), some_of(&CODES)),
        lacking in prop_oneof![2 => Just(Value::Null), 1 => select(&DEPLOYMENTS[..]).prop_map(Value::from)],
    ) {
        let question = json!({"freshness": heard, "limit": limit, "site": sites, "error": errors, "notRunning": lacking});
        if apart.hears_of_places(&json!({"site": sites})) {
            same_pages(&apart, "devices", question)?;
        }
    }

    #[test]
    fn the_longest_silences_of_several_hubs_are_those_of_one_hub(
        apart in hubs::apart(), limit in 1usize..6, sites in some_of(&SITES),
    ) {
        let question = json!({"bySilence": true, "limit": limit, "site": sites});
        if apart.hears_of_places(&json!({"site": sites})) {
            same_pages(&apart, "devices", question)?;
        }
    }

    #[test]
    fn deployments_at_sites_of_several_hubs_equal_those_of_one_hub(
        apart in hubs::apart(), limit in 1usize..4, sites in some_of(&SITES), errors in some_of(&CODES),
        verdicts in prop_oneof![2 => Just(Vec::new()), 1 => subsequence(Verdict::ALL.to_vec(), 1..5)],
    ) {
        let question = json!({"limit": limit, "site": sites, "error": errors, "verdict": verdicts});
        if apart.hears_of_places(&json!({"site": sites})) {
            let top = rows(&question, |question| apart.top("deployments", question));
            let whole = rows(&question, |question| apart.whole("deployments", question));
            prop_assert_eq!(top, whole, "{}", question);
        }
    }
}
