//! Tests of obsolete components: those of an older version that the desired one lacks.

use super::*;

/// A cluster with the installed components.
async fn installed_in_a_cluster(components: &[&str]) -> Trial {
    let mut trial = Trial::new();
    trial.runtime.be_cluster();
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
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["old"])]));
    trial.until("web@1 installed: old=installed").await;
    trial.desire(second(&["new"]));
    trial.until("web@2 installed: new=installed").await;
    assert_eq!(trial.runtime.calls(), ["start web/old", "stop web/old", "start web/new"]);
}

#[tokio::test(start_paused = true)]
async fn in_a_cluster_obsolete_components_stay_until_all_are_ready() {
    let mut trial = installed_in_a_cluster(&["old"]).await;
    for unit in ["web/db", "web/ui"] {
        trial.runtime.slow(unit, Duration::from_secs(20));
    }
    trial.desire(second(&["db", "ui"]));
    trial.until("web@2 installing: db=installed ui=installing").await;
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(trial.runtime.running(), ["web/db", "web/old", "web/ui"], "one is not ready yet");
    trial.until("web@2 installed: db=installed ui=installed").await;
    trial.wait_until_idle().await;
    assert_eq!(trial.runtime.calls(), ["start web/db", "start web/ui", "stop web/old"]);
}

#[tokio::test(start_paused = true)]
async fn an_obsolete_component_is_removed_if_a_cluster_refuses_a_successor() {
    let mut trial = installed_in_a_cluster(&["old"]).await;
    trial.runtime.refuse_beside("web/new", "web/old");
    trial.desire(second(&["new"]));
    trial
        .reports(&[
            "web@2 pending: new=pending",
            "web@2 installing: new=installing",
            "web@2 installed: new=installed",
        ])
        .await;
    assert_eq!(trial.runtime.calls(), ["start web/new", "stop web/old", "start web/new"]);
}

#[tokio::test(start_paused = true)]
async fn an_obsolete_component_is_removed_if_a_successor_is_not_ready_for_long() {
    let mut trial = installed_in_a_cluster(&["old"]).await;
    trial.runtime.slow("web/new", Duration::from_secs(600));
    trial.desire(second(&["new"]));
    trial.until("web@2 installing: new=installing").await;
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!(trial.runtime.running(), ["web/new", "web/old"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(trial.runtime.running(), ["web/new"], "it may hold what the successor waits for");
    trial.until("web@2 installed: new=installed").await;
    assert_eq!(trial.runtime.calls(), ["start web/new", "stop web/old"]);
}

#[tokio::test(start_paused = true)]
async fn an_obsolete_component_stays_if_no_package_of_a_successor_is_fetched() {
    let mut trial = installed_in_a_cluster(&["old"]).await;
    trial.runtime.fail_fetch("web/db", 2);
    trial.desire(second(&["db", "ui"]));
    for _ in 0..2 {
        trial.until("web@2 failed: db=failed ui=pending").await;
        assert_eq!(trial.runtime.running(), ["web/old"], "it serves, and no removal brings the package");
    }
    trial.until("web@2 installed: db=installed ui=installed").await;
    trial.wait_until_idle().await;
    assert_eq!(trial.runtime.running(), ["web/db", "web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_removal_of_an_obsolete_component_keeps_the_cause() {
    let mut trial = installed_in_a_cluster(&["old"]).await;
    trial.runtime.refuse_beside("web/new", "web/old");
    trial.runtime.fail_stop("web/old", 1);
    trial.desire(second(&["new"]));
    trial.until("web@2 failed: new=failed").await;
    let failed = trial.told.last().unwrap();
    let cause = failed.components[0].error.as_ref().map(|error| error.code.as_str());
    assert_eq!((cause, &failed.status.error), (Some(code::APPLY_CONFLICT), &None));
    trial.until("web@2 installed: new=installed").await;
    trial.runtime.fail_stop("web/new", 1);
    trial.desire(document(3, vec![deployment("web", 3, &["newer"])]));
    trial.until("web@3 failed: newer=installed").await;
    trial.until("web@3 installed: newer=installed").await;
    assert_eq!(trial.runtime.running(), ["web/newer"]);
}

#[tokio::test(start_paused = true)]
async fn obsolete_components_that_a_newer_version_has_are_not_removed() {
    let mut trial = installed_in_a_cluster(&["a", "b"]).await;
    trial.runtime.delay_stop("web/a", Duration::from_secs(10));
    trial.desire(second(&["c"]));
    trial.until("web@2 installed: c=installed").await;
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
    let mut trial = installed_in_a_cluster(&["a", "b", "ui"]).await;
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
    for is_cluster in [false, true] {
        let mut trial = Trial::new();
        if is_cluster {
            trial.runtime.be_cluster();
        }
        trial.desire(document(1, vec![deployment("web", 1, &["old", "ui"])]));
        trial.until("web@1 installed: old=installed ui=installed").await;
        trial.runtime.delay_stop("web/old", Duration::from_secs(1));
        trial.desire(second(&["ui"]));
        // The record is complete before the removal is.
        trial.until("web@2 installed: ui=installed").await;
        let mut trial = trial.kill().await;
        assert_eq!(trial.runtime.running(), ["web/old", "web/ui"]);
        trial.runtime.forget_calls();
        trial.wait_until_idle().await;
        assert_eq!(trial.runtime.running(), ["web/ui"], "cluster: {is_cluster}");
        assert_eq!(trial.runtime.calls(), ["start web/ui", "stop web/old"]);
        assert_eq!(line(trial.told.last().unwrap()), "web@2 installed: ui=installed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_keeps_what_runs_of_a_deployment_whose_version_it_refuses() {
    let mut trial = installed_in_a_cluster(&["old", "ui"]).await;
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
