//! Keeps the mirrors of LEDGER and of the bucket `views` in the account READERS. People read the mirrors, so that no reply
//! or deliver subject that a person names reaches the streams themselves.
//!
//! A mirror has the sequence numbers of its origin, so positions and digests mean the same on both. [`Bus::keep_mirror`]
//! compares one mirror with its origin and creates, changes or replaces it; keepers call it again and again. A mirror stays
//! while its origin does not exist. This module has no timer and removes no stream but a mirror;
//! [`crate::mirror_consumers`] handles the consumers of mirrors.

use std::time::Duration;

use async_nats::jetstream::stream::{
    Config as Stream, ConsumerLimits, External, Placement, Source, StorageType,
};
use muster_identity::exchange::{HUB_API, MIRROR_DELIVERY};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bus::Bus;
use crate::topology::{VIEWS_STREAM, fields};
use crate::wire::ApiError;

/// The streams that are mirrored.
pub const MIRRORED: [&str; 2] = [muster_contract::subjects::stream::LEDGER, VIEWS_STREAM];
/// Time for which a mirror must hold more than its origin before it is replaced: a replica that was just elected leader
/// may still have to catch up.
const CONFIRM_AFTER: Duration = Duration::from_millis(1_500);
/// Time without a new message, while its origin has more, after which a mirror is replaced. The server itself tries again after
/// 150 s at most (back-off of 2 min, wait for an answer of 30 s).
pub const STUCK_MAX: Duration = Duration::from_secs(180);
/// The same for [`MOVE_TIME`] after its servers have changed. If the server with the new tag holds it already, its consumer may end
/// in the election of its new Raft group, and nats-server (2.15.1) then never tries again; otherwise it notices a silent consumer
/// within 20 s.
const STUCK_BY_A_MOVE_MAX: Duration = Duration::from_secs(40);
/// Time for which the change of its servers may be why a mirror receives nothing.
const MOVE_TIME: Duration = Duration::from_secs(300);
/// How long the server keeps an unused consumer of a mirror.
const INACTIVE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// JetStream's code for a missing stream.
const STREAM_NOT_FOUND: u64 = 10059;
/// Why a stuck mirror is replaced.
const STUCK: &str = "it received nothing for minutes while its origin had more";
/// The metadata field with the creation time of a mirror's origin.
const ORIGIN_CREATED: &str = "muster.origin_created";

/// Where mirrors are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MirrorSettings {
    /// The tag of the servers that store them; any server if none.
    pub tag: Option<String>,
    /// Replicas of each; 0 counts as 1.
    pub replicas: usize,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorState {
    /// There is no origin, so there is nothing to mirror.
    NoOrigin,
    /// It was created.
    Created,
    /// It was replaced, for this reason.
    Replaced(&'static str),
    /// Its settings were changed, for example because its servers or the limits of its origin changed.
    Updated,
    /// It holds more than its origin: it is replaced if later checks confirm that.
    Ahead {
        /// The last sequence it holds.
        last_seq: u64,
        /// The last sequence of its origin.
        origin_seq: u64,
    },
    /// It is right.
    Kept {
        /// The last sequence it holds.
        last_seq: u64,
        /// Messages of the origin that it lacks.
        lag: u64,
        /// Consumers on it.
        consumers: u64,
    },
}

/// The state of a mirror that a keeper keeps from one check to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MirrorMemory {
    /// Whether it existed.
    existed: bool,
    /// Since when every check found that it holds more than its origin.
    ahead_since: Option<Instant>,
    /// The last sequence that it holds while its origin has more, and since when every check found it.
    stuck: Option<(u64, Instant)>,
    /// The last sequence of its origin when it was replaced because it was stuck: it may lack a message that its origin no longer has
    /// either, so it is replaced again only after a newer one.
    replaced_at: u64,
    /// When its settings were changed.
    updated_at: Option<Instant>,
}

impl MirrorMemory {
    /// The memory after a failed check: the checks before and after it do not confirm each other.
    #[must_use]
    pub const fn after_failure(self) -> Self {
        Self { ahead_since: None, stuck: None, ..self }
    }

