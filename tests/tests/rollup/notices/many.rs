//! Tests as many subscriptions as allowed, and as many standings as one may visit (EMCO's row `n09`).

use std::ops::Range;

use futures_util::{StreamExt, stream};
use muster_contract::notify::{EndReason, NoticeEvent, SUBSCRIPTIONS_MAX};
use muster_contract::status::LOOKED_AT_MAX;
use muster_notify::metrics::NoticeResult;
use muster_tests::wait::until;
use serde_json::{Value, json};

use super::rows::{Stage, of};
use super::{Listener, ask, refusal, subscribed};
use crate::Hub;
use crate::ledger::Device;

/// Requests at once.
const AT_ONCE: usize = 16;
/// Every result that a look can have.
const RESULTS: [NoticeResult; 4] =
    [NoticeResult::Published, NoticeResult::Unchanged, NoticeResult::Overtaken, NoticeResult::Failed];
/// Deployments of one device, in the test that needs very many.
const DEPLOYMENTS: usize = 125;

impl Stage {
    /// How many looks had which result.
    fn results(&self) -> [u64; 4] {
        RESULTS.map(|result| self.rollup.handle.notices.notices_with(result))
    }

    /// Waits until this process knows of so many subscriptions.
    async fn knows(&self, count: i64) {
        let known = || async { self.rollup.handle.notices.subscriptions.get() };
        until("as many subscriptions", known, |known| *known == count).await;
    }

    /// Waits until so many notices were told.
    async fn told(&self, count: u64) {
        let told = || async { self.rollup.handle.notices.notices_with(NoticeResult::Published) };
        until("as many notices", told, |told| *told >= count).await;
    }
}

fn web(number: usize) -> Value {
    of(&format!("web-{number}"), json!({"id": "web"}))
}

async fn ask_all(hub: &Hub, verb: &str, numbers: Range<usize>) {
    let asked =
        stream::iter(numbers).map(|number| async move { ask(hub, verb, &web_or_name(verb, number)).await });
    let answers: Vec<Value> = asked.buffer_unordered(AT_ONCE).collect().await;
    let refused = answers.iter().find(|answer| answer["error"].is_object());
    assert!(refused.is_none(), "{verb}: {refused:?}");
}

fn web_or_name(verb: &str, number: usize) -> Value {
    if verb == "subscribe" { web(number) } else { json!({"name": web(number)["name"]}) }
}

#[tokio::test(flavor = "multi_thread")]
async fn n09_the_most_subscriptions_cost_nothing_while_nothing_changes() {
    let mut stage = Stage::start().await;
    let all = SUBSCRIPTIONS_MAX as u64;
    let other = Listener::start(&stage.hub, &of("db", json!({"id": "db"}))).await;
    ask_all(&stage.hub, "subscribe", 1..SUBSCRIPTIONS_MAX).await;
    stage.knows(SUBSCRIPTIONS_MAX as i64).await;
    stage.told(all).await;

    // One too many is refused, existing ones are not.
    let (code, words) = refusal(&stage.hub, "subscribe", &web(SUBSCRIPTIONS_MAX)).await;
    assert!(code == "conflict" && words.contains(&format!("there are {SUBSCRIPTIONS_MAX}")), "{words}");
    assert!(words.contains("muster subscription list"), "it says what to do: {words}");
    assert!(subscribed(&stage.hub, &web(1)).await.resumed);
    let before = stage.results();

    // A change elsewhere: nobody but whom it concerns is even looked at.
    stage.report(0, "db", "failed").await;
    other.number(2).await;
    let [told, unchanged, overtaken, failed] = before;
    assert_eq!(stage.results(), [told + 1, unchanged, overtaken, failed]);

    // One change here: each subscription gets one notice.
    stage.report(0, "web", "failed").await;
    stage.told(told + all).await;
    assert_eq!(stage.results(), [told + all, unchanged, overtaken, failed]);

    ask_all(&stage.hub, "unsubscribe", 1..SUBSCRIPTIONS_MAX).await;
    stage.knows(1).await;
    stage.told(told + 2 * all - 1).await;
    let list = ask(&stage.hub, "list", &json!({})).await;
    assert_eq!(list["subscriptions"].as_array().map(Vec::len), Some(1), "{list}");
    let before = stage.results();
    stage.report(0, "web", "installed").await;
    stage.report(0, "db", "installed").await;
    other.number(3).await;
    assert_eq!(stage.results(), [before[0] + 1, before[1], before[2], before[3]], "nobody is left of them");
    assert!(!subscribed(&stage.hub, &web(SUBSCRIPTIONS_MAX)).await.resumed, "there is room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn n09_a_subscription_that_grows_too_wide_ends_with_its_reason() {
    let stage = Stage::start().await;
    let hub = &stage.hub;
    // Without a named device, every standing is visited.
    let about = json!({"app": ["com.example.web"]});
    let listener = Listener::start(hub, &of("app", about.clone())).await;
    listener.number(1).await;
    let names: Vec<String> = (0..DEPLOYMENTS).map(|number| format!("d{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in 0..=LOOKED_AT_MAX / DEPLOYMENTS {
        Device::new(&format!("plant7.d{number}")).wants(hub, &names).await;
    }
    let last = listener.told("its end", |notice| notice.event == NoticeEvent::Ended).await;
    assert_eq!(last.reason, Some(EndReason::TooWide));
    assert!(last.state.is_none() && last.message.unwrap().contains("name a deployment, sites or devices"));
    stage.knows(0).await;

    let (code, words) = refusal(hub, "subscribe", &of("again", about)).await;
    assert!(code == "badRequest" && words.contains("too many standings"), "{words}");
    let narrow = of("narrow", json!({"app": ["com.example.web"], "device": ["plant7/press-4"]}));
    let narrow = Listener::start(hub, &narrow).await;
    assert_eq!(narrow.number(1).await.state.unwrap().rollup.targets, 1, "what it advises works");
}
