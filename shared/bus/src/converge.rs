//! Brings the server to the topology: creates what is missing, reports what differs, changes nothing.
//!
//! Any number of services may do so at once: creating what exists in the same shape is nothing to the server.

use std::fmt;

use async_nats::jetstream::consumer::Config as Consumer;
use async_nats::jetstream::stream::Config as Stream;
use fastrand::Rng;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::bus::Bus;
use crate::heal::{HEAL_MAX, HEAL_MIN};
use crate::topology::{Topology, VIEWS_STREAM, contract};
use crate::version::knows_batches;
use crate::wire::{ApiError, Wire};

const STREAM_NOT_FOUND: u64 = 10059;
const STREAM_EXISTS_OTHERWISE: u64 = 10058;
const CONSUMER_NOT_FOUND: u64 = 10014;
const CONSUMER_EXISTS_OTHERWISE: u64 = 10148;
const INSUFFICIENT_RESOURCES: u64 = 10023;
const STORAGE_EXCEEDED: u64 = 10047;
/// The server could not lay out a stream's store: the disk, or somebody who creates the same stream at this moment.
const STORE_NOT_MADE: u64 = 10049;
/// Attempts after which it is the disk.
const STORE_ATTEMPTS_MAX: u32 = 5;
const SUBJECTS_OVERLAP: u64 = 10065;
const JETSTREAM_OFF: [u64; 2] = [10039, 10076];
/// Not now so many servers as there shall be copies: a cluster may still be starting.
const TOO_FEW_PEERS: u64 = 10005;
/// One server alone keeps one copy.
const NO_CLUSTER: u64 = 10074;

/// What an operator may decide otherwise without changing what the streams mean: where and how safely data is kept,
/// notes, whether batches are taken (without them devices send one by one), and for a consumer where it began.
pub(crate) const FREE_STREAM_FIELDS: [&str; 6] =
    ["num_replicas", "placement", "description", "metadata", "compression", "allow_batched"];
const FREE_CONSUMER_FIELDS: [&str; 6] =
    ["num_replicas", "description", "metadata", "name", "deliver_policy", "opt_start_seq"];
/// The least that must be given; how much, is the operator's.
const ANY_BOUND: &str = "max_bytes";
/// Of how many copies a stream has, its maker decides.
const COPIES: &str = "num_replicas";

/// A field of a stream or consumer that exists in another shape than the contract's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `stream UPLINK`, `consumer UPLINK/ingest-7`.
    pub asset: String,
    /// The server's name of the field.
    pub field: String,
    /// The contract's value, as JSON.
    pub wanted: String,
    /// The server's value, as JSON.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is {}, the contract wants {}", self.asset, self.field, self.found, self.wanted)
    }
}

