//! The bucket `views`.

use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Outgoing, ViewEntry, ViewWatch};
use muster_tests::server::Server;
use muster_tests::wait::{soon, until};

use crate::{connect, converged, crash};

async fn read(watch: &mut ViewWatch, count: usize) -> Vec<ViewEntry> {
    let mut read = Vec::new();
    while read.len() < count {
        read.extend(soon("views", watch.next_batch(count - read.len())).await.unwrap());
    }
    read
}

fn shown(entries: &[ViewEntry]) -> Vec<(&str, Option<&[u8]>)> {
    entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_deref())).collect()
}

#[tokio::test]
async fn a_view_is_written_read_and_deleted() {
    let server = Server::start();
    let bus = converged(&server).await;
    assert_eq!(bus.view_get("fleet").await.unwrap(), None);
    let revision = bus.view_put("fleet", Bytes::from("one"), None).await.unwrap();
    let entry = bus.view_get("fleet").await.unwrap().unwrap();
    assert_eq!((entry.value.as_deref(), entry.revision), (Some(&b"one"[..]), revision));
    assert!(bus.view_put("fleet", Bytes::from("two"), None).await.unwrap() > revision);
    bus.view_delete("fleet", None).await.unwrap();
    assert_eq!(bus.view_get("fleet").await.unwrap(), None);
}

#[tokio::test]
async fn a_watch_shows_the_present_and_then_every_change_over_a_crash() {
    let mut server = Server::start();
    let bus = converged(&server).await;
    for (key, value) in
        [("deployment.web", "1"), ("fleet", "1"), ("deployment.web", "2"), ("site.plant7", "1")]
    {
        bus.view_put(key, Bytes::from(value), None).await.unwrap();
    }
    let watcher = connect(server.config("watcher")).await;
    let mut watch = watcher.view_watch(">").await.unwrap();
    assert_eq!(watch.waiting(), 3);
    let present = read(&mut watch, 3).await;
    let wanted: [(&str, Option<&[u8]>); 3] =
        [("fleet", Some(b"1")), ("deployment.web", Some(b"2")), ("site.plant7", Some(b"1"))];
    assert_eq!(shown(&present), wanted);
    assert_eq!(present[2].pending, 0);

    crash(&mut server, &bus).await;
    bus.view_put("fleet", Bytes::from("2"), None).await.unwrap();
    bus.view_delete("deployment.web", None).await.unwrap();
    let changes = read(&mut watch, 2).await;
    let wanted: [(&str, Option<&[u8]>); 2] = [("fleet", Some(b"2")), ("deployment.web", None)];
    assert_eq!(shown(&changes), wanted);

    let mut deployments = bus.view_watch("deployment.*").await.unwrap();
    assert_eq!(shown(&read(&mut deployments, 1).await), [("deployment.web", None)]);
}

#[tokio::test]
async fn a_watch_of_a_recreated_bucket_reports_also_the_removed_keys() {
    let server = Server::start();
    let bus = converged(&server).await;
    for key in ["deployment.web", "deployment.gone", "fleet"] {
        bus.view_put(key, Bytes::from("1"), None).await.unwrap();
    }
    let mut watch = bus.view_watch(">").await.unwrap();
    read(&mut watch, 3).await;
    for shown in [&["deployment.web", "fleet"][..], &[]] {
        bus.request("$JS.API.STREAM.DELETE.KV_views", Bytes::new(), Duration::from_secs(5)).await.unwrap();
        bus.converge().await.unwrap();
        for key in shown {
            bus.view_put(key, Bytes::from("2"), None).await.unwrap();
        }
        let held = if shown.is_empty() { 2 } else { 3 };
        let mut entries = read(&mut watch, held).await;
        entries.sort_by(|one, other| one.key.cmp(&other.key));
        let gone: Vec<_> =
            entries.iter().filter(|entry| entry.value.is_none()).map(|entry| &entry.key).collect();
        let expected =
            if shown.is_empty() { vec!["deployment.web", "fleet"] } else { vec!["deployment.gone"] };
        assert_eq!(gone, expected);
    }
    // The next entry is a change.
    bus.view_put("fleet", Bytes::from("3"), None).await.unwrap();
    assert_eq!(shown(&read(&mut watch, 1).await), [("fleet", Some(&b"3"[..]))]);
}

/// The mark of a deletion that the server forgets after a second.
async fn short_mark(bus: &Bus, key: &str) {
    let mut mark = Outgoing::new(format!("$KV.views.{key}"), Bytes::new());
    mark.headers.insert("KV-Operation", "PURGE");
    mark.headers.insert("Nats-TTL", "1s");
    bus.publish(mark).await.unwrap();
}

#[tokio::test]
async fn the_present_has_an_end_also_where_what_waited_has_expired() {
    let server = Server::start();
    let bus = converged(&server).await;
    for others in [0, 2] {
        for number in 0..others {
            bus.view_put(&format!("deployment.d{number}"), Bytes::from("1"), None).await.unwrap();
        }
        short_mark(&bus, "ghost").await;
        let mut watch = bus.view_watch(">").await.unwrap();
        assert_eq!(watch.waiting(), others + 1);
        let gone = || async { bus.view_last("ghost").await.unwrap().is_none() };
        until("the mark to expire", gone, |gone| *gone).await;
        let mut read = Vec::new();
        while let Some(batch) = soon("the present", watch.next_present(100)).await.unwrap() {
            read.extend(batch);
        }
        assert_eq!(read.len() as u64, others);
        // The next entry is a change.
        bus.view_put("fleet", Bytes::from("1"), None).await.unwrap();
        assert_eq!(shown(&self::read(&mut watch, 1).await)[0].0, "fleet");
        bus.view_delete("fleet", None).await.unwrap();
        assert_eq!(shown(&self::read(&mut watch, 1).await)[0].0, "fleet");
        short_mark(&bus, "fleet").await;
        let gone = || async { bus.view_last("fleet").await.unwrap().is_none() };
        until("the mark to expire", gone, |gone| *gone).await;
    }
}
