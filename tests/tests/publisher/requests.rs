//! Desired state by request, beside Git and without it.

use muster_bus::Outgoing;
use muster_contract::desired::SourceKind;
use muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX;
use muster_contract::query::{
    ApplyRequest, ErrorCode, ErrorReply, PublishAnswer, PublisherQuery, PublisherStatus, RemoveRequest,
    RetireRequest,
};
use serde_json::{Value, json};

use crate::stage::{Stage, deployment};

type Answer = Result<PublishAnswer, ErrorReply>;

pub(crate) async fn apply(stage: &Stage, device: &str, documents: String) -> Answer {
    stage.ask("apply", &ApplyRequest { key: device.parse().unwrap(), documents, file: None }).await
}

async fn remove(stage: &Stage, device: &str, id: Option<&str>) -> Answer {
    let id = id.map(|id| id.parse().unwrap());
    stage.ask("remove", &RemoveRequest { key: device.parse().unwrap(), id }).await
}

async fn retire(stage: &Stage, device: &str) -> Answer {
    stage.ask("retire", &RetireRequest { key: device.parse().unwrap() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_wins_over_git_survives_restarts_and_is_rolled_back() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;

    let both = format!("{}---\n{}", deployment("web", "api"), deployment("db", "api"));
    let applied = apply(&stage, "a/one", both.clone()).await.unwrap();
    assert_eq!((applied.generation.get(), applied.changed, applied.deployments.len()), (2, true, 2));
    let shown = vec!["db=api@2".to_owned(), "web=api@2".to_owned()];
    assert_eq!(stage.shown("a/one").await, (2, shown.clone()));
    let document = stage.document("a/one").await;
    let source = document.deployments[0].source.as_ref().unwrap();
    assert_eq!((document.source.kind, source.kind), (SourceKind::Git, SourceKind::Api));
    assert_eq!(
        (&document.source.requested_by, &source.requested_by),
        (&None, &None),
        "nobody is proven here"
    );
    assert!(!apply(&stage, "a/one", both).await.unwrap().changed, "the same again is nothing new");

    publisher.stop().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    assert_eq!(stage.shown("a/one").await, (2, shown));
    stage.write("fleet/log.yaml", "log", "git");
    publisher.applied(&stage.commit().await).await;
    let shown = ["db=api@2", "log=git@3", "web=api@2"].map(str::to_owned).to_vec();
    assert_eq!(stage.shown("a/one").await, (3, shown));

    assert!(remove(&stage, "a/one", Some("web")).await.unwrap().changed);
    assert!(remove(&stage, "a/one", None).await.unwrap().changed);
    assert!(!remove(&stage, "a/one", None).await.unwrap().changed);
    let shown = ["log=git@3", "web=git@4"].map(str::to_owned).to_vec();
    assert_eq!(stage.shown("a/one").await, (5, shown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_needs_no_git_and_may_retire_and_return() {
    let stage = Stage::new().await;
    let publisher = stage.publisher_without_git().await;
    let applied = apply(&stage, "b/two", deployment("web", "run")).await.unwrap();
    assert_eq!(applied.generation.get(), 1);
    let retired = retire(&stage, "b/two").await.unwrap();
    assert_eq!((retired.generation.get(), retired.deployments.len()), (2, 0));
    assert!(stage.document("b/two").await.retired);
    assert!(!retire(&stage, "b/two").await.unwrap().changed);
    let back = apply(&stage, "b/two", deployment("web", "run")).await.unwrap();
    assert_eq!(back.generation.get(), 3);
    assert!(back.returned && !back.new_device, "{back:?}");
    assert!(!stage.document("b/two").await.retired);
    let status: PublisherStatus = stage.ask("status", &PublisherQuery::default()).await.unwrap();
    assert_eq!((status.git, status.devices, status.in_git, status.retired), (None, 1, None, 0));
    assert_eq!(status.published, 3);
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_met_says_what_where_and_what_to_do() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    let published = stage.published().await;
    let refused = |answer: Answer| answer.unwrap_err().error;

    let bad = format!("{}\n---\nid: b\nspec: {{}}\n", deployment("a", "run"));
    let error = refused(apply(&stage, "a/one", bad).await);
    assert_eq!(error.code, ErrorCode::BadRequest);
    assert!(error.message.contains("request:12: metadata: is missing"), "{}", error.message);
    let twice = format!("{}---\n{}", deployment("a", "x"), deployment("a", "y"));
    let error = refused(apply(&stage, "a/one", twice).await);
    assert_eq!(error.message, "request:11: id: 'a' is in line 1 already");
    let error = refused(apply(&stage, "a/one", "# nothing\n".to_owned()).await);
    assert_eq!(error.message, "request: holds no deployment");
    let elsewhere = deployment("a", "x").replace("{name: a}", "{name: a, deviceId: two}");
    assert_eq!(refused(apply(&stage, "a/one", elsewhere).await).code, ErrorCode::BadRequest);

    let error = refused(remove(&stage, "a/one", Some("web")).await);
    assert!(error.code == ErrorCode::NotFound && error.message.contains("comes from Git"), "{error:?}");
    assert_eq!(refused(remove(&stage, "a/nobody", None).await).code, ErrorCode::NotFound);
    let error = refused(retire(&stage, "nosuch/x").await);
    assert!(error.code == ErrorCode::NotFound && error.message.contains("check the name"), "{error:?}");
    let error = refused(retire(&stage, "a/one").await);
    assert!(error.code == ErrorCode::Conflict && error.message.contains("sites/a/one"), "{error:?}");

    let unnamed: Result<Value, ErrorReply> = stage.ask("apply", &json!({"site": "A", "documents": ""})).await;
    assert!(unnamed.is_ok_and(|answer| answer["error"]["code"] == "badRequest"));
    assert_eq!(stage.published().await, published, "a refused request left something behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_says_what_else_it_does() {
    let stage = Stage::new().await;
    stage.write("fleet/node-clock.yaml", "node-clock", "git");
    stage.device("a/one");
    let publisher = stage.publisher().await;
    publisher.applied(&stage.commit().await).await;
    let over = apply(&stage, "a/one", deployment("node-clock", "api")).await.unwrap();
    assert_eq!(over.overrides, ["node-clock".parse().unwrap()]);
    assert!(!over.new_device && !over.returned, "{over:?}");
    let slip = apply(&stage, "a/onne", deployment("web", "api")).await.unwrap();
    assert!(slip.new_device && slip.overrides.is_empty(), "{slip:?}");
    assert!(!apply(&stage, "a/onne", deployment("db", "api")).await.unwrap().new_device);
    assert_eq!(retire(&stage, "a/onne").await.unwrap().deployments, []);
    let status = publisher.status.answer();
    assert_eq!((status.devices, status.in_git, status.retired), (1, Some(1), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_reported_and_was_never_told_anything_can_be_retired() {
    let stage = Stage::new().await;
    let _publisher = stage.publisher_without_git().await;
    assert_eq!(retire(&stage, "b/stray").await.unwrap_err().error.code, ErrorCode::NotFound);
    let heard = json!({"apiVersion": "muster/v1", "kind": "LivenessFact"});
    stage.bus.publish(Outgoing::new("muster.liveness.b.stray", heard.to_string())).await.unwrap();
    assert!(retire(&stage, "b/stray").await.unwrap().changed);
    assert!(stage.document("b/stray").await.retired);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_file_is_said_under_its_name() {
    let stage = Stage::new().await;
    let _publisher = stage.publisher_without_git().await;
    let request =
        json!({"site": "a", "device": "one", "documents": "id: Bad\n", "file": "new/web\u{7}.yaml"});
    let refused = stage.ask::<PublishAnswer>("apply", &request).await.unwrap_err().error;
    assert!(refused.message.starts_with("new/web.yaml:1: "), "{}", refused.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_bad_commit_still_knows_what_git_said_last() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    let good = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&good).await;
    apply(&stage, "a/one", deployment("web", "api")).await.unwrap();
    publisher.stop().await;

    stage.repository.write("fleet/bad.yaml", "id: [").unwrap();
    let bad = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.refused(&bad).await;
    publisher.applied(&good).await;
    publisher.refused(&bad).await;
    remove(&stage, "a/one", Some("web")).await.unwrap();
    assert_eq!(stage.shown("a/one").await, (3, vec!["web=git@3".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_blocked_by_a_request_is_published_after_its_rollback() {
    let stage = Stage::new().await;
    stage.device("a/one");
    let good = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&good).await;
    apply(&stage, "a/one", deployment("by-request", "api")).await.unwrap();
    for number in 0..DEPLOYMENTS_PER_DEVICE_MAX {
        stage.write(&format!("sites/a/one/app-{number}.yaml"), &format!("app-{number}"), "git");
    }
    let full = stage.commit().await;
    let held_back = async || publisher.status.answer().git.and_then(|git| git.held_back);
    let held =
        muster_tests::wait::until("the device is held back", held_back, Option::is_some).await.unwrap();
    assert!(held.revision == full && held.problems[0].rule.contains("`muster remove`"), "{held:?}");
    assert_eq!(stage.document("a/one").await.deployments.len(), 1, "it keeps what it has");
    remove(&stage, "a/one", Some("by-request")).await.unwrap();
    publisher.applied(&full).await;
    assert_eq!(held_back().await, None);
    assert_eq!(stage.document("a/one").await.deployments.len(), DEPLOYMENTS_PER_DEVICE_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_gits_earlier_commit_a_fallback_waits_for_a_good_commit() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    let good = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&good).await;
    apply(&stage, "a/one", deployment("web", "api")).await.unwrap();
    publisher.stop().await;

    stage.repository.write("fleet/bad.yaml", "id: [").unwrap();
    stage.git(&["checkout", "--quiet", "--orphan", "other"]);
    let bad = stage.commit().await;
    stage.git(&["branch", "--quiet", "--force", "main", &bad]);
    stage.git(&["reflog", "expire", "--expire=now", "--all"]);
    stage.git(&["gc", "--quiet", "--prune=now"]);
    let publisher = stage.publisher().await;
    publisher.refused(&bad).await;
    let error = remove(&stage, "a/one", Some("web")).await.unwrap_err().error;
    assert!(error.code == ErrorCode::Conflict && error.message.contains("publisher status"), "{error:?}");
    assert_eq!(publisher.status.answer().git.unwrap().applied, None, "nobody knows");
    assert!(apply(&stage, "a/one", deployment("db", "api")).await.unwrap().changed);
    stage.git(&["checkout", "--quiet", "main"]);
    stage.remove("fleet");
    publisher.applied(&stage.commit().await).await;
    remove(&stage, "a/one", Some("web")).await.unwrap();
    let shown = ["db=api@3", "web=git@4"].map(str::to_owned).to_vec();
    assert_eq!(stage.shown("a/one").await, (4, shown));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_can_be_discovered() {
    let stage = Stage::new().await;
    let _publisher = stage.publisher_without_git().await;
    let ping = async || {
        let asked =
            stage.bus.request("$SRV.INFO.muster-publisher", "".into(), std::time::Duration::from_secs(2));
        asked.await.ok()
    };
    let info = muster_tests::wait::until("the service answers", ping, Option::is_some).await.unwrap();
    let info: Value = serde_json::from_slice(&info).unwrap();
    let mut subjects: Vec<_> =
        info["endpoints"].as_array().unwrap().iter().map(|one| one["subject"].as_str().unwrap()).collect();
    subjects.sort_unstable();
    let wanted = ["apply", "decide", "release", "remove", "retire", "status", "targets"]
        .map(|verb| format!("muster.publisher.{verb}"));
    assert_eq!(subjects, wanted);
}
