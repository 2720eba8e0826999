//! Tests of the desired states that a device accepts and rejects.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn only_a_greater_generation_of_a_valid_document_is_accepted() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(5, &[("web", 5, json!({}))])).await;
    hub.until("web", 5, State::Installed).await;
    hub.desire(&document(4, &[("old", 4, json!({}))])).await;
    let mut forged = document(9, &[("forged", 9, json!({}))]);
    forged["deployments"][0]["name"] = json!("another name than its digest says");
    hub.desire(&forged).await;
    hub.store(subjects::desired(&hub.device), &json!({ "kind": "Nonsense" })).await;
    hub.desire(&document(6, &[("web", 5, json!({})), ("new", 6, json!({}))])).await;
    let reports = hub.until("new", 6, State::Installed).await;
    assert_eq!(agent.handle.generation(), 6);
    let reported: std::collections::BTreeSet<_> =
        reports.iter().filter_map(status).map(|report| report.deployment.as_str()).collect();
    assert_eq!(reported.into_iter().collect::<Vec<_>>(), ["new", "web"]);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missed_while_away_is_looked_up() {
    let hub = Hub::start().await;
    hub.desire(&document(1, &[("web", 1, json!({}))])).await;
    let agent = hub.agent().await;
    hub.until("web", 1, State::Installed).await;
    let dir = agent.end().await;
    for generation in 2..5 {
        hub.desire(&document(generation, &[("web", generation, json!({ "x-version": generation }))])).await;
    }
    let agent = hub.agent_in(dir).await;
    let reports = hub.until("web", 4, State::Installed).await;
    let skipped = |report: &&Report| status(report).is_some_and(|it| [2, 3].contains(&it.generation.get()));
    assert_eq!(reports.iter().filter(skipped).count(), 0, "only the newest is applied");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_device_removes_everything() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(1, &[("web", 1, json!({}))])).await;
    hub.until("web", 1, State::Installed).await;
    let mut retired = document(2, &[]);
    retired["retired"] = json!(true);
    hub.desire(&retired).await;
    let reports = hub.until("web", 2, State::Removed).await;
    assert_dense(&reports);
    agent.end().await;
}
