//! Push consumers: a subscriber has the server deliver to a subject of its own choice. On the mirrors, which are all that it
//! reaches, nothing that is delivered reaches HUB, and what is delivered to another person's inbox confuses nobody.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::Client;
use futures_util::StreamExt;
use muster_bus::MIRRORED;
use muster_identity::Role;
use muster_identity::exchange::{Account, HUB_API, OFFERS};
use muster_tests::guarded::Guarded;
use muster_tests::hostile::client::{ask, is_refused, reader};
use muster_tests::wait::soon;
use serde_json::{Value, json};

use crate::connect;
use crate::matrix::stage::Stage;
use crate::matrix::subjects::{CONSUMER, STAYS_NANOSECONDS, covers, pull_consumer, targets};

/// The shortest time between two heartbeats that the server takes: nanoseconds.
const HEARTBEAT_NANOSECONDS: u64 = 100_000_000;
/// Heartbeats of an own consumer after which every other has had time to deliver.
const HEARTBEATS: usize = 5;
/// The queue group in which the server itself takes requests for stored messages.
const SERVER_GROUP: &str = "_sys_";
/// Requests of a person who is sent foreign messages meanwhile.
const REQUESTS: usize = 200;

/// A way to deliver.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Empty messages: heartbeats and flow control, and headers of what is stored.
    Empty,
    /// The message is stored unchanged.
    Stored,
    /// The same to one of a queue group.
    Group,
}

/// The request for a push consumer.
fn push(mirror: &str, name: &str, deliver: &str, kind: Kind) -> String {
    let mut config = json!({ "name": name, "deliver_subject": deliver, "ack_policy": "none", "deliver_policy": "all",
        "inactive_threshold": STAYS_NANOSECONDS });
    match kind {
        Kind::Empty => config["headers_only"] = json!(true),
        Kind::Stored => {}
        Kind::Group => config["deliver_group"] = json!(SERVER_GROUP),
    }
    if !matches!(kind, Kind::Group) {
        config["idle_heartbeat"] = json!(HEARTBEAT_NANOSECONDS);
        config["flow_control"] = json!(true);
    }
    json!({ "stream_name": mirror, "config": config, "action": "create" }).to_string()
}

async fn create(client: &Client, mirror: &str, name: &str, request: String) -> Value {
    let answer = ask(client, format!("$JS.API.CONSUMER.CREATE.{mirror}.{name}"), request).await;
    answer.unwrap_or_else(|| panic!("no answer about {name}"))
}

/// Waits for some heartbeats of a consumer of one's own.
async fn let_them_deliver(client: &Client, mirror: &str) {
    let inbox = client.new_inbox();
    let mut heartbeats = client.subscribe(inbox.clone()).await.unwrap();
    let answer = create(client, mirror, "own", push(mirror, "own", &inbox, Kind::Empty)).await;
    assert_eq!(answer["push_bound"], json!(true), "{answer}");
    for _ in 0..HEARTBEATS {
        soon("a heartbeat", async { while heartbeats.next().await.unwrap().status.is_none() {} }).await;
    }
    ask(client, format!("$JS.API.CONSUMER.DELETE.{mirror}.own"), "").await.unwrap();
}

