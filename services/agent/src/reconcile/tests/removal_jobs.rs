//! Tests of removal jobs: components that run once, around the removal of their deployment.

use muster_contract::desired::ProfileType;
use muster_contract::desired::RemovalPhase::{self, PostDelete, PreDelete};

use super::*;

/// [`deployment`] of `db` and `ui` with the jobs `drain` and `erase`, before and after its removal.
fn with_jobs(target: u64) -> DesiredDeployment {
    jobs_of(
        deployment("web", target, &["drain", "db", "ui", "erase"]),
        &[("drain", PreDelete), ("erase", PostDelete)],
    )
}

fn jobs_of(mut entry: DesiredDeployment, jobs: &[(&str, RemovalPhase)]) -> DesiredDeployment {
    for component in &mut entry.profile.components {
        let job = jobs.iter().find(|(name, _)| component.name.as_str() == *name);
        component.runs_at = job.map(|(_, phase)| *phase);
        if job.is_some() {
            component.properties.insert("readiness".to_owned(), json!({ "type": "exit" }));
            component.properties.insert("timeout".to_owned(), json!("1h"));
        }
    }
    entry.check_content().unwrap();
    entry.digest = entry.content_digest();
    entry
}

/// A trial in which `web` is installed.
async fn installed() -> Trial {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![with_jobs(1)]));
    trial.until("web@1 installed: drain=installed db=installed ui=installed erase=installed").await;
    assert_eq!(trial.runtime.calls(), ["start web/db", "start web/ui"], "no job runs before the removal");
    trial.runtime.forget_calls();
    trial
}

/// A trial in which `web` was desired as stopped from the beginning, so that nothing of it has started.
async fn stopped_from_the_first_target_on() -> Trial {
    let mut trial = Trial::new();
    let mut entry = DesiredDeployment { stopped: true, ..with_jobs(1) };
    entry.digest = entry.content_digest();
    trial.desire(document(1, vec![entry]));
    trial.until("web@1 pending: drain=pending db=pending ui=pending erase=pending").await;
    trial
}

/// The number of runs of the job `drain`.
fn drains(trial: &Trial) -> usize {
    trial.runtime.calls().iter().filter(|call| *call == "run web/drain").count()
}

const REMOVED: &str = "web@2 removed: drain=removed db=removed ui=removed erase=removed";

