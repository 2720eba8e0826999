//! Tests that the rollup verifies its bucket: a foreign entry does not stay, and is an incident.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use muster_bus::Outgoing;
use muster_bus::topology::VIEWS_STREAM;
use muster_contract::incident::{ForeignView, IncidentKind};
use muster_contract::subjects::stream;
use muster_simulator::link::{Condition, Direction, Link};
use muster_tests::incidents::IncidentLog;
use muster_tests::wait::{until, within};
use serde_json::{Value, json};

use crate::ledger::small_fleet;
use crate::{Hub, Rollup};

/// Within which a foreign entry is gone.
const MENDED_WITHIN: Duration = Duration::from_secs(1);

async fn settled(hub: &Hub, dir: &std::path::Path) -> (Rollup, IncidentLog) {
    let incidents = IncidentLog::start(&hub.bus).await;
    small_fleet(hub).await;
    let rollup = Rollup::start(hub, dir).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;
    (rollup, incidents)
}

async fn value(hub: &Hub, key: &str) -> Option<Bytes> {
    hub.bus.view_get(key).await.unwrap().and_then(|entry| entry.value)
}

/// The digest under a key.
async fn digest(hub: &Hub, key: &str) -> Option<String> {
    let value = serde_json::from_slice::<Value>(&value(hub, key).await?).ok()?;
    value["digest"].as_str().map(str::to_owned)
}

