//! Ordered reading: without gaps or repetitions over crashes, and an error when that is impossible.

use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_bus::{Bus, Delivery, LastReceived, Outgoing, ReadError, Replay, Start};
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{self, stream};
use muster_tests::server::{Server, device};
use muster_tests::wait::{soon, until};

use crate::{connect, converged, crash, number, report};

const FACT: &str = "muster.status.plant7.press-4.web";

async fn fill(bus: &Bus, subject: &str, numbers: impl Iterator<Item = u64>) {
    let mut window = bus.window(256);
    for n in numbers {
        window.send(Outgoing::new(subject, n.to_string()), n).await;
    }
    while let Some((_, answer)) = window.next().await {
        answer.unwrap();
    }
}

async fn read(replay: &mut Replay, count: usize) -> Vec<Delivery> {
    let mut read = Vec::new();
    while read.len() < count {
        read.extend(soon("messages", replay.next_batch(count - read.len())).await.unwrap());
    }
    read
}

fn numbers(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(number).collect()
}

#[tokio::test]
async fn a_replay_begins_where_it_is_told() {
    let server = Server::start();
    let bus = converged(&server).await;
    fill(&bus, FACT, 1..=10).await;
    fill(&bus, "muster.device.plant7.press-4", 11..=12).await;
    for (start, wanted) in [
        (Start::First, (1..=12).collect::<Vec<_>>()),
        (Start::After(0), (1..=12).collect()),
        (Start::After(9), vec![10, 11, 12]),
        (Start::LastPerSubject, vec![10, 12]),
    ] {
        let mut replay = bus.replay(stream::LEDGER, &[], start).await.unwrap();
        assert_eq!(numbers(&read(&mut replay, wanted.len()).await), wanted, "{start:?}");
    }
    let mut new = bus.replay(stream::LEDGER, &[], Start::New).await.unwrap();
    let mut filtered =
        bus.replay(stream::LEDGER, &["muster.device.>", "muster.incident.>"], Start::First).await.unwrap();
    fill(&bus, FACT, 13..=13).await;
    fill(&bus, "muster.incident.plant7.press-4", 14..=14).await;
    assert_eq!(numbers(&read(&mut new, 2).await), [13, 14]);
    assert_eq!(numbers(&read(&mut filtered, 3).await), [11, 12, 14]);
}

#[tokio::test]
async fn what_arrives_is_what_was_stored_with_its_place() {
    let server = Server::start();
    let bus = converged(&server).await;
    let mut message = Outgoing::new(FACT, "fact");
    message.headers.insert("traceparent", "00-abc");
    let stored = bus.publish(message).await.unwrap();
    fill(&bus, FACT, 2..=3).await;
    let mut replay = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let read = read(&mut replay, 3).await;
    assert_eq!(
        (read[0].subject.as_str(), &read[0].payload[..], read[0].stream_seq),
        (FACT, &b"fact"[..], stored.sequence)
    );
    assert_eq!(read[0].headers.get("traceparent"), Some("00-abc"));
    assert_eq!(read.iter().map(|d| d.pending).collect::<Vec<_>>(), [2, 1, 0]);
    let last = bus.last(stream::LEDGER, FACT).await.unwrap().unwrap();
    assert_eq!((last.stream_seq, last.stored_at), (read[2].stream_seq, read[2].stored_at));
    assert_eq!(replay.position(), Some(3));
}

