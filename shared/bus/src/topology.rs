//! The streams, consumers and the bucket of the contract as data. [`crate::converge`] creates them.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config as Consumer};
use async_nats::jetstream::stream::{
    Config as Stream, DiscardPolicy, Republish, Source, StorageType, SubjectTransform,
};
use muster_contract::limits::{
    DEVICE_DUPLICATE_WINDOW, DEVICE_MESSAGE_BYTES_MAX, DUPLICATE_WINDOW, EVIDENCE_LEASE_MS_MAX,
    HEARTBEAT_BYTES_MAX, LEDGER_AGE_MAX, PACKAGE_CHUNK_BYTES_MAX, PACKAGES_BYTES_MAX, PARTITIONS,
    PLANS_HISTORY, QUARANTINE_BYTES_MAX, QUARANTINE_DUPLICATE_WINDOW, QUARANTINE_SHARE, UPLINK_SHARE,
};
use muster_contract::packages;
use muster_contract::subjects::{REJECTED, report_partition, stream};
use muster_service::config::UPLINK_BYTES_MIN;
use serde_json::{Map, Value, json};

use crate::config::{LEDGER_BYTES_MAX, SERVER_PAYLOAD_MIN, UPLINK_BYTES_MAX};

/// The stream of the bucket `views`, named by the convention of NATS KV.
pub const VIEWS_STREAM: &str = "KV_views";
/// Prefix of the subjects of the bucket's keys.
pub(crate) const VIEWS_SUBJECT_PREFIX: &str = "$KV.views.";

/// Full shares of the largest reports that the smallest UPLINK has room for.
const UPLINK_SHARES_MIN: u64 = 3;
/// Documents DOWNLINK keeps of each device and kind, and of each deployment.
const DOWNLINK_HISTORY: i64 = 5;
/// How long UPLINK keeps a report that ingest has not removed.
const UPLINK_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How long the server's marker of an expired subscription stays, for a rollup that is away.
const EXPIRY_MARK_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// How long PRESENCE keeps the last heartbeat of a silent device.
const PRESENCE_AGE_MAX: Duration = Duration::from_secs(60 * 60);
/// Time a delivery may stay unacknowledged before the server repeats it.
const ACK_WAIT: Duration = Duration::from_secs(60);
/// Deliveries of one partition that may be unacknowledged at once.
pub(crate) const ACK_PENDING_MAX: i64 = 8192;
/// No limit of deliveries: ingest quarantines what it cannot process.
const DELIVER_WITHOUT_END: i64 = -1;

