//! A device without failures: the documents that it receives and the reports that it sends.

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
async fn every_message_carries_what_its_readers_need() {
    let hub = Hub::start().await;
    let agent = hub.agent().await;
    agent.until_all_sent(1).await;
    let first = hub.deliveries().await.unwrap().remove(0);
    for (name, value) in [
        (muster_contract::headers::CE_TYPE, "muster.v1.CapabilitiesReport"),
        (muster_contract::headers::CE_SOURCE, "muster/plant7/press-4"),
        (muster_contract::headers::EXPECTED_STREAM, stream::UPLINK),
    ] {
        assert_eq!(first.headers.get(name), Some(value), "{name}");
    }
    let id = first.headers.get(muster_contract::headers::MSG_ID).unwrap();
    assert_eq!(Some(id), first.headers.get(muster_contract::headers::CE_ID));
    assert!(first.headers.get(muster_contract::headers::TRACEPARENT).is_some());
    agent.end().await;
}
