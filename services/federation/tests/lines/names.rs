//! Tests names that one hub knows and another does not: a name is known if any hub knows it.

use muster_contract::query::ErrorCode;
use serde_json::{Value, json};

use crate::hubs::Apart;
use crate::ledger::{Ledger, Said};

/// Two hubs: at one `web` runs on `s0/a` and `s2/b`, at the other `db` on `s1/c`.
fn two() -> Apart {
    let (mut one, mut other) = (Ledger::default(), Ledger::default());
    for device in ["s0/a", "s2/b"] {
        one.desired(device, 1, &[("web", 1)]).fresh(device, 1, 1).status(device, "web", &Said::default());
    }
    let side = Said { components: &[("side", muster_contract::State::Installed)], ..Said::default() };
    other.desired("s1/c", 1, &[("db", 1)]).fresh("s1/c", 1, 1).status("s1/c", "db", &side);
    Apart::of(&[one, other])
}

#[test]
fn a_name_is_not_found_only_if_no_hub_knows_it() {
    let apart = two();
    let (web, db) = ("com.example.web", "com.example.db");
    // The question, and how many targets pass; none where it is not found.
    for (question, targets) in [
        (json!({"id": "web"}), Some(2)),
        (json!({"id": "web", "site": ["s1"]}), Some(0)),
        (json!({"id": "web", "site": ["s1"], "output": "all"}), Some(0)),
        (json!({"id": "db", "site": ["s0", "s1"], "output": "all"}), Some(1)),
        (json!({"id": "web", "device": ["s1/c"]}), Some(0)),
        (json!({"site": ["s0"], "device": ["s1/c"]}), Some(0)),
        (json!({"site": ["s0"], "device": ["s1/nobody"]}), None),
        (json!({"app": [web, db]}), Some(3)),
        (json!({"app": [web, db], "output": "all", "limit": 2}), Some(2)),
        (json!({"app": [web], "component": ["side"]}), Some(0)),
        (json!({"app": [web, db], "component": ["side"]}), Some(1)),
        (json!({"app": [web, "com.example.ghost"]}), None),
        (json!({"id": "ghost"}), None),
        (json!({"id": "web", "component": ["ghost"]}), None),
        (json!({"site": ["s0", "nowhere"]}), None),
        (json!({"device": ["s0/a", "s1/nobody"], "output": "all"}), None),
        (json!({"app": [web], "device": ["s0/a", "s1/c"]}), Some(1)),
    ] {
        match (apart.top("status", &question), targets) {
            (Ok(answer), Some(targets)) => assert_eq!(answer["rollup"]["targets"], targets, "{question}"),
            (Err(error), None) => {
                assert_eq!(error.code, ErrorCode::NotFound, "{question}: {}", error.message);
            }
            (answer, _) => panic!("{question}: {answer:?}"),
        }
        assert_eq!(apart.whole("status", &question).is_ok(), targets.is_some(), "{question}");
    }
}

#[test]
fn an_unknown_name_comes_with_names_that_are_near() {
    let error = two().top("status", &json!({"id": "wev"})).unwrap_err();
    assert!(error.message.contains("did you mean web?"), "{}", error.message);
}

#[test]
fn the_verdict_is_of_the_sites_that_are_asked_about() {
    let (mut one, mut other) = (Ledger::default(), Ledger::default());
    one.desired("s0/a", 1, &[("web", 1)]).fresh("s0/a", 1, 1).status("s0/a", "web", &Said::default());
    other.desired("s1/b", 1, &[("web", 1)]).fresh("s1/b", 1, 0);
    let apart = Apart::of(&[one, other]);
    for (sites, verdict) in
        [(json!([]), "waiting"), (json!(["s0"]), "converged"), (json!(["s0", "s1"]), "waiting")]
    {
        let answer = apart.top("status", &json!({"id": "web", "site": sites})).unwrap();
        assert_eq!(answer["verdict"], verdict, "{sites}");
    }
    let words = |site: &[&str]| -> Value {
        apart.top("status", &json!({"id": "web", "site": site})).unwrap()["rollup"]["message"].clone()
    };
    assert_eq!(words(&["s0"]), "installed everywhere, fresh and known", "the words are of what passes");
    assert_eq!(
        words(&["s0", "s1"]),
        "some device has not started its target, or fell silent while applying it"
    );
}
