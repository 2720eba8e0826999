//! Consumers that readers have on a mirror. A keeper removes those that deliver to a subject that is nobody's inbox, and makes
//! room where there are so many that the next reader would be refused.
//!
//! The server delivers only while there is a subscription to exactly the deliver subject. READERS imports from HUB by
//! wildcards alone, so such a consumer reaches no API of HUB; it may take messages from another reader's consumer, or
//! reset it, until the next look.
//!
//! The server does not say whose a consumer is, so room is made by use and age: idle ones first, then those that are read,
//! the oldest first. A reader makes its consumer again and reads on from its own position; the services read the streams
//! themselves and have no consumer here.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use muster_contract::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::wire::ApiError;

/// Consumers on one mirror above which some are removed, so that a flood of them shuts nobody out.
pub(crate) const MIRROR_CONSUMERS_HIGH: usize = 768;
/// Consumers that remain then.
pub(crate) const MIRROR_CONSUMERS_LOW: usize = 512;
/// A consumer that was made so recently may not have been read from yet.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// Consumers that are being removed at the same time.
const REMOVED_AT_ONCE: usize = 16;
/// Under which people listen for what is delivered to them; nothing else of READERS reaches them.
const INBOXES: &str = "_INBOX.";
/// JetStream's code for a consumer that is not there.
const CONSUMER_NOT_FOUND: u64 = 10014;

const _: () = assert!(MIRROR_CONSUMERS_LOW < MIRROR_CONSUMERS_HIGH);
const _: () = assert!((MIRROR_CONSUMERS_HIGH as i64) < muster_identity::claims::MIRROR_CONSUMERS_MAX);

/// Consumers that were removed from a mirror.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RemovedConsumers {
    /// They delivered to a subject that is nobody's inbox.
    pub(crate) foreign: usize,
    /// They were more than a mirror may have.
    pub(crate) excess: usize,
}

#[derive(Debug, Deserialize)]
struct ConsumerPage {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    consumers: Vec<ConsumerEntry>,
}

#[derive(Debug, Deserialize)]
struct ConsumerEntry {
    name: String,
    created: Timestamp,
    ts: Option<Timestamp>,
    #[serde(default)]
    num_waiting: u64,
    #[serde(default)]
    push_bound: bool,
    #[serde(default)]
    delivered: Delivered,
    #[serde(default)]
    config: ConsumerConfig,
}

#[derive(Debug, Default, Deserialize)]
struct Delivered {
    last_active: Option<Timestamp>,
}

#[derive(Debug, Default, Deserialize)]
struct ConsumerConfig {
    deliver_subject: Option<String>,
}

impl ConsumerEntry {
    fn is_foreign(&self) -> bool {
        self.config.deliver_subject.as_ref().is_some_and(|subject| !subject.starts_with(INBOXES))
    }

    /// In which order it is removed: whether it is in use, then since when it is idle or there.
    fn rank(&self) -> (bool, Timestamp) {
        let active = self.delivered.last_active.unwrap_or(self.created);
        let idle = Duration::try_from(self.ts.unwrap_or(active).duration_since(active)).unwrap_or_default();
        let is_in_use = self.num_waiting > 0 || self.push_bound || idle < IDLE_AFTER;
        (is_in_use, if is_in_use { self.created } else { active })
    }
}

impl Bus {
    /// Removes consumers of a mirror that deliver to a subject that is nobody's inbox, and above
    /// [`MIRROR_CONSUMERS_HIGH`] further ones until [`MIRROR_CONSUMERS_LOW`] remain.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) async fn remove_consumers(&self, mirror: &str) -> Result<RemovedConsumers, ApiError> {
        let all = self.mirror_consumers(mirror).await?;
        let (foreign, all): (Vec<_>, Vec<_>) = all.into_iter().partition(ConsumerEntry::is_foreign);
        let excess = excess_consumers(all);
        let removed = RemovedConsumers { foreign: foreign.len(), excess: excess.len() };
        let names = foreign.into_iter().map(|consumer| consumer.name).chain(excess);
        let removals = names.map(|name| async move { self.remove_consumer(mirror, &name).await });
        stream::iter(removals).buffer_unordered(REMOVED_AT_ONCE).try_collect::<()>().await?;
        Ok(removed)
    }

    async fn mirror_consumers(&self, mirror: &str) -> Result<Vec<ConsumerEntry>, ApiError> {
        let mut all = Vec::new();
        loop {
            let ask = json!({ "offset": all.len() });
            let page: ConsumerPage = self.wire.api(&format!("CONSUMER.LIST.{mirror}"), &ask).await?;
            let is_last = page.consumers.is_empty();
            all.extend(page.consumers);
            if is_last || all.len() >= page.total {
                return Ok(all);
            }
        }
    }

    async fn remove_consumer(&self, mirror: &str, name: &str) -> Result<(), ApiError> {
        match self.wire.api::<Value>(&format!("CONSUMER.DELETE.{mirror}.{name}"), &json!({})).await {
            Err(error) if error.is(CONSUMER_NOT_FOUND) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// Names of the consumers to remove where there are too many.
fn excess_consumers(mut all: Vec<ConsumerEntry>) -> Vec<String> {
    if all.len() <= MIRROR_CONSUMERS_HIGH {
        return Vec::new();
    }
    let excess = all.len() - MIRROR_CONSUMERS_LOW;
    all.sort_by_cached_key(ConsumerEntry::rank);
    all.into_iter().take(excess).map(|consumer| consumer.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 100_000;

    fn entry(number: usize, num_waiting: u64, age: i64, idle: i64) -> ConsumerEntry {
        let at = |ago| Timestamp::from_second(NOW - ago).unwrap();
        ConsumerEntry {
            name: format!("c{number}"),
            created: at(age),
            ts: Some(at(0)),
            num_waiting,
            push_bound: false,
            delivered: Delivered { last_active: Some(at(idle)) },
            config: ConsumerConfig::default(),
        }
    }

    #[test]
    fn the_longest_idle_consumers_go_first_then_the_oldest_in_use() {
        let in_use = MIRROR_CONSUMERS_HIGH;
        // Of those in use, the last is the oldest.
        let mut all: Vec<_> =
            (0..in_use).map(|number| entry(number, 1, 1_000 + number as i64, 9_999)).collect();
        all.extend([entry(1_000, 0, 50, 40), entry(1_001, 0, 50, 45), entry(1_002, 0, 10, 10)]);
        let removed = excess_consumers(all);
        assert_eq!(removed[..4], ["c1001", "c1000", "c767", "c766"]);
        assert_eq!(removed.len(), in_use + 3 - MIRROR_CONSUMERS_LOW);
        assert!(!removed.contains(&"c1002".to_owned()), "the newest stay");
        let few = (0..MIRROR_CONSUMERS_HIGH).map(|number| entry(number, 0, 9_999, 9_999)).collect();
        assert!(excess_consumers(few).is_empty(), "there is room");
    }

    #[test]
    fn a_consumer_is_foreign_where_it_delivers_to_nobodys_inbox() {
        let delivers = |subject: Option<&str>| {
            let config = ConsumerConfig { deliver_subject: subject.map(str::to_owned) };
            ConsumerEntry { config, ..entry(1, 0, 0, 0) }.is_foreign()
        };
        assert!(!delivers(None) && !delivers(Some("_INBOX.UKEY.1")));
        assert!(delivers(Some("$JS.API.STREAM.DELETE.LEDGER")) && delivers(Some("_INBOX")));
    }
}
