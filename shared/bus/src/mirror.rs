//! Keeps the mirrors of LEDGER and of the bucket `views` in the account READERS. People read the mirrors, so that no reply
//! or deliver subject that a person names reaches the streams themselves.
//!
//! A mirror has the sequence numbers of its origin, so positions and digests mean the same on both. [`Bus::keep_mirror`]
//! compares one mirror with its origin and creates, changes or replaces it; keepers call it again and again. A mirror stays
//! while its origin does not exist. This module has no timer and removes no stream but a mirror;
//! [`crate::mirror_consumers`] handles the consumers of mirrors.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
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
/// 150 s at most (back-off of 2 min, wait for an answer of 30 s). The time doubles with each replacement until the mirror is whole,
/// because a replacement cannot help if the server does not get the messages.
const STUCK_MAX: Duration = Duration::from_secs(180);
/// The same for [`MOVE_TIME`] after a change of its servers. If the server with the new tag holds it already, its consumer may end in
/// the election of its new Raft group, and nats-server (2.15.1) then never tries again; otherwise it notices a silent consumer
/// within 20 s, and waits 30 s for an answer.
const STUCK_BY_A_MOVE_MAX: Duration = Duration::from_secs(60);
/// Time for which a change of its servers may be why a mirror receives nothing.
const MOVE_TIME: Duration = Duration::from_secs(300);
/// The longest time before another replacement.
const STUCK_WAIT_MAX: Duration = Duration::from_secs(3600);
const _: () = {
    assert!(STUCK_BY_A_MOVE_MAX.as_secs() < STUCK_MAX.as_secs());
    assert!(STUCK_MAX.as_secs() < STUCK_WAIT_MAX.as_secs());
    assert!(STUCK_BY_A_MOVE_MAX.as_secs() < MOVE_TIME.as_secs());
};
/// How long the server keeps an unused consumer of a mirror.
const INACTIVE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// JetStream's code for a missing stream.
const STREAM_NOT_FOUND: u64 = 10059;
/// Why a stuck mirror is replaced.
const STUCK: &str = "it received nothing while its origin had more";
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
    /// The position at which it is stuck while its origin has more.
    stuck: Option<StuckPosition>,
    /// How often it was replaced because it was stuck, since it was last whole.
    replacements: u32,
    /// When its servers were changed.
    moved_at: Option<Instant>,
}

/// A position at which every check found a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StuckPosition {
    /// A digest of the mirror's creation time: another keeper may have replaced the mirror.
    mirror: u64,
    last_seq: u64,
    since: Instant,
}

impl MirrorMemory {
    /// The memory after a failed check: the checks before and after it do not confirm each other.
    #[must_use]
    pub const fn after_failure(self) -> Self {
        Self { ahead_since: None, stuck: None, ..self }
    }

    /// The memory after a check that found this mirror, and this last sequence of its origin.
    fn after(self, mirror: &MirrorInfo, origin_seq: u64, now: Instant) -> Self {
        let here = StuckPosition { mirror: identity(mirror), last_seq: mirror.state.last_seq, since: now };
        let is_same = |was: &StuckPosition| (was.mirror, was.last_seq) == (here.mirror, here.last_seq);
        let is_behind = origin_seq > here.last_seq;
        Self {
            existed: true,
            ahead_since: None,
            stuck: is_behind.then(|| self.stuck.filter(is_same).unwrap_or(here)),
            replacements: if is_behind { self.replacements } else { 0 },
            ..self
        }
    }

    /// The memory after a replacement for this reason.
    fn replaced(self, why: &str) -> Self {
        let replacements = if why == STUCK { self.replacements + 1 } else { self.replacements };
        Self { replacements, moved_at: None, ..self.after_failure() }
    }

    fn is_stuck(&self, now: Instant) -> bool {
        let has_moved = self.moved_at.is_some_and(|at| now - at < MOVE_TIME);
        let first = if has_moved { STUCK_BY_A_MOVE_MAX } else { STUCK_MAX };
        let longest = first.saturating_mul(2_u32.saturating_pow(self.replacements)).min(STUCK_WAIT_MAX);
        self.stuck.is_some_and(|stuck| now - stuck.since >= longest)
    }
}

fn identity(mirror: &MirrorInfo) -> u64 {
    let mut hasher = DefaultHasher::new();
    mirror.created.hash(&mut hasher);
    hasher.finish()
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
    /// The state of its consumer; origins have none.
    mirror: Option<MirrorConsumer>,
}

