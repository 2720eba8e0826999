//! The deliveries of a partition: no acknowledgement covers a message that the reader has not received.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Deliveries, Delivery};
use muster_contract::DeviceKey;
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::subjects::stream;
use muster_tests::server::{Server, device};
use muster_tests::wait::{soon, until};

use crate::{connect, converged, crash, keeping_all, number, report};

async fn fill(bus: &Bus, key: &DeviceKey, numbers: impl Iterator<Item = u64>) {
    let mut window = bus.window(256);
    for n in numbers {
        window.send(report(key, n), n).await;
    }
    while let Some((_, answer)) = window.next().await {
        answer.unwrap();
    }
}

async fn read(deliveries: &mut Deliveries, count: usize) -> Vec<Delivery> {
    let mut read = Vec::new();
    while read.len() < count {
        read.extend(soon("reports", deliveries.next_batch(count - read.len())).await.unwrap());
    }
    read
}

fn numbers(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(number).collect()
}

async fn pending_is(bus: &Bus, partition: u16, wanted: u64) {
    let pending = || async {
        let floors = bus.partition_floors().await.unwrap();
        floors.iter().find(|floor| floor.partition == partition).map(|floor| floor.pending)
    };
    until("the pending count", pending, |pending| *pending == Some(wanted)).await;
}

#[tokio::test]
async fn only_what_was_not_acknowledged_comes_again_and_at_once() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    fill(&bus, &key, 1..=20).await;
    let mut first = bus.partition(partition).await.unwrap();
    let batch = read(&mut first, 20).await;
    assert_eq!(numbers(&batch), (1..=20).collect::<Vec<_>>());
    batch[11].ack_all().await;
    pending_is(&bus, partition, 8).await;
    drop(first);

    // A later reader, and messages that came meanwhile: the old ones first.
    fill(&bus, &key, 21..=22).await;
    let mut second = bus.partition(partition).await.unwrap();
    let batch = read(&mut second, 10).await;
    assert_eq!(numbers(&batch), (13..=22).collect::<Vec<_>>());
    batch[9].ack_all().await;
    pending_is(&bus, partition, 0).await;
    bus.converge().await.expect("a consumer that was rewound is still the contract's");
}

#[tokio::test]
async fn an_acknowledgement_of_an_earlier_life_covers_nothing() {
    let mut server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    fill(&bus, &key, 1..=10).await;
    let mut deliveries = bus.partition(partition).await.unwrap();
    let old = read(&mut deliveries, 10).await;
    server.kill();
    server.restart();
    let again = read(&mut deliveries, 10).await;
    assert_eq!(numbers(&again), (1..=10).collect::<Vec<_>>());
    old[9].ack_all().await;
    again[3].ack_all().await;
    pending_is(&bus, partition, 6).await;
}

#[tokio::test]
async fn a_reader_survives_the_loss_of_its_consumer() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    fill(&bus, &key, 1..=3).await;
    let mut deliveries = bus.partition(partition).await.unwrap();
    read(&mut deliveries, 3).await[2].ack_all().await;
    pending_is(&bus, partition, 0).await;
    let verb = format!("$JS.API.CONSUMER.DELETE.UPLINK.ingest-{partition}");
    bus.request(&verb, Default::default(), Duration::from_secs(5)).await.unwrap();
    fill(&bus, &key, 4..=5).await;
    // The position is lost with the consumer, so every message that UPLINK holds comes again.
    assert_eq!(numbers(&read(&mut deliveries, 5).await), [1, 2, 3, 4, 5]);
}

/// The server's state of a partition's consumer.
async fn consumer(bus: &Bus, partition: u16) -> serde_json::Value {
    let verb = format!("$JS.API.CONSUMER.INFO.UPLINK.ingest-{partition}");
    let info = bus.request(&verb, Bytes::new(), Duration::from_secs(5)).await.unwrap();
    serde_json::from_slice(&info).unwrap()
}