#[tokio::test(start_paused = true)]
async fn removal_jobs_run_before_and_after_everything_else_is_removed() {
    let mut trial = installed().await;
    trial.desire(document(2, vec![]));
    trial
        .reports(&[
            "web@2 removing: drain=removing db=removing ui=removing erase=removing",
            "web@2 removing: drain=removing db=removing ui=removing erase=removing",
            "web@2 removing: drain=removed db=removing ui=removing erase=removing",
            "web@2 removing: drain=removed db=removing ui=removed erase=removing",
            "web@2 removing: drain=removed db=removed ui=removed erase=removing",
            "web@2 removing: drain=removed db=removed ui=removed erase=removing",
            REMOVED,
        ])
        .await;
    let calls = trial.runtime.calls();
    let order =
        ["run web/drain", "stop web/drain", "stop web/ui", "stop web/db", "run web/erase", "stop web/erase"];
    assert_eq!(calls, order);
    let reason = |at: usize| trial.told.iter().rev().nth(at).unwrap().status.reason.clone();
    assert_eq!(reason(1).as_deref(), Some("component erase runs as a removal job"));
    assert_eq!(reason(5).as_deref(), Some("component drain runs as a removal job"));
    assert!(trial.records.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_removal_job_that_fails_holds_the_removal_up_and_is_tried_again() {
    let mut trial = installed().await;
    trial.runtime.fail("web/drain", 2);
    trial.desire(document(2, vec![]));
    trial.until("web@2 failed: drain=failed db=removing ui=removing erase=removing").await;
    assert_eq!(trial.runtime.running(), ["web/db", "web/ui"], "nothing else was touched");
    trial.until(REMOVED).await;
    assert_eq!(drains(&trial), 3);
    assert!(trial.told.last().unwrap().retries.is_empty(), "what is removed is not tried again");
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_a_removal_job_that_is_not_waited_for_is_reported_once() {
    let mut trial = Trial::new();
    trial
        .desire(document(1, vec![jobs_of(deployment("web", 1, &["drain!", "ui"]), &[("drain", PreDelete)])]));
    trial.until("web@1 installed: drain=installed ui=installed").await;
    trial.runtime.fail("web/drain", 9);
    trial.desire(document(2, vec![]));
    trial.until("web@2 failed: drain=failed ui=removing").await;
    trial.until("web@2 removed: drain=removed ui=removed").await;
    assert_eq!(drains(&trial), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_after_the_removal_waits_until_everything_else_is_gone() {
    let mut trial = installed().await;
    trial.runtime.fail_stop("web/db", 1);
    trial.desire(document(2, vec![]));
    trial.until("web@2 failed: drain=removed db=failed ui=removed erase=removing").await;
    assert!(!trial.runtime.calls().contains(&"run web/erase".to_owned()));
    trial.until(REMOVED).await;
    assert_eq!(drains(&trial), 1, "a job that ended well is not repeated");
}

#[tokio::test(start_paused = true)]
async fn no_removal_job_runs_for_what_never_started() {
    let mut trial = stopped_from_the_first_target_on().await;
    trial.desire(document(2, vec![]));
    trial.until(REMOVED).await;
    assert!(!trial.runtime.calls().iter().any(|call| call.starts_with("run")), "{:?}", trial.runtime.calls());
}

#[tokio::test(start_paused = true)]
async fn removal_jobs_run_for_what_a_killed_agent_has_started_and_not_recorded() {
    let mut trial = stopped_from_the_first_target_on().await;
    trial.runtime.add_orphan("web/db");
    trial.desire(document(2, vec![]));
    trial.until(REMOVED).await;
    assert!(trial.runtime.calls().contains(&"run web/drain".to_owned()), "{:?}", trial.runtime.calls());
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_device_refuses_has_no_removal_job() {
    let mut trial = installed().await;
    let mut entry = jobs_of(
        deployment("web", 2, &["drain", "db", "erase"]),
        &[("drain", PreDelete), ("erase", PostDelete)],
    );
    entry.profile.profile_type = ProfileType::Simulated;
    entry.digest = entry.content_digest();
    trial.desire(document(2, vec![entry]));
    trial.until("web@2 failed: drain=installed db=installed erase=installed").await;
    trial.runtime.forget_calls();
    trial.desire(document(3, vec![]));
    trial.until("web@3 removed: drain=removed db=removed erase=removed").await;
    assert!(!trial.runtime.calls().iter().any(|call| call.starts_with("run")), "{:?}", trial.runtime.calls());
    assert!(trial.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn removal_jobs_run_for_what_ran_before_a_stop_or_a_failed_version() {
    let mut trial = installed().await;
    let mut entry = DesiredDeployment { stopped: true, ..with_jobs(2) };
    entry.digest = entry.content_digest();
    trial.desire(document(2, vec![entry]));
    trial.until("web@2 pending: drain=pending db=pending ui=pending erase=pending").await;
    trial = trial.restart().await;
    trial.runtime.fail("web/db", 99);
    trial.desire(document(3, vec![with_jobs(3)]));
    trial.until("web@3 failed: drain=pending db=failed ui=pending erase=pending").await;
    trial.runtime.forget_calls();
    trial.desire(document(4, vec![]));
    trial.until("web@4 removed: drain=removed db=removed ui=removed erase=removed").await;
    let starts: Vec<_> = trial.runtime.calls().into_iter().filter(|call| !call.starts_with("stop")).collect();
    assert_eq!(starts, ["run web/drain", "run web/erase"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_during_a_removal_job_starts_none_beside_it() {
    let mut trial = installed().await;
    trial.runtime.slow("web/drain", Duration::from_secs(600));
    trial.desire(document(2, vec![]));
    let removing = "web@2 removing: drain=removing db=removing ui=removing erase=removing";
    trial.reports(&[removing, removing]).await;
    trial = trial.kill().await;
    trial.until(REMOVED).await;
    let jobs: Vec<_> = trial.runtime.calls().into_iter().filter(|call| call.contains("drain")).collect();
    assert_eq!(jobs, ["run web/drain", "run web/drain", "stop web/drain"], "the running job is adopted");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_desired_again_ends_its_removal_job() {
    let mut trial = installed().await;
    trial.runtime.slow("web/drain", Duration::from_secs(600));
    trial.desire(document(2, vec![]));
    trial.until("web@2 removing: drain=removing db=removing ui=removing erase=removing").await;
    trial.desire(document(3, vec![with_jobs(3)]));
    trial.until("web@3 installed: drain=installed db=installed ui=installed erase=installed").await;
    assert_eq!(trial.runtime.running(), ["web/db", "web/ui"]);
}

#[tokio::test(start_paused = true)]
async fn a_removal_job_that_becomes_a_component_is_not_reported_before_it_runs() {
    let mut trial = installed().await;
    trial.runtime.slow("web/drain", Duration::from_secs(60));
    let entry = jobs_of(with_jobs(2), &[("erase", PostDelete)]);
    let mut entry = DesiredDeployment { target_generation: entry.target_generation, ..entry };
    entry.digest = entry.content_digest();
    trial.desire(document(2, vec![entry]));
    trial
        .reports(&[
            "web@2 pending: drain=pending db=installed ui=installed erase=installed",
            "web@2 installing: drain=installing db=installed ui=installed erase=installed",
            "web@2 installed: drain=installed db=installed ui=installed erase=installed",
        ])
        .await;
}
