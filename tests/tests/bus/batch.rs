//! Batches: many messages and few answers, with the same promises as one by one.

use std::net::Ipv4Addr;

use futures_util::StreamExt;
use muster_bus::publish::CONFIRM_TIMEOUT;
use muster_bus::{Bus, BusConfig, Outgoing, PublishError, PublishErrorKind, Start, Stored, Window};
use muster_contract::limits::UPLINK_SHARE;
use muster_contract::partition::partition_of;
use muster_contract::subjects::stream;
use muster_tests::server::{Server, Setup, device};
use muster_tests::thin::Thin;
use muster_tests::wait::{soon, until};
use serde_json::json;
use tokio::time::timeout;

use crate::{connect, converged, keeping_all, number, report};

type Answers = Vec<(u64, Result<Stored, PublishError>)>;

/// A numbered report under the message id of its number.
fn message(n: u64) -> Outgoing {
    Outgoing { message_id: Some(format!("id-{n}")), ..report(&device("press-4"), n) }
}

/// Sends numbers as one run and reads every answer.
async fn send(
    window: &mut Window<u64>,
    flow: usize,
    messages: impl IntoIterator<Item = (u64, Outgoing)>,
) -> Answers {
    let mut answers = Vec::new();
    for (n, message) in messages {
        window.batch_by(flow).await;
        soon("room", window.send(message, n)).await;
        answers.extend(std::iter::from_fn(|| window.try_next()));
    }
    window.end_batch().await;
    while let Some(answer) = soon("an answer", window.next()).await {
        answers.push(answer);
    }
    answers
}

fn numbers(range: std::ops::RangeInclusive<u64>) -> impl Iterator<Item = (u64, Outgoing)> {
    range.map(|n| (n, message(n)))
}

async fn stored(bus: &Bus) -> Vec<u64> {
    let wanted = bus.stream_state(stream::UPLINK).await.unwrap().messages as usize;
    let mut replay = bus.replay(stream::UPLINK, &[], Start::First).await.unwrap();
    let mut numbers = Vec::new();
    while numbers.len() < wanted {
        numbers.extend(soon("reports", replay.next_batch(5_000)).await.unwrap().iter().map(number));
    }
    numbers
}

fn all_stored(answers: &Answers, numbers: std::ops::RangeInclusive<u64>) {
    assert!(answers.iter().map(|(n, _)| *n).eq(numbers), "in the order of sending, each once");
    let refused = answers.iter().find(|(_, answer)| answer.is_err());
    assert!(refused.is_none(), "{refused:?}");
}

/// Disables batches on UPLINK, as an earlier release created it.
async fn without_batches(bus: &Bus) {
    let ask = async |verb: &str, body: serde_json::Value| {
        let subject = format!("$JS.API.STREAM.{verb}.UPLINK");
        let answer =
            bus.request(&subject, body.to_string().into(), std::time::Duration::from_secs(5)).await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&answer).unwrap()
    };
    let mut config = ask("INFO", json!({})).await["config"].clone();
    assert_eq!(config["allow_batched"], json!(true));
    config["allow_batched"] = json!(false);
    assert!(ask("UPDATE", config).await["error"].is_null());
}

#[tokio::test]
async fn one_answer_stands_for_many_messages_with_a_devices_rights() {
    const MESSAGES: u64 = 4_000;
    let server = Server::start_with(Setup { devices: vec![device("press-4")], ..Setup::default() });
    let hub = keeping_all(&server).await;
    let mut down = Vec::new();
    for (at, flow) in [None, Some(64)].into_iter().enumerate() {
        let thin = Thin::open((Ipv4Addr::LOCALHOST, server.port()).into(), 1_000_000_000).await;
        let url = server.device_url(&device("press-4"));
        let url = url.replace(&server.port().to_string(), &thin.address().port().to_string());
        let bus = connect(BusConfig { url, ..server.device_config(&device("press-4")) }).await;
        let mut window = bus.window(256);
        let first = 1 + at as u64 * MESSAGES;
        let range = first..=first + MESSAGES - 1;
        let answers = match flow {
            Some(flow) => send(&mut window, flow, numbers(range.clone())).await,
            None => {
                let mut answers = Vec::new();
                for (n, message) in numbers(range.clone()) {
                    window.send(message, n).await;
                    answers.extend(std::iter::from_fn(|| window.try_next()));
                }
                while let Some(answer) = window.next().await {
                    answers.push(answer);
                }
                answers
            }
        };
        all_stored(&answers, range);
        down.push(thin.bytes());
    }
    assert_eq!(stored(&hub).await, (1..=2 * MESSAGES).collect::<Vec<_>>());
    let each = |bytes: u64| bytes as f64 / MESSAGES as f64;
    let figure = |(up, down): (u64, u64)| format!("{:.0} bytes up and {:.1} down", each(up), each(down));
    eprintln!("a message costs {} one by one, {} in a batch", figure(down[0]), figure(down[1]));
    assert!(down[1].1 * 5 < down[0].1, "{down:?}");
}

