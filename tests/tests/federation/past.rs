//! Tests the past at the top: that of one hub with all facts, at the same time.
//! `services/federation/tests/lines` tests it for any fleet and any time.

use muster_contract::Timestamp;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::lines::{said, without_sequences};
use crate::why::shown;
use crate::{Hub, LONG, NORTH, Place, SOUTH, Two, failure};

/// An answer as one hub gives it, without places in LEDGERs.
fn as_of_one(answer: Value) -> Value {
    match without_sequences(answer) {
        Value::Object(fields) => {
            let told = fields
                .into_iter()
                .filter(|(name, _)| !["hub", "hubs", "knownThen", "facts"].contains(&name.as_str()));
            told.map(|(name, field)| (name, as_of_one(field))).collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(items) => items.into_iter().map(as_of_one).collect(),
        value => value,
    }
}

/// An answer about the past, once it is rebuilt.
async fn asked(place: &Place, what: &str, question: &Value) -> Value {
    let ask = || place.ask(what, question.clone());
    until("a rebuilt past", ask, |answer| answer["error"]["code"] != "notReady").await
}

/// A deployment at two hubs and at one with the facts of both: well at a time, and failed on three devices since.
async fn failed_since() -> (Two, Hub, Timestamp) {
    let two = Two::start(LONG).await;
    let whole = Hub::start(NORTH.chain(SOUTH)).await;
    let then = Timestamp::now();
    for device in [NORTH.end - 1, SOUTH.start, SOUTH.start + 3] {
        let at = if NORTH.contains(&device) { &two.north } else { &two.south };
        at.put([failure(device)]).await;
        whole.put([failure(device)]).await;
    }
    let look = || async { (two.top.view("deployment.web").await, whole.place.view("deployment.web").await) };
    until("the failures", look, |(seen, wanted)| {
        seen["errors"][0]["count"] == json!(3) && seen["digest"] == wanted["digest"]
    })
    .await;
    (two, whole, then)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_of_two_hubs_is_that_of_one_hub_with_all_facts() {
    let (Two { north, mut south, top, federation }, whole, then) = failed_since().await;
    let of = |mut question: Value, point: Value| {
        question.as_object_mut().unwrap().extend(point.as_object().unwrap().clone());
        question
    };
    let web = json!({"id": "web"});
    for point in [json!({"at": then}), json!({"about": then}), json!({"at": Timestamp::now(), "about": then})]
    {
        for (what, question) in [
            ("fleet", json!({})),
            ("deployments", json!({})),
            ("deployment", web.clone()),
            ("deployment", json!({"id": "web", "output": "all", "limit": 7})),
            ("devices", json!({"limit": 13})),
            ("status", json!({"id": "web", "output": "all", "limit": 8})),
            (
                "status",
                json!({"id": "web", "site": ["site-0", "site-1"], "component": ["main"], "output": "all"}),
            ),
            ("status", json!({})),
            ("why", web.clone()),
            ("labels", json!({})),
            ("groups", json!({"label": "ring", "id": "web"})),
            ("group", json!({"label": "ring", "value": "inner"})),
            ("moment", json!({})),
        ] {
            let question = of(question, point.clone());
            let [seen, wanted] =
                [asked(&top, what, &question).await, asked(&whole.place, what, &question).await];
            assert_eq!(as_of_one(seen), as_of_one(wanted), "{what} {question}");
        }
    }
    let was = asked(&top, "deployment", &of(web.clone(), json!({"at": then}))).await;
    assert_eq!(was["view"]["verdict"], "converged");
    assert_eq!(top.ask("deployment", web.clone()).await["view"]["verdict"], "failing");
    for to in [json!({}), json!({"at": Timestamp::now()})] {
        let question = json!({"id": "web", "from": {"at": then}, "to": to, "limit": 2});
        let [seen, wanted] =
            [asked(&top, "diff", &question).await, asked(&whole.place, "diff", &question).await];
        let facts = |answer: &Value| {
            let devices = answer["devices"].as_array().unwrap().iter();
            devices.map(|change| change["facts"][0]["says"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((facts(&seen), seen["changed"].as_u64()), (facts(&wanted), Some(3)), "{seen}");
        assert_eq!(as_of_one(seen), as_of_one(wanted), "{question}");
    }

    for (what, question) in [
        ("fleet", json!({"atSeq": 20})),
        ("why", json!({"id": "web", "atSeq": 20})),
        ("diff", json!({"id": "web", "from": {"atSeq": 20}})),
    ] {
        let error = top.ask(what, question.clone()).await["error"].clone();
        assert_eq!(error["code"], "badRequest", "{what}: {error}");
        assert!(error["message"].as_str().unwrap().contains("name a time"), "{what}: {error}");
    }
    south.place.server.kill();
    for what in ["fleet", "deployment", "status", "why", "moment"] {
        let question = if what == "fleet" { json!({}) } else { web.clone() };
        let error = top.ask(what, of(question, json!({"at": then}))).await["error"].clone();
        assert_eq!(error["code"], "notReady", "{what}: {error}");
        assert!(error["message"].as_str().unwrap().contains("hub south"), "{what}: {error}");
    }
    federation.drain().await;
    drop(north);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_the_past_of_two_hubs_as_that_of_one() {
    let (Two { north, south, top, federation }, whole, then) = failed_since().await;
    let then = then.to_string();
    for words in [
        vec!["status", "--at", &then],
        vec!["status", "web", "--at", &then],
        vec!["status", "web", "--output", "all", "--at", &then],
        vec!["status", "web", "--about", &then],
        vec!["status", "--group-by", "ring", "--at", &then],
        vec!["status", "--component", "main", "--output", "all", "--limit", "5", "--at", &then],
        vec!["diff", "web", "--from", &then],
        vec!["devices", "--freshness", "fresh", "--at", &then],
        vec!["devices", "--site", "site-1", "--at", &then],
        vec!["site", "site-0", "--at", &then],
        vec!["fleet", "--about", &then],
        vec!["why", "web", "--at", &then],
        vec!["why", "web", "--site", "site-1", "--at", &then],
    ] {
        let [seen, wanted] = [said(&top, &words).await, said(&whole.place, &words).await];
        assert_eq!(as_of_one(seen), as_of_one(wanted), "{words:?}");
    }
    let text = shown(&top, &["status", "web", "--at", &then]).await;
    assert!(text.contains("As known with ledger ") && text.contains(" at south"), "{text}");
    let text = shown(&top, &["diff", "web", "--from", &then]).await;
    assert!(text.contains(" at north, ledger ") && text.contains("is failed: E1"), "{text}");
    federation.drain().await;
    drop((north, south));
}
