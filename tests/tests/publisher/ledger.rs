//! The sequence as of which LEDGER has a commit: the publisher's status compared with LEDGER.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::Start;
use muster_contract::query::{GitStatus, PublisherQuery, PublisherStatus};
use muster_contract::subjects::stream;
use muster_tests::streams::{hold_back, let_through};
use muster_tests::wait::{soon, until};

use crate::stage::{Publisher, Stage};

/// Enough for several rounds of reading.
const MANY: usize = 300;

impl Publisher {
    /// Waits until LEDGER holds all of a commit; returns the sequence as of which it does.
    async fn in_ledger(&self, commit: &str) -> u64 {
        let holds = |git: &GitStatus| git.applied.as_deref() == Some(commit) && git.applied_through.is_some();
        let look = async || self.status.answer().git.unwrap();
        until("LEDGER holds the commit", look, holds).await.applied_through.unwrap()
    }
}

/// The sequence in LEDGER of the newest document of each device.
async fn sequences(stage: &Stage) -> BTreeMap<String, u64> {
    let mut replay =
        stage.bus.replay(stream::LEDGER, &["muster.desired.>"], Start::LastPerSubject).await.unwrap();
    let mut sequences = BTreeMap::new();
    while let Some(batch) = soon("LEDGER is read", replay.next_present(100)).await.unwrap() {
        sequences.extend(batch.into_iter().map(|delivery| (delivery.subject, delivery.stream_seq)));
    }
    sequences
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_up_to_the_reported_sequence_holds_all_documents_of_a_commit() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "first");
    (0..MANY).for_each(|at| stage.device(&format!("a/device-{at}")));
    let first = stage.commit().await;
    let (one, two) = tokio::join!(stage.publisher(), stage.publisher());
    tokio::join!(one.in_ledger(&first), two.in_ledger(&first));

    let sources = hold_back(&stage.bus).await;
    stage.write("sites/a/device-7/log.yaml", "log", "second");
    let second = stage.commit().await;
    tokio::join!(one.applied(&second), two.applied(&second));
    let asked: PublisherStatus = stage.ask("status", &PublisherQuery::default()).await.unwrap();
    assert_eq!(asked.git.unwrap().applied_through, None);
    let_through(&stage.bus, &sources).await;
    one.in_ledger(&second).await;
    let three = stage.publisher().await;
    for publisher in [&one, &two, &three] {
        let through = publisher.in_ledger(&second).await;
        let sequences = sequences(&stage).await;
        assert_eq!((sequences.len(), sequences.values().max()), (MANY, Some(&through)));
    }

    // A commit that changes nothing is where everything is already.
    stage.repository.write("README", "words").unwrap();
    let third = stage.commit().await;
    assert_eq!(sequences(&stage).await.values().max(), Some(&one.in_ledger(&third).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_made_anew_is_searched_again() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "first");
    (0..MANY).for_each(|at| stage.device(&format!("a/device-{at}")));
    let publisher = stage.publisher().await;
    let first = stage.commit().await;
    publisher.in_ledger(&first).await;
    // DOWNLINK keeps fewer documents of a device than that, so the next LEDGER begins with fewer.
    let mut before = 0;
    for round in 0..8 {
        stage.write("sites/a/device-7/log.yaml", "log", &format!("round-{round}"));
        before = publisher.in_ledger(&stage.commit().await).await;
    }

    let subject = format!("$JS.API.STREAM.DELETE.{}", stream::LEDGER);
    stage.bus.request(&subject, "".into(), Duration::from_secs(15)).await.unwrap();
    let applied_through = || publisher.status.answer().git.unwrap().applied_through;
    stage.bus.converge().await.unwrap();
    until(
        "it counts anew",
        async || applied_through(),
        |through| through.is_some_and(|through| through < before),
    )
    .await;
    let sequences = sequences(&stage).await;
    assert_eq!((sequences.len(), sequences.values().max().copied()), (MANY, applied_through()));
}
