//! Changes that a `rollout.yaml` governs: held without a planner, released by request, and kept through crashes of the
//! publisher.

use muster_contract::canonical::Digest;
use muster_contract::query::{ErrorCode, ErrorReply, GitStatus, PublisherStatus};
use muster_contract::rollout::{
    HeldChange, ReleaseAnswer, ReleaseRefusal, ReleaseRequest, TargetsAnswer, TargetsQuery,
};
use muster_tests::wait::until;

use crate::requests::apply;
use crate::stage::{Publisher, Stage, deployment};

const ROLLOUT: &str = "apiVersion: muster/v1\nkind: Rollout\nwaves: [{name: canary, devices: [a/one]}]\n";

/// A fleet of three devices that run `web=v1`, the third of a site without a rollout, and the commit of `web=v2`.
async fn held() -> (Stage, Publisher, String) {
    let stage = Stage::new().await;
    stage.write("fleet/web.yaml", "web", "v1");
    for device in ["a/one", "a/two", "b/three"] {
        stage.device(device);
    }
    let publisher = stage.publisher().await;
    publisher.applied(&stage.commit().await).await;
    stage.repository.write("sites/a/rollout.yaml", ROLLOUT).unwrap();
    stage.write("fleet/web.yaml", "web", "v2");
    let commit = stage.commit().await;
    publisher.applied(&commit).await;
    (stage, publisher, commit)
}

fn git(publisher: &Publisher) -> GitStatus {
    publisher.status.answer().git.unwrap()
}

/// The held changes once there are so many.
async fn held_changes(publisher: &Publisher, count: usize) -> Vec<HeldChange> {
    until("so many changes are held", async || git(publisher).held, |held| held.len() == count).await
}

async fn targets(stage: &Stage, id: &str) -> TargetsAnswer {
    let query = TargetsQuery { deployment: id.parse().unwrap(), limit: None, after: None, revision: None };
    stage.ask("targets", &query).await.unwrap()
}

fn request(id: &str, digest: Option<Digest>, devices: &[&str]) -> ReleaseRequest {
    let devices = devices.iter().map(|device| device.parse().unwrap()).collect();
    let deployment = id.parse().unwrap();
    ReleaseRequest { digest, ..ReleaseRequest::new(deployment, devices) }
}

async fn release(stage: &Stage, id: &str, digest: Option<Digest>, devices: &[&str]) -> ReleaseAnswer {
    stage.ask("release", &request(id, digest, devices)).await.unwrap()
}

fn refusals(answer: &ReleaseAnswer) -> Vec<(String, ReleaseRefusal)> {
    answer.refused.iter().map(|refused| (refused.key.to_string(), refused.reason)).collect()
}

