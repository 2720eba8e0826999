//! Commits: the publisher publishes the documents of each, or refuses the commit.

use muster_contract::desired::SourceKind;
use muster_contract::headers;
use muster_contract::query::SomeDevices;

use crate::stage::{Stage, deployment};

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_becomes_one_document_for_each_device() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "fleet");
    stage.write("sites/plant7/web.yaml", "web", "site");
    let both = format!("{}---\n{}", deployment("log", "near"), deployment("own", "device"));
    stage.repository.write("sites/plant7/press-1/own.yaml", &both).unwrap();
    stage.device("plant7/press-2");
    stage.device("plant8/oven");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;

    let shown = |generation, all: &[&str]| (generation, all.iter().map(|one| (*one).to_owned()).collect());
    assert_eq!(stage.shown("plant7/press-1").await, shown(1, &["log=near@1", "own=device@1", "web=site@1"]));
    assert_eq!(stage.shown("plant7/press-2").await, shown(1, &["log=fleet@1", "web=site@1"]));
    assert_eq!(stage.shown("plant8/oven").await, shown(1, &["log=fleet@1"]));

    let document = stage.document("plant8/oven").await;
    assert_eq!((document.source.kind, document.source.revision), (SourceKind::Git, commit));
    let last = stage.last("plant8/oven").await.unwrap();
    assert_eq!(last.headers.get(headers::CE_ID), Some("plant8.oven.1"));
    assert_eq!(last.headers.get(headers::TRACEPARENT).map(str::len), Some(55));
    assert_eq!(publisher.status.answer().devices, 3);
    assert!(publisher.stop().await.late.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_changed_is_published_and_going_back_is_a_new_generation() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    for device in ["a/one", "a/two"] {
        stage.device(device);
    }
    stage.write("sites/a/one/web.yaml", "web", "first");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    let before = stage.last("a/two").await.unwrap().stream_seq;

    for (command, generation) in [("second", 2), ("first", 3)] {
        stage.write("sites/a/one/web.yaml", "web", command);
        publisher.applied(&stage.commit().await).await;
        let wanted = vec!["log=run@1".to_owned(), format!("web={command}@{generation}")];
        assert_eq!(stage.shown("a/one").await, (generation, wanted));
    }
    assert_eq!(stage.last("a/two").await.unwrap().stream_seq, before, "an unchanged device got a document");

    stage.repository.write("README.md", "no deployment").unwrap();
    let published = stage.published().await;
    publisher.applied(&stage.commit().await).await;
    assert_eq!(stage.published().await, published);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_publishes_nothing_that_did_not_change() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    stage.device("a/one");
    stage.device("a/two");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    publisher.stop().await;
    let published = stage.published().await;

    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    assert_eq!(stage.published().await, published);

    publisher.stop().await;
    stage.write("sites/a/one/web.yaml", "web", "new");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    assert_eq!(stage.shown("a/one").await, (2, vec!["log=run@1".to_owned(), "web=new@2".to_owned()]));
    assert_eq!(stage.published().await, published + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_commit_is_refused_as_a_whole_and_the_next_good_one_goes_out() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    stage.device("a/one");
    let good = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&good).await;
    let published = stage.published().await;

    stage.write("fleet/log.yaml", "log", "changed");
    stage.write("sites/a/one/web.yaml", "web", "new");
    stage.repository.write("sites/a/bad.yaml", "id: Bad\nmetadata: {name: bad}\nspec: {}\n").unwrap();
    let bad = stage.commit().await;
    let problems = publisher.refused(&bad).await;
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(
        problems[0].starts_with("sites/a/bad.yaml:1: id: 'Bad' is not a valid deployment"),
        "{problems:?}"
    );
    assert_eq!(stage.published().await, published, "something of a refused commit got out");
    publisher.stop().await;

    let publisher = stage.publisher().await;
    assert_eq!(publisher.refused(&bad).await, problems, "a restart forgot why");
    publisher.applied(&good).await;
    publisher.refused(&bad).await;
    assert_eq!(stage.published().await, published);

    std::fs::remove_file(stage.repository.dir().join("sites/a/bad.yaml")).unwrap();
    publisher.applied(&stage.commit().await).await;
    assert_eq!(stage.shown("a/one").await, (2, vec!["log=changed@2".to_owned(), "web=new@2".to_owned()]));
    assert_eq!(publisher.status.answer().git.unwrap().refused, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_of_one_device_leaves_the_others_their_commit() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "old");
    stage.write("sites/a/two/web.yaml", "web", "old");
    let good = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&good).await;
    stage.write("sites/a/one/web.yaml", "web", "new");
    stage.repository.write("sites/a/two/web.yaml", "id: [").unwrap();
    let partly = stage.commit().await;
    publisher.applied(&partly).await;
    assert_eq!(stage.shown("a/one").await, (2, vec!["web=new@2".to_owned()]));
    assert_eq!(stage.shown("a/two").await, (1, vec!["web=old@1".to_owned()]), "it keeps what it has");
    let held = publisher.status.answer().git.unwrap().held_back.unwrap();
    assert_eq!((held.devices.count, held.problems[0].file.as_str()), (1, "sites/a/two/web.yaml"));

    std::fs::remove_file(stage.repository.dir().join("sites/a/two/web.yaml")).unwrap();
    stage.repository.write("sites/a/two/device.yaml", "retired: true\n").unwrap();
    publisher.applied(&stage.commit().await).await;
    assert!(stage.document("a/two").await.retired, "a tombstone needs no second command");
    assert_eq!(publisher.status.answer().git.unwrap().held_back, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_goes_leaves_an_empty_document_and_comes_back_above_it() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "run");
    stage.device("a/two");
    let publisher = stage.publisher().await;
    publisher.applied(&stage.commit().await).await;
    stage.remove("sites/a/one");
    publisher.applied(&stage.commit().await).await;
    let named = SomeDevices { count: 1, first: vec!["a/one".parse().unwrap()] };
    assert_eq!(publisher.status.answer().left_over, named, "nothing says what becomes of the device");
    let gone = stage.document("a/one").await;
    assert_eq!((gone.generation.get(), gone.retired, gone.deployments.len()), (2, false, 0));
    stage.write("sites/a/one/web.yaml", "web", "run");
    publisher.applied(&stage.commit().await).await;
    assert_eq!(stage.shown("a/one").await, (3, vec!["web=run@3".to_owned()]));
    assert!(publisher.status.answer().left_over.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_never_answered_is_said_to_have_never_answered() {
    let stage = Stage::new().await;
    std::fs::rename(stage.repository.dir(), stage.dir().join("away")).unwrap();
    let publisher = stage.publisher().await;
    let git = async || publisher.status.answer().git.unwrap();
    let git = muster_tests::wait::until("polls have failed", git, |git| git.failures >= 2).await;
    assert_eq!((git.polled_at, git.applied), (None, None));
    assert!(
        git.error.is_some() && publisher.supervisor.health().missing().is_empty(),
        "requests are still met"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_any_device_is_refused_unless_that_is_allowed() {
    let stage = Stage::new().await;
    stage.write("fleet/log.yaml", "log", "run");
    stage.device("a/one");
    let good = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&good).await;
    stage.remove("fleet");
    stage.remove("sites");
    stage.repository.write("README.md", "another repository altogether").unwrap();
    let empty = stage.commit().await;
    let problems = publisher.refused(&empty).await;
    assert!(
        problems[0].contains("no device folder") && problems[0].contains("--allow-empty"),
        "{problems:?}"
    );
    publisher.stop().await;
    let publisher = stage.publisher().await;
    publisher.refused(&empty).await;
    publisher.applied(&good).await;
    assert_eq!(stage.shown("a/one").await, (1, vec!["log=run@1".to_owned()]));
    publisher.stop().await;

    let publisher = stage.publisher_that_may_empty_the_fleet().await;
    publisher.applied(&empty).await;
    assert_eq!(stage.shown("a/one").await, (2, Vec::new()));
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_pushed_by_force_is_followed() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "first");
    let first = stage.commit().await;
    stage.write("sites/a/one/web.yaml", "web", "second");
    let second = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&second).await;
    stage.git(&["reset", "--quiet", "--hard", &first]);
    publisher.applied(&first).await;
    assert_eq!(stage.shown("a/one").await, (2, vec!["web=first@2".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_repository_is_reported_and_the_fleet_keeps_its_state() {
    let stage = Stage::new().await;
    stage.write("sites/a/one/web.yaml", "web", "run");
    let commit = stage.commit().await;
    let publisher = stage.publisher().await;
    publisher.applied(&commit).await;
    let (here, away) = (stage.repository.dir().to_owned(), stage.dir().join("away"));
    std::fs::rename(&here, &away).unwrap();
    let error = async || publisher.status.answer().git.unwrap().error;
    let error = muster_tests::wait::until("the status has the error", error, Option::is_some).await.unwrap();
    assert!(error.contains("--git-url"), "{error}");
    assert_eq!(stage.shown("a/one").await.0, 1);
    std::fs::rename(&away, &here).unwrap();
    stage.write("sites/a/one/web.yaml", "web", "new");
    publisher.applied(&stage.commit().await).await;
    assert_eq!(publisher.status.answer().git.unwrap().error, None);
}
