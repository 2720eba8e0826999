//! A device without failures: the documents that it receives and the reports that it sends.

use muster_contract::headers::{EXPECTED_STREAM, TRACEPARENT};
use muster_contract::presence::Heartbeat;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn reports_arrive_numbered_from_one_capabilities_first() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    agent.until_all_sent(1).await;
    hub.desire(&document(3, &[("web", 3, json!({})), ("db", 3, json!({}))])).await;
    hub.until("web", 3, State::Installed).await;
    hub.until("db", 3, State::Installed).await;
    agent.until_all_sent(7).await;
    let reports = hub.uplink().await;
    assert_dense(&reports);
    let Report::Capabilities(first) = &reports[0] else { panic!("{:?}", reports[0]) };
    assert_eq!((first.seq.get(), first.labels["line"].as_str()), (1, "press"));
    let web: Vec<_> =
        reports.iter().filter_map(status).filter(|report| report.deployment.as_str() == "web").collect();
    let states: Vec<_> = web.iter().map(|report| report.status.state).collect();
    assert_eq!(states, [State::Pending, State::Installing, State::Installed]);
    assert!(web.iter().all(|report| report.components.len() == 1 && report.generation.get() == 3));
    assert!(web.last().unwrap().current);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hearts_beat_with_epoch_head_and_generation() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    hub.desire(&document(7, &[("web", 7, json!({}))])).await;
    hub.until("web", 7, State::Installed).await;
    let epoch = agent.handle.outbox().await.unwrap().epoch.unwrap();
    let beat = || async {
        let mut replay = hub.bus.replay(stream::PRESENCE, &[], Start::LastPerSubject).await.unwrap();
        let last = soon("a heartbeat", replay.next_batch(1)).await.unwrap().remove(0);
        assert!(last.subject.ends_with(".plant7.press-4"), "{}", last.subject);
        decode::parse::<Heartbeat>(&last.payload).unwrap()
    };
    until("a heartbeat that says all", beat, |beat| {
        (beat.epoch, beat.generation, beat.head, beat.unsent) == (epoch, 7, 4, 0)
    })
    .await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_has_the_guard_of_its_stream_and_no_header_of_its_content() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    agent.until_all_sent(1).await;
    let first = hub.deliveries().await.unwrap().remove(0);
    let headers: Vec<_> = first.headers.iter().filter(|(name, _)| *name != TRACEPARENT).collect();
    assert_eq!(headers, [(EXPECTED_STREAM, stream::UPLINK)]);
    agent.end().await;
}
