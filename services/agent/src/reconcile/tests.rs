//! Tests of reconciling with a scripted runtime, in virtual time: the reports are compared.

use muster_contract::DeviceKey;
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredDeployment;
use muster_contract::state::StatusError;
use muster_domain::eligibility::Capabilities;
use muster_service::clock::ManualClock;
use serde_json::json;

use self::operation::PROGRESS_INTERVAL;
use self::trial::Trial;
use super::*;
use crate::attempts::CrashLoopRule;
use crate::outbox::{NewReport, RecordChange};
use crate::report::{Body, StatusBody};
use crate::runtime::code;

mod obsolete;
mod orphans;
mod recovery;
mod removal_jobs;
mod shutdown;
mod stopped;
mod trial;
mod wait;

/// A deployment with components; a `!` after a name: the next one does not wait for it; `.`: `restart: never`; a text after
/// `=` is its version.
fn deployment(id: &str, target: u64, components: &[&str]) -> DesiredDeployment {
    let component = |text: &&str| {
        let (name, version) = text.split_once('=').unwrap_or((text, ""));
        let properties = json!({
            "command": "x", "args": [version], "stopTimeout": "1s",
            "wait": !name.ends_with('!'), "restart": if name.ends_with('.') { "never" } else { "always" },
        });
        json!({ "name": name.trim_end_matches(['!', '.']), "properties": properties })
    };
    let components: Vec<_> = components.iter().map(component).collect();
    let mut entry: DesiredDeployment = serde_json::from_value(json!({
        "id": id, "name": id, "applicationId": "com-acme", "targetGeneration": target,
        "digest": Digest::of_bytes(b""), "profile": { "type": "process", "components": components },
    }))
    .unwrap();
    entry.digest = entry.content_digest();
    entry
}

fn document(generation: u64, deployments: Vec<DesiredDeployment>) -> CurrentDesired {
    let mut document: DesiredState = serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
        "issuedAt": "2026-11-21T00:00:00Z", "source": { "kind": "git", "revision": "a" }, "deployments": [],
    }))
    .unwrap();
    document.deployments = deployments;
    Some(Arc::new(document))
}

/// `<deployment>@<generation> <state>: <components>`, as in `web@3 installing: db=installed web=installing`.
fn line(body: &StatusBody) -> String {
    let components =
        body.components.iter().map(|component| format!(" {}={}", component.name, component.state));
    let components: String = components.collect();
    format!("{}@{} {}:{components}", body.deployment, body.generation, body.status.state)
}

