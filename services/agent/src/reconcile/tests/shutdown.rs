//! Tests of an agent that stops its workloads when it ends.

use super::*;

/// [`deployment`], and each component has a minute to stop.
fn slow_to_stop(id: &str, target: u64, components: &[&str]) -> DesiredDeployment {
    let mut entry = deployment(id, target, components);
    for component in &mut entry.profile.components {
        component.properties.insert("stopTimeout".to_owned(), json!("60s"));
    }
    entry.digest = entry.content_digest();
    entry
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_stops_what_takes_long_within_the_time_it_has() {
    let mut trial = Trial::that_stops();
    for unit in ["web/db", "web/ui", "old/ui"] {
        trial.runtime.stop_when_killed(unit);
    }
    let web = || slow_to_stop("web", 1, &["db", "ui"]);
    trial.desire(document(1, vec![slow_to_stop("old", 1, &["ui"])]));
    trial.until("old@1 installed: ui=installed").await;
    trial.desire(document(2, vec![slow_to_stop("old", 1, &["ui"]), web()]));
    trial.until("web@2 installed: db=installed ui=installed").await;
    // One is being removed when the agent ends.
    trial.desire(document(3, vec![web()]));
    trial.until("old@3 removing: ui=removing").await;
    let begun = Instant::now();
    let trial = trial.restart().await;
    let took = begun.elapsed();
    assert!(took < muster_service::supervisor::DRAIN_DEADLINE, "{took:?}");
    assert!(trial.told.iter().any(|body| line(body) == "web@2 pending: db=pending ui=pending"));
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_is_neither_stopped_nor_rerun_when_the_agent_ends() {
    let mut trial = Trial::that_stops();
    let job = |mut entry: DesiredDeployment| {
        let properties = &mut entry.profile.components[0].properties;
        properties.insert("readiness".to_owned(), json!({ "type": "exit" }));
        entry.digest = entry.content_digest();
        entry
    };
    let wanted = [job(deployment("web", 1, &["setup", "ui"])), job(deployment("once", 1, &["setup"]))];
    trial.desire(document(1, wanted.to_vec()));
    trial.until("web@1 installed: setup=installed ui=installed").await;
    while !trial.records.values().all(|record| record.state() == State::Installed) {
        trial.next().await;
    }
    trial.runtime.forget_calls();
    let told = trial.told.len();
    let trial = trial.restart().await;
    assert_eq!(trial.runtime.calls(), ["stop web/ui"]);
    let told: Vec<_> = trial.told[told..].iter().map(line).collect();
    assert_eq!(told, ["web@1 pending: setup=installed ui=pending"]);
}
