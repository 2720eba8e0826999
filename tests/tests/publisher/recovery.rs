//! Recovery after DOWNLINK has lost documents or others wrote into it: the publisher never gives a device a generation that
//! the device has passed, because the device would ignore it without a report.

use muster_bus::Outgoing;
use muster_contract::query::{PublishAnswer, SomeDevices};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Generation, decode};
use muster_tests::wait::until;
use serde_json::json;

use crate::requests::apply;
use crate::stage::{Stage, deployment};

/// Publishes `count` generations of a device that Git does not know.
async fn publish(stage: &Stage, device: &str, count: u64) -> PublishAnswer {
    let mut answer = None;
    for at in 0..count {
        answer = Some(apply(stage, device, deployment("web", &format!("run-{at}"))).await.unwrap());
    }
    answer.unwrap()
}

async fn garbage(stage: &Stage, device: &str) {
    let subject = subjects::desired(&device.parse().unwrap());
    stage.bus.publish(Outgoing::new(subject, "garbage")).await.unwrap();
}

/// Waits until LEDGER has copied the newest message of a device.
async fn copied(stage: &Stage, device: &str, payload: &[u8]) {
    let subject = subjects::desired(&device.parse().unwrap());
    let copy = async || stage.bus.last(stream::LEDGER, &subject).await.unwrap().map(|copy| copy.payload);
    until("LEDGER has the copy", copy, |copy| copy.as_ref().is_some_and(|copy| copy[..] == *payload)).await;
}

async fn generation(stage: &Stage, device: &str, wanted: u64) {
    let look = async || {
        let last = stage.last(device).await?;
        Some(decode::parse::<muster_contract::desired::DesiredState>(&last.payload).ok()?.generation.get())
    };
    until("the generation is published", look, |generation| *generation == Some(wanted)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_a_devices_subject_does_not_start_its_generations_anew() {
    let stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    publish(&stage, "south-yard/gate-1", 10).await;
    publisher.stop().await;
    garbage(&stage, "south-yard/gate-1").await;
    let publisher = stage.publisher_without_git().await;
    generation(&stage, "south-yard/gate-1", 11).await;
    let answer = apply(&stage, "south-yard/gate-1", deployment("db", "run")).await.unwrap();
    assert_eq!((answer.generation.get(), answer.deployments.len()), (12, 2), "what was applied is kept");
    garbage(&stage, "south-yard/gate-1").await;
    generation(&stage, "south-yard/gate-1", 13).await;
    let answer = apply(&stage, "south-yard/gate-1", deployment("tap", "run")).await.unwrap();
    assert_eq!((answer.generation.get(), answer.deployments.len()), (14, 3), "also while it runs");
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_behind_which_nothing_is_known_is_shown_until_it_is_replaced() {
    let stage = Stage::new().await;
    garbage(&stage, "a/stray").await;
    let publisher = stage.publisher_without_git().await;
    let named = SomeDevices { count: 1, first: vec!["a/stray".parse().unwrap()] };
    assert_eq!(publisher.status.answer().unreadable, named);
    assert_eq!(publish(&stage, "a/stray", 1).await.generation.get(), 1);
    assert!(publisher.status.answer().unreadable.is_empty());
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_downlink_has_lost_comes_back_from_the_ledger_above_its_generation() {
    let stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    publish(&stage, "lab/full", 7).await;
    let last = stage.last("lab/full").await.unwrap().payload;
    copied(&stage, "lab/full", &last).await;
    publisher.stop().await;
    stage.purge("lab/full").await;

    let publisher = stage.publisher_without_git().await;
    generation(&stage, "lab/full", 8).await;
    assert_eq!(stage.shown("lab/full").await, (8, vec!["web=run-6@7".to_owned()]));
    assert_eq!(publish(&stage, "lab/full", 1).await.generation.get(), 9);
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_as_the_last_thing_the_ledger_saw_hides_nothing() {
    let stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    publish(&stage, "lab/full", 3).await;
    publisher.stop().await;
    garbage(&stage, "lab/full").await;
    copied(&stage, "lab/full", b"garbage").await;
    stage.purge("lab/full").await;
    let publisher = stage.publisher_without_git().await;
    generation(&stage, "lab/full", 4).await;
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_began_anew_is_raised_above_those_of_the_device() {
    let stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    publish(&stage, "a/one", 4).await;
    publisher.stop().await;
    let mut low = stage.document("a/one").await;
    (low.generation, low.deployments) = (Generation::FIRST, Vec::new());
    let subject = subjects::desired(&"a/one".parse::<DeviceKey>().unwrap());
    stage.bus.publish(Outgoing::new(subject, decode::to_bytes(&low))).await.unwrap();
    let publisher = stage.publisher_without_git().await;
    generation(&stage, "a/one", 5).await;
    assert!(stage.document("a/one").await.deployments.is_empty(), "the last word counts");
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_ahead_of_the_hub_gets_its_state_again_with_a_higher_number() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    let beat = json!({
        "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": 0, "unsent": 0,
        "generation": 37, "agentVersion": "1",
    });
    for device in ["a/one", "b/restored"] {
        let subject = subjects::presence(&device.parse().unwrap());
        stage.bus.publish(Outgoing::new(subject, beat.to_string())).await.unwrap();
    }
    generation(&stage, "a/one", 38).await;
    assert_eq!(stage.shown("a/one").await, (38, vec!["web=git@1".to_owned()]));
    // Neither DOWNLINK nor LEDGER has a document of this device: the generation in its heartbeat still counts.
    let above = async || apply(&stage, "b/restored", deployment("web", "run")).await.unwrap();
    until("its next generation is above", above, |answer| answer.generation.get() == 38).await;
    publisher.stop().await;
}
