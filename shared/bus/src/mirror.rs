//! The mirrors of LEDGER and of the bucket `views` in READERS: people read them, so that nothing a person names as a reply or
//! as a deliver subject reaches the streams themselves.
//!
//! A mirror keeps the sequence numbers of its origin, so positions and digests mean the same on both. [`Bus::keep_mirror`]
//! compares one mirror with its origin and makes it what it should be; it is called again and again, and any number of
//! keepers may call it. A mirror of an origin that no longer exists is kept until there is another origin. This module
//! holds no timer and removes no stream but a mirror.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config as Stream, ConsumerLimits, External, Placement, Source, StorageType,
};
use muster_contract::Timestamp;
use muster_identity::exchange::{HUB_API, MIRROR_DELIVERY};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::converge::fields;
use crate::topology::VIEWS_STREAM;
use crate::wire::ApiError;

/// The streams that are mirrored.
pub const MIRRORED: [&str; 2] = [muster_contract::subjects::stream::LEDGER, VIEWS_STREAM];
/// Consumers on one mirror above which idle ones are removed, so that a flood of them shuts nobody out.
pub const MIRROR_CONSUMERS_HIGH: u64 = 768;
/// Consumers that remain after idle ones were removed, unless more are in use.
pub const MIRROR_CONSUMERS_LOW: usize = 512;
/// How long a consumer of a mirror stays while nobody reads from it.
const INACTIVE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A consumer that was made so recently may not have been read from yet.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// JetStream's code for a stream that is not there.
const STREAM_NOT_FOUND: u64 = 10059;
/// Names the origin that a mirror was made of, by the moment at which it was created.
const ORIGIN_CREATED: &str = "muster.origin_created";

const _: () = assert!(MIRROR_CONSUMERS_LOW < MIRROR_CONSUMERS_HIGH as usize);
const _: () = assert!(MIRROR_CONSUMERS_HIGH < muster_identity::claims::MIRROR_CONSUMERS_MAX as u64);

/// How mirrors are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MirrorSettings {
    /// The tag of the servers that are to hold them; any server if none.
    pub tag: Option<String>,
    /// Servers that hold a copy of each; 0 counts as 1.
    pub replicas: usize,
}

/// What a round found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorState {
    /// There is no origin, so there is nothing to mirror.
    NoOrigin,
    /// It was made.
    Created,
    /// It was made anew, and why.
    Replaced(&'static str),
    /// Its settings were changed, as where it is to move to another server.
    Updated,
    /// It is as it should be.
    Kept {
        /// The last sequence it holds.
        last_seq: u64,
        /// Messages of the origin that it lacks.
        lag: u64,
        /// Consumers on it.
        consumers: u64,
    },
}

#[derive(Debug, Deserialize)]
struct Info {
    created: String,
    config: Value,
    state: State,
}

#[derive(Debug, Deserialize)]
struct State {
    last_seq: u64,
    #[serde(default)]
    consumer_count: u64,
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
}

#[derive(Debug, Default, Deserialize)]
struct Delivered {
    last_active: Option<Timestamp>,
}

