//! Creates the streams and consumers of the topology that are missing, and reports those that differ. It changes none.
//!
//! Any number of services may do so at once: creating an existing stream with the same settings has no effect.

use std::fmt;

use async_nats::jetstream::consumer::Config as Consumer;
use async_nats::jetstream::stream::Config as Stream;
use muster_contract::subjects::stream;
use muster_service::retry::retry_transient;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::bus::Bus;
use crate::retry_delay::REOPEN;
use crate::topology::{Topology, VIEWS_STREAM, contract, fields};
use crate::version::knows_batches;
use crate::wire::{ApiError, Wire};

const STREAM_NOT_FOUND: u64 = 10059;
const STREAM_DIFFERS: u64 = 10058;
const CONSUMER_NOT_FOUND: u64 = 10014;
const CONSUMER_DIFFERS: u64 = 10148;
const INSUFFICIENT_RESOURCES: u64 = 10023;
const STORAGE_EXCEEDED: u64 = 10047;
/// The server could not create a stream's store: the disk failed, or another process creates the same stream now.
const STORE_NOT_MADE: u64 = 10049;
/// Attempts after which the disk counts as the cause.
const STORE_ATTEMPTS_MAX: u32 = 5;
const SUBJECTS_OVERLAP: u64 = 10065;
const JETSTREAM_OFF: [u64; 2] = [10039, 10076];
/// Fewer servers than replicas: the cluster may still be starting.
const TOO_FEW_PEERS: u64 = 10005;
/// More than one replica on a server without a cluster.
const NO_CLUSTER: u64 = 10074;

/// Settings that an operator may choose: replicas and placement, descriptions, compression, whether batches are accepted
/// (without them devices send messages one by one), and for a consumer its start.
pub(crate) const FREE_STREAM_FIELDS: [&str; 6] =
    ["num_replicas", "placement", "description", "metadata", "compression", "allow_batched"];
const FREE_CONSUMER_FIELDS: [&str; 6] =
    ["num_replicas", "description", "metadata", "name", "deliver_policy", "opt_start_seq"];
/// The setting that must have a value if the contract has one; an operator chooses which.
const MAX_BYTES: &str = "max_bytes";
/// The setting with the number of replicas.
const REPLICAS: &str = "num_replicas";

/// A setting of a stream or consumer that differs from the contract.
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

