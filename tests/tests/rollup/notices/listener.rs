//! A test's subscriber: it sends requests like any subscriber, and keeps every notice it receives.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use muster_bus::Bus;
use muster_contract::SubscriptionName;
use muster_contract::decode;
use muster_contract::notify::{Notice, SubscriptionAnswer};
use muster_contract::subjects::NOTIFY_PREFIX;
use muster_tests::wait::until;
use serde_json::Value;

use crate::{Hub, PATIENCE};

/// Everything that was told to one name, as it was stored.
pub(super) struct Listener {
    bus: Bus,
    pub(super) name: SubscriptionName,
    heard: Arc<Mutex<Vec<Notice>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Listener {
    /// Listens, and subscribes.
    pub(super) async fn start(hub: &Hub, subscription: &Value) -> Self {
        let listener = Self::listen(hub, subscription["name"].as_str().unwrap()).await;
        subscribed(hub, subscription).await;
        listener
    }

    /// Listens only.
    pub(super) async fn listen(hub: &Hub, name: &str) -> Self {
        let name: SubscriptionName = name.parse().unwrap();
        let mut live = hub.bus.notices_of(&name).await.unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = heard.clone();
        let task = tokio::spawn(async move {
            while let Some(message) = live.next().await {
                all.lock().unwrap().push(decode::parse(&message.payload).unwrap());
            }
        });
        Self { bus: hub.bus.clone(), name, heard, task }
    }

    /// Everything heard so far.
    pub(super) fn all(&self) -> Vec<Notice> {
        self.heard.lock().unwrap().clone()
    }

    /// The newest notice, as a later subscriber finds it.
    pub(super) async fn newest(&self) -> Option<Notice> {
        let entry = self.bus.notice_last(&self.name).await.unwrap()?;
        Some(decode::parse(&entry.value.ok()?).unwrap())
    }

    /// Waits until the newest notice is as it should be.
    pub(super) async fn told(&self, what: &str, holds: impl Fn(&Notice) -> bool) -> Notice {
        let is = |notice: &Option<Notice>| notice.as_ref().is_some_and(&holds);
        until(what, || self.newest(), is).await.unwrap()
    }

    /// Waits until a notice of this number was stored.
    pub(super) async fn number(&self, number: u64) -> Notice {
        self.told(&format!("notice {number}"), |notice| notice.number >= number).await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer about notices.
pub(super) async fn ask(hub: &Hub, verb: &str, request: &Value) -> Value {
    let subject = format!("{NOTIFY_PREFIX}.{verb}");
    let answer = hub.bus.request(&subject, Bytes::from(request.to_string()), PATIENCE).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

/// The answer to a subscription that is well.
pub(super) async fn subscribed(hub: &Hub, subscription: &Value) -> SubscriptionAnswer {
    let answer = ask(hub, "subscribe", subscription).await;
    serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Code and message of an answer that is a refusal.
pub(super) async fn refusal(hub: &Hub, verb: &str, request: &Value) -> (String, String) {
    let answer = ask(hub, verb, request).await;
    let error = &answer["error"];
    let text = |field: &str| error[field].as_str().unwrap_or_else(|| panic!("accepted: {answer}")).to_owned();
    (text("code"), text("message"))
}
