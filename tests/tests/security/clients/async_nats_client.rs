//! Reads with async-nats alone, without Muster's own bus library.

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Context, Message};
use async_nats::{Client, ConnectOptions, Event, Request};
use futures_util::{StreamExt as _, TryStreamExt as _};
use muster_identity::{KeyPair, Role, creds};
use muster_tests::guarded::Guarded;
use muster_tests::wait::soon;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::REFUSED;

/// How long a refused request waits; the refusal comes beside it.
const REFUSED_TIMEOUT: Duration = Duration::from_millis(500);
/// Subjects of a consumer with several filters.
const SUBJECTS: [&str; 2] = ["muster.owner.>", "muster.quarantine.>"];

/// A connection with the credentials of a role, and the errors that the server sends beside answers.
pub(super) async fn connected(hub: &Guarded, role: Role) -> (Client, mpsc::UnboundedReceiver<String>) {
    let file = hub.creds(role);
    let text = std::fs::read_to_string(&file).unwrap();
    let key = KeyPair::from_seed(creds::seed(&text).unwrap()).unwrap().public_key();
    let (send, events) = mpsc::unbounded_channel();
    let options = ConnectOptions::with_credentials_file(Path::new(&file))
        .await
        .unwrap()
        .add_root_certificates(hub.authority().unwrap().to_owned())
        .custom_inbox_prefix(format!("_INBOX.{key}"))
        .event_callback(move |event| {
            let send = send.clone();
            async move {
                if let Event::ServerError(error) = event {
                    let _ = send.send(error.to_string());
                }
            }
        });
    (soon("a connection", options.connect(hub.url())).await.unwrap(), events)
}

/// Reads in each way with the credentials of a role.
pub(super) async fn read(hub: &Guarded, role: Role, name: &str) -> Value {
    let (client, mut events) = connected(hub, role).await;
    let context = jetstream::new(client.clone());
    let mut found = Map::new();
    found.append(&mut ledger(&context, name).await);
    found.append(&mut views(&context).await);
    found.append(&mut asked(&client, name).await);
    let refused = Request::new().timeout(Some(REFUSED_TIMEOUT));
    client.send_request(REFUSED, refused).await.unwrap_err();
    found.insert("refused".to_owned(), json!(soon("a refusal", events.recv()).await.unwrap()));
    Value::Object(found)
}

async fn ledger(context: &Context, name: &str) -> Map<String, Value> {
    let stream = context.get_stream("LEDGER").await.unwrap();
    let config = pull::OrderedConfig {
        filter_subject: "muster.quarantine.>".to_owned(),
        ..pull::OrderedConfig::default()
    };
    let mut messages = stream.create_consumer(config).await.unwrap().messages().await.unwrap();
    let ordered = soon("an ordered message", messages.next()).await.unwrap().unwrap();
    let config = pull::Config {
        durable_name: Some(name.to_owned()),
        ack_policy: AckPolicy::Explicit,
        filter_subjects: SUBJECTS.map(str::to_owned).to_vec(),
        ..pull::Config::default()
    };
    let durable = stream.create_consumer(config).await.unwrap();
    let batch = durable.fetch().max_messages(2).messages().await.unwrap();
    let batch: Vec<Message> = soon("two messages", batch.try_collect()).await.unwrap();
    batch[0].double_ack().await.unwrap();
    let sequence = |message: &Message| message.info().unwrap().stream_sequence;
    stream.delete_consumer(name).await.unwrap();
    let durable = sequence(&batch[0]) < sequence(&batch[1]);
    object(json!({ "ordered": ordered.subject.as_str(), "durable": durable }))
}

async fn views(context: &Context) -> Map<String, Value> {
    let bucket = context.get_key_value("views").await.unwrap();
    let fleet: Value = serde_json::from_slice(&bucket.get("fleet").await.unwrap().unwrap()).unwrap();
    let mut watch = bucket.watch_with_history("fleet").await.unwrap();
    let watched = soon("a view", watch.next()).await.unwrap().unwrap();
    let keys: Vec<String> = soon("the keys", bucket.keys().await.unwrap().try_collect()).await.unwrap();
    let history = bucket.history("fleet").await.unwrap();
    let history: Vec<String> =
        soon("the history", history.map_ok(|entry| entry.key).try_collect()).await.unwrap();
    let has_fleet = keys.iter().any(|key| key == "fleet");
    object(json!({ "get": fleet["kind"], "watch": watched.key, "keys": has_fleet, "history": history }))
}

async fn asked(client: &Client, name: &str) -> Map<String, Value> {
    let parsed = |payload: &[u8]| serde_json::from_slice::<Value>(payload).unwrap();
    let answer = client.request("muster.query.fleet", "".into()).await.unwrap();
    let mut live = client.subscribe(format!("muster.live.notice.{name}")).await.unwrap();
    let wanted = json!({ "name": name }).to_string();
    client.request("muster.notify.subscribe", wanted.into()).await.unwrap();
    let notice = soon("a notice", live.next()).await.unwrap();
    let subject = format!("$JS.API.DIRECT.GET.NOTICES.muster.notice.{name}");
    let newest = client.request(subject, "".into()).await.unwrap();
    object(json!({
        "request": parsed(&answer.payload)["kind"],
        "notice": parsed(&notice.payload)["event"],
        "newestNotice": parsed(&newest.payload)["event"],
    }))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other} is no object"),
    }
}
