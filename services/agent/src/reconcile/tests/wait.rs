//! Tests of the time before the start of a component, with a scripted runtime and in virtual time.

use super::*;

/// A deployment whose second component waits a minute.
fn waiting(target: u64) -> DesiredDeployment {
    let mut entry = deployment("web", target, &["db", "ui"]);
    entry.profile.components[1].properties.insert("waitBefore".to_owned(), json!("60s"));
    entry.digest = entry.content_digest();
    entry
}

const WAIT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_component_starts_a_time_after_those_before_it_are_ready() {
    let (mut trial, begun) = (Trial::new(), Instant::now());
    trial.desire(document(1, vec![waiting(1)]));
    trial.until("web@1 installing: db=installed ui=installing").await;
    assert_eq!(trial.runtime.calls(), ["start web/db"]);
    trial.until("web@1 installed: db=installed ui=installed").await;
    assert!(begun.elapsed() >= WAIT, "{:?}", begun.elapsed());
    let reasons: Vec<_> = trial.told.iter().filter_map(|body| body.status.reason.clone()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("ui starts 60s after")), "{reasons:?}");
    // A crash of the component alone is repaired without the time.
    trial.runtime.crash("web/ui").await;
    let crashed = Instant::now();
    trial.until("web@1 installed: db=installed ui=installed").await;
    assert!(crashed.elapsed() < WAIT, "{:?}", crashed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_killed_agent_begins_the_time_before_a_start_anew() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![waiting(1)]));
    trial.until("web@1 installing: db=installed ui=installing").await;
    let (mut trial, killed) = (trial.kill().await, Instant::now());
    trial.until("web@1 installed: db=installed ui=installed").await;
    assert!(killed.elapsed() >= WAIT, "{:?}", killed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_update_of_the_waiting_component_alone_does_not_wait() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![waiting(1)]));
    trial.until("web@1 installed: db=installed ui=installed").await;
    let updated = |target, component: usize| {
        let mut entry = waiting(target);
        entry.profile.components[component].properties.insert("args".to_owned(), json!(["2"]));
        entry.digest = entry.content_digest();
        entry
    };
    let begun = Instant::now();
    trial.desire(document(2, vec![updated(2, 1)]));
    trial.until("web@2 installed: db=installed ui=installed").await;
    assert!(begun.elapsed() < WAIT, "{:?}", begun.elapsed());
    // With another version of the component before it, it waits.
    let mut both = updated(3, 0);
    both.profile.components[1].properties.insert("args".to_owned(), json!(["3"]));
    both.digest = both.content_digest();
    let begun = Instant::now();
    trial.desire(document(3, vec![both]));
    trial.until("web@3 installed: db=installed ui=installed").await;
    assert!(begun.elapsed() >= WAIT, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_removal_ends_the_time_before_a_start() {
    let mut trial = Trial::new();
    trial.desire(document(1, vec![waiting(1)]));
    trial.until("web@1 installing: db=installed ui=installing").await;
    let removed = Instant::now();
    trial.desire(document(2, vec![]));
    trial.until("web@2 removed: db=removed ui=removed").await;
    assert!(removed.elapsed() < WAIT, "{:?}", removed.elapsed());
    assert!(!trial.runtime.calls().contains(&"start web/ui".to_owned()));
}