#[derive(Debug, Deserialize)]
struct MirrorConsumer {
    /// Why the server could not set it up; the server then tries again.
    error: Option<Value>,
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
        let is_there = MirrorMemory { existed: true, moved_at: None, ..memory.after_failure() };
        let Some(mirror) = mirror else {
            self.create_mirror(&wanted).await?;
            let is_first = !memory.existed;
            let state = if is_first { MirrorState::Created } else { MirrorState::Replaced("it was deleted") };
            return Ok((state, is_there));
        };
        let (last_seq, origin_seq) = (mirror.state.last_seq, origin.state.last_seq);
        let ahead_since = memory.ahead_since;
        let memory = memory.after(&mirror, origin_seq, now);
        match decide(&origin, &mirror, &wanted, MirrorMemory { ahead_since, ..memory }, now) {
            MirrorAction::Replace(why) => {
                let _: Value = self.wire.api(&format!("STREAM.DELETE.{name}"), &json!({})).await?;
                self.create_mirror(&wanted).await?;
                Ok((MirrorState::Replaced(why), memory.replaced(why)))
            }
            MirrorAction::Confirm => {
                let ahead_since = ahead_since.or(Some(now));
                Ok((MirrorState::Ahead { last_seq, origin_seq }, MirrorMemory { ahead_since, ..memory }))
            }
            MirrorAction::Update => {
                let _: Value = self.wire.api(&format!("STREAM.UPDATE.{name}"), &wanted).await?;
                let moves = placed(&mirror.config) != placed(&Value::from(fields(&wanted)));
                let moved_at = if moves { Some(now) } else { memory.moved_at };
                Ok((MirrorState::Updated, MirrorMemory { moved_at, ..memory.after_failure() }))
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
    let has_error = mirror.mirror.as_ref().is_some_and(|consumer| consumer.error.is_some());
    let is_stuck = !has_error && memory.is_stuck(now);
    if is_stuck { MirrorAction::Replace(STUCK) } else { MirrorAction::Keep }
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
        MirrorInfo { created: created.to_owned(), config, state, mirror: None }
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

    /// A check of a mirror and its origin at these sequences, and the memory after it.
    fn look(
        memory: MirrorMemory,
        mirror: &MirrorInfo,
        origin_seq: u64,
        at: Instant,
    ) -> (MirrorAction, MirrorMemory) {
        let memory = memory.after(mirror, origin_seq, at);
        (decide(&origin("one", origin_seq), mirror, &wanted(), memory, at), memory)
    }

    #[test]
    fn a_mirror_that_is_stuck_behind_its_origin_is_replaced() {
        let (start, mirror) = (Instant::now(), made(10));
        let (action, memory) = look(MirrorMemory::default(), &mirror, 12, start);
        assert_eq!(action, MirrorAction::Keep);
        let at = |mirror: &MirrorInfo, memory, origin_seq, after| {
            look(memory, mirror, origin_seq, start + after).0
        };
        assert_eq!(at(&mirror, memory, 15, STUCK_MAX / 2), MirrorAction::Keep);
        assert_eq!(at(&mirror, memory, 15, STUCK_MAX), MirrorAction::Replace(STUCK));
        assert_eq!(at(&mirror, memory.after_failure(), 15, STUCK_MAX), MirrorAction::Keep, "not confirmed");
        assert_eq!(at(&made(11), memory, 15, STUCK_MAX), MirrorAction::Keep, "it makes progress");
        assert_eq!(at(&mirror, memory, 10, STUCK_MAX), MirrorAction::Keep, "it lacks nothing");
        let another = MirrorInfo { created: "by another keeper".to_owned(), ..made(10) };
        assert_eq!(at(&another, memory, 15, STUCK_MAX), MirrorAction::Keep, "another keeper replaced it");
        let error = Some(json!({ "description": "stream not found" }));
        let tried = MirrorInfo { mirror: Some(MirrorConsumer { error }), ..made(10) };
        assert_eq!(at(&tried, memory, 15, STUCK_MAX), MirrorAction::Keep, "the server tries again");
        let moved = MirrorMemory { moved_at: Some(start), ..memory };
        assert_eq!(at(&mirror, moved, 15, STUCK_BY_A_MOVE_MAX), MirrorAction::Replace(STUCK));
    }

    #[test]
    fn each_replacement_waits_longer_until_the_mirror_is_whole() {
        let start = Instant::now();
        let moved = MirrorMemory { moved_at: Some(start), ..MirrorMemory::default() };
        let replaced = moved.replaced(STUCK);
        assert_eq!((replaced.replacements, replaced.moved_at), (1, None), "a move counts once");
        let stuck = |memory| look(memory, &made(10), 12, start).1;
        let is_replaced = |memory: MirrorMemory, after| memory.is_stuck(start + after);
        assert!(!is_replaced(stuck(replaced), STUCK_MAX) && is_replaced(stuck(replaced), STUCK_MAX * 2));
        let often = (0..40).fold(replaced, |memory, _| memory.replaced(STUCK));
        assert!(is_replaced(stuck(often), STUCK_WAIT_MAX), "an hour at most");
        let whole = look(often, &made(12), 12, start).1;
        assert!(is_replaced(stuck(whole), STUCK_MAX));
        assert_eq!(often.replaced("another reason").replacements, often.replacements);
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