#[tokio::test(start_paused = true)]
async fn components_start_in_order_and_every_change_is_reported() {
    let mut trial = Trial::new();
    trial.desire(document(3, vec![deployment("web", 3, &["db", "ui"])]));
    trial
        .reports(&[
            "web@3 pending: db=pending ui=pending",
            "web@3 installing: db=installing ui=pending",
            "web@3 pending: db=installed ui=pending",
            "web@3 installing: db=installed ui=installing",
            "web@3 installed: db=installed ui=installed",
        ])
        .await;
    for body in &trial.told {
        let is_pending = body.status.state == State::Pending;
        assert_eq!(body.status.reason.is_some(), is_pending, "pending says why: {}", line(body));
    }
    assert_eq!(trial.runtime.calls(), ["start web/db", "start web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn the_next_component_does_not_wait_for_one_that_says_so() {
    let mut trial = Trial::new();
    trial.runtime.slow("web/db", Duration::from_secs(60));
    trial.desire(document(1, vec![deployment("web", 1, &["db!", "ui"])]));
    trial
        .reports(&[
            "web@1 pending: db=pending ui=pending",
            "web@1 installing: db=installing ui=pending",
            "web@1 installing: db=installing ui=installing",
            "web@1 installing: db=installing ui=installed",
            "web@1 installed: db=installed ui=installed",
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_its_time_reports_why_now_and_then() {
    let mut trial = Trial::new();
    trial.runtime.slow("web/ui", 6 * PROGRESS_INTERVAL - Duration::from_secs(1));
    let (first, second) = ("fetches its package: 1.0 MB of 9.0 MB", "fetches its package: 5.5 MB of 9.0 MB");
    trial.runtime.start_slowly_because("web/ui", &[first, first, second]);
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    let installing = "web@1 installing: ui=installing";
    trial.reports(&["web@1 pending: ui=pending", installing, installing, installing, installing]).await;
    trial.reports(&["web@1 installed: ui=installed"]).await;
    let reasons: Vec<_> = trial.told[1..].iter().map(|body| body.status.reason.as_deref()).collect();
    let (first, second) = (format!("component ui {first}"), format!("component ui {second}"));
    assert_eq!(reasons, [None, Some(first.as_str()), Some(second.as_str()), None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_ends_the_installation_and_is_tried_again_later() {
    let mut trial = Trial::new();
    trial.runtime.fail("web/db", 2);
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial
        .reports(&[
            "web@1 pending: db=pending ui=pending",
            "web@1 installing: db=installing ui=pending",
            "web@1 failed: db=failed ui=pending",
            "web@1 installing: db=installing ui=pending",
            "web@1 failed: db=failed ui=pending",
            "web@1 installing: db=installing ui=pending",
            "web@1 pending: db=installed ui=pending",
            "web@1 installing: db=installed ui=installing",
            "web@1 installed: db=installed ui=installed",
        ])
        .await;
    let error = trial.told[2].components[0].error.clone().unwrap();
    assert!(!error.code.is_empty() && error.source == "db" && !error.message.is_empty(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_started_again_stays_failed_until_another_generation() {
    let mut trial = Trial::new();
    trial.runtime.fail("web/ui", 1);
    trial.desire(document(1, vec![deployment("web", 1, &["ui."])]));
    trial
        .reports(&["web@1 pending: ui=pending", "web@1 installing: ui=installing", "web@1 failed: ui=failed"])
        .await;
    trial.nothing_for(Duration::from_secs(3600)).await;
    trial.desire(document(2, vec![deployment("web", 2, &["ui."])]));
    trial
        .reports(&[
            "web@2 pending: ui=pending",
            "web@2 installing: ui=installing",
            "web@2 installed: ui=installed",
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_installation_is_reported_and_repaired() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.crash("web/db").await;
    trial
        .reports(&[
            "web@1 failed: db=failed ui=installed",
            "web@1 installing: db=installing ui=installed",
            "web@1 installed: db=installed ui=installed",
        ])
        .await;
    assert_eq!(
        trial.runtime.calls().iter().filter(|call| *call == "start web/ui").count(),
        2,
        "only taken over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_crash_while_the_next_component_starts_is_not_forgotten() {
    let mut trial = Trial::new();
    trial.runtime.slow("web/ui", Duration::from_secs(5));
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installing: db=installed ui=installing").await;
    trial.runtime.crash("web/db").await;
    trial.reports(&["web@1 failed: db=failed ui=installing", "web@1 failed: db=failed ui=installed"]).await;
    trial.until("web@1 installed: db=installed ui=installed").await;
}

#[tokio::test(start_paused = true)]
async fn an_update_stops_what_changed_and_leaves_the_rest() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui=1", "old"])]));
    trial.until("web@1 installed: db=installed ui=installed old=installed").await;
    trial.runtime.forget_calls();
    trial.desire(document(2, vec![deployment("web", 2, &["db", "ui=2"])]));
    trial
        .reports(&[
            "web@2 pending: db=installed ui=pending",
            "web@2 installing: db=installed ui=installing",
            "web@2 installed: db=installed ui=installed",
        ])
        .await;
    assert_eq!(trial.runtime.calls(), ["stop web/old", "stop web/ui", "start web/db", "start web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_cancels_the_older_while_it_starts() {
    let mut trial = Trial::new();
    trial.runtime.slow("web/ui", Duration::from_secs(3600));
    trial.desire(document(1, vec![deployment("web", 1, &["ui=1"])]));
    trial.until("web@1 installing: ui=installing").await;
    trial.runtime.slow("web/ui", Duration::ZERO);
    trial.desire(document(2, vec![deployment("web", 2, &["ui=2"])]));
    trial
        .reports(&[
            "web@2 pending: ui=pending",
            "web@2 installing: ui=installing",
            "web@2 installed: ui=installed",
        ])
        .await;
    assert_eq!(trial.runtime.running(), ["web/ui"], "one version only");
}

#[tokio::test(start_paused = true)]
async fn the_same_content_under_a_newer_target_is_confirmed_untouched() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    trial.runtime.forget_calls();
    trial.desire(document(2, vec![deployment("web", 1, &["ui"])]));
    trial.nothing_for(Duration::from_secs(60)).await;
    trial.desire(document(3, vec![deployment("web", 3, &["ui"])]));
    trial.reports(&["web@3 installed: ui=installed"]).await;
    assert!(trial.runtime.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_report_names_the_applied_generation_not_the_newest_fetched() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["ui."])]));
    trial.until("web@1 installed: ui=installed").await;
    // Two newer documents do not change it; then it ends, and is not restarted.
    for generation in [2, 3] {
        let other = deployment("db", generation, &["store"]);
        trial.desire(document(generation, vec![deployment("web", 1, &["ui."]), other]));
        trial.until(&format!("db@{generation} installed: store=installed")).await;
    }
    trial.runtime.crash("web/ui").await;
    trial.reports(&["web@1 failed: ui=failed"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_desired_is_removed_the_last_component_first() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.desire(document(2, vec![]));
    trial
        .reports(&[
            "web@2 removing: db=removing ui=removing",
            "web@2 removing: db=removing ui=removed",
            "web@2 removed: db=removed ui=removed",
        ])
        .await;
    assert!(trial.runtime.running().is_empty());
    assert!(trial.records.is_empty());
    trial.desire(document(3, vec![deployment("web", 3, &["db"])]));
    trial.until("web@3 installed: db=installed").await;
}

#[tokio::test(start_paused = true)]
async fn what_will_not_stop_fails_the_removal_and_is_tried_again() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    trial.runtime.fail_stop("web/ui", 1);
    trial.desire(document(2, vec![]));
    trial
        .reports(&["web@2 removing: ui=removing", "web@2 failed: ui=failed", "web@2 removed: ui=removed"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_type_that_the_runtime_does_not_know_fails_as_a_whole() {
    let mut trial = Trial::new();
    let mut entry = deployment("chart", 1, &["ui"]);
    entry.profile.profile_type = muster_contract::desired::ProfileType::Helm;
    trial.desire(document(1, vec![entry]));
    trial.reports(&["chart@1 failed: ui=pending"]).await;
    let error = trial.told[0].status.error.clone().unwrap();
    assert_eq!((error.code.as_str(), error.source.as_str()), (code::UNSUPPORTED_PROFILE, "chart"));
    trial.nothing_for(Duration::from_secs(3600)).await;
}

#[tokio::test(start_paused = true)]
async fn unmet_constraints_fail_a_deployment_as_a_whole_with_the_reason() {
    let mut trial = Trial::new();
    let asking_for = |memory: &str, generation: u64| {
        let constraints = serde_json::json!({"capacityRequirements": {"memory": memory}});
        let mut entry = deployment("web", generation, &["ui"]);
        entry.profile.device_constraints =
            Some(muster_contract::constraints::DeviceConstraints::read(&constraints).unwrap());
        entry.digest = entry.content_digest();
        entry
    };
    trial.desire(document(1, vec![asking_for("4Gi", 1)]));
    trial.reports(&["web@1 failed: ui=pending"]).await;
    let error = trial.told[0].status.error.clone().unwrap();
    assert_eq!(error.code, code::NOT_ELIGIBLE);
    assert!(error.message.contains("memory: 4Gi is required, the device has 2Gi"), "{}", error.message);
    trial.nothing_for(Duration::from_secs(3600)).await;
    trial.desire(document(2, vec![asking_for("1Gi", 2)]));
    trial
        .reports(&[
            "web@2 pending: ui=pending",
            "web@2 installing: ui=installing",
            "web@2 installed: ui=installed",
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn deployments_do_not_wait_for_each_other_but_not_all_at_once() {
    let mut trial = Trial::new();
    let ids: Vec<String> = (0..OPERATIONS_MAX + 4).map(|at| format!("d{at:02}")).collect();
    ids.iter().for_each(|id| trial.runtime.slow(&format!("{id}/ui"), Duration::from_secs(30)));
    trial.desire(document(1, ids.iter().map(|id| deployment(id, 1, &["ui"])).collect()));
    trial.until("d15@1 installing: ui=installing").await;
    let waiting = trial.told.iter().filter(|body| body.status.state == State::Pending).count();
    assert_eq!((waiting, trial.runtime.running().len()), (ids.len(), OPERATIONS_MAX));
    trial.until("d19@1 installed: ui=installed").await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_adopts_running_units_without_a_report() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.forget_calls();
    let mut trial = trial.restart().await;
    trial.nothing_for(Duration::from_secs(60)).await;
    assert_eq!(trial.runtime.calls(), ["start web/db", "start web/ui"], "to be watched again");
    trial.runtime.crash("web/ui").await;
    trial.until("web@1 failed: db=installed ui=failed").await;
    trial.until("web@1 installed: db=installed ui=installed").await;
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_everything_is_started_again() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.reboot();
    let mut trial = trial.restart().await;
    trial
        .reports(&[
            "web@1 installing: db=installing ui=installed",
            "web@1 installed: db=installed ui=installed",
            "web@1 installing: db=installed ui=installing",
            "web@1 installed: db=installed ui=installed",
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_killed_anywhere_ends_where_it_should() {
    for after in 0..6 {
        let mut trial = Trial::new();
        trial.desire(document(1, vec![deployment("old", 1, &["ui"])]));
        trial.until("old@1 installed: ui=installed").await;
        trial.desire(document(2, vec![deployment("web", 2, &["db", "ui"])]));
        for _ in 0..after {
            trial.next().await;
        }
        let mut trial = trial.kill().await;
        trial.wait_until_idle().await;
        assert_eq!(trial.runtime.running(), ["web/db", "web/ui"], "killed after {after} reports");
        let held: Vec<_> =
            trial.records.values().map(|record| (record.id().as_str(), record.state())).collect();
        assert_eq!(held, [("web", State::Installed)], "killed after {after} reports");
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_are_stopped_after_a_document_was_accepted() {
    let mut trial = Trial::new();
    trial.runtime.add_orphan("ghost/ui");
    trial.nothing_for(Duration::from_secs(60)).await;
    assert_eq!(trial.runtime.running(), ["ghost/ui"]);
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.until("web@1 installed: ui=installed").await;
    assert_eq!(trial.runtime.running(), ["web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_stops_its_workloads_if_so_asked() {
    let mut trial = Trial::that_stops();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.forget_calls();
    let mut trial = trial.restart().await;
    assert_eq!(trial.runtime.calls(), ["stop web/ui", "stop web/db"]);
    assert_eq!(line(trial.told.last().unwrap()), "web@1 pending: db=pending ui=pending");
    trial.until("web@1 installed: db=installed ui=installed").await;
    let trial = trial.restart().await;
    assert_eq!(trial.runtime.running(), ["web/db", "web/ui"], "this one was not asked to");
}

#[tokio::test(start_paused = true)]
async fn m41_a_runtime_that_hangs_in_a_start_is_given_up_reported_and_retried() {
    let mut trial = Trial::new();
    trial.runtime.slow("web/db", Duration::from_secs(12 * 60 * 60));
    let mut entry = deployment("web", 1, &["db"]);
    entry.profile.components[0].properties.insert("timeout".to_owned(), json!("1m0s"));
    entry.digest = entry.content_digest();
    let begun = Instant::now();
    trial.desire(document(1, vec![entry, deployment("log", 1, &["main"])]));
    trial.until("web@1 failed: db=failed").await;
    let error = trial.told.last().unwrap().components[0].error.clone().unwrap();
    assert_eq!(error.code, code::NOT_READY);
    assert!(error.message.contains("not answered within 360s"), "{error:?}");
    let taken = begun.elapsed();
    assert!(taken < Duration::from_secs(7 * 60), "{taken:?}");
    let log = trial.told.iter().map(line).any(|line| line == "log@1 installed: main=installed");
    assert!(log, "another deployment does not wait for it");
    // The start that was given up is found and adopted.
    trial.until("web@1 installed: db=installed").await;
}
