//! A planner that was stopped goes on after its checkpoint, on a whole system with real agents; a checkpoint that does not fit is set
//! aside, and LEDGER is read from its first message.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs;

use muster_tests::rollouts::{PLANNER, governed, muster, release, says, start_planner};
use muster_tests::story::sleeper;
use muster_tests::system::System;

const ROLLOUT: &str = "apiVersion: muster/v1\nkind: Rollout\nwaves:\n  - {name: ours, site: plant7}\n  - {name: theirs, site: plant8, approval: before}\n";

/// Waits until the planner's log has these words so many times.
async fn logged(system: &System, words: &str, times: usize) {
    let is_logged = async || {
        let log = system.log(PLANNER);
        if log.matches(words).count() >= times { Ok(()) } else { Err(log) }
    };
    system.eventually(&format!("the planner has logged '{words}' {times} times"), is_logged).await;
}

#[tokio::test]
async fn a_stopped_planner_goes_on_after_its_checkpoint_unless_it_is_damaged() {
    let (mut system, _) = governed(ROLLOUT).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    let waits = "which has 0 of 1 approvals";
    says(&system, &["rollout", "show", "web"], waits).await;
    logged(&system, waits, 1).await;
    system.terminate(PLANNER).await;
    let file = system.dir().join("planner/planner.checkpoint");
    assert!(file.exists(), "{}", system.log(PLANNER));

    // The approval arrives while no planner runs.
    let (code, said) = muster(&system, &["rollout", "approve", "web", "--wave", "theirs"]).await;
    assert_eq!(code, 0, "{said}");
    system.start_again(PLANNER);
    // Rollouts and plans read LEDGER each for themselves.
    logged(&system, "reading LEDGER after the checkpoint", 2).await;
    says(&system, &["rollout", "show", "web"], "done: every target has the content").await;

    system.terminate(PLANNER).await;
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    system.start_again(PLANNER);
    logged(&system, "set the checkpoint aside", 1).await;
    release(&system, &sleeper("web", 3)).await;
    says(&system, &["rollout", "show", "web"], waits).await;
    assert!(file.with_extension("set-aside").exists());
}
