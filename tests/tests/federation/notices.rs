//! Tests that a federation sends the notices that one hub with all sites would send, lists missed changes, and names a hub that
//! is not heard.

use std::collections::BTreeSet;

use muster_contract::changes::Change;
use muster_contract::notify::{MissedAnswer, Notice, NoticeEvent, NoticeStatus, TellOn};
use muster_contract::view::Verdict;
use muster_contract::{SubscriptionName, decode};
use muster_tests::command::muster;
use muster_tests::example::Example;
use muster_tests::system::program;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::{Hub, LONG, NORTH, PATIENCE, Place, SHORT, SOUTH, Two, failure};

impl Place {
    async fn notify(&self, verb: &str, request: &Value) -> Value {
        let subject = format!("muster.notify.{verb}");
        let answer = self.bus.request(&subject, request.to_string().into(), PATIENCE).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    async fn subscribe(&self, subscription: &Value) {
        let answer = self.notify("subscribe", subscription).await;
        assert!(answer["error"].is_null(), "{subscription}: {answer}");
    }

    async fn newest(&self, name: &str) -> Option<Notice> {
        let name: SubscriptionName = name.parse().unwrap();
        let entry = self.bus.notice_last(&name).await.unwrap()?;
        Some(decode::parse(&entry.value.ok()?).unwrap())
    }

    async fn told(&self, name: &str, what: &str, holds: impl Fn(&Notice) -> bool) -> Notice {
        let is = |notice: &Option<Notice>| notice.as_ref().is_some_and(&holds);
        until(what, || self.newest(name), is).await.unwrap()
    }

    /// Everything that a subscriber has missed up to a notice, as pages of two changes give it.
    async fn missed(&self, notice: &Notice) -> Vec<Change> {
        let mut request =
            json!({"name": notice.name, "to": notice.as_of.ledger_seq, "hubs": notice.hubs, "limit": 2});
        let mut changes = Vec::new();
        loop {
            let is_there = |answer: &Value| answer["error"]["code"] != "notReady";
            let answer = until("missed changes", || self.notify("missed", &request), is_there).await;
            let page: MissedAnswer =
                serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer}"));
            assert!(page.gone.is_empty(), "{page:?}");
            changes.extend(page.changes);
            match page.next {
                Some(next) => request["next"] = json!(next),
                None => return changes,
            }
        }
    }
}

fn verdict(notice: &Notice) -> Option<Verdict> {
    notice.state.as_ref().and_then(|state| state.verdict)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_at_the_top_is_told_as_by_one_hub_with_all_sites() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let whole = Hub::start(NORTH.chain(SOUTH)).await;
    for (name, about) in [
        ("deployment", json!({"id": "web"})),
        ("lines", json!({"id": "web", "output": "all"})),
        ("site", json!({"id": "web", "site": ["site-1"], "output": "all"})),
        ("sites", json!({"site": ["site-0", "site-1"], "status": "deployed"})),
        ("device", json!({"device": ["site-0/device-3"], "output": "all"})),
        ("fleet", json!({})),
    ] {
        let mut about = about;
        (about["name"], about["windowMs"]) = (json!(name), json!(200));
        top.subscribe(&about).await;
        whole.place.subscribe(&about).await;
        let wanted = whole.place.told(name, "the notice of one hub", |_| true).await;
        let wanted = wanted.state.unwrap().digest(TellOn::Change);
        let same = |notice: &Notice| {
            notice.state.as_ref().is_some_and(|state| state.digest(TellOn::Change) == wanted)
        };
        top.told(name, &format!("the same of {name} at the top"), same).await;
    }
    for (wrong, code) in [
        (json!({"name": "a", "id": "wbe"}), "notFound"),
        (json!({"name": "a", "site": ["site-9"]}), "notFound"),
        (json!({"name": "a", "sitee": ["site-1"]}), "badRequest"),
    ] {
        let answer = top.notify("subscribe", &wrong).await;
        assert_eq!(answer["error"]["code"], code, "{wrong}: {answer}");
    }
    let watched =
        muster(&top.server.url(), &["watch", "web", "--until", "converged", "--within", "60s"]).await;
    assert_eq!(watched.code, 0, "{}{}", watched.out, watched.err);
    everything_is_watched_and_a_named_watch_resumes(&top, &north).await;
    let line = top.notify("list", &json!({"limit": 1})).await;
    assert_eq!(line["subscriptions"][0]["subscription"]["leaseSeconds"], 3600, "{line}");
    let gone = top.notify("unsubscribe", &json!({"name": "fleet"})).await;
    assert!(gone["error"].is_null(), "{gone}");
    top.told("fleet", "its end", |notice| notice.event == NoticeEvent::Ended).await;
    federation.drain().await;
    drop((north, south));
}

