//! Tests notices across restarts, crashes and beside a second rollup.

use std::time::Duration;

use muster_contract::decode::to_bytes;
use muster_contract::notify::{EndReason, Notice, NoticeEvent, SubscriptionRecord};
use muster_contract::view::Verdict;
use muster_notify::metrics::NoticeResult;
use muster_tests::wait::until;
use serde_json::json;

use super::{Listener, ask, subscribed};
use crate::ledger::Device;
use crate::{Hub, Rollup};

fn verdict(notice: &Notice) -> Option<Verdict> {
    notice.state.as_ref().and_then(|state| state.verdict)
}

async fn device(hub: &Hub) -> Device {
    let mut device = Device::new("plant7.press-4");
    device.wants(hub, &["web"]).await;
    device.is(hub, "fresh").await;
    device.reports(hub, "web", "installed").await;
    device
}

/// A rollup has looked at everybody once more and found that all was told.
async fn looked_and_found_nothing(rollup: &Rollup) {
    let looks = || async { rollup.handle.notices.notices_with(NoticeResult::Unchanged) };
    until("a look that finds nothing new", looks, |looks| *looks > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n10_subscriptions_and_what_was_told_survive_every_restart() {
    let hub = Hub::start().await;
    let mut device = device(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let first = Rollup::start(&hub, dir.path()).await;
    first.ready().await;
    let about = json!({"name": "night-shift", "id": "web", "windowMs": 200});
    let listener = Listener::start(&hub, &about).await;
    assert_eq!(verdict(&listener.number(1).await), Some(Verdict::Converged));
    ask(&hub, "confirm", &json!({"name": "night-shift", "number": 1})).await;
    first.crash().await;

    let second = Rollup::start(&hub, dir.path()).await;
    second.ready().await;
    looked_and_found_nothing(&second).await;
    assert_eq!(
        listener.newest().await.unwrap().number,
        1,
        "what was told before the crash is not told again"
    );
    second.crash().await;

    // It changes back and forth while nobody looks: only the end of it counts.
    for state in ["installing", "failed", "installing", "installed"] {
        device.reports(&hub, "web", state).await;
    }
    let third = Rollup::start(&hub, dir.path()).await;
    third.ready().await;
    looked_and_found_nothing(&third).await;
    assert_eq!(listener.newest().await.unwrap().number, 1);
    third.crash().await;

    device.reports(&hub, "web", "failed").await;
    let fourth = Rollup::start(&hub, dir.path()).await;
    fourth.ready().await;
    let told = listener.number(2).await;
    assert_eq!((told.number, told.event, verdict(&told)), (2, NoticeEvent::Changed, Some(Verdict::Failing)));

    // The subscriber was away as well, and knows nothing but its name.
    let again = subscribed(&hub, &about).await;
    assert_eq!((again.resumed, again.seen, again.told), (true, 1, 2), "2 is still to be shown, 1 is not");
    ask(&hub, "confirm", &json!({"name": "night-shift", "number": 2})).await;
    let again = subscribed(&hub, &about).await;
    assert_eq!((again.seen, again.told), (2, 2), "nothing is to be shown again");
    fourth.drain().await;
    let numbers: Vec<_> = listener.all().iter().map(|notice| notice.number).collect();
    assert_eq!(numbers, [1, 2], "two notices were told over four lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn n09_a_dead_subscriber_gives_its_place_back_after_its_last_lease() {
    let hub = Hub::start().await;
    let _device = device(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let first = json!({"name": "night-shift", "id": "web"});
    subscribed(&hub, &first).await;
    let line = ask(&hub, "list", &json!({})).await["subscriptions"][0].clone();
    assert_eq!(line["subscription"]["leaseSeconds"], 3600, "an hour if it names none: {line}");
    // A shorter lease counts in place of the one before.
    let listener =
        Listener::start(&hub, &json!({"name": "night-shift", "id": "web", "leaseSeconds": 5})).await;
    let end = listener.told("the end of its lease", |notice| notice.event == NoticeEvent::Ended).await;
    assert_eq!(end.reason, Some(EndReason::Expired));
    let left = async || ask(&hub, "list", &json!({})).await["subscriptions"].as_array().unwrap().len();
    until("its place is free", left, |left| *left == 0).await;
    let anew = subscribed(&hub, &json!({"name": "night-shift"})).await;
    assert!(!anew.resumed, "also for other filters: {anew:?}");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_rollups_one_tells_each_change() {
    let hub = Hub::start().await;
    let mut device = device(&hub).await;
    let (one_dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = Rollup::start(&hub, one_dir.path()).await;
    let other = Rollup::start(&hub, other_dir.path()).await;
    one.ready().await;
    other.ready().await;
    let about = json!({"name": "web", "id": "web", "windowMs": 200});
    let listener = Listener::start(&hub, &about).await;
    listener.number(1).await;
    for (number, state) in (2..).zip(["failed", "installing", "installed", "failed", "installed"]) {
        device.reports(&hub, "web", state).await;
        listener.number(number).await;
    }
    one.crash().await;
    device.reports(&hub, "web", "failed").await;
    let last = listener.told("the other tells", |notice| verdict(notice) == Some(Verdict::Failing)).await;
    other.drain().await;
    let digests: Vec<_> = listener.all().iter().map(|notice| notice.digest).collect();
    assert!(digests.windows(2).all(|pair| pair[0] != pair[1]), "no notice comes twice");
    assert_eq!(digests.len() as u64, last.number);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_recreated_before_its_end_was_published_gets_the_present() {
    let hub = Hub::start().await;
    device(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let first = Rollup::start(&hub, dir.path()).await;
    first.ready().await;
    let about = json!({"name": "night-shift", "id": "web", "windowMs": 200});
    let listener = Listener::start(&hub, &about).await;
    let told = listener.number(1).await;
    first.crash().await;

    // Another rollup's handler stores the end and the new beginning; both rollups die before publishing either.
    let name = &listener.name;
    let revision = hub.bus.subscription_last(name).await.unwrap().unwrap().revision;
    let revision = hub.bus.subscription_end(name, revision).await.unwrap();
    let record = SubscriptionRecord {
        api_version: Default::default(),
        kind: Default::default(),
        subscription: serde_json::from_value(about).unwrap(),
        seen: 1,
        seen_seq: 0,
        seen_at: Vec::new(),
        began: 1,
        owner: None,
        webhook: None,
    };
    let lease = Duration::from_secs(60);
    hub.bus.subscription_put(name, to_bytes(&record).into(), lease, revision).await.unwrap();
    let second = Rollup::start(&hub, dir.path()).await;
    second.ready().await;
    let anew = listener.number(2).await;
    assert_eq!((anew.event, anew.digest, anew.since), (NoticeEvent::Present, told.digest, None));
    second.drain().await;
}
