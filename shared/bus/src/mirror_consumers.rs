//! Removes consumers from a mirror: those that deliver to a subject that is no inbox, and the least used ones when there
//! are so many that the server would soon refuse the next.
//!
//! The server delivers only while there is a subscription to exactly the deliver subject. READERS imports from HUB by
//! wildcards alone, so such a consumer reaches no API of HUB; it may take messages from another reader's consumer, or
//! reset it, until the next check.
//!
//! The server does not say who owns a consumer, so they are removed by use and age: idle ones first, then those in use,
//! the oldest first. A reader creates its consumer again and continues from its own position. The services read the
//! streams themselves and have no consumer on a mirror; only the planner has one.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use muster_contract::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::wire::ApiError;

/// Consumers on one mirror above which some are removed, so that a flood of them excludes no reader.
const MIRROR_CONSUMERS_HIGH: usize = 768;
/// Consumers that remain then.
const MIRROR_CONSUMERS_LOW: usize = 512;
/// Time without a delivery after which a consumer counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// Removals under way at the same time.
const REMOVED_AT_ONCE: usize = 16;
/// Prefix of the subjects that readers may subscribe to for deliveries.
const INBOXES: &str = "_INBOX.";
/// JetStream's code for a missing consumer.
const CONSUMER_NOT_FOUND: u64 = 10014;

const _: () = assert!(MIRROR_CONSUMERS_LOW < MIRROR_CONSUMERS_HIGH);
const _: () = assert!((MIRROR_CONSUMERS_HIGH as i64) < muster_identity::claims::MIRROR_CONSUMERS_MAX);

/// Numbers of consumers removed from a mirror.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RemovedConsumers {
    /// Those that delivered to a subject that is no inbox.
    pub(crate) foreign: usize,
    /// Those removed because there were too many.
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
    delivered: LastDelivery,
    #[serde(default)]
    config: ConsumerConfig,
}

#[derive(Debug, Default, Deserialize)]
struct LastDelivery {
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

    /// The key of the order of removal: whether it is in use; then since when it is idle, or when it was created.
    fn rank(&self) -> (bool, Timestamp) {
        let active = self.delivered.last_active.unwrap_or(self.created);
        let idle = Duration::try_from(self.ts.unwrap_or(active).duration_since(active)).unwrap_or_default();
        let is_in_use = self.num_waiting > 0 || self.push_bound || idle < IDLE_AFTER;
        (is_in_use, if is_in_use { self.created } else { active })
    }
}

impl Bus {
    /// Removes a mirror's consumers that deliver to a subject that is no inbox, and above [`MIRROR_CONSUMERS_HIGH`] further
    /// ones until [`MIRROR_CONSUMERS_LOW`] remain.
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
            let request = json!({ "offset": all.len() });
            let page: ConsumerPage = self.wire.api(&format!("CONSUMER.LIST.{mirror}"), &request).await?;
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

/// Names of the consumers to remove; empty unless there are more than [`MIRROR_CONSUMERS_HIGH`].
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
            delivered: LastDelivery { last_active: Some(at(idle)) },
            config: ConsumerConfig::default(),
        }
    }

    #[test]
    fn the_longest_idle_consumers_go_first_then_the_oldest_in_use() {
        let in_use = MIRROR_CONSUMERS_HIGH;
        // The last of those in use is the oldest.
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
    fn a_consumer_is_foreign_if_it_delivers_to_no_inbox() {
        let delivers = |subject: Option<&str>| {
            let config = ConsumerConfig { deliver_subject: subject.map(str::to_owned) };
            ConsumerEntry { config, ..entry(1, 0, 0, 0) }.is_foreign()
        };
        assert!(!delivers(None) && !delivers(Some("_INBOX.UKEY.1")));
        assert!(delivers(Some("$JS.API.STREAM.DELETE.LEDGER")) && delivers(Some("_INBOX")));
    }
}