/// Leaves a pull request for a reply that no task awaits, so that the next message of a partition's consumer is lost.
async fn lose_next(bus: &Bus, partition: u16) {
    let verb = format!("$JS.API.CONSUMER.MSG.NEXT.UPLINK.ingest-{partition}");
    let body = Bytes::from(r#"{"batch":1,"expires":30000000000}"#);
    let nothing = bus.request(&verb, body, Duration::from_millis(10)).await;
    assert!(nothing.is_err(), "there is a message already: {nothing:?}");
    until("the request", || consumer(bus, partition), |info| info["num_waiting"] == 1).await;
}

#[tokio::test]
async fn a_reader_that_died_unnoticed_swallows_nothing() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    lose_next(&bus, partition).await;
    let mut deliveries = bus.partition(partition).await.unwrap();
    assert_eq!(consumer(&bus, partition).await["num_waiting"], 0);
    fill(&bus, &key, 1..=1).await;
    assert_eq!(numbers(&read(&mut deliveries, 1).await), [1]);
}

#[tokio::test]
async fn a_message_lost_on_the_way_is_not_covered_by_a_later_acknowledgement() {
    const MESSAGES: u64 = 200;
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    let before = consumer(&bus, partition).await["created"].clone();
    let mut deliveries = bus.partition(partition).await.unwrap();
    lose_next(&bus, partition).await;
    let filler = bus.clone();
    let filling = tokio::spawn(async move { fill(&filler, &key, 0..MESSAGES).await });

    let mut handled = BTreeSet::new();
    while handled.len() < MESSAGES as usize {
        let batch = soon("reports", deliveries.next_batch(10)).await.unwrap();
        for delivery in &batch {
            let n = number(delivery);
            assert!(n == 0 || handled.contains(&(n - 1)), "{n} came before {}", n - 1);
            handled.insert(n);
        }
        batch[batch.len() - 1].ack_all().await;
    }
    filling.await.unwrap();
    pending_is(&bus, partition, 0).await;
    assert_ne!(consumer(&bus, partition).await["created"], before, "nothing was lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_is_handled_before_its_acknowledgement_over_crashes() {
    const MESSAGES: u64 = 12_000;
    let mut server = Server::start();
    let bus = keeping_all(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    fill(&bus, &key, 0..MESSAGES).await;

    let mut handled = vec![0u32; MESSAGES as usize];
    for round in 0..6 {
        // A reader that dies with messages delivered, handled in part, acknowledged in part.
        let reader = connect(server.config("reader")).await;
        let mut deliveries = reader.partition(partition).await.unwrap();
        for _ in 0..8 {
            let batch = soon("reports", deliveries.next_batch(300)).await.unwrap();
            let half = &batch[..batch.len().div_ceil(2)];
            for delivery in half {
                handled[number(delivery) as usize] += 1;
            }
            half[half.len() - 1].ack_all().await;
            if half.len() < batch.len() {
                break;
            }
        }
        if round % 2 == 0 {
            crash(&mut server, &bus).await;
        }
    }
    let mut deliveries = bus.partition(partition).await.unwrap();
    while handled.contains(&0) {
        let batch = soon("the rest", deliveries.next_batch(1000)).await.unwrap();
        for delivery in &batch {
            handled[number(delivery) as usize] += 1;
        }
        batch[batch.len() - 1].ack_all().await;
    }
    pending_is(&bus, partition, 0).await;
}

#[tokio::test]
async fn the_floors_tell_what_may_be_trimmed() {
    let server = Server::start();
    let bus = converged(&server).await;
    let key = device("press-4");
    let partition = partition_of(&key);
    fill(&bus, &key, 1..=10).await;
    let mut deliveries = bus.partition(partition).await.unwrap();
    read(&mut deliveries, 10).await[5].ack_all().await;
    pending_is(&bus, partition, 4).await;
    let floors = bus.partition_floors().await.unwrap();
    assert_eq!(floors.len(), usize::from(PARTITIONS));
    for floor in floors {
        // A partition without messages holds nothing back.
        let wanted = if floor.partition == partition { (6, 4) } else { (10, 0) };
        assert_eq!((floor.stream_seq, floor.pending), wanted, "partition {}", floor.partition);
    }
    assert_eq!(bus.trim_partition(partition).await.unwrap(), 6);
    assert_eq!(bus.stream_state(stream::UPLINK).await.unwrap().messages, 4);
}
