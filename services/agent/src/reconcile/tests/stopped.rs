//! Tests of deployments that are desired as stopped, and of restarts.

use super::*;

/// [`deployment`], desired as stopped.
fn stopped(id: &str, target: u64, components: &[&str]) -> DesiredDeployment {
    control(deployment(id, target, components), true, 0)
}

/// [`deployment`] with a restart counter.
fn restarted(id: &str, target: u64, components: &[&str], restart: u64) -> DesiredDeployment {
    control(deployment(id, target, components), false, restart)
}

fn control(entry: DesiredDeployment, stopped: bool, restart: u64) -> DesiredDeployment {
    let mut entry = DesiredDeployment { stopped, restart, ..entry };
    entry.digest = entry.content_digest();
    entry
}

/// A trial in which `web` was installed and then stopped.
async fn with_stopped() -> Trial {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.forget_calls();
    trial.desire(document(2, vec![stopped("web", 2, &["db", "ui"])]));
    trial
        .reports(&[
            "web@2 removing: db=removing ui=removing",
            "web@2 removing: db=removing ui=pending",
            "web@2 pending: db=pending ui=pending",
        ])
        .await;
    assert_eq!(trial.runtime.calls(), ["stop web/ui", "stop web/db"]);
    assert!(trial.runtime.running().is_empty());
    trial
}

#[tokio::test(start_paused = true)]
async fn a_stopped_deployment_stays_stopped_and_is_started_again() {
    let mut trial = with_stopped().await;
    let reason = trial.told.last().unwrap().status.reason.clone();
    assert_eq!(reason.as_deref(), Some("stopped on request"));
    trial.runtime.forget_calls();
    trial.nothing_for(Duration::from_secs(24 * 3_600 - 1)).await;
    for restarts in 0..2 {
        trial = if restarts == 0 { trial.restart().await } else { trial.kill().await };
        trial.nothing_for(Duration::from_secs(3_600)).await;
    }
    assert!(trial.runtime.calls().is_empty(), "no agent touches it");
    trial.desire(document(3, vec![deployment("web", 3, &["db", "ui"])]));
    trial.until("web@3 installed: db=installed ui=installed").await;
    assert_eq!(trial.runtime.running(), ["web/db", "web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_deployment_that_is_no_longer_desired_is_removed() {
    let mut trial = with_stopped().await;
    trial.desire(document(3, vec![]));
    trial.until("web@3 removed: db=removed ui=removed").await;
    assert!(trial.records.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_stopped_from_its_first_target_on_never_starts() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![stopped("web", 1, &["ui"])]));
    trial.reports(&["web@1 removing: ui=removing", "web@1 pending: ui=pending"]).await;
    trial.nothing_for(Duration::from_secs(3_600)).await;
    assert_eq!(trial.runtime.calls(), ["stop web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_a_new_version_removes_components_of_the_old() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["old", "ui"])]));
    trial.until("web@1 installed: old=installed ui=installed").await;
    trial.desire(document(2, vec![stopped("web", 2, &["ui"])]));
    trial.until("web@2 pending: ui=pending").await;
    assert!(trial.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_is_reported_and_tried_again() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["ui."])]));
    trial.until("web@1 installed: ui=installed").await;
    trial.runtime.fail_stop("web/ui", 1);
    trial.runtime.fail_inventory(1);
    trial.desire(document(2, vec![stopped("web", 2, &["ui."])]));
    trial
        .reports(&[
            "web@2 removing: ui=removing",
            "web@2 failed: ui=removing",
            "web@2 failed: ui=failed",
            "web@2 pending: ui=pending",
        ])
        .await;
    trial.nothing_for(Duration::from_secs(3_600)).await;
    assert!(trial.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_cancels_a_start_and_goes_on_after_the_agent_was_killed() {
    let mut trial = Trial::new();
    trial.runtime.slow("web/ui", Duration::from_secs(3_600));
    trial.runtime.delay_stop("web/ui", Duration::from_secs(5));
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installing: ui=installing").await;
    trial.desire(document(2, vec![stopped("web", 2, &["ui"])]));
    trial.reports(&["web@2 removing: ui=removing"]).await;
    let mut trial = trial.kill().await;
    trial.reports(&["web@2 pending: ui=pending"]).await;
    assert!(trial.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restart_replaces_every_component_once_also_if_the_agent_is_killed() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.forget_calls();
    trial.desire(document(2, vec![restarted("web", 2, &["db", "ui"], 1)]));
    trial
        .reports(&[
            "web@2 pending: db=pending ui=pending",
            "web@2 installing: db=installing ui=pending",
            "web@2 pending: db=installed ui=pending",
        ])
        .await;
    let mut trial = trial.kill().await;
    trial.until("web@2 installed: db=installed ui=installed").await;
    let calls = trial.runtime.calls();
    for unit in ["db", "ui"] {
        let stops = calls.iter().filter(|call| **call == format!("stop web/{unit}")).count();
        assert_eq!(stops, 1, "{unit} ended once: {calls:?}");
    }
    trial.runtime.forget_calls();
    trial.desire(document(3, vec![restarted("web", 2, &["db", "ui"], 1)]));
    trial.nothing_for(Duration::from_secs(3_600)).await;
    assert!(trial.runtime.calls().is_empty(), "the same counter restarts nothing");
}

#[tokio::test(start_paused = true)]
async fn a_component_that_had_to_be_killed_is_reported_as_such() {
    let mut trial = Trial::new();
    let reason = |trial: &Trial| trial.told.last().unwrap().status.reason.clone().unwrap_or_default();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.stop_when_killed("web/ui");
    trial.desire(document(2, vec![stopped("web", 2, &["db", "ui"])]));
    trial.until("web@2 pending: db=pending ui=pending").await;
    let killed = "killed after stopTimeout: ui";
    assert_eq!(reason(&trial), format!("stopped on request; {killed}"));
    trial.desire(document(3, vec![deployment("web", 3, &["db", "ui"])]));
    trial.until("web@3 installed: db=installed ui=installed").await;
    assert_eq!(reason(&trial), "", "it runs again");
    trial.desire(document(4, vec![]));
    trial.until("web@4 removed: db=removed ui=removed").await;
    assert_eq!(reason(&trial), killed, "also after others have ended in time");
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_repeated_while_it_is_under_way_starts_nothing() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.forget_calls();
    trial.runtime.delay_stop("web/db", Duration::from_secs(10));
    trial.desire(document(2, vec![stopped("web", 2, &["db", "ui"])]));
    trial.until("web@2 removing: db=removing ui=pending").await;
    // The same content with a newer target generation cancels the operation that stops the last component.
    trial.desire(document(3, vec![stopped("web", 3, &["db", "ui"])]));
    trial.until("web@3 pending: db=pending ui=pending").await;
    trial.wait_until_idle().await;
    assert_eq!(trial.runtime.calls(), ["stop web/ui", "stop web/db"]);
    assert!(trial.runtime.running().is_empty());
}
