//! Two writers, killed publishers, killed servers: every device ends with the last commit, and nothing is published
//! that did not change.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::{Call, Headers, Start};
use muster_contract::desired::DesiredState;
use muster_contract::query::ApplyRequest;
use muster_contract::subjects::stream;
use muster_contract::{DeviceKey, decode};
use muster_publisher::requests::{self, PublisherRequest, Request};
use muster_tests::wait::{soon, until};

use crate::stage::{Stage, deployment};

/// Devices of a commit that takes a while.
const MANY: usize = 1500;

fn fill(stage: &Stage, devices: usize) {
    for at in 0..devices {
        stage.device(&format!("a/device-{at}"));
    }
}

/// Every generation that each device got, as far as DOWNLINK keeps them, in stream order.
async fn generations(stage: &Stage) -> BTreeMap<String, Vec<u64>> {
    let last = stage.published().await;
    let mut replay = stage.bus.replay(stream::DOWNLINK, &["muster.desired.>"], Start::First).await.unwrap();
    let (mut seen, mut at) = (BTreeMap::<_, Vec<_>>::new(), 0);
    while at < last {
        for delivery in soon("DOWNLINK is read", replay.next_batch(1000)).await.unwrap() {
            let document: DesiredState = decode::parse(&delivery.payload).unwrap();
            seen.entry(delivery.subject).or_default().push(document.generation.get());
            at = delivery.stream_seq;
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_halfway_through_a_commit_is_completed_by_the_restart() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    fill(&stage, MANY);
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    let begun = async || stage.published().await;
    let published = muster_tests::wait::until("it has begun", begun, |published| *published > 10).await;
    publisher.crash().await;
    println!("crashed after {published} of {MANY} documents");

    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    let generations = generations(&stage).await;
    assert_eq!(generations.len(), MANY);
    assert!(generations.values().all(|all| *all == [1]), "something was published twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_broken_off_is_completed_even_if_a_bad_one_follows() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    fill(&stage, MANY);
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    let begun = async || stage.published().await;
    muster_tests::wait::until("it has begun", begun, |published| *published > 10).await;
    publisher.crash().await;
    stage.repository.write("fleet/bad.yaml", "id: [").unwrap();
    let bad = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.refused(&bad).await;
    publisher.applied(&commit).await;
    assert_eq!(generations(&stage).await.len(), MANY);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_middle_of_a_commit_costs_nothing_but_time() {
    let mut stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    fill(&stage, MANY);
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    let begun = async || stage.published().await;
    muster_tests::wait::until("it has begun", begun, |published| *published > 10).await;
    stage.server.kill();
    tokio::time::sleep(Duration::from_millis(200)).await;
    stage.server.restart();
    publisher.applied(&commit).await;
    let generations = generations(&stage).await;
    assert_eq!(generations.len(), MANY);
    assert!(generations.values().all(|all| *all == [1]), "something was published twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_publishers_of_one_repository_do_not_disturb_each_other() {
    let stage = Stage::new().await;
    fill(&stage, 100);
    stage.write("fleet/log.yaml", "log", "start");
    let (one, two) = tokio::join!(stage.publisher(), stage.publisher());
    for round in 1..=4 {
        stage.write("fleet/log.yaml", "log", &format!("round-{round}"));
        let commit = stage.commit().await;
        tokio::join!(one.applied(&commit), two.applied(&commit));
    }
    for at in 0..100 {
        let (generation, shown) = stage.shown(&format!("a/device-{at}")).await;
        assert_eq!(shown, [format!("log=round-4@{generation}")]);
    }
    for (subject, all) in generations(&stage).await {
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{subject}: {all:?}");
    }
    println!("documents published: {} and {}", one.status.answer().published, two.status.answer().published);
}

/// A person's request for a deployment, as the publisher parses it.
fn apply(device: &str, id: &str) -> Request {
    let (key, documents) = (device.parse().unwrap(), deployment(id, "run"));
    let payload = serde_json::to_vec(&ApplyRequest { key, documents, file: None }).unwrap().into();
    let (subject, headers) = ("muster.publisher.apply".to_owned(), Headers::default());
    match requests::parse_request(&Call {
        endpoint: "apply",
        subject,
        payload,
        headers,
        requester: muster_bus::Requester::Unverified,
    })
    .unwrap()
    {
        PublisherRequest::Change(request) => request,
        other => panic!("a change was asked for, and this was read: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_with_a_stuck_git_does_not_undo_anothers_newer_commit() {
    let stage = Stage::new().await;
    stage.device("a/one");
    stage.write("fleet/log.yaml", "log", "old");
    let first = stage.commit().await;
    let (copy, away) = (stage.dir().join("copy"), stage.dir().join("away"));
    stage.git(&["clone", "--quiet", "--bare", ".", copy.to_str().unwrap()]);
    let (stuck, well) = tokio::join!(stage.publisher_of(&copy), stage.publisher());
    tokio::join!(stuck.applied(&first), well.applied(&first));

    std::fs::rename(&copy, &away).unwrap();
    stage.write("fleet/log.yaml", "log", "newer");
    let second = stage.commit().await;
    well.applied(&second).await;
    let answer = stuck.announcer.change(apply("a/one", "web")).await.unwrap();
    assert!(answer.changed, "{answer:?}");
    assert_eq!(stage.shown("a/one").await, (3, vec!["log=newer@2".to_owned(), "web=run@3".to_owned()]));

    stage.git(&["push", "--quiet", away.to_str().unwrap(), "HEAD"]);
    std::fs::rename(&away, &copy).unwrap();
    stuck.applied(&second).await;
    assert_eq!(stage.shown("a/one").await.0, 3, "and nothing is left to say");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_with_an_old_clone_does_not_undo_a_newer_commit() {
    let stage = Stage::new().await;
    stage.device("a/one");
    stage.write("fleet/log.yaml", "log", "old");
    let first = stage.commit().await;
    let copy = stage.dir().join("copy");
    let copy = copy.to_str().unwrap();
    stage.git(&["clone", "--quiet", "--bare", ".", copy]);
    let (lagging, well) = tokio::join!(stage.publisher_of(copy.as_ref()), stage.publisher());
    tokio::join!(lagging.applied(&first), well.applied(&first));

    stage.write("fleet/log.yaml", "log", "newer");
    let second = stage.commit().await;
    well.applied(&second).await;
    assert!(lagging.announcer.change(apply("a/one", "web")).await.unwrap().changed);
    let polled_at = || lagging.status.answer().git.unwrap().polled_at;
    for _ in 0..4 {
        let before = polled_at();
        until("Git was asked again", async || polled_at(), |at| *at != before).await;
    }
    assert_eq!(stage.shown("a/one").await, (3, vec!["log=newer@2".to_owned(), "web=run@3".to_owned()]));

    // It never sees the second commit as the newest.
    drop(well);
    stage.write("fleet/log.yaml", "log", "newest");
    let third = stage.commit().await;
    stage.git(&["push", "--quiet", copy, "HEAD"]);
    lagging.applied(&third).await;
    assert_eq!(stage.shown("a/one").await, (4, vec!["log=newest@4".to_owned(), "web=run@3".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_under_load_finishes_the_round_and_is_in_time() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    fill(&stage, MANY);
    stage.commit().await;
    let publisher = stage.publisher().await;
    let begun = async || stage.published().await;
    muster_tests::wait::until("it has begun", begun, |published| *published > 10).await;
    let status = publisher.status.clone();
    let drained = publisher.stop().await;
    assert!(drained.late.is_empty(), "{drained:?}");
    assert_eq!(status.answer().published, stage.published().await, "a confirmed document was not counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_is_read_before_anything_is_published_over_it() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "first");
    let publisher = stage.publisher().await;
    publisher.applied(&stage.commit().await).await;
    // Another writer gives the device a generation far above.
    let key: DeviceKey = "a/one".parse().unwrap();
    let mut theirs = stage.document("a/one").await;
    theirs.generation = muster_contract::Generation::new(40).unwrap();
    stage.publish_as_a_publisher(&key, &theirs).await;

    stage.write("sites/a/one/web.yaml", "web", "second");
    publisher.applied(&stage.commit().await).await;
    assert_eq!(stage.shown("a/one").await, (41, vec!["web=second@41".to_owned()]));
}
