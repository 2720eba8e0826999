//! Floods by readers: a viewer or a subscriber uses what it may use, without an end. Tricks with subjects of others are
//! [`super::reader_tricks`]'.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Client;
use fastrand::Rng;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{self, ask, is_refused};
use super::flood::Flood;
use super::hub::{GOOD_SITE, HostileHub};
use super::reader_tricks;
use super::trial::{Attack, Settings, held_at_last};

/// Requests that are outstanding at once.
const OUTSTANDING: usize = 1_000;
/// Requests of these that make consumers and subscriptions.
const MAKING_AT_ONCE: usize = 64;
/// Notice subscriptions that the viewer tries: above what the hub has.
const SUBSCRIPTIONS_TRIED: usize = 1_500;
/// Consumers with eight filters that are read at the same time.
const FILTERED_CONSUMERS: usize = 4;
/// Messages that each of them asks for at once.
const PULL_BATCH: usize = 500;
/// Facts that LEDGER holds soon after a hub's start.
const FEW_FACTS: u64 = 200;
/// Pause of an asker after an answer that did not come.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs a flood of a reader until `end`.
pub async fn run(hub: &HostileHub, flood: Flood, settings: Settings, end: Instant) -> Attack {
    let client = match client::reader(&hub.guarded, flood.role()).await {
        Ok(client) => client,
        Err(error) => return Attack { text: format!("was not accepted: {error}"), ..Attack::default() },
    };
    match flood {
        Flood::DurableConsumers => {
            let attack = make(&client, settings.consumers, end, "consumers", durable_consumer).await;
            let held = held_at_last(flood, async || consumer_count(&client).await).await;
            Attack { text: format!("{}; LEDGER has {held}", attack.text), held: Some(held), ..attack }
        }
        Flood::NoticeSubscriptions => {
            make(&client, SUBSCRIPTIONS_TRIED, end, "subscriptions", subscription).await
        }
        Flood::FilteredConsumers => read_filtered(&client, end).await,
        Flood::PastQuestions => {
            let facts = settings.archived_facts.max(FEW_FACTS);
            question(&client, end, move |rng| past_question(rng, facts)).await
        }
        Flood::Questions => question(&client, end, present_question).await,
        Flood::PushConsumers => reader_tricks::push_consumers(hub, &client, end).await,
        _ => reader_tricks::reply_subjects(hub, &client, end).await,
    }
}

/// Makes as many things as it is given, and keeps them until the end.
async fn make(
    client: &Client,
    count: usize,
    end: Instant,
    what: &str,
    request: impl Fn(usize) -> (String, Value),
) -> Attack {
    let requests = (0..count).map(|nth| {
        let (subject, body) = request(nth);
        async move { ask(client, subject, body.to_string()).await }
    });
    let mut answers = futures_util::stream::iter(requests).buffer_unordered(MAKING_AT_ONCE);
    let (mut made, mut tried, mut refusal) = (0, 0, None);
    while let Ok(Some(answer)) = tokio::time::timeout_at(end, answers.next()).await {
        tried += 1;
        match answer {
            Some(answer) if !is_refused(&answer) => made += 1,
            Some(answer) => refusal = Some(answer["error"].to_string()),
            None => refusal = Some("no answer".to_owned()),
        }
    }
    drop(answers);
    tokio::time::sleep_until(end).await;
    let refusal = refusal.map_or_else(String::new, |refusal| format!("; refusal: {refusal}"));
    Attack { attempts: tried, text: format!("{tried} {what} tried, {made} made{refusal}"), held: Some(made) }
}

/// Consumers of the LEDGER that readers use; all of a kind count, because a reader names its consumers as it likes.
async fn consumer_count(client: &Client) -> usize {
    let info = ask(client, "$JS.API.STREAM.INFO.LEDGER".to_owned(), "").await.unwrap_or_default();
    info["state"]["consumer_count"].as_u64().map_or(usize::MAX, |count| count as usize)
}

fn durable_consumer(nth: usize) -> (String, Value) {
    let name = format!("hoard-{nth}");
    let config = json!({ "durable_name": name, "name": name, "ack_policy": "explicit", "deliver_policy": "all",
        "filter_subject": ">" });
    consumer_request(&name, &config, Some(">"))
}

/// The request that makes a consumer on LEDGER; its one filter is part of the subject.
pub(crate) fn consumer_request(name: &str, config: &Value, filter: Option<&str>) -> (String, Value) {
    let filter = filter.map_or_else(String::new, |filter| format!(".{filter}"));
    let body = json!({ "stream_name": "LEDGER", "config": config, "action": "create" });
    (format!("$JS.API.CONSUMER.CREATE.LEDGER.{name}{filter}"), body)
}

