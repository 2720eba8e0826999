//! Limits of a release on a whole system with real agents: windows, the budget of a group, and a share of failures.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_contract::Timestamp;
use muster_tests::rollouts::{
    ROLLOUT_FILE, all_have, governed, json, published, release, shows, start_planner,
};
use muster_tests::story::sleeper;
use muster_tests::system::agent_name;

/// Time before a window that is shut opens.
const SHUT_FOR: Duration = Duration::from_secs(6 * 60 * 60);

#[tokio::test]
async fn a_window_that_is_shut_holds_a_release_until_a_commit_opens_it() {
    let policy = |start: &str, length: &str| {
        format!(
            "apiVersion: muster/v1\nkind: Rollout\nwaves: [{{name: all, percent: 100%}}]\nwindows: [{{start: \"{start}\", length: {length}}}]\n"
        )
    };
    let opens = Timestamp::now().checked_add(SHUT_FOR).unwrap().strftime("%H:%M").to_string();
    let (mut system, _) = governed(&policy(&opens, "1h")).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    let shown = shows(&system, "wave all waits for a window: none is open until ").await;
    assert!(shown.contains(&format!("{opens}:00Z")), "{shown}");
    let (_, why) = json(&system, &["why", "rollout", "web"]).await;
    let blocked = &why[0]["blocked"];
    assert_eq!((&blocked["rule"], blocked["until"].is_string()), (&"window".into(), true), "{why}");
    assert_eq!(published(&system).await, ["1"; 4]);
    system.repository.write(ROLLOUT_FILE, &policy("00:00", "24h")).unwrap();
    system.repository.commit("open at once").await.unwrap();
    shows(&system, "done: every target has the content").await;
    all_have(&system, "2").await;
}

#[tokio::test]
async fn a_device_under_way_takes_the_room_of_its_group_and_gives_it_back() {
    let policy = "apiVersion: muster/v1\nkind: Rollout\nwaves: [{name: all, percent: 100%}]\nbudget: {groupBy: line, maxUnavailable: 1}\n";
    let (mut system, devices) = governed(policy).await;
    // It gets its document, and is heard until its lease ends: it is under way, and nobody knows how it ends.
    system.freeze(&agent_name(&devices[0]));
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    let shown = shows(&system, "wave all waits for the budget: ").await;
    assert!(shown.contains("has 1 or more devices unavailable (plant7/press-1)"), "{shown}");
    assert_eq!(published(&system).await, ["2", "1", "1", "1"]);
    system.thaw(&agent_name(&devices[0]));
    shows(&system, "done: every target has the content").await;
    all_have(&system, "2").await;
}

#[tokio::test]
async fn a_share_of_failures_stops_a_wave_once_its_sample_is_complete() {
    let policy = "apiVersion: muster/v1\nkind: Rollout\nonFailure: rollback\nwaves:\n  - {name: all, percent: 100%, maxInFlight: 1, \
                  failure: {atMost: 50%, minimumSample: 3}, success: {atLeast: 25%}}\n";
    let (mut system, _) = governed(policy).await;
    start_planner(&mut system);
    let broken = sleeper("web", 2).replace("command: sleep", "command: no-such-program");
    release(&system, &broken).await;
    let shown = shows(&system, "is rolled back since").await;
    assert!(shown.contains("wave all has failed"), "{shown}");
    let (_, history) = json(&system, &["rollout", "history", "web"]).await;
    let decisions = history["rollouts"][0]["decisions"].as_array().unwrap();
    let rollback = decisions.iter().find(|decision| decision["verb"] == "rollback").unwrap();
    let evidence = &rollback["evidence"];
    assert_eq!((&evidence["failed"], &evidence["targets"]), (&3.into(), &4.into()), "{rollback}");
    all_have(&system, "1").await;
}