impl Bus {
    /// Compares a mirror with its origin, and makes, replaces or changes it where it is not what it should be.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn keep_mirror(&self, name: &str, settings: &MirrorSettings) -> Result<MirrorState, ApiError> {
        let info = format!("STREAM.INFO.{name}");
        // The mirror first: an origin that is asked later holds at least as much, unless it is another one.
        let mirror = found(self.wire.api::<Info>(&info, &json!({})).await)?;
        let Some(origin) = found(self.wire.api_at::<Info>(HUB_API, &info, &json!({})).await)? else {
            return Ok(MirrorState::NoOrigin);
        };
        let wanted = self::mirror(name, &origin, settings);
        let Some(mirror) = mirror else {
            self.create_mirror(&wanted).await?;
            return Ok(MirrorState::Created);
        };
        if let Some(why) = reason_to_replace(&origin, &mirror, &wanted) {
            let _: Value = self.wire.api(&format!("STREAM.DELETE.{name}"), &json!({})).await?;
            self.create_mirror(&wanted).await?;
            return Ok(MirrorState::Replaced(why));
        }
        if placed(&mirror.config) != placed(&Value::from(fields(&wanted))) {
            let _: Value = self.wire.api(&format!("STREAM.UPDATE.{name}"), &wanted).await?;
            return Ok(MirrorState::Updated);
        }
        let (last_seq, consumers) = (mirror.state.last_seq, mirror.state.consumer_count);
        let lag = origin.state.last_seq.saturating_sub(last_seq);
        Ok(MirrorState::Kept { last_seq, lag, consumers })
    }

    async fn create_mirror(&self, wanted: &Stream) -> Result<(), ApiError> {
        self.wire.api::<Value>(&format!("STREAM.CREATE.{}", wanted.name), wanted).await.map(drop)
    }

    /// Removes idle consumers of a mirror, the longest idle first, until [`MIRROR_CONSUMERS_LOW`] remain; how many were
    /// removed.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn remove_idle_consumers(&self, mirror: &str) -> Result<usize, ApiError> {
        let mut all = Vec::new();
        loop {
            let ask = json!({ "offset": all.len() });
            let page: ConsumerPage = self.wire.api(&format!("CONSUMER.LIST.{mirror}"), &ask).await?;
            let is_last = page.consumers.is_empty();
            all.extend(page.consumers);
            if is_last || all.len() >= page.total {
                break;
            }
        }
        let idle = idle_consumers(all);
        for name in &idle {
            let removed =
                self.wire.api::<Value>(&format!("CONSUMER.DELETE.{mirror}.{name}"), &json!({})).await;
            found(removed)?;
        }
        Ok(idle.len())
    }
}

/// Names of the consumers to remove.
fn idle_consumers(all: Vec<ConsumerEntry>) -> Vec<String> {
    let excess = all.len().saturating_sub(MIRROR_CONSUMERS_LOW);
    let mut idle: Vec<_> = all
        .into_iter()
        .filter(|consumer| consumer.num_waiting == 0 && !consumer.push_bound)
        .map(|consumer| {
            let active = consumer.delivered.last_active.unwrap_or(consumer.created);
            (active, consumer.ts.unwrap_or(active), consumer.name)
        })
        .filter(|(active, now, _)| {
            Duration::try_from(now.duration_since(*active)).is_ok_and(|idle| idle >= IDLE_AFTER)
        })
        .collect();
    idle.sort_unstable();
    idle.into_iter().take(excess).map(|(_, _, name)| name).collect()
}

fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    const CONSUMER_NOT_FOUND: u64 = 10014;
    match answer {
        Err(error) if error.is(STREAM_NOT_FOUND) || error.is(CONSUMER_NOT_FOUND) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Why a mirror cannot stay.
fn reason_to_replace(origin: &Info, mirror: &Info, wanted: &Stream) -> Option<&'static str> {
    let wanted_fields = Value::from(fields(wanted));
    if mirror.config["mirror"]["name"] != wanted_fields["mirror"]["name"]
        || mirror.config["mirror"]["external"] != wanted_fields["mirror"]["external"]
    {
        return Some("it mirrored something else");
    }
    if mirror.config["metadata"][ORIGIN_CREATED] != json!(origin.created) {
        return Some("its origin is another stream now");
    }
    // As where the origin was restored from a backup.
    (mirror.state.last_seq > origin.state.last_seq).then_some("it holds more than its origin")
}

/// The part of a mirror's settings that may change while it stays.
fn placed(config: &Value) -> (Value, u64) {
    let copies = config["num_replicas"].as_u64().unwrap_or(1).max(1);
    (config["placement"]["tags"].clone(), copies)
}

