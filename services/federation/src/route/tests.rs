//! Tests who answers each kind of question.

use muster_contract::query::ErrorCode;
use serde_json::{Value, json};

use super::*;

/// Sites `n1` and `n2` at the hub north, `s1` at south.
struct Two {
    unread: &'static [&'static str],
}

impl Places for Two {
    fn hub_of(&self, site: &SiteId) -> Option<HubName> {
        let hub = match site.as_str() {
            "n1" | "n2" => "north",
            "s1" => "south",
            _ => return None,
        };
        hub.parse().ok()
    }

    fn hubs(&self) -> Vec<HubName> {
        ["north", "south"].map(|name| name.parse().unwrap()).to_vec()
    }

    fn unread(&self) -> Vec<HubName> {
        self.unread.iter().map(|name| name.parse().unwrap()).collect()
    }
}

const READ: Two = Two { unread: &[] };

fn routed(endpoint: &str, question: &Value) -> Result<Route, ErrorBody> {
    route(endpoint, question.to_string().as_bytes(), &READ)
}

#[test]
fn counts_are_answered_here_and_a_hubs_own_knowledge_there() {
    let site = json!({"site": "n1"});
    // endpoint, question, hub
    let table = [
        ("hubs", json!({}), None),
        ("fleet", json!({}), None),
        ("labels", json!({}), None),
        ("groups", json!({"label": "ring"}), None),
        ("group", json!({"label": "ring", "value": "a"}), None),
        ("deployment", json!({"id": "web"}), None),
        ("deployments", json!({}), None),
        ("deployments", site.clone(), Some("north")),
        ("site", site.clone(), None),
        ("device", json!({"site": "n1", "device": "press-1"}), Some("north")),
        ("devices", site.clone(), Some("north")),
        ("devices", json!({"site": "s1", "freshness": ["stale"]}), Some("south")),
        ("digests", site, Some("north")),
        ("changes", json!({"site": ["n1", "n2"], "from": {"atSeq": 3}}), Some("north")),
    ];
    for (endpoint, question, hub) in table {
        let wanted = hub.map_or(Route::Here, |hub| Route::Hub(hub.parse().unwrap()));
        assert_eq!(routed(endpoint, &question), Ok(wanted), "{endpoint} {question}");
    }
}

#[test]
fn an_unanswerable_question_is_refused_with_an_alternative() {
    let (bad, none) = (ErrorCode::BadRequest, ErrorCode::NotFound);
    for (endpoint, question, code, says) in [
        ("device", json!({}), bad, "name a site"),
        ("status", json!({"site": ["n1", "nowhere"]}), none, "'nowhere'"),
        ("status", json!({"device": ["n1/a", "nowhere/a"]}), none, "'nowhere'"),
        ("status", json!({"site": ["n1"], "device": ["nowhere/a"]}), none, "'nowhere'"),
        ("status", json!({"limit": 0}), bad, "limit"),
        ("status", json!({"after": "n1"}), bad, "after"),
        ("status", json!({"generation": 3, "device": ["n1/a", "s1/a"]}), bad, "name one device"),
        ("status", json!({"app": vec!["a"; 101]}), bad, "app: 101 values"),
        ("why", json!({"id": "web", "site": "nowhere"}), none, "'nowhere'"),
        ("changes", json!({"from": {"atSeq": 3}}), bad, "name a site"),
        ("digests", json!({}), bad, "name a site"),
        ("verify", json!({}), bad, "a proof"),
        ("views", json!({}), bad, "ask the hub itself"),
        ("view", json!({"view": "rings"}), bad, "ask the hub itself"),
        ("devices", json!({"site": "nowhere"}), none, "'nowhere'"),
        ("device", json!({"site": "N1"}), bad, "N1"),
        ("fleet", json!([1]), bad, "question"),
    ] {
        let error = routed(endpoint, &question).unwrap_err();
        assert_eq!(error.code, code, "{endpoint} {question}: {}", error.message);
        assert!(error.message.contains(says), "{endpoint} {question}: {}", error.message);
        if error.message.contains("--nats-url") || code == none {
            assert!(error.message.contains("north, south"), "{}", error.message);
        }
    }
}

