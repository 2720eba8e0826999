//! Tests of obsolete components: those of an older version that the desired one lacks.

use super::*;

/// A device on which a version with these components is installed.
async fn installed(components: &[&str]) -> Trial {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, components)]));
    let states: Vec<_> = components.iter().map(|name| format!("{name}=installed")).collect();
    trial.until(&format!("web@1 installed: {}", states.join(" "))).await;
    trial.runtime.forget_calls();
    trial
}

fn second(components: &[&str]) -> CurrentDesired {
    document(2, vec![deployment("web", 2, components)])
}

#[tokio::test(start_paused = true)]
async fn obsolete_components_are_removed_before_their_successors_start() {
    let mut trial = installed(&["old"]).await;
    trial.desire(second(&["new"]));
    trial.until("web@2 installed: new=installed").await;
    assert_eq!(trial.runtime.calls(), ["stop web/old", "start web/new"]);
}

#[tokio::test(start_paused = true)]
async fn obsolete_components_that_a_newer_version_has_are_not_removed() {
    let mut trial = installed(&["a", "b"]).await;
    trial.runtime.delay_stop("web/a", Duration::from_secs(10));
    trial.desire(second(&["c"]));
    trial.until("web@2 pending: c=pending").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    trial.desire(document(3, vec![deployment("web", 3, &["b", "c"])]));
    trial.until("web@3 installed: b=installed c=installed").await;
    trial.wait_until_idle().await;
    let calls = trial.runtime.calls();
    assert!(!calls.contains(&"stop web/b".to_owned()), "{calls:?}");
    assert_eq!(trial.runtime.running(), ["web/b", "web/c"]);
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_removes_what_a_cancelled_operation_left_obsolete() {
    let mut trial = installed(&["a", "b", "ui"]).await;
    trial.runtime.delay_stop("web/a", Duration::from_secs(10));
    trial.desire(second(&["ui"]));
    trial.until("web@2 installed: ui=installed").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The same content with a newer target generation.
    trial.desire(document(3, vec![deployment("web", 3, &["ui"])]));
    trial.until("web@3 installed: ui=installed").await;
    trial.wait_until_idle().await;
    assert_eq!(trial.runtime.running(), ["web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_removes_the_obsolete_components_that_a_killed_one_left() {
    let mut trial = installed(&["old", "ui"]).await;
    trial.runtime.delay_stop("web/old", Duration::from_secs(1));
    trial.desire(second(&["ui"]));
    // The record is complete before the removal is.
    trial.until("web@2 installed: ui=installed").await;
    let mut trial = trial.kill().await;
    assert_eq!(trial.runtime.running(), ["web/old", "web/ui"]);
    trial.runtime.forget_calls();
    trial.wait_until_idle().await;
    assert_eq!(trial.runtime.running(), ["web/ui"]);
    assert_eq!(trial.runtime.calls(), ["start web/ui", "stop web/old"]);
    assert_eq!(line(trial.told.last().unwrap()), "web@2 installed: ui=installed");
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_keeps_what_runs_of_a_deployment_whose_version_it_refuses() {
    let mut trial = installed(&["old", "ui"]).await;
    let mut refused = deployment("web", 2, &["ui", "new"]);
    let constraints = serde_json::json!({"capacityRequirements": {"memory": "64Gi"}});
    refused.profile.device_constraints =
        Some(muster_contract::constraints::DeviceConstraints::read(&constraints).unwrap());
    refused.digest = refused.content_digest();
    trial.desire(document(2, vec![refused]));
    trial.until("web@2 failed: ui=installed new=pending").await;
    let mut trial = trial.kill().await;
    trial.wait_until_idle().await;
    assert_eq!(trial.runtime.running(), ["web/old", "web/ui"]);
}
