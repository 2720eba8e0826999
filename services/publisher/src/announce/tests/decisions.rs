//! Decisions about rollouts on a stream that loses answers and has another publisher.

mod approvers;
mod order;
mod rollback;

use std::collections::VecDeque;

use muster_contract::canonical::Digest;
use muster_contract::rollout::{
    Approvals, DecideRequest, ReleaseAnswer, ReleaseRefusal, ReleaseRequest, RolloutPhase, RolloutRecord,
    RolloutVerb, TargetsAnswer, TargetsQuery,
};

use super::stream::Fault;
use super::*;
use crate::requests::{Decide, Release};
use crate::source::RolloutFile;

const FILE: &str = "fleet/rollout.yaml";

/// A fleet whose devices one rollout governs.
fn governed(revision: &str, devices: usize, command: &str) -> Fleet {
    let waves = serde_json::json!([{ "name": "canary", "count": 1, "approval": "before" }]);
    governed_by(revision, devices, command, &waves)
}

fn governed_by(revision: &str, devices: usize, command: &str, waves: &serde_json::Value) -> Fleet {
    let rollout = serde_json::json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves });
    let file = RolloutFile { path: FILE.to_owned(), rollout: serde_json::from_value(rollout).unwrap() };
    let file = Arc::new(file);
    let rollouts = (0..devices).map(|at| (key(at), file.clone())).collect();
    Fleet { rollouts, ..fleet(revision, devices, command) }
}

/// The same fleet, in which a wave needs two approvals.
fn with_two_approvals(mut fleet: Fleet) -> Fleet {
    for file in fleet.rollouts.values_mut() {
        let mut rollout = file.rollout.clone();
        rollout.approvals.need = std::num::NonZeroU32::new(2).unwrap();
        *file = Arc::new(RolloutFile { path: FILE.to_owned(), rollout });
    }
    fleet
}

/// The same request by a person.
fn by(person: &str, decide: Decide) -> Decide {
    Decide {
        requested_by: Some(muster_contract::RequestedBy::new(person, person, Some("operator"))),
        ..decide
    }
}

fn digest(command: &str) -> Digest {
    content("log", command).digest()
}

fn asked(verb: RolloutVerb, digest: Digest) -> Decide {
    let wave = verb.has_wave().then(|| "canary".parse().unwrap());
    let (deployment, rollout) = ("log".parse().unwrap(), FILE.to_owned());
    let request = DecideRequest {
        deployment,
        digest,
        rollout,
        verb,
        wave,
        reason: None,
        evidence: None,
        result: None,
        expected: None,
        revision: None,
        record: None,
    };
    Decide { request, requested_by: None }
}

async fn release(publisher: &Running, digest: Option<Digest>, before: Option<Digest>) -> ReleaseAnswer {
    let (deployment, devices) = ("log".parse().unwrap(), vec![key(0), key(1)]);
    let request = ReleaseRequest { digest, before, ..ReleaseRequest::new(deployment, devices) };
    publisher.announcer.release(Release { request, requested_by: None }).await.unwrap()
}

