//! Publishing: confirmed, in order, with a kind for each refusal, and complete over a crash of the server.

use std::collections::VecDeque;

use bytes::Bytes;
use muster_bus::{ApiError, Bus, NoAnswer, Outgoing, PublishErrorKind, Start, Window};
use muster_contract::limits::{HEARTBEAT_BYTES_MAX, REPORT_BYTES_MAX, REPORT_HEADER_BYTES_MAX};
use muster_contract::subjects::{self, stream};
use muster_tests::server::{Server, device};
use muster_tests::wait::soon;

use crate::{connect, keeping_all, number, report};

const IN_FLIGHT: usize = 256;
/// Messages sent in batches, then as many one by one.
const PART: u64 = 1_500;

#[tokio::test]
async fn a_window_answers_every_message_in_the_order_of_sending() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let mut window = bus.window(64);
    let key = device("press-4");
    let mut answers = Vec::new();
    for n in 0..5_000u64 {
        // A refusal in between keeps its place.
        let message = if n % 1000 == 500 { Outgoing::new("nobody.listens", "x") } else { report(&key, n) };
        window.send(message, n).await;
        answers.extend(std::iter::from_fn(|| window.try_next()));
    }
    while let Some(answer) = soon("an answer", window.next()).await {
        answers.push(answer);
    }
    assert!(window.is_empty());
    assert!(answers.iter().map(|(n, _)| *n).eq(0..5_000));
    let mut last = 0;
    for (n, answer) in answers {
        match answer {
            Ok(stored) => assert_eq!(stored.sequence, {
                last += 1;
                last
            }),
            Err(error) => {
                assert_eq!((n % 1000, error.kind), (500, PublishErrorKind::Transient), "{error}");
                assert_eq!(error.cause, ApiError::NoAnswer(NoAnswer::NoResponders));
            }
        }
    }
    assert_eq!(last, 4_995);
}

#[tokio::test]
async fn compare_and_set_is_a_conflict_for_whoever_comes_second() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let subject = subjects::desired(&device("press-4"));
    let set = |payload: &'static str, last| Outgoing {
        expected_last_subject_sequence: Some(last),
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subject.clone(), payload)
    };
    let first = bus.publish(set("one", 0)).await.unwrap();
    let conflict = bus.publish(set("other one", 0)).await.unwrap_err();
    assert_eq!(conflict.kind, PublishErrorKind::Conflict, "{conflict}");
    bus.publish(set("two", first.sequence)).await.unwrap();
    let last = bus.last(stream::DOWNLINK, &subject).await.unwrap().unwrap();
    assert_eq!(last.payload, "two");
}

#[tokio::test]
async fn a_message_no_stream_will_ever_take_is_told_from_one_to_try_again() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let key = device("press-4");
    let cases = [
        (
            Outgoing::new(subjects::report(&key), vec![b'x'; REPORT_BYTES_MAX + REPORT_HEADER_BYTES_MAX + 1]),
            PublishErrorKind::Permanent,
        ),
        (
            Outgoing::new(subjects::presence(&key), vec![b'x'; HEARTBEAT_BYTES_MAX + 1]),
            PublishErrorKind::Permanent,
        ),
        (Outgoing { expected_stream: Some("LEDGER"), ..report(&key, 1) }, PublishErrorKind::Permanent),
        (Outgoing::new("with space", "x"), PublishErrorKind::Permanent),
        (Outgoing::new("muster.nothing.a.b", "x"), PublishErrorKind::Transient),
    ];
    for (message, kind) in cases {
        let error = bus.publish(message).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}: {}", error.cause);
    }
    // Headers have room beside a report of the largest size.
    let mut largest = Outgoing::new(subjects::report(&key), vec![b'x'; REPORT_BYTES_MAX]);
    largest.headers.insert("traceparent", "0".repeat(REPORT_HEADER_BYTES_MAX - 64));
    bus.publish(largest).await.unwrap();
}

#[tokio::test]
async fn a_message_id_is_recognised_across_a_crash_of_the_server() {
    let mut server = Server::start();
    let bus = keeping_all(&server).await;
    let message = || Outgoing { message_id: Some("0198-random".into()), ..report(&device("press-4"), 1) };
    let first = bus.publish(message()).await.unwrap();
    server.kill();
    server.restart();
    let again = publish_until_stored(&bus, message).await;
    assert_eq!((again.duplicate, again.sequence), (true, first.sequence));
}

async fn publish_until_stored(bus: &Bus, message: impl Fn() -> Outgoing) -> muster_bus::Stored {
    let mut link = bus.link();
    loop {
        soon("the link", link.wait_for(|link| link.is_up())).await.unwrap();
        match bus.publish(message()).await {
            Ok(stored) => return stored,
            Err(error) => assert_eq!(error.kind, PublishErrorKind::Transient, "{error}"),
        }
    }
}

