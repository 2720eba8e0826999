//! The keeper of a running rollup: it makes removed mirrors again, applies changes of their origin, and leaves room for the
//! next reader whatever other readers hold.

use std::net::SocketAddr;
use std::time::Duration;

use async_nats::Client;
use futures_util::{StreamExt, stream};
use muster_bus::{Bus, Outgoing, Start, StreamState};
use muster_identity::Role;
use muster_identity::claims::MIRROR_CONSUMERS_MAX;
use muster_simulator::child::Child;
use muster_simulator::http::get;
use muster_tests::guarded::Guarded;
use muster_tests::hostile::client::{ask, is_refused, reader, user};
use muster_tests::raw::Raw;
use muster_tests::server::free_port;
use muster_tests::system::ROLLUP;
use muster_tests::wait::{until, within};
use serde_json::{Value, json};

use crate::connect;
use crate::fleet::start_service;

/// Facts in LEDGER.
const FACTS: u64 = 100;
/// Time in which a mirror that was deleted is complete again, and a consumer that may not be there is gone.
const MENDED_WITHIN: Duration = Duration::from_secs(10);
/// Time in which a reader gets a consumer beside others that hold as many as there may be.
const ROOM_WITHIN: Duration = Duration::from_secs(10);
/// The shortest time between two heartbeats that the server takes: nanoseconds.
const HEARTBEAT_NANOSECONDS: u64 = 100_000_000;
/// Requests of an attacker that are outstanding at once.
const AT_ONCE: usize = 64;
/// Longer than any test: how long a standing pull waits.
const PULL_NANOSECONDS: u64 = 600_000_000_000;

/// A hub with facts, and a rollup that keeps its mirrors.
struct Stage {
    hub: Guarded,
    ingest: Bus,
    keeper: Bus,
    http: SocketAddr,
    rollup: Child,
}

impl Stage {
    async fn start() -> Self {
        let hub = Guarded::start_plain();
        let ingest = crate::ingest(&hub).await;
        for number in 0..FACTS {
            let fact = Outgoing::new(format!("muster.status.plant7.press-{number}.web"), "a fact");
            ingest.publish(fact).await.unwrap();
        }
        let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let data = hub.dir().join("rollup").display().to_string();
        let creds = hub.creds(Role::Keeper).display().to_string();
        let args = ["--data-dir", &data, "--readers-creds", &creds, "--http-addr", &http.to_string()];
        let rollup = start_service(&hub, Role::Rollup, ROLLUP, &args);
        let keeper = connect(hub.config(Role::Keeper)).await;
        let stage = Self { hub, ingest, keeper, http, rollup };
        stage.mirror_is_whole().await;
        stage
    }

    async fn origin(&self) -> StreamState {
        self.ingest.stream_state("LEDGER").await.unwrap()
    }

    async fn mirror_is_whole(&self) {
        let origin = self.origin().await;
        let state = async || self.keeper.stream_state("LEDGER").await.ok();
        let is_whole = |mirror: &Option<StreamState>| {
            mirror.as_ref().is_some_and(|mirror| {
                (mirror.messages, mirror.last_seq) == (origin.messages, origin.last_seq)
            })
        };
        within(MENDED_WITHIN, "a whole mirror of LEDGER", state, is_whole).await;
    }

    /// Waits until the keeper has counted mirrors of LEDGER that were replaced.
    async fn replacement_is_counted(&self) {
        let metrics = async || get(self.http, "/metrics").await.map(|answer| answer.body).unwrap_or_default();
        let is_counted = |text: &String| {
            let line = text.lines().find(|line| line.contains("mirror_replaced_total{stream=\"LEDGER\"}"));
            line.is_some_and(|line| !line.ends_with(" 0"))
        };
        until("the replaced mirror is counted", metrics, is_counted).await;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.rollup.log()).unwrap_or_default()
    }

    /// A consumer whose requests the server listens for on subjects of its own.
    async fn make_pull_consumer(&self, client: &Client, name: &str) {
        let config = json!({ "name": name, "durable_name": name, "ack_policy": "explicit" });
        let answer = create(client, config).await.unwrap();
        assert!(!is_refused(&answer), "{answer}");
    }

    async fn subscriber(&self) -> Client {
        reader(&self.hub, Role::Subscriber).await.unwrap()
    }

    /// The mirror's settings, as people see them.
    async fn config(&self, client: &Client) -> Value {
        let info = ask(client, "$JS.API.STREAM.INFO.LEDGER".to_owned(), "").await;
        info.unwrap_or_default()["config"].clone()
    }
}