/// The first page of targets, and the decisions about their rollouts.
async fn targets(publisher: &Running) -> TargetsAnswer {
    let query = TargetsQuery { deployment: "log".parse().unwrap(), limit: None, after: None, revision: None };
    publisher.announcer.targets(query).await.unwrap()
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
    assert_eq!(paused.record.phase(), RolloutPhase::Paused);
    let stored = stream.0.lock().unwrap().decisions[&("log".parse().unwrap(), FILE.to_owned())].1.clone();
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
    assert_eq!(held[0].phase, RolloutPhase::Stopped);
    let answer = release(&next, Some(digest("v2")), None).await;
    assert_eq!(refusals(&answer), [ReleaseRefusal::Stopped; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_decision_needs_a_content_of_git_and_a_wave_that_needs_approval() {
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
    for (verb, count) in [(RolloutVerb::Begin, 1), (RolloutVerb::Pause, 1), (RolloutVerb::Resume, 1)] {
        publisher.announcer.decide(asked(verb, digest("v2"))).await.unwrap();
        assert_eq!(open(), count, "{verb:?}");
    }
    release(&publisher, Some(digest("v2")), None).await;
    publisher.announcer.decide(asked(RolloutVerb::Finish, digest("v2"))).await.unwrap();
    assert_eq!(open(), 0);
    publisher.announcer.decide(asked(RolloutVerb::Rollback, digest("v2"))).await.unwrap();
    assert_eq!(open(), 1, "devices still have the content");
    release(&publisher, None, Some(digest("v2"))).await;
    assert_eq!(open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_decision_about_another_phase_than_the_requester_has_seen_is_refused() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    publisher.announcer.decide(asked(RolloutVerb::Stop, digest("v2"))).await.unwrap();
    let mut late = asked(RolloutVerb::Rollback, digest("v2"));
    late.request.expected = Some(RolloutPhase::Running);
    let refused = publisher.announcer.decide(late).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("is stopped; the request is about one that is running"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_after_another_one_than_the_requester_has_seen_is_refused() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let empty = RolloutRecord::new(digest("v2"), FILE.to_owned());
    let mut first = asked(RolloutVerb::Begin, digest("v2"));
    first.request.record = Some(empty.version());
    let begun = publisher.announcer.decide(first.clone()).await.unwrap();
    assert_eq!(begun.record.phase(), empty.phase(), "the phase alone does not tell");
    let mut late = asked(RolloutVerb::Stop, digest("v2"));
    late.request.record = first.request.record;
    let refused = publisher.announcer.decide(late).await.unwrap_err();
    assert!(
        refused.code == ErrorCode::Conflict && refused.message.contains("another decision"),
        "{refused:?}"
    );
    let mut next = asked(RolloutVerb::Pause, digest("v2"));
    next.request.record = Some(begun.record.version());
    assert!(publisher.announcer.decide(next).await.unwrap().changed);
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_could_not_be_stored_may_be_asked_for_again() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    stream.0.lock().unwrap().faults = [Fault::Lost; 20].into();
    let refused = publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v2"))).await.unwrap_err();
    assert!(refused.code == ErrorCode::NotReady && refused.message.contains("ask again"), "{refused:?}");
    stream.0.lock().unwrap().faults.clear();
    assert!(publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v2"))).await.unwrap().changed);
}

#[tokio::test(start_paused = true)]
async fn a_decision_judged_by_the_policy_of_another_commit_is_refused() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let mut begin = asked(RolloutVerb::Begin, digest("v2"));
    begin.request.revision = Some("c1".to_owned());
    let refused = publisher.announcer.decide(begin.clone()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused:?}");
    begin.request.revision = Some("c2".to_owned());
    assert!(publisher.announcer.decide(begin).await.unwrap().changed);
}

#[tokio::test(start_paused = true)]
async fn a_release_computed_beside_another_one_is_refused() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let of = |at: usize, released| {
        let request = ReleaseRequest {
            digest: Some(digest("v2")),
            released: Some(released),
            ..ReleaseRequest::new("log".parse().unwrap(), vec![key(at)])
        };
        publisher.announcer.release(Release { request, requested_by: None })
    };
    assert_eq!(of(0, 0).await.unwrap().released.len(), 1);
    let refused = of(1, 0).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused:?}");
    assert_eq!(of(0, 0).await.unwrap().released.len(), 1, "a repeated release is done");
    assert_eq!(of(1, 1).await.unwrap().released.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_computed_before_another_decision_is_refused() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let begin = publisher.announcer.decide(asked(RolloutVerb::Begin, digest("v2"))).await.unwrap().record;
    let none = RolloutRecord::new(digest("v2"), begin.rollout.clone()).version();
    let release = |record| {
        let request = ReleaseRequest {
            digest: Some(digest("v2")),
            record: Some(record),
            ..ReleaseRequest::new("log".parse().unwrap(), vec![key(0)])
        };
        publisher.announcer.release(Release { request, requested_by: None })
    };
    let decide = |verb, record| {
        let mut decide = asked(verb, digest("v2"));
        decide.request.record = Some(record);
        publisher.announcer.decide(decide)
    };
    assert_eq!(release(none).await.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(decide(RolloutVerb::Rollback, none).await.unwrap_err().code, ErrorCode::Conflict);
    let again = decide(RolloutVerb::Begin, none).await.unwrap();
    assert!(!again.changed && again.record == begin, "another planner has begun the wave: {again:?}");
    assert_eq!(release(begin.version()).await.unwrap().released, [key(0)]);
    assert_eq!(release(none).await.unwrap().released, [key(0)], "a repeated release is done");
    assert!(decide(RolloutVerb::Rollback, begin.version()).await.unwrap().changed);
}

#[tokio::test(start_paused = true)]
async fn a_planner_may_not_approve_resume_or_retry() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v2"))).await.unwrap();
    for verb in [RolloutVerb::Approve, RolloutVerb::Resume, RolloutVerb::Retry] {
        let by = Some(muster_contract::RequestedBy::new("UP", "planner", Some("planner")));
        let decide = Decide { requested_by: by, ..asked(verb, digest("v2")) };
        let refused = publisher.announcer.decide(decide).await.unwrap_err();
        assert!(refused.message.contains("only a person may"), "{verb:?}: {refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn evidence_is_approved_once_recorded_and_where_a_wave_asks_for_it() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    let waves = serde_json::json!([{ "name": "canary", "count": 1, "approval": "after" }]);
    publisher.commit(governed_by("c1", 2, "v1", &waves)).await.unwrap();
    let decide = async |verb| publisher.announcer.decide(asked(verb, digest("v1"))).await;
    let early = decide(RolloutVerb::Approve).await.unwrap_err();
    assert_eq!(early.code, ErrorCode::Conflict);
    assert!(early.message.contains("nothing to approve"), "{early:?}");
    decide(RolloutVerb::Ready).await.unwrap();
    assert!(decide(RolloutVerb::Approve).await.unwrap().changed);
    let mut checked = asked(RolloutVerb::Check, digest("v1"));
    checked.request.result = Some(muster_contract::rollout::CheckResult::Pass);
    let refused = publisher.announcer.decide(checked).await.unwrap_err();
    assert!(refused.message.contains("no wave canary that has checks"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_another_content_ends_a_rollout_and_a_bad_one_stays_held() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    publisher.announcer.decide(asked(RolloutVerb::Begin, digest("v2"))).await.unwrap();
    publisher.commit(governed("c3", 2, "v3")).await.unwrap();
    publisher.announcer.decide(asked(RolloutVerb::Rollback, digest("v3"))).await.unwrap();
    publisher.commit(governed("c4", 2, "v2")).await.unwrap();
    let phases = |answer: TargetsAnswer| -> Vec<_> {
        answer.decisions.iter().map(|record| (record.digest, record.phase())).collect()
    };
    let found = phases(targets(&publisher).await);
    assert!(found.contains(&(digest("v2"), RolloutPhase::Superseded)), "{found:?}");
    assert!(found.contains(&(digest("v3"), RolloutPhase::RolledBack)), "{found:?}");
    publisher.commit(governed("c5", 2, "v3")).await.unwrap();
    let answer = release(&publisher, Some(digest("v3")), None).await;
    assert_eq!(refusals(&answer), [ReleaseRefusal::Stopped; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_start_with_an_older_commit_ends_no_rollout() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    publisher.announcer.decide(asked(RolloutVerb::Approve, digest("v2"))).await.unwrap();
    publisher.stop().await;
    let next = Running::start(&stream);
    next.announcer.resume(fleet("c1", 2, "v1"), BTreeSet::new()).await.unwrap();
    next.commit(governed("c2", 2, "v2")).await.unwrap();
    let record = targets(&next).await.decisions.remove(0);
    assert_eq!(record.phase(), RolloutPhase::Running);
    assert_eq!(record.approvals(&"canary".parse().unwrap(), Timestamp::MIN, None, &Approvals::default()), 1);
}

#[tokio::test(start_paused = true)]
async fn unreadable_decisions_allow_nothing() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    stream.0.lock().unwrap().unreadable = true;
    let request = ReleaseRequest {
        digest: Some(digest("v2")),
        ..ReleaseRequest::new("log".parse().unwrap(), vec![key(0)])
    };
    publisher.announcer.decide(asked(RolloutVerb::Pause, digest("v2"))).await.unwrap_err();
    let refused = publisher.announcer.release(Release { request, requested_by: None }).await.unwrap_err();
    assert!(refused.message.contains("run the release that wrote it"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn each_of_many_files_has_a_pause_of_its_own_that_survives_a_restart() {
    let stream = Stream::default();
    let (count, path) = (20, |at: usize| format!("sites/s{at}/rollout.yaml"));
    let of_files = |revision: &str| {
        let mut fleet = governed(revision, count, "v2");
        for (at, file) in fleet.rollouts.values_mut().enumerate() {
            *file = Arc::new(RolloutFile { path: path(at), rollout: file.rollout.clone() });
        }
        fleet
    };
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", count, "v1")).await.unwrap();
    publisher.applied("c1").await;
    publisher.commit(of_files("c2")).await.unwrap();
    for at in 0..count {
        let mut pause = asked(RolloutVerb::Pause, digest("v2"));
        pause.request.rollout = path(at);
        publisher.announcer.decide(pause).await.unwrap();
    }
    publisher.stop().await;
    let next = Running::start(&stream);
    next.commit(of_files("c2")).await.unwrap();
    let devices = (0..count).map(key).collect();
    let request =
        ReleaseRequest { digest: Some(digest("v2")), ..ReleaseRequest::new("log".parse().unwrap(), devices) };
    let answer = next.announcer.release(Release { request, requested_by: None }).await.unwrap();
    assert_eq!(refusals(&answer), vec![ReleaseRefusal::Paused; count]);
}

#[tokio::test(start_paused = true)]
async fn the_requester_of_a_run_or_a_forced_gate_is_refused_as_its_approver() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    publisher.commit(with_two_approvals(governed("c3", 2, "v2"))).await.unwrap();
    publisher.applied("c3").await;
    let decide = async |person: &str, verb| {
        let mut decide = by(person, asked(verb, digest("v2")));
        decide.request.reason = Some("known".to_owned());
        publisher.announcer.decide(decide).await
    };
    decide("anna", RolloutVerb::Approve).await.unwrap();
    decide("anna", RolloutVerb::Stop).await.unwrap();
    decide("anna", RolloutVerb::Retry).await.unwrap();
    let refused = decide("anna", RolloutVerb::Approve).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    assert!(refused.message.starts_with("anna began this run"), "{}", refused.message);
    decide("ben", RolloutVerb::Force).await.unwrap();
    assert_eq!(decide("ben", RolloutVerb::Approve).await.unwrap_err().code, ErrorCode::Forbidden);
    decide("carla", RolloutVerb::Approve).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_a_bounded_number_of_rollouts_runs_at_once() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    let count = muster_contract::limits::RUNNING_ROLLOUTS_MAX + 1;
    let name = |at: usize| format!("log-{at}");
    let devices = (0..count).map(|at| (key(at), vec![content(&name(at), "v2")])).collect();
    publisher.commit(Fleet { devices, ..governed("c1", count, "v2") }).await.unwrap();
    let decide = async |verb, at: usize| {
        let mut decide = asked(verb, content(&name(at), "v2").digest());
        decide.request.deployment = name(at).parse().unwrap();
        publisher.announcer.decide(decide).await
    };
    for at in 0..count - 1 {
        decide(RolloutVerb::Begin, at).await.unwrap();
    }
    let refused = decide(RolloutVerb::Begin, count - 1).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(
        refused.message.contains("100 rollouts are running") && refused.message.contains("log-100"),
        "{refused:?}"
    );
    assert!(!decide(RolloutVerb::Begin, 3).await.unwrap().changed, "a repeated begin is no other rollout");
    decide(RolloutVerb::Pause, 3).await.unwrap();
    decide(RolloutVerb::Begin, count - 1).await.unwrap_err();
    decide(RolloutVerb::Stop, 3).await.unwrap();
    decide(RolloutVerb::Begin, count - 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_released_document_has_the_backoff_of_its_rollout() {
    let stream = Stream::default();
    let publisher = with_a_held_change(&stream).await;
    let mut fleet = governed("c3", 2, "v2");
    for file in fleet.rollouts.values_mut() {
        let mut rollout = serde_json::to_value(&file.rollout).unwrap();
        rollout["retries"] = serde_json::json!({ "max": 2, "classes": ["imagePull"], "backoff": { "min": "30s", "max": "10m" } });
        let rollout = serde_json::from_value(rollout).unwrap();
        *file = Arc::new(RolloutFile { path: FILE.to_owned(), rollout });
    }
    publisher.commit(fleet).await.unwrap();
    publisher.applied("c3").await;
    let retry = |device| stream.0.lock().unwrap().last[&key(device)].1.retry;
    assert_eq!(retry(0), None, "a policy alone makes no document");
    assert!(refusals(&release(&publisher, Some(digest("v2")), None).await).is_empty());
    let delays = serde_json::to_value(retry(0)).unwrap();
    assert_eq!(delays, serde_json::json!({ "min": "30s", "max": "10m" }));
}