#[tokio::test]
async fn while_the_link_is_down_every_message_fails_at_once() {
    let mut server = Server::start();
    let bus = keeping_all(&server).await;
    let mut link = bus.link();
    server.kill();
    soon("the link to be down", link.wait_for(|link| !link.is_up())).await.unwrap();
    let key = device("press-4");
    for flow in [None, Some(2)] {
        let mut window = bus.window(4).ack_on_batch_end();
        for n in 0..10 {
            if let Some(flow) = flow {
                window.batch_by(flow).await;
            }
            soon("a refusal", window.send(report(&key, n), n)).await;
        }
        for n in 0..10 {
            let (tag, answer) = soon("an answer", window.next()).await.unwrap();
            assert_eq!((tag, answer.unwrap_err().cause), (n, NoAnswer::Disconnected.into()));
        }
    }
    let refused = bus.publish_core("a.b", Default::default(), Bytes::new()).await.unwrap_err();
    assert_eq!(refused.kind, PublishErrorKind::Transient);
    assert!(bus.publish(report(&key, 1)).await.is_err());
}

/// A minimal outbox: it sends messages without a confirmation again, with the same id.
struct Outbox {
    waiting: VecDeque<u64>,
    confirmed: Vec<u64>,
}

impl Outbox {
    /// Sends everything, each of the two ways in turn.
    async fn run(&mut self, window: &mut Window<u64>, message: impl Fn(u64) -> Outgoing) {
        while !self.waiting.is_empty() || !window.is_empty() {
            match self.waiting.pop_front() {
                Some(n) if (n / PART).is_multiple_of(2) => {
                    window.batch_by(IN_FLIGHT / 4).await;
                    window.send(message(n), n).await;
                }
                Some(n) => {
                    window.end_batch().await;
                    window.send(message(n), n).await;
                }
                None => {
                    window.end_batch().await;
                    let answer = window.next().await;
                    self.take(answer);
                }
            }
            while let Some(answer) = window.try_next() {
                self.take(Some(answer));
            }
            if !self.waiting.is_empty() && window.is_empty() {
                // Nothing goes out while the link is down; do not spin.
                tokio::task::yield_now().await;
            }
        }
    }

    fn take(&mut self, answer: Option<(u64, Result<muster_bus::Stored, muster_bus::PublishError>)>) {
        match answer {
            Some((n, Ok(_))) => self.confirmed.push(n),
            Some((n, Err(error))) => {
                assert_eq!(error.kind, PublishErrorKind::Transient, "{error}");
                self.waiting.push_back(n);
            }
            None => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_loses_and_doubles_nothing_over_crashes_of_the_server() {
    over_crashes(|bus| bus.window(IN_FLIGHT)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_does_one_that_is_told_of_its_batches_at_their_end() {
    over_crashes(|bus| bus.window(IN_FLIGHT).ack_on_batch_end()).await;
}

async fn over_crashes(open: impl FnOnce(&Bus) -> Window<u64> + Send + 'static) {
    const MESSAGES: u64 = 30_000;
    let mut server = Server::start();
    let bus = keeping_all(&server).await;
    let key = device("press-4");
    let id = std::process::id();
    let message = move |n: u64| Outgoing { message_id: Some(format!("{id}-{n}")), ..report(&key, n) };
    let sender = connect(server.config("sender")).await;
    let outbox = tokio::spawn(async move {
        let mut outbox = Outbox { waiting: (0..MESSAGES).collect(), confirmed: Vec::new() };
        outbox.run(&mut open(&sender), message).await;
        outbox.confirmed
    });
    for part in 1..=3 {
        stored_at_least(&bus, part * MESSAGES / 5).await;
        server.kill();
        server.restart();
    }
    let mut confirmed = soon("every confirmation", outbox).await.unwrap();
    confirmed.sort_unstable();
    assert!(confirmed.into_iter().eq(0..MESSAGES), "a message was confirmed twice or not at all");

    let mut stored = Vec::new();
    let mut replay = bus.replay(stream::UPLINK, &[], Start::First).await.unwrap();
    while bus.stream_state(stream::UPLINK).await.unwrap().messages > stored.len() as u64 {
        stored.extend(soon("reports", replay.next_batch(5_000)).await.unwrap().iter().map(number));
    }
    stored.sort_unstable();
    assert!(stored.into_iter().eq(0..MESSAGES), "a message was stored twice or not at all");
}

async fn stored_at_least(bus: &Bus, count: u64) {
    let enough =
        |state: &Result<muster_bus::StreamState, _>| state.as_ref().is_ok_and(|s| s.messages >= count);
    muster_tests::wait::until("messages in UPLINK", || bus.stream_state(stream::UPLINK), enough)
        .await
        .unwrap();
}