#[tokio::test]
async fn the_end_of_a_batch_is_reported_once_with_its_sequence() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let mut window = bus.window(64).ack_on_batch_end();
    // It ends with a shared answer, and between two of them.
    for range in [1..=320, 321..=647] {
        let answers = send(&mut window, 16, numbers(range.clone())).await;
        all_stored(&answers, range);
        let sequences: Vec<_> = answers.iter().map(|(_, answer)| answer.as_ref().unwrap().sequence).collect();
        let (last, before) = sequences.split_last().unwrap();
        assert_eq!(*last, bus.stream_state(stream::UPLINK).await.unwrap().last_seq);
        assert!(before.iter().all(|sequence| *sequence == 0), "{before:?}");
    }
    window.batch_by(16).await;
    for (n, message) in numbers(648..=748) {
        soon("room", window.send(message, n)).await;
    }
    let some = async || bus.stream_state(stream::UPLINK).await.unwrap().last_seq;
    until("most of it", some, |last| *last >= 740).await;
    assert!(window.try_next().is_none(), "it is not over");
}

/// The server sends a batch's first answer before it stores a message, and the later answers count only the batch.
#[tokio::test]
async fn what_was_sent_by_itself_before_a_batch_waits_for_an_answer_of_its_own() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let deaf = async_nats::connect(server.url()).await.unwrap();
    let mut listens = deaf.subscribe("nobody.answers").await.unwrap();
    deaf.publish("nobody.answers", "0".into()).await.unwrap();
    // The server knows the subscription once the client receives its own message.
    soon("its own voice", listens.next()).await.unwrap();
    let mut window = bus.window(64);
    soon("room", window.send(Outgoing::new("nobody.answers", "1"), 1)).await;
    window.batch_by(16).await;
    for (n, message) in numbers(2..=40) {
        soon("room", window.send(message, n)).await;
    }
    window.end_batch().await;
    let stored = async || bus.stream_state(stream::UPLINK).await.unwrap().messages;
    until("the batch", stored, |count| *count == 39).await;
    assert!(window.try_next().is_none(), "the first has no answer yet");
    let (first, answer) = timeout(2 * CONFIRM_TIMEOUT, window.next()).await.unwrap().unwrap();
    assert!(first == 1 && answer.is_err_and(|error| error.kind == PublishErrorKind::Transient));
    while let Some((n, answer)) = soon("an answer", window.next()).await {
        assert!(answer.is_ok(), "{n}: {answer:?}");
    }
}

#[tokio::test]
async fn a_stream_without_batches_gets_messages_one_by_one() {
    let server = Server::start();
    let bus = converged(&server).await;
    without_batches(&bus).await;
    soon("the topology", bus.converge()).await.unwrap();
    let mut window = bus.window(64);
    all_stored(&send(&mut window, 16, numbers(1..=500)).await, 1..=500);
    assert!(!window.can_batch());
    assert_eq!(stored(&bus).await, (1..=500).collect::<Vec<_>>());
}

