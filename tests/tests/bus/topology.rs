//! Streams as data: `converge` creates each once, then compares it and never changes it.

use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, BusConfig, Outgoing, Start, TopologyError, topology};
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{self, stream};
use muster_tests::hostile::reader_tricks::STREAMS;
use muster_tests::server::{Server, Setup, device};
use muster_tests::wait::soon;
use serde_json::{Value, json};

use crate::{connect, converged, report};

/// A request to the JetStream API without the bus's own code for it.
async fn api(bus: &Bus, verb: &str, body: Value) -> Value {
    let body = Bytes::from(body.to_string());
    let answer = bus.request(&format!("$JS.API.{verb}"), body, Duration::from_secs(5)).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

/// The configurations of all streams and of the partitions' consumers.
async fn shape(bus: &Bus) -> Vec<Value> {
    let mut shape = Vec::new();
    for name in STREAMS {
        let info = api(bus, &format!("STREAM.INFO.{name}"), json!({})).await;
        shape.push(json!([info["config"], info["created"]]));
    }
    let list = api(bus, "CONSUMER.LIST.UPLINK", json!({ "offset": 0 })).await;
    let consumers = list["consumers"].as_array().unwrap();
    shape.extend(consumers.iter().map(|info| json!([info["config"], info["created"]])));
    shape
}

#[test]
fn the_tests_know_every_stream_of_the_topology() {
    let described = topology::described();
    let names: Vec<_> =
        described["streams"].as_array().unwrap().iter().map(|stream| &stream["name"]).collect();
    // The scheduler alone makes PLANS.
    assert_eq!(names, [&STREAMS[..], &["PLANS"]].concat());
}

#[tokio::test]
async fn converging_again_changes_nothing() {
    let server = Server::start();
    let bus = converged(&server).await;
    let before = shape(&bus).await;
    assert_eq!(before.len(), STREAMS.len() + usize::from(PARTITIONS));
    bus.converge().await.unwrap();
    assert_eq!(shape(&bus).await, before);
}

#[tokio::test]
async fn services_may_converge_all_at_once() {
    let server = Server::start();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let config = server.config(&format!("service-{n}"));
        tasks.spawn(async move { connect(config).await.converge().await });
    }
    while let Some(end) = soon("the topology", tasks.join_next()).await {
        end.unwrap().unwrap();
    }
    let bus = connect(server.config("test")).await;
    assert_eq!(shape(&bus).await.len(), STREAMS.len() + usize::from(PARTITIONS));
}

#[tokio::test]
async fn a_stream_of_another_shape_is_reported_by_field_and_left_alone() {
    let server = Server::start();
    let bus = converged(&server).await;
    let mut config = api(&bus, "STREAM.INFO.LEDGER", json!({})).await["config"].clone();
    config["max_age"] = json!(3_600_000_000_000_u64);
    config["subjects"].as_array_mut().unwrap().push(json!("other.>"));
    assert!(api(&bus, "STREAM.UPDATE.LEDGER", config).await["error"].is_null());
    let consumer = json!({ "stream_name": "UPLINK", "action": "update", "config": {
        "durable_name": "ingest-7", "filter_subject": "muster.report.7.>", "ack_policy": "all",
        "ack_wait": 5_000_000_000_u64, "max_ack_pending": 8192, "max_deliver": -1 } });
    let updated = api(&bus, "CONSUMER.CREATE.UPLINK.ingest-7.muster.report.7.>", consumer).await;
    assert!(updated["error"].is_null(), "{updated}");
    let before = shape(&bus).await;

    let Err(TopologyError::Differs(differences)) = bus.converge().await else {
        panic!("no difference found")
    };
    let found: Vec<_> = differences.iter().map(|d| (d.asset.as_str(), d.field.as_str())).collect();
    let wanted = [
        ("stream LEDGER", "max_age"),
        ("stream LEDGER", "subjects"),
        ("consumer UPLINK/ingest-7", "ack_wait"),
    ];
    assert_eq!(found, wanted);
    assert_eq!(shape(&bus).await, before, "something was changed");
}

