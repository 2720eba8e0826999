//! A run has the caller's environment, without what would lead it to the caller's own fleet and repository.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::process::Command;

use muster_simulator::child::{Child, Spec};
use muster_simulator::repository::Repository;

/// Says to a test that it runs in a process of its own.
const AGAIN: &str = "TEST_IN_A_PROCESS_OF_ITS_OWN";

/// Plays a test once more in a process with more variables: those of a process are all its tests'. True in that process.
fn is_under(variables: &[(&str, &Path)], test: &str) -> bool {
    if std::env::var_os(AGAIN).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test]).env(AGAIN, "1").envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn a_commit_within_a_git_hook_goes_to_the_fleets_repository() {
    let (mine, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let own = mine.path().join(".git");
    let variables: [(&str, &Path); 3] =
        [("GIT_DIR", &own), ("GIT_WORK_TREE", mine.path()), ("GIT_INDEX_FILE", &own.join("index"))];
    let test = "a_commit_within_a_git_hook_goes_to_the_fleets_repository";
    if !is_under(&variables, test) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let repository = Repository::create(dir.path().join("repository")).await.unwrap();
        repository.write("fleet/web.yaml", "id: web\n").unwrap();
        repository.commit("Release 1").await.unwrap();
    });
    let theirs = Path::new(&std::env::var_os("GIT_DIR").unwrap()).to_owned();
    assert!(!theirs.exists(), "the caller's repository was written to");
    assert!(dir.path().join("repository/.git/HEAD").is_file());
}

#[test]
fn a_process_of_a_run_gets_no_credentials_of_the_callers() {
    let secret = Path::new("/home/somebody/admin.creds");
    let variables =
        [("MUSTER_CREDS", secret), ("MUSTER_FLEET_DIR", secret), ("MUSTER_LOG", secret), ("KEPT", secret)];
    if !is_under(&variables, "a_process_of_a_run_gets_no_credentials_of_the_callers") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let spec = Spec { name: "said".to_owned(), program: "env".into(), args: Vec::new() };
        let status = Child::start(spec, dir.path()).unwrap().ended_by_itself().await.unwrap();
        assert!(status.success());
    });
    let said = std::fs::read_to_string(dir.path().join("logs/said.log")).unwrap();
    let mut of_muster: Vec<_> = said.lines().filter(|line| line.starts_with("MUSTER_")).collect();
    of_muster.sort_unstable();
    let own = format!("MUSTER_FLEET_DIR={}", dir.path().display());
    assert_eq!(of_muster, [&own, "MUSTER_LOG=/home/somebody/admin.creds"]);
    assert!(said.contains("KEPT=/home/somebody/admin.creds"), "{said}");
}