fn released(answer: &ReleaseAnswer) -> Vec<String> {
    answer.released.iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_governed_change_is_held_without_a_planner_and_others_go_out() {
    let (stage, publisher, commit) = held().await;
    let change = held_changes(&publisher, 1).await.remove(0);
    assert_eq!((change.deployment.as_str(), change.rollout.as_str()), ("web", "sites/a/rollout.yaml"));
    assert_eq!((change.devices.count, change.devices.first.len()), (2, 2));
    assert_eq!(stage.shown("a/one").await, (1, vec!["web=v1@1".to_owned()]), "DOWNLINK is unchanged");
    assert_eq!(stage.shown("b/three").await, (2, vec!["web=v2@2".to_owned()]), "no rollout governs it");

    stage.device("a/new");
    publisher.applied(&stage.commit().await).await;
    assert_eq!(stage.shown("a/new").await, (1, vec![]), "a new device gets an empty document");
    let published = stage.published().await;
    publisher.crash().await;
    let publisher = stage.publisher().await;
    assert_eq!(held_changes(&publisher, 1).await[0].devices.count, 3, "a restart forgets nothing");
    assert_eq!(stage.published().await, published, "and lets nothing out");
    assert_ne!(git(&publisher).applied, Some(commit));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_reaches_the_named_devices_once() {
    let (stage, publisher, _) = held().await;
    let wanted = targets(&stage, "web").await;
    assert_eq!((wanted.targets.len(), wanted.rollouts.len()), (2, 1));
    let digest = wanted.targets[0].wanted;
    assert_ne!(wanted.targets[0].published, digest);

    let answer = release(&stage, "web", digest, &["a/one", "b/three", "x/nobody"]).await;
    assert_eq!(released(&answer), ["a/one"]);
    let reasons = [ReleaseRefusal::NotGoverned, ReleaseRefusal::NotInGit];
    assert_eq!(refusals(&answer).into_iter().map(|(_, reason)| reason).collect::<Vec<_>>(), reasons);
    assert_eq!(stage.shown("a/one").await, (2, vec!["web=v2@2".to_owned()]));
    assert_eq!(stage.shown("a/two").await, (1, vec!["web=v1@1".to_owned()]), "nobody else");
    assert_eq!(held_changes(&publisher, 1).await[0].devices.count, 1);

    let published = stage.published().await;
    for _ in 0..2 {
        assert_eq!(released(&release(&stage, "web", digest, &["a/one"]).await), ["a/one"]);
    }
    assert_eq!(stage.published().await, published, "the same again changes nothing");
    let rest = release(&stage, "web", digest, &["a/one", "a/two", "a/two"]).await;
    assert_eq!((released(&rest), rest.refused.len()), (vec!["a/one".to_owned(), "a/two".to_owned()], 0));
    held_changes(&publisher, 0).await;
    let in_ledger = async || git(&publisher).applied_through;
    until("LEDGER has the released documents", in_ledger, Option::is_some).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_bad_commits_knows_the_newest_good_rollouts() {
    let (stage, publisher, _) = held().await;
    // No document changes with a policy, so DOWNLINK does not tell which commit was accepted last.
    let stricter =
        "apiVersion: muster/v1\nkind: Rollout\nwaves: [{name: canary, devices: [a/one], approval: before}]\n";
    stage.repository.write("sites/a/rollout.yaml", stricter).unwrap();
    let good = stage.commit().await;
    publisher.applied(&good).await;
    let before = targets(&stage, "web").await;
    publisher.stop().await;
    stage.repository.write("fleet/bad.yaml", "id: [").unwrap();
    stage.commit().await;
    stage.repository.write("fleet/bad.yaml", "id: {").unwrap();
    let bad = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.refused(&bad).await;
    publisher.applied(&good).await;
    let after = targets(&stage, "web").await;
    assert_eq!((after.revision, after.rollouts), (before.revision, before.rollouts));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_outlives_a_crash_and_a_lost_answer() {
    let (stage, publisher, _) = held().await;
    let digest = targets(&stage, "web").await.targets[0].wanted;
    release(&stage, "web", digest, &["a/one"]).await;
    publisher.crash().await;
    let publisher = stage.publisher().await;
    assert_eq!(held_changes(&publisher, 1).await[0].devices.count, 1, "DOWNLINK says what was released");
    let published = stage.published().await;
    assert_eq!(released(&release(&stage, "web", digest, &["a/one"]).await), ["a/one"]);
    assert_eq!(stage.published().await, published);
    stage.write("fleet/log.yaml", "log", "v1");
    publisher.applied(&stage.commit().await).await;
    assert_eq!(
        stage.shown("a/one").await,
        (2, vec!["web=v2@2".to_owned()]),
        "the next commit takes nothing back"
    );
    assert_eq!(held_changes(&publisher, 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_new_commit_overtakes_is_no_rollback() {
    let (stage, publisher, commit) = held().await;
    let digest = targets(&stage, "web").await.targets[0].wanted;
    let overtaken = ReleaseRequest { revision: Some(commit), ..request("web", digest, &["a/one"]) };
    stage.write("fleet/web.yaml", "web", "v3");
    publisher.applied(&stage.commit().await).await;
    let published = stage.published().await;
    let refused: Result<ReleaseAnswer, ErrorReply> = stage.ask("release", &overtaken).await;
    assert_eq!(refused.unwrap_err().error.code, ErrorCode::Conflict);
    assert_eq!(stage.published().await, published);
    // Computed again, it has the newest content; a person may release any by hand.
    let TargetsAnswer { revision, targets, .. } = targets(&stage, "web").await;
    let again = ReleaseRequest { revision: Some(revision), ..request("web", targets[0].wanted, &["a/one"]) };
    let answer: ReleaseAnswer = stage.ask("release", &again).await.unwrap();
    assert_eq!(released(&answer), ["a/one"]);
    assert_eq!(stage.shown("a/one").await, (2, vec!["web=v3@2".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_goes_back_to_an_earlier_content() {
    let (stage, publisher, _) = held().await;
    let all = targets(&stage, "web").await.targets;
    let (old, new) = (all[1].published, all[1].wanted);
    release(&stage, "web", new, &["a/one", "a/two"]).await;
    held_changes(&publisher, 0).await;
    // No device has it any more; DOWNLINK's older messages do.
    let answer = release(&stage, "web", old, &["a/one", "a/two"]).await;
    assert_eq!(released(&answer), ["a/one", "a/two"]);
    for device in ["a/one", "a/two"] {
        assert_eq!(stage.shown(device).await, (3, vec!["web=v1@3".to_owned()]), "a new generation");
    }
    assert_eq!(held_changes(&publisher, 1).await[0].digest, new, "what Git wants is held again");
    let unknown = release(&stage, "web", Some(Digest::of_bytes(b"never")), &["a/one"]).await;
    assert_eq!(refusals(&unknown), [("a/one".to_owned(), ReleaseRefusal::UnknownDigest)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_held_and_released_like_a_change() {
    let (stage, publisher, _) = held().await;
    let answer = release(&stage, "web", None, &["a/one"]).await;
    assert_eq!(refusals(&answer), [("a/one".to_owned(), ReleaseRefusal::StillInGit)]);
    std::fs::remove_file(stage.repository.dir().join("fleet/web.yaml")).unwrap();
    publisher.applied(&stage.commit().await).await;
    assert_eq!(held_changes(&publisher, 1).await[0].digest, None);
    assert_eq!(stage.shown("b/three").await.1, Vec::<String>::new(), "no rollout governs it");
    assert_eq!(stage.shown("a/one").await, (1, vec!["web=v1@1".to_owned()]));
    assert_eq!(released(&release(&stage, "web", None, &["a/one", "a/two"]).await), ["a/one", "a/two"]);
    assert_eq!(stage.shown("a/one").await, (2, vec![]));
    held_changes(&publisher, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_on_a_governed_device_lets_no_held_change_out() {
    let (stage, publisher, _) = held().await;
    apply(&stage, "a/one", deployment("own", "api")).await.unwrap();
    assert_eq!(stage.shown("a/one").await.1, ["own=api@2", "web=v1@1"]);
    apply(&stage, "a/one", deployment("web", "api")).await.unwrap();
    assert_eq!(held_changes(&publisher, 1).await[0].devices.count, 1, "a request stands for the deployment");
    let digest = targets(&stage, "web").await.targets[0].wanted;
    let answer = release(&stage, "web", digest, &["a/one"]).await;
    assert_eq!(refusals(&answer), [("a/one".to_owned(), ReleaseRefusal::AppliedByRequest)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_rollout_refuses_the_commit_and_a_publisher_may_ignore_rollouts() {
    let (stage, publisher, _) = held().await;
    stage.repository.write("sites/a/rollout.yaml", &format!("{ROLLOUT}blueGreen: true\n")).unwrap();
    let problems = publisher.refused(&stage.commit().await).await;
    assert_eq!(problems.len(), 1);
    let words = "sites/a/rollout.yaml:4: blueGreen: is not a field here";
    assert!(problems[0].starts_with(words), "{problems:?}");
    stage.repository.write("sites/a/rollout.yaml", ROLLOUT).unwrap();
    let good = stage.commit().await;
    publisher.applied(&good).await;
    publisher.stop().await;
    let publisher = stage.publisher_that_ignores_rollouts().await;
    publisher.applied(&good).await;
    assert_eq!(stage.shown("a/one").await, (2, vec!["web=v2@2".to_owned()]));
    assert_eq!(git(&publisher).held, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_leaves_a_group_nothing_refuses_the_commit_by_its_name() {
    let (stage, publisher, _) = held().await;
    let budget = |bound: &str| format!("{ROLLOUT}budget: {{groupBy: line, {bound}}}\n");
    stage.repository.write("sites/a/rollout.yaml", &budget("minAvailable: 2")).unwrap();
    let problems = publisher.refused(&stage.commit().await).await;
    assert_eq!(
        problems,
        [
            "sites/a/rollout.yaml:4: budget.minAvailable: leaves no device of the group without line, which has 2: its devices \
             could never get a content"
        ]
    );
    assert_eq!(stage.shown("a/one").await, (1, vec!["web=v1@1".to_owned()]), "nothing of it is applied");
    stage.repository.write("sites/a/rollout.yaml", &budget("minAvailable: 1")).unwrap();
    publisher.applied(&stage.commit().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_deployments_with_rollouts_are_listed_page_by_page() {
    let (stage, publisher, _) = held().await;
    for at in 0..70 {
        stage.write(&format!("fleet/app-{at}.yaml"), &format!("app-{at}"), "v1");
    }
    publisher.applied(&stage.commit().await).await;
    until("the status counts what it does not list", async || git(&publisher), |git| git.held_omitted == 7)
        .await;
    let page = async |after: &str| -> GitStatus {
        let query = serde_json::json!({ "rolloutsAfter": after });
        let status: PublisherStatus = stage.ask("status", &query).await.unwrap();
        status.git.unwrap()
    };
    let first = page("").await;
    assert_eq!(
        (first.held.len(), first.rollout_deployments.len(), first.has_more_deployments),
        (64, 71, false)
    );
    let last = page("app-9").await.rollout_deployments;
    assert_eq!(last.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["web"]);
    assert!(git(&publisher).rollout_deployments.is_empty(), "nobody asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_without_devices_or_with_a_misspelt_key_is_refused() {
    let (stage, _publisher, _) = held().await;
    let ask = async |request: serde_json::Value| -> String {
        let answer: Result<ReleaseAnswer, ErrorReply> = stage.ask("release", &request).await;
        answer.unwrap_err().error.message
    };
    let none = ask(serde_json::json!({"deployment": "web", "devices": []})).await;
    assert_eq!(none, "devices: has 0 entries; 1 to 1000 are allowed");
    let fence = ask(serde_json::json!({"deployment": "web", "devices": [], "fence": 3})).await;
    assert!(fence.contains("fence: unknown key"), "{fence}");
    let status: PublisherStatus = stage.ask("status", &serde_json::json!({})).await.unwrap();
    assert_eq!(status.git.unwrap().held.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_of_an_earlier_commit_are_its_own_without_contents_of_devices() {
    let (stage, publisher, earlier) = held().await;
    let then = targets(&stage, "web").await;
    stage.repository.write("sites/a/rollout.yaml", &ROLLOUT.replace("a/one", "a/two")).unwrap();
    stage.write("fleet/web.yaml", "web", "v3");
    publisher.applied(&stage.commit().await).await;
    let of = |revision: String| TargetsQuery {
        deployment: "web".parse().unwrap(),
        limit: Some(1),
        after: None,
        revision: Some(revision),
    };
    let first: TargetsAnswer = stage.ask("targets", &of(earlier.clone())).await.unwrap();
    assert_eq!((&first.revision, &first.rollouts), (&earlier, &then.rollouts));
    let next = TargetsQuery { after: first.next.clone(), ..of(earlier.clone()) };
    let second: TargetsAnswer = stage.ask("targets", &next).await.unwrap();
    let shown: Vec<_> = [&first, &second].iter().flat_map(|page| &page.targets).collect();
    assert!(shown.iter().all(|target| target.published.is_none()) && second.next.is_none());
    let wanted: Vec<_> = shown.iter().map(|target| (&target.key, target.wanted)).collect();
    assert_eq!(wanted, then.targets.iter().map(|target| (&target.key, target.wanted)).collect::<Vec<_>>());
    for (revision, words) in
        [("0".repeat(40), "does not give commit"), ("main".to_owned(), "does not give commit")]
    {
        let refused = stage.ask::<TargetsAnswer>("targets", &of(revision)).await.unwrap_err();
        assert_eq!(refused.error.code, ErrorCode::NotFound);
        assert!(refused.error.message.contains(words), "{}", refused.error.message);
    }
}
