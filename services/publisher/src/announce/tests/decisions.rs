//! Decisions about rollouts on a stream that loses answers and has another publisher.

use std::collections::VecDeque;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    DecideRequest, ReleaseAnswer, ReleaseRefusal, ReleaseRequest, RolloutVerb, RolloutWord, TargetsQuery,
};

use super::stream::Fault;
use super::*;
use crate::requests::{Decide, Release};
use crate::source::RolloutFile;

const FILE: &str = "fleet/rollout.yaml";

/// A fleet whose devices one rollout governs.
fn governed(revision: &str, devices: usize, command: &str) -> Fleet {
    let waves = serde_json::json!([{ "name": "canary", "count": 1, "approval": "before" }]);
    let rollout = serde_json::json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves });
    let file = RolloutFile { path: FILE.to_owned(), rollout: serde_json::from_value(rollout).unwrap() };
    let file = Arc::new(file);
    let rollouts = (0..devices).map(|at| (key(at), file.clone())).collect();
    Fleet { rollouts, ..fleet(revision, devices, command) }
}

fn digest(command: &str) -> Digest {
    content("log", command).digest()
}

fn asked(verb: RolloutVerb, digest: Digest) -> Decide {
    let wave = verb.has_wave().then(|| "canary".parse().unwrap());
    let (deployment, rollout) = ("log".parse().unwrap(), FILE.to_owned());
    let request = DecideRequest { deployment, digest, rollout, verb, wave, reason: None, evidence: None };
    Decide { request, requested_by: None }
}

async fn release(publisher: &Running, digest: Option<Digest>, before: Option<Digest>) -> ReleaseAnswer {
    let (deployment, devices) = ("log".parse().unwrap(), vec![key(0), key(1)]);
    let request = ReleaseRequest { deployment, digest, before, force: false, devices };
    publisher.announcer.release(Release { request, requested_by: None }).await.unwrap()
}

fn refusals(answer: &ReleaseAnswer) -> Vec<ReleaseRefusal> {
    answer.refused.iter().map(|refused| refused.reason).collect()
}

/// A publisher of two governed devices, which have the release `v1` and may get `v2`.
async fn with_a_held_change(stream: &Stream) -> Running {
    let publisher = Running::start(stream);
    publisher.commit(fleet("c1", 2, "v1")).await.unwrap();
    publisher.applied("c1").await;
    publisher.commit(governed("c2", 2, "v2")).await.unwrap();
    publisher.applied("c2").await;
    publisher
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_stored_once_whatever_answers_are_lost() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    stream.0.lock().unwrap().faults = VecDeque::from([Fault::Lost, Fault::Unanswered]);
    let paused = publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v2"))).await.unwrap();
    assert_eq!(paused.record.word(), RolloutWord::Paused);
    let stored = stream.0.lock().unwrap().decisions[&"log".parse().unwrap()].1.clone();
    assert_eq!(stored.rollouts, [paused.record], "one decision, and the answer has it");
    assert_eq!(stored.rollouts[0].decisions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_decision_of_another_publisher_forbids_a_release_and_survives_a_start() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let other = with_a_held_change(&stream).await;
    other.announcer.decide(asked(RolloutVerb::Stop, digest("v2"))).await.unwrap();
    let answer = release(&publisher, Some(digest("v2")), None).await;
    assert_eq!(refusals(&answer), [ReleaseRefusal::Stopped; 2]);
    other.stop().await;
    publisher.stop().await;
    let next = with_a_held_change(&stream).await;
    let held = next.status.answer().git.unwrap().held;
    assert_eq!(held[0].state, RolloutWord::Stopped);
    let answer = release(&next, Some(digest("v2")), None).await;
    assert_eq!(refusals(&answer), [ReleaseRefusal::Stopped; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_passes_over_contents_that_were_given_up() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    assert_eq!(release(&publisher, Some(digest("v2")), None).await.released.len(), 2);
    publisher.announcer.decide(asked(RolloutVerb::Stop, digest("v2"))).await.unwrap();
    publisher.commit(governed("c3", 2, "v3")).await.unwrap();
    assert_eq!(release(&publisher, Some(digest("v3")), None).await.released.len(), 2);
    publisher.announcer.decide(asked(RolloutVerb::Rollback, digest("v3"))).await.unwrap();
    let before = Some(digest("v3"));
    assert_eq!(release(&publisher, None, before).await.released.len(), 2);
    let query = TargetsQuery { deployment: "log".parse().unwrap(), limit: None, after: None };
    let targets = publisher.announcer.targets(query).await.unwrap().targets;
    assert!(targets.iter().all(|target| target.published == Some(digest("v1"))), "{targets:?}");
    let again = release(&publisher, None, before).await;
    assert_eq!((again.released.len(), again.refused.len()), (2, 0), "a repeated rollback changes nothing");
    let documents = stream.0.lock().unwrap().history[&key(0)].len();
    assert_eq!(documents, 4, "v1, v2, v3, v1");
}

#[tokio::test(start_paused = true)]
async fn a_decision_is_about_a_content_that_git_wants_and_a_wave_that_needs_approval() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let refused = publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v9"))).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound, "{refused:?}");
    assert!(refused.message.contains("muster rollout show log"), "{refused:?}");
    let mut unknown = asked(RolloutVerb::Approve, digest("v2"));
    unknown.request.wave = "rest".parse().ok();
    let refused = publisher.announcer.decide(unknown).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::BadRequest, "{refused:?}");
    let refused = publisher.announcer.decide(asked(RolloutVerb::Retry, digest("v2"))).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused:?}");
    assert!(stream.0.lock().unwrap().decisions.is_empty(), "a refused decision is stored nowhere");
}

#[tokio::test(start_paused = true)]
async fn an_open_rollout_is_listed_until_it_has_ended() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let open = || publisher.status.answer().git.unwrap().open_rollouts.len();
    assert_eq!(open(), 0);
    for (verb, count) in [(RolloutVerb::Begin, 1), (RolloutVerb::Finish, 0), (RolloutVerb::Rollback, 1)] {
        publisher.announcer.decide(asked(verb, digest("v2"))).await.unwrap();
        assert_eq!(open(), count, "{verb:?}");
    }
}