async fn create(client: &Client, config: Value) -> Option<Value> {
    let subject = format!("$JS.API.CONSUMER.CREATE.LEDGER.{}", config["name"].as_str().unwrap());
    let body = json!({ "stream_name": "LEDGER", "config": config, "action": "create" });
    ask(client, subject, body.to_string()).await
}

async fn is_there(client: &Client, consumer: &str) -> bool {
    let info = ask(client, format!("$JS.API.CONSUMER.INFO.LEDGER.{consumer}"), "").await;
    info.is_some_and(|info| !is_refused(&info))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_running_keeper_restores_a_deleted_mirror_and_counts_it() {
    let stage = Stage::start().await;
    let created = stage.keeper.stream_state("LEDGER").await.unwrap().created_at;
    let mut raw = Raw::connect(stage.hub.server.port(), &stage.hub.creds(Role::Keeper)).unwrap();
    raw.publish("$JS.API.STREAM.DELETE.LEDGER", "", "");
    let is_new =
        |mirror: &Result<StreamState, _>| mirror.as_ref().is_ok_and(|mirror| mirror.created_at > created);
    let mirror = async || stage.keeper.stream_state("LEDGER").await;
    within(MENDED_WITHIN, "another mirror", mirror, is_new).await.unwrap();
    stage.mirror_is_whole().await;
    stage.replacement_is_counted().await;
    let log = stage.log();
    assert!(log.contains("it was deleted"), "{log}");
}

/// An idle heartbeat has no body, so it is a request where the server listens on exactly the subject that it is delivered to:
/// for the next message of another consumer, and to reset it. No other subject of an API is served (`deliveries`).
#[tokio::test(flavor = "multi_thread")]
async fn a_push_consumer_aimed_at_a_deletion_leaves_ledger_untouched() {
    let stage = Stage::start().await;
    let before = stage.origin().await;
    let client = stage.subscriber().await;
    stage.make_pull_consumer(&client, "other").await;
    for (deliver, is_served) in [
        ("$JS.API.CONSUMER.RESET.LEDGER.other", true),
        ("$JS.API.CONSUMER.MSG.NEXT.LEDGER.other", true),
        ("$JS.API.STREAM.DELETE.LEDGER", false),
        ("hub.api.STREAM.INFO.LEDGER", false),
        ("hub.api.CONSUMER.CREATE.LEDGER", false),
    ] {
        let config = json!({ "name": "trick", "deliver_subject": deliver, "headers_only": true,
            "idle_heartbeat": HEARTBEAT_NANOSECONDS, "ack_policy": "none", "deliver_policy": "all",
            "inactive_threshold": PULL_NANOSECONDS });
        let answer = create(&client, config).await.unwrap();
        assert!(!is_refused(&answer), "the attempt must be one: {answer}");
        assert_eq!(answer["push_bound"] == json!(true), is_served, "{deliver}");
        let gone = async || is_there(&client, "trick").await;
        within(MENDED_WITHIN, "the consumer is gone", gone, |is_there| !is_there).await;
        stage.mirror_is_whole().await;
    }
    assert_eq!(stage.origin().await, before, "HUB's LEDGER is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_consumer_that_delivers_to_no_inbox_is_removed() {
    let stage = Stage::start().await;
    let client = stage.subscriber().await;
    stage.make_pull_consumer(&client, "other").await;
    let inbox = client.new_inbox();
    let _listening = client.subscribe(inbox.clone()).await.unwrap();
    client.flush().await.unwrap();
    for (name, deliver) in [("own", &*inbox), ("foreign", "$JS.API.CONSUMER.MSG.NEXT.LEDGER.other")] {
        let config = json!({ "name": name, "deliver_subject": deliver, "ack_policy": "none",
            "deliver_policy": "all", "inactive_threshold": PULL_NANOSECONDS });
        let answer = create(&client, config).await.unwrap();
        assert_eq!(answer["push_bound"], json!(true), "the server delivers: {name}: {answer}");
    }
    let foreign = async || is_there(&client, "foreign").await;
    within(MENDED_WITHIN, "the foreign consumer is gone", foreign, |is_there| !is_there).await;
    assert!(is_there(&client, "own").await, "a reader's own inbox is allowed");
    assert!(is_there(&client, "other").await, "nothing else was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_gets_a_consumer_beside_1024_with_standing_pulls() {
    let stage = Stage::start().await;
    let client = stage.subscriber().await;
    let inbox = client.new_inbox();
    let _pulled = client.subscribe(inbox.clone()).await.unwrap();
    let hoard = (0..MIRROR_CONSUMERS_MAX).map(|nth| {
        let (client, inbox, name) = (client.clone(), inbox.clone(), format!("hoard-{nth}"));
        async move {
            let config = json!({ "name": name, "durable_name": name, "ack_policy": "explicit",
                "deliver_policy": "new" });
            let answer = create(&client, config).await;
            let pull = json!({ "batch": 1, "expires": PULL_NANOSECONDS }).to_string();
            let next = format!("$JS.API.CONSUMER.MSG.NEXT.LEDGER.{name}");
            client.publish_with_reply(next, inbox, pull.into()).await.unwrap();
            usize::from(answer.is_some_and(|answer| !is_refused(&answer)))
        }
    });
    let made: Vec<_> = stream::iter(hoard).buffer_unordered(AT_ONCE).collect().await;
    assert!(made.iter().sum::<usize>() > 768, "the flood must be one: {}", made.iter().sum::<usize>());
    let operator = connect(stage.hub.config(Role::Operator)).await;
    let read = async || match operator.replay("LEDGER", &[], Start::First).await {
        Ok(mut replay) => replay.next_batch(10).await.is_ok_and(|facts| !facts.is_empty()),
        Err(_) => false,
    };
    within(ROOM_WITHIN, "another reader reads LEDGER", read, |has_read| *has_read).await;
    let consumers = async || {
        let info = ask(&client, "$JS.API.STREAM.INFO.LEDGER".to_owned(), "").await.unwrap_or_default();
        info["state"]["consumer_count"].as_i64()
    };
    let is_below = |count: &Option<i64>| count.is_some_and(|count| count <= MIRROR_CONSUMERS_MAX * 3 / 4);
    within(ROOM_WITHIN, "room for further readers", consumers, is_below).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_takes_over_bounds_that_an_operator_changes() {
    const BOUND: u64 = 512 << 20;
    let stage = Stage::start().await;
    let client = stage.subscriber().await;
    let before = stage.config(&client).await;
    let file = stage.hub.dir().join("maintainer.creds");
    let name = file.display().to_string();
    stage.hub.decide(&["auth", "creds", "maintainer", "--valid", "1h", "-o", &name]);
    let maintainer = user(&stage.hub, &file).await.unwrap();
    let info = ask(&maintainer, "$JS.API.STREAM.INFO.LEDGER".to_owned(), "").await.unwrap();
    let mut changed = info["config"].clone();
    changed["max_bytes"] = json!(BOUND);
    changed["max_age"] = json!(changed["max_age"].as_u64().unwrap() / 2);
    let answer = ask(&maintainer, "$JS.API.STREAM.UPDATE.LEDGER".to_owned(), changed.to_string()).await;
    assert!(answer.as_ref().is_some_and(|answer| !is_refused(answer)), "{answer:?}");
    let config = async || stage.config(&client).await;
    let is_taken_over = |config: &Value| {
        config["max_bytes"] == changed["max_bytes"] && config["max_age"] == changed["max_age"]
    };
    let after = within(MENDED_WITHIN, "the mirror has the new bounds", config, is_taken_over).await;
    assert_eq!(after["metadata"]["muster.origin_created"], before["metadata"]["muster.origin_created"]);
    stage.mirror_is_whole().await;
}
