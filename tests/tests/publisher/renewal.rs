//! Renewal: the publisher re-asserts old desired states, and nothing else changes.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::Start;
use muster_contract::query::{ApplyRequest, ErrorReply, PublishAnswer};
use muster_contract::subjects::stream;
use muster_publisher::renew::{self, renew};
use muster_service::clock::SystemClock;
use muster_tests::wait::{soon, until};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::stage::{Stage, deployment};

/// Time in which a renewal without a server has failed at least once.
const FAILING: Duration = Duration::from_millis(300);

async fn stored(stage: &Stage, stream: &str) -> Vec<(u64, bytes::Bytes)> {
    let mut replay = stage.bus.replay(stream, &["muster.desired.a.one"], Start::First).await.unwrap();
    let mut stored = Vec::new();
    while (stored.len() as u64) < replay.waiting() {
        let batch = replay.next_batch(100).await.unwrap();
        stored.extend(batch.into_iter().map(|delivery| (delivery.stream_seq, delivery.payload)));
    }
    stored
}

#[tokio::test(flavor = "multi_thread")]
async fn a_re_asserted_desired_state_has_the_same_bytes_and_generation() {
    let stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    let renew = async |age| renew(&stage.bus, &publisher.announcer, age, &SystemClock).await.unwrap();
    let apply = async |version: &str| -> Result<PublishAnswer, ErrorReply> {
        let documents = deployment("web", version);
        stage.ask("apply", &ApplyRequest { key: "a/one".parse().unwrap(), documents, file: None }).await
    };
    apply("v1").await.unwrap();
    assert_eq!(renew(Duration::from_secs(3600)).await, 0, "it is young");
    assert_eq!(renew(Duration::ZERO).await, 1);
    let ledger =
        until("LEDGER has it again", || stored(&stage, stream::LEDGER), |stored| stored.len() == 2).await;
    assert_eq!(ledger[0].1, ledger[1].1);
    assert_eq!(stored(&stage, stream::DOWNLINK).await.len(), 2);
    assert_eq!(stage.shown("a/one").await.0, 1, "the generation stays");
    let next = apply("v2").await.unwrap();
    assert_eq!((next.generation.get(), next.changed), (2, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_after_a_renewal_finds_everything_where_it_was_put() {
    let stage = Stage::new().await;
    stage.device("a/one");
    stage.write("fleet/web.yaml", "web", "v1");
    let first = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&first).await;
    assert_eq!(renew(&stage.bus, &publisher.announcer, Duration::ZERO, &SystemClock).await.unwrap(), 1);
    let mut reads = stage.bus.subscribe("$JS.API.DIRECT.GET.DOWNLINK.muster.desired.>").await.unwrap();
    assert_eq!(stage.shown("a/one").await.0, 1);
    let read = soon("what the test reads", reads.next()).await.unwrap();
    assert!(read.subject.ends_with(".a.one"), "the test sees every later read");
    stage.write("fleet/web.yaml", "web", "v2");
    let second = stage.commit().await;
    publisher.applied(&second).await;
    assert!(stage.last("a/nobody").await.is_none());
    let first = soon("what is read next", reads.next()).await.unwrap();
    assert!(first.subject.ends_with(".a.nobody"), "the publisher had to read: {}", first.subject);
    assert_eq!(stage.shown("a/one").await, (2, vec!["web=v2@2".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn renewal_without_a_server_waits_and_ends_when_it_is_stopped() {
    let mut stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    stage.server.kill();
    soon("the link is down", stage.bus.link().wait_for(|link| !link.is_up())).await.unwrap();
    let stop = CancellationToken::new();
    let (bus, announcer, clock) = (stage.bus.clone(), publisher.announcer.clone(), Arc::new(SystemClock));
    let mut running = tokio::spawn(renew::run(bus, announcer, clock, stop.clone()));
    assert!(timeout(FAILING, &mut running).await.is_err(), "it goes on");
    stop.cancel();
    soon("it ends", running).await.unwrap();
}
