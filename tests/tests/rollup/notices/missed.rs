//! Tests that a returning subscriber gets every change that it missed, once and in order, or the range that is gone.

use muster_contract::changes::{Change, Changed};
use muster_contract::notify::MissedAnswer;
use muster_contract::view::Standing;
use muster_tests::streams::forget_up_to;
use muster_tests::wait::until;
use serde_json::{Value, json};

use super::{Listener, ask, refusal, subscribed};
use crate::ledger::Device;
use crate::{Hub, Rollup};

/// A page of missed changes, as soon as the point of the past is rebuilt.
async fn page(hub: &Hub, request: &Value) -> MissedAnswer {
    let is_there = |answer: &Value| answer["error"]["code"] != "notReady";
    let answer = until("missed changes", || ask(hub, "missed", request), is_there).await;
    serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// All pages, with so many changes on each.
async fn all_missed(hub: &Hub, request: Value, limit: usize) -> Vec<Change> {
    let (mut request, mut changes) = (request, Vec::new());
    request["limit"] = json!(limit);
    loop {
        let answer = page(hub, &request).await;
        assert!(answer.changes.len() <= limit && answer.gone.is_empty(), "{answer:?}");
        changes.extend(answer.changes);
        match answer.next {
            Some(next) => request["next"] = json!(next),
            None => return changes,
        }
    }
}

fn standings(changes: &[Change]) -> Vec<Standing> {
    let standing = |change: &Change| match &change.what {
        Changed::Standing { to, .. } => to.map(|stood| stood.standing),
        Changed::Verdict { .. } | Changed::Device { .. } => None,
    };
    changes.iter().filter_map(standing).collect()
}

async fn device(hub: &Hub, name: &str) -> Device {
    let mut device = Device::new(name);
    device.wants(hub, &["web"]).await;
    device.is(hub, "fresh").await;
    device.reports(hub, "web", "installed").await;
    device
}

#[tokio::test(flavor = "multi_thread")]
async fn n10_a_returning_subscriber_gets_every_missed_change_once_and_in_order() {
    let hub = Hub::start().await;
    let (mut here, mut there) = (device(&hub, "plant7.press-4").await, device(&hub, "plant9.oven-2").await);
    let dir = tempfile::tempdir().unwrap();
    let first = Rollup::start(&hub, dir.path()).await;
    first.ready().await;
    let about = json!({"name": "night-shift", "id": "web", "site": ["plant7"], "windowMs": 200});
    let listener = Listener::start(&hub, &about).await;
    listener.number(1).await;
    let confirmed = ask(&hub, "confirm", &json!({"name": "night-shift", "number": 1})).await;
    assert!(confirmed["seenSeq"].as_u64() > Some(0), "{confirmed}");
    assert_eq!(all_missed(&hub, json!({"name": "night-shift"}), 10).await, []);
    first.crash().await;

    // Nobody tells, and nobody listens.
    let states = ["failed", "installing", "installed", "installing", "failed"];
    for state in states {
        here.reports(&hub, "web", state).await;
        there.reports(&hub, "web", "installing").await;
    }
    let second = Rollup::start(&hub, dir.path()).await;
    second.ready().await;
    let newest = listener.number(2).await;
    assert_eq!(newest.number, 2, "one notice for all of it");
    for limit in [1, 2, 100] {
        let missed = all_missed(&hub, json!({"name": "night-shift"}), limit).await;
        let words: Vec<_> = standings(&missed).iter().map(|standing| standing.as_str()).collect();
        assert_eq!(words, states, "at the site of the filter, with pages of {limit}");
        assert!(missed.is_sorted_by_key(|change| change.ledger_seq));
    }
    // A subscriber with a position of its own.
    let to = newest.as_of.ledger_seq;
    let all = all_missed(&hub, json!({"name": "night-shift", "to": to}), 100).await;
    let after = all[1].ledger_seq;
    let rest = all_missed(&hub, json!({"name": "night-shift", "after": after, "to": to}), 100).await;
    assert_eq!(rest, all[2..]);
    let (code, words) = refusal(&hub, "missed", &json!({"name": "night-shift", "to": to + 1000})).await;
    assert!(code == "badRequest" && words.starts_with("to: LEDGER is read up to"), "{words}");

    // A confirmed change is not missed, also after a restart.
    ask(&hub, "confirm", &json!({"name": "night-shift", "number": 2})).await;
    assert_eq!(all_missed(&hub, json!({"name": "night-shift"}), 10).await, []);
    here.reports(&hub, "web", "installed").await;
    listener.number(3).await;
    let missed = all_missed(&hub, json!({"name": "night-shift"}), 10).await;
    assert_eq!(standings(&missed), [Standing::Installed]);
    second.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n10_a_whole_deployment_has_its_verdicts_among_the_missed_changes() {
    let hub = Hub::start().await;
    let mut here = device(&hub, "plant7.press-4").await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let whole = Listener::start(&hub, &json!({"name": "whole", "id": "web", "windowMs": 200})).await;
    let verdicts = json!({"name": "verdicts", "id": "web", "windowMs": 200, "on": "verdict"});
    let verdicts = Listener::start(&hub, &verdicts).await;
    whole.number(1).await;
    verdicts.number(1).await;
    for name in ["whole", "verdicts"] {
        ask(&hub, "confirm", &json!({"name": name, "number": 1})).await;
    }
    here.reports(&hub, "web", "failed").await;
    whole.number(2).await;
    verdicts.number(2).await;
    let kinds = |changes: &[Change]| -> Vec<&'static str> {
        let kind = |change: &Change| match change.what {
            Changed::Standing { .. } => "standing",
            Changed::Verdict { .. } => "verdict",
            Changed::Device { .. } => "device",
        };
        changes.iter().map(kind).collect()
    };
    let missed = all_missed(&hub, json!({"name": "whole"}), 10).await;
    assert_eq!(kinds(&missed), ["standing", "verdict"]);
    let missed = all_missed(&hub, json!({"name": "verdicts"}), 10).await;
    assert_eq!(kinds(&missed), ["verdict"], "if that is what it tells");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n10_the_range_that_ledger_has_forgotten_is_named() {
    let hub = Hub::start().await;
    let mut here = device(&hub, "plant7.press-4").await;
    let dir = tempfile::tempdir().unwrap();
    let first = Rollup::start(&hub, dir.path()).await;
    first.ready().await;
    let listener = Listener::start(&hub, &json!({"name": "web", "id": "web", "windowMs": 200})).await;
    listener.number(1).await;
    let confirmed = ask(&hub, "confirm", &json!({"name": "web", "number": 1})).await;
    let seen = confirmed["seenSeq"].as_u64().unwrap();
    here.reports(&hub, "web", "installing").await;
    here.reports(&hub, "web", "failed").await;
    let told = |notice: &muster_contract::notify::Notice| notice.as_of.ledger_seq >= seen + 2;
    listener.told("both changes", told).await;
    // The snapshot is a checkpoint from which the rest can be rebuilt.
    first.drain().await;
    let checkpoint = hub.bus.stream_state("LEDGER").await.unwrap().last_seq;
    here.reports(&hub, "web", "installed").await;
    forget_up_to(&hub.bus, checkpoint).await;
    let second = Rollup::start(&hub, dir.path()).await;
    second.ready().await;
    let newest = listener.told("the last change", |notice| notice.as_of.ledger_seq > checkpoint).await;

    let answer = page(&hub, &json!({"name": "web"})).await;
    let gone: Vec<_> = answer.gone.iter().map(|range| (range.from, range.to)).collect();
    let last = gone.first().unwrap_or_else(|| panic!("{answer:?}")).1;
    assert_eq!(gone, [(seen + 1, last)]);
    assert!(last <= checkpoint || answer.changes.is_empty(), "{answer:?}");
    assert!(answer.changes.iter().all(|change| change.ledger_seq > last), "{answer:?}");
    assert_eq!(answer.to, newest.as_of.ledger_seq);
    second.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_says_what_a_notice_would_and_stores_nothing() {
    let hub = Hub::start().await;
    let mut here = device(&hub, "plant7.press-4").await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let listener = Listener::start(&hub, &json!({"name": "web", "id": "web", "windowMs": 200})).await;
    let told = listener.number(1).await;
    let filter = json!({"name": "other", "id": "web"});
    let content = ask(&hub, "content", &json!({"subscription": filter})).await;
    assert_eq!(content["state"], serde_json::to_value(told.state).unwrap(), "{content}");
    here.reports(&hub, "web", "failed").await;
    let since = told.as_of.ledger_seq;
    let changed = json!({"subscription": filter, "since": since});
    let content = || ask(&hub, "content", &changed);
    let content = until("the change", content, |content| content["changes"].is_array()).await;
    assert_eq!(content["changes"][0]["to"]["standing"], "failed", "{content}");
    assert_eq!(ask(&hub, "list", &json!({})).await["subscriptions"].as_array().unwrap().len(), 1);
    let filter = json!({"name": "a", "filter": filter, "after": since, "to": content["asOf"]["ledgerSeq"]});
    assert_eq!(standings(&all_missed(&hub, filter, 10).await), [Standing::Failed], "without a subscription");
    let (code, _) = refusal(&hub, "missed", &json!({"name": "nobody"})).await;
    assert_eq!(code, "notFound");
    subscribed(&hub, &json!({"name": "web", "id": "web", "windowMs": 200})).await;
    rollup.drain().await;
}
