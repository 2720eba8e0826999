//! The order of rollouts (`after`): the publisher tells what a rollout waits for, and refuses its first begin meanwhile.

use super::*;

/// The fleet of [`governed`] with a second deployment, whose rollout comes after the other one's.
fn in_order(revision: &str, command: &str) -> Fleet {
    let mut fleet = governed_by(revision, 2, command, &serde_json::json!([{ "name": "canary", "count": 1 }]));
    for file in fleet.rollouts.values_mut() {
        let mut rollout = file.rollout.clone();
        rollout.after = [("proxy".parse().unwrap(), ["log".parse().unwrap()].into())].into();
        *file = Arc::new(RolloutFile { path: FILE.to_owned(), rollout });
    }
    for contents in fleet.devices.values_mut() {
        contents.push(content("proxy", command));
    }
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_comes_after_another_begins_once_that_has_succeeded() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(in_order("c1", "v1")).await.unwrap();
    publisher.applied("c1").await;
    publisher.commit(in_order("c2", "v2")).await.unwrap();
    publisher.applied("c2").await;
    let query =
        TargetsQuery { deployment: "proxy".parse().unwrap(), limit: Some(1), after: None, revision: None };
    let waits = async || {
        let answer = publisher.announcer.targets(query.clone()).await.unwrap();
        answer.waits_for.get(FILE).map(|waits| waits[0].phase)
    };
    let begin = begin_of_proxy();
    let refused = async || publisher.announcer.decide(begin.clone()).await.unwrap_err();

    assert_eq!(waits().await, Some(RolloutPhase::Running), "it has not begun");
    assert_eq!(refused().await.code, ErrorCode::Conflict);
    let words = "comes after that of log (`after` in fleet/rollout.yaml), which has not succeeded";
    assert!(refused().await.message.contains(words), "{:?}", refused().await);
    publisher.announcer.decide(asked(RolloutVerb::Begin, digest("v2"))).await.unwrap();
    assert_eq!(release(&publisher, Some(digest("v2")), None).await.released.len(), 2);
    assert_eq!(waits().await, Some(RolloutPhase::Running), "every device has it, and its last gate is shut");
    publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v2"))).await.unwrap();
    assert_eq!(waits().await, Some(RolloutPhase::Paused));
    publisher.announcer.decide(asked(RolloutVerb::Stop, digest("v2"))).await.unwrap();
    assert_eq!(waits().await, Some(RolloutPhase::Stopped));
    publisher.announcer.decide(asked(RolloutVerb::Retry, digest("v2"))).await.unwrap();
    assert_eq!(waits().await, Some(RolloutPhase::Running), "a retry is no success");
    assert_eq!(refused().await.code, ErrorCode::Conflict);
    publisher.announcer.decide(asked(RolloutVerb::Finish, digest("v2"))).await.unwrap();
    assert_eq!(waits().await, None);
    assert!(publisher.announcer.decide(begin.clone()).await.unwrap().changed);
    publisher.announcer.decide(asked(RolloutVerb::Rollback, digest("v2"))).await.unwrap();
    assert_eq!(waits().await, Some(RolloutPhase::RolledBack), "one that would begin now waits");
}

#[tokio::test(start_paused = true)]
async fn a_success_that_another_publisher_recorded_lets_a_rollout_begin() {
    let stream = Stream::default();
    let [publisher, other] = [(); 2].map(|()| Running::start(&stream));
    for running in [&publisher, &other] {
        running.commit(in_order("c1", "v1")).await.unwrap();
        running.applied("c1").await;
        running.commit(in_order("c2", "v2")).await.unwrap();
        running.applied("c2").await;
    }
    let begin = begin_of_proxy();
    publisher.announcer.decide(begin.clone()).await.unwrap_err();
    for verb in [RolloutVerb::Begin, RolloutVerb::Finish] {
        other.announcer.decide(asked(verb, digest("v2"))).await.unwrap();
    }
    assert!(publisher.announcer.decide(begin).await.unwrap().changed);
}

#[tokio::test(start_paused = true)]
async fn a_content_that_every_device_had_before_any_decision_holds_up_none() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "v2")).await.unwrap();
    publisher.applied("c1").await;
    publisher.commit(in_order("c2", "v2")).await.unwrap();
    publisher.applied("c2").await;
    assert!(publisher.announcer.decide(begin_of_proxy()).await.unwrap().changed);
}

/// A request that the rollout of `proxy` begins.
fn begin_of_proxy() -> Decide {
    let mut begin = asked(RolloutVerb::Begin, content("proxy", "v2").digest());
    begin.request.deployment = "proxy".parse().unwrap();
    begin
}

#[tokio::test(start_paused = true)]
async fn a_device_with_a_mistake_lacks_the_content_that_is_waited_for() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(in_order("c1", "v1")).await.unwrap();
    publisher.applied("c1").await;
    let mistaken = Fleet { held_back: [key(1)].into(), ..in_order("c2", "v2") };
    publisher.commit(mistaken).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!(release(&publisher, Some(digest("v2")), None).await.released, [key(0)]);
    assert_eq!(publisher.announcer.decide(begin_of_proxy()).await.unwrap_err().code, ErrorCode::Conflict);
    publisher.commit(in_order("c3", "v2")).await.unwrap();
    publisher.applied("c3").await;
    assert_eq!(release(&publisher, Some(digest("v2")), None).await.released.len(), 2);
    assert!(publisher.announcer.decide(begin_of_proxy()).await.unwrap().changed);
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_no_device_has_is_waited_for() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    let mut fleet = in_order("c1", "v2");
    for contents in fleet.devices.values_mut() {
        contents.retain(|content| content.id().as_str() != "log");
    }
    publisher.commit(fleet).await.unwrap();
    publisher.applied("c1").await;
    assert_eq!(publisher.announcer.decide(begin_of_proxy()).await.unwrap_err().code, ErrorCode::Conflict);
}
