//! A device without a hub: no report is lost, and the newest reports are sent first.

use super::*;

/// Three starts that fail, then one that does not: nine reports.
fn stumbling() -> Value {
    json!({ "failStarts": 3, "startDelay": "300ms" })
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_the_newest_state_comes_first_then_history_in_order() {
    let mut hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(1, &[("a", 1, stumbling()), ("b", 1, stumbling())])).await;
    hub.until("a", 1, State::Installing).await;
    hub.until("b", 1, State::Installing).await;
    hub.server.kill();
    let before = 1 + 2 * 2;
    let head = before + 2 * 7;
    until(
        "everything has happened",
        async || agent.handle.outbox().await.unwrap(),
        |summary| summary.head == head && summary.unsent > 2,
    )
    .await;
    hub.server.restart();
    agent.until_all_sent(head).await;
    let reports = hub.uplink().await;
    assert_dense(&reports);
    // Reports under way when the server stopped may have been stored before; all that followed are in order.
    let after = reports.iter().position(|report| report.head().get() == head).unwrap();
    let after: Vec<_> = reports[after..].iter().filter_map(status).collect();
    let truths: Vec<_> = after[..2].iter().map(|report| (report.status.state, report.current)).collect();
    assert_eq!(truths, [(State::Installed, true), (State::Installed, true)]);
    let history: Vec<_> = after[2..].iter().map(|report| report.seq.get()).collect();
    assert!(history.is_sorted() && !history.is_empty(), "{history:?}");
    assert!(after[2..].iter().all(|report| !report.current));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_delays_and_loses_nothing() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(1, &[("a", 1, json!({ "crashAfter": "20ms" }))])).await;
    hub.until("a", 1, State::Failed).await;
    hub.server.freeze();
    let frozen_at = agent.handle.outbox().await.unwrap().head;
    until(
        "more has happened",
        async || agent.handle.outbox().await.unwrap().head,
        |head| *head > frozen_at + 20,
    )
    .await;
    hub.server.thaw();
    hub.desire(&document(2, &[])).await;
    hub.until("a", 2, State::Removed).await;
    let head = agent.handle.outbox().await.unwrap().head;
    agent.until_all_sent(head).await;
    let mut seqs: Vec<_> = hub.uplink().await.iter().map(|report| report.seq().get()).collect();
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_hub_runs_what_it_last_accepted() {
    let mut hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(1, &[("a", 1, json!({}))])).await;
    hub.until("a", 1, State::Installed).await;
    let dir = agent.end().await;
    let before = hub.uplink().await.len() as u64;
    hub.server.stop();
    // Its pretended processes are gone as after a reboot.
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with("agent.")) {
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
    }
    let agent = hub.agent_in(dir).await;
    until(
        "it has started again",
        async || agent.handle.outbox().await.unwrap().head,
        |head| *head == before + 2,
    )
    .await;
    assert!(!agent.handle.is_connected());
    hub.server.restart();
    agent.until_all_sent(before + 2).await;
    assert_dense(&hub.uplink().await);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_started_before_the_streams_waits_and_may_end_meanwhile() {
    let hub = Hub::without_streams().await;
    let connected = |agent: &Agent| agent.handle.is_connected();
    let agent = hub.agent().await;
    until("a connection", async || connected(&agent), |connected| *connected).await;
    let dir = soon("an end in order", agent.end()).await;
    let agent = hub.agent_in(dir).await;
    until("a connection", async || connected(&agent), |connected| *connected).await;
    hub.converge().await;
    hub.desire(&document(1, &[("a", 1, json!({}))])).await;
    hub.until("a", 1, State::Installed).await;
    agent.until_all_sent(4).await;
    assert_dense(&hub.uplink().await);
    agent.end().await;
}