#[test]
fn a_reason_is_that_of_a_verdict_over_all_hubs_so_all_have_to_be_read() {
    let south = Some("south".parse().unwrap());
    for (question, hub) in [
        (json!({"id": "web"}), None),
        (json!({"id": "web", "site": "s1"}), south.clone()),
        (json!({"id": "web", "site": "s1", "device": "press-1"}), south),
    ] {
        assert_eq!(routed("why", &question), Ok(Route::Why(hub)), "{question}");
        let error = route("why", question.to_string().as_bytes(), &Two { unread: &["north"] }).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotReady, "{question}: {}", error.message);
    }
}

#[test]
fn the_past_is_refused_and_the_hubs_to_ask_are_named() {
    for point in [
        json!({"at": "2026-11-20T08:00:00Z"}),
        json!({"eventTime": "2026-11-20T08:00:00Z"}),
        json!({"atSeq": 3}),
    ] {
        for (endpoint, question, ask) in [
            ("status", json!({}), "ask a hub itself"),
            ("status", json!({"site": ["n1"]}), "ask the hub north itself"),
            ("status", json!({"device": ["s1/a", "s1/b"]}), "ask the hub south itself"),
            ("status", json!({"site": ["n1", "s1"]}), "ask the hubs north, south one by one"),
            ("why", json!({"id": "web", "site": "s1"}), "ask the hub south itself"),
            ("deployment", json!({"id": "web"}), "ask a hub itself"),
            ("deployments", json!({"site": "n1"}), "ask the hub north itself"),
            ("device", json!({"site": "n1", "device": "a"}), "ask the hub north itself"),
            ("devices", json!({"site": "nowhere"}), "ask a hub itself"),
            ("site", json!({"site": "s1"}), "ask the hub south itself"),
            ("moment", json!({"site": "s1"}), "ask the hub south itself"),
            ("digests", json!({}), "ask a hub itself"),
            ("fleet", json!({}), "ask a hub itself"),
            ("labels", json!({}), "ask a hub itself"),
            ("groups", json!({"label": "ring"}), "ask a hub itself"),
            ("group", json!({"label": "ring", "value": "a"}), "ask a hub itself"),
        ] {
            let mut question = question.clone();
            question.as_object_mut().unwrap().extend(point.as_object().unwrap().clone());
            is_refused_as_past(endpoint, &question, ask);
        }
        is_refused_as_past("diff", &json!({"id": "web", "from": point}), "ask a hub itself");
        is_refused_as_past(
            "diff",
            &json!({"id": "web", "site": "n1", "from": point}),
            "ask the hub north itself",
        );
    }
    is_refused_as_past("moment", &json!({}), "ask a hub itself");
}

fn is_refused_as_past(endpoint: &str, question: &Value, ask: &str) {
    let error = routed(endpoint, question).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadRequest, "{endpoint} {question}");
    let says = |words: &str| error.message.contains(words);
    assert!(says("the past") && says(ask) && says("--nats-url"), "{endpoint} {question}: {}", error.message);
    assert!(says("of the hubs north, south"), "{endpoint} {question}: {}", error.message);
}

/// The query for each hub.
fn hub_queries(question: &Value) -> Vec<(String, Value)> {
    let Route::Added(scatter) = routed("status", question).unwrap() else {
        panic!("{question} is not added")
    };
    let share = |share: &crate::scatter::HubQuery| {
        (share.hub.to_string(), serde_json::to_value(&share.query).unwrap())
    };
    scatter.hub_queries.iter().map(share).collect()
}