#[tokio::test]
async fn ready_messages_come_in_large_batches() {
    let server = Server::start();
    let bus = converged(&server).await;
    fill(&bus, FACT, 1..=4_000).await;
    let mut replay = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let mut batches = Vec::new();
    let mut count = 0;
    while count < 4_000 {
        let batch = soon("messages", replay.next_batch(500)).await.unwrap();
        count += batch.len();
        batches.push(batch.len());
        // Time for more to arrive, as a consumer takes it for its work.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(batches.iter().any(|&len| len > 200) && batches.iter().all(|&len| len <= 500), "{batches:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_goes_on_without_a_hole_over_crashes_of_the_server() {
    const MESSAGES: u64 = 20_000;
    let mut server = Server::start();
    let bus = converged(&server).await;
    fill(&bus, FACT, 1..=MESSAGES / 2).await;
    let reader = connect(server.config("reader")).await;
    let mut replay = reader.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let mut seen = numbers(&read(&mut replay, 3_000).await);
    for part in 1..=4 {
        crash(&mut server, &bus).await;
        let from = MESSAGES / 2 + (part - 1) * MESSAGES / 8;
        fill(&bus, FACT, from + 1..=from + MESSAGES / 8).await;
        seen.extend(numbers(&read(&mut replay, 2_500).await));
    }
    seen.extend(numbers(&read(&mut replay, MESSAGES as usize - seen.len()).await));
    assert!(seen.into_iter().eq(1..=MESSAGES), "a message was left out or repeated");
}

#[tokio::test]
async fn a_waiting_replay_survives_a_crash_and_the_loss_of_its_consumer() {
    let mut server = Server::start();
    let bus = converged(&server).await;
    fill(&bus, FACT, 1..=3).await;
    let mut replay = bus.replay(stream::LEDGER, &[], Start::New).await.unwrap();
    crash(&mut server, &bus).await;
    fill(&bus, FACT, 4..=5).await;
    assert_eq!(numbers(&read(&mut replay, 2).await), [4, 5]);

    delete_consumers(&bus, stream::LEDGER).await;
    fill(&bus, FACT, 6..=7).await;
    assert_eq!(numbers(&read(&mut replay, 2).await), [6, 7]);
}

async fn ask(bus: &Bus, verb: &str) -> serde_json::Value {
    let answer = bus.request(&format!("$JS.API.CONSUMER.{verb}"), Bytes::new(), Duration::from_secs(5)).await;
    serde_json::from_slice(&answer.unwrap()).unwrap()
}

/// The consumers of a stream's readers.
async fn consumers(bus: &Bus, stream: &str) -> Vec<String> {
    let names = ask(bus, &format!("NAMES.{stream}")).await["consumers"].clone();
    names.as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Deletes every reader's consumer behind its back.
async fn delete_consumers(bus: &Bus, stream: &str) {
    for name in consumers(bus, stream).await {
        ask(bus, &format!("DELETE.{stream}.{name}")).await;
    }
}

#[tokio::test]
async fn messages_of_the_largest_size_come_without_a_break() {
    const MESSAGES: usize = 200;
    let server = Server::start();
    let bus = converged(&server).await;
    let mut window = bus.window(32);
    for _ in 0..MESSAGES {
        window.send(Outgoing::new(FACT, vec![b'x'; MESSAGE_BYTES_MAX]), ()).await;
    }
    while let Some((_, answer)) = window.next().await {
        answer.unwrap();
    }
    let mut replay = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let before = consumers(&bus, stream::LEDGER).await;
    let places: Vec<_> = read(&mut replay, MESSAGES).await.iter().map(|d| d.stream_seq).collect();
    assert!(places.into_iter().eq(1..=MESSAGES as u64));
    assert_eq!(consumers(&bus, stream::LEDGER).await, before, "the reader had to begin again");
}

#[tokio::test]
async fn a_stream_that_was_made_anew_is_told_not_papered_over() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    for n in 1..=3 {
        bus.publish(Outgoing::new(subjects::desired(&key), n.to_string())).await.unwrap();
    }
    let mut replay = bus.replay(stream::DOWNLINK, &[], Start::First).await.unwrap();
    read(&mut replay, 3).await;
    let deleted =
        bus.request("$JS.API.STREAM.DELETE.DOWNLINK", Bytes::new(), Duration::from_secs(5)).await.unwrap();
    assert!(deleted.windows(14).any(|text| text == b"\"success\":true"), "{deleted:?}");
    bus.converge().await.unwrap();
    let end = soon("the truth", replay.next_batch(1)).await.unwrap_err();
    assert!(matches!(end, ReadError::StreamReset { position: 3, last_seq: 0, .. }), "{end:?}");

    let early = bus.replay(stream::DOWNLINK, &[], Start::After(7)).await.unwrap_err();
    assert!(matches!(early, ReadError::StreamReset { position: 7, .. }), "{early:?}");
}

#[tokio::test]
async fn messages_trimmed_before_they_were_read_are_told() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    for n in 1..=10 {
        bus.publish(report(&key, n)).await.unwrap();
    }
    let mut deliveries = bus.partition(partition_of(&key)).await.unwrap();
    let mut batch = Vec::new();
    while batch.len() < 5 {
        batch.extend(soon("reports", deliveries.next_batch(5 - batch.len())).await.unwrap());
    }
    let purger = batch[4].purger().unwrap();
    assert_eq!(purger.purge_partition(batch[4].stream_seq).await.unwrap(), Some(5));
    assert_eq!(bus.stream_state(stream::UPLINK).await.unwrap().first_seq, 6);
    let late = bus.replay(stream::UPLINK, &[], Start::After(3)).await.unwrap_err();
    assert!(matches!(late, ReadError::Trimmed { position: 3, first_seq: 6, .. }), "{late:?}");
    let mut replay = bus.replay(stream::UPLINK, &[], Start::After(5)).await.unwrap();
    assert_eq!(numbers(&read(&mut replay, 5).await), [6, 7, 8, 9, 10]);
}

#[tokio::test]
async fn a_reader_leaves_no_consumer_behind() {
    let server = Server::start();
    let bus = converged(&server).await;
    let replay = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    drop(replay);
    let left = || consumers(&bus, stream::LEDGER);
    muster_tests::wait::until("no consumer", left, |left| left.is_empty()).await;
}

#[tokio::test]
async fn a_reader_without_messages_hears_the_server_while_its_stream_exists() {
    const HEARTBEAT: Duration = Duration::from_secs(1);
    let server = Server::start();
    let bus = converged(&server).await;
    let mut replay = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let received = LastReceived::default();
    replay.record_received(received.clone(), HEARTBEAT);
    let reading = tokio::spawn(async move { replay.next_batch(1).await.map(|_| ()) });
    let opened = Instant::now();
    let last_received = async || received.age().and_then(|age| Instant::now().checked_sub(age));
    for beats in 1..=3 {
        until("a heartbeat", last_received, |at| at.is_some_and(|at| at > opened + beats * HEARTBEAT / 2))
            .await;
    }
    bus.request("$JS.API.STREAM.DELETE.LEDGER", Bytes::new(), Duration::from_secs(5)).await.unwrap();
    until("the stream is missed", last_received, Option::is_none).await;
    reading.abort();
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_said_to_be_missing() {
    let server = Server::start();
    let bus = connect(server.config("test")).await;
    for error in [
        bus.replay(stream::LEDGER, &[], Start::First).await.unwrap_err(),
        bus.last(stream::DOWNLINK, "muster.desired.a.b").await.unwrap_err(),
        bus.stream_state(stream::UPLINK).await.unwrap_err(),
        bus.partition(3).await.unwrap_err(),
    ] {
        assert!(matches!(error, ReadError::Missing { .. }), "{error:?}");
    }
}
