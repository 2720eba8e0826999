//! The mirrors of LEDGER and of the bucket `views` in READERS: people read them, so that nothing a person names as a reply or
//! as a deliver subject reaches the streams themselves.
//!
//! A mirror keeps the sequence numbers of its origin, so positions and digests mean the same on both. [`Bus::keep_mirror`]
//! compares one mirror with its origin and makes it what it should be; it is called again and again, and any number of
//! keepers may call it. A mirror of an origin that no longer exists is kept until there is another origin. This module
//! holds no timer and removes no stream but a mirror; consumers of mirrors are [`crate::mirror_consumers`]'.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config as Stream, ConsumerLimits, External, Placement, Source, StorageType,
};
use muster_identity::exchange::{HUB_API, MIRROR_DELIVERY};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bus::Bus;
use crate::converge::fields;
use crate::topology::VIEWS_STREAM;
use crate::wire::ApiError;

/// The streams that are mirrored.
pub const MIRRORED: [&str; 2] = [muster_contract::subjects::stream::LEDGER, VIEWS_STREAM];
/// Time for which a mirror must hold more than its origin says before it is replaced: a replica that was just elected
/// leader may still have to catch up.
const CONFIRM_AFTER: Duration = Duration::from_millis(1_500);
/// How long a consumer of a mirror stays while nobody reads from it.
const INACTIVE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// JetStream's code for a stream that is not there.
const STREAM_NOT_FOUND: u64 = 10059;
/// Names the origin that a mirror was made of, by the moment at which it was created.
const ORIGIN_CREATED: &str = "muster.origin_created";

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
    /// Its settings were changed, as where it is to move to another server, or where its origin's bounds changed.
    Updated,
    /// It holds more than its origin says: it is replaced if later looks find the same.
    Ahead {
        /// The last sequence it holds.
        last_seq: u64,
        /// The last sequence of its origin.
        origin_seq: u64,
    },
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

/// What a keeper remembers of a mirror from one look to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MirrorMemory {
    /// Whether it was there: then it is not made for the first time.
    existed: bool,
    /// Since when every look found that it holds more than its origin.
    ahead_since: Option<Instant>,
}

impl MirrorMemory {
    /// The memory after a look that failed: the looks before and after it do not confirm each other.
    #[must_use]
    pub const fn after_failure(self) -> Self {
        Self { ahead_since: None, ..self }
    }
}

/// What is to be done about a mirror that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Replace(&'static str),
    LookAgain,
    Update,
    Keep,
}

#[derive(Debug, Deserialize)]
struct Info {
    created: String,
    config: Value,
    state: State,
}

#[derive(Debug, Deserialize)]
struct State {
    #[serde(default)]
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    consumer_count: u64,
}

impl Bus {
    /// Compares a mirror with its origin, and makes, replaces or changes it where it is not what it should be; what to
    /// remember for the next look.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn keep_mirror(
        &self,
        name: &str,
        settings: &MirrorSettings,
        memory: MirrorMemory,
    ) -> Result<(MirrorState, MirrorMemory), ApiError> {
        let info = format!("STREAM.INFO.{name}");
        // The mirror first: an origin that is asked later holds at least as much, unless it is another one.
        let mirror = found(self.wire.api::<Info>(&info, &json!({})).await)?;
        let Some(origin) = found(self.wire.api_at::<Info>(HUB_API, &info, &json!({})).await)? else {
            return Ok((MirrorState::NoOrigin, memory.after_failure()));
        };
        let wanted = self::mirror(name, &origin, settings);
        let is_there = MirrorMemory { existed: true, ahead_since: None };
        let Some(mirror) = mirror else {
            self.create_mirror(&wanted).await?;
            let is_first = !memory.existed;
            let state =
                if is_first { MirrorState::Created } else { MirrorState::Replaced("somebody deleted it") };
            return Ok((state, is_there));
        };
        let now = Instant::now();
        let (last_seq, origin_seq) = (mirror.state.last_seq, origin.state.last_seq);
        match decide(&origin, &mirror, &wanted, memory, now) {
            Decision::Replace(why) => {
                let _: Value = self.wire.api(&format!("STREAM.DELETE.{name}"), &json!({})).await?;
                self.create_mirror(&wanted).await?;
                Ok((MirrorState::Replaced(why), is_there))
            }
            Decision::LookAgain => {
                let ahead_since = memory.ahead_since.or(Some(now));
                Ok((MirrorState::Ahead { last_seq, origin_seq }, MirrorMemory { ahead_since, ..is_there }))
            }
            Decision::Update => {
                let _: Value = self.wire.api(&format!("STREAM.UPDATE.{name}"), &wanted).await?;
                Ok((MirrorState::Updated, is_there))
            }
            Decision::Keep => {
                let (lag, consumers) = (origin_seq.saturating_sub(last_seq), mirror.state.consumer_count);
                Ok((MirrorState::Kept { last_seq, lag, consumers }, is_there))
            }
        }
    }

    async fn create_mirror(&self, wanted: &Stream) -> Result<(), ApiError> {
        self.wire.api::<Value>(&format!("STREAM.CREATE.{}", wanted.name), wanted).await.map(drop)
    }
}

fn found<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.is(STREAM_NOT_FOUND) => Ok(None),
        answer => answer.map(Some),
    }
}

