//! Numbers and epochs across restarts of the agent and losses of its database.

use muster_contract::Epoch;

use super::*;

fn receipt(epoch: u64, through: u64) -> Value {
    json!({ "apiVersion": "muster/v1", "kind": "Receipt", "epoch": epoch, "through": through, "missing": [] })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_epoch_and_numbers() {
    let hub = Hub::start().await;
    let mut dir = tempfile::tempdir().unwrap();
    for generation in 1..4 {
        let agent = hub.agent_in(dir).await;
        hub.desire(&document(generation, &[("a", generation, json!({ "x-version": generation }))])).await;
        hub.until("a", generation, State::Installed).await;
        if generation == 2 {
            // A crash instead of an end.
            agent.supervisor.abandon().await;
            drop(agent.handle);
            dir = agent.dir;
        } else {
            dir = agent.end().await;
        }
    }
    let reports = hub.uplink().await;
    let epochs: std::collections::BTreeSet<_> = reports.iter().map(Report::epoch).collect();
    assert_eq!(epochs.len(), 1);
    let mut seqs: Vec<_> = reports.iter().map(|report| report.seq().get()).collect();
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "no number is missing");
    let capabilities = reports.iter().filter(|report| status(report).is_none()).count();
    assert_eq!(capabilities, 1, "reported once: they did not change");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_begins_an_epoch_above_every_one_the_hub_knows() {
    let hub = Hub::start().await;
    let far = 40_000_000_000;
    hub.store(subjects::receipt(&hub.device), &receipt(far, 12)).await;
    let agent = hub.agent().await;
    agent.until_all_sent(1).await;
    let reports = hub.uplink().await;
    assert_eq!(reports[0].epoch(), Epoch::new(far + 1).unwrap());
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_older_than_the_hubs_knowledge_begins_a_new_epoch() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(1, &[("a", 1, json!({})), ("b", 1, json!({}))])).await;
    hub.until("a", 1, State::Installed).await;
    hub.until("b", 1, State::Installed).await;
    agent.until_all_sent(7).await;
    let first = agent.handle.outbox().await.unwrap().epoch.unwrap();
    hub.store(subjects::receipt(&hub.device), &receipt(first.get(), 7)).await;
    hub.store(subjects::receipt(&hub.device), &receipt(first.get(), 100)).await;
    let reported = |reports: &Vec<Report>| {
        let second = reports.iter().filter(|report| report.epoch() > first);
        let installed =
            second.filter_map(status).filter(|it| it.status.state == State::Installed && it.current);
        installed.count() == 2
    };
    let reports = until("both are reported again", || hub.uplink(), reported).await;
    let second: Vec<_> = reports.into_iter().filter(|report| report.epoch() > first).collect();
    assert_dense(&second);
    assert!(matches!(second[0], Report::Capabilities(_)), "{:?}", second[0]);
    agent.end().await;
}
