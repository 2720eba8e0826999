//! `muster watch --until … --commit`: a verdict counts only with the commit, on a whole system whose LEDGER is held back from
//! it; and how the watch ends where the commit changes nothing, is refused, or was replaced.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::process::Command;

use muster_contract::DeviceKey;
use muster_contract::query::{GitStatus, PublisherStatus};
use muster_simulator::repository::write_devices;
use muster_tests::story;
use muster_tests::streams::{hold_back, let_through};
use muster_tests::system::{PUBLISHER, System};
use muster_tests::watching::Watch;

const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

/// Commits what was written; the commit.
async fn commit(system: &System, message: &str) -> String {
    system.repository.commit(message).await.unwrap();
    let head = Command::new("git").current_dir(system.repository.dir()).args(["rev-parse", "HEAD"]).output();
    String::from_utf8(head.unwrap().stdout).unwrap().trim().to_owned()
}

/// Waits until the publisher says that of Git.
async fn publisher(system: &System, what: &str, holds: impl Fn(&GitStatus) -> bool) -> GitStatus {
    system
        .eventually(what, async || {
            let output = system.muster(&["publisher", "status", "--format", "json"]).await;
            let status: PublisherStatus = serde_json::from_slice(&output.stdout)
                .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
            let git = status.git.unwrap();
            if holds(&git) { Ok(git) } else { Err(format!("{git:?}")) }
        })
        .await
}

fn is_applied(git: &GitStatus, commit: &str) -> bool {
    git.applied.as_deref() == Some(commit)
}

/// How a watch for a commit ends.
async fn waited(system: &System, commit: &str, more: &[&str]) -> (i32, String) {
    let words = ["web", "--until", "converged", "--commit", commit, "--within", "60s"];
    Watch::start(system, &[&words[..], more].concat()).end().await
}

/// The number behind some words.
fn number_after(said: &str, words: &str) -> u64 {
    let (_, behind) = said.split_once(words).unwrap_or_else(|| panic!("'{words}' is not in {said}"));
    behind.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_verdict_of_before_the_commit_does_not_end_a_watch_that_waits_for_it() {
    let mut system = System::start().await;
    let mut devices: Vec<DeviceKey> = story::settled(&mut system, &DEVICES, "web").await;
    // DOWNLINK has all of the commit, and LEDGER nothing of it: what is shown is as before, and it has converged.
    let sources = hold_back(&system.bus).await;
    devices.push(story::key("plant9/press-3"));
    write_devices(&system.repository, &devices).unwrap();
    let commit = commit(&system, "a third device").await;
    let is_under_way = |git: &GitStatus| is_applied(git, &commit) && git.applied_through.is_none();
    publisher(&system, "it is published, and not in LEDGER", is_under_way).await;

    let blind = Watch::start(&system, &["web", "--until", "converged"]).end().await;
    assert_eq!(blind.0, 0, "what the commit is named for: {}", blind.1);
    let words = ["web", "--until", "converged", "--commit", &commit[..10], "--within", "60s"];
    let mut watch = Watch::start(&system, &words);
    watch.line_with("converged  2 of 2 converged").await;
    let_through(&system.bus, &sources).await;
    watch.line_with("of 3 converged").await;
    let told = publisher(&system, "all of it is in LEDGER", |git| git.applied_through.is_some()).await;
    assert!(is_applied(&told, &commit));
    system.start_agent(&devices[2], system.address(), &[]);
    watch.line_with("converged  3 of 3 converged").await;
    watch.rest().await;
    let (code, said) = watch.end().await;
    assert_eq!(code, 0, "{said}");
    assert!(
        said.starts_with(&format!("muster: waiting until LEDGER holds all of commit {}\n", &commit[..10]))
    );
    let through = number_after(&said, "as of ");
    assert_eq!(Some(through), told.applied_through, "{said}");
    assert!(number_after(&said, "muster: web is converged as of ledger ") >= through, "{said}");
}

#[tokio::test]
async fn a_watch_ends_at_once_if_its_commit_changes_nothing_or_never_comes() {
    let mut system = System::start().await;
    story::settled(&mut system, &DEVICES, "web").await;
    system.repository.write("README", "nothing that a device would see\n").unwrap();
    let unchanged = commit(&system, "words").await;
    for (run, more) in [&[][..], &["--name", "night-shift"], &["--name", "night-shift", "--format", "json"]]
        .into_iter()
        .enumerate()
    {
        let (code, said) = waited(&system, &unchanged, more).await;
        assert_eq!(code, 0, "run {run}: {said}");
        assert!(said.contains("muster: web is converged as of ledger "), "run {run}: {said}");
    }
    let shown = String::from_utf8(system.muster(&["publisher", "status"]).await.stdout).unwrap();
    assert!(shown.contains(&format!("{unchanged}, in LEDGER as of ")), "{shown}");

    system.repository.write("fleet/bad.yaml", "id: [").unwrap();
    let bad = commit(&system, "a slip").await;
    let (code, said) = waited(&system, &bad, &[]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&format!("commit {bad} is refused as a whole")), "{said}");
    assert!(said.contains("fleet/bad.yaml:"), "{said}");

    std::fs::remove_file(system.repository.dir().join("fleet/bad.yaml")).unwrap();
    let good = commit(&system, "the slip is mended").await;
    publisher(&system, "the mended one is published", |git| is_applied(git, &good)).await;
    for late in [&bad, &unchanged] {
        let (code, said) = waited(&system, late, &[]).await;
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("commit {late} is not what is published")), "{said}");
        assert!(said.contains(&format!("`--commit {good}` waits for")), "{said}");
    }
    let words = ["web", "--until", "converged", "--commit", "0123456", "--within", "2s"];
    let (code, said) = Watch::start(&system, &words).end().await;
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("LEDGER does not hold all of commit 0123456 yet"), "{said}");

    system.terminate(PUBLISHER).await;
    let (code, said) = waited(&system, &good, &[]).await;
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("no muster-publisher answers on muster.publisher.status"), "{said}");
}

#[tokio::test]
async fn a_branch_set_back_is_waited_for_after_a_newer_published_commit() {
    let mut system = System::start().await;
    story::settled(&mut system, &DEVICES, "web").await;
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(system.repository.dir()).args(args).output().unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let older = git(&["rev-parse", "HEAD"]);
    system.repository.write("fleet/web.yaml", &story::sleeper("web", 2)).unwrap();
    let newer = commit(&system, "a release that is taken back").await;
    publisher(&system, "the newer one is in LEDGER", |git| {
        is_applied(git, &newer) && git.applied_through.is_some()
    })
    .await;
    git(&["reset", "--quiet", "--hard", &older]);
    let (code, said) = waited(&system, &older, &[]).await;
    assert_eq!(code, 0, "{said}");
    let told = publisher(&system, "the older one is published again", |git| is_applied(git, &older)).await;
    assert_eq!(Some(number_after(&said, "as of ")), told.applied_through, "{said}");
}
