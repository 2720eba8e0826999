//! Rollbacks: the content that each device had before.

use super::*;

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
    let targets = targets(&publisher).await.targets;
    assert!(targets.iter().all(|target| target.published == Some(digest("v1"))), "{targets:?}");
    let again = release(&publisher, None, before).await;
    assert_eq!((again.released.len(), again.refused.len()), (2, 0), "a repeated rollback changes nothing");
    let documents = stream.0.lock().unwrap().history[&key(0)].len();
    assert_eq!(documents, 4, "v1, v2, v3, v1");
}

#[tokio::test(start_paused = true)]
async fn no_device_keeps_a_content_back_unless_its_rollout_is_rolled_back() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    release(&publisher, Some(digest("v2")), None).await;
    publisher.announcer.decide(asked(RolloutVerb::Rollback, digest("v2"))).await.unwrap();
    publisher.announcer.decide(asked(RolloutVerb::Retry, digest("v2"))).await.unwrap();
    let late = release(&publisher, None, Some(digest("v2"))).await;
    assert_eq!(refusals(&late), [ReleaseRefusal::NotRolledBack; 2], "a person has begun it again meanwhile");
}

#[tokio::test(start_paused = true)]
async fn an_abort_gives_devices_the_content_before_and_none_this_one() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    release(&publisher, Some(digest("v2")), None).await;
    publisher.announcer.decide(asked(RolloutVerb::Abort, digest("v2"))).await.unwrap();
    let back = release(&publisher, None, Some(digest("v2"))).await;
    assert_eq!((back.released.len(), back.refused.len()), (2, 0));
    let again = release(&publisher, Some(digest("v2")), None).await;
    assert_eq!(refusals(&again), [ReleaseRefusal::Stopped; 2]);
}

/// Two devices, of which the first cannot go back from `v2`, which was rolled back.
async fn with_a_refused_rollback(stream: &Stream) -> Running {
    let publisher = with_a_held_change(stream).await;
    release(&publisher, Some(digest("v2")), None).await;
    // DOWNLINK keeps a bounded number of documents, and LEDGER keeps them for a bounded time.
    stream.0.lock().unwrap().history.get_mut(&key(0)).unwrap().remove(0);
    publisher.announcer.decide(asked(RolloutVerb::Rollback, digest("v2"))).await.unwrap();
    assert_eq!(refused(&publisher).await, [None; 2], "the histories are read when a rollback is requested");
    let back = release(&publisher, None, Some(digest("v2"))).await;
    assert_eq!(refusals(&back), [ReleaseRefusal::NoEarlierContent]);
    publisher
}

async fn refused(publisher: &Running) -> [Option<ReleaseRefusal>; 2] {
    let targets = targets(publisher).await.targets;
    [0, 1].map(|at: usize| targets[at].refused)
}

const REFUSED: [Option<ReleaseRefusal>; 2] = [Some(ReleaseRefusal::NoEarlierContent), None];

#[tokio::test(start_paused = true)]
async fn a_target_that_has_no_content_to_go_back_to_is_listed_with_that_reason() {
    let stream = Stream::default();
    let publisher = with_a_refused_rollback(&stream).await;
    assert_eq!(refused(&publisher).await, REFUSED);
    publisher.announcer.decide(asked(RolloutVerb::Retry, digest("v2"))).await.unwrap();
    assert_eq!(refused(&publisher).await, [None; 2], "another decision is judged anew");
    let back = release(&publisher, None, Some(digest("v2"))).await;
    assert_eq!(refusals(&back), [ReleaseRefusal::NotRolledBack], "and nothing goes back");
}

#[tokio::test(start_paused = true)]
async fn a_target_without_a_content_to_go_back_to_gets_another_one() {
    let stream = Stream::default();
    let publisher = with_a_refused_rollback(&stream).await;
    publisher.commit(governed("c3", 2, "v1")).await.unwrap();
    assert_eq!(refused(&publisher).await, [None; 2], "Git wants another content");
    assert_eq!(release(&publisher, Some(digest("v1")), None).await.refused, []);
}

#[tokio::test(start_paused = true)]
async fn a_refused_rollback_counts_for_the_document_that_the_device_had() {
    let stream = Stream::default();
    let publisher = with_a_refused_rollback(&stream).await;
    for content in ["v1", "v2"] {
        let (deployment, digest) = ("log".parse().unwrap(), Some(digest(content)));
        let request = ReleaseRequest { digest, force: true, ..ReleaseRequest::new(deployment, vec![key(0)]) };
        let answer = publisher.announcer.release(Release { request, requested_by: None }).await.unwrap();
        assert_eq!(answer.released, [key(0)], "{content}");
    }
    assert_eq!(refused(&publisher).await, [None; 2], "it has the content again, in a later document");
}

#[tokio::test(start_paused = true)]
async fn a_refused_rollback_is_judged_again_after_a_while() {
    let stream = Stream::default();
    let publisher = with_a_refused_rollback(&stream).await;
    tokio::time::sleep(std::time::Duration::from_secs(590)).await;
    assert_eq!(refused(&publisher).await, REFUSED);
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(refused(&publisher).await, [None; 2]);
}