/// Why the topology does not stand.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Some of it exists in another shape, which is never changed from here.
    #[error(
        "the NATS server holds streams of another shape: {}; `muster streams upgrade` brings those of an older release to \
         this one's",
        listed(.0)
    )]
    Differs(Vec<Difference>),
    /// There is no room.
    #[error(
        "the NATS server has no room for {asset}: free disk space, raise max_file_store or the account's limits, or choose smaller --uplink-max-bytes and --ledger-max-bytes; a max_bytes that a stream has is respected"
    )]
    NoRoom {
        /// What was to be created.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// More copies are wanted than a server alone can keep.
    #[error(
        "{asset} shall have copies on several servers (--replicas), and this NATS server is alone: make it a cluster, or \
         use --replicas 1"
    )]
    NoCluster {
        /// What was to be created.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// Another stream already takes the subjects.
    #[error("another stream holds subjects of {asset}: find it with `nats stream find` and move it away")]
    SubjectsTaken {
        /// What was to be created.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// The account may not use JetStream.
    #[error("this NATS account has no JetStream: enable it for the account")]
    NoJetStream {
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// The server refuses for another reason.
    #[error("the NATS server does not create {asset}")]
    Refused {
        /// What was to be created.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
}

impl Bus {
    /// Creates every missing stream and consumer and the bucket; reports those of another shape and changes none.
    /// Waits while the server does not answer; ends only well or with something for a person to mend.
    pub async fn converge(&self) -> Result<(), TopologyError> {
        self.stand(self.wanted()).await
    }

    /// The same without the consumers of UPLINK's partitions, which are ingest's: nobody else needs the right to make
    /// any there.
    pub async fn converge_streams(&self) -> Result<(), TopologyError> {
        self.stand(Topology { consumers: Vec::new(), ..self.wanted() }).await
    }

    /// Only the bucket `views`, where nobody reports: a place that shows what others have counted.
    pub async fn converge_views(&self) -> Result<(), TopologyError> {
        let mut streams = self.wanted().streams;
        streams.retain(|stream| stream.name == VIEWS_STREAM);
        self.stand(Topology { streams, consumers: Vec::new() }).await
    }

    pub(crate) fn wanted(&self) -> Topology {
        contract(self.wire.uplink_bytes_max, self.wire.ledger_bytes_max, self.wire.replicas)
    }

    async fn stand(&self, mut topology: Topology) -> Result<(), TopologyError> {
        if !knows_batches(&self.wire.client.server_info().version) {
            topology = topology.without_batches();
        }
        let mut delay = FullJitter::new(HEAL_MIN, HEAL_MAX);
        let mut chance = Rng::new();
        let mut not_made = 0;
        loop {
            match once(&self.wire, &topology).await {
                Err(TopologyError::Refused { asset, source })
                    if is_passing(&source)
                        || (source.is(STORE_NOT_MADE) && not_made < STORE_ATTEMPTS_MAX) =>
                {
                    not_made += u32::from(source.is(STORE_NOT_MADE));
                    let retry_in = delay.next(&mut chance);
                    tracing::warn!(cause = chain(&source), ?retry_in, "cannot look after {asset} now");
                    tokio::time::sleep(retry_in).await;
                }
                end => return end,
            }
        }
    }
}

fn is_passing(error: &ApiError) -> bool {
    let passes = |code| code == TOO_FEW_PEERS || crate::publish::is_transient(code);
    matches!(error, ApiError::NoAnswer(_)) || error.code().is_some_and(passes)
}

async fn once(wire: &Wire, topology: &Topology) -> Result<(), TopologyError> {
    let mut differences = Vec::new();
    for config in &topology.streams {
        differences.extend(stand_stream(wire, config).await?);
    }
    for (stream, config) in &topology.consumers {
        differences.extend(stand_consumer(wire, stream, config).await?);
    }
    if differences.is_empty() { Ok(()) } else { Err(TopologyError::Differs(differences)) }
}

#[derive(Deserialize)]
pub(crate) struct Existing {
    pub(crate) config: Map<String, Value>,
}

/// Creates the stream if it is missing; what differs if it is not.
async fn stand_stream(wire: &Wire, config: &Stream) -> Result<Vec<Difference>, TopologyError> {
    let asset = format!("stream {}", config.name);
    let info = format!("STREAM.INFO.{}", config.name);
    let mut found = wire.api::<Existing>(&info, &json!({})).await;
    if found.as_ref().is_err_and(|error| error.is(STREAM_NOT_FOUND)) {
        found = wire.api(&format!("STREAM.CREATE.{}", config.name), config).await;
        tell_created(&asset, &found);
    }
    if found.as_ref().is_err_and(|error| error.is(STREAM_EXISTS_OTHERWISE)) {
        found = wire.api(&info, &json!({})).await;
    }
    let found = found.map_err(|source| refusal(&asset, source))?;
    let wanted = fields(config);
    tell_bound(&asset, &wanted, &found.config);
    tell_copies(&asset, &wanted, &found.config);
    Ok(compare(&asset, &wanted, &found.config, &FREE_STREAM_FIELDS))
}

/// How much room a stream has is its maker's decision; whoever would have made it otherwise says so.
fn tell_bound(asset: &str, wanted: &Map<String, Value>, found: &Map<String, Value>) {
    let (wanted, found) = (&wanted[ANY_BOUND], &found[ANY_BOUND]);
    if !is_unset(wanted) && wanted != found {
        tracing::info!(
            "{asset} keeps its {ANY_BOUND} of {found}; this process would have made it with {wanted}"
        );
    }
}

/// How many copies a stream has is respected; fewer than this process was told of are a risk that nobody may have meant.
fn tell_copies(asset: &str, wanted: &Map<String, Value>, found: &Map<String, Value>) {
    let copies = |of: &Map<String, Value>| of.get(COPIES).and_then(Value::as_u64).unwrap_or(1).max(1);
    let (wanted, found) = (copies(wanted), copies(found));
    if found < wanted {
        tracing::warn!(
            "{asset} has copies on {found} servers and not on {wanted}, as it was made: \
             `nats stream edit NAME --replicas {wanted}` changes that while everything runs"
        );
    } else if found > wanted {
        tracing::info!("{asset} keeps its copies on {found} servers; this process would have made {wanted}");
    }
}

async fn stand_consumer(
    wire: &Wire,
    stream: &str,
    config: &Consumer,
) -> Result<Vec<Difference>, TopologyError> {
    let name = config.durable_name.as_deref().unwrap_or_default();
    let asset = format!("consumer {stream}/{name}");
    let info = format!("CONSUMER.INFO.{stream}.{name}");
    let mut found = wire.api::<Existing>(&info, &json!({})).await;
    if found.as_ref().is_err_and(|error| error.is(CONSUMER_NOT_FOUND)) {
        found = create_consumer(wire, stream, config).await;
        tell_created(&asset, &found);
    }
    if found.as_ref().is_err_and(|error| error.is(CONSUMER_EXISTS_OTHERWISE)) {
        found = wire.api(&info, &json!({})).await;
    }
    let found = found.map_err(|source| refusal(&asset, source))?;
    Ok(compare(&asset, &fields(config), &found.config, &FREE_CONSUMER_FIELDS))
}

/// Creates a consumer; never changes one. Its subject names stream, consumer and filter, for whoever sets permissions.
pub(crate) async fn create_consumer<T: serde::de::DeserializeOwned>(
    wire: &Wire,
    stream: &str,
    config: &Consumer,
) -> Result<T, ApiError> {
    let name = config.durable_name.as_deref().or(config.name.as_deref()).unwrap_or_default();
    let filter =
        if config.filter_subject.is_empty() { String::new() } else { format!(".{}", config.filter_subject) };
    let body = json!({ "stream_name": stream, "config": config, "action": "create" });
    wire.api(&format!("CONSUMER.CREATE.{stream}.{name}{filter}"), &body).await
}

fn tell_created(asset: &str, created: &Result<Existing, ApiError>) {
    if created.is_ok() {
        tracing::info!("{asset} created");
    }
}

pub(crate) fn refusal(asset: &str, source: ApiError) -> TopologyError {
    let asset = asset.to_owned();
    match source.code() {
        Some(INSUFFICIENT_RESOURCES | STORAGE_EXCEEDED) => TopologyError::NoRoom { asset, source },
        Some(NO_CLUSTER) => TopologyError::NoCluster { asset, source },
        Some(SUBJECTS_OVERLAP) => TopologyError::SubjectsTaken { asset, source },
        Some(code) if JETSTREAM_OFF.contains(&code) => TopologyError::NoJetStream { source },
        _ => TopologyError::Refused { asset, source },
    }
}

pub(crate) fn fields(config: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The fields of both in which they differ. What only one has counts as unset in the other.
pub(crate) fn compare(
    asset: &str,
    wanted: &Map<String, Value>,
    found: &Map<String, Value>,
    free: &[&str],
) -> Vec<Difference> {
    let mut names: Vec<_> =
        wanted.keys().chain(found.keys()).filter(|name| !free.contains(&name.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    let value = |of: &Map<String, Value>, name: &str| of.get(name).cloned().unwrap_or(Value::Null);
    let pairs = names.into_iter().map(|name| (name, value(wanted, name), value(found, name)));
    pairs
        .filter(|(name, wanted, found)| !same(name, wanted, found))
        .map(|(field, wanted, found)| Difference {
            asset: asset.to_owned(),
            field: field.clone(),
            wanted: wanted.to_string(),
            found: found.to_string(),
        })
        .collect()
}

fn same(field: &str, wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        _ if is_unset(wanted) && is_unset(found) => true,
        _ if field == ANY_BOUND => is_unset(wanted) || !is_unset(found),
        (Value::Object(wanted), Value::Object(found)) => compare("", wanted, found, &[]).is_empty(),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(w, f)| same("", w, f))
        }
        // The server writes some of its defaults where we leave a field out.
        (_, found) if is_unset(wanted) => is_server_default(field, found),
        _ => wanted == found,
    }
}

/// The values that mean "not set" in the API's JSON.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => matches!(number.as_i64(), Some(0 | -1)),
        Value::String(text) => text.is_empty() || text == "none",
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_unset),
        Value::Bool(true) => false,
    }
}