/// The streams and consumers that must exist on the server.
pub(crate) struct Topology {
    /// Streams, each after its source.
    pub(crate) streams: Vec<Stream>,
    /// Durable consumers, each with its stream's name.
    pub(crate) consumers: Vec<(&'static str, Consumer)>,
}

impl Topology {
    /// The same for a server that does not support batches.
    pub(crate) fn without_batches(mut self) -> Self {
        self.streams.iter_mut().for_each(|stream| stream.allow_batch_publish = false);
        self
    }
}

/// The contract's topology. A consumer has as many replicas as its stream.
pub(crate) fn contract(uplink_bytes_max: u64, ledger_bytes_max: u64, replicas: usize) -> Topology {
    let mut streams = vec![
        downlink(),
        uplink(uplink_bytes_max),
        presence(),
        ledger(ledger_bytes_max),
        views(),
        notices(),
        quarantine(),
        http_devices(),
        packages(),
        plans(),
    ];
    streams.iter_mut().for_each(|stream| stream.num_replicas = replicas);
    Topology {
        streams,
        consumers: (0..PARTITIONS).map(|p| (stream::UPLINK, partition_consumer(p))).collect(),
    }
}

/// The contract's topology as JSON of the server's API, for documentation: `streams` and `consumers`, each a list of
/// configurations.
pub fn described() -> Value {
    let topology = contract(UPLINK_BYTES_MAX, LEDGER_BYTES_MAX, 1);
    let consumers: Vec<_> = topology
        .consumers
        .iter()
        .map(|(stream, config)| json!({ "stream": stream, "config": Value::from(fields(config)) }))
        .collect();
    json!({ "streams": topology.streams.iter().map(fields).collect::<Vec<_>>(), "consumers": consumers })
}

/// The fields of a configuration, as the server's API writes them.
pub(crate) fn fields(config: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Name of the durable consumer of a partition of UPLINK.
pub(crate) fn partition_consumer_name(partition: u16) -> String {
    format!("ingest-{partition}")
}

/// The durable consumer of a partition of UPLINK, from the first message.
pub(crate) fn partition_consumer(partition: u16) -> Consumer {
    Consumer {
        durable_name: Some(partition_consumer_name(partition)),
        filter_subject: report_partition(partition),
        ack_policy: AckPolicy::All,
        ack_wait: ACK_WAIT,
        max_ack_pending: ACK_PENDING_MAX,
        max_deliver: DELIVER_WITHOUT_END,
        ..Consumer::default()
    }
}

fn downlink() -> Stream {
    Stream {
        subjects: subjects([
            "muster.desired.*.*",
            "muster.receipt.*.*",
            "muster.credential.*.*",
            "muster.rollout.*",
        ]),
        max_messages_per_subject: DOWNLINK_HISTORY,
        discard: DiscardPolicy::New,
        deny_delete: true,
        allow_direct: true,
        republish: Some(Republish {
            source: "muster.*.*.*".to_owned(),
            destination: "muster.live.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}".to_owned(),
            headers_only: false,
        }),
        ..base(stream::DOWNLINK)
    }
}

fn uplink(bytes_max: u64) -> Stream {
    Stream {
        subjects: subjects(["muster.report.*.*"]),
        subject_transform: Some(partitioned("report")),
        // A full stream refuses reports: the outboxes then keep what the hub cannot take.
        discard: DiscardPolicy::New,
        // Each device has its own share, so a flood is refused only to the device that sends it.
        max_messages_per_subject: UPLINK_SHARE as i64,
        discard_new_per_subject: true,
        max_bytes: i64::try_from(bytes_max).unwrap_or(i64::MAX),
        max_message_size: DEVICE_MESSAGE_BYTES_MAX as i32,
        max_age: UPLINK_AGE_MAX,
        duplicate_window: DEVICE_DUPLICATE_WINDOW,
        deny_delete: true,
        // A device with a long backlog needs an answer only now and then.
        allow_batch_publish: true,
        ..base(stream::UPLINK)
    }
}

fn presence() -> Stream {
    Stream {
        subjects: subjects(["muster.presence.*.*"]),
        subject_transform: Some(partitioned("presence")),
        storage: StorageType::Memory,
        max_messages_per_subject: 1,
        max_message_size: HEARTBEAT_BYTES_MAX as i32,
        max_age: PRESENCE_AGE_MAX,
        duplicate_window: DEVICE_DUPLICATE_WINDOW,
        deny_delete: true,
        ..base(stream::PRESENCE)
    }
}

fn ledger(bytes_max: u64) -> Stream {
    Stream {
        subjects: subjects([
            "muster.status.*.*.*",
            "muster.device.*.*",
            "muster.liveness.*.*",
            "muster.deadline.*.*.*",
            "muster.incident.*.*",
            "muster.quarantine.*.*",
            "muster.verdict.*.*",
            "muster.owner.*.*",
            "muster.hub.*",
            "muster.hearing.*",
        ]),
        sources: Some(vec![Source {
            name: stream::DOWNLINK.to_owned(),
            filter_subject: Some("muster.desired.>".to_owned()),
            ..Source::default()
        }]),
        // At its limit it discards the oldest facts: ingest has re-asserted those that still hold, or throttles reports.
        discard: DiscardPolicy::Old,
        max_bytes: i64::try_from(bytes_max).unwrap_or(i64::MAX),
        max_age: LEDGER_AGE_MAX,
        deny_delete: true,
        deny_purge: true,
        allow_direct: true,
        allow_batch_publish: true,
        // A pulse has a time to live, so LEDGER keeps only the last few.
        allow_message_ttl: true,
        ..base(stream::LEDGER)
    }
}

/// The stream of the bucket, in the format of NATS KV with history 1, so that other clients' KV functions work on it.
fn views() -> Stream {
    Stream {
        subjects: subjects(["$KV.views.>"]),
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        // Tombstones have a time to live.
        allow_message_ttl: true,
        ..base(VIEWS_STREAM)
    }
}

/// One subscription and one notice of each name. The server republishes a notice when it stores it.
fn notices() -> Stream {
    Stream {
        subjects: subjects(["muster.subscription.*", "muster.notice.*"]),
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        deny_delete: true,
        allow_direct: true,
        // The server expires a subscription that is not renewed and leaves a marker, which needs rollups.
        allow_message_ttl: true,
        allow_rollup: true,
        subject_delete_marker_ttl: Some(EXPIRY_MARK_KEPT),
        republish: Some(Republish {
            source: "muster.notice.*".to_owned(),
            destination: "muster.live.notice.{{wildcard(1)}}".to_owned(),
            headers_only: false,
        }),
        ..base(stream::NOTICES)
    }
}

/// Reports that ingest rejected. A full share, or a full stream, is refused: the device then keeps the report. Nothing ages out
/// by itself: ingest removes a report after it has recorded why.
fn quarantine() -> Stream {
    Stream {
        subjects: subjects([REJECTED]),
        discard: DiscardPolicy::New,
        max_messages_per_subject: i64::from(QUARANTINE_SHARE),
        discard_new_per_subject: true,
        max_bytes: QUARANTINE_BYTES_MAX as i64,
        duplicate_window: QUARANTINE_DUPLICATE_WINDOW,
        deny_purge: true,
        allow_direct: true,
        ..base(stream::QUARANTINE)
    }
}

/// The bucket `http_devices`: the numbers of devices that speak HTTP, and their accepted clients. Operators and gateways write it,
/// so the stream allows no header that expires or replaces messages.
fn http_devices() -> Stream {
    Stream {
        subjects: subjects(["$KV.http_devices.*", "$KV.http_devices.*.*"]),
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        deny_delete: true,
        allow_direct: true,
        ..base(stream::HTTP_DEVICES)
    }
}

/// The bucket `packages`, in the format of NATS's object store. Removing an object replaces its chunks, so the stream allows
/// rollups; only packagers write it.
fn packages() -> Stream {
    Stream {
        subjects: subjects(["$O.packages.C.>", "$O.packages.M.>"]),
        discard: DiscardPolicy::New,
        max_bytes: PACKAGES_BYTES_MAX as i64,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..base(packages::STREAM)
    }
}

/// Plans with their revisions, instances with their operations, and the inventory, with the history of each. A planner appends
/// for the last sequence of the stream that it has read, so the stream is a serial log.
fn plans() -> Stream {
    Stream {
        subjects: subjects(["muster.plan.*", "muster.instance.*.*", "muster.inventory.>"]),
        max_messages_per_subject: PLANS_HISTORY,
        discard: DiscardPolicy::New,
        deny_delete: true,
        deny_purge: true,
        allow_direct: true,
        ..base(stream::PLANS)
    }
}

fn base(name: &str) -> Stream {
    Stream {
        name: name.to_owned(),
        storage: StorageType::File,
        num_replicas: 1,
        max_message_size: SERVER_PAYLOAD_MIN as i32,
        duplicate_window: DUPLICATE_WINDOW,
        ..Stream::default()
    }
}

/// Stores `muster.<kind>.<site>.<device>` under `muster.<kind>.<p>.<site>.<device>`.
fn partitioned(kind: &str) -> SubjectTransform {
    SubjectTransform {
        source: format!("muster.{kind}.*.*"),
        destination: format!(
            "muster.{kind}.{{{{partition({PARTITIONS},1,2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"
        ),
    }
}

fn subjects<const N: usize>(subjects: [&str; N]) -> Vec<String> {
    subjects.map(str::to_owned).to_vec()
}

const _: () = {
    assert!(SERVER_PAYLOAD_MIN <= i32::MAX as usize);
    assert!(PACKAGE_CHUNK_BYTES_MAX < SERVER_PAYLOAD_MIN);
    assert!(DUPLICATE_WINDOW.as_secs() <= PRESENCE_AGE_MAX.as_secs());
    assert!(EVIDENCE_LEASE_MS_MAX / 1000 <= PRESENCE_AGE_MAX.as_secs());
    // One device that fills its share with the largest reports leaves most of the smallest UPLINK to the others.
    assert!(UPLINK_SHARES_MIN * UPLINK_SHARE as u64 * DEVICE_MESSAGE_BYTES_MAX as u64 <= UPLINK_BYTES_MIN);
    // A device that fills its share leaves room for others among the deliveries of its partition.
    assert!(8 * UPLINK_SHARE as i64 <= ACK_PENDING_MAX);
};

#[cfg(test)]
mod tests {
    use muster_identity::Role;

    use super::*;

    /// Whether two patterns have a subject in common.
    fn overlap(one: &str, other: &str) -> bool {
        let (mut one, mut other) = (one.split('.'), other.split('.'));
        loop {
            match (one.next(), other.next()) {
                (None, None) => return true,
                (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
                (Some(a), Some(b))
                    if a == b || [a, b].iter().any(|token| *token == "*" || token.contains('{')) => {}
                _ => return false,
            }
        }
    }

    #[test]
    fn only_one_role_writes_each_kind_of_message_of_a_stream() {
        let topology = contract(1, 1, 1);
        for subject in topology.streams.iter().flat_map(|stream| &stream.subjects) {
            let writes = |role: &Role| role.rights().publish.iter().any(|right| overlap(right, subject));
            let writers: Vec<_> = Role::ALL.into_iter().filter(writes).collect();
            match subject.as_str() {
                // A token needs no protected subject: its device accepts only tokens of its signer.
                "muster.credential.*.*" => assert_eq!(writers, [Role::Renewer, Role::Operator]),
                // A gateway publishes for devices that speak HTTP.
                "muster.report.*.*" | "muster.presence.*.*" => {
                    assert_eq!(writers, [Role::Device, Role::Margo]);
                }
                _ => assert_eq!(writers.len(), 1, "{subject}: {writers:?}"),
            }
        }
    }
}