/// A mirror as it should be. What its origin forgets by age or by count, it forgets as well.
fn mirror(name: &str, origin: &Info, settings: &MirrorSettings) -> Stream {
    let external =
        External { api_prefix: HUB_API.to_owned(), delivery_prefix: Some(MIRROR_DELIVERY.to_owned()) };
    let source = Source { name: name.to_owned(), external: Some(external), ..Source::default() };
    let max_age = Duration::from_nanos(origin.config["max_age"].as_u64().unwrap_or(0));
    let tags = settings.tag.iter().cloned().collect::<Vec<_>>();
    Stream {
        name: name.to_owned(),
        mirror: Some(source),
        storage: StorageType::File,
        num_replicas: settings.replicas.max(1),
        placement: (!tags.is_empty()).then_some(Placement { cluster: None, tags }),
        max_age,
        max_bytes: origin.config["max_bytes"].as_i64().unwrap_or(-1),
        max_messages_per_subject: origin.config["max_msgs_per_subject"].as_i64().unwrap_or(-1),
        allow_direct: true,
        deny_delete: true,
        deny_purge: true,
        allow_message_ttl: origin.config["allow_msg_ttl"].as_bool().unwrap_or(false),
        consumer_limits: Some(ConsumerLimits { inactive_threshold: INACTIVE_MAX, max_ack_pending: 0 }),
        metadata: [(ORIGIN_CREATED.to_owned(), origin.created.clone())].into(),
        ..Stream::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(created: &str, last_seq: u64, config: Value) -> Info {
        Info { created: created.to_owned(), config, state: State { last_seq, consumer_count: 0 } }
    }

    fn origin(created: &str, last_seq: u64) -> Info {
        info(created, last_seq, json!({ "max_age": 7_000_000_000_u64, "max_msgs_per_subject": 1 }))
    }

    #[test]
    fn a_mirror_is_replaced_when_its_origin_is_another_or_holds_less() {
        let wanted = mirror("LEDGER", &origin("one", 10), &MirrorSettings::default());
        let made = |last_seq| info("later", last_seq, Value::from(fields(&wanted)));
        assert_eq!(reason_to_replace(&origin("one", 10), &made(10), &wanted), None);
        assert!(reason_to_replace(&origin("two", 10), &made(10), &wanted).is_some());
        assert!(reason_to_replace(&origin("one", 9), &made(10), &wanted).is_some());
        let foreign = info("later", 0, json!({ "subjects": ["LEDGER"] }));
        assert!(reason_to_replace(&origin("one", 10), &foreign, &wanted).is_some());
    }

    #[test]
    fn a_mirror_forgets_what_its_origin_forgets() {
        let wanted = fields(&mirror("LEDGER", &origin("one", 1), &MirrorSettings::default()));
        assert_eq!(wanted["max_age"], json!(7_000_000_000_u64));
        assert_eq!(wanted["max_msgs_per_subject"], json!(1));
    }

    #[test]
    fn the_longest_idle_consumers_go_and_those_in_use_stay() {
        let entry = |number: usize, num_waiting: u64, idle_seconds: i64| ConsumerEntry {
            name: format!("c{number}"),
            created: Timestamp::from_second(0).unwrap(),
            ts: Some(Timestamp::from_second(100_000).unwrap()),
            num_waiting,
            push_bound: false,
            delivered: Delivered {
                last_active: Some(Timestamp::from_second(100_000 - idle_seconds).unwrap()),
            },
        };
        let mut all: Vec<_> = (0..MIRROR_CONSUMERS_LOW).map(|number| entry(number, 1, 9_999)).collect();
        all.extend([entry(1_000, 0, 40), entry(1_001, 0, 5_000), entry(1_002, 0, 10), entry(1_003, 0, 31)]);
        assert_eq!(idle_consumers(all), ["c1001", "c1000", "c1003"]);
        assert!(idle_consumers(vec![entry(1, 0, 9_999)]).is_empty(), "there is room");
    }
}
