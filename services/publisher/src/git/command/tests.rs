//! The outcomes of a run of git, with a shell in place of git.

use rustix::process::test_kill_process_group;

use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn shell() -> Git {
    Git::new(PathBuf::from("sh"), &"/nowhere".parse().unwrap(), None)
}

/// Waits until no process of the group is left.
async fn gone(group: Pid) {
    let gone = async {
        while test_kill_process_group(group).is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
}

#[tokio::test]
async fn what_takes_too_long_is_ended_with_all_it_started() {
    let mut run = shell().start("wait", ["-c", "sleep 60 & sleep 60"], Stdio::null()).unwrap();
    let group = run.group.unwrap();
    let slow = run.within(SHORT, async |child: &mut Child| child.wait().await).await.unwrap_err();
    assert!(matches!(slow, GitError::Slow { .. }), "{slow}");
    gone(group).await;
}

#[tokio::test]
async fn a_git_that_ignores_the_stop_is_killed() {
    let args = ["-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"];
    let mut run = shell().start("wait", args, Stdio::null()).unwrap();
    let group = run.group.unwrap();
    let mut heard = [0; 4];
    run.child.stdout.as_mut().unwrap().read_exact(&mut heard).await.unwrap();
    assert!(run.within(SHORT, async |child: &mut Child| child.wait().await).await.is_err());
    gone(group).await;
}

#[tokio::test]
async fn what_is_dropped_is_ended() {
    let run = shell().start("wait", ["-c", "sleep 60"], Stdio::null()).unwrap();
    let group = run.group.unwrap();
    drop(run);
    gone(group).await;
}

#[tokio::test]
async fn a_failure_has_gits_message_and_git_gets_no_setting_of_the_shell() {
    let script = "echo \"fatal: $GIT_TERMINAL_PROMPT ${GIT_DIR-unset}\" >&2; echo; echo more >&2; exit 3";
    let failed = shell().run("do it", LOCAL_LIMIT, ["-c", script]).await.unwrap_err().to_string();
    assert_eq!(failed, "git could not do it (exit status: 3): fatal: 0 unset; more");
}

#[tokio::test]
async fn a_token_as_the_user_of_the_address_is_not_repeated() {
    let url = "https://ghp_secret@git.example/fleet.git".parse().unwrap();
    let git = Git::new(PathBuf::from("sh"), &url, None);
    let script = "echo \"could not read Password for 'https://ghp_secret@git.example'\" >&2; exit 1";
    let failed = git.run("ask", LOCAL_LIMIT, ["-c", script]).await.unwrap_err().to_string();
    assert!(failed.contains("https://…@git.example") && !failed.contains("ghp_secret"), "{failed}");
}

#[tokio::test]
async fn a_missing_git_program_has_a_clear_error() {
    let git = Git::new(PathBuf::from("no-such-git"), &"/nowhere".parse().unwrap(), None);
    let missing = git.run("do it", LOCAL_LIMIT, ["x"]).await.unwrap_err().to_string();
    assert!(missing.contains("'no-such-git'") && missing.contains("install git"), "{missing}");
}