/// The subjects at which a consumer delivers, of all that are tried.
async fn served(client: &Client, mirror: &str) -> BTreeSet<String> {
    // The next message of this consumer has a subject of its own, which the server listens on.
    let subject = format!("$JS.API.CONSUMER.CREATE.{mirror}.{CONSUMER}");
    ask(client, subject, pull_consumer(mirror, None)).await.unwrap();
    let (mut served, mut made) = (BTreeSet::new(), 0);
    for kind in [Kind::Empty, Kind::Stored, Kind::Group] {
        let mut names = Vec::new();
        for (number, target) in targets().into_iter().enumerate() {
            let name = format!("t{number}");
            let answer = create(client, mirror, &name, push(mirror, &name, &target, kind)).await;
            // The server refuses a deliver subject that the stream itself takes.
            made += usize::from(!is_refused(&answer));
            if answer["push_bound"] == json!(true) {
                served.insert(target);
            }
            names.push(name);
        }
        let_them_deliver(client, mirror).await;
        for name in names {
            ask(client, format!("$JS.API.CONSUMER.DELETE.{mirror}.{name}"), "").await.unwrap();
        }
    }
    ask(client, format!("$JS.API.CONSUMER.DELETE.{mirror}.{CONSUMER}"), "").await.unwrap();
    assert!(made > 2 * targets().len(), "the attempt must be one: {made}");
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_push_consumer_delivers_reaches_hub() {
    let stage = Stage::start().await;
    let before = stage.streams();
    let imported: Vec<_> = OFFERS
        .iter()
        .filter(|offer| (offer.from, offer.to) == (Account::Hub, Account::Readers))
        .map(|offer| offer.local.unwrap_or(offer.subject))
        .collect();
    let client = reader(&stage.hub, Role::Subscriber).await.unwrap();
    for mirror in MIRRORED {
        let served = served(&client, mirror).await;
        let to_hub: Vec<_> =
            served.iter().filter(|target| imported.iter().any(|import| covers(import, target))).collect();
        assert!(to_hub.is_empty(), "{mirror}: delivered to HUB: {to_hub:?}");
        // The premise: the server does serve consumers that name the subject of an API, those that it listens on by
        // exactly that name. They are of the mirrors, where readers trust each other.
        let of_consumer = |verb: &str| format!("$JS.API.CONSUMER.{verb}.{mirror}.{CONSUMER}");
        let mut expected: BTreeSet<_> =
            MIRRORED.iter().map(|mirror| format!("$JS.API.DIRECT.GET.{mirror}")).collect();
        expected.extend(["MSG.NEXT", "RESET"].map(of_consumer));
        assert_eq!(served, expected, "{mirror}");
    }
    assert_eq!(stage.changes(&before), BTreeSet::new(), "streams, settings and consumers are as they were");
}

/// A hub whose account tokens are of the release before: there heartbeats and facts do reach two requests of HUB's API, where
/// the one answers nobody and the other refuses.
#[tokio::test(flavor = "multi_thread")]
async fn what_older_account_tokens_let_through_changes_nothing_in_hub() {
    let stage = Stage::on(Guarded::start_importing_exactly(&[])).await;
    let before = stage.streams();
    let client = reader(&stage.hub, Role::Operator).await.unwrap();
    for mirror in MIRRORED {
        for (number, verb) in ["STREAM.INFO", "CONSUMER.CREATE"].into_iter().enumerate() {
            for (kind, name) in [(Kind::Empty, format!("e{number}")), (Kind::Stored, format!("s{number}"))] {
                let target = format!("{HUB_API}.{verb}.{mirror}");
                let answer = create(&client, mirror, &name, push(mirror, &name, &target, kind)).await;
                assert_eq!(answer["push_bound"], json!(true), "the server delivers: {answer}");
            }
        }
        let_them_deliver(&client, mirror).await;
    }
    let of = |account| stage.changes(&before).into_iter().filter(move |(of, ..)| *of == account);
    assert_eq!(of(Account::Hub).collect::<Vec<_>>(), [], "streams, settings and consumers are as they were");
    assert_eq!(of(Account::Readers).count(), MIRRORED.len(), "the consumers that were made");
}

/// The server delivers to another's inbox only while that person listens on exactly the subject that is named. Clients
/// listen for answers by a wildcard, under a random name.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_consumer_aimed_at_anothers_inbox_confuses_none_of_its_requests() {
    let stage = Stage::start().await;
    let (attacker, operator) = (
        reader(&stage.hub, Role::Subscriber).await.unwrap(),
        connect(stage.hub.config(Role::Operator)).await,
    );
    let inbox = stage.actor(Role::Operator).inbox();
    let exact = format!("{inbox}.exact");
    let guesses = (1..=20).map(|number| format!("{inbox}.{number}"));
    for (number, target) in guesses.chain([format!("{inbox}.x.1")]).enumerate() {
        let name = format!("t{number}");
        let answer = create(&attacker, "LEDGER", &name, push("LEDGER", &name, &target, Kind::Stored)).await;
        assert!(!is_refused(&answer) && answer["push_bound"].is_null(), "{target}: {answer}");
    }
    let patience = Duration::from_secs(10);
    let mut victim = stage.raw(&stage.actor(Role::Operator));
    victim.subscribe(&exact, 1);
    let aimed = push("LEDGER", "aimed", &exact, Kind::Stored);
    let answer = create(&attacker, "LEDGER", "aimed", aimed).await;
    assert_eq!(answer["push_bound"], json!(true), "where the subject is known: {answer}");
    for _ in 0..REQUESTS {
        let answer = operator.request("muster.query.fleet", Default::default(), patience).await.unwrap();
        assert_eq!(&answer[..], b"an answer");
    }
    let message = victim.message();
    assert!(message.contains("stored") || message.contains("100 "), "a fact or a heartbeat: {message}");
}