    /// The memory after a check that found these positions.
    fn after(self, last_seq: u64, origin_seq: u64, now: Instant) -> Self {
        let is_same = |(seq, _): &(u64, Instant)| *seq == last_seq;
        let stuck = (origin_seq > last_seq).then(|| self.stuck.filter(is_same).unwrap_or((last_seq, now)));
        Self { existed: true, ahead_since: None, stuck, ..self }
    }

    fn is_stuck(&self, origin_seq: u64, now: Instant) -> bool {
        let has_moved = self.updated_at.is_some_and(|at| now - at < MOVE_TIME);
        let longest = if has_moved { STUCK_BY_A_MOVE_MAX } else { STUCK_MAX };
        let is_long = self.stuck.is_some_and(|(_, since)| now - since >= longest);
        is_long && origin_seq > self.replaced_at
    }
}

/// An action on an existing mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MirrorAction {
    Replace(&'static str),
    Confirm,
    Update,
    Keep,
}

#[derive(Debug, Deserialize)]
struct MirrorInfo {
    created: String,
    config: Value,
    state: MirrorPosition,
}

#[derive(Debug, Deserialize)]
struct MirrorPosition {
    #[serde(default)]
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    consumer_count: u64,
}

impl Bus {
    /// Compares a mirror with its origin, and creates, replaces or changes it if necessary; also returns the memory for the
    /// next check. `now` is the time of this check.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn keep_mirror(
        &self,
        name: &str,
        settings: &MirrorSettings,
        memory: MirrorMemory,
        now: Instant,
    ) -> Result<(MirrorState, MirrorMemory), ApiError> {
        let info = format!("STREAM.INFO.{name}");
        // The mirror first: an origin that is read later holds at least as much, unless it is another one.
        let mirror = found(self.wire.api::<MirrorInfo>(&info, &json!({})).await)?;
        let Some(origin) = found(self.wire.api_at::<MirrorInfo>(HUB_API, &info, &json!({})).await)? else {
            return Ok((MirrorState::NoOrigin, memory.after_failure()));
        };
        let wanted = self::mirror(name, &origin, settings);
        let is_there = MirrorMemory { existed: true, ..memory.after_failure() };
        let Some(mirror) = mirror else {
            self.create_mirror(&wanted).await?;
            let is_first = !memory.existed;
            let state = if is_first { MirrorState::Created } else { MirrorState::Replaced("it was deleted") };
            return Ok((state, is_there));
        };
        let (last_seq, origin_seq) = (mirror.state.last_seq, origin.state.last_seq);
        let ahead_since = memory.ahead_since;
        let memory = memory.after(last_seq, origin_seq, now);
        match decide(&origin, &mirror, &wanted, MirrorMemory { ahead_since, ..memory }, now) {
            MirrorAction::Replace(why) => {
                let _: Value = self.wire.api(&format!("STREAM.DELETE.{name}"), &json!({})).await?;
                self.create_mirror(&wanted).await?;
                let replaced_at = if why == STUCK { origin_seq } else { memory.replaced_at };
                Ok((MirrorState::Replaced(why), MirrorMemory { replaced_at, ..is_there }))
            }
            MirrorAction::Confirm => {
                let ahead_since = ahead_since.or(Some(now));
                Ok((MirrorState::Ahead { last_seq, origin_seq }, MirrorMemory { ahead_since, ..memory }))
            }
            MirrorAction::Update => {
                let _: Value = self.wire.api(&format!("STREAM.UPDATE.{name}"), &wanted).await?;
                Ok((MirrorState::Updated, MirrorMemory { updated_at: Some(now), ..is_there }))
            }
            MirrorAction::Keep => {
                let (lag, consumers) = (origin_seq.saturating_sub(last_seq), mirror.state.consumer_count);
                Ok((MirrorState::Kept { last_seq, lag, consumers }, memory))
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

/// Decides the action on an existing mirror.
fn decide(
    origin: &MirrorInfo,
    mirror: &MirrorInfo,
    wanted: &Stream,
    memory: MirrorMemory,
    now: Instant,
) -> MirrorAction {
    let wanted = Value::from(fields(wanted));
    if mirror.config["mirror"]["name"] != wanted["mirror"]["name"]
        || mirror.config["mirror"]["external"] != wanted["mirror"]["external"]
    {
        return MirrorAction::Replace("it mirrored something else");
    }
    if mirror.config["metadata"][ORIGIN_CREATED] != json!(origin.created) {
        return MirrorAction::Replace("its origin is another stream now");
    }
    // For example after the origin was restored from a backup.
    if mirror.state.last_seq > origin.state.last_seq {
        let is_confirmed = memory.ahead_since.is_some_and(|since| now - since >= CONFIRM_AFTER);
        return if is_confirmed {
            MirrorAction::Replace("it holds more than its origin")
        } else {
            MirrorAction::Confirm
        };
    }
    if bounds(&mirror.config) != bounds(&wanted) {
        // Under other limits it discarded messages that its origin holds; a mirror cannot fetch single messages again.
        let has_lost = mirror.state.last_seq > 0 && mirror.state.first_seq > origin.state.first_seq;
        return if has_lost {
            MirrorAction::Replace("it discarded what its origin holds")
        } else {
            MirrorAction::Update
        };
    }
    if placed(&mirror.config) != placed(&wanted) {
        return MirrorAction::Update;
    }
    if memory.is_stuck(origin.state.last_seq, now) {
        MirrorAction::Replace(STUCK)
    } else {
        MirrorAction::Keep
    }
}

/// The settings that say where a mirror is stored.
fn placed(config: &Value) -> (Value, u64) {
    let copies = config["num_replicas"].as_u64().unwrap_or(1).max(1);
    (config["placement"]["tags"].clone(), copies)
}

/// The settings that limit a mirror, which are those of its origin. The server writes -1 for a limit that is not set;
/// some clients write 0 or nothing.
fn bounds(config: &Value) -> ([i64; 3], bool) {
    let bound = |name: &str| config[name].as_i64().filter(|bound| *bound > 0).unwrap_or(-1);
    let allows_ttl = config["allow_msg_ttl"].as_bool().unwrap_or(false);
    (["max_age", "max_bytes", "max_msgs_per_subject"].map(bound), allows_ttl)
}

/// The configuration of a mirror, with the limits of its origin.
fn mirror(name: &str, origin: &MirrorInfo, settings: &MirrorSettings) -> Stream {
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

    fn info(created: &str, last_seq: u64, config: Value) -> MirrorInfo {
        let state = MirrorPosition { first_seq: 1, last_seq, consumer_count: 0 };
        MirrorInfo { created: created.to_owned(), config, state }
    }

    fn origin(created: &str, last_seq: u64) -> MirrorInfo {
        info(created, last_seq, json!({ "max_age": 7_000_000_000_u64, "max_msgs_per_subject": 1 }))
    }

    fn wanted() -> Stream {
        mirror("LEDGER", &origin("one", 10), &MirrorSettings::default())
    }

    fn made(last_seq: u64) -> MirrorInfo {
        info("later", last_seq, Value::from(fields(&wanted())))
    }

    fn first_check(origin: &MirrorInfo, mirror: &MirrorInfo) -> MirrorAction {
        decide(origin, mirror, &wanted(), MirrorMemory::default(), Instant::now())
    }

    #[test]
    fn a_mirror_is_replaced_when_its_origin_is_another() {
        assert_eq!(first_check(&origin("one", 10), &made(10)), MirrorAction::Keep);
        assert!(matches!(first_check(&origin("two", 10), &made(10)), MirrorAction::Replace(_)));
        let foreign = info("later", 0, json!({ "subjects": ["LEDGER"] }));
        assert!(matches!(first_check(&origin("one", 10), &foreign), MirrorAction::Replace(_)));
    }

    #[test]
    fn a_mirror_ahead_is_replaced_once_a_later_check_confirms_it() {
        let (since, mirror) = (Instant::now(), made(10));
        let look = |memory, after| decide(&origin("one", 9), &mirror, &wanted(), memory, since + after);
        let suspected = MirrorMemory { existed: true, ahead_since: Some(since), ..MirrorMemory::default() };
        assert_eq!(look(MirrorMemory::default(), CONFIRM_AFTER), MirrorAction::Confirm);
        assert_eq!(look(suspected, CONFIRM_AFTER / 2), MirrorAction::Confirm);
        assert!(matches!(look(suspected, CONFIRM_AFTER), MirrorAction::Replace(_)));
        assert_eq!(look(suspected.after_failure(), CONFIRM_AFTER), MirrorAction::Confirm);
        let caught_up = decide(&origin("one", 10), &mirror, &wanted(), suspected, since + CONFIRM_AFTER);
        assert_eq!(caught_up, MirrorAction::Keep, "the new leader caught up");
    }

    #[test]
    fn a_mirror_that_receives_nothing_is_replaced_once_a_position() {
        let (mirror, start) = (made(10), Instant::now());
        let look = |memory: MirrorMemory, last_seq, origin_seq, after| {
            let now = start + after;
            let memory = memory.after(last_seq, origin_seq, now);
            let mirror =
                MirrorInfo { state: MirrorPosition { last_seq, ..made(last_seq).state }, ..made(last_seq) };
            (decide(&origin("one", origin_seq), &mirror, &wanted(), memory, now), memory)
        };
        let (action, memory) = look(MirrorMemory::default(), mirror.state.last_seq, 12, Duration::ZERO);
        assert_eq!(action, MirrorAction::Keep);
        assert_eq!(look(memory, 10, 15, STUCK_MAX / 2).0, MirrorAction::Keep);
        assert_eq!(look(memory, 10, 15, STUCK_MAX).0, MirrorAction::Replace(STUCK));
        assert_eq!(look(memory.after_failure(), 10, 15, STUCK_MAX).0, MirrorAction::Keep, "not confirmed");
        assert_eq!(look(memory, 11, 15, STUCK_MAX).0, MirrorAction::Keep, "it makes progress");
        assert_eq!(look(memory, 10, 10, STUCK_MAX).0, MirrorAction::Keep, "it lacks nothing");
        let moved = MirrorMemory { updated_at: Some(start), ..memory };
        assert_eq!(look(moved, 10, 15, STUCK_BY_A_MOVE_MAX).0, MirrorAction::Replace(STUCK));
        let replaced = MirrorMemory { replaced_at: 15, ..memory };
        assert_eq!(look(replaced, 10, 15, STUCK_MAX).0, MirrorAction::Keep, "the message may be gone");
        assert_eq!(look(replaced, 10, 16, STUCK_MAX).0, MirrorAction::Replace(STUCK));
    }

    #[test]
    fn a_mirror_has_the_limits_of_its_origin() {
        let wanted = fields(&wanted());
        assert_eq!(wanted["max_age"], json!(7_000_000_000_u64));
        assert_eq!(wanted["max_msgs_per_subject"], json!(1));
    }

    #[test]
    fn a_changed_limit_of_the_origin_changes_the_mirror() {
        for (field, value) in [
            ("max_age", json!(9)),
            ("max_bytes", json!(9)),
            ("max_msgs_per_subject", json!(9)),
            ("allow_msg_ttl", json!(true)),
        ] {
            let mut mirror = made(10);
            mirror.config[field] = value;
            assert_eq!(first_check(&origin("one", 10), &mirror), MirrorAction::Update, "{field}");
            mirror.state.first_seq = 2;
            assert!(matches!(first_check(&origin("one", 10), &mirror), MirrorAction::Replace(_)), "{field}");
        }
        let mut mirror = made(10);
        mirror.config["max_bytes"] = json!(0);
        assert_eq!(first_check(&origin("one", 10), &mirror), MirrorAction::Keep, "0 and -1 mean no bound");
    }
}
