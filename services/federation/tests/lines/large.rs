//! Tests many devices: where a message is full, or a hub has visited as many as it may, pages end elsewhere
//! than those of one hub, but their lines and counts are the same.

use muster_contract::query::{ErrorBody, ErrorCode, PAGE_MAX};
use muster_contract::question::ANSWER_BYTES_MAX;
use muster_contract::status::{LOOKED_AT_MAX, Rollup, StatusAnswer};
use serde_json::{Value, json};

use crate::hubs::Apart;
use crate::ledger::{Ledger, Said};

/// Devices of each hub: more than are looked at for one answer.
const DEVICES: usize = LOOKED_AT_MAX + 10;
/// Pages that a question may take.
const PAGES_MAX: usize = 100;

/// Two hubs of one site each, with a deployment on every device; at the first the last one failed.
fn two(devices: usize) -> Apart {
    let ledgers = ["s1", "s0"].map(|site| {
        let mut ledger = Ledger::default();
        for device in (0..devices).map(|number| format!("{site}/d{number:06}")) {
            ledger.desired(&device, 1, &[("web", 1)]);
        }
        let error = Said { error: Some(("E1", "test", "gone")), components: &[], ..Said::default() };
        let last = format!("{site}/d{:06}", devices - 1);
        if site == "s1" {
            ledger.fresh(&last, 1, 1).status(&last, "web", &error);
        }
        ledger
    });
    Apart::of(&ledgers)
}

/// All pages as one: names of the lines, and the roll-up.
fn walked(apart: &Apart, mut question: Value) -> (Vec<String>, Rollup, usize) {
    let (mut names, mut sum, mut pages) = (Vec::new(), None::<Rollup>, 0);
    for _ in 0..PAGES_MAX {
        let page = apart.top("status", &question).unwrap();
        assert!(page.to_string().len() <= ANSWER_BYTES_MAX);
        let page: StatusAnswer = serde_json::from_value(page).unwrap();
        pages += 1;
        names.extend(page.targets.iter().map(|line| line.key.to_string()));
        match &mut sum {
            Some(sum) if !page.whole => sum.merge(&page.rollup),
            _ => sum = Some(page.rollup),
        }
        let Some(next) = page.next else { return (names, sum.unwrap(), pages) };
        question["after"] = next.into();
    }
    panic!("the pages of {question} come to no end");
}

#[test]
fn lines_that_no_message_holds_come_once_and_in_order_on_more_pages() {
    let apart = two(600);
    for filter in [json!({}), json!({"component": ["main"]})] {
        let mut question = json!({"id": "web", "output": "all", "limit": PAGE_MAX});
        question.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
        let (names, sum, pages) = walked(&apart, question.clone());
        assert_eq!((names.len(), sum.targets, names.is_sorted()), (1200, 1200, true), "{question}");
        assert!(pages > 1, "{question}");
    }
}

#[test]
fn counts_after_filters_that_one_look_does_not_take_add_up_over_the_pages() {
    let apart = two(DEVICES);
    let (names, sum, pages) = walked(&apart, json!({"id": "web", "component": ["main"]}));
    assert_eq!((names.len(), sum.targets as usize), (0, 2 * DEVICES), "no lines where counts are wanted");
    assert!(pages > 1);
    let words = format!("web on s1/d{:06}: is failed", DEVICES - 1);
    assert!(sum.message.as_ref().unwrap().starts_with(&words), "the worst speaks: {sum:?}");
}

#[test]
fn an_answer_of_some_hubs_is_none() {
    let away =
        || ErrorBody { code: ErrorCode::NotReady, message: "the hub first does not answer".to_owned() };
    let table = [
        (Err(away()), ErrorCode::NotReady, "the hub first does not answer"),
        (Ok("[]".into()), ErrorCode::Internal, "the hub first cannot be read"),
    ];
    for (says, code, words) in table {
        let apart = two(2).where_one_says(1, says);
        for (endpoint, question) in [
            ("status", json!({})),
            ("status", json!({"id": "web", "output": "all"})),
            ("status", json!({"device": ["s0/d000000", "s1/d000000"]})),
            ("devices", json!({})),
            ("status", json!({"id": "web", "output": "brief"})),
        ] {
            let error = apart.top(endpoint, &question).unwrap_err();
            assert_eq!(error.code, code, "{question}: {}", error.message);
            assert!(error.message.contains(words), "{question}: {}", error.message);
        }
        // The other hub is at site s1, and knows no more than its own.
        assert!(apart.top("status", &json!({"site": ["s1"], "output": "all"})).is_ok());
    }
    let apart = two(2).where_one_says(1, Err(away()));
    let unknown = apart.top("status", &json!({"site": ["s1"], "app": ["ghost"]})).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotReady, "an unreachable hub may know it: {}", unknown.message);
}
