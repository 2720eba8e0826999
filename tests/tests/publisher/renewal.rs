//! What is old is said again, and nothing else changes.

use std::time::Duration;

use muster_bus::Start;
use muster_contract::query::{ApplyRequest, ErrorReply, PublishAnswer};
use muster_contract::subjects::stream;
use muster_publisher::renew::renew;
use muster_service::clock::SystemClock;
use muster_tests::wait::until;

use crate::stage::{Stage, deployment};

async fn said(stage: &Stage, stream: &str) -> Vec<(u64, bytes::Bytes)> {
    let mut replay = stage.bus.replay(stream, &["muster.desired.a.one"], Start::First).await.unwrap();
    let mut said = Vec::new();
    while (said.len() as u64) < replay.waiting() {
        let batch = replay.next_batch(100).await.unwrap();
        said.extend(batch.into_iter().map(|delivery| (delivery.stream_seq, delivery.payload)));
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desired_state_is_said_again_in_the_same_bytes_and_the_publisher_goes_on_from_there() {
    let stage = Stage::new().await;
    let _publisher = stage.publisher_without_git().await;
    let apply = async |version: &str| -> Result<PublishAnswer, ErrorReply> {
        let documents = deployment("web", version);
        stage.ask("apply", &ApplyRequest { key: "a/one".parse().unwrap(), documents, file: None }).await
    };
    apply("v1").await.unwrap();
    assert_eq!(renew(&stage.bus, Duration::from_secs(3600), &SystemClock).await.unwrap(), 0, "it is young");
    assert_eq!(renew(&stage.bus, Duration::ZERO, &SystemClock).await.unwrap(), 1);
    let ledger = until("LEDGER has it again", || said(&stage, stream::LEDGER), |said| said.len() == 2).await;
    assert_eq!(ledger[0].1, ledger[1].1);
    assert_eq!(said(&stage, stream::DOWNLINK).await.len(), 2);
    assert_eq!(stage.shown("a/one").await.0, 1, "the generation stays");
    let next = apply("v2").await.unwrap();
    assert_eq!((next.generation.get(), next.changed), (2, true));
}