/// Why the topology could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Some streams or consumers exist with other settings; this module never changes them.
    #[error(
        "the NATS server has streams with other settings: {}; `muster streams upgrade` updates those of an older release",
        listed(.0)
    )]
    Differs(Vec<Difference>),
    /// The server has no room.
    #[error(
        "the NATS server has no room for {asset}: free disk space, raise max_file_store or the account's limits, or choose smaller --uplink-max-bytes and --ledger-max-bytes; an existing stream keeps its max_bytes"
    )]
    NoRoom {
        /// The name of the asset.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// More than one replica is wanted, and the server is not in a cluster.
    #[error(
        "cannot create {asset} with several replicas (--replicas) on a single NATS server: make it a cluster, or use \
         --replicas 1"
    )]
    NoCluster {
        /// The name of the asset.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// Another stream has the subjects.
    #[error("another stream holds subjects of {asset}: find it with `nats stream find` and move it away")]
    SubjectsTaken {
        /// The name of the asset.
        asset: String,
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// JetStream is disabled for the account.
    #[error("this NATS account has no JetStream: enable it for the account")]
    NoJetStream {
        /// The server's answer.
        #[source]
        source: ApiError,
    },
    /// The server refuses for another reason.
    #[error("the NATS server refuses to create {asset}")]
    Refused {
        /// The name of the asset.
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
    /// Creates every missing stream and consumer and the bucket; changes no existing one. Temporary failures are retried.
    ///
    /// # Errors
    /// Something exists with other settings, or the server refuses; a person must act.
    pub async fn converge(&self) -> Result<(), TopologyError> {
        self.ensure(self.of_all_services()).await
    }

    /// The same without the consumers of UPLINK's partitions, which only ingest needs, and has the right to create.
    pub async fn converge_streams(&self) -> Result<(), TopologyError> {
        self.ensure(Topology { consumers: Vec::new(), ..self.of_all_services() }).await
    }

    /// Creates only the bucket `views` and NOTICES, for a federation's server, to which no device reports.
    pub async fn converge_top(&self) -> Result<(), TopologyError> {
        let mut streams = self.wanted().streams;
        streams.retain(|stream| [VIEWS_STREAM, stream::NOTICES].contains(&stream.name.as_str()));
        self.ensure(Topology { streams, consumers: Vec::new() }).await
    }

    /// Creates only PLANS, which the planner alone uses.
    ///
    /// # Errors
    /// As [`converge`](Self::converge).
    pub async fn converge_plans(&self) -> Result<(), TopologyError> {
        let mut streams = self.wanted().streams;
        streams.retain(|stream| stream.name == stream::PLANS);
        self.ensure(Topology { streams, consumers: Vec::new() }).await
    }

    /// The topology of every service: without PLANS, which the planner creates.
    fn of_all_services(&self) -> Topology {
        let mut topology = self.wanted();
        topology.streams.retain(|stream| stream.name != stream::PLANS);
        topology
    }

    pub(crate) fn wanted(&self) -> Topology {
        contract(self.wire.uplink_bytes_max, self.wire.ledger_bytes_max, self.wire.replicas)
    }

    async fn ensure(&self, mut topology: Topology) -> Result<(), TopologyError> {
        if !knows_batches(&self.wire.client.server_info().version) {
            topology = topology.without_batches();
        }
        let mut not_made = 0;
        let may_pass = |error: &TopologyError| {
            let TopologyError::Refused { source, .. } = error else { return false };
            let is_not_made = source.is(STORE_NOT_MADE) && not_made < STORE_ATTEMPTS_MAX;
            not_made += u32::from(is_not_made);
            is_temporary(source) || is_not_made
        };
        let ensure = |_| ensure_once(&self.wire, &topology);
        retry_transient(REOPEN, "cannot create a stream or consumer now", may_pass, ensure).await
    }
}

fn is_temporary(error: &ApiError) -> bool {
    let passes = |code| code == TOO_FEW_PEERS || crate::publish::is_transient(code);
    matches!(error, ApiError::NoAnswer(_)) || error.code().is_some_and(passes)
}

async fn ensure_once(wire: &Wire, topology: &Topology) -> Result<(), TopologyError> {
    let mut differences = Vec::new();
    for config in &topology.streams {
        differences.extend(ensure_stream(wire, config).await?);
    }
    for (stream, config) in &topology.consumers {
        differences.extend(ensure_consumer(wire, stream, config).await?);
    }
    if differences.is_empty() { Ok(()) } else { Err(TopologyError::Differs(differences)) }
}

#[derive(Deserialize)]
pub(crate) struct Existing {
    pub(crate) config: Map<String, Value>,
}

/// Creates the stream if it is missing; the settings that differ if it is not.
async fn ensure_stream(wire: &Wire, config: &Stream) -> Result<Vec<Difference>, TopologyError> {
    let asset = format!("stream {}", config.name);
    let info = format!("STREAM.INFO.{}", config.name);
    let mut found = wire.api::<Existing>(&info, &json!({})).await;
    if found.as_ref().is_err_and(|error| error.is(STREAM_NOT_FOUND)) {
        found = wire.api(&format!("STREAM.CREATE.{}", config.name), config).await;
        log_created(&asset, &found);
    }
    if found.as_ref().is_err_and(|error| error.is(STREAM_DIFFERS)) {
        found = wire.api(&info, &json!({})).await;
    }
    let found = found.map_err(|source| refusal(&asset, source))?;
    let wanted = fields(config);
    log_bound(&asset, &wanted, &found.config);
    log_replicas(&asset, &wanted, &found.config);
    Ok(compare(&asset, &wanted, &found.config, &FREE_STREAM_FIELDS))
}

/// Logs that an existing stream keeps another `max_bytes` than this process would have chosen.
fn log_bound(asset: &str, wanted: &Map<String, Value>, found: &Map<String, Value>) {
    let (wanted, found) = (&wanted[MAX_BYTES], &found[MAX_BYTES]);
    if !is_unset(wanted) && wanted != found {
        tracing::info!(
            "{asset} keeps its {MAX_BYTES} of {found}; this process would have created it with {wanted}"
        );
    }
}

/// Logs that an existing stream keeps another number of replicas; fewer than the settings name are a risk, so a warning.
fn log_replicas(asset: &str, wanted: &Map<String, Value>, found: &Map<String, Value>) {
    let replicas = |of: &Map<String, Value>| of.get(REPLICAS).and_then(Value::as_u64).unwrap_or(1).max(1);
    let (wanted, found) = (replicas(wanted), replicas(found));
    if found < wanted {
        tracing::warn!(
            "{asset} has {found} replicas, and the settings name {wanted}: \
             `nats stream edit NAME --replicas {wanted}` changes that while everything runs"
        );
    } else if found > wanted {
        tracing::info!("{asset} keeps its {found} replicas; this process would have created {wanted}");
    }
}

async fn ensure_consumer(
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
        log_created(&asset, &found);
    }
    if found.as_ref().is_err_and(|error| error.is(CONSUMER_DIFFERS)) {
        found = wire.api(&info, &json!({})).await;
    }
    let found = found.map_err(|source| refusal(&asset, source))?;
    Ok(compare(&asset, &fields(config), &found.config, &FREE_CONSUMER_FIELDS))
}

/// Creates a consumer; never changes one. The subject of the request names stream, consumer and filter, so that
/// permissions can limit it.
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

fn log_created(asset: &str, created: &Result<Existing, ApiError>) {
    if created.is_ok() {
        tracing::info!("created {asset}");
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

/// The fields in which two configurations differ. A field that one does not have counts as unset there.
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
        _ if field == MAX_BYTES => is_unset(wanted) || !is_unset(found),
        (Value::Object(wanted), Value::Object(found)) => compare("", wanted, found, &[]).is_empty(),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(w, f)| same("", w, f))
        }
        // The server writes its default for some of the fields that a request omits.
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
    fn only_a_different_meaning_is_a_difference() {
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