async fn everything_is_watched_and_a_named_watch_resumes(top: &Place, north: &Hub) {
    let url = top.server.url();
    let mut command = tokio::process::Command::new(program("muster"));
    command.args(["--nats-url", &url, "watch", "--format", "json"]);
    let mut all = Example::run("a watch of everything at the top", command);
    let shows = async |all: &mut Example, wanted: &str| {
        loop {
            let view: Value = serde_json::from_str(&all.line().await).unwrap();
            if view["deployment"] == "web" && view["verdict"] == wanted {
                return;
            }
        }
    };
    shows(&mut all, "converged").await;
    let named = ["watch", "web", "--name", "top-shift", "--format", "json", "--within", "60s", "--until"];
    let first = muster(&url, &[&named[..], &["converged"]].concat()).await;
    assert_eq!(first.code, 0, "{}{}", first.out, first.err);
    north.put([failure(0)]).await;
    top.told("top-shift", "a failure", |notice| verdict(notice) == Some(Verdict::Failing)).await;
    shows(&mut all, "failing").await;
    let again = muster(&url, &[&named[..], &["failing"]].concat()).await;
    let lines = again.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let missed = lines.flat_map(|line| line["missed"]["changes"].as_array().cloned().unwrap_or_default());
    let devices: Vec<Value> = missed.map(|change| change["device"].clone()).collect();
    assert_eq!(devices, ["device-0"], "once: {}{}", again.out, again.err);
    all.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n10_a_subscriber_at_the_top_gets_what_it_missed_of_every_hub_once() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    top.subscribe(&json!({"name": "night-shift", "id": "web", "windowMs": 200})).await;
    let present = top.told("night-shift", "the present", |_| true).await;
    assert_eq!((present.since, verdict(&present)), (None, Some(Verdict::Converged)));
    let hubs: Vec<_> = present.hubs.iter().map(|hub| hub.name.as_str()).collect();
    assert_eq!(hubs, ["north", "south"], "with the position of each");
    let confirmed = top.notify("confirm", &json!({"name": "night-shift", "number": present.number})).await;
    assert!(confirmed["error"].is_null(), "{confirmed}");
    assert_eq!(top.missed(&present).await, []);

    let (of_north, of_south) = ([0, 1], [SOUTH.start, SOUTH.start + 3]);
    north.put(of_north.map(failure)).await;
    let first =
        top.told("night-shift", "a failure", |notice| verdict(notice) == Some(Verdict::Failing)).await;
    assert!(!first.changes.is_empty() && first.since == Some(present.as_of.ledger_seq), "{first:?}");
    south.put(of_south.map(failure)).await;
    let failed = |notice: &Notice| {
        let position = |hub: &str| notice.hubs.iter().find(|it| it.name.as_str() == hub).unwrap().ledger_seq;
        // The sums may say it a moment later than the hubs.
        let view = notice.state.as_ref().and_then(|state| state.view.as_ref());
        let is_summed =
            view.is_some_and(|view| view.errors.iter().map(|error| error.count).sum::<u64>() == 4);
        is_summed
            && position("south") >= present.hubs[1].ledger_seq + 2
            && position("north") >= present.hubs[0].ledger_seq + 2
    };
    let last = top.told("night-shift", "failures of both hubs", failed).await;

    let missed = top.missed(&last).await;
    let places: Vec<String> = missed
        .iter()
        .map(|change| serde_json::to_value(change).unwrap()["device"].as_str().unwrap().to_owned())
        .collect();
    let wanted: BTreeSet<String> =
        of_north.iter().chain(&of_south).map(|device| format!("device-{device}")).collect();
    assert_eq!(places.len(), wanted.len(), "each once: {missed:?}");
    assert_eq!(places.into_iter().collect::<BTreeSet<_>>(), wanted);
    top.notify("confirm", &json!({"name": "night-shift", "number": last.number, "hubs": last.hubs})).await;
    let newest = top.newest("night-shift").await.unwrap();
    assert_eq!(top.missed(&newest).await, [], "what was confirmed is not missed");
    let refused = top.notify("missed", &json!({"name": "night-shift", "after": 3})).await;
    assert!(refused["error"]["message"].as_str().unwrap().starts_with("after:"), "{refused}");

    // A restart of the federation repeats nothing and knows where it was.
    federation.drain().await;
    let newest = top.newest("night-shift").await.unwrap();
    let again = crate::Federation::start(&top, &[("north", &north), ("south", &south)], LONG).await;
    again.ready().await;
    let nothing = json!({});
    let list = || top.notify("list", &nothing);
    until("the subscriptions", list, |list| list["subscriptions"][0]["told"] == json!(newest.number)).await;
    again.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_names_a_hub_that_is_not_heard_and_is_no_success() {
    let Two { north, mut south, top, federation } = Two::start(SHORT).await;
    top.subscribe(&json!({"name": "web", "id": "web", "windowMs": 200})).await;
    let status = |notice: &Notice| notice.state.as_ref().map(|state| state.status);
    let present = top.told("web", "the present", |_| true).await;
    assert_eq!(status(&present), Some(NoticeStatus::Ready));
    south.place.server.kill();
    let missing = |notice: &Notice| {
        notice
            .state
            .as_ref()
            .is_some_and(|state| state.missing_hubs.iter().any(|hub| hub.as_str() == "south"))
    };
    let gone = top.told("web", "a hub that is missing", missing).await;
    assert_eq!((status(&gone), verdict(&gone)), (Some(NoticeStatus::NotReady), Some(Verdict::Incomplete)));
    south.place.server.restart();
    top.told("web", "everything as before", |notice| status(notice) == Some(NoticeStatus::Ready)).await;
    federation.drain().await;
    drop(north);
}
