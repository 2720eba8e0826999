//! Tests of the reports after an error of the deployment as a whole is cleared.

use muster_contract::limits::{CRASH_LOOP_FAILURES, SUCCESS_HELD_AFTER};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_device_that_could_not_look_at_its_start_reports_its_recovery() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "ui"])]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    trial.runtime.fail_inventory(2);
    let mut trial = trial.restart().await;
    trial
        .reports(&["web@1 failed: db=installed ui=installed", "web@1 installed: db=installed ui=installed"])
        .await;
    trial.nothing_for(SUCCESS_HELD_AFTER - Duration::from_secs(1)).await;
    trial.reports(&["web@1 installed: db=installed ui=installed"]).await;
    assert!(trial.told.last().unwrap().retries.is_empty(), "the success has held");
    trial.nothing_for(Duration::from_secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn an_update_is_installed_though_a_dropped_component_stops_late() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["db", "old"])]));
    trial.until("web@1 installed: db=installed old=installed").await;
    trial.runtime.fail_stop("web/old", 1);
    trial.desire(document(2, vec![deployment("web", 2, &["db"])]));
    trial
        .reports(&[
            "web@2 installed: db=installed",
            "web@2 failed: db=installed",
            "web@2 installed: db=installed",
        ])
        .await;
    assert_eq!(trial.runtime.running(), ["web/db"]);
    assert_eq!(trial.told.last().unwrap().status.reason, None, "it waits for nothing");
}

#[tokio::test(start_paused = true)]
async fn a_removal_delayed_by_another_unit_is_reported_and_completed() {
    let trial = Trial::after_a_retried_removal(|runtime| runtime.fail_stop("web/old", 1)).await;
    assert!(trial.records.is_empty());
    let mut trial = trial.restart().await;
    trial.nothing_for(Duration::from_secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_retry_keeps_the_reported_error() {
    let retry = RetryPolicy {
        min: Duration::from_secs(10),
        max: Duration::from_secs(300),
        crash_loop: CrashLoopRule::default(),
    };
    let mut record =
        DeploymentRecord::new(deployment("web", 1, &["ui"]), muster_contract::Generation::new(1).unwrap());
    record.error = Some(StatusError::new(code::INVENTORY_FAILED, "press-4", "the engine does not answer"));
    let mut task = DeploymentTask::new(record.clone(), retry);
    task.retry();
    let cancel = task.start_operation(&"plant7/press-4".parse().unwrap());
    assert!(task.has_unreported_recovery() && task.record.error.is_none());
    cancel.cancel();
    let delay = task.end(retry, &mut fastrand::Rng::with_seed(7), Instant::now());
    assert!(delay.is_some() && !task.has_unreported_recovery());
    assert_eq!(task.record, record);
}

/// The retry of `web/ui` in the last report: attempt, since when, the error, and whether it is a crash loop.
fn tried(trial: &Trial) -> Option<(u32, String, bool)> {
    let retries = &trial.told.last().unwrap().retries;
    let of_ui =
        retries.iter().find(|retry| retry.component.as_ref().is_some_and(|name| name.as_str() == "ui"));
    of_ui.map(|retry| (retry.attempt, retry.last_error.message.clone(), retry.crash_loop))
}

#[tokio::test(start_paused = true)]
async fn reports_of_a_retry_have_attempt_and_error_until_a_success_has_held() {
    let mut trial = Trial::new();
    trial.runtime.fail("web/ui", 7);
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    trial.reports(&["web@1 pending: ui=pending", "web@1 installing: ui=installing"]).await;
    assert_eq!(tried(&trial), None, "nothing has failed");
    let since = muster_contract::Timestamp::UNIX_EPOCH;
    for attempt in 1..=7 {
        trial.reports(&["web@1 failed: ui=failed"]).await;
        // The clock of these trials stands still, so all failures are within the window.
        let crash_loop = attempt >= CRASH_LOOP_FAILURES;
        assert_eq!(
            tried(&trial).map(|(attempt, _, looping)| (attempt, looping)),
            Some((attempt, crash_loop))
        );
        trial.reports(&["web@1 installing: ui=installing"]).await;
        let (next, message, _) = tried(&trial).unwrap();
        assert_eq!((next, message.is_empty()), (attempt + 1, false));
        assert!(trial.told.last().unwrap().retries.iter().all(|retry| retry.since == since));
    }
    trial.reports(&["web@1 installed: ui=installed"]).await;
    assert_eq!(tried(&trial).map(|(attempt, ..)| attempt), Some(8), "it has yet to hold");
    trial.nothing_for(SUCCESS_HELD_AFTER - Duration::from_secs(1)).await;
    trial.reports(&["web@1 installed: ui=installed"]).await;
    assert_eq!(tried(&trial), None, "it has held");
    trial.nothing_for(Duration::from_secs(3_600)).await;
}

#[tokio::test(start_paused = true)]
async fn attempts_follow_the_delays_of_the_document() {
    let mut trial = Trial::new();
    let minutes = |min: u64, max: u64| {
        let time = |minutes| Duration::from_secs(60 * minutes);
        Some(muster_contract::desired::RetryDelays { min: time(min), max: time(max) })
    };
    let with_delays = |generation, retry| {
        let mut document = document(generation, vec![deployment("web", 1, &["ui"])]).unwrap();
        Arc::make_mut(&mut document).retry = retry;
        Some(document)
    };
    trial.runtime.fail("web/ui", 40);
    trial.desire(with_delays(1, minutes(60, 60)));
    let started = Instant::now();
    for _ in 0..10 {
        trial.until("web@1 failed: ui=failed").await;
    }
    // The agent's own delays are at most five minutes, and chance takes half of a delay on average.
    let slow = started.elapsed();
    assert!(slow > Duration::from_secs(2 * 3_600), "{slow:?}");
    trial.desire(with_delays(2, None));
    trial.until("web@2 failed: ui=failed").await;
    let started = Instant::now();
    for _ in 0..10 {
        trial.until("web@2 failed: ui=failed").await;
    }
    assert!(started.elapsed() <= Duration::from_secs(10 * 300), "its own again: {:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_outlives_the_agent_and_a_new_target_ends_it() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![deployment("web", 1, &["ui"])]));
    for _ in 0..CRASH_LOOP_FAILURES {
        trial.until("web@1 installed: ui=installed").await;
        trial.runtime.crash("web/ui").await;
    }
    trial.until("web@1 installed: ui=installed").await;
    let told = tried(&trial).unwrap();
    assert_eq!((told.0, told.2), (CRASH_LOOP_FAILURES + 1, true), "ready, and a crash loop all the same");
    let mut trial = trial.restart().await;
    trial.nothing_for(Duration::from_secs(5)).await;
    trial.runtime.crash("web/ui").await;
    trial.until("web@1 failed: ui=failed").await;
    assert_eq!(tried(&trial).unwrap().0, CRASH_LOOP_FAILURES + 1);
    trial.desire(document(2, vec![deployment("web", 2, &["ui=new"])]));
    trial.until("web@2 installed: ui=installed").await;
    assert_eq!(tried(&trial), None);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_stays_is_not_reported_as_retried() {
    let mut trial = Trial::new();
    trial.runtime.fail("web/ui", 1);
    trial.desire(document(1, vec![deployment("web", 1, &["ui."])]));
    trial.until("web@1 failed: ui=failed").await;
    assert_eq!(tried(&trial), None);
}