fn subscription(nth: usize) -> (String, Value) {
    ("muster.notify.subscribe".to_owned(), json!({ "name": format!("hoard-{nth}"), "leaseSeconds": 604_800 }))
}

/// Reads LEDGER again and again through consumers with eight filters.
async fn read_filtered(client: &Client, end: Instant) -> Attack {
    let read = Arc::new(AtomicU64::new(0));
    let mut readers = JoinSet::new();
    for nth in 0..FILTERED_CONSUMERS {
        readers.spawn(read_filtered_once(client.clone(), nth, Arc::clone(&read)));
    }
    while Instant::now() < end {
        let Ok(Some(Ok(nth))) = tokio::time::timeout_at(end, readers.join_next()).await else { break };
        readers.spawn(read_filtered_once(client.clone(), nth + FILTERED_CONSUMERS, Arc::clone(&read)));
    }
    readers.shutdown().await;
    let read = read.load(Ordering::Relaxed);
    Attack {
        attempts: read,
        text: format!("{read} messages read by {FILTERED_CONSUMERS} consumers"),
        held: None,
    }
}

/// Reads all of LEDGER through a new consumer; the consumer's number.
async fn read_filtered_once(client: Client, nth: usize, read: Arc<AtomicU64>) -> usize {
    let name = format!("eight-{nth}");
    let filters: Vec<_> = (0..8).map(|at| format!("muster.status.{GOOD_SITE}.good-{at}.>")).collect();
    let config = json!({ "name": name, "ack_policy": "none", "deliver_policy": "all", "filter_subjects": filters,
        "inactive_threshold": 30_000_000_000_u64, "mem_storage": true });
    let (subject, body) = consumer_request(&name, &config, None);
    if ask(&client, subject, body.to_string()).await.is_none_or(|answer| is_refused(&answer)) {
        tokio::time::sleep(PAUSE).await;
        return nth;
    }
    let inbox = client.new_inbox();
    let Ok(mut messages) = client.subscribe(inbox.clone()).await else { return nth };
    loop {
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.LEDGER.{name}");
        let pull = json!({ "batch": PULL_BATCH, "no_wait": true }).to_string();
        if client.publish_with_reply(next, inbox.clone(), pull.into()).await.is_err() {
            return nth;
        }
        let before = read.load(Ordering::Relaxed);
        // A status without a subject of LEDGER ends a pull.
        while let Some(message) = messages.next().await {
            if message.status.is_some() {
                break;
            }
            let count = read.fetch_add(1, Ordering::Relaxed) - before + 1;
            if count >= PULL_BATCH as u64 {
                break;
            }
        }
        if read.load(Ordering::Relaxed) == before {
            return nth;
        }
    }
}

/// Keeps questions outstanding until the end.
async fn question(
    client: &Client,
    end: Instant,
    request: impl Fn(&mut Rng) -> (&'static str, Value) + Copy + Send + 'static,
) -> Attack {
    let [answered, refused, unanswered] = [0; 3].map(|zero| Arc::new(AtomicU64::new(zero)));
    let mut askers = JoinSet::new();
    for seed in 0..OUTSTANDING as u64 {
        let (client, mut rng) = (client.clone(), Rng::with_seed(seed));
        let counts = [&answered, &refused, &unanswered].map(Arc::clone);
        askers.spawn(async move {
            while Instant::now() < end {
                let (subject, body) = request(&mut rng);
                let answer = ask(&client, subject.to_owned(), body.to_string()).await;
                let at = answer.as_ref().map_or(2, |answer| usize::from(is_refused(answer)));
                counts[at].fetch_add(1, Ordering::Relaxed);
                if at > 0 {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
    }
    tokio::time::sleep_until(end).await;
    askers.shutdown().await;
    let [answered, refused, unanswered] =
        [answered, refused, unanswered].map(|count| count.load(Ordering::Relaxed));
    let text = format!("{answered} answered, {refused} refused, {unanswered} without an answer");
    Attack { attempts: answered + refused + unanswered, text, held: None }
}

fn past_question(rng: &mut Rng, facts: u64) -> (&'static str, Value) {
    let point = rng.u64(1..facts);
    match rng.u8(..3) {
        0 => ("muster.query.fleet", json!({ "atSeq": point })),
        1 => ("muster.query.devices", json!({ "atSeq": point })),
        _ => ("muster.query.deployments", json!({ "atSeq": point })),
    }
}

fn present_question(rng: &mut Rng) -> (&'static str, Value) {
    match rng.u8(..3) {
        0 => ("muster.query.fleet", json!({})),
        1 => ("muster.query.devices", json!({ "limit": 1000 })),
        _ => ("muster.query.deployments", json!({ "limit": 1000 })),
    }
}