#[test]
fn each_hub_is_asked_for_its_own_and_only_hubs_that_are_concerned() {
    let named = json!({"id": "web", "app": ["a", "b"], "output": "all", "limit": 3, "after": "n1/a/web"});
    let with = |more: Value| {
        let mut question = named.clone();
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        question
    };
    let alone = |device: &str| json!({"output": "summary", "device": [device]});
    // The fields beside the rest; the query for north and the one for south.
    let table = [
        (json!({}), Some(with(json!({}))), Some(with(json!({})))),
        (json!({"site": ["n2", "n1"]}), Some(with(json!({"site": ["n2", "n1"]}))), None),
        (
            json!({"site": ["n1", "s1"]}),
            Some(with(json!({"site": ["n1"]}))),
            Some(with(json!({"site": ["s1"]}))),
        ),
        (json!({"device": ["s1/a", "s1/b"]}), None, Some(with(json!({"device": ["s1/a", "s1/b"]})))),
        (
            json!({"device": ["s1/a", "n2/a"]}),
            Some(with(json!({"device": ["n2/a"]}))),
            Some(with(json!({"device": ["s1/a"]}))),
        ),
        // Nothing at south passes; whether it knows the device is asked all the same.
        (
            json!({"site": ["n1"], "device": ["n1/a", "s1/a"]}),
            Some(with(json!({"site": ["n1"], "device": ["n1/a"]}))),
            Some(alone("s1/a")),
        ),
        (json!({"site": ["n1"], "device": ["s1/a"]}), None, Some(alone("s1/a"))),
    ];
    for (more, north, south) in table {
        let wanted = [("north", north), ("south", south)].into_iter();
        let wanted: Vec<_> = wanted.filter_map(|(hub, asked)| Some((hub.to_owned(), asked?))).collect();
        assert_eq!(hub_queries(&with(more.clone())), wanted, "{more}");
    }
}

#[test]
fn lines_and_filtered_counts_are_answered_once_all_hubs_are_read() {
    for (endpoint, question) in [
        ("status", json!({})),
        ("status", json!({"id": "web", "app": ["com.example.web"], "component": ["main"]})),
        ("devices", json!({})),
        ("devices", json!({"freshness": ["stale", "never"], "after": "n1/press-1"})),
    ] {
        match routed(endpoint, &question).unwrap() {
            Route::Every => assert_ne!(endpoint, "status", "{question}"),
            Route::Added(_) => assert_eq!(endpoint, "status", "{question}"),
            other => panic!("{endpoint} {question}: {other:?}"),
        }
        let places = Two { unread: &["south"] };
        let error = route(endpoint, question.to_string().as_bytes(), &places).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotReady, "{question}: a sum of some of the hubs is none");
    }
    for of_one in [json!({"site": ["n1"]}), json!({"id": "web", "site": ["n1"]})] {
        let routed = route("status", of_one.to_string().as_bytes(), &Two { unread: &["south"] });
        assert!(routed.is_ok(), "the verdict is of the site: {routed:?}");
    }
}

#[test]
fn before_all_hubs_are_read_only_known_content_is_answered() {
    let places = Two { unread: &["south"] };
    for (endpoint, question) in
        [("fleet", json!({})), ("deployments", json!({})), ("devices", json!({"site": "elsewhere"}))]
    {
        let error = route(endpoint, question.to_string().as_bytes(), &places).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotReady, "{endpoint}");
        assert!(error.message.contains("south") && !error.message.contains("north"), "{}", error.message);
    }
    assert_eq!(route("hubs", b"", &places), Ok(Route::Here));
    let north = Ok(Route::Hub("north".parse().unwrap()));
    assert_eq!(route("devices", br#"{"site":"n1"}"#, &places), north);
}

#[test]
fn an_unknown_key_is_refused_on_every_endpoint() {
    for endpoint in [HUBS].iter().chain(&TOGETHER).chain(&EITHER).chain(&APART) {
        let refusal = routed(endpoint, &json!({"limitt": 3})).unwrap_err();
        assert_eq!(refusal.message, "limitt: unknown key; did you mean limit?", "{endpoint}");
    }
}