/// What is to be done about a mirror that is there.
fn decide(origin: &Info, mirror: &Info, wanted: &Stream, memory: MirrorMemory, now: Instant) -> Decision {
    let wanted = Value::from(fields(wanted));
    if mirror.config["mirror"]["name"] != wanted["mirror"]["name"]
        || mirror.config["mirror"]["external"] != wanted["mirror"]["external"]
    {
        return Decision::Replace("it mirrored something else");
    }
    if mirror.config["metadata"][ORIGIN_CREATED] != json!(origin.created) {
        return Decision::Replace("its origin is another stream now");
    }
    // As where the origin was restored from a backup.
    if mirror.state.last_seq > origin.state.last_seq {
        let is_confirmed = memory.ahead_since.is_some_and(|since| now - since >= CONFIRM_AFTER);
        return if is_confirmed {
            Decision::Replace("it holds more than its origin")
        } else {
            Decision::LookAgain
        };
    }
    if bounds(&mirror.config) != bounds(&wanted) {
        // Under bounds of its own it discarded messages that its origin holds; nothing brings single ones back.
        let has_lost = mirror.state.last_seq > 0 && mirror.state.first_seq > origin.state.first_seq;
        return if has_lost {
            Decision::Replace("it discarded what its origin holds")
        } else {
            Decision::Update
        };
    }
    if placed(&mirror.config) == placed(&wanted) { Decision::Keep } else { Decision::Update }
}

/// The part of a mirror's settings that says where it is held.
fn placed(config: &Value) -> (Value, u64) {
    let copies = config["num_replicas"].as_u64().unwrap_or(1).max(1);
    (config["placement"]["tags"].clone(), copies)
}

/// The part of a mirror's settings that says what it forgets, which is its origin's. The server writes -1 where a bound is
/// not set, and some clients 0 or nothing.
fn bounds(config: &Value) -> ([i64; 3], bool) {
    let bound = |name: &str| config[name].as_i64().filter(|bound| *bound > 0).unwrap_or(-1);
    let allows_ttl = config["allow_msg_ttl"].as_bool().unwrap_or(false);
    (["max_age", "max_bytes", "max_msgs_per_subject"].map(bound), allows_ttl)
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
        let state = State { first_seq: 1, last_seq, consumer_count: 0 };
        Info { created: created.to_owned(), config, state }
    }

    fn origin(created: &str, last_seq: u64) -> Info {
        info(created, last_seq, json!({ "max_age": 7_000_000_000_u64, "max_msgs_per_subject": 1 }))
    }

    fn wanted() -> Stream {
        mirror("LEDGER", &origin("one", 10), &MirrorSettings::default())
    }

    fn made(last_seq: u64) -> Info {
        info("later", last_seq, Value::from(fields(&wanted())))
    }

    fn first_look(origin: &Info, mirror: &Info) -> Decision {
        decide(origin, mirror, &wanted(), MirrorMemory::default(), Instant::now())
    }

    #[test]
    fn a_mirror_is_replaced_when_its_origin_is_another() {
        assert_eq!(first_look(&origin("one", 10), &made(10)), Decision::Keep);
        assert!(matches!(first_look(&origin("two", 10), &made(10)), Decision::Replace(_)));
        let foreign = info("later", 0, json!({ "subjects": ["LEDGER"] }));
        assert!(matches!(first_look(&origin("one", 10), &foreign), Decision::Replace(_)));
    }

    #[test]
    fn a_mirror_that_is_ahead_is_replaced_once_a_later_look_confirms_it() {
        let (since, mirror) = (Instant::now(), made(10));
        let look = |memory, after| decide(&origin("one", 9), &mirror, &wanted(), memory, since + after);
        let suspected = MirrorMemory { existed: true, ahead_since: Some(since) };
        assert_eq!(look(MirrorMemory::default(), CONFIRM_AFTER), Decision::LookAgain);
        assert_eq!(look(suspected, CONFIRM_AFTER / 2), Decision::LookAgain);
        assert!(matches!(look(suspected, CONFIRM_AFTER), Decision::Replace(_)));
        assert_eq!(look(suspected.after_failure(), CONFIRM_AFTER), Decision::LookAgain);
        let caught_up = decide(&origin("one", 10), &mirror, &wanted(), suspected, since + CONFIRM_AFTER);
        assert_eq!(caught_up, Decision::Keep, "the new leader caught up");
    }

    #[test]
    fn a_mirror_forgets_what_its_origin_forgets() {
        let wanted = fields(&wanted());
        assert_eq!(wanted["max_age"], json!(7_000_000_000_u64));
        assert_eq!(wanted["max_msgs_per_subject"], json!(1));
    }

    #[test]
    fn a_mirror_takes_over_every_bound_that_its_origin_changed() {
        for (field, value) in [
            ("max_age", json!(9)),
            ("max_bytes", json!(9)),
            ("max_msgs_per_subject", json!(9)),
            ("allow_msg_ttl", json!(true)),
        ] {
            let mut mirror = made(10);
            mirror.config[field] = value;
            assert_eq!(first_look(&origin("one", 10), &mirror), Decision::Update, "{field}");
            mirror.state.first_seq = 2;
            assert!(matches!(first_look(&origin("one", 10), &mirror), Decision::Replace(_)), "{field}");
        }
        let mut mirror = made(10);
        mirror.config["max_bytes"] = json!(0);
        assert_eq!(first_look(&origin("one", 10), &mirror), Decision::Keep, "0 and -1 mean no bound");
    }
}
