//! Tests the bucket's content: correct, written at a bounded rate, and without obsolete views.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::{Outgoing, ViewResult};
use muster_contract::Timestamp;
use muster_contract::history::Point;
use muster_contract::limits::VIEW_WRITES_PER_SECOND;
use muster_contract::query::{DevicesAnswer, Query};
use muster_contract::subjects::stream;
use muster_contract::view::Freshness;
use muster_rollup::metrics::{FactOutcome, Metrics};
use muster_rollup::projection::Projection;
use muster_rollup::publish::Publisher;
use muster_tests::incidents::IncidentLog;
use muster_tests::wait::until;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ledger::small_fleet;
use crate::{Hub, Rollup};

#[tokio::test(flavor = "multi_thread")]
async fn the_bucket_says_what_ledger_gives_and_questions_are_answered() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;

    let query = Query { id: Some("db".parse().unwrap()), ..Query::default() };
    let answer = hub.ask("deployment", &query).await;
    assert_eq!((&answer["view"]["verdict"], &answer["view"]["targets"]), (&json!("failing"), &json!(3)));
    let all = json!({"id": "db", "output": "detail"});
    let lines = hub.ask("status", &all).await["targets"].take();
    assert_eq!(lines[1]["report"]["components"][0]["state"], "failed");
    let failed = json!({"id": "db", "output": "detail", "standing": ["failed"]});
    assert_eq!(hub.ask("status", &failed).await["targets"], json!([lines[1]]));
    let query = Query { site: Some("plant9".parse().unwrap()).into(), ..Query::default() };
    assert_eq!(hub.ask("site", &query).await["devices"], json!({"stale": 1}));
    assert_eq!(hub.ask("devices", &query).await["devices"][0]["device"], "oven-2");
    let query = Query { device: Some("oven-2".parse().unwrap()), ..query };
    assert_eq!(hub.ask("device", &query).await["deployments"][1]["standing"], "installed");
    assert_eq!(hub.ask("deployments", &Query::default()).await["deployments"][1]["deployment"], "web");
    let query = Query { id: Some("nothing".parse().unwrap()), ..Query::default() };
    assert_eq!(hub.ask("deployment", &query).await["error"]["code"], "notFound");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m04_silent_devices_can_be_listed_now_and_in_the_past() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    // Its last fact is that a device fell silent.
    let before = Point::at_seq(hub.end().await - 1);
    let (now, dir) = (Point::default(), tempfile::tempdir().unwrap());
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let dark = [Freshness::Stale, Freshness::Never];
    let any = [Freshness::Fresh, Freshness::Stale];
    for (point, freshness, wanted) in [
        (now, &dark[..], &["oven-2"][..]),
        (now, &dark[1..], &[]),
        (now, &any[..1], &["drill-1", "press-4"]),
        (now, &any, &["drill-1", "press-4", "oven-2"]),
        (before, &dark, &[]),
        (before, &any[..1], &["drill-1", "press-4", "oven-2"]),
    ] {
        let query = Query { freshness: freshness.iter().copied().collect(), point, ..Query::default() };
        let answer: DevicesAnswer = hub.recalled("devices", &query).await;
        let names: Vec<_> = answer.devices.iter().map(|line| line.key.device.as_str()).collect();
        assert_eq!(names, wanted, "{query:?}");
    }
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_written_only_when_it_changed_and_not_too_often() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;

    let metrics = &rollup.handle.metrics;
    let (written, begun) = (metrics.queries.views_with(ViewResult::Written), Instant::now());
    for step in 0..400 {
        devices[0].reports(&hub, "web", ["installing", "installed"][step % 2]).await;
    }
    hub.bucket_says_what_ledger_gives().await;
    let written = metrics.queries.views_with(ViewResult::Written) - written;
    // The deployment, the site and the fleet change: the first write at once, the last when it is allowed.
    let seconds = begun.elapsed().as_secs_f64();
    let allowed = 3.0 * (seconds * f64::from(VIEW_WRITES_PER_SECOND) + 2.0);
    assert!(written as f64 <= allowed, "{written} writes in {seconds} s, {allowed} are allowed");

    let unchanged = metrics.queries.views_with(ViewResult::Unchanged);
    let before = metrics.queries.views_with(ViewResult::Written);
    devices[0].is(&hub, "fresh").await;
    devices[0].reports(&hub, "web", "installed").await;
    let looked = || async { metrics.queries.views_with(ViewResult::Unchanged) };
    until("a look at views", looked, |count| *count > unchanged).await;
    assert_eq!(metrics.queries.views_with(ViewResult::Written), before, "the same again is not written");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_is_deleted_also_if_an_earlier_life_left_it() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    for stale in ["deployment.ghost", "site.nowhere"] {
        hub.bus.view_put(stale, Bytes::from(r#"{"left":"behind"}"#), None).await.unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;
    assert_eq!(rollup.handle.metrics.queries.views_with(ViewResult::Deleted), 2);
    assert!(hub.bus.view_get("deployment.ghost").await.unwrap().is_none());

    devices[2].retires(&hub).await;
    hub.bucket_says_what_ledger_gives().await;
    let gone = || async { hub.bus.view_get("site.plant9").await.unwrap().is_none() };
    until("the site to go", gone, |gone| *gone).await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_rollups_write_is_read_before_it_is_overwritten() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;
    let older = hub.bus.view_get("fleet").await.unwrap().and_then(|entry| entry.value).unwrap();
    devices[0].reports(&hub, "db", "installed").await;
    hub.bucket_says_what_ledger_gives().await;

    // The watch of the bucket sees it, or else the write that it has overtaken.
    let incidents = IncidentLog::start(&hub.bus).await;
    let seen = || async {
        let stale = incidents.of_views().iter().filter(|(key, _)| key == "fleet").count() as u64;
        rollup.handle.metrics.queries.views_with(ViewResult::Overtaken) + stale
    };
    assert_eq!(seen().await, 0);
    hub.bus.view_put("fleet", older, None).await.unwrap();
    devices[0].reports(&hub, "db", "installing").await;
    hub.bucket_says_what_ledger_gives().await;
    until("the other's view to be seen", seen, |count| *count > 0).await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_fleet_has_a_view() {
    let hub = Hub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.bucket_says_what_ledger_gives().await;
    assert_eq!(hub.ask("fleet", &Query::default()).await["targets"], 0);
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_no_fact_is_counted_and_passed() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    hub.put_bytes("muster.status.plant7.press-4.web", "{broken".to_owned()).await;
    hub.put_bytes("muster.status.Plant_7.press-4.web", "{}".to_owned()).await;
    devices[0].reports(&hub, "db", "installed").await;
    hub.bucket_says_what_ledger_gives().await;
    assert_eq!(rollup.handle.metrics.facts_with(FactOutcome::Unreadable), 2);
    hub.answers_say_what_ledger_gives().await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_leaves_nothing_unsaid() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    for step in 0..50 {
        devices[step % 3].reports(&hub, "db", ["failed", "installed"][step % 2]).await;
    }
    let end = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    rollup.reads_to(end).await;
    rollup.drain().await;
    assert_eq!(hub.bucket().await, crate::digests(&hub.folded().await));
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    assert_eq!(rollup.facts_read(), 0, "the snapshot holds it all");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_bucket_has_lost_is_written_again() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let present = Arc::new(Projection::new(Timestamp::UNIX_EPOCH, hub.folded().await));
    present.set_caught_up();
    let (incidents, _) = muster_bus::IncidentReporter::new();
    let (publisher, stop) = (
        Publisher::new(hub.bus.clone(), present, Metrics::default(), incidents, Rng::new()),
        CancellationToken::new(),
    );
    let publisher = publisher.learning_every(Duration::from_secs(3));
    let task = tokio::spawn(publisher.run(stop.clone()));
    hub.bucket_says_what_ledger_gives().await;
    // Taken out behind everybody's back, without a trace after a second, as in a backup from before they were written.
    let lost = ["deployment.web", "site.plant9", "fleet"];
    for key in lost {
        let mut mark = Outgoing::new(format!("$KV.views.{key}"), Bytes::new());
        mark.headers.insert("KV-Operation", "PURGE");
        mark.headers.insert("Nats-TTL", "1s");
        hub.bus.publish(mark).await.unwrap();
    }
    hub.bucket_says_what_ledger_gives().await;
    assert!(hub.bus.view_get("fleet").await.unwrap().is_some());
    stop.cancel();
    task.await.unwrap();
}