#[tokio::test]
async fn what_an_operator_may_choose_is_no_difference() {
    let server = Server::start();
    let bus = converged(&server).await;
    let mut config = api(&bus, "STREAM.INFO.UPLINK", json!({})).await["config"].clone();
    config["max_bytes"] = json!(123_456_789);
    config["description"] = json!("reports of the fleet");
    config["metadata"] = json!({ "owner": "plant operations" });
    assert!(api(&bus, "STREAM.UPDATE.UPLINK", config).await["error"].is_null());
    bus.converge().await.unwrap();
}

#[tokio::test]
async fn without_room_for_uplink_the_message_says_what_to_do() {
    let more = "accounts { A { jetstream { max_file: 1GB }, users: [{ user: a, password: a }] } }\nno_auth_user: a\n";
    let server = Server::start_with(Setup { more: more.into(), ..Setup::default() });
    let bus = connect(server.config("test")).await;
    let refusal = bus.converge().await.unwrap_err();
    assert!(matches!(refusal, TopologyError::NoRoom { .. }), "{refusal:?}");
    assert!(
        refusal.to_string().contains("stream UPLINK") && refusal.to_string().contains("smaller"),
        "{refusal}"
    );

    let (uplink_bytes_max, ledger_bytes_max) = (100 * 1024 * 1024, 100 * 1024 * 1024);
    let config = BusConfig { uplink_bytes_max, ledger_bytes_max, ..server.config("test") };
    connect(config).await.converge().await.unwrap();
}

#[tokio::test]
async fn a_device_is_stored_in_the_partition_that_partition_of_gives() {
    let server = Server::start();
    let bus = converged(&server).await;
    let mut replay = bus.replay(stream::UPLINK, &[], Start::First).await.unwrap();
    let names = (0..64).map(|n| format!("d{}{n}", "x".repeat(n % 7)));
    let keys: Vec<_> = names.map(|name| device(&name)).collect();
    for key in &keys {
        bus.publish(report(key, 1)).await.unwrap();
    }
    let mut stored = Vec::new();
    while stored.len() < keys.len() {
        stored.extend(soon("reports", replay.next_batch(1000)).await.unwrap().into_iter().map(|d| d.subject));
    }
    for (key, subject) in keys.iter().zip(stored) {
        assert_eq!(subject, format!("muster.report.{}.{}.{}", partition_of(key), key.site, key.device));
    }
}

#[tokio::test]
async fn downlink_republishes_what_it_stored_and_ledger_gets_desired_state() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let mut live = bus.subscribe(&subjects::live(&key)).await.unwrap();
    let stored = bus.publish(Outgoing::new(subjects::desired(&key), "desired")).await.unwrap();
    let heard = soon("the live message", live.next()).await.unwrap();
    assert_eq!(
        (heard.subject.as_str(), heard.stream_seq),
        ("muster.desired.plant7.press-4", stored.sequence)
    );
    assert_eq!(heard.payload, "desired");
    let kept = bus.last(stream::DOWNLINK, &subjects::desired(&key)).await.unwrap().unwrap();
    assert_eq!(heard.stored_at, kept.stored_at);

    bus.publish(Outgoing::new(subjects::receipt(&key), "receipt")).await.unwrap();
    let heard = soon("the live message", live.next()).await.unwrap();
    assert_eq!(
        (heard.subject.as_str(), &heard.payload[..]),
        ("muster.receipt.plant7.press-4", &b"receipt"[..])
    );

    let mut ledger = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let facts = soon("the desired state in LEDGER", ledger.next_batch(10)).await.unwrap();
    assert_eq!(facts.len(), 1);
    assert_eq!(
        (facts[0].subject.as_str(), &facts[0].payload[..]),
        ("muster.desired.plant7.press-4", &b"desired"[..])
    );
}

#[tokio::test]
async fn downlink_keeps_five_documents_of_a_subject_and_presence_one() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    for n in 0..9 {
        bus.publish(Outgoing::new(subjects::desired(&key), n.to_string())).await.unwrap();
        bus.publish(Outgoing::new(subjects::presence(&key), n.to_string())).await.unwrap();
    }
    assert_eq!(bus.stream_state(stream::DOWNLINK).await.unwrap().messages, 5);
    assert_eq!(bus.stream_state(stream::PRESENCE).await.unwrap().messages, 1);
}
