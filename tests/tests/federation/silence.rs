//! Tests the answers while a hub is not heard, or was never read.

use muster_contract::parts::HUBS_KEY;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::{Federation, Hub, NORTH, Place, SHORT, SOUTH, Two};

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_gone_counts_as_silent_until_it_is_back() {
    let Two { north, mut south, top, federation } = Two::start(SHORT).await;
    let look = || async { top.digests().await };
    let all = look().await;
    let before = top.view("deployment.web").await;
    assert_eq!(before["verdict"], "converged", "{before}");
    assert_eq!(
        before["converged"],
        json!({"lo": NORTH.len() + SOUTH.len(), "hi": NORTH.len() + SOUTH.len()})
    );

    south.place.server.kill();
    let silent =
        |view: &Value| view["counts"]["installed"] == json!({"fresh": NORTH.len(), "stale": SOUTH.len()});
    let gone = until("a silent hub", || top.view("deployment.web"), silent).await;
    assert_eq!(gone["converged"], json!({"lo": NORTH.len(), "hi": NORTH.len() + SOUTH.len()}));
    assert_eq!(gone["verdict"], "incomplete");
    let fleet = |view: &Value| view["devices"] == json!({"fresh": NORTH.len(), "stale": SOUTH.len()});
    until("a fleet of which a part is stale", || top.view("fleet"), fleet).await;
    until(
        "a site that is stale",
        || top.view("site.site-1"),
        |view| view["devices"] == json!({"stale": SOUTH.len()}),
    )
    .await;
    until("the hub told of", || top.view(HUBS_KEY), |view| view["hubs"][1]["heard"] == json!(false)).await;
    let other = || async { top.digests().await["site.site-0"] };
    until("the other hub's site as it was", other, |site| *site == all["site.site-0"]).await;
    // Questions that only that hub can answer fail; those of the other hub succeed.
    let answer = top.ask("devices", json!({"site": "site-1"})).await;
    assert_eq!(answer["error"]["code"], "notReady");
    assert!(answer["error"]["message"].as_str().unwrap().contains("hub south"), "{answer}");
    assert_eq!(
        top.ask("devices", json!({"site": "site-0"})).await["devices"].as_array().unwrap().len(),
        NORTH.len()
    );

    south.place.server.restart();
    until("everything as before", look, |views| *views == all).await;
    federation.drain().await;
    drop(north);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_before_every_hub_was_read() {
    let (north, mut south, top) = (Hub::start(NORTH).await, Hub::start(SOUTH).await, Place::start().await);
    south.place.server.kill();
    let federation = Federation::start(&top, &[("north", &north), ("south", &south)], SHORT).await;
    let missing = || async { federation.supervisor.health().missing() };
    until("a desk", missing, |missing| *missing == ["every hub, read once"]).await;
    let asked = || async { top.ask("fleet", json!({})).await["error"]["message"].clone() };
    let unread = |names: &Value| {
        names.as_str().is_some_and(|names| names.contains("south") && !names.contains("north"))
    };
    until("one hub to be read", asked, unread).await;
    assert_eq!(missing().await, ["every hub, read once"]);
    // Within the lease not even that is written.
    assert!(top.views().await.keys().all(|key| key == HUBS_KEY), "no sum");
    let hubs = top.ask("hubs", json!({})).await;
    assert_eq!((&hubs["hubs"][0]["heard"], &hubs["hubs"][1]["heard"]), (&json!(true), &json!(false)));

    south.place.server.restart();
    federation.ready().await;
    let whole = json!({"fresh": NORTH.len() + SOUTH.len()});
    until("the fleet", || top.view("fleet"), |view| view["devices"] == whole).await;
    federation.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_processs_views_expire_if_a_hub_is_not_read_in_its_lease() {
    let Two { north, mut south, top, federation } = Two::start(SHORT).await;
    let all = top.digests().await;
    federation.supervisor.abandon().await;
    south.place.server.kill();

    let federation = Federation::start(&top, &[("north", &north), ("south", &south)], SHORT).await;
    let devices = (NORTH.len() + SOUTH.len()) as u64;
    let unknown = |view: &Value| {
        view["devices"] == json!({"stale": devices}) && view["complete"]["devices"] == json!(0)
    };
    until("a fleet of which nothing is known", || top.view("fleet"), unknown).await;
    let web = |view: &Value| {
        view["verdict"] == "incomplete" && view["converged"] == json!({"lo": 0, "hi": devices})
    };
    until("a deployment of which nothing is known", || top.view("deployment.web"), web).await;
    let hubs = top.view(HUBS_KEY).await;
    assert_eq!(hubs["hubs"][1]["heard"], json!(false), "{hubs}");

    south.place.server.restart();
    until("everything as before", || async { top.digests().await }, |views| *views == all).await;
    federation.drain().await;
}

/// The links of two federations differ: one hears a hub that the other does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_federation_that_hears_fewer_hubs_writes_nothing() {
    // Long enough for a slow machine to say in time who is heard.
    let lease = "15s";
    let Two { north, south, top, federation } = Two::start(lease).await;
    let all = top.digests().await;
    let nowhere = "nats://127.0.0.1:9";
    let words = format!("north={},south={nowhere}", north.place.server.hub_url());
    let deaf = Federation::with(&top, &words, lease).await;
    let told = || async { deaf.handle.metrics.stood_back.get() };
    until("the deaf one to stand back", told, |count| *count >= 2).await;
    assert_eq!(top.digests().await, all);
    assert_eq!(top.view(HUBS_KEY).await["hubs"][1]["heard"], json!(true));
    deaf.supervisor.abandon().await;
    federation.drain().await;
    drop(south);
}