fn is_server_default(field: &str, found: &Value) -> bool {
    matches!((field, found.as_i64()), ("max_waiting", Some(512)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(value: &Value) -> Map<String, Value> {
        fields(value)
    }

    #[test]
    fn only_what_means_something_else_is_a_difference() {
        let wanted = map(
            &json!({ "max_age": 7, "subjects": ["a.>"], "max_msgs": 0, "max_bytes": 100, "sources": [{ "name": "A" }] }),
        );
        let equal = [
            json!({ "max_age": 7, "subjects": ["a.>"], "max_msgs": -1, "max_bytes": 5, "sources": [{ "name": "A", "opt_start_seq": 0 }] }),
            json!({ "max_age": 7, "subjects": ["a.>"], "max_bytes": 100, "sources": [{ "name": "A" }], "num_replicas": 3, "metadata": { "_nats.level": "0" }, "consumer_limits": {}, "sealed": false }),
        ];
        for found in equal {
            assert_eq!(compare("stream A", &wanted, &map(&found), &FREE_STREAM_FIELDS), []);
        }
        let other = json!({ "max_age": 8, "subjects": ["a.>", "b.>"], "max_bytes": -1, "sources": [{ "name": "B" }], "allow_rollup_hdrs": true });
        let found = compare("stream A", &wanted, &map(&other), &FREE_STREAM_FIELDS);
        let names: Vec<_> = found.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(names, ["allow_rollup_hdrs", "max_age", "max_bytes", "sources", "subjects"]);
        assert_eq!(found[1].to_string(), "stream A: max_age is 8, the contract wants 7");
    }
}