#[tokio::test]
async fn where_too_many_batches_are_open_everything_goes_one_by_one() {
    // As many as a server lets be open on one stream.
    const OPEN: u64 = 1_000;
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let mut others: Vec<_> = (1..=OPEN).map(|_| bus.window(8)).collect();
    for (n, window) in (1..).zip(&mut others) {
        window.batch_by(2).await;
        soon("an open batch", window.send(message(n), n)).await;
        assert!(window.can_batch());
    }
    let mut window = bus.window(64);
    let more = OPEN + 1..=OPEN + 100;
    all_stored(&send(&mut window, 8, numbers(more.clone())).await, more);
    assert!(!window.can_batch());
    for window in &mut others {
        window.end_batch().await;
        soon("an answer", window.next()).await.unwrap().1.unwrap();
    }
    assert_eq!(stored(&bus).await, (1..=OPEN + 100).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_the_stream_has_seen_counts_as_stored_and_is_stored_once() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let mut window = bus.window(64);
    all_stored(&send(&mut window, 16, numbers(1..=300)).await, 1..=300);
    // The first and the last of this batch, and most in between, were stored before.
    let again = (100..=300).chain(301..=310).chain(1..=50);
    let answers = send(&mut window, 16, again.map(|n| (n, message(n)))).await;
    assert!(answers.len() == 261 && answers.iter().all(|(_, answer)| answer.is_ok()), "{answers:?}");
    assert_eq!(stored(&bus).await, (1..=310).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_message_refused_for_good_ends_the_batch_and_no_other_is_lost() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    for bad in [1, 40] {
        let mut window = bus.window(256);
        let base = bad * 1_000;
        let messages = (1..=100).map(|n| {
            let good = message(base + n);
            (n, if n == bad { Outgoing { expected_stream: Some("LEDGER"), ..good } } else { good })
        });
        let before = stored(&bus).await.len();
        let answers = send(&mut window, 16, messages).await;
        assert_eq!(answers.len(), 100);
        let mut confirmed = 0;
        for (n, answer) in answers {
            match answer {
                Ok(_) => confirmed += 1,
                Err(error) if n == bad => {
                    assert_eq!(error.kind, PublishErrorKind::Permanent, "{error}: {}", error.cause);
                }
                // The messages after it are sent again.
                Err(error) => assert!(n > bad && error.kind == PublishErrorKind::Transient, "{n}: {error}"),
            }
        }
        assert!(confirmed >= bad - 1);
        assert_eq!(
            stored(&bus).await.len() - before,
            confirmed as usize,
            "what is confirmed is stored, and nothing else"
        );
    }
}

#[tokio::test]
async fn a_full_share_refuses_one_device_until_its_batches_have_room_again() {
    const SHARE: u64 = UPLINK_SHARE as u64;
    let server = Server::start();
    let bus = converged(&server).await;
    let mut window = bus.window(256);
    for flow in [16, 64] {
        // Other numbers and so other ids each time: the stream recognises an id for a moment.
        let base = 10_000 * flow as u64;
        let answers = send(&mut window, flow, numbers(base + 1..=base + SHARE + 500)).await;
        assert_eq!(answers.len() as u64, SHARE + 500);
        for (n, answer) in answers {
            let kind = answer.map(|_| ()).map_err(|error| error.kind);
            let wanted = if n <= base + SHARE { Ok(()) } else { Err(PublishErrorKind::SubjectFull) };
            assert_eq!(kind, wanted, "{n}");
        }
        assert!(window.can_batch(), "only the device is refused");
        // A batch whose first message is refused.
        let answers = send(&mut window, flow, numbers(base + 5_000..=base + 5_100)).await;
        let full = |answer: &Result<_, muster_bus::PublishError>| {
            answer.as_ref().is_err_and(|error| error.kind == PublishErrorKind::SubjectFull)
        };
        assert!(answers.len() == 101 && answers.iter().all(|(_, answer)| full(answer)), "{answers:?}");
        assert!(window.can_batch());
        bus.publish(report(&device("press-5"), 1)).await.expect("another device has its own share");
        let partition = partition_of(&device("press-4"));
        let mut deliveries = bus.partition(partition).await.unwrap();
        let last = loop {
            let batch = soon("reports", deliveries.next_batch(100)).await.unwrap();
            if let Some(last) = batch.into_iter().find(|delivery| number(delivery) == base + SHARE) {
                break last;
            }
        };
        last.ack_all().await;
        let purged = last.purger().unwrap().purge_subject(&last.subject, last.stream_seq).await.unwrap();
        assert_eq!(purged, Some(SHARE));
    }
}

#[tokio::test]
async fn of_a_stream_that_runs_full_no_more_is_confirmed_than_it_holds() {
    let server = Server::start();
    let bus = connect(BusConfig { uplink_bytes_max: 64 * 1024, ..server.config("test") }).await;
    soon("the topology", bus.converge()).await.unwrap();
    let mut window = bus.window(256);
    let large = |n: u64| {
        let mut message = message(n);
        // Some of them are small enough to fit in where a large one did not.
        message.payload = format!("{n}{}", " ".repeat(if n.is_multiple_of(3) { 10 } else { 2_000 })).into();
        (n, message)
    };
    let answers = send(&mut window, 8, (1..=100).map(large)).await;
    let confirmed: Vec<_> = answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(n, _)| *n).collect();
    for (_, answer) in &answers {
        assert!(answer.as_ref().err().is_none_or(|error| error.kind == PublishErrorKind::Transient));
    }
    let wanted = bus.stream_state(stream::UPLINK).await.unwrap().messages as usize;
    let mut replay = bus.replay(stream::UPLINK, &[], Start::First).await.unwrap();
    let mut held = Vec::new();
    while held.len() < wanted {
        for delivery in soon("reports", replay.next_batch(100)).await.unwrap() {
            held.push(String::from_utf8_lossy(&delivery.payload).trim().parse::<u64>().unwrap());
        }
    }
    assert!(!confirmed.is_empty() && confirmed.len() < 100);
    assert!(confirmed.iter().all(|n| held.contains(n)), "{confirmed:?} confirmed, {held:?} held");
}

#[tokio::test]
async fn messages_too_few_for_an_answer_are_answered_before_their_time_is_up() {
    let server = Server::start();
    let bus = keeping_all(&server).await;
    let mut window = bus.window(64);
    for round in [1, 2] {
        window.batch_by(32).await;
        for n in 1..=5 {
            soon("room", window.send(message(10 * round + n), n)).await;
        }
        // The owner does not end the batch.
        let mut answers = Vec::new();
        while answers.len() < 5 {
            answers.extend(timeout(CONFIRM_TIMEOUT, window.next()).await.expect("before their time is up"));
        }
        all_stored(&answers, 1..=5);
        assert!(window.can_batch(), "nothing failed");
    }
    assert_eq!(stored(&bus).await, [11, 12, 13, 14, 15, 21, 22, 23, 24, 25]);
}