async fn reported(incidents: &IncidentLog, key: &str, cause: ForeignView) {
    let wanted = (key.to_owned(), cause);
    until("the incident", || async { incidents.of_views() }, |seen| seen.contains(&wanted)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_is_rewritten_within_a_second_and_is_an_incident() {
    let (hub, dir) = (Hub::start().await, tempfile::tempdir().unwrap());
    let first = value(&hub, "fleet").await;
    assert_eq!(first, None);
    let (rollup, incidents) = settled(&hub, dir.path()).await;
    let right = digest(&hub, "fleet").await;
    let stale: Value = serde_json::from_slice(&value(&hub, "fleet").await.unwrap()).unwrap();
    let signed = |change: &dyn Fn(&mut Value)| {
        let mut value = stale.clone();
        change(&mut value);
        value["digest"] = muster_contract::view::content_digest(&value).to_string().into();
        Bytes::from(value.to_string())
    };
    let of_a_site = value(&hub, "site.plant7").await.unwrap();
    let mut wrong = stale.clone();
    wrong["targets"] = json!(4711);
    for (what, foreign, cause) in [
        ("an empty value", Bytes::new(), ForeignView::NoView),
        ("an answer of a service", Bytes::from(r#"{"error":{"code":"notFound"}}"#), ForeignView::NoView),
        ("the view of another key", of_a_site, ForeignView::NoView),
        ("another content", Bytes::from(wrong.to_string()), ForeignView::Damaged),
        (
            "a view of before",
            signed(&|value| (value["asOf"]["ledgerSeq"], value["targets"]) = (json!(1), json!(1))),
            ForeignView::Stale,
        ),
        (
            "a view of a time to come",
            signed(&|value| (value["asOf"]["ledgerSeq"], value["targets"]) = (json!(4_711_000), json!(1))),
            ForeignView::Unreached,
        ),
    ] {
        let before = incidents.of_views().len();
        hub.bus.view_put("fleet", foreign, None).await.unwrap();
        within(MENDED_WITHIN, what, || digest(&hub, "fleet"), |seen| *seen == right).await;
        reported(&incidents, "fleet", cause).await;
        assert_eq!(incidents.of_views().len(), before + 1, "{what}: {:?}", incidents.of_views());
    }
    hub.bucket_says_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_is_removed_within_a_second_and_is_an_incident() {
    let (hub, dir) = (Hub::start().await, tempfile::tempdir().unwrap());
    let (rollup, incidents) = settled(&hub, dir.path()).await;
    let mut ghost: Value = serde_json::from_slice(&value(&hub, "site.plant7").await.unwrap()).unwrap();
    ghost["site"] = json!("ghost");
    ghost["digest"] = muster_contract::view::content_digest(&ghost).to_string().into();
    for (key, foreign, cause) in [
        ("nobody.knows.this", "{}".to_owned(), ForeignView::Key),
        ("site.nowhere", "{}".to_owned(), ForeignView::NoView),
        ("site.ghost", ghost.to_string(), ForeignView::Key),
    ] {
        hub.bus.view_put(key, foreign.into(), None).await.unwrap();
        within(MENDED_WITHIN, key, || value(&hub, key), Option::is_none).await;
        reported(&incidents, key, cause).await;
    }
    hub.bucket_says_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn views_that_are_deleted_or_purged_come_back() {
    let (hub, dir) = (Hub::start().await, tempfile::tempdir().unwrap());
    let (rollup, incidents) = settled(&hub, dir.path()).await;
    let views = hub.bucket().await;
    let all_back = |what: &'static str| {
        let (hub, views) = (&hub, &views);
        async move { within(2 * MENDED_WITHIN, what, || hub.bucket(), |seen| seen == views).await }
    };
    hub.bus.view_delete("fleet", None).await.unwrap();
    all_back("a deleted view").await;
    reported(&incidents, "fleet", ForeignView::Deleted).await;

    let mut all = Outgoing::new("$KV.views.fleet", "{}");
    all.headers.insert("Nats-Rollup", "all");
    hub.bus.publish(all).await.unwrap();
    all_back("what a message with Nats-Rollup: all has taken").await;
    reported(&incidents, "site.plant7", ForeignView::Missing).await;

    api(&hub, "STREAM.PURGE.KV_views").await;
    all_back("what a purge has taken").await;

    api(&hub, "STREAM.DELETE.KV_views").await;
    let is_there = || async { hub.bus.stream_state(VIEWS_STREAM).await.is_ok() };
    until("the bucket", is_there, |there| *there).await;
    hub.bucket_says_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_rollups_write_one_bucket_without_incidents() {
    let hub = Hub::start().await;
    let incidents = IncidentLog::start(&hub.bus).await;
    let mut devices = small_fleet(&hub).await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Rollup::start(&hub, dirs[0].path()).await;
    let other = Rollup::start(&hub, dirs[1].path()).await;
    one.ready().await;
    other.ready().await;
    for step in 0..40 {
        devices[step % 3].reports(&hub, "web", ["installing", "installed"][step % 2]).await;
        if step % 10 == 0 {
            let wanted: &[&str] = if step % 20 == 0 { &["web"] } else { &["web", "db"] };
            devices[1].wants(&hub, wanted).await;
        }
    }
    devices[2].retires(&hub).await;
    hub.bucket_says_what_ledger_gives().await;
    let quiet = || async { hub.bus.stream_state(VIEWS_STREAM).await.unwrap().last_seq };
    let before = quiet().await;
    // Nothing happens any more, so nothing is written any more: two looks of each watch.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(quiet().await, before, "they write over each other");
    assert_eq!(incidents.all(), []);

    hub.bus.view_put("fleet", "{}".into(), None).await.unwrap();
    hub.bucket_says_what_ledger_gives().await;
    reported(&incidents, "fleet", ForeignView::NoView).await;
    one.drain().await;
    other.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_view_is_not_foreign_while_ledger_does_not_answer() {
    let hub = Hub::start().await;
    let incidents = IncidentLog::start(&hub.bus).await;
    let mut devices = small_fleet(&hub).await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = Rollup::start(&hub, dirs[0].path()).await;
    let link = Link::open(SocketAddr::from((Ipv4Addr::LOCALHOST, hub.server.port()))).await.unwrap();
    let other = Rollup::start_at(&format!("nats://{}", link.address()), dirs[1].path(), &[]).await;
    one.ready().await;
    other.ready().await;
    hub.bucket_says_what_ledger_gives().await;

    // The other one still hears the server, and the server no longer hears it.
    link.set(Condition::HalfOpen(Direction::Up));
    devices[0].reports(&hub, "web", "installing").await;
    hub.bucket_says_what_ledger_gives().await;
    other.reads_to(hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq).await;
    link.set(Condition::Cut);
    link.set(Condition::Open);
    one.drain().await;

    // The rollup writes and reports after it inspected that view.
    devices[0].reports(&hub, "web", "installed").await;
    hub.bucket_says_what_ledger_gives().await;
    hub.bus.view_put("fleet", "{}".into(), None).await.unwrap();
    reported(&incidents, "fleet", ForeignView::NoView).await;
    assert_eq!(incidents.of_views(), [("fleet".to_owned(), ForeignView::NoView)]);
    hub.bucket_says_what_ledger_gives().await;
    other.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_ledger_is_an_incident_and_its_snapshot_is_set_aside() {
    let (hub, dir) = (Hub::start().await, tempfile::tempdir().unwrap());
    let (rollup, incidents) = settled(&hub, dir.path()).await;
    rollup.drain().await;
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let known = hub.bus.stream_state(stream::LEDGER).await.unwrap();

    api(&hub, "STREAM.DELETE.LEDGER").await;
    hub.bus.converge().await.unwrap();
    let replaced = || async {
        incidents.all().into_iter().find_map(|request| match request.what {
            IncidentKind::LedgerReplaced { known_created_at, known_seq, created_at, .. } => {
                Some((known_created_at, known_seq, created_at))
            }
            _ => None,
        })
    };
    let created_at = hub.bus.stream_state(stream::LEDGER).await.unwrap().created_at;
    let wanted = Some((known.created_at, known.last_seq, created_at));
    until("the incident", replaced, |seen| *seen == wanted).await;
    hub.bucket_says_what_ledger_gives().await;
    rollup.drain().await;
    assert!(dir.path().join("snapshot.db.set-aside").exists(), "the snapshot is not kept");
}

async fn api(hub: &Hub, verb: &str) {
    let answer = hub.bus.request(&format!("$JS.API.{verb}"), Bytes::new(), Duration::from_secs(5)).await;
    let answer: Value = serde_json::from_slice(&answer.unwrap()).unwrap();
    assert!(answer["error"].is_null(), "{verb}: {answer}");
}
